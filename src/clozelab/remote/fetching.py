"""A file at a URL → the same bytes on this disk: in pieces, checked, going on where it stopped."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from clozelab import files
from clozelab.errors import UserError
from clozelab.remote import access
from clozelab.remote.access import RemoteFile, shown

_CONNECTIONS = 8  # pieces of a file that are asked for at a time; not tuned


class Wanted(NamedTuple):
    """A file to have, under which name, and its checksum where that is known."""

    name: str
    file: RemoteFile
    sha256: str | None = None

    @property
    def version(self) -> str:
        """Another one if it is another file; empty where that is not known."""
        known = f"{self.file.size} {self.file.version}" if self.file.version else ""
        return self.sha256 or known

    @property
    def bytes(self) -> int:
        """Its size, as far as it is known."""
        return self.file.size or 0


def fetch(wanted: Wanted, target: Path, *, part: Path, tell: Callable[[int], None]) -> None:
    """Fetch a file; `part` has what there is of it, perhaps from before, until it is whole.

    If its checksum differs it is fetched again, once. How many bytes are there is told.
    """
    for _ in range(2):
        if not wanted.version:  # what is there may be of another file
            part.unlink(missing_ok=True)
        _append(wanted.file, part, tell)
        if wanted.sha256 is None or files.sha256(part) == wanted.sha256:
            files.sync(part)
            os.replace(part, target)
            return
        part.unlink()
    raise UserError(
        f"{shown(wanted.file.url)}: its checksum is not that of the manifest, fetched twice; put"
        " the corpus there again"
    )


def _append(file: RemoteFile, part: Path, tell: Callable[[int], None]) -> None:
    """Add what is missing of a file."""
    if file.size is not None:
        with part.open("ab") as stream:
            for piece in _pieces(file, file.size, start=stream.tell()):
                if piece is None:
                    break
                stream.write(piece)
                tell(stream.tell())
            else:
                return
    with part.open("w+b") as stream:
        access.fetch_whole(file, stream)


def _pieces(file: RemoteFile, size: int, *, start: int) -> Iterator[bytes | None]:
    """The pieces of a file in order; None where its server has only the whole."""

    def ask(at: int) -> Callable[[], bytes | None]:
        return lambda: access.ranged(file, at, min(at + access.PIECE, size))

    pool, pending = ThreadPoolExecutor(_CONNECTIONS), deque[Future[bytes | None]]()
    try:
        for at in range(start, size, access.PIECE):
            pending.append(pool.submit(ask(at)))
            if len(pending) == _CONNECTIONS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
