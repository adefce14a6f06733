"""Signals that stop a command: Ctrl-C (SIGINT), and SIGTERM, which does the same.

While a run trains, the first signal lets the step end, and the run is saved. While processes are
started, signals are held back: a half-started process would complain and never end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from typing import Any, TypeVar

_HOLDS = hasattr(signal, "pthread_sigmask")
_LOOK = 0.2  # seconds that a signal waits at most while this process waits for others
_GRACE = 3.5  # seconds to save after the parent ended: all end within five (docs/tasks.md)
_STOPS = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")
Found = TypeVar("Found", bound=Collection[Any])


class Stopped(KeyboardInterrupt):
    """A signal ended a command in good order; the message says how to continue.

    It is no error, so that code that goes on after errors does not go on after Ctrl-C.
    """

    def __init__(self, sentence: str, *, signal: int) -> None:
        super().__init__(sentence)
        self.signal = signal


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """The signal behind an interrupt: SIGINT, unless its argument is another."""
    if isinstance(interrupt, Stopped):
        return interrupt.signal
    return int(next(iter(interrupt.args), signal.SIGINT))


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handlers_restored(signs: Collection[signal.Signals] = _STOPS) -> Iterator[None]:
    """Restore at the end the handlers that the block changes, or a library: Ray's end at SIGTERM.

    Only the main thread has handlers.
    """
    before = {sign: signal.getsignal(sign) for sign in signs if _in_main_thread()}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def _handling(handler: Callable[[int, Any], None], *signs: signal.Signals) -> Iterator[None]:
    """Install a handler for signals during the block; only the main thread can do that."""
    with handlers_restored(signs):
        for sign in signs if _in_main_thread() else ():
            signal.signal(sign, handler)
        yield


@contextmanager
def stopping() -> Iterator[Callable[[], int]]:
    """Yield a function that tells which signal has come, or 0; a second signal interrupts."""
    came = 0

    def stop(number: int, frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt(number)
        came = number
        if parent_process() is None and os.environ.get("RANK", "0") == "0":
            # Not by print, which may be in the middle of a line when the signal comes.
            with suppress(OSError):  # nobody may be listening
                os.write(2, b"\nstopping after this step; a second signal stops at once\n")

    with _handling(stop, *_STOPS):
        yield lambda: came


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, unless this process was started to ignore it."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    ignored = signal.getsignal(signal.SIGTERM) in (signal.SIG_IGN, None)
    with _handling(stop, *(() if ignored else (signal.SIGTERM,))):
        yield


@contextmanager
def noted() -> Iterator[list[int]]:
    """Collect the signals that come during the block; the first is raised at its end."""
    came: list[int] = []
    with _handling(lambda number, _: came.append(number), *_STOPS):
        yield came
    if came:
        signal.raise_signal(came[0])


@contextmanager
def held() -> Iterator[None]:
    """Hold signals back during the block; processes started in it do not get Ctrl-C.

    SIGTERM still reaches them: that is how a pool ends its workers.
    """
    if not _HOLDS:
        yield
        return
    # Otherwise it would be started with the first process, and unblock SIGINT.
    resource_tracker.ensure_running()
    with noted():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def first_done(futures: Iterable[Future[T]]) -> set[Future[T]]:
    """Wait until some futures are done, and return these."""
    return awaited(lambda limit: wait(futures, timeout=limit, return_when=FIRST_COMPLETED).done)


def awaited(look: Callable[[float], Found]) -> Found:
    """Call `look`, which waits for some seconds, until it finds something or a signal comes.

    The signal is raised after the last call. Inside a call it would leave locks taken, on which
    the cleanup would wait for ever; between two calls, a callback of the garbage collector could
    swallow it.
    """
    with noted() as came:
        while not (result := look(_LOOK)) and not came:
            pass
    return result


def end_with_parent() -> None:
    """End this process when the one that started it ends in any way.

    It is sent SIGTERM, at which a run saves; if it is still alive a little later, it is ended.
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
