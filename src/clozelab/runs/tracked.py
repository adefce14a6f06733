"""What trackers get of a run: its settings, its numbers by step, its result."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from clozelab.config.tables import flat
from clozelab.errors import UserError
from clozelab.runs.directory import CELLS, PLAN, STUDY, TASK, Run
from clozelab.tracking import NONE, TrackedRun, numbers

# In machine.toml: the trackers that have the run, and the id by which each knows it.
_KEY = "tracking"
_NAMES = {"step": "train"}  # of kinds of entries, where trackers use another
_EVENTS = ("step", "held_out", "general", "dev", "probe")


def recorded(run: Run) -> list[str]:
    """The trackers that a run is logged to."""
    return list(run.machine().get(_KEY, {}))


def begin_tracking(
    run: Run, names: Sequence[str], *, tags: Sequence[str] = (), anew: Sequence[str] = ()
) -> dict[str, TrackedRun]:
    """Record that a run is logged to these trackers; returns what each gets to know of it."""
    before = {name: id for name, id in run.machine().get(_KEY, {}).items() if name not in anew}
    ids = {name: str(before.get(name) or uuid4().hex[:8]) for name in names if name != NONE}
    run.remember({_KEY: ids})
    described = _describe(run, tags)
    return {name: replace(described, id=identity) for name, identity in ids.items()}


def _describe(run: Run, tags: Sequence[str]) -> TrackedRun:
    """The description of a run, read from its files."""
    config = {**_tables(run.recipe_text()), **_machine(run)}
    if (run.path / TASK).exists():
        task = _tables(run.read(TASK).decode())
        config |= {f"task.{key}": value for key, value in task.items()}
    path = run.path.resolve()
    group = next((folder for folder in path.parents[:2] if (folder / PLAN).exists()), None)
    verb = "pretrain" if group is None else "finetune"
    return TrackedRun(
        folder=run.path,
        name=path.name if group is None else str(path.relative_to(group.parent)),
        id="",
        config=config,
        tags=[verb, *[str(config["name"])] * ("name" in config), *tags],
        group=None if group is None else group.name,
    )


def entry_numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log entry, under their names in trackers."""
    own = {name: value for name, value in values.items() if name not in ("kind", "step")}
    return numbers(own, _NAMES.get(kind, kind))


def rows(run: Run) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the recorded numbers of a run by step, and its result at the last."""
    entries = [entry for entry in run.events() if entry["kind"] in _EVENTS]
    entries.sort(key=lambda entry: int(entry["step"]))
    last = entries[-1]["step"] if entries else 0
    for entry in entries:
        yield entry["step"], entry_numbers(entry["kind"], entry)
    if (result := run.result()) is not None:
        yield last, numbers(result, "result")


def runs_at(place: Path) -> list[Run]:
    """The runs at a place: one run, the trials of a fine-tuning, or the cells of a study."""
    if (place / "recipe.toml").exists():
        return [Run.open(place)]
    if (place / STUDY).exists():
        place = place / CELLS
    folders = sorted(file.parent for file in place.glob("**/recipe.toml"))
    inside = [folder.relative_to(place).parts for folder in folders]
    # A checkpoint has a recipe, too.
    runs = [Run(place.joinpath(*parts)) for parts in inside if "checkpoints" not in parts]
    if not runs:
        raise UserError(f"{place}: has no run; name a folder made by pretrain or finetune")
    return runs


def _tables(text: str) -> dict[str, Any]:
    return dict(flat(tomllib.loads(text)))


def _machine(run: Run) -> dict[str, Any]:
    facts = {name: fact for name, fact in run.machine().items() if name != _KEY}
    return {f"machine.{name}": value for name, value in flat(facts)}
