"""A study's folder as its page needs it: what was asked, and what each cell came to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.reporting.gathering import Pretraining, pretraining
from clozelab.runs.directory import MEASURED, PLAN, STUDY, Run, read_json
from clozelab.studies import spec as studies
from clozelab.studies.scores import named_task
from clozelab.studies.spec import Study, Variant


@dataclass(frozen=True)
class Outcome:
    """What one cell, a variant from a seed, came to and cost."""

    variant: str
    seed: int
    scores: Mapping[str, float]  # "task.metric", "held_out.objective": what was measured
    cost: Mapping[str, float]  # tokens, steps, seconds, flops, parameters, tuning_seconds
    failed: str | None = None
    shared: bool = False  # the pretraining is another variant's, which is the same

    @property
    def minutes(self) -> float:
        """What it took beyond what another cell had taken."""
        own = 0.0 if self.shared else self.cost.get("seconds", 0.0)
        return (own + self.cost.get("tuning_seconds", 0.0)) / 60


@dataclass(frozen=True)
class Evidence:
    """A study, done or under way."""

    folder: Path
    study: Study
    plan: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    runs: Mapping[tuple[str, int], Pretraining]  # those that were begun, by variant and seed
    base_masks: bool = False  # the loss on masked tokens is under the base's masks, not their own

    @property
    def variants(self) -> list[Variant]:
        """Those that were planned, in the study's order."""
        planned = {cell["variant"] for cell in self.plan.get("cells", [])}
        return [one for one in self.study.variants if not planned or one.name in planned]

    @property
    def planned(self) -> int:
        """How many cells there are to be."""
        return len(self.plan.get("cells", [])) or len(self.study.variants) * self.study.seeds

    @property
    def equal(self) -> str:
        """What every cell had the same of; a budget of tokens or steps goes before the study."""
        planned = str(self.plan.get("equal", self.study.equal))
        return {"seconds": "time"}.get(planned, planned)

    @property
    def ended(self) -> bool:
        """Whether no cell is left to do; one that failed may be tried again."""
        return len(self.outcomes) >= self.planned

    @property
    def done(self) -> list[Outcome]:
        """The cells that came to their end."""
        return [one for one in self.outcomes if one.failed is None]

    @property
    def failed(self) -> list[Outcome]:
        """The cells that did not, and are not under way again."""
        return [one for one in self.outcomes if one.failed is not None]

    def of(self, variant: str, measure: str) -> dict[int, float]:
        """A variant's values of a measure, by seed; a cell without one leaves a gap."""
        mine = [one for one in self.outcomes if one.variant == variant]
        return {one.seed: one.scores[measure] for one in mine if measure in one.scores}

    def measures(self) -> list[str]:
        """What was or is to be compared: task by task, losses after the scores."""
        names = [*self.study.measures]
        names += [name for claim in self.study.claims for name in claim.on]
        names += [name for one in self.outcomes for name in one.scores]
        order = [named_task(task, place=self.study.name) for task in self.study.tasks]

        def place(name: str) -> tuple[bool, int]:
            task = name.partition(".")[0]
            return is_loss(name), order.index(task) if task in order else len(order)

        return sorted(dict.fromkeys(names), key=place)

    def changed(self) -> set[str]:
        """The settings, by dotted key, in which some variant's recipe is not the first's."""
        first, *others = [self.recipe(one) for one in self.variants]
        return {key for one in others for key, _, _ in recipes.difference(first, one)}

    def recipe(self, variant: Variant) -> Recipe:
        """A variant's recipe as its first run had it, or as it would be."""
        for (name, _), run in self.runs.items():
            if name == variant.name:
                return run.recipe
        return self.study.recipe_of(variant, size=self.plan.get("size"))


def gathered(folder: Path) -> Evidence:
    """What a study's folder holds by now."""
    if not (folder / STUDY).is_file():
        raise UserError(f"{folder}: is no study, it has no {STUDY}; name the folder of a study")
    plan = _read(folder / PLAN)
    study = studies.read(folder / STUDY)
    outcomes = tuple(_outcomes((Run(folder).result() or {}).get("cells", [])))
    told = [read_json(file) for file in folder.glob(f"cells/*/*/{MEASURED}")]
    base_masks = any(one.get("base_masks") for one in told)
    return Evidence(folder, study, plan, outcomes, dict(_runs(folder, study)), base_masks)


def is_loss(measure: str) -> bool:
    """Whether less of it is better."""
    return measure.startswith("held_out.")


def unit(measure: str) -> str:
    """What a measure is counted in."""
    return "nats" if is_loss(measure) else "points"


def label(measure: str) -> str:
    """A measure as a column is headed."""
    words = measure.replace("_", " ").replace(".", " ")
    return f"{words.replace('held out', 'held-out')} loss" if is_loss(measure) else words


def _outcomes(cells: list[dict[str, Any]]) -> Iterator[Outcome]:
    for cell in cells:
        # A score that is no number (a loss that ran away) was not measured.
        scores = {name: one for name, one in (cell.get("scores") or {}).items() if one is not None}
        names = ("tokens", "steps", "seconds", "flops", "parameters", "tuning_seconds")
        cost = {name: float(cell[name]) for name in names if cell.get(name) is not None}
        variant, seed, failed = cell["variant"], int(cell["seed"]), cell.get("failed")
        shared = cell.get("pretrained_by", variant) != variant
        yield Outcome(variant, seed, scores, cost, failed, shared=shared)


def _runs(folder: Path, study: Study) -> Iterator[tuple[tuple[str, int], Pretraining]]:
    """The pretrainings by variant and seed; one whose log was left behind has only its recipe."""
    for variant in study.variants:
        found = {
            int(file.parent.name.removeprefix("seed-")): file.parent
            for file in (folder / "cells" / variant.name).glob("seed-*/recipe.toml")
        }
        for seed in sorted(found):
            yield (variant.name, seed), pretraining(found[seed], f"{variant.name} {seed}")


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise UserError(f"{file}: cannot be read; run the study again, which writes it") from None
