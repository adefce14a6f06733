"""Tables as pretraining text: CSV and TSV by their columns, Arrow and Parquet validated first."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest
from support.corpora import ENVIRONMENT
from support.processes import run_process

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.reading.layouts import RawDocument, Reading
from clozelab.text.reading.sources import find


def read(path: Path, counts: Counts | None = None, **reading: str) -> list[RawDocument]:
    options = Reading(**reading)  # type: ignore[arg-type]
    return list(find([str(path)], options).documents(counts or Counts()))


def texts(path: Path, counts: Counts | None = None, **reading: str) -> list[str]:
    return [document.text for document in read(path, counts, **reading)]


def refusal(path: Path, **reading: str) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- CSV and TSV -----------------------------------------------------------------------------

QUOTED = 'id,text\r\n1,"One, two.\r\n\r\nA ""second"" paragraph."\r\n2,Three.\r\n\r\n3,Four.\r\n'


def test_a_row_of_a_csv_is_a_document(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", QUOTED)
    documents_read = read(path)
    assert [document.text for document in documents_read] == [
        'One, two.\n\nA "second" paragraph.',
        "Three.",
        "Four.",
    ]
    assert [document.name for document in documents_read] == [f"{path}:2", f"{path}:5", f"{path}:7"]
    assert not any(document.is_split for document in documents_read)
    assert texts(path, field="id") == ["1", "2", "3"]


def test_in_a_tsv_a_quotation_mark_is_a_character(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", 'id\ttext\n1\t"One, two.\n2\tThree "3".\n')
    assert texts(path) == ['"One, two.', 'Three "3".']


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_and_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    path = put(tmp_path / "a.csv", "text,id\nCafé.,1\n".encode(encoding))
    name = "utf-8" if encoding == "utf-8-sig" else encoding
    assert texts(path, encoding=name) == ["Café."]


def test_bytes_that_do_not_decode_end_well(tmp_path: Path) -> None:
    rows = [b"text\n", *[b"fine\n"] * 60, b"caf\xe9\n", *[b"fine\n"] * 60]
    counts = Counts()
    assert texts(put(tmp_path / "a.csv", b"".join(rows)), counts)[60] == "caf\ufffd"
    assert counts.numbers == {"lines with invalid UTF-8": 1}
    assert "is not UTF-8" in refusal(put(tmp_path / "b.csv", b"text\n" + b"caf\xe9\n" * 4))
    assert "UTF-16" in refusal(put(tmp_path / "c.csv", "text\nOne\n".encode("utf-16")))


def test_rows_that_do_not_fit_are_skipped_and_counted(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", 'id,text\n1,One\n2\n3,Three, and more\n4,"Fo"ur\n5,Five\n')
    counts = Counts()
    assert texts(path, counts) == ["One", "Five"]
    assert counts.numbers == {
        "rows with more or fewer cells than the header skipped": 2,
        "broken CSV rows skipped": 1,
    }
    assert counts.places["broken CSV rows skipped"] == f"{path}:5"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "id,body,title\n1,A long body.,T\n",
            "has no field 'text', only id, body, title; give --field with the one that holds the"
            " text: body or title (the first line of a table names its columns)",
        ),
        ("id,body\n1,A long body.\n", "has no field 'text', only id, body; give --field body (the"),
        ("id,Text\n1,One\n", "only id, Text; give --field Text"),
        ("id;text\n1;One\n", "has one column, id;text"),
        ("text,text\n1,One\n", "has 2 fields 'text'; rename all but one"),
        ('id,text\n1,One\n2,"Two\n3,Three\n', ":3 opens a quotation mark that is not closed"),
        ("id,body\n", "has no field 'text', only id, body"),
        ("id,text\n", "there is no text in"),
        ("id,text\n1\n2\n", "more or fewer cells than the header skipped: 2"),
        ("", "there is no text in"),
        ("\n\n", "there is no text in"),
    ],
)
def test_a_csv_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, content: str, problem: str
) -> None:
    path = put(tmp_path / "a.csv", content)
    assert problem in refusal(path)
    assert str(path) in refusal(path)


def test_a_table_without_a_header_is_not_quoted_at_length(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", f"1,{'word ' * 5000}\n2,x\n")
    assert len(refusal(path)) < 400


@pytest.mark.parametrize(("name", "sign"), [("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", ",")])
def test_cells_that_something_else_separates_are_no_one_column(
    tmp_path: Path, name: str, sign: str
) -> None:
    path = put(tmp_path / name, f"id{sign}text\n1{sign}some words\n")
    assert "separate the cells of a .csv by commas" in refusal(path)


def test_a_quotation_mark_left_open_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozelab.text.reading.records.LONGEST", 2_000_000)
    path = put(tmp_path / "a.csv", 'text\n"open\n' + "a line of text\n" * 200_000)
    assert f"{path}:2 opens a quotation mark" in refusal(path)


def test_a_long_cell_is_a_long_document(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", 'text\n"' + "A sentence.\n" * 100_000 + '"\n')
    assert len(texts(path)[0]) == 1_200_000


# --- Arrow and Parquet -----------------------------------------------------------------------


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_feather_is_read_as_the_arrow_it_is(tmp_path: Path) -> None:
    pf.write_feather(pa.table({"text": ["One", "Two"]}), str(tmp_path / "a.feather"))
    assert texts(tmp_path / "a.feather") == ["One", "Two"]


def test_strings_that_are_no_utf8_are_one_sentence(tmp_path: Path) -> None:
    buffer = pa.py_buffer(b"caf\xe9")
    offsets = pa.py_buffer(b"\0\0\0\0\4\0\0\0")
    table = pa.table({"text": pa.StringArray.from_buffers(1, offsets, buffer)})
    pq.write_table(table, tmp_path / "a.parquet")
    put(tmp_path / "a.arrow", arrow(table))
    for name in ("a.parquet", "a.arrow"):
        assert "damaged" in (message := refusal(tmp_path / name)) and "UTF8" in message


def test_a_name_that_two_columns_share_is_refused(tmp_path: Path) -> None:
    table = pa.table([["a"], ["b"]], names=["text", "text"])
    path = put(tmp_path / "a.arrow", arrow(table))
    assert "has 2 fields 'text'; rename all but one" in refusal(path)


FUZZ = """
import random, sys
from pathlib import Path
from clozelab.contracts import Counts, UserError
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.sources import find

draw, refused = random.Random(14), 0
for name in sys.argv[2:]:
    whole = Path(name).read_bytes()
    path = Path(sys.argv[1]) / ("flipped" + Path(name).suffix)
    for _ in range(120):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            list(find([str(path)], Reading()).documents(Counts()))
        except UserError:
            refused += 1
print(refused)
"""


@pytest.mark.thorough
def test_damaged_tables_never_end_the_process(tmp_path: Path) -> None:
    rows = [f"Text number {number}. " * (number % 7) for number in range(200)]
    table = pa.table({"text": rows, "id": range(200)})
    named = [
        tmp_path / name for name in ("a.arrow", "b.arrow", "c.feather", "d.parquet", "e.arrow")
    ]
    put(named[0], arrow(table))
    with pa.ipc.new_stream(str(named[1]), table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    pf.write_feather(table, str(named[2]))
    pq.write_table(table, named[3])
    put(named[4], arrow(table.set_column(0, "text", table.column("text").dictionary_encode())))
    (tmp_path / "flips").mkdir()
    result = run_process(
        [sys.executable, "-c", FUZZ, str(tmp_path / "flips"), *map(str, named)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert int(result.stdout) > 100
