"""Steps prepared in other processes, so that preparing does not hold up a GPU.

Python runs one thread of a process at a time: a thread that prepares a step delays the one that
launches kernels by more than its own work takes. So on a GPU the threads of the feed hand their
jobs to other processes, as soon as these have started, and wait. What is prepared is the same. It
travels by shared memory: reading it from a pipe in pieces would delay the other thread again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from clozelab import registry
from clozelab.pretraining.steps import StepBlocks, Steps
from clozelab.runs.processes import kept_workers
from clozelab.runs.shared_buffer import SharedBuffer, TooLarge, Written, write
from clozelab.training.loop import Prepared
from clozelab.training.packing import map_arrays

_BYTES = 1 << 22  # of the buffer of a step at first


class StepProcesses:
    """Prepares steps in `count` processes, which are kept for later runs; here until they start.

    If one fails, as where memory runs out, this process prepares the rest.
    """

    def __init__(self, steps: Steps, *, count: int) -> None:
        # Each corpus in the state in which it was opened, without what is cached in memory.
        stores = [(replace(each, path=each.path.absolute()), w) for each, w in steps.stores]
        names = ("seed", "rank", "size", "tokens", "gpu")
        settings = {name: getattr(steps, name) for name in names}
        self._steps, self._record = steps, pickle.dumps((steps.recipe, stores, settings))
        self._buffers: SimpleQueue[SharedBuffer] = SimpleQueue()
        for _ in range(count):
            self._buffers.put(SharedBuffer(_BYTES))
        self._workers = kept_workers(threads=1)
        self._starting = self._workers.submit_to(count, _start, self._record)
        self._works: bool | None = None  # None: not all have started

    @staticmethod
    def serve(steps: Steps) -> bool:
        """Whether other processes can have the steps' text and the recipe's parts.

        A script that registers parts would be run again by each process.
        """
        arriving = any(corpus.is_arriving for corpus, _ in steps.stores)
        return not arriving and not registry.script_has_parts()

    def ready(self, picked: StepBlocks, **settings: Any) -> Prepared:
        """A prepared step, as that of `Steps`."""
        if self._works is None and all(started.done() for started in self._starting):
            self._works = not any(started.exception() for started in self._starting)
        if self._works:
            try:
                return self._received(picked, settings)
            except Exception:  # an error of the step comes again from here
                self._works = False
        return self._steps.ready(picked, **settings)

    def _received(self, picked: StepBlocks, settings: dict[str, Any]) -> Prepared:
        """A step that another process has prepared."""
        buffer = self._buffers.get()
        try:
            written = self._written(buffer, picked, settings)
            if isinstance(written, TooLarge):
                buffer = SharedBuffer(2 * written.size)  # later steps may be somewhat larger
                written = self._written(buffer, picked, settings)
            assert isinstance(written, Written), "this buffer is large enough for the step"
            with buffer.opened(written) as prepared:
                # A copy, since the buffer is written to again.
                tensors = _map_batches(prepared, torch.from_numpy)
                return _map_batches(tensors, Tensor.pin_memory if self._steps.gpu else Tensor.clone)
        finally:
            self._buffers.put(buffer)

    def _written(
        self, buffer: SharedBuffer, picked: StepBlocks, settings: dict[str, Any]
    ) -> Written | TooLarge:
        return self._workers.call(_write, buffer.name, self._record, picked, settings)


def _start(record: bytes) -> None:
    """Open the steps, and plan the blocks that they begin with."""
    for source in _open(record).sources(0):
        source.order(0)


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
