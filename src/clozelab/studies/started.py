"""What a study's folder was begun with: the same may go on in it, and nothing that is not alike.

Seeds, variants, tasks and measures may be added, or left out for a time. What has a name keeps its
meaning: a variant, a task or a corpus that has changed since would stand for two things on a page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.files import claim, is_own, kind_of, locked, mark
from clozelab.finetuning.request import refuse_changed
from clozelab.runs.directory import PLAN, STUDY
from clozelab.studies import spec as studies
from clozelab.studies.pace import Pace
from clozelab.studies.request import Request
from clozelab.studies.scores import named_task
from clozelab.studies.spec import Study
from clozelab.text.store.mixture import open_stores

KINDS = {"tokens": "tokens", "steps": "steps", "time": "seconds"}
_KIND = "study"  # by its marker
_FILE = "file "  # what a task's file begins with among what was made
_ASKED = ("size", "data", "task_data", "budget")


@dataclass(frozen=True)
class Begun:
    """What later cells have from the first ones."""

    kind: str
    amount: float
    paces: Mapping[str, Pace]
    tuning: Mapping[str, float]
    made: Mapping[str, str]


def made(request: Request) -> dict[str, str]:
    """What every variant, task and corpus of a request is, by what they are called."""
    study = request.study
    names = [variant.name for variant in study.variants]
    marks = {f"variant {name}": request.mark(name) for name in names}
    marks |= {f"protocol of {name}": request.protocol(name) for name in names}
    marks |= {f"task {named_task(task, place=study.name)}": task for task in study.tasks}
    for data in request.tasks().values():
        marks |= {f"{_FILE}{file}": digest for file, digest in data.digests().items()}
    for name in names:
        for corpus, _ in open_stores(request.stores(name)):
            marks[f"corpus {corpus.path}"] = corpus.manifest["fingerprint"]
    return marks


def begun(request: Request, out: Path | None) -> Begun | None:
    """What was begun in a folder, if it was this study; None where nothing was."""
    if out is None or not out.exists():
        return None
    if not out.is_dir():
        raise UserError(f"{out}: is a file; name a new or empty folder")
    if not (out / PLAN).exists():
        other = [file for file in out.iterdir() if not is_own(file)]
        if other and kind_of(out) != _KIND and not _only_study(out):
            raise UserError(f"{out}: has other files in it; name a new or empty folder")
        return None
    try:
        kept = dict(json.loads((out / PLAN).read_text(encoding="utf-8")))
        study = studies.read(out / STUDY)
        asked = {word: kept[word] for word in _ASKED}
        found = Begun(
            _kind(kept["equal"]),
            float(kept["amount"]),
            {name: _pace(one) for name, one in kept["paces"].items()},
            {name: float(seconds) for name, seconds in kept["tuning_seconds"].items()},
            dict(kept.get("made", {})),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        raise UserError(f"{out}: its plan cannot be read; name another folder by --out") from None
    changed = [word for word in _ASKED if asked[word] != _plain(getattr(request, word))]
    changed += _changes(study, request.study)
    now = made(request)
    changed = changed or [
        what
        for what, word in found.made.items()
        if now.get(what, word) != word and not what.startswith(_FILE)
    ]
    if changed:
        raise UserError(
            f"{out}: was started with another {', '.join(changed)}; name another folder by --out"
        )
    refuse_changed(files_of(found.made), files_of(now), since=f"{out} was started")
    return found


def files_of(made: Mapping[str, str]) -> dict[str, str]:
    """The digests of the tasks' files, of what was `made`."""
    return {what[len(_FILE) :]: word for what, word in made.items() if what.startswith(_FILE)}


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep a second study out of the folder; one with anything else in it is refused."""
    whole = (out / PLAN).exists() and (out / STUDY).exists()
    if kind_of(out) is None and (whole or _only_study(out)):
        mark(out, _KIND)  # made before there were markers
    claim(out, _KIND)
    with locked(out, work="study"):
        yield


def _only_study(out: Path) -> bool:
    """Whether a crash at the very beginning left the study, and no plan."""
    names = {file.name for file in out.iterdir() if not is_own(file)} if out.is_dir() else set()
    return STUDY in names and names <= {STUDY, f".{STUDY}.part", f".{PLAN}.part"}


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _kind(word: str) -> str:
    if word not in KINDS.values():
        raise ValueError(word)
    return word


def _pace(told: Mapping[str, Any]) -> Pace:
    timed = told["seconds_a_step"]
    return Pace(
        float(told["tokens_a_step"]),
        float(told["flops_a_token"]),
        None if timed is None else float(timed),
    )


def _changes(before: Study, now: Study) -> list[str]:
    """What all variants have in common, and a folder cannot have of two kinds."""
    alike: dict[str, Callable[[Study], Any]] = {
        "recipe": lambda one: (one.recipe, one.set),
        "study": lambda one: (one.name, one.equal),
        "finetune": lambda one: one.finetune,
    }
    return [word for word, of in alike.items() if of(before) != of(now)]
