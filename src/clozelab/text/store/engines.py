"""Where the tasks of a build run: in processes of this machine, or on a Ray cluster."""

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

import tokenizers

from clozelab import cluster, interrupts
from clozelab.errors import UserError
from clozelab.text import near
from clozelab.text.building import BuildOptions, cores
from clozelab.text.reading.sentences import splitter
from clozelab.text.store.shards import TokenisingSettings
from clozelab.text.store.tasks import PortionEnd, ShardCut, ShardMade, ShardReader, make_shard
from clozelab.text.words import segmenter

_WORK = "work"  # in the build's folder, for its processes
_RETRIES = 5  # of a task whose worker or node died, by Ray; what is still lost is read again
_FED = 8  # cores that one reader on a node can keep busy; no measurement is recorded

Task = Any  # one that was submitted


class TaskLost(Exception):  # noqa: N818 - not an error of the task
    """A task, or what it was to work on, went down with a node."""


class ShardSource(Protocol):
    """Cuts a portion of the text; what it gives is for `submit`."""

    def next(self) -> Any:
        """The next cut, or a promise of it."""
        ...

    def close(self) -> None:
        """Read no further."""
        ...


class Engine(Protocol):
    """Runs tasks and readers somewhere."""

    def prepare(self, settings: TokenisingSettings, folder: Path) -> None:
        """Tell the settings of all tasks, once; `folder` is the build's."""
        ...

    @property
    def width(self) -> int:
        """How many tasks are to be under way, so that no core waits and memory is bounded."""
        ...

    @property
    def readers(self) -> int:
        """How many readers are to be at work."""
        ...

    def reader(self, *arguments: Any) -> ShardSource:
        """A `ShardReader`, here or elsewhere; its portion comes first."""
        ...

    def submit(self, cut: Any) -> Task:
        """Have a shard made of what a reader gave."""
        ...

    def first_done(self, tasks: Collection[Task]) -> Collection[Task]:
        """Wait until some are done."""
        ...

    def result(self, task: Task) -> Any:
        """What a task came to that is done; raises its error, or `TaskLost`."""
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
    """Processes of this machine, never outliving their parent, deaf to Ctrl-C; it reads itself."""

    readers = 1

    def __init__(self, *, workers: int) -> None:
        self.width, self._workers = workers + 1, workers
        self._pool: ProcessPoolExecutor | None = None

    def prepare(self, settings: TokenisingSettings, folder: Path) -> None:
        """Start the processes."""
        # A process that dies while it starts reads nothing more: what is handed to it at its start
        # must fit into a pipe, or whoever hands it over would wait for ever.
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
        """One in this process."""
        return ShardReader(*arguments)

    def submit(self, cut: Any) -> Future[Any]:
        """Hand a task to a process."""
        assert self._pool is not None
        with interrupts.held():
            return self._pool.submit(run, cut)

    def first_done(self, tasks: Collection[Future[Any]]) -> set[Future[Any]]:
        """Wait until some are done."""
        return interrupts.first_done(tasks)

    def result(self, task: Future[Any]) -> Any:
        """What it came to."""
        return task.result()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._work.unlink(missing_ok=True)


class _Process:
    """What a worker process holds between tasks."""

    settings: ClassVar[TokenisingSettings]
    folder: ClassVar[Path]


def start(folder: str) -> None:
    """Make ready a worker process; it ends when its parent does, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _set_up()
    interrupts.end_with_parent()
    _Process.folder = Path(folder)
    _Process.settings = TokenisingSettings.read(_Process.folder / _WORK)


def run(cut: ShardCut) -> ShardMade | PortionEnd:
    """A task, in a worker process, which writes the shard itself.

    A process that is killed in the middle of a long answer would leave whoever reads it waiting.
    """
    shard = make_shard(_Process.settings, cut)
    return shard.save(_Process.folder) if isinstance(shard, ShardMade) else shard


class RayEngine:
    """The nodes of a Ray cluster; what is at URLs is read there, everything else here."""

    def __init__(self, ray: Any, *, workers: int | None) -> None:
        self._ray, self._workers = ray, workers
        self._task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run_on_node)
        self._reader = ray.remote(num_cpus=0)(ShardReader)

    def prepare(self, settings: TokenisingSettings, folder: Path) -> None:
        """Put the settings where every node finds them."""
        self._settings, self._versions = self._ray.put(settings), versions(settings)

    @property
    def _cores(self) -> int:
        return self._workers or max(int(self._ray.cluster_resources().get("CPU", 0)), 1)

    @property
    def width(self) -> int:
        """A task for each core, and some that wait for the next free one."""
        return self._cores + max(self._cores // 4, 1)

    @property
    def readers(self) -> int:
        """So many that they keep all cores busy."""
        return -(-self._cores // _FED)

    def reader(self, *arguments: Any) -> ShardSource:
        """One on a node for what any machine can read, otherwise in this process."""
        portion, *_ = arguments
        if not portion.is_remote:
            return ShardReader(*arguments)
        return _NodeReader(self._reader.remote(*arguments))

    def submit(self, cut: Any) -> Any:
        """Have a task run on any node; what it works on may still be on its way."""
        return self._task.remote(self._settings, self._versions, cut)

    def first_done(self, tasks: Collection[Any]) -> list[Any]:
        """Wait until one is done; its result stays where it is until it is asked for."""
        refs = [*tasks]

        def look(limit: float) -> list[Any]:
            done: list[Any]
            done, _ = self._ray.wait(refs, num_returns=1, timeout=limit, fetch_local=False)
            return done

        return interrupts.awaited(look)

    def result(self, task: Any) -> Any:
        """What it came to."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.RayError as error:
            cause = error
            while isinstance(cause, errors.RayTaskError):  # also of what it was to work on
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
        self._actor = None  # it ends when it has given what it was asked for


def _run_on_node(
    settings: TokenisingSettings, expected: str, cut: ShardCut | PortionEnd
) -> ShardMade | PortionEnd:
    """A task, in a worker process of a node, if that would come to what it would come to here."""
    _set_up()
    if (installed := versions(settings)) != expected:
        raise UserError(
            f"--on: the node {os.uname().nodename} has {installed}, and this machine {expected};"
            " install the same versions on every node"
        )
    return make_shard(settings, cut)


def versions(settings: TokenisingSettings) -> str:
    """What shapes tokens besides text and settings, as it is installed here."""
    names = [f"tokenizers {tokenizers.__version__}", splitter(settings.sentences).name]  # type: ignore[arg-type]
    if settings.segment:
        names.append(segmenter() or "no rjieba")
    if settings.comparison.near:
        near.check()
        names.append(near.algorithm())
    return ", ".join(names)


@cache
def _set_up() -> None:
    """Make a process ready for tasks, once."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    gc.set_threshold(1_000_000)  # millions of strings and no cycles: looking often costs a fifth
