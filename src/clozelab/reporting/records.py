"""The runs that a page is about: pretraining runs, and fine-tunings by task, grid cell and seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.runs.directory import PLAN, STUDY, TASK, Run, is_run, runs_by_seed, runs_in
from clozelab.runs.record import RunRecord, read_run

# What reading a record raises that was damaged after we wrote it.
DAMAGED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class FinetuneRecord:
    """The fine-tunings of one model on one task."""

    name: str
    order: dict[str, Any]  # their common settings, as in plan.json
    machine: dict[str, Any]
    cells: list[dict[str, Any]]  # of the grid, as in result.json
    seconds: dict[str, dict[int, float]]  # by cell and seed; 0 if it diverged
    constant: Mapping[str, float] = field(default_factory=dict)  # scores of a constant answer

    @property
    def data(self) -> tuple[str, str | None, str | None]:
        """The task, and the training and dev files if they are the user's own."""
        data = self.order["data"]
        return data["task"], data["train"], data["dev"]


def gather(places: Iterable[Path]) -> tuple[list[RunRecord], list[FinetuneRecord]]:
    """The runs in some folders; a folder of runs stands for all of them."""
    runs: list[RunRecord] = []
    tunings: list[FinetuneRecord] = []
    for folder, name in named([folder for place in places for folder in _run_folders(place)]):
        if (folder / PLAN).exists():
            tunings += finetunings(folder, name)
        else:
            runs.append(read_run(Run.open(folder), name))
    if not (runs or tunings):
        raise UserError("no run is done yet; wait until one has a result")
    return runs, tunings


def named(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Each folder once, with as much of its path as makes its name unique."""
    paths = {folder.resolve().parts: folder for folder in folders}
    for path, folder in paths.items():
        length = 1
        while sum(other[-length:] == path[-length:] for other in paths) > 1:
            length += 1
        yield folder, str(Path(*path[-length:]))


def _run_folders(place: Path) -> list[Path]:
    """The runs at a place or right below it, without studies."""
    if (place / STUDY).exists():
        raise UserError(f"{place}: is a study, which gets a page of its own; name only this study")
    if (place / TASK).exists() and not (place / PLAN).exists():
        raise UserError(
            f"{place}: is one seed of a fine-tuning run; name the folder of all its seeds"
        )
    runs = [place] if is_run(place) else runs_in(place)
    if not runs:
        raise UserError(
            f"{place}: has no run; name folders made by pretrain or finetune, or a folder of these"
        )
    return runs


def finetunings(folder: Path, name: str) -> Iterator[FinetuneRecord]:
    """The fine-tunings in a folder, once all of them are done."""
    result = Run(folder).result()
    if result is None:
        return
    seconds: dict[str, dict[int, float]] = {}
    for cell in result["cells"]:
        seconds[cell["name"]] = {
            seed: done.get("seconds", 0.0)
            for seed, run in runs_by_seed(folder / cell["name"]).items()
            if (done := run.result()) is not None
        }
    yield FinetuneRecord(
        name=name,
        order=json.loads((folder / PLAN).read_text(encoding="utf-8")),
        machine=Run(folder / result["best"]).machine(),
        cells=result["cells"],
        seconds=seconds,
        constant=dict(result.get("constant", {})),
    )
