"""Files at a URL, by fsspec: found, and read in pieces that are asked for again if one is lost.

Credentials come from where the library of each protocol looks for them (the environment, its own
files); of a URL that holds some, names and messages do without.
"""

from __future__ import annotations

import errno
import io
import re
import time
import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePosixPath
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from clozelab.errors import UserError
from clozelab.text.reading.lines import TextFile

PIECE = 1 << 23  # bytes that are asked for at a time
TRIES = 5
WAIT = 0.5  # seconds before the second try; twice as long before each further one
PATIENCE = 60.0  # seconds for an answer, a piece of a file included
_SECRET = re.compile(r"(?<=://)[^/]*@|\?.*")  # a user with a password; what signs a request
_VERSIONS = ("ETag", "LastModified", "Last-Modified", "last_modified", "mtime", "created")

T = TypeVar("T")


def is_url(name: str) -> bool:
    """Whether a name is a URL, as in s3://bucket/text.jsonl; hf:owner/name is a dataset."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*(::[^/]*)?://", name) is not None


def shown(name: str) -> str:
    """A name as it may be printed and recorded: of a URL without credentials."""
    return _SECRET.sub("", name) if is_url(name) else name


def found(url: str, wanted: Callable[[str], bool]) -> list[TextFile]:
    """The file at a URL, or the `wanted` ones of a folder or a pattern, sorted by name."""
    system, path = _system(url)
    if "*" not in path:
        texts = _under(system, path, url, wanted)
    else:
        names = sorted(_asked(url, system, "glob", path))
        shown_names = [name for name in names if not PurePosixPath(name).name.startswith(".")]
        if not shown_names:
            raise UserError(f"no file matches {shown(url)}: check the name")
        texts = [text for name in shown_names for text in _under(system, name, url, wanted)]
    if not texts:
        raise UserError(f"the folder {shown(url)} holds no file of text; name another folder")
    return texts


def _under(system: Any, path: str, url: str, wanted: Callable[[str], bool]) -> list[TextFile]:
    """A file, or the wanted ones of a folder; that of a web server ends in a slash."""
    if not path.endswith("/"):
        info = _asked(url, system, "info", path)
        if info["type"] != "directory":
            return [_file(system, path, info)]
    infos = _tried(partial(_call, system, "find", path, detail=True), url)
    texts = []
    for name, info in sorted(infos.items()):
        if wanted(name):
            known = info if info.get("size") is not None else _asked(url, system, "info", name)
            texts.append(_file(system, name, known))
    return texts


def _system(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path in it."""
    if find_spec("fsspec") is None:
        raise UserError(f"{shown(url)}: reading a URL needs pip install 'clozelab[remote]'")
    options: dict[str, Any] = {}
    if _is_web(url) and find_spec("aiohttp") is not None:  # a long file may take its time
        timeout = import_module("aiohttp").ClientTimeout(total=None, sock_read=PATIENCE)
        options["client_kwargs"] = {"timeout": timeout}
    try:
        system, path = import_module("fsspec.core").url_to_fs(url, **options)
    except ImportError as error:
        raise UserError(
            f"{shown(url)}: its protocol needs a package more ({_told(error)}):"
            " pip install 'clozelab[remote]', or that package"
        ) from None
    except Exception as error:  # some connect at once, or want what no URL says
        raise UserError(f"{shown(url)} cannot be read ({_told(error)}): check the URL") from None
    return system, path


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _file(system: Any, path: str, info: dict[str, Any]) -> TextFile:
    url = str(system.unstrip_protocol(path))
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    size: int | None = info.get("size")
    if info.get("partial") is False:  # an HTTP server that says so
        size = None
    return TextFile(
        name=shown(url),
        path=PurePosixPath(urlsplit(url).path),
        size=info.get("size") or 0,
        changed=zlib.crc32(version.encode()),
        open=lambda: io.BufferedReader(_Pieces(system, path, url, size), 1 << 16),
    )


class _Pieces(io.RawIOBase):
    """A file that is fetched piece by piece; a server that has only the whole is asked once."""

    def __init__(self, system: Any, path: str, url: str, size: int | None) -> None:
        self._system, self._path, self._url, self._size = system, path, url, size
        self._at, self._first, self._piece = 0, 0, b""
        self._whole: IO[bytes] | None = None  # on this machine's disk
        if size is None:
            self._fetch_whole()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert self._size is not None
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Some bytes from here on; none at the end."""
        assert self._size is not None
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
        assert self._size is not None
        end = min(start + PIECE, self._size)
        if self._whole is None:
            piece = _tried(partial(self._ranged, start, end), self._url)
            if piece is not None:
                return piece
            self._fetch_whole()
        assert self._whole is not None
        self._whole.seek(start)
        return self._whole.read(end - start)

    def _ranged(self, start: int, end: int) -> bytes | None:
        """A piece; None from a server that knows no ranges."""
        if _is_web(self._url):
            options = {"block_size": PIECE, "cache_type": "none", "size": self._size}
            try:
                with self._system.open(self._path, **options) as file:
                    file.seek(start)
                    piece = bytes(file.read(end - start))
            except ValueError:  # it sends the whole, of which only the beginning was read
                return None
        else:
            piece = bytes(_call(self._system, "cat_file", self._path, start=start, end=end))
        if len(piece) < end - start:
            raise EOFError(f"{len(piece)} bytes came where {end - start} were asked for")
        return piece

    def _fetch_whole(self) -> None:
        self._whole = TemporaryFile()  # noqa: SIM115

        def fetch() -> None:
            assert self._whole is not None
            self._whole.seek(0)
            self._whole.truncate()
            self._system.get_file(self._path, self._whole)

        _tried(fetch, self._url)
        self._size = self._whole.seek(0, io.SEEK_END)


def _asked(url: str, system: Any, method: str, *words: Any) -> Any:
    """What a file system answers."""
    return _tried(partial(_call, system, method, *words), url)


def _call(system: Any, method: str, *words: Any, **more: Any) -> Any:
    """The same, asked once; of those that can be told so, it is not waited for without end."""
    if getattr(system, "async_impl", False):
        more["timeout"] = PATIENCE * (10 if method in ("find", "glob") else 1)
    return getattr(system, method)(*words, **more)


def _tried(ask: Callable[[], T], url: str) -> T:
    """An answer, asked for again where one fails that may not fail the next time."""
    problem: BaseException
    for number in range(TRIES):
        time.sleep(WAIT * 2 ** (number - 1) if number else 0)
        try:
            return ask()
        except FileNotFoundError as error:
            # What fsspec says of any answer that HTTP does not give, too: its cause tells.
            problem = error.__cause__ or error
            if problem is error or _status(problem) in (404, 410):
                missing = f"there is no file or folder {shown(url)}: check the name"
                raise UserError(missing) from None
        except PermissionError as error:
            raise UserError(
                f"{shown(url)} may not be read ({_told(error)}): check your credentials"
            ) from None
        except Exception as error:  # every protocol has exceptions of its own
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # the disk of this machine
            problem = error
    raise UserError(
        f"{shown(url)} cannot be read, asked for {TRIES} times ({_told(problem)}): check the"
        " connection, or fetch it first"
    )


def _status(error: BaseException) -> int | None:
    """The status of an HTTP answer, as aiohttp's errors have it, and botocore's."""
    response: Any = getattr(error, "response", None) or {}
    status: int | None = getattr(error, "status", None)
    return status or response.get("ResponseMetadata", {}).get("HTTPStatusCode")


def _told(error: BaseException) -> str:
    """What an error says, in one line and without credentials."""
    line = (str(error).splitlines() or [""])[0]
    said = re.sub(r"[A-Za-z][A-Za-z0-9+.-]*://\S+", lambda url: shown(url[0]), line)
    return said or type(error).__name__
