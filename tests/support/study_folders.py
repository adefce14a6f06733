"""A study's folder with made-up numbers, as `clozelab study` leaves it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.runs.directory import PLAN, STUDY, Run
from clozelab.studies import spec as studies

TEXT = """
title = "Static against dynamic masking"
question = "Do fresh masks in every epoch help over ten fixed copies?"
[paper]
name = "RoBERTa"
source = "arXiv:1907.11692v1, Table 1"
[base]
recipe = "bert"
tasks = ["sst2", "mnli"]
measures = ["held_out.masked_lm"]
[[variants]]
name = "static"
says = "ten fixed copies"
[variants.paper]
"sst2.accuracy" = 92.5
"mnli.accuracy" = 84.3
"squad2.f1" = 78.3
[[variants]]
name = "dynamic"
says = "fresh masks in every epoch"
set = ["corruption.copies=0"]
[variants.paper]
"sst2.accuracy" = 92.9
"mnli.accuracy" = 84.0
"squad2.f1" = 78.7
[[variants]]
name = "single"
says = "one copy <b>for ever</b>"
set = ["corruption.copies=1"]
[[claims]]
better = "dynamic"
than = "static"
on = ["sst2.accuracy", "mnli.accuracy"]
says = "Dynamic masking is comparable to or slightly better than static (§4.1)."
[[claims]]
better = "static"
than = "single"
on = ["sst2.accuracy", "held_out.masked_lm"]
says = "Several copies are better than one."
[[claims]]
better = "single"
than = "dynamic"
on = ["sst2.accuracy"]
says = "Made up, to be refuted."
"""

Scores = Mapping[str, Sequence[Mapping[str, float] | None]]  # by variant and seed; None: not done

# dynamic is a little above static, single is far below both.
SCORES: Scores = {
    "static": [
        {"sst2.accuracy": 88.1, "mnli.accuracy": 70.0, "held_out.masked_lm": 2.95},
        {"sst2.accuracy": 87.5, "mnli.accuracy": 70.6, "held_out.masked_lm": 2.97},
        {"sst2.accuracy": 88.4, "mnli.accuracy": 69.7, "held_out.masked_lm": 2.94},
    ],
    "dynamic": [
        {"sst2.accuracy": 88.6, "mnli.accuracy": 70.1, "held_out.masked_lm": 2.93},
        {"sst2.accuracy": 88.3, "mnli.accuracy": 70.5, "held_out.masked_lm": 2.94},
        {"sst2.accuracy": 88.5, "mnli.accuracy": 70.2, "held_out.masked_lm": 2.92},
    ],
    "single": [
        {"sst2.accuracy": 84.0, "mnli.accuracy": 66.0, "held_out.masked_lm": 3.31},
        {"sst2.accuracy": 83.6, "mnli.accuracy": 66.2, "held_out.masked_lm": 3.35},
        {"sst2.accuracy": 84.3, "mnli.accuracy": 65.8, "held_out.masked_lm": 3.30},
    ],
}


def study(
    folder: Path,
    *,
    scores: Scores = SCORES,
    failed: Mapping[tuple[str, int], str] | None = None,
    begun: Sequence[tuple[str, int]] = (),
    text: str = TEXT,
    seeds: int = 3,
) -> Path:
    """The folder; cells without scores are not done, those `begun` have half of a run."""
    folder.mkdir(parents=True)
    (folder / STUDY).write_text(text, encoding="utf-8")
    spec = studies.read(folder / STUDY)
    planned, cells = [], []
    for seed in range(seeds):
        for variant in spec.variants:
            place = f"cells/{variant.name}/seed-{seed}"
            cell = {"variant": variant.name, "seed": seed}
            planned.append({**cell, "folder": place, "predicted_seconds": 60})
            variant_scores = scores.get(variant.name, [])
            mine = variant_scores[seed] if seed < len(variant_scores) else None
            why = (failed or {}).get((variant.name, seed))
            if mine is not None:
                loss = mine.get("held_out.masked_lm", 3.0)
                pretraining(folder / place, spec.recipe_of(variant, size="tiny"), seed, loss)
            elif (variant.name, seed) in begun:
                recipe = spec.recipe_of(variant, size="tiny")
                pretraining(folder / place, recipe, seed, 3.5, share=0.5)
            if mine is not None or why is not None:
                cells.append({**cell, "scores": mine or {}, "failed": why, **cost(seed)})
    plan: dict[str, Any] = {"size": "tiny", "data": ["corpus:1"], "budget": "30m"}
    plan["items"] = {
        name: 10**9 for name in ("sst2", "mnli", "held_out")
    }  # noise is of seeds alone
    plan |= {"tokens_a_cell": 4_000_000, "steps": 40, "at_once": 1, "cells": planned}
    (folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
    if cells:
        Run(folder).write_result({"study": spec.name, "cells": cells})
    return folder


def cost(seed: int) -> dict[str, float]:
    """What a cell took."""
    totals = {"tokens": 4_000_000, "steps": 40, "seconds": 90.0 + seed}
    return {**totals, "flops": 2.4e15, "parameters": 4_400_000}


def pretraining(
    folder: Path, recipe: recipes.Recipe, seed: int, loss: float, *, share: float = 1.0
) -> None:
    """A run whose loss falls to `loss`, or a part of one."""
    facts = {"seed": seed, "data": ["corpus:1"], "torch": "2", "device": "cpu", "commit": "abc"}
    run = Run.create(folder, recipe_toml=recipes.to_toml(recipe), machine=facts)
    for step in range(1, round(40 * share) + 1):
        now = {"loss": loss + 6 / step + 0.02 * seed}
        metrics = {"tokens": 100_000, "seconds": 2.0, "masked_lm": now}
        run.append({"kind": "step", "step": step, **metrics})
        if step % 4 == 0:
            run.append({"kind": "held_out", "step": step, "masked_lm": now})
    if share == 1:
        run.write_result({"steps": 40, "tokens": 4_000_000, "seconds": 80.0})
