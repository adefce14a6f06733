"""Merge the folders of studies whose cells were run on different days or machines.

Cells of different seeds or variants are joined. What cannot be compared is refused: another recipe,
fine-tuning, amount of training, size, corpus or task file, and a cell with two different results.
Paths may differ between machines; corpora and task files are identified by their digests.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from clozelab.config.renamed import first_keys
from clozelab.errors import UserError
from clozelab.files import LOCK, mark, new_folder, write_text
from clozelab.nearest import listed
from clozelab.runs.directory import PLAN, STUDY, Run
from clozelab.studies import spec
from clozelab.studies.folder import COMMON, KIND, portable
from clozelab.studies.power import claim_powers
from clozelab.studies.records import StudyRecord, packed_files, read
from clozelab.studies.request import Cell, name_of
from clozelab.studies.scores import named_task
from clozelab.studies.spec import Claim, StudySpec, Variant

_COMMON = {**COMMON, "study": ("name",)}  # what is equal for all cells is in their plans
_TABLES = ("steps", "paces", "tuning_seconds", "cannot", "plateau", "items", "power", "made")
T = TypeVar("T")


@dataclass(frozen=True)
class _Part:
    """One of the folders to merge."""

    record: StudyRecord
    planned: Mapping[Cell, dict[str, Any]]  # as plan.json has them
    results: Mapping[Cell, dict[str, Any]]  # as result.json has them
    packed: Mapping[str, str]  # the packed files of its cells

    @property
    def folder(self) -> Path:
        return self.record.folder

    def came(self, cell: Cell) -> int:
        """2 if a cell is done, 1 if it failed, else 0."""
        return 1 + (self.results[cell]["failed"] is None) if cell in self.results else 0


def merge(folders: Sequence[Path], out: Path, *, study: str | None = None) -> None:
    """Merge the cells of some studies into a new folder.

    `study` is the name or the file of the study, from which claims that compare variants of two
    parts are taken; by default it is the packaged study of that name, if there is one.
    """
    parts = [_read_part(folder) for folder in folders]
    if len(parts) < 2:
        raise UserError(f"{len(parts)} study cannot be merged; name two folders or more")
    for first, other in combinations(parts, 2):
        if first.folder.samefile(other.folder):
            raise UserError(f"{other.folder}: is named twice; name each folder once")
        _check_comparable(first, other)
    owners = _owners(parts)
    merged = _merged_spec(parts, len({cell.seed for cell in owners}), study)
    order = [variant.name for variant in merged.variants]
    cells = sorted(owners, key=lambda cell: (cell.seed, order.index(cell.variant)))
    plans = [part.record.plan for part in parts]
    tables = {name: _merge_first(plan.get(name, {}) for plan in plans) for name in _TABLES}
    plan = {
        **plans[0],
        **tables,
        "data": _merge_data([plan.get("data", []) for plan in plans]),
        "power": _powers(merged, tables, size=plans[0].get("size")),
        "cells": [owners[cell].planned[cell] for cell in cells],
        "parts": [one for part in parts for one in _part_records(part, owners)],
    }
    results = [owners[cell].results[cell] for cell in cells if owners[cell].came(cell)]
    with new_folder(out) as place:
        for cell in cells:
            _copy(owners[cell], cell, place)
        write_text(place / STUDY, spec.to_toml(merged))
        write_text(place / PLAN, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        Run(place).write_result({"study": merged.name, "cells": results})
        mark(place, KIND)


def _read_part(folder: Path) -> _Part:
    record = read(folder)
    lists = record.plan.get("cells", []), (Run(folder).result() or {}).get("cells", [])
    planned, results = (
        {Cell(one["variant"], int(one["seed"])): one for one in cells} for cells in lists
    )
    if not results:
        raise UserError(f"{folder}: has no finished cell; leave it out")
    return _Part(record, planned, results, packed_files(folder))


def _check_comparable(first: _Part, other: _Part) -> None:
    words = [*_differences(first, other)]
    if words:
        raise UserError(
            f"{other.folder}: has another {listed(words, conjunction='and')} than"
            f" {first.folder}; only cells of the same experiment can be merged"
        )


def _differences(first: _Part, other: _Part) -> Iterator[str]:
    """Yield the names of settings in which two parts differ."""
    studies = first.record.study, other.record.study
    plans = first.record.plan, other.record.plan
    for word, names in _COMMON.items():
        if studies[0].differs(studies[1], names):
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
    """Yield the name of each run's corpus in the study, and its recorded fingerprints."""
    for (variant, _), run in part.record.runs.items():
        if (fingerprint := run.machine.get("fingerprint")) is not None:
            name = part.record.study.variant(variant).data or ""
            yield name, [fingerprint] if isinstance(fingerprint, str) else fingerprint


def _owners(parts: Sequence[_Part]) -> dict[Cell, _Part]:
    """The part that each planned cell is taken from: the one in which it got furthest."""
    owners: dict[Cell, _Part] = {}
    for part in parts:
        for cell in part.planned:
            earlier = owners.setdefault(cell, part)
            if part.came(cell) > earlier.came(cell):
                owners[cell] = part
            elif part.came(cell) == 2 and _outcome(part, cell) != _outcome(earlier, cell):
                raise UserError(
                    f"{cell.name}: is in {earlier.folder} and in {part.folder}, with different"
                    " results; remove one of them"
                )
    return owners


def _outcome(part: _Part, cell: Cell) -> list[Any]:
    return [part.results[cell].get(name) for name in ("scores", "steps", "tokens")]


def _merge_first(tables: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Merge tables; of several entries of a name the first is kept."""
    merged = dict[str, T]()
    for table in tables:
        merged |= {key: value for key, value in table.items() if key not in merged}
    return merged


def _merge_data(parts: Sequence[Sequence[str]]) -> list[str]:
    """The corpora of all parts; those without a name, and those of each, are the first's."""
    merged = list[str]()
    for words in parts:
        known = {name_of(word) for word in merged}
        merged += [word for word in words if name_of(word) not in known]
    return merged


def _powers(
    merged: StudySpec, tables: Mapping[str, Mapping[str, Any]], *, size: str | None
) -> dict[str, Any]:
    """The power of each claim as stated, or that of all seeds if it was stated for fewer."""
    powers = dict[str, Any]()
    for one in claim_powers(merged, size=size, sizes=tables["items"]):
        name = one.claim.comparison
        if (stated := tables["power"].get(name)) is not None:
            powers[name] = stated if stated.get("seeds") == one.seeds else one.as_json()
    return powers


def _merged_spec(parts: Sequence[_Part], seeds: int, study: str | None) -> StudySpec:
    """The study of the first part, with the variants, tasks and claims of the others added."""
    studies = [part.record.study for part in parts]
    first = studies[0]
    name = study or (first.name if first.name in spec.names() else None)
    source = [] if name is None else [spec.read(name)]
    variants = _merge_first({one.name: one for one in each.variants} for each in studies)
    order = dict.fromkeys(one.name for each in (*source, *studies) for one in each.variants)
    tasks = ({named_task(task, place=each.name): task for task in each.tasks} for each in studies)
    merged = replace(
        first,
        seeds=seeds,
        variants=tuple(variants[name] for name in order if name in variants),
        tasks=tuple(_merge_first(tasks).values()),
        measures=tuple(dict.fromkeys(measure for one in studies for measure in one.measures)),
    )
    claims = list[Claim]()
    for each in (*studies, *source):
        known = {name for claim in claims for name in _claim_names(claim)}
        fitting = [claim for claim in each.claims if _has_variants(claim, each, merged)]
        claims += [claim for claim in fitting if not known & _claim_names(claim)]
    return replace(merged, claims=tuple(claims)).narrowed()


def _claim_names(claim: Claim) -> set[str]:
    """What identifies a claim: its words, and its comparison, since the words may change."""
    return {f"{claim.better} {claim.against} {claim.says}", claim.comparison}


def _has_variants(claim: Claim, study: StudySpec, merged: StudySpec) -> bool:
    """Whether the merged study has the variants of a claim unchanged."""
    known = {variant.name: _settings_only(variant) for variant in merged.variants}
    sides = [study.variant(side) for side in (claim.better, claim.than) if side]
    return all(known.get(side.name) == _settings_only(side) for side in sides)


def _settings_only(variant: Variant) -> Variant:
    words = first_keys(variant.set), first_keys(variant.finetune)
    return replace(variant, says="", paper={}, set=words[0], finetune=words[1])


def _part_records(part: _Part, owners: Mapping[Cell, _Part]) -> Iterator[dict[str, Any]]:
    """Yield the record of a part with its cells, or of the parts that it was merged from."""
    own = [cell for cell in part.results if owners.get(cell) is part]
    for earlier in part.record.plan.get("parts", []):
        yield {**earlier, "cells": [c.name for c in own if c.name in earlier["cells"]]}
        own = [cell for cell in own if cell.name not in earlier["cells"]]
    if own:
        runs = [part.record.runs.get((cell.variant, cell.seed)) for cell in own]
        machines = [run.machine for run in runs if run is not None]
        yield {
            "folder": part.folder.name,
            "commit": _joined(one.get("commit", one.get("clozelab")) for one in machines),
            "machine": _joined(one.get("gpu") or one.get("platform") for one in machines),
            "cells": [cell.name for cell in own],
        }


def _joined(words: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(word) for word in words if word is not None))


def _copy(part: _Part, cell: Cell, out: Path) -> None:
    """Copy the files of a cell with its weights; packed files are unpacked."""
    place = cell.folder(Path())
    for name, text in part.packed.items():
        if Path(name).is_relative_to(place):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(out / name, text)
    if (part.folder / place).is_dir():
        ignored = shutil.ignore_patterns(f"{LOCK}*", "*.part")
        shutil.copytree(part.folder / place, out / place, ignore=ignored, dirs_exist_ok=True)
