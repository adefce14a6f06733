"""The pieces of a plan on disk, while one or more processes make it.

FOLDER/STAGE-NUMBER/    the columns of a piece, sealed when it is complete
FOLDER/STAGE-NUMBER.lock   held by the process that makes it
FOLDER/STAGE.gone       the pieces of a stage are no longer needed

Each process makes the pieces that are neither finished nor being made. A process that ends in any
way releases its lock, and another one makes the piece. So the finished pieces are not made again,
even if all processes were killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from clozelab.contracts import PlanStretch
from clozelab.text.store import columns

_VERSION = "2"  # of the pieces: raise it when a plan is divided in another way
_VERSION_FILE = "version"

Make = Callable[[int], Iterable[PlanStretch]]


class SharedPieces:
    """The pieces in a folder."""

    in_memory = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Remove damaged pieces and those of another version, before other processes start.

        A damaged piece may need stages again that were dropped; no other piece asks for them.
        """
        version = self.folder / _VERSION_FILE
        if not version.is_file() or version.read_text(encoding="utf-8") != _VERSION:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        version.write_text(_VERSION, encoding="utf-8")
        for piece in self.folder.iterdir():
            if piece.is_dir() and columns.mapped(piece, checksums=True) is None:
                shutil.rmtree(piece)
        for dropped in self.folder.glob("*.gone"):
            dropped.unlink()

    def find(self, stage: str, number: int) -> PlanStretch | None:
        """A piece, or None if it is not finished."""
        return columns.mapped(self._piece_folder(stage, number), checksums=False)

    def piece(self, stage: str, number: int, make: Make) -> PlanStretch:
        """A piece, made if need be; waits if another process makes it."""
        self._make(stage, number, make, wait=True)
        return self._mapped(stage, number)

    def all_pieces(self, stage: str, count: int, make: Make) -> Iterable[PlanStretch]:
        """Make all pieces of a stage: first those that no other process makes, then the others.

        They are mapped one by one.
        """
        for wait in (False, True):
            for number in range(count):
                self._make(stage, number, make, wait=wait)
        return (self._mapped(stage, number) for number in range(count))

    def drop(self, *stages: str) -> None:
        """Remove the pieces of stages that a later, finished stage was made from."""
        for stage in stages:
            (self.folder / f"{stage}.gone").touch()
            for piece in self.folder.glob(f"{stage}-*"):
                if piece.is_dir():
                    shutil.rmtree(piece, ignore_errors=True)

    def _is_finished(self, stage: str, number: int) -> bool:
        # In this order, since `drop` writes .gone before it removes pieces.
        finished = (self._piece_folder(stage, number) / columns.NAME).exists()
        return finished or (self.folder / f"{stage}.gone").exists()

    def _mapped(self, stage: str, number: int) -> PlanStretch:
        """A finished piece."""
        piece = self.find(stage, number)
        assert piece is not None, f"{stage} {number} was made"
        return piece

    def _make(self, stage: str, number: int, make: Make, *, wait: bool) -> None:
        """Make a piece unless it is finished; one that another process makes is left to it."""
        if self._is_finished(stage, number):
            return
        lock = FileLock(f"{self._piece_folder(stage, number)}.lock", timeout=-1 if wait else 0)
        with suppress(Timeout), lock:
            if not self._is_finished(stage, number):
                self._write(stage, number, make)

    def _write(self, stage: str, number: int, make: Make) -> None:
        """Make a piece whose lock this process has."""
        place = self._piece_folder(stage, number)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        columns.write(place, make(number), purpose={}, lasting=False)

    def _piece_folder(self, stage: str, number: int) -> Path:
        return self.folder / f"{stage}-{number:05}"
