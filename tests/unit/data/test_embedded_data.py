"""The embedded data are whole, well formed and as their README says."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import pytest

from clozelab import data

FOLDER = Path(data.__file__).parent
SPLITS = ("train", "dev")
CATEGORIES = {
    f"noun.{name}"
    for name in (
        *("act", "animal", "artifact", "body", "communication"),
        *("food", "location", "person", "plant", "substance"),
    )
}
FIELDS = {
    *("ANIMAL", "ARTIFACT", "BODY", "COMMUNICATION", "FOOD"),
    *("GROUP", "PERSON", "PLACE", "PLANT", "TIME"),
}


def documents(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def table(name: str, split: str) -> list[dict[str, str]]:
    with data.task(name, split).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def choices(split: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in data.task("choices", split).read_text("utf-8").splitlines()
    ]


def spans(split: str) -> list[dict[str, Any]]:
    articles = json.loads(data.task("spans", split).read_text("utf-8"))["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]]


def sentences(split: str) -> list[list[tuple[str, str]]]:
    texts = []
    for block in data.task("tags", split).read_text("utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n")]
        assert all(len(row) == 2 for row in rows), block
        texts.append([(word, tag) for word, tag in rows])
    return texts


def file_rows(name: str) -> int:
    """Rows of a file, counted as the README counts them."""
    if name.startswith("tasks/"):
        _, task, file = name.split("/")
        split = file.split(".")[0]
        readers: dict[str, Callable[[str], Sized]]
        readers = {"choices": choices, "spans": spans, "tags": sentences}
        return len(readers[task](split)) if task in readers else len(table(task, split))
    raw = (FOLDER / name).read_bytes()
    return (gzip.decompress(raw) if name.endswith(".gz") else raw).count(b"\n")


def readme_files() -> list[tuple[str, int, int]]:
    pattern = r"(?m)^\| (\S+\.\S+) \| (\d+) \| (\d+) \|"
    table_rows = re.findall(pattern, (FOLDER / "README.md").read_text("utf-8"))
    return [(name, int(rows), int(size)) for name, rows, size in table_rows]


def test_readme_lists_every_data_file() -> None:
    listed = {name for name, _, _ in readme_files()}
    tasks = {f"tasks/{t}/{data.task(t, s).name}" for t in data.TASKS for s in SPLITS}
    top = {path().name for path in (data.corpus, data.chinese, data.chinese_entities)}
    assert listed == tasks | top


@pytest.mark.parametrize(("name", "rows", "size"), readme_files())
def test_rows_and_bytes_are_those_of_the_readme(name: str, rows: int, size: int) -> None:
    assert (FOLDER / name).stat().st_size == size
    assert file_rows(name) == rows


def test_corpus_is_a_few_megabytes_of_clean_documents() -> None:
    corpus = documents(data.corpus())
    assert len(corpus) >= 1500
    assert 3_000_000 <= sum(len(d["text"].encode()) for d in corpus) <= 6_000_000
    assert len({d["id"] for d in corpus}) == len(corpus)
    assert len({d["text"] for d in corpus}) == len(corpus)
    for document in corpus:
        assert not re.search(r"[{}\t\r\u201c\u201d]|  |\n\n|\* \* \*|CHAPTER", document["text"])


def test_a_prefix_of_the_corpus_holds_every_source() -> None:
    def source(document: dict[str, str]) -> str:
        kind = document["id"].split("-")[0]
        return kind if kind in ("bible", "devil", "jargon") else "novel"

    corpus = documents(data.corpus())
    whole, prefix = Counter(map(source, corpus)), Counter(map(source, corpus[:500]))
    for name, count in whole.items():
        assert prefix[name] / 500 == pytest.approx(count / len(corpus), abs=0.05)


def test_chinese_is_chinese_and_names_its_entities() -> None:
    sample = documents(data.chinese())
    text = "\n".join(d["text"] for d in sample)
    assert len(sample) >= 150
    assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 0.8 * len(text)
    assert "[" not in text
    entities = data.chinese_entities().read_text("utf-8").splitlines()
    assert len(set(entities)) == len(entities) >= 300
    assert [entity for entity in entities if entity not in text] == []


@pytest.mark.parametrize("split", SPLITS)
def test_definitions_have_ten_categories_equally_often(split: str) -> None:
    counts = Counter(row["label"] for row in table("definitions", split))
    assert set(counts) == CATEGORIES
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize("split", SPLITS)
def test_pairs_give_nothing_away_by_one_half(split: str) -> None:
    rows = table("pairs", split)
    for column in ("sentence1", "sentence2"):
        labels: dict[str, list[str]] = {}
        for row in rows:
            labels.setdefault(row[column], []).append(row["label"])
        assert all(sorted(classes) == ["no", "yes"] for classes in labels.values())


@pytest.mark.parametrize("split", SPLITS)
def test_choices_have_four_answers_and_a_valid_index(split: str) -> None:
    rows = choices(split)
    for row in rows:
        assert len(set(row["choices"])) == len(row["choices"]) == 4
        assert row["answer"] in range(4)
    answers = Counter(row["answer"] for row in rows)
    assert all(0.2 < answers[index] / len(rows) < 0.3 for index in range(4))


@pytest.mark.parametrize("split", SPLITS)
def test_tags_are_iob2_of_known_fields(split: str) -> None:
    seen = set()
    for sentence in sentences(split):
        before = "O"
        for word, tag in sentence:
            assert word and not re.search(r"\s", word)
            prefix, _, field = tag.partition("-")
            assert tag == "O" or (prefix in "BI" and field in FIELDS)
            assert prefix != "I" or before in (f"B-{field}", f"I-{field}")
            seen.add(field)
            before = tag
    assert seen - {""} == FIELDS


@pytest.mark.parametrize("split", SPLITS)
def test_span_answers_stand_at_their_offsets(split: str) -> None:
    identifiers = set()
    for paragraph in spans(split):
        (question,) = paragraph["qas"]
        identifiers.add(question["id"])
        (answer,) = question["answers"]
        start = answer["answer_start"]
        assert answer["text"]
        assert paragraph["context"][start : start + len(answer["text"])] == answer["text"]
        assert answer["text"].lower() not in re.findall(r"[\w'-]+", question["question"].lower())
    assert len(identifiers) == len(spans(split))


def keys(name: str, split: str) -> set[str]:
    """What of a task must not be in both splits."""
    if name == "definitions":
        return {row["sentence"].lower() for row in table(name, split)}
    if name == "pairs":
        rows = table(name, split)
        words = {row["sentence1"].split(", as in ")[0].lower() for row in rows}
        return words | {row["sentence2"].lower() for row in rows}
    if name == "choices":
        questions = choices(split)
        words = {q["question"].split('"')[1].lower() for q in questions}
        return words | {q["choices"][q["answer"]].lower() for q in questions}
    if name == "spans":
        paragraphs = spans(split)
        contexts = {p["context"].lower() for p in paragraphs}
        return contexts | {p["qas"][0]["question"].lower() for p in paragraphs}
    return {" ".join(word for word, _ in sentence).lower() for sentence in sentences(split)}


@pytest.mark.parametrize("name", data.TASKS)
def test_train_and_dev_share_nothing(name: str) -> None:
    assert keys(name, "train") & keys(name, "dev") == set()


@pytest.mark.parametrize("name", ["pairs", "choices"])
def test_right_definitions_do_not_hold_their_word(name: str) -> None:
    for split in SPLITS:
        if name == "pairs":
            rows = [row for row in table(name, split) if row["label"] == "yes"]
            known = [(r["sentence1"].split(", as in ")[0], r["sentence2"]) for r in rows]
        else:
            questions = choices(split)
            known = [(q["question"].split('"')[1], q["choices"][q["answer"]]) for q in questions]
        for word, definition in known:
            assert word.lower() not in re.findall(r"\w+", definition.lower()), (word, definition)


def test_every_source_has_its_licence() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    named = re.findall(r"`(licences/\S+?\.txt)`", readme)
    assert len(named) == 6
    for name in named:
        assert len((FOLDER / name).read_text("utf-8")) > 500
    assert "Princeton" in (FOLDER / "licences/wordnet-base.txt").read_text("utf-8")


def test_the_folder_stays_small() -> None:
    own = [p for p in FOLDER.rglob("*") if p.is_file() and "tokenizers" not in p.parts]
    assert sum(p.stat().st_size for p in own if p.suffix != ".pyc") < 3_600_000


def test_unknown_names_are_answered_with_the_known_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"choices, definitions.*did you mean 'definitions'"):
        data.task("definition", "train")
    with pytest.raises(ValueError, match="train, dev"):
        data.task("tags", "test")
