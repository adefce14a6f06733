"""Values that travel between processes with their arrays in shared memory, not through a pipe."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import accumulate
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

_ALIGNED = 64  # bytes: each array begins at a multiple of it


class Written(NamedTuple):
    """A value whose arrays are in a buffer, one after another; all but these is pickled."""

    pickled: bytes
    sizes: Sequence[int]  # of the arrays, in bytes


class TooLarge(NamedTuple):
    """A value that does not fit into a buffer."""

    size: int  # in bytes


class SharedBuffer:
    """Shared memory of this process, which others write to; freed with this object."""

    def __init__(self, size: int) -> None:
        self._memory = SharedMemory(create=True, size=size)
        self.name = self._memory.name
        weakref.finalize(self, _free, self._memory)

    @contextmanager
    def opened(self, written: Written) -> Iterator[Any]:
        """Yield the value that was written; its arrays must not be used afterwards."""
        starts = _starts(written.sizes)
        with _bytes(self._memory)[:] as memory:
            views = [memory[a : a + n] for a, n in zip(starts, written.sizes, strict=False)]
            yield pickle.loads(written.pickled, buffers=views)


def write(name: str, value: Any) -> Written | TooLarge:
    """Write a value to another process's buffer."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    sizes = [array.nbytes for array in arrays]
    *starts, size = _starts(sizes)
    memory = _bytes(_attached(name))
    if size > len(memory):
        return TooLarge(size)
    for start, array in zip(starts, arrays, strict=True):
        memory[start : start + array.nbytes] = array
    return Written(pickled, sizes)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each array begins, and the end of the last one."""
    return [0, *accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]


def _bytes(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None, "the buffer is open"
    return memory.buf


@lru_cache(maxsize=16)
def _attached(name: str) -> SharedMemory:
    return SharedMemory(name)


def _free(memory: SharedMemory) -> None:
    memory.unlink()
    with suppress(BufferError):  # an array still uses it, and frees it when it goes
        memory.close()
