"""The commands that make runs again, from their records."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from clozelab.config.toml import written
from clozelab.reporting.gathering import Pretraining, Trials


def pretrain(run: Pretraining) -> str:
    """The recipe as it was resolved, its steps and refits too, over the same data and seed."""
    data = run.machine.get("data") or ["CORPUS"]
    words = ["clozelab", "pretrain", str(run.folder / "recipe.toml"), *_each("--data", data)]
    words += ["--seed", str(run.machine.get("seed", 0))]
    words += ["--out", f"again/{run.name}"]
    return shlex.join(words)


def finetune(trials: Trials) -> Iterator[str]:
    """The order with its grid and seeds; where grids of several kinds were tried, each of them."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in trials.cells:
        kinds.setdefault(tuple(cell["settings"]), []).append(cell)
    for cells in kinds.values():
        words = [*_ordered(trials.order), *_grid(cells), *_seeds(trials, cells)]
        yield shlex.join([*words, "--out", f"again/{trials.name}"])


def _ordered(order: dict[str, Any]) -> Iterator[str]:
    """What all trials have in common."""
    data = order["data"]
    yield from ("clozelab", "finetune", order["model"], data["task"])
    single = {
        "--task-data": data["root"],
        "--train": data["train"],
        "--dev": data["dev"],
        "--protocol": order["protocol"],
        "--teacher": order["teacher"],
    }
    for name, value in single.items():
        if value is not None:
            yield from (name, value)
    yield from _each("--columns", data["columns"])
    yield from _each("--set", order["settings"])
    if order["fresh"]:
        yield "--fresh"


def _grid(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Every value that occurs; a value with which all seeds diverged does not."""
    for number, key in enumerate(cells[0]["settings"]):
        values = dict.fromkeys(written(cell["settings"][key]) for cell in cells)
        yield from (*(["--grid"] if not number else []), f"{key}={','.join(values)}")


def _seeds(trials: Trials, cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """From the first to the last, also those that diverged."""
    seeds = {seed for cell in cells for seed in trials.seconds[cell["name"]]}
    seeds |= {int(seed) for cell in cells for seed in cell["seeds"]}
    yield from ("--seed", str(min(seeds)), "--seeds", str(max(seeds) - min(seeds) + 1))


def _each(name: str, values: Sequence[str]) -> Iterator[str]:
    for value in values:
        yield from (name, value)
