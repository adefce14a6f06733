"""The contrastive objective: its loss by a plain computation, groups, pooling, sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import Shape, columns, complete
from torch import Tensor

from clozelab.contracts import Encoded
from clozelab.errors import UserError
from clozelab.objectives.contrastive import Contrastive

LENGTHS = [3, 1, 4, 2, 5, 2, 1, 6, 3, 3, 2, 7]


def case(part: Contrastive, *, views: int, group: int, idle: int = 0) -> tuple[Tensor, Any]:
    """Random states of twelve blocks in rows, and their targets in groups of so many rows."""
    blocks = make_blocks([[1] * length for length in LENGTHS])
    blocks = replace(blocks, views=np.arange(len(blocks)) % views)
    targets = complete(blocks, None).targets(part)
    numbers = np.arange(len(blocks)) // (views * group)
    targets = replace(targets, columns={**targets.columns, "groups": numbers})
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(len(blocks.ids), 8, generator=generator, dtype=torch.float64)
    return states.requires_grad_(), columns(targets, blocks.lengths, idle=idle)


def plain(
    part: Contrastive, head: Any, states: Tensor, *, views: int, group: int
) -> tuple[float, int]:
    """The sum of the losses and the texts that are right, a text and a rival at a time."""
    vectors, start = [], 0
    for length in LENGTHS:
        block = states[start : start + length + 2].detach().numpy()
        start += length + 2
        own = {"cls": block[:1], "mean": block[1:-1], "mean_all": block}[part.pooling]
        vector = own.mean(axis=0)
        if head.projection is not None:
            weight, bias = (p.detach().numpy() for p in head.projection.parameters())
            vector = np.tanh(weight @ vector + bias)
        vectors.append(vector)
    loss, right = 0.0, 0
    rows = [vectors[at : at + views] for at in range(0, len(vectors), views)]
    for at, row in enumerate(rows):
        first = at // group * group
        for size in (*part.sizes, 8):
            scores = {}
            for number, other in enumerate(rows[first : first + group], start=first):
                for place in range(1, views):
                    a, b = row[0][:size], other[place][:size]
                    cosine = a @ b / np.sqrt((a @ a) * (b @ b))
                    scores[number, place] = cosine / part.temperature
            loss += np.log(sum(np.exp(score) for score in scores.values())) - scores[at, 1]
        right += max(scores, key=lambda key: scores[key]) == (at, 1)
    return loss, right


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("idle", [0, 5])
@pytest.mark.parametrize(
    "part",
    [
        Contrastive(),
        Contrastive(pooling="mean", temperature=0.3),
        Contrastive(pooling="mean_all", projection=False, temperature=1.0),
        Contrastive(sizes=(2, 5), projection=False),
    ],
)
@pytest.mark.parametrize("group", [2, 12])
def test_the_loss_is_that_of_a_plain_computation(
    part: Contrastive, views: int, group: int, idle: int
) -> None:
    torch.manual_seed(0)
    head = part.build(Shape(), 10).double()
    states, targets = case(part, views=views, group=group, idle=idle)
    sums = head(Encoded(states, None), targets)
    loss, right = plain(part, head, states, views=views, group=group)
    assert sums["loss"].item() == pytest.approx(loss, rel=1e-12)
    assert (sums["count"].item(), sums["correct"].item()) == (12 // views, right)
    sums["loss"].backward()
    assert states.grad is not None
    assert torch.isfinite(states.grad).all() and states.grad.abs().sum() > 0


def test_groups_do_not_see_one_another_and_add_up() -> None:
    part = Contrastive(pooling="mean")
    head = part.build(Shape(), 10).double()
    states, targets = case(part, views=2, group=3)
    whole = head(Encoded(states, None), targets)
    parts = [
        head(Encoded(states, None), {name: values[some] for name, values in targets.items()})
        for some in (slice(0, 6), slice(6, 12))
    ]
    for name, value in whole.items():
        assert sum(each[name].item() for each in parts) == pytest.approx(value.item(), rel=1e-12)
    alone = head(Encoded(states, None), {**targets, "groups": torch.zeros(12, dtype=torch.long)})
    assert alone["loss"] > whole["loss"]  # more rivals


def test_without_targets_nothing_is_counted_and_gradients_are_zero() -> None:
    part = Contrastive(pooling="mean")
    head = part.build(Shape(), 10).double()
    states, targets = case(part, views=2, group=6, idle=4)
    for some in (slice(0, 0), slice(12, 16)):  # none, or idle slots alone
        sums = head(Encoded(states, None), {name: each[some] for name, each in targets.items()})
        assert [value.item() for value in sums.values()] == [0, 0, 0]
        sums["loss"].backward()
    assert states.grad is not None and not states.grad.any()
    assert all(p.grad is None or not p.grad.any() for p in head.parameters())


def test_a_block_of_marks_alone_has_a_vector_all_the_same() -> None:
    part = Contrastive(pooling="mean")
    blocks = replace(make_blocks([[1, 1], [], [1], [1]]), views=np.array([0, 1, 0, 1]))
    targets = columns(complete(blocks, None).targets(part), blocks.lengths)
    states = torch.eye(len(blocks.ids), 8, dtype=torch.float64).requires_grad_()
    loss = part.build(Shape(), 10).double()(Encoded(states, None), targets)["loss"]
    loss.backward()
    assert loss.isfinite() and states.grad is not None and states.grad.isfinite().all()


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_head_compiles_whole_and_reads_half_precision(pooling: Any) -> None:
    part = Contrastive(pooling=pooling)
    head = part.build(Shape(), 10).double()
    states, targets = case(part, views=3, group=2, idle=3)
    torch.compiler.reset()
    run = torch.compile(head, backend="eager", fullgraph=True)
    exact = head(Encoded(states, None), targets)["loss"]
    assert run(Encoded(states, None), targets)["loss"].item() == pytest.approx(exact.item())
    near = head.float()(Encoded(states.bfloat16(), None), targets)["loss"]
    assert near.dtype == torch.float32
    assert near.item() == pytest.approx(exact.item(), rel=0.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sizes": (8, 4), "projection": False}, "list each once, ascending"),
        ({"sizes": (4,)}, "set projection = false"),
        ({"in_batch": 1}, "must be at least 2"),
        ({"temperature": 0.0}, "must be above 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Contrastive(**settings)
