"""The folder of a study: what it was started with, and the lock on it.

Seeds, variants, tasks and measures may be added, or left out for a time. A variant, a task or a
corpus that has changed under the same name is refused: results of both would be mixed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.config.renamed import recorded
from clozelab.errors import UserError
from clozelab.files import claim, is_own, kind_of, locked, mark, sha256
from clozelab.finetuning.request import refuse_changed
from clozelab.runs.directory import PLAN, STUDY
from clozelab.studies import measures, spec
from clozelab.studies.request import StudyRequest
from clozelab.studies.scores import named_task
from clozelab.studies.timing import Pace
from clozelab.text.store.corpus import open_stores

UNITS = {"tokens": "tokens", "steps": "steps", "time": "seconds"}  # by the study's `equal`
KIND = "study"  # in the marker of the folder
_FILE = "file "  # prefix of the names of task files in the fingerprints
_OPTIONS = ("size", "data", "task_data", "budget")
# Settings that must be the same for all cells of a folder: their name in errors, and fields.
COMMON = {
    "recipe": ("recipe", "set"),
    "study": ("name", "equal"),
    "finetune": ("finetune", "tunings"),
    "number of held-out blocks": ("blocks",),
}
Prints = Mapping[str, str]


@dataclass(frozen=True)
class SavedPlan:
    """The saved plan of a folder, which later cells follow."""

    unit: str
    amount: float
    at_once: int
    paces: Mapping[str, Pace]
    tuning_seconds: Mapping[str, float]
    fingerprints: Mapping[str, str]
    powers: Mapping[str, Mapping[str, Any]]  # of the claims, as stated before they were run
    parts: Sequence[Mapping[str, Any]]  # what it was merged from


def fingerprints(request: StudyRequest) -> dict[str, str]:
    """A fingerprint of every variant, protocol, task, task file and corpus, by name."""
    study = request.study
    names = [variant.name for variant in study.variants]
    prints = {f"variant {name}": request.fingerprint(name) for name in names}
    prints |= {f"protocol of {name}": request.protocol(name) for name in names}
    prints |= {f"task {named_task(task, place=study.name)}": task for task in study.tasks}
    for data in request.tasks().values():
        prints |= {f"{_FILE}{file}": digest for file, digest in data.digests().items()}
    for file in measures.own_files(request):
        prints[f"{_FILE}{file.resolve()}"] = sha256(file)
    for name in names:
        for corpus, _ in open_stores(request.stores(name)):
            prints[f"corpus {corpus.name}"] = corpus.manifest["fingerprint"]
    return prints


def saved_plan(request: StudyRequest, now: Prints, out: Path | None) -> SavedPlan | None:
    """The plan in a folder, checked against the request and its fingerprints; None if none yet."""
    if out is None or not out.exists():
        return None
    if not out.is_dir():
        raise UserError(f"{out}: is a file; name a new or empty folder")
    if not (out / PLAN).exists():
        other = [file for file in out.iterdir() if not is_own(file)]
        if other and kind_of(out) != KIND and not _has_only_spec(out):
            raise UserError(f"{out}: contains other files; name a new or empty folder")
        return None
    try:
        plan = dict(json.loads((out / PLAN).read_text(encoding="utf-8")))
        if plan["equal"] not in UNITS.values():
            raise ValueError(plan["equal"])
        with recorded():
            study = spec.read(out / STUDY)
        options = {name: plan[name] for name in _OPTIONS}
        saved = SavedPlan(
            plan["equal"],
            float(plan["amount"]),
            int(plan.get("at_once", 1)),
            {name: _pace(**pace) for name, pace in plan["paces"].items()},
            {name: float(seconds) for name, seconds in plan["tuning_seconds"].items()},
            dict(plan.get("made", {})),
            dict(plan.get("power", {})),
            list(plan.get("parts", [])),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        raise UserError(f"{out}: its plan cannot be read; name another folder with --out") from None
    requested = request.recorded()
    changed = [
        f"--{name.replace('_', '-')}"
        for name in _OPTIONS
        if options[name] != requested[name]
        and not _moved(name, (options[name], saved.fingerprints), (requested[name], now))
    ]
    changed += [word for word, names in COMMON.items() if study.differs(request.study, names)]
    changed = changed or [
        name
        for name, value in saved.fingerprints.items()
        if now.get(name, value) != value and not name.startswith(_FILE)
    ]
    if changed:
        raise UserError(
            f"{out}: was started differently ({', '.join(changed)}); name another folder with --out"
        )
    refuse_changed(task_files(saved.fingerprints), task_files(now), since=f"{out} was started")
    return saved


def portable(prints: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints without the corpora's, by names that do not depend on the machine."""
    tasks = {name: one.partition("=")[0] for name, one in prints.items() if name[:5] == "task "}
    rest = {k: v for k, v in prints.items() if k.startswith(("variant ", "protocol of "))}
    return {**rest, **tasks, **_digests_by_name(prints)}


def _digests_by_name(prints: Prints) -> dict[str, str]:
    """The digests of the tasks' files, by the last two parts of their paths."""
    files = task_files(prints).items()
    return {f"task file {'/'.join(Path(path).parts[-2:])}": digest for path, digest in files}


def _moved(option: str, before: tuple[Any, Prints], after: tuple[Any, Prints]) -> bool:
    """Whether corpora or tasks were moved, with the same contents."""
    if option == "data":
        return _with_fingerprints(*before) == _with_fingerprints(*after)
    known, now = (_digests_by_name(prints).items() for _, prints in (before, after))
    return option == "task_data" and len(now) > 0 and now <= known


def _with_fingerprints(words: Sequence[str], prints: Prints) -> list[str]:
    """DIR, DIR:WEIGHT or NAME=DIR with the corpus's fingerprint in place of its path."""
    paths = {name.removeprefix("corpus "): one for name, one in prints.items() if "corpus " in name}
    for path in sorted(paths, key=len, reverse=True):
        words = [word.replace(path, paths[path]) for word in words]
    return list(words)


def task_files(prints: Mapping[str, str]) -> dict[str, str]:
    """The digests of the tasks' files among the fingerprints."""
    return {name[len(_FILE) :]: one for name, one in prints.items() if name.startswith(_FILE)}


@contextmanager
def locked_folder(out: Path) -> Iterator[None]:
    """Lock the folder against a second process; a folder with other contents is refused."""
    planned = (out / PLAN).exists() and (out / STUDY).exists()
    if kind_of(out) is None and (planned or _has_only_spec(out)):
        mark(out, KIND)  # a folder from before there were markers
    claim(out, KIND)
    with locked(out, work="study"):
        yield


def _has_only_spec(out: Path) -> bool:
    """Whether the folder has a study but no plan, as after a crash at the start."""
    names = {file.name for file in out.iterdir() if not is_own(file)} if out.is_dir() else set()
    return STUDY in names and names <= {STUDY, f".{STUDY}.part", f".{PLAN}.part"}


def _pace(tokens_a_step: float, flops_a_token: float, seconds_a_step: float | None) -> Pace:
    seconds = None if seconds_a_step is None else float(seconds_a_step)
    return Pace(float(tokens_a_step), float(flops_a_token), seconds)
