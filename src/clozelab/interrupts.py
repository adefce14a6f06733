"""Signals that stop a command: Ctrl-C (SIGINT), and SIGTERM, which does the same.

While a run trains, the first one lets the step end, and the run is saved. While processes begin,
they are held back: half a process started would complain and never end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from typing import Any, TypeVar

from clozelab.errors import UserError

_HOLDS = hasattr(signal, "pthread_sigmask")
_LOOK = 0.2  # seconds that a signal waits at most while others work
_GRACE = 3.5  # seconds to save after a parent's end: all are to be gone within five (docs/tasks.md)

T = TypeVar("T")
Found = TypeVar("Found", bound=Collection[Any])


class Stopped(UserError):  # noqa: N818 - a command that ends as it was told to
    """A command that a signal ended in good order; its sentence says how to go on."""

    def __init__(self, sentence: str, *, signal: int) -> None:
        super().__init__(sentence)
        self.signal = signal


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """The signal behind an interrupt: SIGINT, unless it says another."""
    return int(next(iter(interrupt.args), signal.SIGINT))


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _handling(handler: Callable[[int, Any], None], *signs: signal.Signals) -> Iterator[None]:
    """Handle signals so until the end; in the main thread, which alone hears them."""
    signs = signs if _in_main_thread() else ()
    before = {sign: signal.signal(sign, handler) for sign in signs}
    try:
        yield
    finally:
        for sign, earlier in before.items():
            signal.signal(sign, earlier)


@contextmanager
def stopping() -> Iterator[Callable[[], int]]:
    """Which signal came that stops a run, or 0; a second one stops it in the middle of a step."""
    came = 0

    def stop(number: int, frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt(number)
        came = number

    with _handling(stop, signal.SIGINT, signal.SIGTERM):
        yield lambda: came


@contextmanager
def terminable() -> Iterator[None]:
    """Raise on SIGTERM what Ctrl-C raises; a process that was started deaf to it stays so."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    deaf = signal.getsignal(signal.SIGTERM) in (signal.SIG_IGN, None)
    with _handling(stop, *(() if deaf else (signal.SIGTERM,))):
        yield


@contextmanager
def noted() -> Iterator[list[int]]:
    """Which signals came so far; the first is raised at the end."""
    came: list[int] = []
    with _handling(lambda number, _: came.append(number), signal.SIGINT, signal.SIGTERM):
        yield came
    if came:
        signal.raise_signal(came[0])


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Handle signals as before, whatever a library does about them: Ray would end at SIGTERM."""
    signs = (signal.SIGINT, signal.SIGTERM) if _in_main_thread() else ()
    before = {sign: signal.getsignal(sign) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def held() -> Iterator[None]:
    """Hold signals back until the end; a process that starts meanwhile begins deaf to Ctrl-C.

    SIGTERM still reaches such a process: that is how a pool ends its workers.
    """
    if not _HOLDS:
        yield
        return
    # It comes with the first process, and lets SIGINT through again when it has started.
    resource_tracker.ensure_running()
    with noted():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def first_done(futures: Iterable[Future[T]]) -> set[Future[T]]:
    """Wait until some are done."""
    return awaited(lambda limit: wait(futures, timeout=limit, return_when=FIRST_COMPLETED).done)


def awaited(look: Callable[[float], Found]) -> Found:
    """Look, for so many seconds at a time, until something is found; or a signal comes.

    It is raised after the last look, never inside one, where it would leave locks taken, and
    whoever ends what is waited for would wait for ever; nor between two, where a callback of the
    garbage collector would swallow it.
    """
    with noted() as came:
        while not (result := look(_LOOK)) and not came:
            pass
    return result


def end_with_parent() -> None:
    """In a process that another one started: end when that does, however it ends.

    A run hears it as SIGTERM, by which it saves; whatever is left a little later is ended.
    """
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
