"""Steps prepared in other processes, so that preparing does not hold up a GPU.

Python runs one thread of a process at a time: a thread that prepares a step delays the one that
launches kernels by more than its own work takes. So on a GPU the threads of the feed hand their
jobs to other processes, as soon as these have started, and wait. What is prepared is the same. It
travels by shared memory: reading it from a pipe in pieces would delay the other thread again.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, lru_cache
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from clozelab import registry
from clozelab.config import slots
from clozelab.pretraining.steps import StepBlocks, Steps
from clozelab.runs.processes import kept_workers
from clozelab.runs.shared_buffer import SharedBuffer, TooLarge, Written, write
from clozelab.training.feed import Cursor
from clozelab.training.loop import Prepared
from clozelab.training.packing import map_arrays

_BYTES = 1 << 22  # of the buffer of a step at first


class StepProcesses:
    """Prepares steps in `count` processes; here until they have started, or if one fails."""

    def __init__(self, steps: Steps, cursor: Cursor, *, count: int) -> None:
        self._steps, self._cursor, self._works = steps, cursor, True
        # Each corpus in the state in which it was opened, without what is cached in memory.
        stores = [(replace(each, path=each.path.absolute()), w) for each, w in steps.stores]
        names = ("seed", "rank", "size", "tokens", "gpu")
        settings = {name: getattr(steps, name) for name in names}
        try:
            self._record = pickle.dumps((steps.recipe, stores, settings))
            self._pool = _pool(count)
            self._pool.has_opened(self._record, cursor)
        except Exception as error:  # no shared memory, or a process that may have no others
            self._give_up(error)

    @staticmethod
    def can_prepare(steps: Steps) -> bool:
        """Whether other processes can have the steps' text and the recipe's parts.

        Parts from outside may have changed since they were imported here, and a script that
        registers parts would be run again.
        """
        outside = slots.modules(steps.recipe) or registry.script_has_parts()
        return not outside and not any(corpus.is_arriving for corpus, _ in steps.stores)

    def ready(self, picked: StepBlocks, **settings: Any) -> Prepared:
        """A prepared step, as that of `Steps`."""
        if self._works:
            try:
                if self._pool.has_opened(self._record, self._cursor):
                    own = Tensor.pin_memory if self._steps.gpu else Tensor.clone
                    return self._pool.prepare(self._record, picked, settings, own=own)
            except Exception as error:  # an error of the step comes again from here
                self._give_up(error)
        return self._steps.ready(picked, **settings)

    def _give_up(self, error: Exception) -> None:
        self._works = False
        message = f"a thread prepares the steps, no process ({type(error).__name__}: {error})"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Pool:
    """Processes that are kept for later runs, and have the steps of one run open at a time."""

    def __init__(self, count: int) -> None:
        self._count, self._lock = count, Lock()
        self._buffers: SimpleQueue[SharedBuffer] = SimpleQueue()
        for _ in range(count):
            self._buffers.put(SharedBuffer(_BYTES))
        self._workers = kept_workers(threads=1, use="steps")
        self._record = b""
        self._opening: list[Future[None]] = []

    def has_opened(self, record: bytes, cursor: Cursor) -> bool:
        """Whether all processes have the steps of a record open; if not, they begin to open them.

        An error of a process is raised here.
        """
        with self._lock:
            if not all(opening.done() for opening in self._opening):
                return False
            if self._record != record:
                self._record = record
                self._opening = self._workers.submit_to(self._count, _open_at, record, cursor)
                return False
            for opening in self._opening:
                opening.result()
            return True

    def prepare(
        self,
        record: bytes,
        picked: StepBlocks,
        settings: dict[str, Any],
        *,
        own: Callable[[Tensor], Tensor],
    ) -> Prepared:
        """A step that a process has prepared, copied by `own` since buffers are used again."""
        buffer = self._buffers.get()
        try:
            written = self._workers.call(_write, buffer.name, record, picked, settings)
            if isinstance(written, TooLarge):
                buffer = SharedBuffer(2 * written.size)  # later steps may be somewhat larger
                written = self._workers.call(_write, buffer.name, record, picked, settings)
            assert isinstance(written, Written), "this buffer is large enough for the step"
            with buffer.opened(written) as prepared:
                return _map_batches(prepared, lambda array: own(torch.from_numpy(array)))
        finally:
            self._buffers.put(buffer)


@cache
def _pool(count: int) -> _Pool:
    return _Pool(count)


def _open_at(record: bytes, cursor: Cursor) -> None:
    """Open the steps, and plan the blocks that come next."""
    sources = _open(record).sources(cursor.phase)
    for source, (epoch, _) in zip(sources, cursor.places, strict=True):
        source.order(epoch)


@lru_cache(maxsize=2)  # the steps that are timed, and those of the run
def _open(record: bytes) -> Steps:
    recipe, stores, settings = pickle.loads(record)
    return Steps(recipe, stores, **settings)


def _write(
    name: str, record: bytes, picked: StepBlocks, settings: dict[str, Any]
) -> Written | TooLarge:
    """Prepare a step and write it to a buffer."""
    steps = _open(record)
    prepared = steps.prepare(picked, **settings)
    prepared = prepared if steps.size > 1 else replace(prepared, blank=None)
    return write(name, _map_batches(prepared, Tensor.numpy))


def _map_batches(prepared: Prepared, change: Callable[[Any], Any]) -> Prepared:
    """The step with each tensor or array of its batches changed."""
    return replace(
        prepared,
        batches=[map_arrays(batch, change) for batch in prepared.batches],
        blank=None if prepared.blank is None else map_arrays(prepared.blank, change),
    )
