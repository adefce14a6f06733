"""Builds that are killed, interrupted or starved: nothing is lost, nothing is silent."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.corpora import ENVIRONMENT, digests, start, texts, write
from support.processes import run_process

from clozelab import data
from clozelab.errors import UserError
from clozelab.text.store import Corpus

SHARD = 4000
OPTIONS = ["--vocabulary", "600", "--tokenizer", "byte_bpe"]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A text of some thirty shards, and the files of its corpus when nothing goes wrong."""
    folder = tmp_path_factory.mktemp("many")
    file = write(folder / "a.jsonl", texts(120))
    _, process = start(folder, file, "--out", str(folder / "c"), *OPTIONS, shard=SHARD)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    return file, digests(folder / "c")


def finished(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every finished shard."""
    shards = {}
    for file in folder.glob("building/*.npz"):
        status = file.stat()
        shards[file.name] = (status.st_ino, status.st_mtime_ns)
    return shards


def wait_for_shards(process: subprocess.Popen[str], out: Path, count: int) -> None:
    """Until a build has finished some shards."""
    limit = time.monotonic() + 30
    while len(finished(out)) < count:
        assert process.poll() is None, "the build ended before it could be stopped"
        assert time.monotonic() < limit
        time.sleep(0.005)


def children(session: int) -> set[int]:
    """The processes of a session that still run."""
    pids = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            pids.add(int(status.parent.name))
    return pids


def again(command: list[str]) -> None:
    """The same command once more, to its end."""
    result = run_process(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "sign", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_killed_build_goes_on(
    tmp_path: Path, sharded: tuple[str, dict[str, str]], sign: signal.Signals
) -> None:
    file, expected = sharded
    out = tmp_path / "c"
    command, process = start(tmp_path, file, "--out", str(out), *OPTIONS, shard=SHARD)
    wait_for_shards(process, out, 5)
    os.kill(process.pid, sign)
    process.communicate(timeout=10)
    limit = time.monotonic() + 5
    while children(process.pid) and time.monotonic() < limit:
        time.sleep(0.05)
    if left := children(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    assert not left, "workers outlived their parent"
    with pytest.raises(UserError, match="unfinished; run the same corpus build again"):
        Corpus.open(out)
    finished_shards = finished(out)
    _, process = start(tmp_path, file, "--out", str(out), *OPTIONS, shard=SHARD, whole=False)
    process.communicate(timeout=60)
    now = finished(out)
    assert 5 <= len(finished_shards) < len(now)
    assert {name: now[name] for name in finished_shards} == finished_shards, (
        "a finished shard was made again"
    )
    again(command)
    assert digests(out) == expected


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.slow), 12])
def test_an_interrupted_build_goes_on(
    tmp_path: Path, sharded: tuple[str, dict[str, str]], shards: int
) -> None:
    file, expected = sharded
    out = tmp_path / "c"
    command, process = start(tmp_path, file, "--out", str(out), *OPTIONS, shard=SHARD)
    wait_for_shards(process, out, shards)
    interrupt(process, out)
    again(command)
    assert digests(out) == expected


@pytest.mark.parametrize(
    "tokenizer",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("wordpiece", "byte_bpe")),
        "unigram",
    ],
)
def test_an_interrupt_while_a_tokenizer_is_trained_is_no_crash(
    tmp_path: Path, tokenizer: str
) -> None:
    out = tmp_path / "c"
    arguments = [str(data.corpus()), "--out", str(out), "--tokenizer", tokenizer]
    for delay in (0.05, 0.3):  # seconds into the reading, which takes longer
        _, process = start(tmp_path, *arguments, shard=SHARD)
        limit = time.monotonic() + 20
        while not (out / "building").exists():
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.005)
        time.sleep(delay)
        interrupt(process, out)
        shutil.rmtree(out)


def interrupt(process: subprocess.Popen[str], out: Path) -> None:
    """Press Ctrl-C: parent and workers get the signal; it is answered in one sentence."""
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=20)[1]
    assert process.returncode == 130, errors
    assert errors == (
        f"clozelab: {out}: interrupted; finished parts are kept, and the same command continues"
        " the build\n"
    )


def workers_of(process: subprocess.Popen[str]) -> list[Path]:
    """The worker processes of a build, as folders of /proc."""
    processes = []
    for child in children(process.pid):
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                processes.append(Path(f"/proc/{child}"))
        except OSError:
            continue
    return processes


def test_workers_never_die_of_an_interrupt(
    tmp_path: Path, sharded: tuple[str, dict[str, str]]
) -> None:
    file, _ = sharded
    _, process = start(tmp_path, file, "--out", str(tmp_path / "c"), *OPTIONS, shard=SHARD)
    limit = time.monotonic() + 20
    while not (workers := workers_of(process)):
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.002)
    status = (workers[0] / "status").read_text()  # it is still being imported
    masks = re.findall(r"^Sig(?:Blk|Ign):\s+(\w+)", status, re.MULTILINE)
    assert any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_worker_killed_is_told(tmp_path: Path, sharded: tuple[str, dict[str, str]]) -> None:
    file, expected = sharded
    out = tmp_path / "c"
    command, process = start(tmp_path, file, "--out", str(out), *OPTIONS, shard=SHARD)
    wait_for_shards(process, out, 2)
    os.kill(int(workers_of(process)[0].name), signal.SIGKILL)
    errors = process.communicate(timeout=20)[1]
    assert process.returncode == 2
    assert errors.startswith(f"clozelab: {out}: a worker process was killed")
    assert len(errors.strip().splitlines()) == 1
    again(command)
    assert digests(out) == expected


def test_a_broken_shard_is_made_again(tmp_path: Path, sharded: tuple[str, dict[str, str]]) -> None:
    file, expected = sharded
    out = tmp_path / "c"
    command, process = start(tmp_path, file, "--out", str(out), *OPTIONS, shard=SHARD)
    wait_for_shards(process, out, 6)
    process.kill()
    process.communicate(timeout=10)
    first, second, third = sorted(out.glob("building/*.npz"))[:3]
    first.write_bytes(first.read_bytes()[:1000])
    second.write_bytes(b"")
    broken = bytearray(third.read_bytes())
    broken[len(broken) // 3] ^= 255
    third.write_bytes(broken)
    again(command)
    assert digests(out) == expected


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of a size to be said."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mounted = run_process(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    run_process(["umount", "-l", str(place)], check=False)


def test_a_full_disk_is_told_and_nothing_is_lost(
    tmp_path: Path, small: Path, sharded: tuple[str, dict[str, str]]
) -> None:
    file, expected = sharded
    out = small / "c"
    arguments = [file, "--out", str(out), *OPTIONS]
    for size in (24 << 10, 250 << 10):  # the tokenizer does not fit; some shards do not
        fill(tmp_path, small, arguments, size)
    finished_shards = finished(out)
    resize(small, 20 << 20)
    command, process = start(tmp_path, *arguments, shard=SHARD, whole=False)
    process.communicate(timeout=60)
    now = finished(out)
    assert 0 < len(finished_shards) < len(now)
    assert {name: now[name] for name in finished_shards} == finished_shards
    status = os.statvfs(small)
    used = (status.f_blocks - status.f_bfree) * status.f_frsize
    for room in (12 << 10, 80 << 10):  # the words do not fit; the arrays do not
        fill(tmp_path, small, arguments, used + room)
    assert finished(out) == now
    resize(small, 20 << 20)
    command, process = start(tmp_path, *arguments, shard=SHARD)
    process.communicate(timeout=60)
    assert digests(out) == expected


def resize(place: Path, size: int) -> None:
    run_process(["mount", "-o", f"remount,size={size}", str(place)], check=True)


def fill(folder: Path, place: Path, arguments: list[str], size: int) -> None:
    """Run a build on a disk too small for it."""
    resize(place, size)
    _, process = start(folder, *arguments, shard=SHARD)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2, (size, errors)
    assert errors == (
        f"clozelab: {place / 'c'}: no space left on the disk; free some and run the same command"
        " again, finished parts are kept\n"
    )
    assert not (place / "c" / "manifest.json").exists()


def test_a_build_whose_processes_die_at_their_start_ends(tmp_path: Path) -> None:
    """A script with a part, not under a guard: each process begins a build, and is refused."""
    write(tmp_path / "a.jsonl", texts(20))
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\n"
        "from clozelab.contracts import Counts\n"
        "from clozelab.text.building import BuildOptions\n"
        "from clozelab.text.store.build import build\n"
        "from clozelab.text.tokenizers import Wordpiece\n"
        "from clozelab.registry import register\n"
        "register('measure', 'mine', lambda model: {'score': 1.0})\n"
        # Large enough for a pipe to fill up, were it handed over at the start.
        "words = ' '.join(f'w{number}' for number in range(9000))\n"
        "tokenizer = Wordpiece(12000).train(iter([words]))\n"
        "assert len(tokenizer.to_str()) > 100_000\n"
        "list(build(['a.jsonl'], Path('c'), tokenizer=tokenizer,"
        " options=BuildOptions(workers=1), counts=Counts()))\n"
    )
    result = run_process(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1 and "a worker process was killed" in result.stderr
