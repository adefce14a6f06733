"""Text at a URL: files, folders and patterns, read in pieces that are fetched on demand."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import PurePath, PurePosixPath
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urlsplit

from clozelab.errors import UserError
from clozelab.remote import access
from clozelab.remote.access import RemoteFile, call_with_retries, shown
from clozelab.text.reading.lines import TextFile

Wanted = Callable[[str, str], bool]  # whether to read a file: its path in its folder, its URL


def find_texts(url: str, wanted: Wanted) -> list[TextFile]:
    """The file at a URL, or the `wanted` ones of a folder or a pattern, sorted by name."""
    system, path = access.system_of(url)
    places = _matches(system, path, url) if "*" in path else [path]
    texts = [text for place in places for text in _find_under(system, place, url, wanted)]
    if not texts:
        raise UserError(f"the folder {shown(url)} has no text files; name another folder")
    return texts


def _matches(system: Any, path: str, url: str) -> list[str]:
    """The files and folders that match a pattern and are not hidden."""
    base = path.partition("*")[0].rpartition("/")[0]
    matches = [
        name
        for name in sorted(call_with_retries(url, system, "glob", path))
        # A web server links to the pages of its folders also in other orders: wiki/?C=N;O=D.
        if "/?" not in name and not is_hidden(name.removeprefix(base))
    ]
    if not matches:
        raise UserError(f"no file matches {shown(url)}; check the name")
    return innermost(matches)


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder in which it is, is hidden."""
    return any(part.startswith(".") for part in PurePosixPath(path).parts)


def innermost(matches: Sequence[str]) -> list[str]:
    """What matches a pattern, without folders in which something else does: `**` matches both."""
    parents = {parent for match in matches for parent in PurePath(match).parents}
    return [match for match in matches if PurePath(match) not in parents]


def _find_under(system: Any, path: str, url: str, wanted: Wanted) -> list[TextFile]:
    """The file at a path, or the wanted files of a folder; on a web server, folders end in "/"."""
    if not path.endswith("/"):
        info = call_with_retries(url, system, "info", path)
        if info["type"] != "directory":
            return [_text_file(system, path, info)]
    texts = []
    base = path.partition("?")[0]
    for name, info in access.infos_under(url, system, path).items():
        inside = name.partition("?")[0].removeprefix(base)
        if inside and wanted(inside, shown(str(system.unstrip_protocol(name)))):
            has_size = info.get("size") is not None
            info = info if has_size else call_with_retries(url, system, "info", name)
            texts.append(_text_file(system, name, info))
    return texts


def _text_file(system: Any, path: str, info: dict[str, Any]) -> TextFile:
    url = str(system.unstrip_protocol(path))
    file = access.described(url, system, path, info=info)
    return TextFile(
        name=shown(url),
        path=PurePosixPath(urlsplit(url).path),
        size=info.get("size"),
        changed=zlib.crc32(file.version.encode()),
        open=lambda: io.BufferedReader(_FetchedStream(file), 1 << 16),
    )


class _FetchedStream(io.RawIOBase):
    """A stream that fetches a file in pieces, or as a whole if the server has no ranges."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._size = file, file.size or 0
        self._at, self._first, self._piece = 0, 0, b""
        self._whole: IO[bytes] | None = None  # the whole file, on disk
        if file.size is None:
            self._fetch_whole()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read some bytes from the current position; 0 at the end."""
        if self._at >= self._size:
            return 0
        inside = self._at - self._first
        if not 0 <= inside < len(self._piece):
            self._first, self._piece, inside = self._at, self._fetch(self._at), 0
        part = self._piece[inside : inside + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        if self._whole is not None:
            self._whole.close()
        super().close()

    def _fetch(self, start: int) -> bytes:
        end = min(start + access.PIECE, self._size)
        if self._whole is None:
            piece = access.ranged(self._file, start, end)
            if piece is not None:
                return piece
            self._fetch_whole()
        assert self._whole is not None
        self._whole.seek(start)
        return self._whole.read(end - start)

    def _fetch_whole(self) -> None:
        self._whole = TemporaryFile()  # noqa: SIM115
        access.fetch_whole(self._file, self._whole)
        self._size = self._whole.seek(0, io.SEEK_END)
