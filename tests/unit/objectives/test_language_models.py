"""Language models one way and both: what they predict, and how it is scored (cards C1, C6)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import (
    VOCABULARY,
    Alone,
    Case,
    Shape,
    columns,
    complete,
    lengths,
    states,
)
from torch import Tensor
from torch.nn import functional

from clozelab.config.recipe import read
from clozelab.contracts import Encoded, Input, Targets
from clozelab.encoder.lstm import Lstm
from clozelab.errors import UserError
from clozelab.masking.words import SpanMasking
from clozelab.objectives.heads import chunks
from clozelab.objectives.heads.words import WordHead, draw
from clozelab.objectives.language_models import BidirectionalLm, CausalLm, MaskedLm
from clozelab.objectives.spans import SpanBoundary, SpanJoint

torch.set_num_threads(1)


def rows(targets: Targets, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(targets.columns[name].tolist() for name in names), strict=True))


def test_causal_targets_are_the_next_tokens_of_the_same_block() -> None:
    case = complete(make_blocks([[1, 1], [1], [2, 1, 1]], bare=True), None)
    ids = case.blocks.ids.tolist()
    targets = case.targets(CausalLm())
    assert targets.starts.tolist() == [0, 1, 1, 4]
    assert rows(targets, "at", "labels") == [(0, ids[1]), (0, ids[4]), (1, ids[5]), (2, ids[6])]


@pytest.mark.parametrize("part", [CausalLm(), CausalLm(head="transform"), MaskedLm()])
def test_gathered_targets_score_like_a_dense_pass_with_ignored_labels(
    part: CausalLm | MaskedLm,
) -> None:
    case = complete(make_blocks([[1, 2, 1, 4, 1, 1, 2, 3] * 3, [2, 1]]), SpanMasking(mask_rate=0.3))
    shape = Shape()
    model, x = Alone(part, shape), states(part, case.blocks, shape)
    targets = columns(case.targets(part), case.blocks.lengths)
    labels = torch.full((len(x),), Targets.IGNORED).scatter(0, targets["at"], targets["labels"])
    logits = model.head.logits(x, model.table)
    dense = functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    sums = model(x, targets)
    assert torch.allclose(sums["loss"], dense, rtol=1e-12)
    assert sums["correct"] == (logits.argmax(1) == labels).sum()
    ours, theirs = (torch.autograd.grad(loss, x)[0] for loss in (sums["loss"], dense))
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "part", [CausalLm(), CausalLm(head="transform"), MaskedLm(), SpanBoundary(), SpanJoint()]
)
def test_a_fresh_head_knows_nothing(part: CausalLm | MaskedLm | SpanBoundary | SpanJoint) -> None:
    case = complete(make_blocks([[1, 2, 1, 4] * 30] * 4), SpanMasking(mask_rate=0.3))
    shape = Shape(hidden_size=32, embedding_size=32)
    model = Alone(part, shape)
    torch.nn.init.normal_(model.table, std=0.02)
    sums = model(states(part, case.blocks, shape), columns(case.targets(part), case.blocks.lengths))
    mean = sums["loss"].item() / sums["count"].item()
    assert mean == pytest.approx(math.log(VOCABULARY), abs=0.02)


# Words each way


def spelled(numbers: list[list[int]]) -> Case:
    """Blocks of words with these numbers."""
    case = complete(make_blocks([[1] * (len(block) - 2) for block in numbers]), None)
    assert case.blocks.words is not None
    words = replace(case.blocks.words, ids=np.concatenate(numbers).astype(np.int32))
    return replace(case, blocks=replace(case.blocks, words=words))


def test_every_word_predicts_its_neighbours_and_rare_ones_are_unknown() -> None:
    case = spelled([[1, 7, 30, 2], [1, 9, 2]])
    targets = case.targets(BidirectionalLm(words=30, samples=5))
    none = Targets.IGNORED
    assert targets.starts.tolist() == [0, 4, 7]
    assert rows(targets, "at", "labels", "back_labels") == [
        *[(0, 7, none), (1, 0, 1), (2, 2, 7), (3, none, 0)],
        *[(0, 9, none), (1, 2, 1), (2, none, 9)],
    ]


def word_model(words: int, samples: int) -> tuple[Alone, Tensor, dict[str, Tensor]]:
    part = BidirectionalLm(words=words, samples=samples)
    case = complete(make_blocks([[1] * 40, [1] * 25]), None, words=words)
    x = states(part, case.blocks, Shape())
    return Alone(part, Shape()), x, columns(case.targets(part), lengths(part, case.blocks))


def by_direction(head: WordHead, x: Tensor, targets: dict[str, Tensor]) -> Tensor:
    """The whole softmax, one direction after the other."""
    loss = torch.zeros((), dtype=torch.float64)
    for half, labels in (
        (x[:, :8], targets["labels"]),
        (x[:, 8:], targets["back_labels"]),
    ):
        logits = half @ head.words.weight.T + head.bias
        chosen = labels >= 0
        picked = logits.log_softmax(1)[chosen, labels[chosen]]
        loss = loss - picked.sum()
    return loss


def test_an_evaluation_uses_the_whole_softmax_in_each_direction() -> None:
    model, x, targets = word_model(words=40, samples=5)
    expected = by_direction(model.head, x, targets)
    model.eval()
    sums = model(x, targets)
    assert torch.allclose(sums["loss"], expected, rtol=1e-12)
    assert sums["count"] == 2 * (len(x) - 2)
    every, x, targets = word_model(words=40, samples=40)
    assert torch.allclose(every(x, targets)["loss"], by_direction(every.head, x, targets))
    model.train()
    assert not torch.allclose(model(x, targets)["loss"], expected, rtol=1e-3)


def test_many_samples_come_near_the_whole_softmax() -> None:
    gaps = []
    for samples in (20, 380, 399):
        model, x, targets = word_model(words=400, samples=samples)
        torch.manual_seed(1)
        whole = by_direction(model.head, x, targets)
        gaps.append(abs(model(x, targets)["loss"].item() / whole.item() - 1))
    assert gaps[0] > 0.2
    assert gaps[1] < 0.03
    assert gaps[2] < 0.003


def test_the_sampled_loss_is_that_of_telling_a_word_from_the_samples() -> None:
    model, x, targets = word_model(words=20, samples=6)
    head: WordHead = model.head
    torch.manual_seed(3)
    loss = model(x, targets)["loss"]
    torch.manual_seed(3)
    samples, chances = draw(20, 6, like=head.bias)
    logits = head.words.weight @ torch.stack([x[:, :8], x[:, 8:]]).mT  # [2, words, N]
    expected, hits = 0.0, 0
    for way, labels in enumerate((targets["labels"].tolist(), targets["back_labels"].tolist())):
        for word, label in enumerate(labels):
            if label == Targets.IGNORED:
                continue
            hits += label in samples.tolist()
            rivals = {label, *samples.tolist()}
            scores = {k: (logits[way, k, word].exp() / chances[k]).item() for k in rivals}
            expected -= math.log(scores[label] / sum(scores.values()))
    assert hits
    assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_every_gradient_of_the_sampled_loss_is_finite_even_with_one_sample() -> None:
    for samples in (1, 3):
        for seed in range(5):
            model, x, targets = word_model(words=4, samples=samples)
            torch.manual_seed(seed)
            loss = model(x, targets)["loss"]
            loss.backward()
            assert torch.isfinite(loss) and loss >= 0
            for value in (x, *model.head.parameters()):
                assert value.grad is not None and torch.isfinite(value.grad).all()


@pytest.mark.thorough
def test_samples_are_different_words_with_the_chances_they_say() -> None:
    torch.manual_seed(0)
    times, words, samples = 4000, 60, 12
    like = torch.zeros((), dtype=torch.float64)
    taken, weighed = torch.zeros(words), torch.zeros(words, dtype=torch.float64)
    for _ in range(times):
        drawn, chances = draw(words, samples, like=like)
        assert len(drawn.unique()) == samples
        taken[drawn] += 1
        weighed[drawn] += 1 / chances[drawn]
    # A sum over samples, each by its chance, is on average the sum over all words; the rarest
    # word is in one draw of eight, so 4000 draws leave about 4 % of doubt.
    assert (weighed / times - 1).abs().max() < 0.2
    assert weighed.mean() / times == pytest.approx(1, abs=0.02)
    assert (taken[:5].mean() > 2 * taken[-20:].mean()) and taken[0] == taken.max()


@pytest.mark.thorough
def test_the_true_distribution_is_where_the_sampled_loss_is_still() -> None:
    # States of zero leave the biases: at the log of the words' true shares nothing may pull.
    torch.manual_seed(0)
    times, counts = 1500, torch.tensor([3, 9, 1, 20, 4, 2, 7, 12, 2, 5, 30, 5])
    labels = torch.arange(12).repeat_interleave(counts)
    head = BidirectionalLm(words=12, samples=4).build(Shape(), 0).double()
    with torch.no_grad():
        head.bias.copy_(counts.double().log() + 3)
    encoded = Encoded(torch.zeros(100, 16, dtype=torch.float64), None)
    targets = {"at": torch.arange(100), "labels": labels, "back_labels": labels}
    for _ in range(times):
        head(encoded, targets)["loss"].backward()
    assert head.bias.grad is not None
    pull = head.bias.grad / (2 * times) / counts
    assert pull.abs().max() < 0.2  # without the chances it is five times that


def test_a_fresh_encoder_and_head_know_nothing() -> None:
    torch.manual_seed(0)
    shape = Lstm(layers=2, hidden_size=32, cell_size=64, filters=((1, 16), (3, 32)))
    words, count = 3000, 60
    batch = Input(
        ids=torch.zeros(count, dtype=torch.long),
        position_ids=torch.arange(20).repeat(3),
        segments=torch.zeros(count, dtype=torch.long),
        cu_seqlens=torch.arange(0, count + 1, 20, dtype=torch.int32),
        max_seqlen=20,
        characters=torch.randint(0, 261, (count, 12)),
    )
    labels = torch.randint(0, words, (2, count))
    targets = {"at": torch.arange(count), "labels": labels[0], "back_labels": labels[1]}
    head = BidirectionalLm(words=words, samples=100).build(shape, 0).eval()
    sums = head(shape.build(0).eval()(batch), targets)
    assert sums["loss"].item() / sums["count"].item() == pytest.approx(math.log(words), abs=0.05)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_stretches_change_no_sum_and_no_gradient(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    results = []
    for size in (10**9, rows * 40):
        monkeypatch.setattr(chunks, "LOGITS", size)
        model, x, targets = word_model(words=40, samples=40)
        sums = model(x, targets)
        sums["loss"].backward()
        results.append([*sums.values(), x.grad, *(p.grad for p in model.head.parameters())])
    for first, second in zip(*results, strict=True):
        assert torch.allclose(first, second, rtol=1e-12, atol=1e-12)


# Recipes


@pytest.mark.parametrize(
    ("name", "changes", "phrase"),
    [
        ("distilbert", ["objectives.0.use=span_boundary", "masking.use=span"], "list masked_lm"),
        ("elmo", ["blocks.characters=6"], "filters reach over 7 characters"),
        ("elmo", ["encoder.alphabet=256"], "use 261"),
    ],
)
def test_a_recipe_whose_objectives_lack_something_is_refused(
    name: str, changes: list[str], phrase: str
) -> None:
    with pytest.raises(UserError, match=phrase):
        read(name, overrides=changes)
