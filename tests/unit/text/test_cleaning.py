"""What is left out of a corpus: repeats and evaluation text, counted, with examples."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import build, decoded, digests, texts, write

import clozelab
from clozelab.cli.commands import COMMANDS, parser
from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.keys import mix
from clozelab.options import options
from clozelab.text import near
from clozelab.text.overlap import WORDS, EvaluationNgrams, words
from clozelab.text.reading.layouts import Reading
from clozelab.text.store import parts, shards
from clozelab.text.store.comparing import Comparison

LINES = [
    "A title.\nOne cat sat. It slept.\nShare this page.",
    "Another title.\nShare this page.\nTwo dogs ran.",
    "Share this page.",
    "One cat sat. It slept.\nOne cat sat.",
]


@pytest.mark.parametrize("workers", [None, 2])
def test_lines_that_repeat_are_left_out_and_counted(tmp_path: Path, workers: int | None) -> None:
    counts = Counts()
    more = {"workers": workers} if workers else {}
    file = write(tmp_path / "a.jsonl", LINES)
    corpus = build(file, tmp_path / "c", unique="lines", held_out=0, counts=counts, **more)
    expected = [
        LINES[0],
        "Another title.\nTwo dogs ran.",
        "One cat sat.",
    ]  # no line is a part of one
    assert [text.strip() for text in decoded(corpus)] == expected
    assert counts.numbers["lines left out as repeats"] == 3
    assert corpus.manifest["options"]["unique"] == "lines"
    examples = ["3 × Share this page.", "2 × One cat sat. It slept."]
    assert corpus.manifest["examples"] == {"lines left out as repeats": examples}
    facts = clozelab.show_corpus(corpus).facts["lines left out as repeats"]
    assert facts == "\n".join(["3", *examples])


def test_blank_lines_part_paragraphs(tmp_path: Path) -> None:
    wrapped = ["One cat\nsat.\n\nTwo dogs\nran.", "Three.\n\nTwo dogs\nran.\n\nFour\nran.", "sat."]
    file = write(tmp_path / "a.jsonl", wrapped)
    corpus = build(file, tmp_path / "c", unique="paragraphs", held_out=0)
    assert decoded(corpus) == [wrapped[0], "Three.\n\nFour\nran.", "sat."]
    lines = build(file, tmp_path / "d", unique="lines", held_out=0)
    assert decoded(lines) == [wrapped[0], "Three.\n\nFour"]


def test_a_document_of_a_sentence_a_line_is_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One cat.\nTwo dogs.\n\nOne cat.\n\nOne cat.\nTwo dogs.\n")
    reading = Reading(layout="sentences")
    corpus = build(
        str(tmp_path / "a.txt"), tmp_path / "c", reading=reading, unique="paragraphs", held_out=0
    )
    assert decoded(corpus) == ["One cat.\nTwo dogs.", "One cat."]


def test_shards_and_parts_do_not_change_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = texts(30)
    file = write(tmp_path / "a.jsonl", [*stories, *stories[5:9], "\n".join(stories[3:6])])
    whole = build(file, tmp_path / "whole", unique="lines", held_out=0.2)
    monkeypatch.setattr(shards, "SHARD", 3000)
    monkeypatch.setattr(parts, "PART", 7)
    again = build(file, tmp_path / "again", unique="lines", held_out=0.2)
    assert digests(again.path) == digests(whole.path)
    assert whole.manifest["notes"]["lines left out as repeats"] > 4


def test_parts_hold_equal_rows_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART", 10)
    rows = np.random.default_rng(0).integers(0, 20, (75, 2)).astype(np.uint64)
    tables = (rows[first : first + 4] for first in range(0, 75, 4))
    joined = list(parts.in_parts(tables, total=75, folder=tmp_path / "parts"))
    assert len(joined) == 8 and not (tmp_path / "parts").exists()
    assert sorted(number for numbers, _ in joined for number in numbers.tolist()) == [*range(75)]
    for numbers, part in joined:
        assert (part == rows[numbers]).all()
    assert len({tuple(row) for _, part in joined for row in part.tolist()}) == sum(
        len({tuple(row) for row in part.tolist()}) for _, part in joined
    )


@pytest.mark.parametrize(
    ("typed", "level"),
    [
        (["--unique", "a.txt"], "documents"),
        (["a.txt", "--unique"], "documents"),
        (["--unique", "--phrases", "a.txt"], "documents"),
        (["--unique", "folder"], "documents"),  # which is there
        (["--unique", "lines", "a.txt"], "lines"),
        (["a.txt", "--unique=paragraphs"], "paragraphs"),
    ],
)
def test_unique_alone_is_of_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], level: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "lines").mkdir()  # a level all the same
    monkeypatch.chdir(tmp_path)
    arguments = vars(parser(COMMANDS).parse_args(["corpus", "build", *typed, "--out", "c"]))
    assert arguments["unique"] == level
    assert arguments["input"] in (["a.txt"], ["folder"])


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--unique sentence: is unknown; .*lines"):
        parser(COMMANDS).parse_args(["corpus", "build", "a", "--out", "c", "--unique", "sentence"])
    with pytest.raises(UserError, match="--unique words: is unknown"):
        clozelab.build_corpus("a", out=tmp_path / "c", unique="words")


def test_that_nothing_was_left_out_is_said(tmp_path: Path) -> None:
    corpus = build(write(tmp_path / "a.jsonl", LINES[:1]), tmp_path / "c", unique="lines")
    assert corpus.manifest["notes"]["lines left out as repeats"] == 0


def test_python_takes_true_and_false() -> None:
    unique = next(each for each in options(clozelab.build_corpus) if each.name == "unique")
    assert unique.take(True) == "documents" and unique.take(False) is None


SHARED = "the quick brown fox jumps over the lazy dog and then sleeps"


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text of which lines are in evaluation files of several kinds."""
    folder = tmp_path_factory.mktemp("read")
    write(
        folder / "text.jsonl",
        [
            "First.\nIt said: The quick, brown FOX jumps over the lazy dog!\nLast.",
            "The quick brown fox jumps over\nthe lazy dog. And more.\nAfter it.",  # two lines
            "The quick brown fox jumps over the hedge.\nYes.",
            "Over the lazy dog and\n",
            "jumps on the bed.",  # n-grams do not reach over the ends of documents
            "昨天下午北京大学的图书馆来了一位老人。\nEnd.",
        ],
    )
    (folder / "dev.tsv").write_text(f"sentence\tlabel\na cat\t1\n{SHARED}\t0\n", encoding="utf-8")
    record = '{"id": 1, "deep": [{"question": "那天下午北京大学的图书馆"}]}\n'
    (folder / "dev.jsonl").write_text(record, encoding="utf-8")
    (folder / "short.txt").write_text("A few words.\n", encoding="utf-8")
    (folder / "empty.tsv").write_text("", encoding="utf-8")
    return folder


KEPT = ["First.\nLast.", "After it.", "The quick brown fox jumps over the hedge.\nYes."]
KEPT += ["Over the lazy dog and", "jumps on the bed.", "End."]


@pytest.mark.parametrize("shard", [1 << 21, 60])
def test_lines_of_evaluation_files_are_kept_out(
    tmp_path: Path, read: Path, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    monkeypatch.setattr(shards, "SHARD", shard)
    files = tuple(str(read / name) for name in ("dev.tsv", "dev.jsonl"))
    text, counts = str(read / "text.jsonl"), Counts()
    corpus = build(text, tmp_path / "c", exclude=files, exclude_ngram=8, held_out=0, counts=counts)
    assert [document.strip() for document in decoded(corpus)] == KEPT
    table, records = (f"lines left out that share 8 words with {file}" for file in files)
    assert (counts.numbers[table], counts.places[table]) == (3, f"{text}:1")
    assert (counts.numbers[records], counts.places[records]) == (1, f"{text}:6")
    assert corpus.manifest["examples"] == {
        table: ["the quick brown fox jumps over the lazy"],
        records: ["天 下 午 北 京 大 学 的"],
    }
    short = f"texts of {files[0]} that have no 8 words in a row, and so are not looked for"
    assert counts.numbers[short] == 2  # with the header
    recorded = corpus.manifest["options"]
    assert recorded["exclude"] == list(files) and recorded["exclude_ngram"] == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Größe, naïve", ["größe", "naïve"]),
        ("मैं हिन्दी में", ["मैं", "हिन्दी", "में"]),
        ("x̄² snake_case", ["x̄2", "snake", "case"]),
        ("北京 2008年", ["北", "京", "2008", "年"]),
    ],
)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_are_whole_in_every_spelling(text: str, expected: list[str], form: str) -> None:
    assert words(unicodedata.normalize(form, text)) == expected  # type: ignore[arg-type]


def test_shards_of_words_as_they_were_are_not_taken_again() -> None:
    ngrams = EvaluationNgrams(8, [], np.zeros(0, np.uint64), np.zeros(0, np.int64))
    assert WORDS in Comparison(exclude=ngrams).names() and WORDS not in Comparison().names()


def test_columns_of_text_are_evaluation_text(tmp_path: Path, read: Path) -> None:
    table = pa.table({"id": [1, 2], "a": ["x", None], "b": [SHARED, "y"]})
    assert found_in_tables(tmp_path, table) == [1, 1]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["x", SHARED], None]),
        pa.array([[{"n": 1, "text": SHARED}], []]),
        pa.array([SHARED, "y"]).dictionary_encode(),
        pa.array([{"answers": {"text": [SHARED]}}, None]),
        pa.array([[("key", SHARED)], []], pa.map_(pa.string(), pa.string())),
    ],
    ids=["list", "list of records", "dictionary", "records", "map"],
)
def test_text_inside_columns_is_evaluation_text(tmp_path: Path, column: pa.Array) -> None:
    assert found_in_tables(tmp_path, pa.table({"id": [1, 2], "inside": column})) == [1, 1]


def found_in_tables(folder: Path, table: pa.Table) -> list[int]:
    """How many n-grams of 12 words are found in a table, as Parquet and as Arrow."""
    pq.write_table(table, folder / "dev.parquet")
    with pa.ipc.new_file(folder / "dev.arrow", table.schema) as file:
        file.write_table(table)
    files = [str(folder / name) for name in ("dev.parquet", "dev.arrow")]
    return [len(EvaluationNgrams.read([file], 12, counts=Counts()).keys) for file in files]


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("missing.tsv", "--exclude: there is no file or folder .*missing.tsv"),
        ("empty.tsv", "--exclude: .*empty.tsv has no text"),
        ("short.txt", "--exclude: .*short.txt has no 13 words in a row .* lower --exclude-ngram"),
    ],
)
def test_files_that_exclude_nothing_are_refused(
    tmp_path: Path, read: Path, file: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        build(str(read / "text.jsonl"), tmp_path / "c", exclude=(str(read / file),))
    assert not (tmp_path / "c").exists()


def test_evaluation_files_are_read_in_the_encoding_given(tmp_path: Path) -> None:
    lines = [f"{word} café déjà vu garçon été à côté" for word in ("un", "deux", "trois")]
    for name in ("text.txt", "dev.txt"):
        (tmp_path / name).write_text("\n".join([*lines, name]), encoding="latin-1")
    reading = Reading(layout="lines", encoding="latin-1")
    options = {"reading": reading, "exclude": (str(tmp_path / "dev.txt"),), "exclude_ngram": 8}
    corpus = build(str(tmp_path / "text.txt"), tmp_path / "c", held_out=0, **options)
    assert decoded(corpus) == ["text.txt"]


def test_an_evaluation_file_may_have_a_name_that_is_no_utf8(tmp_path: Path, read: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    try:
        with open(name, "w", encoding="utf-8") as file:
            file.write(SHARED)
    except OSError:
        pytest.skip("this file system has no such names")
    text, counts = str(read / "text.jsonl"), Counts()
    corpus = build(text, tmp_path / "c", exclude=(name,), exclude_ngram=8, counts=counts)
    shown = f"{tmp_path}/caf\\xe9.txt"
    assert counts.numbers[f"lines left out that share 8 words with {shown}"] == 3
    assert corpus.manifest["options"]["exclude"] == [shown]
    with pytest.raises(UserError, match=r"--exclude: .*/caf\\xe9.txt has no 13 words"):
        EvaluationNgrams.read([name], 13, counts=Counts())


def test_a_text_that_is_all_evaluation_text_is_refused(tmp_path: Path, read: Path) -> None:
    file = write(tmp_path / "a.jsonl", [SHARED])
    with pytest.raises(UserError, match="no token in this text is left by --exclude"):
        build(file, tmp_path / "c", exclude=(str(read / "dev.tsv"),), exclude_ngram=10)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents of which some are changed a little, or a lot."""
    pytest.importorskip("rensa")
    stories = [" ".join(text.split()[:200]) for text in texts(12) if len(text.split()) >= 200]
    little = stories[0].replace(stories[0].split()[100], "otherwise", 1)
    half = " ".join([*stories[1].split()[:100], *stories[2].split()[:100]])
    shorts = ["One cat.", "One dog.", "One cat.", "...", "!!!"]
    file = tmp_path_factory.mktemp("alike") / "a.jsonl"
    return write(file, [*stories[:3], little, half, *shorts, stories[1].upper() + "!"])


@pytest.mark.parametrize("small", [False, True])
def test_near_duplicates_are_left_out(
    tmp_path: Path, alike: str, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    whole = decoded(build(alike, tmp_path / "whole", held_out=0))
    if small:
        monkeypatch.setattr(shards, "SHARD", 3000)
        monkeypatch.setattr(parts, "PART", 3)
    counts = Counts()
    corpus = build(alike, tmp_path / "c", near_duplicates=0.8, held_out=0, counts=counts)
    gone = (3, 7, 10)  # changed a little; the same; in capitals
    assert decoded(corpus) == [text for n, text in enumerate(whole) if n not in gone]
    what = "documents left out as near-duplicates"
    assert counts.numbers[what] == 3
    examples = corpus.manifest["examples"][what]
    assert examples[0].startswith("0.9") and examples[1] == "1.00: One cat. | One cat."
    assert corpus.manifest["options"]["near_duplicates"] == 0.8


def test_documents_of_one_template_are_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    similarities = near.similarities

    def signatures(_: object, sizes: np.ndarray, **__: object) -> near.Signatures:
        rows = np.random.default_rng(0).integers(0, 2**32, (len(sizes), near.HASHES))
        rows[:, : near.HASHES // 2] = 7  # half of each is the template
        rows[-1] = rows[0]
        return rows.astype(np.uint32)

    def counted(first: near.Signatures, second: near.Signatures) -> np.ndarray:
        compared.append(len(first))
        return similarities(first, second)

    monkeypatch.setattr(near, "signatures", signatures)
    monkeypatch.setattr(near, "similarities", counted)
    file = write(tmp_path / "a.jsonl", [f"Page {number}." for number in range(40)])
    corpus = build(file, tmp_path / "c", near_duplicates=0.8, held_out=0)
    assert len(decoded(corpus)) == 39
    assert sum(compared) == 39 + 38 * 37 // 2  # each pair of those that are left, once


def test_a_build_killed_while_it_compares_goes_on(
    tmp_path: Path, alike: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, "PART", 3)
    options = {"near_duplicates": 0.8, "unique": "lines"}
    whole = build(alike, tmp_path / "whole", **options)
    for place, name in ((near, "similarities"), (np, "fromfile")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, killed)
            with pytest.raises(KeyboardInterrupt):
                build(alike, tmp_path / "c", **options)
    assert digests(build(alike, tmp_path / "c", **options).path) == digests(whole.path)


def test_lines_are_compared_in_documents_that_stay(tmp_path: Path, alike: str) -> None:
    """A line that is new in a near-duplicate is not gone from the documents after it."""
    text = json.loads(Path(alike).read_text(encoding="utf-8").splitlines()[0])["text"]
    file = write(tmp_path / "a.jsonl", [text, f"{text}\nA new line.", "A new line.\nAnother."])
    options = {"near_duplicates": 0.8, "unique": "lines", "held_out": 0}
    corpus = build(file, tmp_path / "c", **options)
    assert decoded(corpus) == [text, "A new line.\nAnother."]


def test_signatures_estimate_the_similarity() -> None:
    pytest.importorskip("rensa")
    keys = mix(np.arange(4000), 1)
    for words_kept in (1000, 900, 500):  # of 1000 words from the first on, which are one run
        words = np.concatenate([keys[:1000], keys[:words_kept], keys[2000 : 3000 - words_kept]])
        both = near.signatures(words, np.array([1000, 1000]), digests=keys[:2])
        shared = words_kept - 4
        truth = 1.0 if words_kept == 1000 else shared / (2 * 996 - shared)
        similarity = near.similarities(both[:1], both[1:])[0]
        assert abs(similarity - truth) <= 4 * (truth * (1 - truth) / near.HASHES) ** 0.5


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.8, 0.95, 1.0])
def test_pairs_at_the_threshold_share_a_band(threshold: float) -> None:
    rows = near.rows_of_bands(threshold)
    assert 1 - (1 - threshold**rows) ** (near.HASHES // rows) >= 0.99
    wider = rows + 1
    assert threshold == 1 or 1 - (1 - threshold**wider) ** (near.HASHES // wider) < 0.99


@pytest.mark.parametrize("threshold", [0, -0.5, 1.2, float("nan")])
def test_a_similarity_outside_its_range_is_refused(tmp_path: Path, threshold: float) -> None:
    with pytest.raises(UserError, match=r"--near-duplicates .*: must be a similarity above 0"):
        build("a.txt", tmp_path / "c", near_duplicates=threshold)


def test_a_machine_without_rensa_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install clozelab\[dedup\]"):
        build(write(tmp_path / "a.jsonl", LINES), tmp_path / "c", near_duplicates=0.8)
    assert not (tmp_path / "c").exists()
