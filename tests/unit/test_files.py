"""Files: whole or not at all, locked while written, and nobody else's."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clozelab.errors import UserError
from clozelab.files import (
    MARKER,
    check_claim,
    check_output,
    claim,
    finish_removal,
    is_page,
    kind_of,
    locked,
    new_folder,
    replacing,
    sha256,
    write_tensors,
    write_text,
)

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom clozelab.files import locked\n"
    "with locked(Path(sys.argv[1]), work='run'):\n    print('held', flush=True)\n    time.sleep(60)"
)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "one")
    with pytest.raises(TypeError), replacing(file) as stream:
        stream.writelines([b"two", "no bytes"])  # type: ignore[list-item]
    assert file.read_text() == "one"
    assert [*tmp_path.iterdir()] == [file]


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_pipe_or_a_folder_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="no plain file"):
        write_text(pipe, "text")
    assert pipe.is_fifo()
    with pytest.raises(UserError, match="is a folder"):
        write_text(tmp_path, "text")


def test_a_device_is_refused() -> None:
    with pytest.raises(UserError, match="no plain file"):
        write_text(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


def test_the_file_of_a_command_replaces_a_page_of_ours_and_nothing_else(tmp_path: Path) -> None:
    page, thesis = tmp_path / "page.html", tmp_path / "thesis.html"
    check_output(page)  # which is not there
    page.write_text('<!doctype html>\n<meta name="generator" content="clozelab 0.1.0">\n')
    thesis.write_text("<h1>Years of work</h1>")
    assert is_page(page) and not is_page(thesis)
    check_output(page)
    for file in (thesis, tmp_path / "link.html"):
        if not file.exists():
            file.symlink_to(thesis)
        with pytest.raises(UserError, match=f"{file.name}: already exists.*--overwrite"):
            check_output(file)
        check_output(file, overwrite=True)
    with pytest.raises(UserError, match="does not exist; make it first"):
        check_output(tmp_path / "deep" / "page.html")
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
        with pytest.raises(UserError, match=r"no plain file|is a folder"):
            check_output(file, overwrite=True)


def test_an_error_names_the_place_that_the_user_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    file = tmp_path / "link" / "a.txt"
    with pytest.raises(OSError, match="space") as full, replacing(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert full.value.filename == str(file)
    folder = tmp_path / "link" / "run"
    with pytest.raises(OSError, match=r"b\.txt") as missing, new_folder(folder) as part:
        (part / "b.txt").read_text()
    assert missing.value.filename == str(folder / "b.txt")
    with pytest.raises(OSError, match=r"other\.txt") as other, replacing(file):
        (tmp_path / "other.txt").read_text()
    assert other.value.filename == str(tmp_path / "other.txt")


def test_a_file_has_the_mode_of_its_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    dead, alive = tmp_path / f".a.{done.pid}.part", tmp_path / f".a.{os.getppid()}.part"
    other = tmp_path / f".b.{done.pid}.part"
    for left in (dead, alive, other):
        left.write_text("half")
    write_text(tmp_path / "a", "text")
    assert not dead.exists() and alive.exists() and other.exists()
    folder = tmp_path / f".c.{done.pid}.part"
    folder.mkdir()
    with new_folder(tmp_path / "c"):
        assert not folder.exists()


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "folder"
    with pytest.raises(FileNotFoundError), new_folder(place) as part:
        (part / "a").write_text((part / "b").read_text())
    assert not place.exists() and not [*place.parent.iterdir()]
    with new_folder(place) as part:
        (part / "a").write_text("text")
        assert not place.exists()
    assert [file.name for file in place.iterdir()] == ["a"]
    with pytest.raises(UserError, match="not empty"), new_folder(place):
        pass


def test_a_folder_with_other_things_in_it_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="other files"):
        claim(tmp_path, "run")
    assert kind_of(tmp_path) is None
    mine = tmp_path / "mine"
    claim(mine, "run")
    (mine / "recipe.toml").write_text("")
    claim(mine, "run")
    assert kind_of(mine) == "run"
    with pytest.raises(UserError, match="holds a run, not a corpus"):
        claim(mine, "corpus")
    with pytest.raises(UserError, match="not a folder"):
        claim(tmp_path / "thesis.tex", "run")


def test_a_folder_is_claimed_after_a_kill_while_its_marker_was_written(tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    (tmp_path / f"..clozelab.{done.pid}.part").write_text("ru")
    claim(tmp_path, "run")
    assert [file.name for file in tmp_path.iterdir()] == [MARKER]


def test_a_second_writer_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match=rf"another run .*process {other.pid}, since"),
            locked(tmp_path, work="run"),
        ):
            pass
        other.kill()
    with locked(tmp_path):  # the lock of a killed process is gone with it
        pass


def test_a_digest_is_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a").startswith("ba7816bf")
    (tmp_path / "b").write_bytes(bytes(3_000_000))
    parts: list[int] = []
    assert sha256(tmp_path / "b", tell=parts.append) == sha256(tmp_path / "b")
    assert sum(parts) == 3_000_000 and len(parts) > 1


def test_tensors_have_the_mode_of_their_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2)})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o640


def _write_much(place: Path, tensors: bool) -> None:
    with new_folder(place) as folder:
        if tensors:
            write_tensors(folder / "a.bin", {"a": torch.zeros(9999)})
        else:
            write_text(folder / "a.bin", "text" * 9999)


@pytest.mark.parametrize("tensors", [True, False])
def test_a_full_disk_is_told_by_the_place_that_was_named(tmp_path: Path, tensors: bool) -> None:
    """A limit on a file's size stands for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            _write_much(tmp_path / "out", tensors)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    if tensors:
        assert caught.value.filename == str(tmp_path / "out" / "a.bin")
    assert not [*tmp_path.iterdir()]


def test_a_new_folder_is_none_that_is_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is not a folder"), new_folder(tmp_path / "pipe"):
        pass
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with new_folder(tmp_path / "link") as folder:
        write_text(folder / "a", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "empty" / "a").read_text() == "text"


def test_a_removal_that_was_killed_is_finished(tmp_path: Path) -> None:
    folder = tmp_path / "building"
    left = tmp_path / ".building.gone"
    left.mkdir()
    (left / "part").write_text("of what is gone")
    folder.mkdir()
    (folder / "new").write_text("to stay")
    finish_removal(folder)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["building"]
    assert (folder / "new").exists()


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(UserError, match=r"file/run/a: .*file is not a folder; name another place"):
        check_claim(tmp_path / "file" / "run" / "a", "run")
    check_claim(tmp_path / "new" / "run", "run")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UserError, match=f"/run: {tmp_path} cannot be written to; name another"):
        check_claim(tmp_path / "run", "run")
    said = f"^{tmp_path}: cannot be written to; change its permissions$"
    with pytest.raises(UserError, match=said):
        check_claim(tmp_path, "run")
