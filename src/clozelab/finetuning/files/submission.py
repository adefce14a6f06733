"""Predictions as the files that benchmarks take: GLUE's, SQuAD's, and simple ones for the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from clozelab.errors import UserError
from clozelab.files import check_output, write_text
from clozelab.finetuning.examples import Document, Example, Tagged
from clozelab.finetuning.files.found import Found
from clozelab.finetuning.predictions import Class, Clusters, Number, Picked, Span, Tags

Prediction = Class | Number | Picked | Tags | Span | Clusters
_SUFFIX = {"answer": "json", "tag": "conll", "coreference": "jsonl"}
_ODDS = "null_odds.json"  # SQuAD 2.0's second file
_LARGEST = 5.0  # of STS-B's scale


def check_submission(found: Found, split: str, *, folder: Path, overwrite: bool) -> None:
    """Refuse, before anything is predicted, a folder where the file must not be written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; name the folder of the submission")
    for name in (_name(found, split), *([_ODDS] if found.kind == "answer" else [])):
        if folder.is_dir():
            check_output(folder / name, overwrite=overwrite)


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
    made = list(zip(examples, predictions, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(found, split)
    if found.kind == "answer":
        _write_answers(path, made)
    elif found.kind == "tag":
        write_text(path, "".join(_conll(made)))
    elif found.kind == "coreference":
        write_text(path, "".join(_clusters(made)))
    else:
        rows = [f"{one.id}\t{_spelled(found, said)}\n" for one, said in made]
        write_text(path, "index\tprediction\n" + "".join(rows))
    return path


def _name(found: Found, split: str) -> str:
    return found.submission.get(split, f"{split}.{_SUFFIX.get(found.kind, 'tsv')}")


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
    write_text(path, json.dumps(texts, ensure_ascii=False))
    odds = {called: span.null for called, span in spans.items() if span.null is not None}
    if odds:
        write_text(path.with_name(_ODDS), json.dumps(odds))


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
