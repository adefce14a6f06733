"""The engines that run the tasks of a build: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Protocol

from clozelab import cluster, interrupts, registry
from clozelab.errors import UserError
from clozelab.text.building import BuildOptions, cores
from clozelab.text.store.shards import TokenisingSettings
from clozelab.text.store.tasks import PortionEnd, ShardCut, ShardMade, ShardReader, make_shard

_WORK = "work"  # a file in the build's folder: the settings for its processes
_RETRIES = 5  # by Ray, of a task whose worker or node died; text that is still lost is read again
_FED = 8  # cores that one reader on a node can keep busy; no measurement is recorded

Task = Any  # a submitted task


class TaskLost(Exception):  # noqa: N818 - not an error of the task
    """A task or its input was lost with a node."""


class ShardSource(Protocol):
    """Cuts a portion of the text into shards for `submit`."""

    def next(self) -> Any:
        """The next cut, or a reference to it on a node."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class Engine(Protocol):
    """Runs tasks and readers."""

    def prepare(self, settings: TokenisingSettings, folder: Path) -> None:
        """Hand out the settings of all tasks, once; `folder` is the build's."""
        ...

    @property
    def width(self) -> int:
        """How many tasks to keep submitted, so that no core waits and memory is bounded."""
        ...

    @property
    def readers(self) -> int:
        """How many readers to run at a time."""
        ...

    def reader(self, *arguments: Any) -> ShardSource:
        """A `ShardReader` with these arguments, here or on a node; the portion comes first."""
        ...

    def submit(self, cut: Any) -> Task:
        """Submit the task that makes a shard of a reader's cut."""
        ...

    def first_done(self, tasks: Collection[Task]) -> Collection[Task]:
        """Wait until some tasks are done, and return these."""
        ...

    def result(self, task: Task) -> Any:
        """The result of a finished task; raises its error, or `TaskLost`."""
        ...


@contextmanager
def engine(options: BuildOptions) -> Iterator[Engine]:
    """The engine that the options ask for."""
    if options.on is None:
        processes = ProcessEngine(workers=options.workers or cores())
        try:
            yield processes
        finally:
            processes.close()
    else:
        with cluster.connected(options.on) as ray:
            yield RayEngine(ray, workers=options.workers)


class ProcessEngine:
    """Processes of this machine, which ignore Ctrl-C and end with their parent; it reads itself."""

    readers = 1

    def __init__(self, *, workers: int) -> None:
        self.width, self._workers = workers + 1, workers
        self._pool: ProcessPoolExecutor | None = None

    def prepare(self, settings: TokenisingSettings, folder: Path) -> None:
        """Start the processes."""
        # If a process died while starting, writing more than fits into its pipe would block for
        # ever; so it is given only the path of the settings.
        self._work = folder / _WORK
        settings.write(self._work)
        with interrupts.held():
            self._pool = ProcessPoolExecutor(
                self._workers,
                mp_context=get_context("spawn"),
                initializer=start,
                initargs=(str(folder),),
            )

    def reader(self, *arguments: Any) -> ShardSource:
        """A reader in this process."""
        return ShardReader(*arguments)

    def submit(self, cut: Any) -> Future[Any]:
        """Submit a task to the pool."""
        assert self._pool is not None
        with interrupts.held(), registry.starting_processes():  # they start when they are needed
            return self._pool.submit(run, cut)

    def first_done(self, tasks: Collection[Future[Any]]) -> set[Future[Any]]:
        """Wait until some tasks are done, and return these."""
        return interrupts.first_done(tasks)

    def result(self, task: Future[Any]) -> Any:
        """The result of a finished task."""
        return task.result()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._work.unlink(missing_ok=True)


class _Process:
    """The state of a worker process between tasks."""

    settings: ClassVar[TokenisingSettings]
    folder: ClassVar[Path]


def start(folder: str) -> None:
    """Initialise a worker process, which ends when its parent ends in any way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _set_up()
    interrupts.end_with_parent()
    _Process.folder = Path(folder)
    _Process.settings = TokenisingSettings.read(_Process.folder / _WORK)


def run(cut: ShardCut) -> ShardMade | PortionEnd:
    """Run a task in a worker process, which writes the shard itself.

    If a process were killed while it sends a large result, the parent would wait for ever.
    """
    shard = make_shard(_Process.settings, cut)
    return shard.save(_Process.folder) if isinstance(shard, ShardMade) else shard


class RayEngine:
    """The nodes of a Ray cluster; text at URLs is read on nodes, other text here."""

    def __init__(self, ray: Any, *, workers: int | None) -> None:
        self._ray, self._workers = ray, workers
        self._task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run_on_node)
        self._reader = ray.remote(num_cpus=0)(ShardReader)

    def prepare(self, settings: TokenisingSettings, folder: Path) -> None:
        """Put the settings into Ray's object store."""
        self._settings, self._versions = self._ray.put(settings), settings.versions()

    @property
    def _cores(self) -> int:
        return self._workers or max(int(self._ray.cluster_resources().get("CPU", 0)), 1)

    @property
    def width(self) -> int:
        """A task for each core, and a quarter more that wait for the next free one."""
        return self._cores + max(self._cores // 4, 1)

    @property
    def readers(self) -> int:
        """As many as keep all cores busy."""
        return -(-self._cores // _FED)

    def reader(self, *arguments: Any) -> ShardSource:
        """A reader on a node for text at URLs, otherwise in this process."""
        portion, *_ = arguments
        if not portion.is_remote:
            return ShardReader(*arguments)
        return _NodeReader(self._reader.remote(*arguments))

    def submit(self, cut: Any) -> Any:
        """Submit a task to any node; its cut may still be a reference."""
        return self._task.remote(self._settings, self._versions, cut)

    def first_done(self, tasks: Collection[Any]) -> list[Any]:
        """Wait until a task is done, without fetching its result."""
        refs = [*tasks]

        def wait(limit: float) -> list[Any]:
            done: list[Any]
            done, _ = self._ray.wait(refs, num_returns=1, timeout=limit, fetch_local=False)
            return done

        return interrupts.awaited(wait)

    def result(self, task: Any) -> Any:
        """The result of a finished task."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.RayError as error:
            cause = error
            while isinstance(cause, errors.RayTaskError):  # its own, or of its input
                cause = cause.cause
            if isinstance(cause, errors.RayError):
                raise TaskLost(" ".join(str(cause).split())) from None
            raise (cause if isinstance(cause, UserError) else error) from None


class _NodeReader:
    """A reader on a node."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def next(self) -> Any:
        return self._actor.next.remote()

    def close(self) -> None:
        self._actor = None  # it ends when its pending calls are done


def _run_on_node(
    settings: TokenisingSettings, expected: list[str], cut: ShardCut | PortionEnd
) -> ShardMade | PortionEnd:
    """Run a task on a node, if the same versions are installed there as here."""
    _set_up()
    if (installed := settings.versions()) != expected:
        raise UserError(
            f"--on: the node {os.uname().nodename} has {', '.join(installed)}, and this machine"
            f" {', '.join(expected)}; install the same versions on every node"
        )
    return make_shard(settings, cut)


@cache
def _set_up() -> None:
    """Configure a process for tasks, once."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    gc.set_threshold(1_000_000)  # there are millions of strings and no cycles: saves a fifth
