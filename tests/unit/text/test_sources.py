"""From what a user names to documents: every kind of input, every layout, bounded memory, and one
clear sentence for every input that cannot be read."""

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import tempfile
import textwrap
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.files import mark
from clozelab.text.reading import layouts, records
from clozelab.text.reading.layouts import RawDocument, Reading, guess
from clozelab.text.reading.sources import BytesRead, find


def read(*inputs: object, counts: Counts | None = None, **reading: str) -> list[RawDocument]:
    options = Reading(**reading)  # type: ignore[arg-type]
    return list(find([str(name) for name in inputs], options).documents(counts or Counts()))


def texts(*inputs: object, counts: Counts | None = None, **reading: str) -> list[str]:
    return [document.text for document in read(*inputs, counts=counts, **reading)]


def refusal(*inputs: object, **reading: str) -> str:
    with pytest.raises(UserError) as caught:
        read(*inputs, **reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}


# --- kinds of file ---------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACK)
def test_every_kind_reads_plain_and_packed(tmp_path: Path, packing: str) -> None:
    pack = PACK[packing]
    table = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "text": ["Päge one", "Page two"]}), table)
    text = write(tmp_path / f"a.txt{packing}", pack("Päge one\n\nPage two\n".encode()))
    lines = write(
        tmp_path / f"a.jsonl{packing}",
        pack(jsonl({"text": "Päge one"}, {"text": "Page two"}).encode()),
    )
    parquet = write(tmp_path / f"a.parquet{packing}", pack(table.getvalue()))
    assert texts(text) == ["Päge one\nPage two"]
    assert texts(lines) == texts(parquet) == ["Päge one", "Page two"]
    assert [document.name for document in read(lines)] == [f"{lines}:1", f"{lines}:2"]
    assert [document.name for document in read(parquet)] == [f"{parquet}:1", f"{parquet}:2"]


def test_an_unknown_suffix_is_text_and_ndjson_is_json(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.story", "Once.\n")) == ["Once."]
    assert texts(write(tmp_path / "a.ndjson", jsonl({"text": "x"}))) == ["x"]


def test_two_members_of_a_packed_file_are_one_text(tmp_path: Path) -> None:
    for packing, pack in PACK.items():
        path = write(tmp_path / f"a.txt{packing}", pack(b"One.\n\n") + pack(b"Two.\n"))
        assert texts(path) == ["One.\nTwo."], packing


@pytest.mark.parametrize("whole", [True, False])
def test_arrow_files_and_streams(tmp_path: Path, whole: bool) -> None:
    table = pa.table({"text": ["One", "Two"]})
    sink = pa.BufferOutputStream()
    opener = pa.ipc.new_file if whole else pa.ipc.new_stream
    with opener(sink, table.schema) as writer:
        writer.write_table(table)
    assert texts(write(tmp_path / "a.arrow", sink.getvalue().to_pybytes())) == ["One", "Two"]


def test_the_field_may_be_another(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl({"text": "no", "body": "yes"}))
    assert texts(path, field="body") == ["yes"]
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["no"], "body": ["yes"]}), table)
    assert texts(table, field="body") == ["yes"]


def test_a_table_may_hold_large_or_dictionary_strings(tmp_path: Path) -> None:
    for kind in (pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        pq.write_table(pa.table({"text": pa.array(["a", None]).cast(kind)}), tmp_path / "t.parquet")
        counts = Counts()
        assert texts(tmp_path / "t.parquet", counts=counts) == ["a"]
        assert counts.numbers == {"records whose text is not a string": 1}


# --- names -----------------------------------------------------------------------------------


def test_folders_are_read_sorted_and_say_what_they_skip(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/c.jsonl", "C.txt", "a.txt"):
        write(tmp_path / name, jsonl({"text": name}) if name.endswith("l") else name)
    write(tmp_path / ".hidden.txt", "hidden")
    write(tmp_path / "x.png", b"\x89PNG")
    write(tmp_path / "notes.md", "# Notes to myself")
    write(tmp_path / "blob", b"ab\0cd")
    write(tmp_path / "wiki_00", "wiki")
    counts = Counts()
    expected = ["C.txt", "a/c.jsonl", "a/z.txt", "a.txt", "b.txt", "wiki"]
    assert texts(tmp_path, counts=counts) == expected
    assert {what: number for what, number in counts.numbers.items() if "file" in what} == {
        "hidden files skipped": 1,
        "binary files skipped": 1,
        "files read: .txt": 4,
        "files read: .jsonl": 1,
        "files read: without an ending": 1,
        "files left aside: .md, read if named themselves": 1,
        "files left aside: .png, read if named themselves": 1,
    }
    assert counts.places["hidden files skipped"] == str(tmp_path / ".hidden.txt")
    assert texts(tmp_path / "*.md") == ["# Notes to myself"]


def test_a_folder_of_other_endings_is_refused_with_what_it_has(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.html"):
        write(tmp_path / name, "text")
    message = f"the folder {tmp_path} has no text files, only 2 .md, 1 .html; name those files"
    assert message in refusal(tmp_path)


def test_a_folder_that_clozelab_made_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a")
    write(tmp_path / "corpus" / "words.txt", "the\t9")
    mark(tmp_path / "corpus", "corpus")
    counts = Counts()
    assert texts(tmp_path, counts=counts) == ["a"]
    assert counts.places["folders that clozelab made skipped"] == str(tmp_path / "corpus")


def test_inputs_keep_their_order_and_patterns_are_sorted(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.txt", name)
    assert texts(tmp_path / "c.txt", tmp_path / "a.txt") == ["c", "a"]
    assert texts(tmp_path / "*.txt") == ["a", "b", "c"]
    counts = Counts()
    assert texts(tmp_path / "[ab].txt", tmp_path / "a.txt", counts=counts) == ["a", "b", "a"]
    assert counts.numbers["inputs named more than once and read as often"] == 1


def test_a_pattern_that_matches_a_folder_and_its_files_reads_each_once(tmp_path: Path) -> None:
    for name in ("a.txt", "deep/b.txt", "deep/deeper/c.txt"):
        write(tmp_path / name, name)
    for pattern in ("**", "**/*"):
        assert texts(tmp_path / pattern) == ["a.txt", "deep/b.txt", "deep/deeper/c.txt"]
    assert texts(tmp_path / "d*") == ["deep/b.txt", "deep/deeper/c.txt"]
    mark(tmp_path / "deep" / "deeper", "corpus")
    with pytest.raises(UserError, match="deep/deeper: is a corpus that clozelab made, not text"):
        texts(tmp_path / "**")


def test_a_file_may_have_a_pattern_for_a_name(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "wrong")
    assert texts(write(tmp_path / "[a].txt", "right")) == ["right"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"One.\nline\n", ["One. line"]),
        (b'\n  {"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
    ],
)
def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, content: bytes, expected: list[str]
) -> None:
    stream = io.BytesIO(content)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    assert find(["-"], Reading()).bytes is None
    documents_read = read("-", layout="prose")
    assert [document.text for document in documents_read] == expected
    assert documents_read[0].name.startswith("standard input:")
    assert not stream.closed


def test_a_saved_dataset(tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder = tmp_path / split
        for number in range(2):
            table = pa.table({"text": [f"{split} {number}"]})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            write(folder / f"data-{number}.arrow", sink.getvalue().to_pybytes())
        files = [{"filename": f"data-{number}.arrow"} for number in range(2)]
        write(folder / "state.json", json.dumps({"_data_files": files}))
        write(folder / "dataset_info.json", "{}")
    write(tmp_path / "dataset_dict.json", json.dumps({"splits": ["train", "test"]}))
    assert texts(tmp_path) == ["train 0", "train 1"]
    assert texts(tmp_path, split="test") == texts(tmp_path / "test") == ["test 0", "test 1"]
    assert "--split test or train" in refusal(tmp_path, split="dev")
    (tmp_path / "test" / "data-1.arrow").unlink()
    assert "data-1.arrow is missing" in refusal(tmp_path, split="test")
    write(tmp_path / "test" / "state.json", "{")
    assert "state.json is damaged" in refusal(tmp_path, split="test")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / "packages" / "datasets.py",
        "def load_dataset(name, subset, *, split, streaming):\n"
        "    assert streaming\n"
        "    if name == 'no/body': raise ValueError('unknown dataset\\nmore')\n"
        "    yield {'text': f'{name} {subset} {split}', 'n': 1}\n"
        "    yield {'n': 2}\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("hub")
def test_a_dataset_of_the_hub() -> None:
    counts = Counts()
    assert texts("hf:owner/name", counts=counts) == ["owner/name None train"]
    assert counts.numbers == {"records without the field 'text'": 1}
    assert texts("owner/name", split="dev") == ["owner/name None dev"]
    assert texts("hf:owner/name:train[:1%]") == ["owner/name None train[:1%]"]
    assert texts("hf:owner/name/raw:test") == ["owner/name raw test"]
    assert find(["hf:owner/name"], Reading()).bytes is None
    assert "only text, n; give --field text" in refusal("hf:owner/name", field="txet")
    assert "no/body cannot be read from the hub (unknown dataset)" in refusal("hf:no/body")
    assert "is not a dataset" in refusal("hf:")
    sys.modules.pop("datasets", None)


def test_without_the_package_a_dataset_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in ("hf:owner/name", "owner/name"):
        assert "pip install clozelab[datasets]" in refusal(name)
    # A folder of that name can be imported, but is not the package.
    monkeypatch.delitem(sys.modules, "datasets")
    if find_spec("datasets") is None:
        (tmp_path / "datasets").mkdir()
        monkeypatch.syspath_prepend(str(tmp_path))
        assert "pip install clozelab[datasets]" in refusal("hf:owner/name")
    # These are files that are missing, not datasets.
    (tmp_path / "owner").mkdir()
    assert "no file or folder owner/name" in refusal("owner/name")
    assert "no file or folder other/name.txt" in refusal("other/name.txt")


def test_listing_and_sizes(tmp_path: Path) -> None:
    first = write(tmp_path / "b.txt", "One")
    write(tmp_path / "a.txt.gz", gzip.compress(b"Two" * 999))
    os.utime(first, ns=(5, 7))
    size = (tmp_path / "a.txt.gz").stat().st_size
    named = [str(first), str(tmp_path)]
    inputs = find(named, Reading())
    sizes = inputs.listing()
    assert [(Path(name).name, size) for name, size, _ in sizes] == [
        ("b.txt", 3),
        ("a.txt.gz", size),
        ("b.txt", 3),
    ]
    assert sizes[0][2] == 7
    assert inputs.bytes == 6 + size


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl.xz", "a.jsonl.zst", "a.parquet"])
def test_progress_runs_from_nothing_to_every_byte(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    documents_of_numbers = [" ".join(str(n * k * 7919) for k in range(400)) for n in range(300)]
    if name.endswith("parquet"):
        pq.write_table(pa.table({"text": documents_of_numbers}), path)
    else:
        content = (
            jsonl(*({"text": text} for text in documents_of_numbers))
            if "json" in name
            else "\n".join(documents_of_numbers)
        )
        write(path, PACK.get(path.suffix, bytes)(content.encode()))
    progress, inputs = BytesRead(), find([str(path)], Reading(layout="lines"))
    seen = [progress.done for _ in inputs.documents(Counts(), progress=progress)]
    total = inputs.bytes
    assert total
    assert seen == sorted(seen)
    assert progress.done == total
    assert seen[0] < total
    if not name.endswith("parquet"):
        assert any(total * 0.2 < done < total * 0.8 for done in seen)


# --- layouts ---------------------------------------------------------------------------------


def test_prose_joins_wrapped_lines_and_keeps_paragraphs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "  One line\n and more.  \n\n \n Two\ntwo.\fThree\n")
    documents_read = read(path, layout="prose")
    assert documents_read == [RawDocument("One line and more.\nTwo two.\nThree", f"{path}:1")]


def test_prose_joins_chinese_lines_without_a_space(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "今天天气\n很好。\nOK\n吗\n")
    assert texts(path, layout="prose") == ["今天天气很好。 OK 吗"]


def test_prose_in_very_long_lines_is_a_paragraph_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", ("word " * 100 + "\n") * 3)
    assert texts(path, layout="prose")[0].count("\n") == 2


def test_sentences_are_one_a_line_with_blank_lines_between_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n\nOne.\n Two.\n\n  \nThree.\n")
    assert read(path, layout="sentences") == [
        RawDocument("One.\nTwo.", f"{path}:3", is_split=True),
        RawDocument("Three.", f"{path}:7", is_split=True),
    ]


def test_lines_are_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "One. Two.\n\nThree.")
    assert read(path, layout="lines") == [
        RawDocument("One. Two.", f"{path}:1"),
        RawDocument("Three.", f"{path}:3"),
    ]


STORY = [
    "The miller had three sons. The eldest was strong. He carried the sacks up the hill all day.",
    "The second was clever, and he kept the books; but the books were wrong, and he knew it well.",
    "Nobody asked the third. He sat by the stream, whistling, and counted what the water carried.",
    'One morning the mill stood still. "Who has stopped it?" cried the miller. Nobody answered.',
] * 8
SENTENCES = [
    "The miller had three sons.",
    "The eldest was strong.",
    "He carried the sacks up the hill all day long, and in the evening he slept like a stone.",
    'Mr. Brown said, "Stop!" and they did.',
    "Nobody asked the third one.",
] * 8
CHINESE = ["磨坊主有三个儿子。", "大儿子很强壮，每天背着袋子上山！", "没有人问第三个？"] * 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\n".join(textwrap.fill(text, 60) for text in STORY), ("prose", True)),
        (textwrap.fill(" ".join(STORY), 72), ("prose", True)),
        ("\n".join(STORY), ("prose", False)),
        ("\n\n".join(text * 4 for text in STORY), ("prose", False)),
        ("\n".join(SENTENCES), ("sentences", False)),
        ("\n\n".join("\n".join(SENTENCES[n : n + 4]) for n in range(9)), ("sentences", False)),
        ("\n".join(CHINESE), ("sentences", False)),
        ("\n".join("".join(CHINESE[n : n + 4]) for n in range(9)), ("prose", False)),
        ("\n".join("".join(CHINESE)[n : n + 24] for n in range(0, 200, 24)), ("prose", True)),
        ("Hello there.\nHow are you?\n", ("sentences", False)),
        ("roses are red\nviolets blue\nsugar is sweeter than\nall\nthe rest", ("prose", False)),
        ("Only this line.\n", ("prose", True)),
        ("", ("prose", True)),
        ("A line cut off tells nothing.\n" + "word " * 14_000, ("prose", True)),
    ],
)
def test_the_layout_is_guessed(text: str, expected: tuple[str, bool]) -> None:
    assert guess(text) == expected


@pytest.mark.parametrize(
    ("row", "inside"),
    [
        ("好。", False),
        ("好。”", False),
        ("好。他", True),
        ("“好！”他说。", True),
        ("。" * 9, False),
        ("。" * 9 + "好", True),
        ("", False),
    ],
)
def test_eastern_stops_at_the_end_of_a_row_are_its_own(row: str, inside: bool) -> None:
    assert layouts._eastern_stops(row) == inside


def test_the_guess_is_said_aloud(tmp_path: Path) -> None:
    counts = Counts()
    lines_file = write(tmp_path / "a.txt", "\n".join(SENTENCES))
    wrapped = write(tmp_path / "b.txt", textwrap.fill(" ".join(STORY), 60))
    documents_read = read(lines_file, wrapped, counts=counts)
    assert [document.is_split for document in documents_read] == [True, False]
    assert counts.places == {"read as sentences": str(lines_file), "read as prose": str(wrapped)}
    assert documents_read[1].text == " ".join(STORY)


def test_only_the_front_of_a_long_text_decides(tmp_path: Path) -> None:
    counts = Counts()
    text = "\n".join(SENTENCES * 40) + "\n" + textwrap.fill(" ".join(STORY * 40), 60)
    read(write(tmp_path / "a.txt", text), counts=counts)
    assert set(counts.numbers) == {"read as sentences"}


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_line_ending_and_no_other(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / "a.txt", ending.join(["One\u2028still one", "", "Two\x85two", ""]))
    assert texts(path, layout="sentences") == ["One\u2028still one", "Two\x85two"]
    records = write(tmp_path / "a.jsonl", json.dumps({"text": f"a{ending}b"}) + ending)
    assert texts(records) == ["a\nb"]


# --- bounds ----------------------------------------------------------------------------------


def test_a_long_document_is_cut_at_the_best_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "LIMIT", 100)
    counts = Counts()
    path = write(tmp_path / "a.txt", "\n\n".join(["word " * 9 + "end."] * 7))
    documents_read = read(path, counts=counts, layout="prose")
    assert [len(document.text) for document in documents_read] == [99, 99, 99, 49]
    assert all(document.text.endswith("end.") for document in documents_read)
    assert [document.name for document in documents_read[:2]] == [f"{path}:1", f"{path}:5"]
    assert counts.numbers == {"documents over 4 M characters cut": 1}
    record = write(tmp_path / "b.jsonl", jsonl({"text": "word " * 50}, {"text": "x" * 250}))
    pieces = texts(record, counts=counts)
    assert [len(piece) for piece in pieces] == [99, 99, 50, 100, 100, 50]
    assert counts.numbers == {"documents over 4 M characters cut": 3}
    assert "".join(pieces[3:]) == "x" * 250


@pytest.mark.parametrize("layout", ["prose", "sentences", "lines"])
def test_a_line_that_comes_in_pieces_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr("clozelab.text.reading.lines._PIECE", 8)
    path = write(tmp_path / "a.txt", "12345678\none two three four\n\nfive\n")
    joint = {"prose": " ", "sentences": "\n", "lines": "|"}[layout]
    text = "|".join(texts(path, layout=layout))
    end = "\n" if layout == "prose" else "|"
    assert text == f"12345678{joint}one two three four{end}five"
    bad = write(tmp_path / "b.txt", b"fine\n" * 40 + b"\xe9 one two three \xe9 four \xe9\n")
    counts = Counts()
    read(bad, counts=counts, layout=layout)
    assert counts.numbers["lines with invalid UTF-8"] == 1
    records = write(tmp_path / "a.jsonl", jsonl({"text": "one two three"}, {"text": "four"}))
    assert [document.name for document in read(records)] == [f"{records}:1", f"{records}:2"]


def _peak(run: Callable[[], int]) -> tuple[int, float]:
    tracemalloc.start()
    try:
        size = run()
        return size, tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def _size(path: Path, **reading: str) -> int:
    options = Reading(**reading)  # type: ignore[arg-type]
    return sum(len(document.text) for document in find([str(path)], options).documents(Counts()))


@pytest.mark.thorough
def test_memory_stays_bounded_whatever_the_input(tmp_path: Path) -> None:
    """A document of the longest kind is held about three times over, and no file is held."""
    path = tmp_path / "a.txt"
    with open(path, "wb") as file:
        for _ in range(50):
            file.write(b"word " * 200_000)
    size, peak = _peak(lambda: _size(path, layout="prose"))
    assert size > 49_000_000
    assert peak < 60
    paragraph = b"Some words and no more of them. " * 60 + b"\n"
    with open(path, "wb") as file:
        for _ in range(52):
            file.write(paragraph * 1_000)
    assert path.stat().st_size > 99_000_000
    assert _peak(lambda: _size(path))[1] < 60
    assert _peak(lambda: _size(path, layout="lines"))[1] < 2


def test_a_json_line_over_every_limit_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LONGEST", 100)
    counts = Counts()
    path = write(tmp_path / "a.jsonl", jsonl({"text": "a"}, {"text": "b" * 99}, {"text": "c"}))
    assert texts(path, counts=counts) == ["a", "c"]
    assert counts.places == {"lines over 16 M characters skipped": f"{path}:2"}
    long = write(tmp_path / "b.jsonl", jsonl({"text": "a"}) + " " * 20_000_000)
    assert _peak(lambda: len(read(long, counts=counts)))[1] < 8
    assert counts.numbers == {"lines over 16 M characters skipped": 2}


# --- bad input -------------------------------------------------------------------------------


def test_missing_names_are_refused_at_once_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "books" / "austen.txt", "x")
    with pytest.raises(UserError, match=r"did you mean .*austen\.txt\?"):
        find([str(tmp_path / "books" / "austin.txt")], Reading())
    assert f"did you mean {tmp_path / 'books'}?" in refusal(tmp_path / "bokos" / "austen.txt")
    assert "no file matches" in refusal(tmp_path / "books" / "*.text")
    assert "check the name" in refusal(tmp_path / "zzzzzz")
    assert "no input is named" in refusal()
    assert "a\0b" in refusal("a\0b")


def test_folders_without_text_and_links_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "pictures" / "a.png", b"x")
    assert "has no text files" in refusal(tmp_path / "pictures")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.txt").symlink_to(tmp_path / "gone.txt")
    for name in (tmp_path / "folder", tmp_path / "folder" / "link.txt"):
        link = tmp_path / "folder" / "link.txt"
        assert refusal(name).startswith(f"{link} is a link to {tmp_path / 'gone.txt'}, which is")

    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    assert "may not be read (Permission denied); change its perm" in refusal(tmp_path / "folder")


def test_a_link_to_a_folder_is_not_followed_round_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x")
    (tmp_path / "again").symlink_to(tmp_path)
    counts = Counts()
    assert texts(tmp_path, counts=counts) == ["x"]
    assert counts.numbers["links to folders and special files skipped"] == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "folder" / "a.txt", "x")
    path.chmod(0)
    assert "may not be read; change its permissions" in refusal(path)
    path.parent.chmod(0)
    try:
        assert refusal(path.parent).startswith(f"the folder {path.parent} may not be read")
        assert refusal(path).startswith(f"{path} may not be read")
    finally:
        path.parent.chmod(0o700)


def test_empty_files_are_counted_and_nothing_at_all_is_refused(tmp_path: Path) -> None:
    empty = [write(tmp_path / name, " \n") for name in ("a.txt", "b.jsonl")]
    empty.append(write(tmp_path / "c.txt.gz", b""))
    full = write(tmp_path / "d.txt", "x")
    counts = Counts()
    assert texts(*empty, full, counts=counts) == ["x"]
    assert counts.numbers["empty files"] == 3
    message = refusal(*empty)
    assert all(str(path) in message for path in empty)
    blank = write(tmp_path / "e.jsonl", jsonl({"text": " "}, {"text": None}))
    counts = Counts()
    assert texts(blank, full, counts=counts) == ["x"]
    assert counts.numbers["empty records"] == counts.numbers["records whose text is not a string"]


def test_a_few_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path: Path) -> None:
    lines = [b"fine\n"] * 200
    lines[40] = b"caf\xe9 \xe2\x82 x\n"
    lines[90] = b"\xff\xff\xff\n"
    path = write(tmp_path / "a.txt", b"".join(lines))
    counts = Counts()
    lines_read = texts(path, counts=counts, layout="lines")
    assert lines_read[40] == "caf\ufffd \ufffd x"
    assert counts.numbers == {"lines with invalid UTF-8": 2}
    assert counts.places == {"lines with invalid UTF-8": f"{path}:41"}


def test_a_text_in_another_encoding_is_refused_and_read_when_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", ("fine\n" * 3 + "café\n").encode("latin-1") * 300)
    message = refusal(path)
    assert f"{path}:4: byte 0xE9 is not UTF-8" in message
    assert "give --encoding with the file's encoding, such as gb18030 or latin-1" in message
    assert texts(path, encoding="latin-1", layout="lines")[3] == "café"
    chinese = write(tmp_path / "b.txt", "今天天气很好。\n".encode("gb18030") * 50)
    assert "is not UTF-8" in refusal(chinese)
    assert texts(chinese, encoding="gb18030", layout="lines")[0] == "今天天气很好。"
    message = refusal(path, encoding="utf-9")
    assert message == (
        "--encoding utf-9: is unknown; give the file's encoding, such as gb18030 or latin-1"
    )


def test_a_stray_byte_does_not_refuse_a_short_text(tmp_path: Path) -> None:
    counts = Counts()
    assert texts(write(tmp_path / "a.txt", b"A caf\xe9."), counts=counts) == ["A caf\ufffd."]
    assert counts.numbers["lines with invalid UTF-8"] == 1
    chinese = "今天天气很好。".encode()
    stray = write(tmp_path / "b.txt", (chinese + b"\xe9\n") * 30)
    assert texts(stray, layout="lines") == ["今天天气很好。\ufffd"] * 30
    assert "is not UTF-8" in refusal(write(tmp_path / "c.txt", "été à côté".encode("latin-1")))


@pytest.mark.parametrize(
    ("encoding", "sentence"),
    [
        ("hex", "--encoding hex: is unknown; give the file's encoding"),
        ("undefined", "a.txt:1 is not UNDEFINED (undefined encoding): convert the file"),
        ("idna", "a.txt:1 is not IDNA"),
        ("utf-16", "stream does not start with BOM): pass --encoding utf-16-le or utf-16-be"),
    ],
)
def test_encodings_that_do_not_fit_are_one_sentence(
    tmp_path: Path, encoding: str, sentence: str
) -> None:
    assert sentence in refusal(write(tmp_path / "a.txt", b"some words"), encoding=encoding)


def test_half_a_pair_of_utf7_is_no_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"+2AA- a\n" * 5)
    assert "a.txt:1: half a surrogate pair is not UTF-7" in refusal(path, encoding="utf-7")
    assert texts(write(path, b"+2AA- a"), encoding="utf-7") == ["\ufffd a"]


def test_only_the_first_thousand_lines_are_judged(tmp_path: Path) -> None:
    good, bad = b"fine\n" * 1_000, b"\xe9\n" * 100
    assert len(texts(write(tmp_path / "a.txt", good + bad * 9), layout="lines")) == 1_900
    assert "is not UTF-8" in refusal(write(tmp_path / "b.txt", bad + good))
    fifty = b"\xe9\n" * 50
    assert len(texts(write(tmp_path / "c.txt", fifty + good), layout="lines")) == 1_050


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_told_from_text(tmp_path: Path, encoding: str) -> None:
    content = "Hello there, you.\r\nGood day.\n"
    path = write(tmp_path / "a.txt", content.encode(encoding))
    advised = "utf-16" if encoding == "utf-16" else "utf-16-le or utf-16-be"
    assert f"--encoding {advised}, or leave" in refusal(path)
    assert texts(path, encoding=encoding, layout="lines") == ["Hello there, you.", "Good day."]


def test_utf16_that_is_cut_off_or_chinese(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "今天天气很好".encode("utf-16") * 9)
    assert "--encoding utf-16" in refusal(path)
    odd = write(tmp_path / "b.txt", "\ud800x".encode("utf-16", "surrogatepass"))
    assert "is not UTF-16" in refusal(odd, encoding="utf-16")


def test_nul_bytes_go_and_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "some words here\nfine\0 and\0 so on, long enough\n")
    records = write(tmp_path / "a.jsonl", jsonl({"text": "a\0b"}))
    counts = Counts()
    lines = texts(path, records, counts=counts, layout="lines")
    assert lines == ["some words here", "fine and so on, long enough", "ab"]
    assert counts.numbers == {"NUL bytes removed": 3}
    assert counts.places == {"NUL bytes removed": f"{path}:2"}


def test_a_byte_order_mark_goes(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", b"\xef\xbb\xbfOne")) == ["One"]
    assert texts(write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "One"}')) == ["One"]


def test_half_a_surrogate_pair_becomes_a_replacement(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud83dé"}\n{"text": "\\ud83d\\ude00"}\n')
    counts = Counts()
    assert texts(path, counts=counts) == ["a\ufffdé", "😀"]
    assert counts.numbers == {"records with half a surrogate pair": 1}


@pytest.mark.parametrize("packing", [".gz", ".xz", ".bz2", ".zst"])
def test_packed_files_cut_short_corrupt_or_not_packed(tmp_path: Path, packing: str) -> None:
    content = os.urandom(300_000).hex().encode()
    packed = PACK[packing](content)
    # Early, where zstd keeps a block's size: without a checksum it cannot notice every change.
    broken = packed[:6] + b"\xff" * 900 + packed[906:]
    for wrong in (packed[: len(packed) // 2], broken, b"plain"):
        path = write(tmp_path / f"a.txt{packing}", wrong)
        message = refusal(path)
        assert message.startswith(f"{path} is truncated or not a {packing} file")
        assert message.endswith("download or compress it again")


def test_tables_cut_short_or_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one"] * 999, "n": [1] * 999}), path)
    content = path.read_bytes()
    assert "has no field 'body', only text, n; give --field" in refusal(path, field="body")
    assert "holds int64, not text, in its field 'n'; give --field text" in refusal(path, field="n")
    pq.write_table(pa.table({"text": [["One"]], "body": ["One"]}), path)
    assert "not text, in its field 'text'; give --field body" in refusal(path)
    pq.write_table(pa.table({"text": [["One"]]}), path)
    assert "in its field 'text'; no field holds text, name other files" in refusal(path)
    for wrong in (content[:-20], b"plain", content[:4] + bytes(50) + content[54:]):
        assert f"{path} is truncated, damaged or not a parquet file" in refusal(write(path, wrong))
    arrow = write(tmp_path / "a.arrow", b"plain text")
    assert f"{arrow} is truncated, damaged or not a arrow file" in refusal(arrow)


def test_a_full_disk_is_not_a_fault_of_a_packed_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"text": [os.urandom(99_000).hex()]}), table)
    path = write(tmp_path / "a.parquet.gz", gzip.compress(table.getvalue()))
    monkeypatch.setattr(records, "TemporaryFile", lambda: open("/dev/full", "w+b"))  # noqa: SIM115
    monkeypatch.setattr(tempfile, "tempdir", "/small")
    assert refusal(path).startswith(f"{path}: no space left in /small for a copy of it; ")


@pytest.mark.parametrize(
    ("record", "remedy"),
    [
        (
            '{"content": null, "title": "x"}',
            "give --field with the one that holds the text: content or title",
        ),
        ('{"id": 7, "tags": ["a"], "body": "x"}', "give --field body"),
        ('{"title": "x", "texts": "y"}', "give --field texts"),
        ('{"id": 7}', "no field holds text, name other files"),
    ],
)
def test_a_field_is_suggested_if_no_other_may_hold_the_text(
    tmp_path: Path, record: str, remedy: str
) -> None:
    path = write(tmp_path / "a.jsonl", f"{record}\n".encode())
    assert refusal(path).endswith(f"; {remedy}")


def test_broken_json_lines_are_skipped_but_not_the_first(tmp_path: Path) -> None:
    first, *rest = ['{"text": "a"}', '{"text": ', '{"body": "b"}', "[1]", '{"text": 5}', ""]
    path = write(tmp_path / "a.jsonl", "\n".join([first, *rest, '{"text": "c"}']))
    counts = Counts()
    assert texts(path, counts=counts) == ["a", "c"]
    assert counts.numbers == {
        "broken JSON lines": 1,
        "records without the field 'text'": 2,
        "records whose text is not a string": 1,
    }
    assert counts.places["broken JSON lines"] == f"{path}:2"
    for wrong, expected in (
        ('{"text": \n"a"}', f"{path}:1 is not a JSON record"),
        (
            '{"id": 1, "body": "long enough", "title": "b"}',
            "only id, body, title; give --field with the one that holds",
        ),
        ('[{"text": "a"}]', "holds a JSON list"),
        ("{}", "or any other"),
        ("[" * 100_000, "is not a JSON record"),
    ):
        assert expected in refusal(write(path, wrong))


def test_a_reading_may_be_left_in_the_middle(tmp_path: Path) -> None:
    for packing, pack in PACK.items():
        path = write(tmp_path / f"a.txt{packing}", pack(b"line\n" * 99_999))
        stream = find([str(path)], Reading(layout="lines")).documents(Counts())
        assert next(stream).text == "line"
        stream.close()  # type: ignore[attr-defined]
