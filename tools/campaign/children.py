"""Commands in forked processes, which have everything imported: a case costs no start of Python.

A child may be told to die or to stop at a write of its own, counted from its beginning: then a
moment is a number, the same on every machine. Its workers are forked as well, and counted with it.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing import context
from pathlib import Path
from typing import Any

LIMIT = 180.0  # seconds that a command may take, on a machine with other work
WRITES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink")
_NUMBERS = count(1)
_CONTEXTS: dict[str, Any] = vars(context)["_concrete_contexts"]
_OPENS = os.O_WRONLY | os.O_RDWR | os.O_CREAT

Before = Callable[[], None]  # what a child does before its command


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, or minus the signal that ended it; what it said."""

    code: int
    errors: str
    output: str
    seconds: float

    @property
    def crashed(self) -> bool:
        """Whether it ended in any way but with success, a sentence, or by a signal of ours."""
        return self.code not in (0, 2, 130, 143) or "Traceback" in self.errors

    def __str__(self) -> str:
        last = [line for line in self.errors.splitlines() if line.strip()][-1:]
        return f"exit {self.code}: {' '.join(last) or 'nothing said'}"


@dataclass
class Child:
    """A command that runs."""

    pid: int
    place: Path
    started: float
    code: int | None = None

    def wait(self, *, limit: float = LIMIT) -> Ended:
        """Until it ends; one that does not is killed, and has exit code 124."""
        code = self.poll(limit=limit)
        if code is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            code = 124
        errors, output = (_text(self.place / name) for name in ("errors", "output"))
        return Ended(code, errors, output, time.monotonic() - self.started)

    def poll(self, *, limit: float) -> int | None:
        """Its exit code within so many seconds, or None."""
        until = time.monotonic() + limit
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                return None
            else:
                time.sleep(0.002)
        return self.code

    def stopped(self, *, limit: float = LIMIT) -> bool:
        """Wait until it has stopped itself; False where it ended instead."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            state = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state in "TZ":
                return state == "T"
            time.sleep(0.002)
        return False

    def family(self) -> set[int]:
        """The processes of its session that still run."""
        pids = set()
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.pid and fields[0] != "Z":
                pids.add(int(status.parent.name))
        return pids


def load() -> None:
    """Import here what commands import, so that no child has to."""
    import clozelab

    for module in pkgutil.walk_packages(clozelab.__path__, "clozelab."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("torch._dynamo")  # which the first optimiser asks for


def start(command: Sequence[str], place: Path, *, before: Before = lambda: None) -> Child:
    """Begin a command in a process and a session of its own, in the folder `place`."""
    streams_dir = place.parent / f"said-{next(_NUMBERS)}"
    streams_dir.mkdir()
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        _be(command, place, streams_dir, before)
    while os.getpgid(pid) != pid:  # until it has a session of its own
        time.sleep(0.001)
    return Child(pid, streams_dir, started)


def run(command: Sequence[str], place: Path, *, before: Before = lambda: None) -> Ended:
    """A command from its beginning to its end."""
    return start(command, place, before=before).wait()


def at_write(number: int, action: Callable[[], None], *, place: Path) -> Before:
    """Do something just before the write of that number, from 1, anywhere below `place`."""
    return lambda: _watch(place, lambda now: action() if now == number else None)


def counting(into: Path, *, place: Path) -> Before:
    """Keep the number of writes in a file."""

    def note(number: int) -> None:
        handle = os.open(into, os.O_WRONLY | os.O_CREAT)
        os.write(handle, f"{number:8}".encode())
        os.close(handle)

    return lambda: _watch(place, note)


def file_size(limit: int, *, dies: bool) -> Before:
    """Let no file grow beyond so many bytes: in the middle of a write it dies, or is told."""

    def before() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if dies else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return before


def spawned() -> None:
    """Have worker processes started anew, as they are outside of this campaign."""
    _CONTEXTS["spawn"] = context.SpawnContext()


def kill() -> None:
    """End this process and its workers as a power cut would."""
    os.killpg(0, signal.SIGKILL)


def pause() -> None:
    """Stop this process and its workers until they are told to go on."""
    os.killpg(0, signal.SIGSTOP)


def _watch(place: Path, see: Callable[[int], None]) -> None:
    """Call `see` with the number of each write: opened to write, renamed, removed, made, synced."""
    inside, busy = str(place), False
    shared = mmap.mmap(-1, 8)  # with the workers

    def write() -> None:
        nonlocal busy
        if not busy:
            number = int.from_bytes(shared[:]) + 1
            shared[:] = number.to_bytes(8)
            busy = True
            see(number)
            busy = False

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and bool(flags & _OPENS)
        else:
            path, writes = next(iter(arguments), None), event in WRITES
        if writes and isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            if name.startswith(inside) or not os.path.isabs(name):
                write()

    fsync = os.fsync

    def synced(handle: int) -> None:
        write()
        fsync(handle)

    os.fsync = synced
    sys.addaudithook(hear)


def _be(command: Sequence[str], place: Path, streams_dir: Path, before: Before) -> None:
    """Become the command; this never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(place)
        for handle, name in ((1, "output"), (2, "errors")):
            os.dup2(os.open(streams_dir / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _CONTEXTS["spawn"] = context.ForkContext()
        from clozelab.cli import main

        before()
        code = main(list(command))
        for sign in (signal.SIGINT, signal.SIGTERM):  # the command is over
            signal.signal(sign, signal.SIG_IGN)
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
