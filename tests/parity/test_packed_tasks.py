"""Packed examples of every kind of task are judged as each is alone, with dummies and without."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.coreference import stories
from support.pretrain_runs import HERE, shrunk
from support.texts import tokenizer
from torch import Tensor

from clozelab import data
from clozelab.contracts import Batch
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.evaluator import Evaluator, batched, collated
from clozelab.finetuning.examples import Sentences
from clozelab.finetuning.files.splits import own
from clozelab.finetuning.kinds import Answer, Choose, Classify, Coreference, Regress, Tag
from clozelab.finetuning.tuned import Tuned, build
from clozelab.models.reader import TaskReader
from clozelab.training.packing import PackedExamples, batch_shape

torch.set_num_threads(1)

TOKENIZERS = {"roberta": "byte_bpe", "albert": "unigram", "xlnet": "unigram", "gpt": "char_bpe"}
MEAN = {"pool": "mean", "summary": "none"}
CASES = [
    *[(recipe, "classify") for recipe in ("bert", "roberta", "albert", "xlnet", "gpt", "elmo")],
    *[("bert", "regress"), ("bert", "choose"), ("xlnet", "choose"), ("bert", "tag")],
    *[("elmo", "tag"), ("bert", "answer"), ("xlnet", "beam"), ("bert", "coreference")],
]


def posed(kind: str, recipe: str) -> tuple[Any, Sequence[Any]]:
    """A kind of task, and ragged examples of it."""
    if kind == "coreference":
        return Coreference(segment=16, widest=4, hidden=16, feature=4), stories()[:3]
    file = {"classify": "definitions", "regress": "pairs", "choose": "choices", "tag": "tags"}
    word = {"regress": "pairs", "beam": "answer"}.get(kind, kind)
    splits = own(word, dev=data.task(file.get(kind, "spans"), "dev"))
    some: list[Any] = splits.read("dev")[:9]
    if kind == "classify":
        labels = tuple(sorted({example.label for example in some}))
        return Classify(labels, **MEAN if recipe == "elmo" else {}), some
    if kind == "regress":
        return Regress(pair=True), [
            Sentences(example.id, example.first, example.second, float(number))
            for number, example in enumerate(some)
        ]
    if kind == "choose":
        shorter = [
            example._replace(seconds=example.seconds[: 2 + n % 3]) for n, example in enumerate(some)
        ]
        return Choose(choices=4), [example._replace(label=0) for example in shorter]
    if kind == "tag":
        return Tag(tuple(sorted({tag for example in some for tag in example.tags}))), some
    if kind == "beam":
        return Answer(impossible=True, head="beam", beams=2, stride=4), some
    return Answer(stride=4), some  # so that a passage has several windows


def set_up(recipe: str, kind: str) -> tuple[Evaluator, Tuned, TaskReader]:
    part, examples = posed(kind, recipe)
    known = tokenizer(TOKENIZERS.get(recipe, "wordpiece"))
    shape = shrunk(recipe, f"tokenizer.vocabulary={known.get_vocab_size()}")
    reader = TaskReader(shape, known, 32)
    tuning = FinetuneConfig(learning_rate=1e-3, batch_size=4, length=32, epochs=1.0)
    model = build(shape, part, tuning, seed=1).double().eval()
    with torch.no_grad():
        for parameter in model.heads.parameters():  # fresh heads say nearly the same of all
            parameter.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(len(parameter)))
    return Evaluator.of(part, examples, reader), model, reader


@torch.no_grad()
def rows(model: Tuned, batch: Batch, share: PackedExamples) -> list[Tensor]:
    """What the head says of each group."""
    predictions, name = model.predict(batch), model.task
    if model.head.rows == "group":
        return [predictions]
    by = share.targets[name].starts if model.head.rows == "slots" else share.starts
    return [predictions[first:stop] for first, stop in pairwise(by[share.units].tolist())]


@pytest.mark.parametrize(("recipe", "kind"), CASES)
def test_a_group_of_blocks_is_judged_alike_alone_in_a_batch_and_among_dummies(
    recipe: str, kind: str
) -> None:
    judge, model, _ = set_up(recipe, kind)
    share = judge.packed
    lengths = np.diff(share.starts)
    assert lengths.min() < lengths.max(), "ragged"
    singles = [share.select(np.array([number])) for number in range(len(share.units) - 1)]
    alone = [rows(model, collated(single), single)[0] for single in singles]
    met = 0
    for numbers in batched(share, 96, alone=model.head.rows == "group"):
        some = share.select(numbers)
        predictions = rows(model, collated(some), some)
        for number, mine in zip(numbers.tolist(), predictions, strict=True):
            torch.testing.assert_close(mine, alone[number], rtol=0, atol=1e-10)
        met += len(predictions)
    assert met == len(alone)
    if model.head.rows == "group":  # never among dummies
        return
    room = batch_shape(share, tokens=200, blocks=len(share), max_seqlen=32, constant=True)
    parts = room.divide(share)
    bounds = np.searchsorted(share.units, [0, *(part.stop for part in parts)])
    for part, first, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
        batch = room.collate(share, part)
        assert batch.input.real is not None and int(batch.input.real) < len(batch.input.ids)
        predictions = rows(model, batch, share.select(np.arange(first, stop)))
        for number, mine in zip(range(first, stop), predictions, strict=True):
            torch.testing.assert_close(mine, alone[number], rtol=0, atol=1e-10)


def flat(value: Any) -> list[Any]:
    """A prediction's words and numbers."""
    if isinstance(value, dict):
        return [part for pair in value.items() for part in flat(pair)]
    if isinstance(value, tuple):
        return [part for member in value for part in flat(member)]
    return [value]


def same(some: list[Any], others: list[Any]) -> bool:
    """Whether words are the same, and numbers up to single precision."""
    close = [
        pytest.approx(value, abs=1e-5) if isinstance(value, float) else value for value in others
    ]
    return some == close


@pytest.mark.parametrize(("recipe", "kind"), CASES)
def test_predictions_for_many_are_those_for_each(recipe: str, kind: str) -> None:
    judge, model, reader = set_up(recipe, kind)
    together = judge.predictions(model, HERE.device, tokens=96)
    assert len(together) == len(judge.examples)
    for example, prediction in zip(judge.examples, together, strict=True):
        (alone,) = Evaluator.of(judge.kind, [example], reader).predictions(
            model, HERE.device, tokens=10_000
        )
        assert same(flat(alone), flat(prediction))
    assert not all(same(flat(each), flat(together[0])) for each in together)
