"""Ctrl-C while processes begin: half a process started would complain and never end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_HOLDS = hasattr(signal, "pthread_sigmask")


@contextmanager
def held() -> Iterator[None]:
    """Hold interrupts back until the end; a process that starts meanwhile begins deaf to them."""
    if not _HOLDS:
        yield
        return
    came: list[object] = []
    is_main = threading.current_thread() is threading.main_thread()  # where Python raises it
    raises = signal.signal(signal.SIGINT, lambda *_: came.append(None)) if is_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(signal.SIGINT, raises)
    if came:
        signal.raise_signal(signal.SIGINT)


def heard() -> None:
    """In a process that began deaf: hear them again, first of all the one that came meanwhile."""
    if _HOLDS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
