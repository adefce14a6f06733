"""Run directories as a report needs them: curves over tokens, scores over seeds, recipes, costs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab import recipe as recipes
from clozelab.contracts import UserError
from clozelab.recipe import Recipe
from clozelab.records import PLAN, Entry, Run

Points = list[tuple[float, float]]  # (tokens, value)


@dataclass(frozen=True)
class Pretraining:
    """One run of a recipe."""

    name: str
    recipe: Recipe
    machine: dict[str, Any]
    steps: int
    tokens: int
    seconds: float
    train: dict[str, Points]  # the loss of each objective
    held_out: dict[str, Points]
    last: dict[str, dict[str, float]]  # what was measured last on held-out text

    @property
    def done(self) -> bool:
        """Whether it took all its steps."""
        return self.steps >= self.recipe.schedule.steps


@dataclass(frozen=True)
class Tuning:
    """The fine-tunings of one model on one task, by cell and seed."""

    name: str
    task: str
    model: str
    fresh: bool  # from random weights
    settings: dict[str, Any]
    machine: dict[str, Any]
    cells: list[dict[str, Any]]
    best: str
    seconds: float


def gather(places: Iterable[Path]) -> tuple[list[Pretraining], list[Tuning]]:
    """The runs at some places; a folder of runs stands for all of them."""
    runs: list[Pretraining] = []
    tunings: list[Tuning] = []
    for place in places:
        found = False
        for folder in _folders(place):
            found = True
            if (folder / PLAN).exists():
                tunings += _tuning(folder)
            else:
                runs.append(_pretraining(folder))
        if not found:
            raise UserError(
                f"{place}: no run is here; name folders that pretrain or finetune made, or folders"
                " of such"
            )
    if not (runs or tunings):
        raise UserError("nothing is done yet: wait until a run has a result")
    return runs, tunings


def _folders(place: Path) -> Iterable[Path]:
    """The runs at or right below a place."""
    if (place / PLAN).exists() or (place / "recipe.toml").exists():
        return [place]
    inside = sorted(path for path in place.glob("*") if path.is_dir())
    return [one for one in inside if (one / PLAN).exists() or (one / "recipe.toml").exists()]


def _pretraining(folder: Path) -> Pretraining:
    run = Run.open(folder)
    recipe = recipes.parse(run.recipe(), str(run.recipe_file))
    entries = run.entries()
    at: dict[int, int] = {}  # tokens after each step that was logged
    seconds, total = 0.0, 0
    for entry in (one for one in entries if one["kind"] == "step"):
        total += entry.get("tokens", 0)
        seconds += entry.get("seconds", 0.0)
        at[entry["step"]] = total
    held = [entry for entry in entries if entry["kind"] == "held_out"]
    result = run.result() or {}
    if total and "tokens" in result:  # a log that was thinned tells of some of them
        at = {step: round(seen * result["tokens"] / total) for step, seen in at.items()}
    return Pretraining(
        name=folder.name,
        recipe=recipe,
        machine=run.machine(),
        steps=max([result.get("steps", 0), *at]),
        tokens=result.get("tokens", total),
        seconds=result.get("seconds", seconds),
        train=_curves([one for one in entries if one["kind"] == "step"], at),
        held_out=_curves(held, at),
        last={k: v for k, v in held[-1].items() if isinstance(v, dict)} if held else {},
    )


def _curves(entries: list[Entry], at: dict[int, int]) -> dict[str, Points]:
    """Each objective's loss over the tokens seen."""
    found: dict[str, Points] = {}
    for entry in entries:
        for name, one in entry.items():
            if isinstance(one, dict) and one.get("loss") is not None:
                found.setdefault(name, []).append((_near(at, entry["step"]), one["loss"]))
    return found


def _near(at: dict[int, int], step: int) -> float:
    """The tokens after a step; a thinned log tells of its neighbours."""
    if step in at:
        return float(at[step])
    before = max((one for one in at if one <= step), default=None)
    return float(at[before]) if before is not None else 0.0


def _tuning(folder: Path) -> list[Tuning]:
    """Nothing while its runs are not all done."""
    result = Run(folder).result()
    if result is None:
        return []
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    best = Run(folder / result["best"])
    seconds = [
        (Run(one.parent).result() or {}).get("seconds", 0.0)
        for one in folder.glob("**/result.json")
        if one.parent != folder
    ]
    return [
        Tuning(
            name=folder.name,
            task=result["task"],
            model=str(plan["model"]),
            fresh=bool(plan["fresh"]),
            settings=dict(plan["tuning"]),
            machine=best.machine(),
            cells=result["cells"],
            best=result["best"],
            seconds=sum(seconds),
        )
    ]
