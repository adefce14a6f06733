"""Run directories as a report needs them: curves over tokens, scores over seeds, recipes, costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.runs.directory import PLAN, STUDY, Entry, Run
from clozelab.text.tokenizers import part_of
from clozelab.text.vocabulary import load

Points = list[tuple[float, float]]  # (tokens, value)


@dataclass(frozen=True)
class Pretraining:
    """One run of a recipe."""

    name: str
    folder: Path
    recipe: Recipe
    machine: dict[str, Any]
    steps: int
    tokens: int
    seconds: float
    train: dict[str, Points]  # the loss of each objective
    held_out: dict[str, Points]
    last: dict[str, dict[str, float]]  # what was measured last on held-out text
    limited_by: str | None  # feed, host, memory or arithmetic; runs of old do not say
    changes: Sequence[Entry] = ()  # of its machine's settings, with their steps
    tokenizer_known: bool = True  # else the recipe has the one that was asked for

    @property
    def done(self) -> bool:
        """Whether it took all its steps."""
        return self.steps >= self.recipe.schedule.total


@dataclass(frozen=True)
class Trials:
    """The fine-tunings of one model on one task, by cell and seed."""

    name: str
    order: dict[str, Any]  # what they have in common, as plan.json has it
    machine: dict[str, Any]
    cells: list[dict[str, Any]]
    seconds: dict[str, dict[int, float]]  # by cell and seed; 0 where it diverged

    @property
    def data(self) -> tuple[str, str | None, str | None]:
        """What they learn: the task, and the files of one's own."""
        data = self.order["data"]
        return data["task"], data["train"], data["dev"]


def gather(places: Iterable[Path]) -> tuple[list[Pretraining], list[Trials]]:
    """The runs at some places; a folder of runs stands for all of them."""
    folders: list[Path] = []
    for place in places:
        found = _folders(place)
        if not found:
            raise UserError(
                f"{place}: no run is here; name folders that pretrain or finetune made, or folders"
                " of such"
            )
        folders += found
    runs: list[Pretraining] = []
    trials: list[Trials] = []
    for folder, name in _named(folders):
        if (folder / PLAN).exists():
            trials += _trials(folder, name)
        else:
            runs.append(pretraining(folder, name))
    if not (runs or trials):
        raise UserError("nothing is done yet: wait until a run has a result")
    return runs, trials


def _named(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Each folder once, with as much of its path as tells it from the others."""
    parts = {one.resolve().parts: one for one in folders}
    for mine, folder in parts.items():
        length = 1
        while sum(one[-length:] == mine[-length:] for one in parts) > 1:
            length += 1
        yield folder, str(Path(*mine[-length:]))


def _folders(place: Path) -> list[Path]:
    """The runs at or right below a place; a study is none of them."""
    if (place / STUDY).exists():
        raise UserError(f"{place}: is a study, which has a page of its own; name it alone")
    if _is_run(place):
        return [place]
    inside = sorted(path for path in place.glob("*") if path.is_dir())
    return [one for one in inside if _is_run(one) and not (one / STUDY).exists()]


def _is_run(place: Path) -> bool:
    return (place / PLAN).exists() or (place / "recipe.toml").exists()


def pretraining(folder: Path, name: str) -> Pretraining:
    """One run, as far as it is, under a name."""
    run = Run.open(folder)
    recipe, known = _recipe(run)
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
        name=name,
        folder=folder,
        recipe=recipe,
        machine=run.machine(),
        steps=max([result.get("steps", 0), *at]),
        tokens=result.get("tokens", total),
        seconds=result.get("seconds", seconds),
        train=_curves([one for one in entries if one["kind"] == "step"], at),
        held_out=_curves(held, at),
        last={k: v for k, v in held[-1].items() if isinstance(v, dict)} if held else {},
        limited_by=result.get("limited_by"),
        changes=[
            entry for entry in entries if entry["kind"] == "changed" and entry.get("settings")
        ],
        tokenizer_known=known,
    )


def _recipe(run: Run) -> tuple[Recipe, bool]:
    """The recipe, and whether its tokenizer is the corpus's: runs of old recorded what was asked.

    Their checkpoints have the corpus's, where they are there.
    """
    recipe = recipes.parse(run.recipe(), str(run.recipe_file))
    if run.machine().get("tokenizer") == recipe.tables()["tokenizer"]["use"]:
        return recipe, True
    saved = sorted(run.checkpoints.glob("step-*/tokenizer.json"))
    try:
        tokenizer = load(saved[-1])
    except (IndexError, UserError):
        return recipe, False
    known = part_of(tokenizer) is not None
    return recipe.reading(tokenizer, vocabulary=recipe.tokenizer.vocabulary), known


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


def _trials(folder: Path, name: str) -> list[Trials]:
    """Nothing while they are not all done."""
    result = Run(folder).result()
    if result is None:
        return []
    seconds = {
        cell["name"]: {
            int(file.parent.name.removeprefix("seed-")): (Run(file.parent).result() or {}).get(
                "seconds", 0.0
            )
            for file in (folder / cell["name"]).glob("seed-*/result.json")
        }
        for cell in result["cells"]
    }
    return [
        Trials(
            name=name,
            order=json.loads((folder / PLAN).read_text(encoding="utf-8")),
            machine=Run(folder / result["best"]).machine(),
            cells=result["cells"],
            seconds=seconds,
        )
    ]
