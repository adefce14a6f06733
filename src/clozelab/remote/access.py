"""Access to files at URLs, by fsspec: with retries, and with errors as UserErrors.

Credentials come from where the library of each protocol looks for them (the environment, its own
files); those inside a URL are removed from names and messages.
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
WAIT = 0.5  # seconds before the second try, doubled before each further one
PATIENCE = 60.0  # seconds for an answer, or for a piece of a file
PIECE = 1 << 23  # bytes per request: a second or so, at 100 Mbit/s
_URL = r"[A-Za-z][A-Za-z0-9+.-]*(?:::[^/]*)?://"
_SECRET = re.compile(r"(?<=://)[^/]*@|\?.*")  # user and password; the query, which may sign a URL
# Protocols whose folders must be made before their files; object stores have only names.
_WITH_FOLDERS = {"file", "local", "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "arrow_hdfs"}
_VERSIONS = ("ETag", "LastModified", "Last-Modified", "last_modified", "mtime", "created")

T = TypeVar("T")


class MissingError(UserError):
    """There is nothing at a URL."""


class RemoteFile(NamedTuple):
    """A file at a URL."""

    url: str
    system: Any
    path: str  # in that file system
    size: int | None  # bytes; None if a server does not tell it, or cannot send ranges
    version: str  # changes with the file; empty if unknown


def is_url(name: str) -> bool:
    """Whether a name is a URL, as in s3://bucket/text.jsonl; hf:owner/name is a dataset."""
    return re.match(_URL, name) is not None


def shown(name: str) -> str:
    """A name for messages and records: a URL without credentials."""
    return _SECRET.sub("", name) if is_url(name) else name


def joined(url: str, name: str) -> str:
    """The URL of a file in a folder at a URL; keeps the query, which may sign it."""
    place, mark, query = url.partition("?")
    return f"{place}{'' if place.endswith('/') else '/'}{name}{mark}{query}"


def system_of(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    if find_spec("fsspec") is None:
        raise UserError(f"{shown(url)}: a URL needs pip install 'clozelab[remote]'")
    options: dict[str, Any] = {}
    if is_web(url) and find_spec("aiohttp") is not None:  # no limit on the time of a whole file
        timeout = import_module("aiohttp").ClientTimeout(total=None, sock_read=PATIENCE)
        options["client_kwargs"] = {"timeout": timeout}
    try:
        system, path = import_module("fsspec.core").url_to_fs(url, **options)
    except ImportError as error:
        raise UserError(
            f"{shown(url)}: its protocol needs another package ({said(error)}); pip install"
            " 'clozelab[remote]', or that package"
        ) from None
    except Exception as error:  # some connect at once, or need options that a URL lacks
        raise UserError(f"{shown(url)} cannot be read ({said(error)}); check the URL") from None
    return system, path


def is_web(url: str) -> bool:
    """Whether a URL is on a web server, which has pages of links instead of folders."""
    return url.startswith(("http://", "https://"))


def has_folders(system: Any) -> bool:
    """Whether a file system has folders, which must exist before files in them are written."""
    names = system.protocol
    return not _WITH_FOLDERS.isdisjoint([names] if isinstance(names, str) else names)


def described(url: str, system: Any, path: str, *, info: dict[str, Any]) -> RemoteFile:
    """A file from the `info` that its file system returns; a page of links is refused."""
    page = is_web(url) and info.get("mimetype") == "text/html"
    if page and not path.partition("?")[0].endswith((".html", ".htm")):
        raise UserError(
            f"{shown(url)}: is a web page, not a file; the URL of a folder on a web server must"
            " end in /"
        )
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    whole_only = info.get("partial") is False  # an HTTP server that says so
    return RemoteFile(url, system, path, None if whole_only else info.get("size"), version)


def file_at(url: str) -> RemoteFile:
    """The file at a URL."""
    system, path = system_of(url)
    system.invalidate_cache()
    return described(url, system, path, info=call_with_retries(url, system, "info", path))


def files_under(url: str) -> dict[str, RemoteFile]:
    """The files of a folder and of the folders in it, by their names relative to it.

    It is empty for an object store without names that begin so. If the URL is that of a file, its
    name is "", except on a web server, where it is empty.
    """
    system, path = system_of(url)
    system.invalidate_cache()  # forget earlier listings
    base = path.partition("?")[0].rstrip("/")
    by_name = {}
    for place, info in infos_under(url, system, f"{base}/" if is_web(url) else path).items():
        name = place.removeprefix(base).strip("/")
        at = joined(url, name) if name else url
        place = joined(path, name) if is_web(url) else place  # with the query of the folder
        if info.get("size") is None:
            info = call_with_retries(at, system, "info", place)
        by_name[name] = described(at, system, place, info=info)
    return by_name


def infos_under(url: str, system: Any, folder: str) -> dict[str, dict[str, Any]]:
    """What a file system tells of all files under a folder, by their paths in it, sorted.

    Without paths that end in "/": a web server's pages of links (Apache's also in other orders, as
    wiki/?C=N;O=D), and an object store's marks of folders.
    """
    infos = call_with_retries(url, system, "find", folder, detail=True)
    return {
        place: info
        for place, info in sorted(infos.items())
        if not place.partition("?")[0].endswith("/")
    }


def content(url: str) -> bytes:
    """The bytes of a small file."""
    system, path = system_of(url)
    return bytes(call_with_retries(url, system, "cat_file", path))


def ranged(file: RemoteFile, start: int, end: int) -> bytes | None:
    """The bytes from `start` to `end` of a file; None if the server has no ranges."""
    return tried(partial(_fetch_range, file, start, end), file.url)


def has_ranges(file: RemoteFile) -> bool:
    """Whether a file of known size can be fetched in pieces; tries it, since servers misreport."""
    return bool(file.size) and ranged(file, 0, 1) is not None


def _fetch_range(file: RemoteFile, start: int, end: int) -> bytes | None:
    if is_web(file.url):
        options = {"block_size": PIECE, "cache_type": "none", "size": file.size}
        try:
            with file.system.open(file.path, **options) as stream:
                stream.seek(start)
                piece = bytes(stream.read(end - start))
        except ValueError:  # the server sends the whole file instead
            return None
    else:
        piece = bytes(call(file.system, "cat_file", file.path, start=start, end=end))
    if len(piece) < end - start:
        raise EOFError(f"{len(piece)} bytes came where {end - start} were asked for")
    return piece


def fetch_whole(file: RemoteFile, stream: IO[bytes]) -> None:
    """Replace the content of a stream by the whole file."""

    def fetch() -> None:
        stream.seek(0)
        stream.truncate()
        file.system.get_file(file.path, stream)

    tried(fetch, file.url)


def call_with_retries(
    url: str, system: Any, method: str, *words: Any, verb: str = "read", **more: Any
) -> Any:
    """The result of a file system's method, with retries."""
    return tried(partial(call, system, method, *words, **more), url, verb=verb)


def call(system: Any, method: str, *words: Any, seconds: float | None = None, **more: Any) -> Any:
    """The result of a file system's method, with a time limit if it is an asynchronous one."""
    if getattr(system, "async_impl", False):
        more["timeout"] = seconds or PATIENCE * (10 if method in ("find", "glob") else 1)
    return getattr(system, method)(*words, **more)


def tried(ask: Callable[[], T], url: str, *, verb: str = "read") -> T:
    """The result of `ask`, with retries for errors that may be temporary."""
    problem: BaseException
    for number in range(TRIES):
        time.sleep(WAIT * 2 ** (number - 1) if number else 0)
        try:
            return ask()
        except FileNotFoundError as error:
            # For HTTP, fsspec raises this for every failure, and the cause has the status.
            problem = (error.__cause__ if is_web(url) else None) or error
            if problem is error or _status(problem) in (404, 410):
                missing = f"there is no file or folder {shown(url)}: check the name"
                raise MissingError(missing) from None
        except UserError:
            raise
        except NotImplementedError:
            raise UserError(f"{shown(url)} cannot be {verb}; name another place") from None
        except Exception as error:  # every protocol has its own exceptions
            if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
                raise UserError(
                    f"{shown(url)} may not be {verb} ({said(error)}); check your credentials"
                ) from None
            if isinstance(error, OSError) and error.errno in FULL:
                raise  # a full disk of this machine
            problem = error
    remedy = "check the connection" + (", or download it first" if verb == "read" else "")
    raise UserError(
        f"{shown(url)} cannot be {verb} after {TRIES} tries ({said(problem)}); {remedy}"
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error of aiohttp or botocore."""
    response: Any = getattr(error, "response", None) or {}
    status: int | None = getattr(error, "status", None)
    return status or response.get("ResponseMetadata", {}).get("HTTPStatusCode")


def said(error: BaseException) -> str:
    """The message of an error, in one line and without credentials."""
    line = (str(error).splitlines() or [""])[0]
    return without_secrets(line) or type(error).__name__


def without_secrets(text: str) -> str:
    """A text with the credentials removed from its URLs."""
    return re.sub(rf"{_URL}\S+", lambda url: shown(url[0]), text) if "://" in text else text
