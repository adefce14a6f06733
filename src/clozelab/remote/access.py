"""What a URL names, by fsspec: asked for again where an answer is lost, refused in a sentence.

Credentials come from where the library of each protocol looks for them (the environment, its own
files); of a URL that holds some, names and messages do without.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any, NamedTuple, TypeVar

from clozelab.errors import UserError
from clozelab.files import FULL

# Not tuned: the waits between the tries add up to 7.5 seconds.
TRIES = 5
WAIT = 0.5  # seconds before the second try; twice as long before each further one
PATIENCE = 60.0  # seconds for an answer, a piece of a file included
PIECE = 1 << 23  # bytes that are asked for at a time: a second or so, at 100 Mbit/s
_URL = r"[A-Za-z][A-Za-z0-9+.-]*(?:::[^/]*)?://"
_SECRET = re.compile(r"(?<=://)[^/]*@|\?.*")  # a user with a password; what signs a request
_VERSIONS = ("ETag", "LastModified", "Last-Modified", "last_modified", "mtime", "created")

T = TypeVar("T")


class MissingError(UserError):
    """There is nothing at a URL."""


class RemoteFile(NamedTuple):
    """A file at a URL."""

    url: str
    system: Any
    path: str  # in that file system
    size: int | None  # bytes; None where a server does not say, or cannot send a part of it
    version: str  # another one if it is another file by now; empty if that is not known


def is_url(name: str) -> bool:
    """Whether a name is a URL, as in s3://bucket/text.jsonl; hf:owner/name is a dataset."""
    return re.match(_URL, name) is not None


def shown(name: str) -> str:
    """A name as it may be printed and recorded: of a URL without credentials."""
    return _SECRET.sub("", name) if is_url(name) else name


def joined(url: str, name: str) -> str:
    """The URL of what has that name in a folder; what signs the one signs the other."""
    place, mark, query = url.partition("?")
    return f"{place}{'' if place.endswith('/') else '/'}{name}{mark}{query}"


def system_of(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path in it."""
    if find_spec("fsspec") is None:
        raise UserError(f"{shown(url)}: a URL needs pip install 'clozelab[remote]'")
    options: dict[str, Any] = {}
    if is_web(url) and find_spec("aiohttp") is not None:  # a long file may take its time
        timeout = import_module("aiohttp").ClientTimeout(total=None, sock_read=PATIENCE)
        options["client_kwargs"] = {"timeout": timeout}
    try:
        system, path = import_module("fsspec.core").url_to_fs(url, **options)
    except ImportError as error:
        raise UserError(
            f"{shown(url)}: its protocol needs a package more ({said(error)}):"
            " pip install 'clozelab[remote]', or that package"
        ) from None
    except Exception as error:  # some connect at once, or want what no URL says
        raise UserError(f"{shown(url)} cannot be read ({said(error)}): check the URL") from None
    return system, path


def is_web(url: str) -> bool:
    """Whether a web server is asked, which has no folders but pages of links."""
    return url.startswith(("http://", "https://"))


def described(url: str, system: Any, path: str, *, info: dict[str, Any]) -> RemoteFile:
    """A file by what its file system says of it."""
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    whole_only = info.get("partial") is False  # an HTTP server that says so
    return RemoteFile(url, system, path, None if whole_only else info.get("size"), version)


def file_at(url: str) -> RemoteFile:
    """The file at a URL."""
    system, path = system_of(url)
    system.invalidate_cache()
    return described(url, system, path, info=call_with_retries(url, system, "info", path))


def files_under(url: str) -> dict[str, RemoteFile]:
    """The files of a folder and of the folders in it, by their names there.

    There are none where a store knows names of files alone and none begins so. That of a URL which
    names a file has no name.
    """
    system, path = system_of(url)
    system.invalidate_cache()  # of what was there when it was asked before
    base = path.partition("?")[0].rstrip("/")
    whole = f"{base}/" if is_web(url) else path
    infos = tried(partial(call, system, "find", whole, detail=True), url)
    by_name = {}
    for place, info in sorted(infos.items()):
        name = place.removeprefix(base).strip("/")
        at = joined(url, name) if name else url
        place = joined(path, name) if is_web(url) else place  # as what signs the folder
        if info.get("size") is None:
            info = call_with_retries(at, system, "info", place)
        by_name[name] = described(at, system, place, info=info)
    return by_name


def content(url: str) -> bytes:
    """The bytes of a small file."""
    system, path = system_of(url)
    return bytes(call_with_retries(url, system, "cat_file", path))


def ranged(file: RemoteFile, start: int, end: int) -> bytes | None:
    """A piece of a file of a known size; None from a server that knows no ranges."""
    return tried(partial(_ranged, file, start, end), file.url)


def has_ranges(file: RemoteFile) -> bool:
    """Whether a file of a known size can be had in pieces; one is asked for, since servers lie."""
    return bool(file.size) and ranged(file, 0, 1) is not None


def _ranged(file: RemoteFile, start: int, end: int) -> bytes | None:
    if is_web(file.url):
        options = {"block_size": PIECE, "cache_type": "none", "size": file.size}
        try:
            with file.system.open(file.path, **options) as stream:
                stream.seek(start)
                piece = bytes(stream.read(end - start))
        except ValueError:  # it sends the whole, of which only the beginning was read
            return None
    else:
        piece = bytes(call(file.system, "cat_file", file.path, start=start, end=end))
    if len(piece) < end - start:
        raise EOFError(f"{len(piece)} bytes came where {end - start} were asked for")
    return piece


def fetch_whole(file: RemoteFile, stream: IO[bytes]) -> None:
    """Write all of a file into a stream, in place of what is in it."""

    def fetch() -> None:
        stream.seek(0)
        stream.truncate()
        file.system.get_file(file.path, stream)

    tried(fetch, file.url)


def call_with_retries(url: str, system: Any, method: str, *words: Any) -> Any:
    """What a file system answers."""
    return tried(partial(call, system, method, *words), url)


def call(system: Any, method: str, *words: Any, seconds: float | None = None, **more: Any) -> Any:
    """The same, asked once; of those that can be told so, it is not waited for without end."""
    if getattr(system, "async_impl", False):
        more["timeout"] = seconds or PATIENCE * (10 if method in ("find", "glob") else 1)
    return getattr(system, method)(*words, **more)


def tried(ask: Callable[[], T], url: str, *, verb: str = "read") -> T:
    """An answer, asked for again where one fails that may not fail the next time."""
    problem: BaseException
    for number in range(TRIES):
        time.sleep(WAIT * 2 ** (number - 1) if number else 0)
        try:
            return ask()
        except FileNotFoundError as error:
            # What fsspec says of any answer that HTTP does not give, too: its cause tells.
            problem = (error.__cause__ if is_web(url) else None) or error
            if problem is error or _status(problem) in (404, 410):
                missing = f"there is no file or folder {shown(url)}: check the name"
                raise MissingError(missing) from None
        except UserError:
            raise
        except NotImplementedError:
            raise UserError(f"{shown(url)} cannot be {verb}: name another place") from None
        except Exception as error:  # every protocol has exceptions of its own
            if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
                raise UserError(
                    f"{shown(url)} may not be {verb} ({said(error)}): check your credentials"
                ) from None
            if isinstance(error, OSError) and error.errno in FULL:
                raise  # the disk of this machine
            problem = error
    remedy = "check the connection" + (", or fetch it first" if verb == "read" else "")
    raise UserError(
        f"{shown(url)} cannot be {verb}, asked for {TRIES} times ({said(problem)}): {remedy}"
    )


def _status(error: BaseException) -> int | None:
    """The status of an HTTP answer, as aiohttp's errors have it, and botocore's."""
    response: Any = getattr(error, "response", None) or {}
    status: int | None = getattr(error, "status", None)
    return status or response.get("ResponseMetadata", {}).get("HTTPStatusCode")


def said(error: BaseException) -> str:
    """What an error says, in one line and without credentials."""
    line = (str(error).splitlines() or [""])[0]
    return without_secrets(line) or type(error).__name__


def without_secrets(text: str) -> str:
    """A text with its URLs as they may be printed."""
    return re.sub(rf"{_URL}\S+", lambda url: shown(url[0]), text) if "://" in text else text
