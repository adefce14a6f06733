"""Predictions as the files that benchmarks take: GLUE's, SQuAD's, and simple ones for the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from clozelab.contracts import UserError
from clozelab.tasks.examples import Document, Example, Tagged
from clozelab.tasks.files.found import Found
from clozelab.tasks.predictions import Class, Clusters, Number, Picked, Span, Tags

Prediction = Class | Number | Picked | Tags | Span | Clusters
_SUFFIX = {"answer": "json", "tag": "conll", "coreference": "jsonl"}
_LARGEST = 5.0  # of STS-B's scale


def write_submission(
    found: Found, split: str, *, predictions: Sequence[Prediction], folder: Path
) -> Path:
    """Write the predictions for a split, in the order of its examples; where they were written."""
    examples = found.read(split)
    if len(examples) != len(predictions):
        raise UserError(
            f"{found.name} {split} has {len(examples)} examples and there are {len(predictions)}"
            " predictions: predict the same split"
        )
    name = found.submission.get(split, f"{split}.{_SUFFIX.get(found.kind, 'tsv')}")
    made = list(zip(examples, predictions, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if found.kind == "answer":
        _write_answers(path, made)
    elif found.kind == "tag":
        path.write_text("".join(_conll(made)), encoding="utf-8")
    elif found.kind == "coreference":
        path.write_text("".join(_clusters(made)), encoding="utf-8")
    else:
        rows = [f"{one.id}\t{_spelled(found, said)}\n" for one, said in made]
        path.write_text("index\tprediction\n" + "".join(rows), encoding="utf-8")
    return path


def _spelled(found: Found, said: Prediction) -> str:
    if isinstance(said, Number):
        value = min(max(said.value, 0.0), _LARGEST) if found.name == "stsb" else said.value
        return f"{value:.3f}" if found.name == "stsb" else repr(value)
    if isinstance(said, Picked):
        return chr(ord("A") + said.label) if found.name.startswith("race") else str(said.label)
    assert isinstance(said, Class)
    return said.label


def _write_answers(path: Path, made: Sequence[tuple[Example, Prediction]]) -> None:
    """SQuAD's {id: text}; where questions may have no answer, also how likely each has none."""
    spans = {one.id: said for one, said in made if isinstance(said, Span)}
    texts = {called: span.text for called, span in spans.items()}
    path.write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")
    odds = {called: span.null for called, span in spans.items() if span.null is not None}
    if odds:
        path.with_name("null_odds.json").write_text(json.dumps(odds), encoding="utf-8")


def _conll(made: Sequence[tuple[Example, Prediction]]) -> Iterator[str]:
    for one, said in made:
        assert isinstance(one, Tagged)
        assert isinstance(said, Tags)
        for word, tag in zip(one.words, said.tags, strict=True):
            yield f"{word}\t{tag}\n"
        yield "\n"


def _clusters(made: Sequence[tuple[Example, Prediction]]) -> Iterator[str]:
    for one, said in made:
        assert isinstance(one, Document)
        assert isinstance(said, Clusters)
        record = {"id": one.id, "sentences": one.sentences, "clusters": said.clusters}
        yield json.dumps(record, ensure_ascii=False) + "\n"
