"""A file's bytes → its lines, decompressed, decoded and repaired, in pieces of bounded length."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from tempfile import gettempdir
from typing import IO, Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.files import FULL

PACKINGS: dict[str, Callable[[IO[bytes]], Any]] = {  # by ending, how to decompress
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
    ".zst": lambda file: import_module("pyarrow").input_stream(file, compression="zstd"),
}
HEAD = 1 << 16  # characters from which layout and encoding are guessed
_PIECE = 1 << 20  # characters: a longer line comes in several pieces
_JUDGED = 1_000  # lines after which the encoding is checked
_FEW = 3  # bytes that do not decode: so few may be accidents
_GIVE = "the file's encoding, such as gb18030 or latin-1"
_ESCAPED = re.compile("[\ud800-\udfff]+")  # bytes that did not decode, by surrogateescape


def shown(path: Path | str) -> str:
    """A path as text, with bytes that are not UTF-8 as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class TextFile:
    """A file to read, on this machine or at a URL."""

    name: str  # for messages and records
    path: PurePath  # its endings tell the compression and the format
    size: int | None  # bytes, compressed; None if unknown
    changed: int  # a number that changes with the file
    open: Callable[[], IO[bytes]]

    @property
    def packing(self) -> str:
        """The ending of its compression; "" if it is not compressed."""
        ending = self.path.suffix.lower()
        return ending if ending in PACKINGS else ""

    @property
    def kind(self) -> str:
        """The ending of its format, such as .jsonl."""
        return kind_ending(self.path)


def kind_ending(path: PurePath) -> str:
    """The ending of a file's format, without that of its compression."""
    name = path.with_suffix("") if path.suffix.lower() in PACKINGS else path
    return name.suffix.lower()


def local(path: Path) -> TextFile:
    """A file on this machine."""
    stat = path.stat()
    return TextFile(shown(path), path, stat.st_size, stat.st_mtime_ns, lambda: path.open("rb"))


@contextmanager
def opened(text: TextFile) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The file and the stream of its decompressed bytes; their errors become UserErrors."""
    name, packing = text.name, text.packing
    try:
        with text.open() as file, PACKINGS.get(packing, nullcontext)(file) as stream:
            yield file, stream
    except PermissionError:
        raise UserError(f"{name} may not be read; change its permissions") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if is_disk_full(error):
            raise UserError(
                f"{name}: no space left in {gettempdir()} for a copy of it; free some, or set"
                " TMPDIR to another folder"
            ) from None
        if not packing:
            raise UserError(f"{name} cannot be read ({error}); check the file") from None
        raise UserError(
            f"{name} is truncated or not a {packing} file ({error}); download or compress it again"
        ) from None


def is_disk_full(error: BaseException) -> bool:
    """Whether a disk is full: that of temporary files, which hold copies of some inputs."""
    return isinstance(error, OSError) and error.errno in FULL


class Lines:
    """The lines of one text in pieces, of which only a line's last ends with "\\n".

    Bytes that do not decode become U+FFFD, NULs and a byte order mark are removed; this is counted.
    A text that is mostly not in `encoding` is refused.
    """

    def __init__(self, stream: IO[bytes], name: str, *, encoding: str, counts: Counts) -> None:
        try:
            self._encoding = codecs.lookup(encoding).name.upper()
            # Only "\n", "\r\n" and "\r" end a line; str.splitlines would split at U+2028 as well.
            self._text = io.TextIOWrapper(stream, encoding, errors="surrogateescape", newline=None)
        except LookupError:
            raise UserError(f"--encoding {encoding}: is unknown; give {_GIVE}") from None
        self.name = name
        self.number = 0  # the line of the last piece
        self.counts = counts
        self._source = self._repaired()
        self._ahead: deque[tuple[int, str]] = deque()
        self._read = 0  # lines read, with those that are ahead of `number`
        self._bad = 0  # lines with bytes that do not decode
        self._bad_line = 0
        self._bad_bytes = 0
        self._beyond_ascii = 0  # bytes of decoded characters, beyond the first of each
        self._first_bad = ""

    @property
    def place(self) -> str:
        """The file and line of the last piece."""
        return f"{self.name}:{self.number}"

    def head(self) -> str:
        """The first HEAD characters of the text or a little more, without consuming them."""
        size = sum(len(piece) for _, piece in self._ahead)
        while size < HEAD and (numbered := next(self._source, None)):
            self._ahead.append(numbered)
            size += len(numbered[1])
        return "".join(piece for _, piece in self._ahead)

    def __iter__(self) -> Iterator[str]:
        while numbered := self._ahead.popleft() if self._ahead else next(self._source, None):
            self.number, piece = numbered
            yield piece

    def release(self) -> None:
        """Detach the stream without closing it."""
        if not self._text.closed:
            self._text.detach()

    def _repaired(self) -> Iterator[tuple[int, str]]:
        open_line = False
        size = nuls = 0
        while piece := self._piece():
            if not open_line:
                self._read += 1
            open_line = piece[-1] != "\n"
            if not piece.isascii():
                piece = self._decoded(piece, first=not size)
            if count := piece.count("\0"):
                nuls += count
                self.counts.add("NUL bytes removed", f"{self.name}:{self._read}", count)
            if size < HEAD <= size + len(piece):
                self._judge_nuls(nuls, size + len(piece))
            size += len(piece)
            if self._read == _JUDGED and not open_line:
                self._judge_decoding()
            if piece := piece.replace("\0", ""):
                yield self._read, piece
        if size < HEAD:
            self._judge_nuls(nuls, size)
        if self._read <= _JUDGED:
            self._judge_decoding()

    def _piece(self) -> str:
        try:
            return self._text.readline(_PIECE)
        except UnicodeError as error:
            reason = error.reason if isinstance(error, UnicodeDecodeError) else str(error)
            remedy = "convert the file to UTF-8 or pass another --encoding"
            if "BOM" in reason:
                remedy = "pass --encoding utf-16-le or utf-16-be, or utf-8"
            raise UserError(
                f"{self.name}:{self._read + 1} is not {self._encoding} ({reason}): {remedy}"
            ) from None

    def _decoded(self, piece: str, *, first: bool) -> str:
        if first:
            piece = piece.removeprefix("\ufeff")
            if piece.startswith(("\udcff\udcfe", "\udcfe\udcff")):
                self._refuse_utf16("utf-16")
        valid = piece
        try:
            encoded = piece.encode()  # many times faster than searching for escaped bytes
        except UnicodeEncodeError as error:
            if self._bad_line != self._read:
                self._bad_line = self._read
                self._bad += 1
                place = f"{self.name}:{self._read}"
                self.counts.add(f"lines with invalid {self._encoding}", place)
                self._first_bad = self._first_bad or f"{place}: {_named(piece[error.start])}"
            valid = _ESCAPED.sub("", piece)
            encoded = valid.encode()
            self._bad_bytes += len(piece) - len(valid)
            piece = _ESCAPED.sub("\ufffd", piece)
        self._beyond_ascii += len(encoded) - len(valid)
        return piece

    def _judge_nuls(self, nuls: int, size: int) -> None:
        if nuls * 10 > size:
            self._refuse_utf16("utf-16-le or utf-16-be")

    def _refuse_utf16(self, kind: str) -> None:
        raise UserError(
            f"{self.name} looks like UTF-16 or is not text; give --encoding {kind}, or leave"
            " the file out"
        )

    def _judge_decoding(self) -> None:
        if self._bad * 20 > self._read and self._bad_bytes > max(_FEW, self._beyond_ascii):
            raise UserError(
                f"{self._first_bad} is not {self._encoding} (nor are {self._bad} of the first"
                f" {self._read} lines): convert the file to UTF-8, or give --encoding with {_GIVE}"
            )


def _named(escaped: str) -> str:
    """What does not decode, for an error: a byte, or half a surrogate pair in UTF-7."""
    byte = ord(escaped) - 0xDC00
    return f"byte 0x{byte:02X}" if byte >= 0x80 else "half a surrogate pair"
