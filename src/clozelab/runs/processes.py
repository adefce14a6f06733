"""Work in processes of its own, several at a time: they stop when we are told to, and end with us.

They never hear Ctrl-C, which a terminal sends to all: what it means is passed on to them, once.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread, current_thread
from typing import Any, TypeVar

from clozelab import interrupts
from clozelab.errors import UserError

T = TypeVar("T")
_LEAVING = 10  # seconds that a process without work may take to end
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Workers:
    """Processes that work; one that dies takes the work of no other with it."""

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads  # of linear algebra in each process
        self._idle: list[_Worker] = []
        self._busy: dict[Thread, _Worker] = {}

    def submit(self, work: Callable[..., T], *arguments: Any, topic: str = "") -> Future[T]:
        """Begin a job; its future has what it came to.

        An idle process that had a job of the same `topic` is preferred: it is warm.
        """
        worker = next((one for one in self._idle if topic in one.topics), None)
        if worker is not None:
            self._idle.remove(worker)
        else:
            worker = self._idle.pop() if self._idle else _Worker(self.threads)
        worker.topics.add(topic)
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        thread = Thread(target=self._wait, args=(worker, future, (work, *arguments)), daemon=True)
        self._busy[thread] = worker
        thread.start()
        return future

    def elsewhere(self, topic: str) -> bool:
        """Whether only processes that are busy have had a job of a topic."""
        had = [topic in one.topics for one in self._busy.values()]
        return any(had) and not any(topic in one.topics for one in self._idle)

    def stop(self) -> None:
        """Tell every job to stop and save, and wait for it; interrupted again, end them all."""
        try:
            for worker in list(self._busy.values()):
                worker.process.terminate()
            for thread in list(self._busy):
                thread.join()
        except KeyboardInterrupt:
            for worker in list(self._busy.values()):
                worker.process.kill()
            raise
        finally:
            for worker in self._idle:
                worker.leave()

    def _wait(self, worker: _Worker, future: Future[T], job: tuple[Any, ...]) -> None:
        try:
            worker.pipe.send(job)
            fine, answer = worker.pipe.recv()
        except (EOFError, OSError):  # it is gone
            worker.process.join()
            fine, answer = False, _gone(worker.process.exitcode)
        except Exception as error:  # an answer that cannot be read
            fine, answer = False, error
        if (fine or isinstance(answer, UserError)) and worker.process.is_alive():
            self._idle.append(worker)
        else:
            worker.leave()
        del self._busy[current_thread()]
        if fine:
            future.set_result(answer)
        else:
            future.set_exception(answer)


class _Worker:
    """A process, and the pipe to it."""

    def __init__(self, threads: int | None) -> None:
        self.topics: set[str] = set()  # of the jobs that it had
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        try:
            with interrupts.held(), _environment(threads):
                self.process.start()
        except KeyboardInterrupt:  # held back until it had started
            self.process.kill()
            raise
        theirs.close()

    def leave(self) -> None:
        """Let it end; it has no work."""
        self.pipe.close()
        self.process.join(_LEAVING)
        if self.process.is_alive():
            self.process.kill()


@contextmanager
def _environment(threads: int | None) -> Iterator[None]:
    """What a process is started with: libraries count the cores, and do not know of the others."""
    names = [name for name in _THREADS if threads is not None and name not in os.environ]
    os.environ.update({name: str(threads) for name in names})
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


@contextmanager
def workers(*, threads: int | None = None) -> Iterator[Workers]:
    """Processes to work in, each with so many threads, of which none is left at the end."""
    pool = Workers(threads=threads)
    try:
        yield pool
    finally:
        pool.stop()


def _serve(pipe: Connection) -> None:
    """A worker's life: job after job, until there is nobody to give it one.

    What is no user's error may have left torch or the device in any state: it is the last job.
    """
    interrupts.end_with_parent()  # before a job is read, which loads torch
    while True:
        try:
            work, *arguments = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = (True, work(*arguments))
        except KeyboardInterrupt:  # told twice to stop
            return
        except Exception as error:
            error.add_note("".join(traceback.format_exception(error)))
            answer = (False, error)
        try:
            pipe.send(answer)
        except OSError:  # nobody is left to hear it
            return
        if not answer[0] and not isinstance(answer[1], UserError):
            return


def _gone(code: int | None) -> UserError:
    """What is said of a process that ended in the middle of its work."""
    names = {-number: number.name for number in signal.Signals}
    how = names.get(code or 0, f"exit code {code}")
    full = "; memory may have run out" if code == -signal.SIGKILL else ""
    return UserError(
        f"a worker process ended by itself ({how}{full}); run the same command again to go on"
    )
