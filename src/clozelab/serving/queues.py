"""Work that waits: done in its order by one thread, refused where too much waits already."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import Full, Queue
from threading import Thread
from typing import Any, TypeVar

MOST_WAITING = 64  # requests for one model

T = TypeVar("T")


class QueueFull(Exception):  # noqa: N818 - not a mistake of anyone's
    """More waits already than is good; the sentence is for the user."""


class WorkQueue:
    """What is asked of one model. Its thread ends with the process, whatever it is doing."""

    def __init__(self, name: str, *, most: int = MOST_WAITING) -> None:
        self._name = name
        self._jobs: Queue[tuple[Future[Any], Callable[[], Any]]] = Queue(most)
        Thread(target=self._work, name=f"clozelab {name}", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """The result to come; work whose future is cancelled before its turn is left out."""
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
            except BaseException as error:  # whoever waits is told, and the thread goes on
                future.set_exception(error)
            del future, work  # a result is not kept until the next comes
