"""Plans that are kept beside a corpus: columns of numbers, written once, mapped by every process.

plans/DIGEST/   the columns of a plan, named by a digest of its purpose
  work/         its pieces, while it is made
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from clozelab import files
from clozelab.contracts import PlanStretch
from clozelab.errors import UserError
from clozelab.remote import cache
from clozelab.text.store import columns
from clozelab.text.store.corpus import Corpus
from clozelab.text.store.pieces import SharedPieces

VERSION = 2  # of the files and of every format: raise it when other blocks are planned
_KIND = "plan"
_WORK = "work"

Program = Callable[[SharedPieces], Iterable[PlanStretch]]
Helper = Callable[[Path, Mapping[str, Any]], AbstractContextManager[None]]


@dataclass(frozen=True)
class KeptPlan:
    """A plan that is kept beside a corpus."""

    path: Path
    purpose: Mapping[str, Any]  # empty if it is unfinished or damaged
    bytes: int
    used: datetime  # when it was last opened or written

    def __repr__(self) -> str:
        what = ", ".join(f"{name} {value}" for name, value in self.purpose.items())
        return f"{self.bytes / 1e6:,.1f} MB, used {self.used:%d %B %Y}: {what or 'unfinished'}"

    def remove(self) -> None:
        """Remove its files, unless it is being written. Processes that mapped them can read on.

        The folder remains, with the lock that others may wait for.
        """
        with files.locked(self.path, work="process"):
            _clear(self.path)
            (self.path / files.MARKER).unlink()


def listed(corpus: Corpus) -> list[KeptPlan]:
    """The plans that are kept for a corpus, the last used first."""
    folders = [path for path in _home(corpus).glob("*") if files.kind_of(path) == _KIND]
    return sorted(map(_described, folders), key=lambda plan: plan.used, reverse=True)


def load_or_write(
    corpus: Corpus, purpose: Mapping[str, Any], stretches: Program, *, helper: Helper | None = None
) -> PlanStretch:
    """The columns for a purpose, mapped; if they are missing or damaged, they are written first.

    One process writes, with helpers if there are any; others wait. Pieces that were finished before
    an interruption are not made again.
    """
    purpose = {"version": VERSION, "corpus": corpus.manifest["fingerprint"], **purpose}
    digest = sha256(json.dumps(purpose, sort_keys=True).encode()).hexdigest()
    folder = _home(corpus) / digest[:32]
    plan = _load_columns(corpus, folder, purpose)
    if plan is None:
        with _full_disk_error(corpus):
            folder.mkdir(parents=True, exist_ok=True)
            with files.locked(folder, wait=True):
                files.claim(folder, _KIND)
                plan = _load_columns(corpus, folder, purpose)
                plan = plan or _write_plan(folder, purpose, stretches, helper)
    return plan


def _load_columns(corpus: Corpus, folder: Path, purpose: Mapping[str, Any]) -> PlanStretch | None:
    """The columns in a folder, or None if unfinished; those for another purpose are refused."""
    entry = columns.read(folder)
    if entry is None:
        return None
    here, wanted = entry["purpose"], json.loads(json.dumps(purpose))
    others = [name for name, value in wanted.items() if here.get(name) != value]
    if others:
        raise UserError(
            f"{folder}: contains a plan for something else ({', '.join(others)} differ);"
            f" remove it: clozelab corpus plans {corpus.name} --remove"
        )
    return columns.mapped(folder)


def _home(corpus: Corpus) -> Path:
    """The folder of plans: in the corpus, or in the cache if the corpus cannot be written."""
    if os.access(corpus.root, os.W_OK):
        return corpus.root / "plans"
    return cache.home() / "plans" / str(corpus.manifest["fingerprint"])[:16]


def _write_plan(
    folder: Path, purpose: Mapping[str, Any], stretches: Program, helper: Helper | None
) -> PlanStretch:
    """Write the columns, some rows at a time, then their description.

    After an error everything is removed; after an interruption the finished pieces remain.
    """
    columns.clear(folder)
    pieces = SharedPieces(folder / _WORK)
    try:
        pieces.check()
        with helper(pieces.folder, purpose) if helper else nullcontext():
            columns.write(folder, stretches(pieces), purpose=purpose, lasting=True)
    except Exception:
        _clear(folder)
        raise
    shutil.rmtree(pieces.folder)
    plan = columns.mapped(folder, checksums=False)
    assert plan is not None
    return plan


def _clear(folder: Path) -> None:
    """Remove a plan's columns and the pieces it was made of."""
    columns.clear(folder)
    shutil.rmtree(folder / _WORK, ignore_errors=True)


def _described(folder: Path) -> KeptPlan:
    entry = columns.read(folder)
    stats = list(_stats(folder))
    used = datetime.fromtimestamp(max(stat.st_mtime for stat in stats), UTC)
    purpose = {} if entry is None else entry["purpose"]
    return KeptPlan(folder, purpose, sum(stat.st_size for stat in stats), used)


def _stats(folder: Path) -> Iterator[os.stat_result]:
    """Size and time of everything in a folder, in which another process may write and remove."""
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(place, name))


@contextmanager
def _full_disk_error(corpus: Corpus) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in files.FULL:
            raise
        raise UserError(
            f"no disk space left for the block plan in {_home(corpus)}; free some, or remove"
            f" old plans: clozelab corpus plans {corpus.name} --remove"
        ) from None
