"""A queue of work for one thread, which refuses more when it is full."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Full, Queue
from threading import Thread
from typing import Any, TypeVar

MOST_WAITING = 64  # requests for one model

T = TypeVar("T")


class QueueFull(Exception):  # noqa: N818 - not a mistake of anyone's
    """The queue is full; the message is for the user."""


class WorkQueue:
    """The queue of one model, with a daemon thread."""

    def __init__(self, name: str, *, most: int = MOST_WAITING) -> None:
        self._name = name
        self._jobs: Queue[tuple[Future[Any], Callable[[], Any]]] = Queue(most)
        Thread(target=self._work, name=f"clozelab {name}", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """The future of some work; if it is cancelled before its turn, the work is not done."""
        future: Future[T] = Future()
        try:
            self._jobs.put_nowait((future, work))
        except Full:
            raise QueueFull(
                f"{self._name}: {self._jobs.maxsize} requests are waiting already; try again in a"
                " moment"
            ) from None
        return future

    def _work(self) -> None:
        while True:
            future, work = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # is raised by the future, and the thread goes on
                future.set_exception(error)
            del future, work  # frees the result before the next job
