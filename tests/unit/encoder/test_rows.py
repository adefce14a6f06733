"""The last layer in some rows alone: the same states and gradients as the whole layer has there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.learning import MACHINE, doubled, steps_of, task
from torch import Tensor

from clozelab.contracts import Encoded, Input
from clozelab.encoder import Transformer
from clozelab.runs.machine import Machine

torch.set_num_threads(1)
BASE = Transformer(
    layers=2,
    heads=2,
    hidden_size=8,
    intermediate_size=16,
    embedding_size=6,
    positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)
KINDS = {
    "bert": BASE,
    "one layer": replace(BASE, layers=1),
    "pre": replace(BASE, norm="pre"),
    "rotary": replace(BASE, norm="pre", position_embedding="rotary", value_residual=0.3),
    "windows": replace(BASE, window=4, global_every=2, position_embedding="alibi"),
    "deberta": replace(BASE, position_embedding="disentangled"),
    "albert": replace(BASE, sharing="all"),
}
LENGTHS = (5, 9, 2)
ROWS = torch.tensor([0, 5, 14, 3, 0])  # in any order, and one twice, as idle slots have it


def batch() -> Input:
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    starts = torch.tensor([0, 5, 14, 16], dtype=torch.int32)
    return Input(places * 7 % 11, places, torch.zeros_like(places), starts, max(LENGTHS))


def gradients(module: Any, states: Tensor) -> list[Tensor | None]:
    module.zero_grad()
    states[ROWS].square().cumsum(1).sum().backward()
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [False, True])
def test_rows_are_those_of_the_whole_layer(kind: str, recompute: bool) -> None:
    torch.manual_seed(0)
    module = KINDS[kind].build(11).double()
    module.recompute = recompute
    whole: Encoded = module(batch())
    some: Encoded = module(batch(), rows=ROWS)
    assert some.hidden_states.shape == whole.hidden_states.shape
    torch.testing.assert_close(some.hidden_states[ROWS], whole.hidden_states[ROWS])
    rest = torch.ones(sum(LENGTHS), dtype=torch.bool)
    rest[ROWS] = False
    assert not some.hidden_states[rest].any() and whole.hidden_states[rest].any()
    for mine, other in zip(
        gradients(module, some.hidden_states), gradients(module, whole.hidden_states), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_a_contrastive_step_is_the_same_by_rows_of_cls(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["encoder.layers=2", "objectives.0.in_batch=2"]
    found = []
    for takes in (True, False):
        monkeypatch.setattr("clozelab.encoder.stack.Stack.takes_rows", takes)
        trainer = doubled(task("simcse", *words, steps=3), replace(MACHINE, micro_batch=2))
        found.append([(step.sums, step.norm) for step in steps_of(trainer)])
    for (mine, norm), (other, other_norm) in zip(*found, strict=True):
        assert mine["contrastive"] == pytest.approx(other["contrastive"], rel=1e-9)
        assert norm == pytest.approx(other_norm, rel=1e-9)


@pytest.mark.parametrize(("pooling", "asked"), [("cls", True), ("mean", False)])
def test_means_need_all_rows(pooling: str, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    trainer = doubled(task("simcse", f"objectives.0.pooling={pooling}", steps=1), Machine("cpu"))
    forward = trainer.model.encoder.forward
    monkeypatch.setattr(
        trainer.model.encoder, "forward", lambda b, **more: seen.append(more) or forward(b, **more)
    )
    steps_of(trainer)
    assert [("rows" in more) for more in seen] == [asked] * len(seen)
    assert seen
