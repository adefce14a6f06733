"""Any objective beside any encoder: what makes sense trains, the rest is refused in a sentence."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretrain_runs import STORES, of_kind, run_pretraining, shrunk, store, teacher

from clozelab import embed
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.training.loop import Step

torch.set_num_threads(1)
# Objectives, blocks and masks of the recipe on the left, the encoder of the one above.
MATRIX = """
                    bert albert gpt xlnet elmo modernbert mosaicbert neobert deberta
bert                 x     x     x    x    .       x          x         x       x
roberta              x     x     x    x    .       x          x         x       x
spanbert             x     x     x    x    .       x          x         x       x
albert               x     x     x    x    .       x          x         x       x
electra              x     x     x    .    .       x          x         x       x
deberta              x     x     x    .    .       x          x         x       x
diffusion            x     x     x    x    .       x          x         x       x
causal_then_masked   x     x     x    .    .       x          x         x       x
gpt_bert             x     x     x    .    .       x          x         x       x
distilbert           x     x     x    x    .       x          x         x       x
minilm               x     x     x    .    .       x          x         x       x
gpt                  x     .     x    .    .       x          x         x       x
xlnet                .     .     .    x    .       .          .         .       .
elmo                 .     .     .    .    x       .          .         .       .
"""
ENCODERS, *ROWS = (line.split() for line in MATRIX.strip().splitlines())
PAIRS = {
    (row[0], there): mark == "x"
    for row in ROWS
    for there, mark in zip(ENCODERS, row[1:], strict=True)
}


def joined(objectives: str, encoder: str) -> Recipe:
    """One recipe with the encoder of another, which reads in the direction of the first."""
    recipe, other = shrunk(objectives), shrunk(encoder).encoder
    directions = {"causal": recipe.encoder.causal, "memory": recipe.encoder.memory}
    known = {setting.name for setting in fields(other)}
    parts: list[Any] = [
        replace(part, start="random") if getattr(part, "start", None) == "spread" else part
        for part in recipe.objectives
    ]
    return replace(
        recipe,
        encoder=replace(other, **{key: value for key, value in directions.items() if key in known}),
        objectives=tuple(parts),
    )


@pytest.mark.parametrize(("objectives", "encoder"), [pair for pair in PAIRS if PAIRS[pair]])
def test_what_makes_sense_trains_and_loads(objectives: str, encoder: str, tmp_path: Path) -> None:
    recipe, data = joined(objectives, encoder), [store(STORES[objectives])]
    if any(part.needs_teacher for part in recipe.objectives):
        job = starting.taught(recipe, teacher(), data=data, seed=0, sized=True)
    else:
        job = starting.fresh(recipe, data=data, seed=0)
    steps = of_kind(Step, run_pretraining(job, tmp_path / "run"))
    named = {kind for step in steps for kind in step.sums}
    assert len(steps) == 4 and len(named) == len(recipe.objectives)
    assert all(math.isfinite(sums["loss"]) for step in steps for sums in step.sums.values())
    model = load(str(tmp_path / "run"))
    assert model.recipe == job.recipe
    assert embed(model, ["A small text."]).vectors.shape[1] == model.recipe.encoder.vector_width


@pytest.mark.parametrize(("objectives", "encoder"), [pair for pair in PAIRS if not PAIRS[pair]])
def test_the_rest_is_refused_in_a_sentence(objectives: str, encoder: str) -> None:
    with pytest.raises(
        UserError, match=rf"^{objectives}: (objective|schedule\.causal) .*; (or )?(use|set) "
    ):
        joined(objectives, encoder)
