"""Files of tasks: unpacked, decoded, parted into rows with their places; texts, pairs and tags."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.labelled_files import jsonl, refusal, write

from clozelab.contracts import Counts
from clozelab.finetuning.examples import Sentences, Tagged
from clozelab.finetuning.files.columns import ReadOptions
from clozelab.finetuning.files.sentences import UNDECIDED, sentences
from clozelab.finetuning.files.tables import CUT_SHORT, elements, lines, located, table
from clozelab.finetuning.files.tagged import tagged

# --- opening -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)]
)
def test_a_file_is_found_by_its_name_however_it_is_packed(
    tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    write(tmp_path / f"a.tsv{ending}", pack(b"\xef\xbb\xbfsentence\tlabel\r\nfine\t1\r\n\r\n"))
    assert lines(located(tmp_path / "a.tsv")) == ["sentence\tlabel", "fine\t1"]


def test_only_line_ends_end_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\u2028still\x85one\x0c\ntwo\rtwo\n")
    assert lines(path) == ["one\u2028still\x85one\x0c", "two\rtwo"]


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "x")
    message = refusal(lambda: located(tmp_path / "trian.tsv"))
    assert "trian.tsv.xz" in message and f"did you mean {tmp_path / 'train.tsv'}?" in message
    assert "check the path" in refusal(lambda: located(tmp_path / "no" / "thing.tsv"))


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"sentence\tlabel\ngood\t1\ncaf\xe9\t0\n")
    assert f"{path}:3 is not UTF-8 (byte 0xE9)" in refusal(lambda: sentences(path))


@pytest.mark.parametrize("broken", [b"no such thing", lzma.compress(b"sentence\tlabel\n")[:-9]])
def test_a_broken_xz_is_refused(tmp_path: Path, broken: bytes) -> None:
    path = write(tmp_path / "a.tsv.xz", broken)
    assert f"{path} is truncated or not a .xz file" in refusal(lambda: sentences(path))


def test_a_broken_gz_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"sentence\tlabel\nfine\t1\n" * 50)
    for broken in (b"nothing", packed[:-9], packed[:10] + b"\xff" * 30):
        path = write(tmp_path / "a.tsv.gz", broken)
        assert f"{path} is truncated or not a .gz file" in refusal(
            lambda: sentences(tmp_path / "a.tsv")
        )


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(lambda: sentences(tmp_path))


# --- rows --------------------------------------------------------------------------------------


def test_a_quote_in_a_tsv_is_a_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'sentence\tlabel\n"so he\t1\nshe said "no"\t0\n""\t1\n')
    assert [row.first for row in sentences(path)] == ['"so he', 'she said "no"', '""']


def test_a_csv_has_quotes_and_line_ends_inside_its_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\r\n"a, ""b""\nc",x\r\n\r\nplain,y\r\n')
    read = table(path)
    assert [row.values for row in read.rows] == [
        {"text": 'a, "b"\nc', "label": "x"},
        {"text": "plain", "label": "y"},
    ]
    assert [row.place for row in read.rows] == [f"{path}:2", f"{path}:5"]


def test_a_csv_whose_quote_is_never_closed_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\nfine,1\n"open,0\nmore,1\n')
    assert f"{path}:3 is not CSV" in refusal(lambda: sentences(path))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_ragged_row_is_refused_with_its_line_and_both_numbers(tmp_path: Path, name: str) -> None:
    between = "," if name.endswith("csv") else "\t"
    rows = [("sentence", "label"), ("fine", "1"), ("a", "b", "0")]
    path = write(tmp_path / name, "".join(between.join(row) + "\n" for row in rows))
    message = refusal(lambda: sentences(path))
    assert f"{path}:3 has 3 columns where 2 are expected: fix" in message


def test_a_blank_line_inside_a_table_is_ragged_but_at_its_end_is_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nfine\t1\n\n\n")
    assert len(sentences(path)) == 1
    path = write(tmp_path / "b.tsv", "sentence\tlabel\nfine\t1\n\nbad\t0\n")
    assert "b.tsv:3 has 1 columns" in refusal(lambda: sentences(path))


def test_rows_cut_short_are_skipped_and_counted_where_the_protocol_does(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nfine\t1\nbroken\nbad\t0\n")
    counts = Counts()
    assert [
        example.first for example in sentences(path, ReadOptions(skips=True), counts=counts)
    ] == [
        "fine",
        "bad",
    ]
    assert counts.numbers == {CUT_SHORT: 1} and counts.places[CUT_SHORT] == f"{path}:3"


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "\n")
    assert f"{path} is empty" in refusal(lambda: sentences(path))


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\n")
    assert "and no rows" in refusal(lambda: sentences(path))


def test_json_lines_and_an_array_hold_the_same_rows(tmp_path: Path) -> None:
    records = [{"text": "good", "label": 1}, {"text": "b\u00e4d \U0001f600", "label": 0}]
    wanted = [Sentences("0", "good", None, "1"), Sentences("1", "bäd 😀", None, "0")]
    assert sentences(write(tmp_path / "a.jsonl", "\n" + jsonl(*records) + "\n")) == wanted
    assert sentences(write(tmp_path / "b.json", jsonl(*records))) == wanted
    assert sentences(write(tmp_path / "c.json", json.dumps(records, indent=2))) == wanted


def test_an_array_tells_the_line_of_each_record(tmp_path: Path) -> None:
    source = '[\n{"a": 1},\n\n{"a":\n 2}, {"a": 3}\n]'
    assert [line for line, _ in elements(source, tmp_path)] == [2, 4, 5]
    path = write(tmp_path / "a.json", '[\n{"text": "x", "label": 1},\n{"text": "y"}\n]')
    assert f"{path}:3 has no label" in refusal(lambda: sentences(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"text": "x", "label": 1}\n\n{"text": "y", "label"\n'),
        ("a.json", '[{"text": "x", "label": 1},\n\n{"text": "y", "label"]'),
        ("a.json", '[{"text": "x", "label": 1},\n\n'),
        ("a.json", '[{"text": "x", "label": 1},\n{"text": "y", "label": 0}]\n[{"text": "z"}]\n'),
    ],
)
def test_broken_json_is_refused_with_its_line(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    assert f"{path}:3 is not JSON" in refusal(lambda: sentences(path))


def test_a_line_of_json_that_is_no_record_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "x", "label": 1}\n[1, 2]\n')
    assert f"{path}:2 holds a JSON list" in refusal(lambda: sentences(path))


def test_half_a_surrogate_pair_becomes_one_replacement_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud83db \\ud83d\\ude00 \\udc00", "label": "x"}')
    assert sentences(path)[0].first == "a\ufffdb 😀 \ufffd"


def test_parquet_is_read_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["good", "bad"], "label": [1.0, 0.0]}), path)
    assert sentences(path) == [Sentences("0", "good", None, "1"), Sentences("1", "bad", None, "0")]
    path = write(tmp_path / "b.parquet", b"PAR1 nothing")
    assert "not a Parquet file" in refusal(lambda: sentences(path))


# --- columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["sentence\tlabel", "Text \t Class", "review\tgold_label"])
def test_single_texts_are_found_by_their_usual_names(tmp_path: Path, names: str) -> None:
    path = write(tmp_path / "a.tsv", f"{names}\n fine film . \tgood \n")
    assert sentences(path) == [Sentences("0", "fine film .", None, "good")]


@pytest.mark.parametrize(
    "names",
    [
        "index\tsentence1\tsentence2\tlabel",
        "id\tpremise\thypothesis\tgold_label",
        "ID\tquestion1\tquestion2\tis_duplicate",
        "index\tquestion\tsentence\tlabel",
        "guid\ttext_a\ttext_b\tlabel",
        "index\t#1 String\t#2 String\tQuality",
    ],
)
def test_pairs_are_found_by_their_usual_names(tmp_path: Path, names: str) -> None:
    path = write(tmp_path / "a.tsv", f"{names}\n7\tone\ttwo\t1\n")
    assert sentences(path, pair=True) == [Sentences("7", "one", "two", "1")]


def test_columns_are_those_the_user_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\tbody\tmood\nwrong\t0\tright\tsad\n")
    options = ReadOptions(columns={"first": "body", "label": "mood"})
    assert sentences(path, options) == [Sentences("0", "right", None, "sad")]


def test_columns_by_number_mean_that_there_is_no_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ttwo\t1\nthree\tfour\t0\n")
    options = ReadOptions(columns={"first": "0", "second": "1", "label": "2"})
    assert sentences(path, options, pair=True) == [
        Sentences("0", "one", "two", "1"),
        Sentences("1", "three", "four", "0"),
    ]
    bare = write(tmp_path / "b.txt", "one\ttwo\n")
    unlabelled = ReadOptions(columns=options.columns, labelled=False)
    assert sentences(bare, unlabelled, pair=True) == [Sentences("0", "one", "two", None)]


def test_a_missing_column_is_refused_with_what_was_sought_what_is_there_and_the_flag(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tmood\nfine\tgood\n")
    message = refusal(lambda: sentences(path))
    assert f"{path} has no column for the label: looked for label, gold_label" in message
    assert "found sentence, mood; give --columns label=NAME" in message
    message = refusal(lambda: sentences(path, ReadOptions(columns={"label": "moood"})))
    assert "looked for moood" in message and "--columns label=mood" in message
    assert "column for the first" in refusal(lambda: sentences(path, pair=True))
    options = ReadOptions(columns={"first": "sentence", "label": "mood"})
    assert "column for the second" in refusal(lambda: sentences(path, options, pair=True))


def test_a_role_that_no_column_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nfine\t1\n")
    message = refusal(lambda: sentences(path, ReadOptions(columns={"lable": "x"})))
    assert "has no role 'lable'; did you mean label?" in message
    path = write(tmp_path / "a.conll", "one X O\ntwo Y O\n")
    message = refusal(lambda: tagged(path, ReadOptions(columns={"tag": "1"})))
    assert "has no role 'tag'; did you mean tags?" in message


def test_two_columns_of_a_name_are_refused_where_it_is_sought(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tnote\tlabel\ttext\tnote\nfine\ta\t1\tbad\tb\n")
    assert f"{path} has two columns 'text'" in refusal(lambda: sentences(path))
    columns = {"first": "note"}
    assert "has two columns" in refusal(lambda: sentences(path, ReadOptions(columns=columns)))
    path = write(tmp_path / "b.tsv", "text\tlabel\t\t\nfine\t1\t\t\n")
    assert sentences(path) == [Sentences("0", "fine", None, "1")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id;text;label\n1;fine;1\n"),
        ("a.csv", "id;text;label\n1;fine, he said;1\n"),  # a comma, so another number of cells
        ("a.csv", 'id;text;label\n1;"fine" he said;1\n2;"so, so";0\n"3";x;0\n'),
        ("a.csv", '"id";"text";"label"\n"1";"fine";"1"\n'),
        ("a.tsv", "id|text|label\n1|fine|1\n"),
    ],
)
def test_cells_that_another_sign_separates_are_told_from_a_column(
    tmp_path: Path, name: str, content: str
) -> None:
    path = write(tmp_path / name, content)
    message = refusal(lambda: sentences(path))
    assert message.startswith(f"{path} has one column, id")
    assert message.endswith("separate the cells of a .csv by commas, those of a .tsv by tabs")


def test_a_broken_csv_that_begins_with_a_line_separator_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\u2028,"a"b\n')  # a line separator, which CSV does not know
    assert f"{path}:1 is not CSV" in refusal(lambda: sentences(path))


def test_a_file_of_sentences_without_a_header_is_told_of_column_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "He came, saw; left.\nSo it was.\n")
    assert "by number where there is no header line" in refusal(lambda: sentences(path))


def test_a_wrong_quotation_mark_among_commas_is_what_is_wrong(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\nfine,1\n"so" so,0\n')
    assert f"{path}:3 is not CSV" in refusal(lambda: sentences(path))
    path = write(tmp_path / "b.csv", '"a" text,label\nfine,1\n')
    assert f"{path}:1 is not CSV" in refusal(lambda: sentences(path))
    path = write(tmp_path / "c.csv", '"a" text,label\rfine,1\r')
    assert f"{path}:1 is not CSV" in refusal(lambda: sentences(path))


def test_a_test_set_may_lack_labels_but_no_other_may(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nfine\t\nbad\t0\n")
    assert [example.label for example in sentences(path, ReadOptions(labelled=False))] == [
        None,
        "0",
    ]
    assert f"{path}:2 has no label, as 1 of 2 rows" in refusal(lambda: sentences(path))


def test_an_unknown_label_is_refused_with_its_line_and_the_known_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nfine\tgood\nso\tmiddling\n")
    message = refusal(lambda: sentences(path, ReadOptions(labels=("bad", "good"))))
    assert f"{path}:3 has the label 'middling', which is none of bad, good" in message


def test_examples_nobody_agreed_on_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nfine\t-\nso\tgood\n")
    counts = Counts()
    options = ReadOptions(labels=("good",), undecided=("-",))
    assert sentences(path, options, counts=counts) == [Sentences("1", "so", None, "good")]
    assert counts.numbers == {UNDECIDED: 1}


@pytest.mark.parametrize("label", [["neg"], [], {"name": "neg"}])
def test_a_list_is_no_label(tmp_path: Path, label: object) -> None:
    rows = ({"text": "fine", "class": "pos"}, {"text": "bad", "class": label})
    path = write(tmp_path / "a.jsonl", jsonl(*rows))
    assert f"{path}:2 has {json.dumps(label)} as its label" in refusal(lambda: sentences(path))
    path = write(tmp_path / "b.jsonl", jsonl({"tokens": ["a"], "tags": [label]}))
    assert f"{path}:1 has no list of texts in the column 'tags'" in refusal(lambda: tagged(path))


def test_nothing_is_no_tag(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl({"tokens": ["a", "b"], "tags": ["O", None]}))
    assert f"{path}:1 has no list of texts in the column 'tags'" in refusal(lambda: tagged(path))


def test_numbers_are_read_as_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence1\tsentence2\tscore\na\tb\t3.800\n")
    assert sentences(path, pair=True, numeric=True)[0].label == 3.8
    for bad in ("much", "nan", "inf"):
        path = write(tmp_path / "b.tsv", f"sentence1\tsentence2\tscore\na\tb\t{bad}\n")
        message = refusal(partial(sentences, path, pair=True, numeric=True))
        assert f"{path}:2 has '{bad}' instead of a number" in message


def test_a_record_without_text_is_refused_and_an_empty_text_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl({"text": "x", "label": 1}, {"label": 0}))
    assert f"{path}:2 has no text in the column 'text'" in refusal(lambda: sentences(path))
    path = write(tmp_path / "b.tsv", "sentence\tlabel\n \t1\n")
    counts = Counts()
    assert sentences(path, counts=counts)[0].first == ""
    assert counts.numbers == {"empty texts": 1}


# --- tags --------------------------------------------------------------------------------------


CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

#begin document (x); part 0
Peter NNP I-NP I-PER
"""


def test_conll_columns_are_words_and_tags(tmp_path: Path) -> None:
    path = write(tmp_path / "eng.train", CONLL)
    assert tagged(path) == [
        Tagged("0", ("EU", "rejects"), ("I-ORG", "O")),
        Tagged("1", ("Peter",), ("I-PER",)),
    ]
    chunks = tagged(path, ReadOptions(columns={"words": "0", "tags": "2"}))
    assert chunks[0].tags == ("I-NP", "I-VP")
    message = refusal(lambda: tagged(path, ReadOptions(columns={"tags": "4"})))
    assert "--columns tags=4 is none of the 4 columns" in message


def test_hashtags_wide_spaces_and_lines_of_a_tab_load_right(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "#id\tO\n\u3000\tO\na b\tB-x\n\t\n#\tO\n\n")
    assert tagged(path) == [
        Tagged("0", ("#id", "\u3000", "a b"), ("O", "O", "B-x")),
        Tagged("1", ("#",), ("O",)),
    ]
    spaced = write(tmp_path / "b.txt", "中 B-ORG\n\u3000 I-ORG\n")
    assert tagged(spaced) == [Tagged("0", ("中", "\u3000"), ("B-ORG", "I-ORG"))]


def test_a_word_without_its_tag_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "one O\ntwo\n")
    assert f"{path}:2 has 1 columns where 2 are expected" in refusal(lambda: tagged(path))
    path = write(tmp_path / "b.conll", "one\ntwo\n")
    assert f"{path}:1 has a word without a tag" in refusal(lambda: tagged(path))
    assert tagged(path, ReadOptions(labelled=False)) == [Tagged("0", ("one", "two"), None)]


def test_an_unknown_tag_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "\none O\n\ntwo B-thing\n")
    message = refusal(lambda: tagged(path, ReadOptions(labels=("O", "B-x"))))
    assert f"{path}:4 has the tag 'B-thing', which is none of O, B-x" in message


@pytest.mark.parametrize(
    "content",
    [
        "text\tlabel\nfine\t1\nbad\t0\n",
        "text\tlabel\na fine film\t1\n\na bad one\t0\n",
        "id\treview\tsentiment\n1\ta fine film\tgood\n",
        "a fine film\tgood\na bad one\tbad\n",  # without a header
    ],
)
def test_a_table_of_labelled_texts_has_no_tags(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "a.tsv", content)
    assert f"{path} is a table of labelled texts" in refusal(lambda: tagged(path))


def test_a_sentence_may_begin_with_words_that_have_spaces(tmp_path: Path) -> None:
    text = "Hà Nội\tB-LOC\nViệt Nam\tB-LOC\n\ntôi\tO\nở\tO\nđây\tO\n"
    first, _ = tagged(write(tmp_path / "a.tsv", text))
    assert first == Tagged("0", ("Hà Nội", "Việt Nam"), ("B-LOC", "B-LOC"))


def test_words_may_be_called_text_and_hold_a_space(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tO\nlabel\tO\n10 000\tB-NUM\n")
    assert tagged(path)[0].words == ("text", "label", "10 000")
    path = write(tmp_path / "b.tsv", "1\tAnna\tB-PER\nso\n")
    options = ReadOptions(columns={"words": "1"})
    assert f"{path}:2 has 1 columns where 3 are" in refusal(lambda: tagged(path, options))


def test_an_empty_file_of_columns_is_refused(tmp_path: Path) -> None:
    assert "is empty" in refusal(lambda: tagged(write(tmp_path / "a.conll", "\n\n")))


def test_lists_of_words_and_tags_are_read_and_must_match(tmp_path: Path) -> None:
    good = {"tokens": ["New", "York"], "ner_tags": ["B-LOC", "I-LOC"]}
    path = write(tmp_path / "a.jsonl", jsonl(good))
    assert tagged(path) == [Tagged("0", ("New", "York"), ("B-LOC", "I-LOC"))]
    path = write(tmp_path / "b.jsonl", jsonl(good, {"tokens": ["a", "b"], "ner_tags": ["O"]}))
    assert f"{path}:2 has 2 words and 1 tags" in refusal(lambda: tagged(path))
    path = write(tmp_path / "c.jsonl", jsonl(good, {"tokens": [], "ner_tags": []}))
    assert f"{path}:2 has no list" in refusal(lambda: tagged(path))
