"""Files: replaced atomically, locked while written, and never anyone else's.

A folder that clozelab made has a marker file that says of what kind it is. Only what is next to a
marker is ever replaced or removed; a name alone proves nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from filelock import FileLock, Timeout

from clozelab.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

MARKER = ".clozelab"  # in a folder of ours: its kind, as in "corpus" or "run"
LOCK = ".lock"
FULL = (errno.ENOSPC, errno.EDQUOT)  # the errors of a full disk, or an exceeded quota
_GENERATOR = re.compile(rb'<meta name="generator" content="clozelab |<!-- generator: clozelab ')
_PART = 1 << 20  # bytes read at a time for a checksum
_HOLDER = ".lock.json"  # who has the lock; trying the lock empties the lock file itself


def is_own(file: Path) -> bool:
    """Whether a file is a folder's marker or lock.

    Also a partial one that a killed process left; the next writer removes it.
    """
    part = re.fullmatch(r"\.(.+)\.\d+\.part", file.name)
    return (part[1] if part else file.name) in (MARKER, LOCK, _HOLDER)


def kind_of(folder: Path) -> str | None:
    """The kind of a folder that clozelab made; None if it did not make it."""
    try:
        return (folder / MARKER).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def claim(folder: Path, kind: str) -> None:
    """Mark a folder as ours, unless it already is; refuse one with other files in it."""
    check_claim(folder, kind)
    if kind_of(folder) is None:
        mark(folder, kind)


def check_claim(folder: Path, kind: str) -> None:
    """Refuse a folder that cannot be claimed, before any work is done for it."""
    check_writable(folder)
    marked = kind_of(folder)
    if marked not in (None, kind):
        raise UserError(f"{folder}: holds a {marked}, not a {kind}; name a new or empty folder")
    if marked is None and folder.exists() and not all(map(is_own, folder.iterdir())):
        raise UserError(f"{folder}: contains other files; name a new or empty folder")


def check_writable(folder: Path) -> None:
    """Refuse a folder that is a file, or that cannot be made or written to where it would be."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; name a new or empty one")
    above = next((place for place in (folder, *folder.parents) if place.exists()), Path())
    if not above.is_dir():
        raise UserError(f"{folder}: {above} is not a folder; name another place")
    if not os.access(above, os.W_OK):
        if above == folder:
            raise UserError(f"{folder}: cannot be written to; change its permissions")
        raise UserError(f"{folder}: {above} cannot be written to; name another place")


def mark(folder: Path, kind: str) -> None:
    """Write the marker into a folder that is ours or new; a link is followed."""
    Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)
    write_text(folder / MARKER, f"{kind}\n")


@contextmanager
def locked(folder: Path, *, work: str = "process", wait: bool = False) -> Iterator[None]:
    """Lock a folder against other writers; the lock ends with the process.

    A second process waits, or gets an error that names the one that holds it.
    """
    lock = FileLock(folder / LOCK, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{folder}: another {work} is writing to it{_holder_text(folder)}; wait for it,"
            " or end it"
        ) from None
    try:
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        write_text(folder / _HOLDER, json.dumps({"pid": os.getpid(), "started": now}) + "\n")
        yield
    finally:
        (folder / _HOLDER).unlink(missing_ok=True)
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process of this machine has locked a folder; it is not locked by asking."""
    holder = _holder(folder)
    return holder is not None and _runs(holder[0])


def _holder_text(folder: Path) -> str:
    holder = _holder(folder)
    return f" (process {holder[0]}, since {holder[1]:%d %B %H:%M:%S})" if holder else ""


def _holder(folder: Path) -> tuple[int, datetime] | None:
    """The process that has the lock, and since when."""
    try:
        holder = json.loads((folder / _HOLDER).read_text(encoding="utf-8"))
        return int(holder["pid"]), datetime.fromisoformat(holder["started"])
    except (OSError, ValueError, TypeError, KeyError):
        return None  # it has just taken the lock, or is releasing it


@contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """A stream whose content replaces the file at the end; an error leaves the file as it was.

    A link is followed, so that its target is replaced; a device or a pipe is refused.
    """
    _check_plain(file)
    with _temporary(file) as (part, target):
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, target)


def check_output(file: Path, *, overwrite: bool = False) -> None:
    """Refuse, before any work is done, an output file that must not or cannot be written.

    A page that clozelab made is replaced; any other file only with `overwrite`.
    """
    _check_plain(file)
    folder = Path(os.path.realpath(file)).parent
    if not folder.is_dir():
        raise UserError(f"{file}: the folder {file.parent} does not exist; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{file}: its folder is not writable; name another place")
    if file.exists() and not (overwrite or is_page(file)):
        raise UserError(f"{file}: already exists; name another, or give --overwrite")


def is_page(file: Path) -> bool:
    """Whether a file is a page that clozelab made, as its beginning says."""
    with file.open("rb") as stream:
        return _GENERATOR.search(stream.read(1024)) is not None


def _check_plain(file: Path) -> None:
    if file.exists() and not stat.S_ISREG(file.stat().st_mode):
        what = "a folder" if file.is_dir() else "no plain file"
        raise UserError(f"{file}: is {what}; name a file to write")


def write_text(file: Path, text: str) -> None:
    """Replace a file atomically."""
    with replacing(file) as stream:
        stream.write(text.encode("utf-8"))


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors with the umask's permissions; a full disk raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    file.touch()
    mode = stat.S_IMODE(file.stat().st_mode)
    try:
        save_file(plain, file, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise OSError(f"{file}: {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error
    file.chmod(mode)  # the library makes it private


def check_new(folder: Path) -> None:
    """Refuse, before any work is done, a folder that exists and is not empty."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; name a new or empty one")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: already exists and is not empty; name a new or empty folder")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears when it is complete, or not at all; it must be new or empty."""
    check_new(folder)
    Path(os.path.realpath(folder)).parent.mkdir(parents=True, exist_ok=True)
    with _temporary(folder) as (part, target):
        part.mkdir()
        yield part
        for file in sorted(part.rglob("*")):
            sync(file)
        sync(part)
        if target.exists():
            target.rmdir()
        part.rename(target)
        sync(target.parent)


@contextmanager
def _temporary(place: Path) -> Iterator[tuple[Path, Path]]:
    """The temporary path of a file or folder to be written, and its final path.

    A link is followed. Leftovers of killed processes and of errors are removed; an error gets the
    final name in place of the temporary one.
    """
    path = Path(os.path.realpath(place))
    for leftover in path.parent.glob(f".{escape(path.name)}.*.part"):
        pid = leftover.name.removesuffix(".part").rpartition(".")[2]
        if pid.isdigit() and not _runs(int(pid)):
            _remove(leftover)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part, path
    except OSError as error:
        name = str(error.filename or part)
        if error.errno is not None and name.startswith(str(part)):  # else it has its own text
            error.filename, error.filename2 = str(place) + name.removeprefix(str(part)), None
        raise
    finally:
        _remove(part)


def remove_folder(folder: Path, *, last: str = "") -> None:
    """Remove a folder of ours: its marker and the file `last` are removed last.

    So a removal that is killed leaves a folder that is still marked as ours, or none.
    """
    finish_removal(folder)
    clear(folder, but=last)
    if folder.exists():
        os.replace(folder, _removed_name(folder))
        finish_removal(folder)


def finish_removal(folder: Path) -> None:
    """Remove what a killed removal of that folder left."""
    _remove(_removed_name(folder))


def _removed_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.gone")


def clear(folder: Path, *, but: str = "") -> None:
    """Remove everything in a folder of ours except its marker, its lock and the file `but`."""
    for entry in folder.iterdir() if folder.exists() else ():
        if not (is_own(entry) or entry.name == but):
            _remove(entry)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    """Whether a process exists; true where that cannot be known."""
    try:
        if os.name == "posix":
            os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)
    return True


def sync(path: Path) -> None:
    """Sync a file or folder to the disk, so that a later rename cannot precede its content."""
    if os.name == "nt" and path.is_dir():  # Windows has no handle for that
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(file: Path, *, fix: str = "fetch it again") -> dict[str, Any]:
    """The object in a JSON file from elsewhere; `fix` is the remedy in the error."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); {fix}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: not a JSON object; {fix}")
    return content


def sha256(file: Path, *, tell: Callable[[int], None] = lambda size: None) -> str:
    """The SHA-256 of a file, in hexadecimal; `tell` is called with the bytes of each part read."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(_PART):
            digest.update(part)
            tell(len(part))
    return digest.hexdigest()
