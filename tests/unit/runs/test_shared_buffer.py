"""Values travel through shared memory as they are, or not at all."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clozelab.runs.shared_buffer import SharedBuffer, TooLarge, Written, write

KINDS = st.sampled_from(["int64", "int32", "bool", "float64", "uint8"])
VALUES = st.lists(arrays.arrays(KINDS, arrays.array_shapes(min_dims=0, min_side=0)), max_size=5)


@given(values=VALUES)
def test_what_is_opened_is_what_was_written(values: list[np.ndarray]) -> None:
    buffer = SharedBuffer(1 << 16)
    written = write(buffer.name, {"values": values, "name": "a"})
    assert isinstance(written, Written)
    with buffer.opened(written) as opened:
        assert plain(opened["values"]) == plain(values) and opened["name"] == "a"
        del opened


def plain(values: list[np.ndarray]) -> list[tuple[object, ...]]:
    return [(value.dtype, value.shape, value.tobytes()) for value in values]


def test_what_does_not_fit_says_how_much_it_needs() -> None:
    buffer, values = SharedBuffer(1), [np.arange(1000), np.arange(7)]
    needed = write(buffer.name, values)
    assert isinstance(needed, TooLarge) and 8056 <= needed.size < 8200
    larger = SharedBuffer(needed.size)
    assert isinstance(write(larger.name, values), Written)


def test_a_buffer_is_freed_with_its_object() -> None:
    buffer = SharedBuffer(10)
    name = buffer.name
    del buffer
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)
