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
    cut = [line for line in notes_of(kind, file) if "(the first: " in line]
    assert cut and all(line.endswith(f" (the first: {file}{place})") for line in cut)


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
