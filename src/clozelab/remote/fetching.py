"""A file at a URL → a checked copy on disk, fetched in pieces and resumed after interruptions."""

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

_CONNECTIONS = 8  # pieces of a file that are requested at a time; not tuned


class Wanted(NamedTuple):
    """A file to fetch, its local name, and its checksum if known."""

    name: str
    file: RemoteFile
    sha256: str | None = None

    @property
    def version(self) -> str:
        """A text that changes with the file; empty if unknown."""
        known = f"{self.file.size} {self.file.version}" if self.file.version else ""
        return self.sha256 or known

    @property
    def bytes(self) -> int:
        """Its size; 0 if unknown."""
        return self.file.size or 0


def fetch(wanted: Wanted, target: Path, *, part: Path, tell: Callable[[int], None]) -> None:
    """Fetch a file to `target`; until it is complete, its bytes are in `part`, perhaps from before.

    If its checksum differs, it is fetched once more. `tell` is called with the bytes so far.
    """
    for _ in range(2):
        if not wanted.version:  # the part may be of another file
            part.unlink(missing_ok=True)
        _append_missing(wanted.file, part, tell)
        if wanted.sha256 is None or files.sha256(part) == wanted.sha256:
            files.sync(part)
            os.replace(part, target)
            return
        part.unlink()
    raise UserError(
        f"{shown(wanted.file.url)}: its checksum is not that of the manifest, in two"
        " downloads; upload the corpus again"
    )


def _append_missing(file: RemoteFile, part: Path, tell: Callable[[int], None]) -> None:
    """Append the missing bytes of a file to `part`."""
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
    """The pieces of a file in order; None if its server has no ranges."""

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
