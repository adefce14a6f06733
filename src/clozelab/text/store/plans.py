"""Plans that are kept beside a corpus: columns of numbers, written once, mapped by every process.

plans/DIGEST/   named by what it is for
  plan.json     what it is for, a checksum of every column, a seal; written last
  NAME.bin      the columns
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from clozelab import files
from clozelab.contracts import PlanStretch
from clozelab.errors import UserError
from clozelab.remote import cache
from clozelab.text.store.corpus import CHECKED_WHOLE, Corpus
from clozelab.text.store.manifest import render

VERSION = 1  # of the files and of every format: whatever plans other blocks must count it up
_NAME = "plan.json"
_KIND = "plan"


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


def kept(
    corpus: Corpus,
    purpose: Mapping[str, Any],
    stretches: Callable[[Path], Iterable[PlanStretch]],
) -> PlanStretch:
    """The columns for a purpose, mapped; where there are none, or damaged ones, they are written.

    One process writes, the others wait. `stretches` gets a folder for scratch files.
    """
    purpose = {"version": VERSION, "corpus": corpus.manifest["fingerprint"], **purpose}
    digest = sha256(json.dumps(purpose, sort_keys=True).encode()).hexdigest()
    folder = _home(corpus) / digest[:32]
    plan = _opened(folder)
    if plan is None:
        with _full_disk_said(corpus):
            folder.mkdir(parents=True, exist_ok=True)
            with files.locked(folder, wait=True):
                files.claim(folder, _KIND)
                plan = _opened(folder) or _written(folder, purpose, stretches)
    return plan


def _home(corpus: Corpus) -> Path:
    """Where plans lie: in the corpus, or the user's cache if the corpus cannot be written."""
    if os.access(corpus.root, os.W_OK):
        return corpus.root / "plans"
    return cache.home() / "plans" / str(corpus.manifest["fingerprint"])[:16]


def _written(
    folder: Path,
    purpose: Mapping[str, Any],
    stretches: Callable[[Path], Iterable[PlanStretch]],
) -> PlanStretch:
    """Write the columns, some rows at a time, then what they are; an error leaves nothing."""
    _clear(folder)
    try:
        columns, counts = _write_columns(folder, stretches(folder))
        entry = {"purpose": dict(purpose), "columns": columns, "counts": counts}
        files.write_text(folder / _NAME, render(entry))
    except BaseException:
        _clear(folder)
        raise
    plan = _opened(folder, checked=True)
    assert plan is not None
    return plan


def _clear(folder: Path) -> None:
    """Remove what a plan consists of; new files take its place, never new bytes in old ones.

    Another process may have mapped the old ones.
    """
    for file in [folder / _NAME, *folder.glob("*.bin")]:
        file.unlink(missing_ok=True)


def _write_columns(
    folder: Path, stretches: Iterable[PlanStretch]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Append the rows of each stretch to the columns; what each column is, and the counts."""
    columns: dict[str, dict[str, Any]] = {}
    digests: dict[str, Any] = {}
    counts = Counter[str]()
    with ExitStack() as stack:
        streams: dict[str, Any] = {}
        for stretch in stretches:
            for name, values in stretch.columns.items():
                if name not in streams:
                    streams[name] = stack.enter_context((folder / f"{name}.bin").open("xb"))
                    columns[name] = {"dtype": values.dtype.str, "length": 0}
                    digests[name] = sha256()
                rows = np.ascontiguousarray(values).data
                streams[name].write(rows)
                digests[name].update(rows)
                columns[name]["length"] += len(values)
            counts.update(stretch.counts)
        for stream in streams.values():
            stream.flush()
            os.fsync(stream.fileno())
    for name, digest in digests.items():
        columns[name]["sha256"] = digest.hexdigest()
    return columns, dict(counts)


def _opened(folder: Path, *, checked: bool = False) -> PlanStretch | None:
    """The columns of a plan that is whole, mapped; None where there is none.

    Sizes are compared, and checksums as those of a corpus are: of a plan up to 256 MB. None are
    compared of one just written (`checked`).
    """
    try:
        return _mapped(folder, checked=checked)
    except FileNotFoundError:  # it is being removed
        return None


def _mapped(folder: Path, *, checked: bool) -> PlanStretch | None:
    entry = _read(folder)
    if entry is None:
        return None
    whole = sum(map(_bytes, entry["columns"].values())) <= CHECKED_WHOLE
    columns = {}
    for name, column in entry["columns"].items():
        file = folder / f"{name}.bin"
        if not file.is_file() or file.stat().st_size != _bytes(column):
            return None
        if whole and not checked and files.sha256(file) != column["sha256"]:
            return None
        empty = np.zeros(0, dtype=column["dtype"])  # which no system maps
        mapped = np.memmap(file, dtype=column["dtype"], mode="r") if column["length"] else empty
        columns[name] = np.asarray(mapped)
    with suppress(OSError):  # another user's, perhaps
        os.utime(folder / _NAME)
    return PlanStretch(columns, entry["counts"])


def _bytes(column: Mapping[str, Any]) -> int:
    return int(column["length"] * np.dtype(column["dtype"]).itemsize)


def _read(folder: Path) -> dict[str, Any] | None:
    """What a plan says of itself; None where it is unfinished, or its seal is broken."""
    try:
        text = (folder / _NAME).read_text(encoding="utf-8")
        entry: dict[str, Any] = json.loads(text)
        return entry if text == render(entry) else None
    except (OSError, ValueError, AttributeError):
        return None


def _described(folder: Path) -> KeptPlan:
    entry = _read(folder)
    found = [file.stat() for file in folder.iterdir()]
    used = datetime.fromtimestamp(max(stat.st_mtime for stat in found), UTC)
    purpose = {} if entry is None else entry["purpose"]
    return KeptPlan(folder, purpose, sum(stat.st_size for stat in found), used)


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
