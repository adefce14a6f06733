"""Text at a URL: read as a file of the same bytes is, over a line that is not to be relied on."""

from __future__ import annotations

import errno
import gzip
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from support.file_server import Server, at

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.remote import access
from clozelab.text.overlap import EvaluationNgrams
from clozelab.text.reading import remote
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.sources import BytesRead, find

TEXTS = [f"Document {number} is about rivers.\n\n" * 40 for number in range(60)]


def texts(*names: str, counts: Counts | None = None) -> list[str]:
    return [document.text for document in find(names, Reading()).documents(counts or Counts())]


def written(folder: Path, kind: str) -> str:
    """The texts in a file of some kind; returns its name."""
    table = pyarrow.table({"text": TEXTS})
    name = {"text": "a.txt", "packed": "a.txt.gz", "table": "a.parquet"}[kind]
    if kind == "table":
        pyarrow.parquet.write_table(table, folder / name)
    else:
        whole = "\n\n\n".join(TEXTS).encode()
        (folder / name).write_bytes(gzip.compress(whole, 0) if kind == "packed" else whole)
    return name


@pytest.mark.parametrize("kind", ["text", "packed", "table"])
def test_a_url_is_read_as_the_file_is(server: Server, kind: str) -> None:
    name = written(server.folder, kind)
    assert texts(at(server, name)) == texts(str(server.folder / name))
    assert find([at(server, name)], Reading()).bytes == (server.folder / name).stat().st_size
    assert len(server.requests) > 5 or kind == "table"  # in pieces


@pytest.mark.parametrize("troubles", [["dropped"], ["503", "dropped", "500"], ["dropped"] * 4])
def test_what_was_lost_is_asked_for_again(server: Server, troubles: list[str]) -> None:
    name = written(server.folder, "text")
    server.troubles = troubles
    assert texts(at(server, name)) == texts(str(server.folder / name))
    assert server.troubles == []


def test_a_server_without_ranges_is_asked_for_the_whole_once(server: Server) -> None:
    name = written(server.folder, "text")
    server.ranges = False
    assert texts(at(server, name)) == texts(str(server.folder / name))
    assert len(server.requests) <= 4


def test_a_full_disk_is_not_a_fault_of_the_file(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnFullDisk(io.BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(remote, "TemporaryFile", OnFullDisk)
    monkeypatch.setattr(tempfile, "tempdir", "/small")
    server.ranges = False
    with pytest.raises(UserError, match=r"a\.txt: no space left in /small for a copy of it; "):
        texts(at(server, written(server.folder, "text")))


@pytest.mark.parametrize("kind", ["text", "table"])
def test_a_server_that_does_not_tell_lengths(server: Server, kind: str) -> None:
    name = written(server.folder, kind)
    server.ranges = server.lengths = False
    url, progress = at(server, name), BytesRead()
    assert find([url, str(server.folder / name)], Reading()).bytes is None
    inputs = find([url], Reading())
    assert inputs.text_bytes() is None
    read = inputs.documents(Counts(), progress=progress)
    assert [document.text for document in read] == texts(str(server.folder / name))
    assert progress.done == (server.folder / name).stat().st_size or kind == "table"


def test_an_answer_that_does_not_come_is_asked_for_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "PATIENCE", 0.5)
    name = written(server.folder, "text")
    server.troubles = ["slow"]
    assert texts(at(server, name)) == texts(str(server.folder / name))


def test_the_files_of_a_folder_of_a_web_server(server: Server) -> None:
    (server.folder / "wiki").mkdir()
    for name in ("a.txt", "b.txt", "c.bin"):
        (server.folder / "wiki" / name).write_text(f"This is {name}.", encoding="utf-8")
    counts = Counts()
    assert texts(at(server, "wiki/"), counts=counts) == ["This is a.txt.", "This is b.txt."]
    assert counts.numbers["files read: .txt"] == 2
    place = counts.places["files left aside: .bin, read if named themselves"]
    assert place == at(server, "wiki/c.bin")


def test_a_web_server_whose_pages_lead_to_folders_and_to_other_orders(server: Server) -> None:
    server.orders = ("/", "?C=N;O=D", "?C=M;O=A")  # as Apache's
    (server.folder / "wiki" / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt"):
        (server.folder / "wiki" / name).write_text(f"This is {name}.", encoding="utf-8")
    for name in ("wiki/", "wiki/*"):
        assert texts(at(server, name)) == ["This is a.txt.", "This is deep/b.txt."]


def test_a_page_of_links_is_not_a_file() -> None:
    info = {"size": None, "mimetype": "text/html"}
    with pytest.raises(UserError, match=r"http://a/texts: is a web page, .* must end in /"):
        access.described("http://a/texts", None, "http://a/texts", info=info)
    for url in ("http://a/texts.html?signed", "s3://a/texts"):
        assert access.described(url, None, url, info=info).url == url


def test_evaluation_files_are_asked_for_by_their_whole_url(server: Server) -> None:
    (server.folder / "a.txt").write_text("one two three four five", encoding="utf-8")
    EvaluationNgrams.read([at(server, "a.txt?id=7")], 5, counts=Counts())
    assert server.requests and all("id=7" in path for path in server.requests)


def test_a_line_that_stays_down_is_told_in_a_sentence(server: Server) -> None:
    server.troubles = ["503"] * 20
    url = at(server, written(server.folder, "text"))
    with pytest.raises(UserError, match=r"a\.txt cannot be read after 5 tries \(503.*\); "):
        texts(url)
    with pytest.raises(UserError, match=r"there is no file or folder .*/b\.txt: check the name"):
        texts(at(server, "b.txt"))
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"a\.txt cannot be read after 5 tries .*connect"):
        texts(url)


def test_what_a_store_was_made_from_is_known_by_its_size(server: Server) -> None:
    (server.folder / "a.txt").write_text("Some text. " * 9, encoding="utf-8")
    first = find([at(server, "a.txt")], Reading()).listing()
    (server.folder / "a.txt").write_text("Some text. " * 10, encoding="utf-8")
    assert first != find([at(server, "a.txt")], Reading()).listing()


def test_credentials_are_neither_recorded_nor_printed(server: Server) -> None:
    (server.folder / "a.txt").write_text("Some text.", encoding="utf-8")
    url = at(server, "a.txt?signature=secret")
    assert "secret" not in str(find([url], Reading()).listing())
    server.troubles = ["403"] * 20
    with pytest.raises(UserError) as error:
        texts(url)
    assert "secret" not in str(error.value)
    assert access.shown("ftp://me:sec@ret@host/a.txt") == "ftp://host/a.txt"
    (server.folder / "empty.txt").write_text("", encoding="utf-8")
    server.troubles = []
    with pytest.raises(UserError, match="there is no text in") as error:
        texts(at(server, "empty.txt?signature=secret"))
    assert "secret" not in str(error.value)


def test_urls_that_lead_nowhere_are_sentences() -> None:
    with pytest.raises(UserError, match=r"nothing://a/b cannot be read .*; check the URL"):
        texts("nothing://a/b")
    with pytest.raises(UserError, match=r"github://a/b cannot be read .*; check the URL"):
        texts("github://a/b")
    with pytest.raises(UserError, match=r"no file matches memory://none/\*\.txt"):
        texts("memory://none/*.txt")


def test_a_folder_and_a_pattern_at_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    hidden = (".hidden.txt", ".git/e.txt", "deep/.cache/f.txt")
    for name in ("b.txt", "a.jsonl", "c.bin", *hidden, "deep/d.txt"):
        text = '{"text": "One."}\n' if name == "a.jsonl" else f"This is {name}."
        memory.pipe_file(f"/texts/{name}", text.encode())
    read = ["One.", "This is b.txt.", "This is deep/d.txt."]
    assert [text.strip() for text in texts("memory://texts")] == read
    assert [text.strip() for text in texts("memory://texts/*.txt")] == read[1:2]
    assert [text.strip() for text in texts("memory://texts/d*")] == read[2:]
    assert texts("memory://texts/**") == [read[0], read[1], "This is c.bin.", read[2]]
    assert texts("memory://texts/.git/e.txt") == texts("memory://texts/.git")
    memory.rm("/texts", recursive=True)
    monkeypatch.setattr(access, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs pip install 'clozelab\\[remote\\]'"):
        texts("memory://texts")


def test_an_s3_server(s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(access, "PIECE", 10_000)
    monkeypatch.setattr(access, "WAIT", 0.01)
    s3.mkdir("texts")
    for kind in ("text", "packed", "table"):
        name = written(tmp_path, kind)
        s3.put(str(tmp_path / name), f"texts/wiki/{name}")
        assert texts(f"s3://texts/wiki/{name}") == texts(str(tmp_path / name))
    assert texts("s3://texts/wiki") == texts(str(tmp_path))
    assert [name for name, *_ in find(["s3://texts/wiki/*.gz"], Reading()).listing()] == [
        "s3://texts/wiki/a.txt.gz"
    ]
    with pytest.raises(UserError, match=r"there is no file or folder s3://texts/none"):
        texts("s3://texts/none.txt")
    with pytest.raises(UserError, match=r"there is no file or folder s3://nobucket/a\.txt"):
        texts("s3://nobucket/a.txt")
