"""The commands that reproduce runs, from their records."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from clozelab.config.toml import written
from clozelab.reporting.records import FinetuneRecord
from clozelab.runs.record import RunRecord


def pretrain(run: RunRecord) -> str:
    """The command that pretrains or distils with the resolved recipe, the same data and seed."""
    data, recipe = run.machine.get("data") or ["CORPUS"], str(run.folder / "recipe.toml")
    if teacher := run.machine.get("teacher"):
        # Settings of its layers that are not set here would be the teacher's.
        kept = {"layers", "types", *run.recipe.encoder.block_settings}
        encoder = run.recipe.tables()["encoder"].items()
        settings = [f"encoder.{key}={written(value)}" for key, value in encoder if key in kept]
        words = ["clozelab", "distil", teacher, "--recipe", recipe, *_each("--set", settings)]
    else:
        words = ["clozelab", "pretrain", recipe]
    words += _each("--data", data)
    if begun := run.machine.get("from"):
        words += ["--from", begun]
    words += ["--seed", str(run.machine.get("seed", 0))]
    words += ["--out", f"again/{run.name}"]
    return shlex.join(words)


def finetune(record: FinetuneRecord) -> Iterator[str]:
    """One command for each grid that was tried, with its seeds."""
    grids: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in record.cells:
        grids.setdefault(tuple(cell["settings"]), []).append(cell)
    for cells in grids.values():
        words = [*_request_words(record.order), *_grid(cells), *_seeds(record, cells)]
        yield shlex.join([*words, "--out", f"again/{record.name}"])


def _request_words(order: dict[str, Any]) -> Iterator[str]:
    """The words of the command that all runs have in common."""
    data = order["data"]
    yield from ("clozelab", "finetune", order["model"], data["task"])
    options = {
        "--task-data": data["root"],
        "--train": data["train"],
        "--dev": data["dev"],
        "--protocol": order["protocol"],
        "--teacher": order["teacher"],
    }
    for name, value in options.items():
        if value is not None:
            yield from (name, value)
    yield from _each("--columns", data["columns"])
    yield from _each("--set", order["settings"])
    if order["fresh"]:
        yield "--fresh"


def _grid(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The options of the grid: every value with a result, so not all seeds diverged."""
    for number, key in enumerate(cells[0]["settings"]):
        values = dict.fromkeys(written(cell["settings"][key]) for cell in cells)
        yield from (*(["--grid"] if not number else []), f"{key}={','.join(values)}")


def _seeds(record: FinetuneRecord, cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The options of the seeds, from first to last, including diverged ones."""
    seeds = {seed for cell in cells for seed in record.seconds[cell["name"]]}
    seeds |= {int(seed) for cell in cells for seed in cell["seeds"]}
    yield from ("--seed", str(min(seeds)), "--seeds", str(max(seeds) - min(seeds) + 1))


def _each(name: str, values: Sequence[str]) -> Iterator[str]:
    for value in values:
        yield from (name, value)
