"""Spans from the tokens around them: which are predicted, and how they are scored (card C3)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import VOCABULARY, Alone, Case, Shape, columns, complete, states
from torch import Tensor

from clozelab.config.recipe import read
from clozelab.contracts import Corrupted, Encoded, Hidden, Targets
from clozelab.errors import UserError
from clozelab.masking.words import SpanMasking, WholeWord
from clozelab.objectives.spans import SpanBoundary, SpanJoint

torch.set_num_threads(1)
SHAPE = Shape(hidden_size=8, embedding_size=6)


def hiding(words: list[list[int]], spans: list[tuple[int, int]], *, bare: bool = False) -> Case:
    """Blocks in which just these stretches of the packed tokens are hidden."""
    blocks = make_blocks(words, bare=bare)
    hidden = Hidden(np.array(spans, dtype=np.int64).reshape(-1, 2))
    return Case(blocks, hidden, Corrupted(blocks.ids, np.zeros(len(hidden.positions), np.uint8)))


def rows(targets: Targets, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(targets.columns[name].tolist() for name in names), strict=True))


def test_a_span_is_predicted_offset_by_offset_from_the_tokens_around_it() -> None:
    case = hiding([[1] * 9, [1] * 5], [(3, 6), (13, 14)])
    ids = case.blocks.ids.tolist()
    targets = case.targets(SpanBoundary())
    assert targets.starts.tolist() == [0, 3, 4]
    assert rows(targets, "left", "right", "offset", "labels") == [
        *[(2, 6, k, ids[3 + k]) for k in range(3)],
        (1, 3, 0, ids[13]),
    ]


@pytest.mark.parametrize(
    ("spans", "content", "anywhere"),
    [
        ([(1, 3)], [], [1, 2]),  # after [CLS]
        ([(7, 9)], [], [7, 8]),  # before [SEP]
        ([(2, 9)], [], [2, 3, 4, 5, 6, 7, 8]),
        ([(2, 8)], [2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7]),
        ([(2, 4), (4, 5), (6, 7)], [2, 3, 4, 6], [2, 3, 4, 6]),  # the first two are one
        ([(1, 3), (3, 5)], [], [1, 2, 3, 4]),
        ([], [], []),
    ],
)
def test_boundaries_are_content_or_anything_seen(
    spans: list[tuple[int, int]], content: list[int], anywhere: list[int]
) -> None:
    case = hiding([[1] * 8], spans)
    ids = case.blocks.ids
    for boundary, expected in (("content", content), ("any", anywhere)):
        for kind in (SpanBoundary, SpanJoint):
            targets = case.targets(kind(boundary=boundary))
            assert targets.columns["labels"].tolist() == ids[expected].tolist()


def test_spans_at_the_end_of_a_block_and_the_start_of_the_next_stay_two() -> None:
    case = hiding([[1] * 4, [1] * 4], [(2, 4), (4, 6)], bare=True)
    assert case.targets(SpanBoundary(boundary="any")).starts.tolist() == [0, 0, 0]
    case = hiding([[1] * 4, [1] * 4], [(1, 3), (5, 6)], bare=True)
    assert case.targets(SpanBoundary()).starts.tolist() == [0, 2, 3]


def test_a_long_span_is_predicted_as_far_as_told() -> None:
    case = hiding([[1] * 30], [(2, 25)])
    targets = case.targets(SpanBoundary())
    assert targets.columns["offset"].tolist() == list(range(15))
    assert set(targets.columns["right"].tolist()) == {25}
    assert len(case.targets(SpanBoundary(longest=4)).columns["labels"]) == 4


@pytest.mark.parametrize("masking", [SpanMasking(mask_rate=0.4), WholeWord(mask_rate=0.5)])
def test_boundaries_are_never_hidden_and_targets_always_are(
    masking: SpanMasking | WholeWord,
) -> None:
    case = complete(make_blocks([[1, 2, 1, 4, 1, 1, 2, 3] * 8, [2, 1, 1] * 10]), masking)
    targets = case.targets(SpanBoundary(boundary="any", positions=99, longest=99))
    base = np.repeat(case.blocks.starts[:-1], np.diff(targets.starts))
    left, right, at = (targets.columns[name] + base for name in ("left", "right", "left"))
    at = at + 1 + targets.columns["offset"]
    assert len(at) > 20
    assert not np.isin(np.append(left, right), case.hidden.positions).any()
    assert np.isin(at, case.hidden.positions).all()
    assert (case.blocks.ids[at] == targets.columns["labels"]).all()
    assert (at < right).all()


@pytest.mark.parametrize("part", [SpanBoundary(), SpanJoint()])
def test_only_boundary_states_get_gradient(part: SpanBoundary | SpanJoint) -> None:
    case = hiding([[1] * 9, [1] * 5], [(3, 6), (13, 14)])
    model, x = Alone(part, SHAPE), states(part, case.blocks, SHAPE)
    model(x, columns(case.targets(part), case.blocks.lengths))["loss"].backward()
    assert x.grad is not None
    assert x.grad.any(dim=1).nonzero().flatten().tolist() == [2, 6, 12, 14]


def test_the_content_of_a_span_is_no_part_of_what_it_is_predicted_from() -> None:
    part = SpanBoundary()
    case = hiding([[1] * 9], [(3, 6)])
    model, x = Alone(part, SHAPE), states(part, case.blocks, SHAPE)
    targets = columns(case.targets(part), case.blocks.lengths)
    turned = {**targets, "labels": targets["labels"].flip(0)}
    encoded = Encoded(x, model.table)
    assert torch.equal(model.head.guesses(encoded, targets), model.head.guesses(encoded, turned))
    assert model(x, targets)["loss"] != model(x, turned)["loss"]


@pytest.mark.parametrize(("size", "extra"), [("base", 1_996_676), ("large", 3_425_668)])
def test_the_span_head_has_the_published_number_of_parameters(size: str, extra: int) -> None:
    shape = read("spanbert", size=size).encoder
    with torch.device("meta"):
        plain = SpanBoundary().build(shape, 28_996)  # type: ignore[arg-type]
        joint = SpanJoint().build(shape, 28_996)  # type: ignore[arg-type]
    counts = [sum(p.numel() for p in head.parameters()) for head in (plain, joint)]
    assert counts == [extra, extra + shape.hidden_size**2 + shape.hidden_size]
    assert counts[1] == sum(SpanJoint().parameters(shape, 28_996).values())
    assert {name for name, _ in plain.named_parameters()} == {
        *("positions.weight", "first.weight", "first.bias", "first_norm.weight"),
        *("first_norm.bias", "second.weight", "second.bias", "second_norm.weight"),
        *("second_norm.bias", "bias"),
    }


def joint_losses(part: SpanJoint | SpanBoundary, spans: list[tuple[int, ...]]) -> Tensor:
    """The loss of every one of some spans over a table of four tokens, from the same boundaries."""
    torch.manual_seed(2)
    head = part.build(SHAPE, 4).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    table = torch.randn(4, SHAPE.embedding_size, dtype=torch.float64)
    encoded = Encoded(torch.randn(2, SHAPE.hidden_size, dtype=torch.float64), table)
    losses = []
    for span in spans:
        targets = {
            "left": torch.zeros(len(span), dtype=torch.long),
            "right": torch.ones(len(span), dtype=torch.long),
            "offset": torch.arange(len(span)),
            "labels": torch.tensor(span),
            "previous": torch.tensor([3, *span[:-1]]),
        }
        losses.append(head(encoded, targets)["loss"])
    return torch.stack(losses).detach()


def test_the_joint_probabilities_of_all_spans_add_up_to_one() -> None:
    every = list(itertools.product(range(4), repeat=3))
    losses = joint_losses(SpanJoint(positions=3, longest=3), every)
    assert (-losses).exp().sum() == pytest.approx(1, rel=1e-12)
    # They are no product of one distribution for each offset, as those of span_boundary are.
    table = losses.view(4, 4, 4)
    gap = table[0, 0, 0] - table[0, 1, 0] - table[1, 0, 0] + table[1, 1, 0]
    assert gap.abs() > 1e-3
    alone = joint_losses(SpanBoundary(positions=3, longest=3), every).view(4, 4, 4)
    assert (alone[0, 0, 0] - alone[0, 1, 0] - alone[1, 0, 0] + alone[1, 1, 0]).abs() < 1e-12


def test_a_span_is_chained_from_its_own_start() -> None:
    part = SpanJoint()
    case = hiding([[1] * 12], [(3, 6), (8, 10)])
    span_targets = case.targets(part)
    labels, previous = span_targets.columns["labels"], span_targets.columns["previous"]
    inside = span_targets.columns["offset"] > 0
    assert (previous[1:] == labels[:-1])[inside[1:]].all()
    # Whatever stands before a first token has no influence.
    model, x = Alone(part, SHAPE), states(part, case.blocks, SHAPE)
    targets = columns(span_targets, case.blocks.lengths)
    other = (targets["previous"] + 1) % VOCABULARY
    first = {**targets, "previous": targets["previous"].where(targets["offset"] > 0, other)}
    later = {**targets, "previous": targets["previous"].where(targets["offset"] == 0, other)}
    assert model(x, first)["loss"] == model(x, targets)["loss"]
    assert model(x, later)["loss"] != model(x, targets)["loss"]


def test_the_joint_objective_checks_its_settings_like_its_model() -> None:
    with pytest.raises(UserError, match="longest = 300"):
        SpanJoint(longest=300)
    changes = ["objectives.1.use=span_joint"]
    assert read("spanbert", overrides=changes).objectives[1] == SpanJoint()
    with pytest.raises(UserError, match="span_joint needs spans"):
        read("bert", overrides=changes)
