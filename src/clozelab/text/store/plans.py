"""Plans that are kept beside a corpus: columns of numbers, written once, mapped by every process.

plans/DIGEST/   named by what it is for: its columns
  work/         its pieces, while it is made
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

VERSION = 1  # of the files and of every format: whatever plans other blocks must count it up
_KIND = "plan"
_WORK = "work"

Program = Callable[[SharedPieces], Iterable[PlanStretch]]
Helper = Callable[[Path, Mapping[str, Any]], AbstractContextManager[None]]


@dataclass(frozen=True)
class KeptPlan:
    """A plan that is kept beside a corpus."""

    path: Path
    purpose: Mapping[str, Any]  # what it is for; nothing where it is unfinished or damaged
    bytes: int
    used: datetime  # when it was last opened or written

    def __repr__(self) -> str:
        what = ", ".join(f"{name} {value}" for name, value in self.purpose.items())
        return f"{self.bytes / 1e6:,.1f} MB, used {self.used:%d %B %Y}: {what or 'unfinished'}"

    def remove(self) -> None:
        """Remove it; one that is being written is refused. Who reads it keeps what was mapped.

        The folder stays, with the lock that others may wait for.
        """
        with files.locked(self.path, work="process"):
            _clear(self.path)
            (self.path / files.MARKER).unlink()


def listed(corpus: Corpus) -> list[KeptPlan]:
    """The plans that are kept for a corpus, those last used first."""
    folders = [path for path in _home(corpus).glob("*") if files.kind_of(path) == _KIND]
    return sorted(map(_described, folders), key=lambda plan: plan.used, reverse=True)


def load_or_write(
    corpus: Corpus, purpose: Mapping[str, Any], stretches: Program, *, helper: Helper | None = None
) -> PlanStretch:
    """The columns for a purpose, mapped; where there are none, or damaged ones, they are written.

    One process writes, with helpers if there are any, the others wait. What was made before an
    interruption is not made again.
    """
    purpose = {"version": VERSION, "corpus": corpus.manifest["fingerprint"], **purpose}
    digest = sha256(json.dumps(purpose, sort_keys=True).encode()).hexdigest()
    folder = _home(corpus) / digest[:32]
    plan = _found(corpus, folder, purpose)
    if plan is None:
        with _full_disk_said(corpus):
            folder.mkdir(parents=True, exist_ok=True)
            with files.locked(folder, wait=True):
                files.claim(folder, _KIND)
                plan = _found(corpus, folder, purpose)
                plan = plan or _written(folder, purpose, stretches, helper)
    return plan


def _found(corpus: Corpus, folder: Path, purpose: Mapping[str, Any]) -> PlanStretch | None:
    """The columns in a folder, if they are whole; those for another purpose are refused."""
    entry = columns.read(folder)
    if entry is None:
        return None
    here, wanted = entry["purpose"], json.loads(json.dumps(purpose))
    others = [name for name, value in wanted.items() if here.get(name) != value]
    if others:
        raise UserError(
            f"{folder}: holds a plan for something else ({', '.join(others)} differ), put there by"
            f" hand; remove it: clozelab corpus plans {corpus.name} --remove"
        )
    return columns.mapped(folder)


def _home(corpus: Corpus) -> Path:
    """Where plans lie: in the corpus, or the user's cache if the corpus cannot be written."""
    if os.access(corpus.root, os.W_OK):
        return corpus.root / "plans"
    return cache.home() / "plans" / str(corpus.manifest["fingerprint"])[:16]


def _written(
    folder: Path, purpose: Mapping[str, Any], stretches: Program, helper: Helper | None
) -> PlanStretch:
    """Write the columns, some rows at a time, then what they are.

    An error leaves nothing; an interruption leaves the pieces that are whole.
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
    """Remove what a plan consists of, and what is left of its making."""
    columns.clear(folder)
    shutil.rmtree(folder / _WORK, ignore_errors=True)


def _described(folder: Path) -> KeptPlan:
    entry = columns.read(folder)
    stats = [file.stat() for file in folder.rglob("*")]
    used = datetime.fromtimestamp(max(stat.st_mtime for stat in stats), UTC)
    purpose = {} if entry is None else entry["purpose"]
    return KeptPlan(folder, purpose, sum(stat.st_size for stat in stats), used)


@contextmanager
def _full_disk_said(corpus: Corpus) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in files.FULL:
            raise
        raise UserError(
            f"no space left on the disk for the plan of its blocks, in {_home(corpus)}; free some,"
            f" or remove old plans: clozelab corpus plans {corpus.name} --remove"
        ) from None
