"""Read the folder of a study: its plan, and what each cell scored and cost.

A study leaves its cells as loose folders. A recorded study has them packed in one file, which is
read instead; a study that is continued is unpacked first.
"""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import compress, decompress

import numpy as np
from numpy.typing import NDArray

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.renamed import recorded
from clozelab.errors import UserError
from clozelab.files import check_writable, is_own, locked, write_text
from clozelab.runs.diagnostics import FOUND, LEFT
from clozelab.runs.directory import CELLS, MEASURED, PLAN, STUDY, Run, runs_by_seed, seed_of
from clozelab.runs.record import RunRecord, read_run
from clozelab.studies import spec
from clozelab.studies.request import Cell
from clozelab.studies.scores import is_loss, named_task
from clozelab.studies.spec import StudySpec, Variant

PACKED = "cells.jsonl"  # all cells, a line for each of their files: {"file": …, "text": …}
COSTS = ("tokens", "steps", "seconds", "flops", "parameters", "tuning_seconds")


@dataclass(frozen=True)
class CellResult:
    """What one cell, a variant with a seed, scored and cost."""

    variant: str
    seed: int
    scores: Mapping[str, float]  # by measure, as in sst2.accuracy or held_out.masked_lm
    cost: Mapping[str, float]  # by the names of COSTS
    failed: str | None = None
    diverged: bool = False  # it failed because a loss or a gradient was not finite
    shared: bool = False  # its pretraining is that of another variant
    constant: Mapping[str, float] = field(default_factory=dict)  # scores of a constant answer

    @property
    def minutes(self) -> float:
        """Its time; shared pretraining counts only for the variant that did it."""
        own = 0.0 if self.shared else self.cost.get("seconds", 0.0)
        return (own + self.cost.get("tuning_seconds", 0.0)) / 60


@dataclass(frozen=True)
class StudyRecord:
    """A study, done or under way."""

    folder: Path
    study: StudySpec
    plan: Mapping[str, Any]
    cells: tuple[CellResult, ...]  # those that are done or have failed
    runs: Mapping[tuple[str, int], RunRecord]  # those that were started, by variant and seed
    measured: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def variants(self) -> list[Variant]:
        """The variants that were planned, in the order of the study."""
        names = {cell.variant for cell in self.planned}
        return [one for one in self.study.variants if one.name in names]

    @cached_property
    def planned(self) -> list[Cell]:
        """The cells of the plan; without a plan, every variant with every seed."""
        if cells := self.plan.get("cells"):
            return [Cell(cell["variant"], int(cell["seed"])) for cell in cells]
        seeds = range(self.study.seeds)
        return [Cell(one.name, seed) for one in self.study.variants for seed in seeds]

    @property
    def equal(self) -> str:
        """What is equal for all cells; a budget of tokens or steps overrides the study."""
        planned = str(self.plan.get("equal", self.study.equal))
        return {"seconds": "time"}.get(planned, planned)

    @property
    def ended(self) -> bool:
        """Whether every cell is done or has failed."""
        return len(self.cells) >= len(self.planned)

    @property
    def done(self) -> list[CellResult]:
        """The cells that did not fail."""
        return [cell for cell in self.cells if cell.failed is None]

    @property
    def failed(self) -> list[CellResult]:
        """The cells that failed."""
        return [cell for cell in self.cells if cell.failed is not None]

    @property
    def base_masks(self) -> bool:
        """Whether the masked-LM loss was measured under the masks of the base."""
        return any(one.get("base_masks") for one in self.measured.values())

    def scores(self, variant: str, measure: str) -> dict[int, float]:
        """The values of a measure for a variant, by seed."""
        cells = [cell for cell in self.cells if cell.variant == variant]
        if measure == "run.finished":
            return {cell.seed: 100.0 * (cell.failed is None) for cell in cells}
        if measure == "run.left_plateau":
            limit, ends = self.plateau(variant), self._final_losses(variant)
            known = [cell for cell in cells if limit and (cell.failed or cell.seed in ends)]
            stuck = [*self.on_plateau(variant), *self.blind(variant)]
            return {
                cell.seed: 100.0 * (cell.seed in ends and cell.seed not in stuck) for cell in known
            }
        return {cell.seed: cell.scores[measure] for cell in cells if measure in cell.scores}

    def items(
        self, variant: str, measure: str, seeds: Iterable[int]
    ) -> dict[int, NDArray[np.float64]]:
        """The scores of a variant's items, by seed; empty if those of a seed are missing."""
        words = {
            seed: self.measured.get((variant, seed), {}).get("items", {}).get(measure)
            for seed in seeds
        }
        if None in words.values():
            return {}
        return {seed: unpacked_items(word) for seed, word in words.items()}

    @cached_property
    def sizes(self) -> dict[str, float]:
        """The number of items of each task or measure, of whichever variant has it."""
        return self._sizes_of([*self.measured])

    def sizes_of(self, variant: str) -> dict[str, float]:
        """The number of items of each task or measure of a variant; masks and blocks may differ."""
        return self.sizes | self._sizes_of(
            [place for place in self.measured if place[0] == variant]
        )

    def _sizes_of(self, places: Iterable[tuple[str, int]]) -> dict[str, float]:
        sizes: dict[str, float] = dict(self.plan.get("items", {}))
        for place in sorted(places):
            sizes |= self.measured[place].get("sizes", {})
        return sizes

    def plateau(self, variant: str) -> float | None:
        """The loss of the unigram plateau (frequencies and copying only), if the plan has it."""
        level = self.plan.get("plateau", {}).get(variant)
        return None if level is None else float(level)

    def on_plateau(self, variant: str) -> dict[int, float]:
        """The losses, by seed, of a variant's runs that did not leave the plateau."""
        limit = self.plateau(variant)
        if limit is None:
            return {}
        return {seed: x for seed, x in self._final_losses(variant).items() if x > LEFT * limit}

    def blind(self, variant: str) -> list[int]:
        """The seeds of a variant's runs whose detector knows only how many tokens are replaced."""
        found = {seed: run.found_replaced for seed, run in self._finished(variant).items()}
        return [seed for seed, share in found.items() if share is not None and share < FOUND]

    def _final_losses(self, variant: str) -> dict[int, float]:
        """The final losses of a variant's finished runs, by seed."""
        final = {seed: run.reached for seed, run in self._finished(variant).items()}
        return {seed: loss for seed, loss in final.items() if loss is not None}

    def _finished(self, variant: str) -> dict[int, RunRecord]:
        """The runs of a variant's finished cells, by seed."""
        done = {cell.seed for cell in self.cells if cell.variant == variant}
        runs = self.runs.items()
        return {seed: run for (name, seed), run in runs if name == variant and seed in done}

    @property
    def constant(self) -> dict[str, float]:
        """The scores of a constant answer, by measure, if recorded."""
        return {name: score for cell in self.cells for name, score in cell.constant.items()}

    def measures(self) -> list[str]:
        """The names of all measures: the scores task by task, then the losses."""
        names = [*self.study.measures]
        names += [name for claim in self.study.claims for name in claim.on]
        names += [name for cell in self.cells for name in cell.scores]
        tasks = [named_task(task, place=self.study.name) for task in self.study.tasks]

        def rank(name: str) -> tuple[bool, int]:
            task = name.partition(".")[0]
            return is_loss(name), tasks.index(task) if task in tasks else len(tasks)

        return sorted(dict.fromkeys(names), key=rank)

    def changed(self) -> set[str]:
        """The settings, by dotted key, in which some recipe differs from the first variant's."""
        first, *others = [self.recipe(variant) for variant in self.variants]
        return {key for other in others for key, _, _ in recipes.difference(first, other)}

    def recipe(self, variant: Variant) -> Recipe:
        """The recipe of a variant, as its first run recorded it or as it would be."""
        for (name, _), run in self.runs.items():
            if name == variant.name:
                return run.recipe
        return self.study.recipe_of(variant, size=self.plan.get("size"))


def check(folder: Path) -> None:
    """Refuse a folder that is not a study."""
    if not (folder / STUDY).is_file():
        raise UserError(
            f"{folder}: is not a study, because it has no {STUDY}; name the folder of a study"
        )


def read(folder: Path) -> StudyRecord:
    """The study in a folder, its cells loose or packed."""
    check(folder)
    with recorded():
        study = spec.read(folder / STUDY)
    cells = _started_cells(folder)
    order = [variant.name for variant in study.variants]
    runs = {
        (variant, seed): read_run(cells[variant, seed], f"{variant} {seed}")
        for variant in order
        for seed in sorted(seed for name, seed in cells if name == variant)
    }
    measured = {place: _read_measured(run) for place, run in cells.items()}
    results = (Run(folder).result() or {}).get("cells", [])
    done = _cell_results(results)
    return StudyRecord(folder, study, _read_plan(folder / PLAN), done, runs, measured)


def parts_line(parts: Sequence[Mapping[str, Any]]) -> str:
    """The studies that one was merged from: commit, machine and cells of each."""
    lines = [f"{p['commit'] or '–'}, {p['machine'] or '–'}, {len(p['cells'])}" for p in parts]
    return f"cells from {len(parts)} parts (commit, machine, cells): {'; '.join(lines)}"


def pack(folder: Path) -> None:
    """Pack the loose cells of a study into one file; binary files are refused."""
    check(folder)
    check_writable(folder)
    with locked(folder, work="study"):
        texts = packed_files(folder)
        for file in (folder / CELLS).rglob("*"):
            if file.is_file() and not is_own(file):
                texts[file.relative_to(folder).as_posix()] = _read_text(file)
        lines = (
            json.dumps({"file": name, "text": texts[name]}, ensure_ascii=False) + "\n"
            for name in sorted(texts)
        )
        write_text(folder / PACKED, "".join(lines))
        shutil.rmtree(folder / CELLS, ignore_errors=True)


def unpack(folder: Path) -> None:
    """Unpack the cells of a study; files that exist already are newer and stay."""
    for name, text in packed_files(folder).items():
        file = folder / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, text)
    (folder / PACKED).unlink(missing_ok=True)


@dataclass(frozen=True)
class _PackedRun(Run):
    """A run whose files are in the packed file."""

    texts: Mapping[str, str] = field(default_factory=dict)  # by name

    def read(self, name: str) -> bytes:
        if name not in self.texts:
            raise FileNotFoundError(self.path / name)
        return self.texts[name].encode()


def packed_items(items: Sequence[float]) -> str:
    """The scores of items at half precision, compressed and in base64."""
    return b64encode(compress(np.asarray(items, np.float16).tobytes())).decode()


def unpacked_items(word: str) -> NDArray[np.float64]:
    """The scores of `packed_items`."""
    return np.frombuffer(decompress(b64decode(word)), np.float16).astype(np.float64)


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{file}: is not text, but only records can be packed; remove the weights first"
        ) from None


def packed_files(folder: Path) -> dict[str, str]:
    """The texts in the packed file, by their path in the folder."""
    file = folder / PACKED
    if not file.exists():
        return {}
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        texts = {str(line["file"]): str(line["text"]) for line in lines}
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{file}: cannot be read; restore it from a copy") from None
    for name in texts:
        if not name.startswith(f"{CELLS}/") or ".." in Path(name).parts:
            raise UserError(f"{file}: {name} is not in {CELLS}/; restore it from a copy")
    return texts


def _started_cells(folder: Path) -> dict[tuple[str, int], Run]:
    """The cells that were started, by variant and seed, loose or packed."""
    texts: dict[Path, dict[str, str]] = {}
    for name, text in packed_files(folder).items():
        file = Path(name)
        texts.setdefault(file.parent, {})[file.name] = text
    runs: dict[tuple[str, int], Run] = {}
    for place, files in texts.items():
        seed = seed_of(place)
        if seed is not None and place.parent.parent == Path(CELLS) and "recipe.toml" in files:
            runs[place.parent.name, seed] = _PackedRun(folder / place, texts=files)
    for variant in (folder / CELLS).glob("*"):
        for seed, run in runs_by_seed(variant).items():
            if run.recipe_file.is_file():
                runs[variant.name, seed] = run
    return runs


def _read_measured(run: Run) -> dict[str, Any]:
    """The contents of measured.json; empty if it is missing or incomplete."""
    try:
        return dict(json.loads(run.read(MEASURED)))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _cell_results(cells: list[dict[str, Any]]) -> tuple[CellResult, ...]:
    return tuple(
        CellResult(
            variant=cell["variant"],
            seed=int(cell["seed"]),
            # A score that is not finite, as of a diverged run, counts as not measured.
            scores={k: v for k, v in (cell.get("scores") or {}).items() if v is not None},
            cost={name: float(cell[name]) for name in COSTS if cell.get(name) is not None},
            failed=cell.get("failed"),
            diverged=cell.get("diverged", _says_diverged(cell.get("failed"))),
            shared=cell.get("pretrained_by", cell["variant"]) != cell["variant"],
            constant=dict(cell.get("constant") or {}),
        )
        for cell in cells
    )


def _says_diverged(failed: str | None) -> bool:
    """Whether the message of a failure, all that old records have, is that of a divergence."""
    return failed is not None and re.search(r"diverged| is (nan|-?inf)\b", failed) is not None


def _read_plan(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError):
        raise UserError(f"{file}: cannot be read; run the study again to write it") from None
