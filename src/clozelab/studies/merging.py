"""Studies in several folders as one: their cells were done on other days, or on other machines.

Cells of other seeds or variants are joined. What cannot be compared is refused: another recipe,
fine-tuning, amount of training, size, corpus or task file, and a cell that came out in two ways.
Paths may differ from machine to machine; corpora and task files are known by their digests.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.files import LOCK, mark, new_folder, write_text
from clozelab.nearest import listed
from clozelab.runs.directory import PLAN, STUDY, Run
from clozelab.studies import spec
from clozelab.studies.folder import KIND, portable
from clozelab.studies.records import StudyRecord, packed_files, read
from clozelab.studies.request import Cell
from clozelab.studies.scores import named_task
from clozelab.studies.spec import Claim, StudySpec, Variant

# What one page cannot have twice, beside the variants: the word for it, the fields of the study.
_COMMON = {
    "study": ("name",),
    "recipe": ("recipe", "set"),
    "finetune": ("finetune", "tunings"),
    "number of held-out blocks": ("blocks",),
}
_AMOUNTS = ("steps", "paces", "tuning_seconds", "cannot", "plateau", "items", "made")


@dataclass(frozen=True)
class _Part:
    """One of the folders."""

    record: StudyRecord
    results: Mapping[Cell, dict[str, Any]]  # as result.json has them
    packed: Mapping[str, str]  # the files of its cells that are in one file

    @property
    def folder(self) -> Path:
        return self.record.folder

    def cells(self) -> dict[Cell, int]:
        """Every cell that was started: 2 if it is done, 1 if it failed, else 0."""
        cells = dict.fromkeys((Cell(*place) for place in self.record.runs), 0)
        return cells | {cell: 1 + (one["failed"] is None) for cell, one in self.results.items()}


def merge(folders: Sequence[Path], out: Path, *, study: str | None = None) -> None:
    """Join the cells of some studies in a new folder.

    `study` is the name or the file of the study: claims that compare variants of two parts are
    taken from it. Without it they are those of the packaged study of that name, if there is one.
    """
    parts = [_read(folder) for folder in folders]
    if len(parts) < 2:
        raise UserError(f"{len(parts)} study is nothing to merge; name two folders or more")
    for number, other in enumerate(parts):
        for earlier in parts[:number]:
            _refuse_another(earlier, other)
    owners = _owners(parts)
    merged = _merged_spec(parts, sorted({cell.seed for cell in owners}), study)
    order = {variant.name: number for number, variant in enumerate(merged.variants)}
    cells = sorted(owners, key=lambda cell: (cell.seed, order[cell.variant]))
    plan = _merged_plan(parts, owners, cells)
    results = [owners[cell].results[cell] for cell in cells if cell in owners[cell].results]
    with new_folder(out) as place:
        for cell in cells:
            _copy(owners[cell], cell, place)
        write_text(place / STUDY, spec.to_toml(merged))
        write_text(place / PLAN, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        Run(place).write_result({"study": merged.name, "cells": results})
        mark(place, KIND)


def _read(folder: Path) -> _Part:
    record = read(folder)
    results = (Run(folder).result() or {}).get("cells", [])
    cells = {Cell(one["variant"], int(one["seed"])): one for one in results}
    part = _Part(record, cells, packed_files(folder))
    if not part.cells() or not record.plan:
        raise UserError(f"{folder}: has no cell that was started; leave it out")
    return part


def _refuse_another(first: _Part, other: _Part) -> None:
    words = [*_differences(first, other)]
    if words:
        raise UserError(
            f"{other.folder}: has another {listed(words, conjunction='and')} than {first.folder};"
            " only cells of one and the same experiment can be merged"
        )


def _differences(first: _Part, other: _Part) -> Iterator[str]:
    """In words, what makes the cells of two parts incomparable."""
    studies, plans = (
        (first.record.study, other.record.study),
        (first.record.plan, other.record.plan),
    )
    for word, names in _COMMON.items():
        if any(getattr(studies[0], name) != getattr(studies[1], name) for name in names):
            yield word
    if plans[0].get("size") != plans[1].get("size"):
        yield "size"
    if any(plans[0].get(name) != plans[1].get(name) for name in ("equal", "amount")):
        amounts = [f"{plan.get('amount', 0):,.6g} {plan.get('equal')}" for plan in plans]
        yield f"amount of training a cell ({amounts[1]}, not {amounts[0]})"
    yield from _conflicts(*(portable(plan.get("made", {})) for plan in plans))
    steps = _conflicts(*(plan.get("steps", {}) for plan in plans))
    yield from (f"number of steps of {name}" for name in steps)
    if _conflicts(*(dict(_corpora(part)) for part in (first, other))):
        yield "corpus"


def _conflicts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in one if name in other and one[name] != other[name]]


def _corpora(part: _Part) -> Iterator[tuple[str, Any]]:
    """By the name that variants give to their corpus, the fingerprints that their runs recorded."""
    for (variant, _), run in part.record.runs.items():
        if (found := run.machine.get("fingerprint")) is not None:
            name = part.record.study.variant(variant).data or ""
            yield name, [found] if isinstance(found, str) else found


def _owners(parts: Sequence[_Part]) -> dict[Cell, _Part]:
    """The part that each cell is taken from: where it is done, or came furthest."""
    owners: dict[Cell, _Part] = {}
    for part in parts:
        for cell, came in part.cells().items():
            earlier = owners.get(cell)
            if earlier is None or came > earlier.cells()[cell]:
                owners[cell] = part
            elif came == 2 and _outcome(part, cell) != _outcome(earlier, cell):
                raise UserError(
                    f"{cell.name}: is in {earlier.folder} and in {part.folder}, with different"
                    " results; remove one of them"
                )
    return owners


def _outcome(part: _Part, cell: Cell) -> list[Any]:
    return [part.results[cell].get(name) for name in ("scores", "steps", "tokens")]


def _merged_spec(parts: Sequence[_Part], seeds: Sequence[int], study: str | None) -> StudySpec:
    """The study of the first part with what the others have beyond it."""
    studies = [part.record.study for part in parts]
    first = studies[0]
    name = study or (first.name if first.name in spec.names() else None)
    source = None if name is None else spec.read(name)
    variants = {variant.name: variant for one in reversed(studies) for variant in one.variants}
    order = [one.name for one in (*(source.variants if source else ()), *first.variants)]
    names = dict.fromkeys([*(name for name in order if name in variants), *variants])
    merged = replace(
        first,
        seeds=len(seeds),
        variants=tuple(variants[name] for name in names),
        tasks=tuple({named_task(t, place=s.name): t for s in studies for t in s.tasks}.values()),
        measures=tuple(dict.fromkeys(measure for one in studies for measure in one.measures)),
    )
    claims: dict[object, Claim] = {}
    for one in (*studies, *([source] if source else [])):
        for claim in one.claims:
            if _fits(claim, one, merged):
                claims.setdefault((claim.better, claim.against, claim.says), claim)
    return replace(merged, claims=tuple(claims.values())).narrowed()


def _fits(claim: Claim, study: StudySpec, merged: StudySpec) -> bool:
    """Whether a claim of a study is about variants that the merged one has unchanged."""
    known = {variant.name: _bare(variant) for variant in merged.variants}
    sides = [study.variant(side) for side in (claim.better, claim.than) if side]
    return all(known.get(side.name) == _bare(side) for side in sides)


def _bare(variant: Variant) -> Variant:
    return replace(variant, says="", paper={})


def _merged_plan(
    parts: Sequence[_Part], owners: Mapping[Cell, _Part], cells: Sequence[Cell]
) -> dict[str, Any]:
    """The plan of the first part with the cells and the costs of all."""
    plans = [part.record.plan for part in parts]
    planned = {
        Cell(one["variant"], int(one["seed"])): one for plan in plans for one in plan["cells"]
    }
    whole = [*cells, *(cell for cell in planned if cell not in owners)]
    folder = {cell: {"variant": cell.variant, "seed": cell.seed} for cell in whole}
    common = {
        name: {key: value for plan in reversed(plans) for key, value in plan.get(name, {}).items()}
        for name in _AMOUNTS
    }
    return {
        **plans[0],
        **common,
        "cells": [
            planned.get(cell, {**folder[cell], "folder": str(cell.folder(Path()))})
            for cell in whole
        ],
        "parts": [one for part in parts for one in _parts(part, owners)],
    }


def _parts(part: _Part, owners: Mapping[Cell, _Part]) -> Iterator[dict[str, Any]]:
    """A folder with the cells taken from it; of one that was merged before, its own parts."""
    own = {cell.name: cell for cell, owner in owners.items() if owner is part}
    for earlier in part.record.plan.get("parts", []):
        names = [name for name in earlier["cells"] if own.pop(name, None)]
        yield {**earlier, "cells": names}
    if own:
        runs = [part.record.runs.get((cell.variant, cell.seed)) for cell in own.values()]
        machines = [run.machine for run in runs if run is not None]
        yield {
            "folder": part.folder.name,
            "commit": _values(one.get("commit", one.get("clozelab")) for one in machines),
            "machine": _values(one.get("gpu") or one.get("platform") for one in machines),
            "cells": [*own],
        }


def _values(words: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(word) for word in words if word is not None))


def _copy(part: _Part, cell: Cell, out: Path) -> None:
    """Copy the files of a cell, weights included; packed ones become loose."""
    place = cell.folder(Path())
    for name, text in part.packed.items():
        if Path(name).is_relative_to(place):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(out / name, text)
    if (part.folder / place).is_dir():
        ignored = shutil.ignore_patterns(f"{LOCK}*", "*.part")
        shutil.copytree(part.folder / place, out / place, ignore=ignored, dirs_exist_ok=True)
