"""Out of memory on a GPU or a CPU: one type of error for all, or a sentence for the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from clozelab.errors import UserError

T = TypeVar("T")
FORWARD_TOKENS = 16_384  # of a batch without gradients; not tuned: enough to fill a device
# Messages of torch's RuntimeError on a CPU: on Linux and macOS, and on Windows.
_CPU_MESSAGES = ("can't allocate memory", "not enough memory")


def exhausted(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch's own, Python's, or a CPU allocator's."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _CPU_MESSAGES)


@contextmanager
def raising_one() -> Iterator[None]:
    """Raise `torch.OutOfMemoryError` for every kind of out-of-memory error.

    It is a new error: the traceback of the old one keeps the tensors alive that filled the memory.
    """
    message = ""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not exhausted(error):
            raise
        message = str(error) or "out of memory"
    if message:
        raise torch.OutOfMemoryError(message)


def halving(
    compute: Callable[[int], T], tokens: int, *, least: int, problem: str, remedy: str
) -> T:
    """The result of `compute(tokens)`, with half as many tokens each time memory runs out.

    It refuses to go below `least` tokens, and names the problem and the remedy.
    """
    while True:
        try:
            with raising_one():
                return compute(tokens)
        except torch.OutOfMemoryError:
            pass  # the tensors stay in memory until the error is gone
        if tokens // 2 < least:
            raise UserError(f"{problem}, {tokens:,} tokens at a time; {remedy}")
        tokens //= 2


def empty_cache(device: torch.device) -> None:
    """Return the memory that torch only caches to a GPU, which others may share."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def check_room(parameters: int, device: torch.device, *, memory: float) -> None:
    """Refuse a model that needs more than `memory` bytes, before the system kills the process.

    A CPU also holds its gradients and two moments; for a GPU the weights are made here first.
    """
    needed = 4 * (4 if device.type == "cpu" else 1) * parameters
    if needed > memory:
        raise UserError(
            f"a model of {parameters / 1e9:,.1f} billion parameters takes"
            f" {needed / 2**30:,.0f} GiB of memory, but this machine has"
            f" {memory / 2**30:,.0f}; use a smaller --size"
        )


@contextmanager
def room_for(what: str, device: torch.device) -> Iterator[None]:
    """Turn an out-of-memory error into a `UserError` that names what did not fit."""
    try:
        with raising_one():
            yield
    except torch.OutOfMemoryError:
        raise UserError(
            f"{device}: out of memory for {what}; use a smaller --size, or a machine with more"
        ) from None
