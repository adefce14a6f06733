"""A pool of worker processes: they stop when this process is told to, and end with it.

They ignore Ctrl-C, which a terminal sends to all processes: this process passes it on, once.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar

from clozelab import interrupts, registry
from clozelab.errors import UserError

T = TypeVar("T")
_EXIT_SECONDS = 10  # that an idle process may take to end
# Of linear algebra, and of tokenizers.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
_PART = "CLOZELAB_THREADS"  # the threads that a pool gave this process


class Workers:
    """A pool of worker processes; one that dies does not affect the jobs of others."""

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads  # of each process
        self._idle: list[_Worker] = []
        self._busy: dict[Thread, _Worker] = {}
        self._lock = Lock()  # of the idle ones

    def submit(self, work: Callable[..., T], *arguments: Any, topic: str = "") -> Future[T]:
        """Start a job; returns the future of its result.

        An idle process that had a job of the same `topic` is preferred: its caches are warm. One
        that was killed while it was idle gets no job.
        """
        return self._start(self._take(topic), (work, *arguments))

    def submit_to(self, count: int, work: Callable[..., T], *arguments: Any) -> list[Future[T]]:
        """Start a job in each of `count` processes."""
        taken = [self._take() for _ in range(count)]
        return [self._start(worker, (work, *arguments)) for worker in taken]

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a job, and wait in this thread for its result."""
        succeeded, answer = self._ask(self._take(), (work, *arguments))
        if not succeeded:
            raise answer
        result: T = answer
        return result

    def elsewhere(self, topic: str) -> bool:
        """Whether all processes that have had a job of a topic are busy."""
        busy = list(self._busy.values())  # threads of jobs that end remove theirs meanwhile
        had = [topic in worker.topics for worker in busy]
        return any(had) and not any(topic in worker.topics for worker in self._idle)

    def stop(self) -> None:
        """Tell every job to stop and save, and wait for it; if interrupted again, kill them all.

        A job that is submitted later gets a new process.
        """
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
                worker.pipe.close()  # all end at the same time
            while self._idle:
                self._idle.pop().leave()

    def _take(self, topic: str = "") -> _Worker:
        """An idle process, or a new one."""
        with self._lock:
            for dead in [idle for idle in self._idle if not idle.process.is_alive()]:
                self._idle.remove(dead)
                dead.leave()
            worker = next((idle for idle in self._idle if topic in idle.topics), None)
            if worker is not None:
                self._idle.remove(worker)
            else:
                worker = self._idle.pop() if self._idle else _Worker(self.threads)
        worker.topics.add(topic)
        return worker

    def _start(self, worker: _Worker, job: tuple[Any, ...]) -> Future[Any]:
        """Start a job in a process; a thread waits for its result."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        thread = Thread(target=self._wait, args=(worker, future, job), daemon=True)
        self._busy[thread] = worker
        thread.start()
        return future

    def _wait(self, worker: _Worker, future: Future[Any], job: tuple[Any, ...]) -> None:
        succeeded, answer = self._ask(worker, job)
        del self._busy[current_thread()]
        if succeeded:
            future.set_result(answer)
        else:
            future.set_exception(answer)

    def _ask(self, worker: _Worker, job: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether a job succeeded, and its result or its error; the process is idle again."""
        try:
            worker.pipe.send(job)
            succeeded, answer = worker.pipe.recv()
        except (EOFError, OSError):  # the process has died
            worker.process.join()
            succeeded, answer = False, _death(worker.process.exitcode)
        except Exception as error:  # a job that cannot be sent, or an answer that cannot be read
            succeeded, answer = False, error
        if (succeeded or isinstance(answer, UserError)) and worker.process.is_alive():
            self._idle.append(worker)
        else:
            worker.leave()
        return succeeded, answer


class _Worker:
    """A worker process, and the pipe to it."""

    def __init__(self, threads: int | None) -> None:
        self.topics: set[str] = set()  # of the jobs that it had
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        try:
            with interrupts.held(), _environment(threads), registry.starting_processes():
                self.process.start()
        except KeyboardInterrupt:  # held back until it had started
            self.process.kill()
            raise
        theirs.close()

    def leave(self) -> None:
        """End the process, which is idle."""
        self.pipe.close()
        self.process.join(_EXIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()


@contextmanager
def _environment(threads: int | None) -> Iterator[None]:
    """The environment of new processes: their threads, since libraries would take all cores.

    What the user has set stays; what a pool has set for this process, its own processes share.
    """
    if threads is None:
        yield
        return
    ours = (None, os.environ.get(_PART))
    before = {name: os.environ.get(name) for name in _THREADS if os.environ.get(name) in ours}
    before[_PART] = ours[1]
    os.environ.update(dict.fromkeys(before, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def workers(*, threads: int | None = None) -> Iterator[Workers]:
    """A pool of processes with so many threads each; all have ended on exit."""
    pool = Workers(threads=threads)
    try:
        yield pool
    finally:
        pool.stop()


@cache
def kept_workers(*, threads: int, use: str = "") -> Workers:
    """A pool that is kept for later calls of the same use, and ends with this process."""
    pool = Workers(threads=threads)
    Finalize(None, pool.stop, exitpriority=0)  # before this process waits for those of the pool
    return pool


def _serve(pipe: Connection) -> None:
    """Run jobs in a worker process until the pipe is closed.

    After an error that is no `UserError` it ends: torch or the device may be in any state.
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
        except OSError:  # the parent is gone
            return
        if not answer[0] and not isinstance(answer[1], UserError):
            return


def _death(code: int | None) -> UserError:
    """The error of a job whose process died."""
    names = {-number: number.name for number in signal.Signals}
    how = names.get(code or 0, f"exit code {code}")
    full = "; memory may have run out" if code == -signal.SIGKILL else ""
    return UserError(f"a worker process died ({how}{full}); run the same command again to continue")
