"""What a fine-tuning prints of its examples before it trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.finetune_tasks import SHORT, finetune_request, named_request
from support.labelled_files import jsonl, write

from clozelab.finetuning.inputs import forget, inputs_for

LONG = "word " * 100
ROWS = "text\tlabel\nso\tno\nfine\tyes\n"


def notes_of(kind: str, train: Path, dev: Path | None = None) -> list[str]:
    """The notes of a fine-tuning on some files."""
    forget()
    return list(inputs_for(finetune_request(kind, str(train), *SHORT, dev=str(dev or train))).notes)


def squad(question: str) -> str:
    asks = {"id": "q7", "question": question, "answers": [{"text": "word", "answer_start": 0}]}
    return json.dumps({"data": [{"paragraphs": [{"context": LONG, "qas": [asks]}]}]})


@pytest.mark.parametrize(
    ("kind", "name", "content", "place"),
    [
        ("classify", "a.tsv", f"text\tlabel\nshort\t0\n{LONG}\t1\n", ":3"),
        ("regress", "a.csv", f'text,score\n"a\nb",0\n{LONG},1\n', ":4"),
        ("pairs", "a.jsonl", jsonl(*({"s1": LONG, "s2": "b", "label": n} for n in "01")), ":1"),
        ("tag", "a.conll", "One\tO\n\n" + "word\tB-X\n" * 100, ":3"),
        ("answer", "a.json", squad(LONG), ": question q7"),
        ("choose", "a.jsonl", jsonl({"first": LONG, "choices": ["a", "b"], "label": 0}), ":1"),
    ],
)
def test_what_is_cut_is_named_by_its_file_and_line(
    tmp_path: Path, kind: str, name: str, content: str, place: str
) -> None:
    file = write(tmp_path / name, content)
    cut = [line for line in notes_of(kind, file) if "(first at " in line]
    assert cut and all(line.endswith(f" (first at {file}{place})") for line in cut)


def test_a_dev_set_that_is_the_training_set_is_pointed_out(tmp_path: Path) -> None:
    train, copy = write(tmp_path / "a.tsv", ROWS), write(tmp_path / "b.tsv", ROWS)
    other = write(tmp_path / "c.tsv", ROWS + "bad\tno\n")
    for dev, same in ((train, True), (copy, True), (other, False)):
        notes = notes_of("classify", train, dev)
        assert any("the dev set is the training set" in line for line in notes) == same


def test_a_known_task_whose_sets_are_parts_of_one_file_has_a_dev_set(tmp_path: Path) -> None:
    rows = "".join(f"{n % 2}\tsome text {n}\n" for n in range(20))
    write(tmp_path / "senteval" / "MR.tsv", f"label\ttext\n{rows}")
    notes = inputs_for(named_request("mr", tmp_path)).notes
    assert not any("the dev set is the training set" in line for line in notes)


def test_classes_are_named_with_their_counts(tmp_path: Path) -> None:
    labels = ["pos", "POS", "neg", "neg", "0", "1"]
    train = write(tmp_path / "a.jsonl", jsonl(*({"text": "x", "class": c} for c in labels)))
    dev = write(tmp_path / "b.tsv", "text\tlabel\ny\tpos\ny\t0\ny\tneg\n")
    notes = notes_of("classify", train, dev)
    assert "5 classes in the training set: 0 (1), 1 (1), POS (1), neg (2), pos (1)" in notes
    alike = "the classes POS and pos differ only by case or spaces"
    assert [line.partition(";")[0] for line in notes if "differ" in line] == [alike]
    assert "classes that never occur in dev: 1 and POS" in notes


def test_of_many_classes_the_most_frequent_are_named(tmp_path: Path) -> None:
    rows = "".join(f"x\tc{n}\n" * (n + 1) for n in range(20))
    notes = notes_of("classify", write(tmp_path / "a.tsv", f"text\tlabel\n{rows}"))
    frequent = "c19 (20), c18 (19), c17 (18), c16 (17), c15 (16)"
    assert f"20 classes in the training set; the most frequent: {frequent}" in notes
    assert not any("differ only" in line or "never occur" in line for line in notes)


def test_tags_are_counted_by_words_and_numbers_are_no_classes(tmp_path: Path) -> None:
    train = write(tmp_path / "a.conll", "Anna\tB-PER\nran\tO\n\nHe\tO\nran\tO\n")
    dev = write(tmp_path / "b.conll", "He\tO\n")
    notes = notes_of("tag", train, dev)
    assert "2 tags in the training set: O (3), B-PER (1)" in notes
    assert "tags that never occur in dev: B-PER" in notes
    numbers = write(tmp_path / "a.tsv", "text\tscore\nx\t1\ny\t2\n")
    assert not any("in the training set" in line for line in notes_of("regress", numbers))
