"""Memory that ran out, on a GPU or a CPU: one error for all that report it, or a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clozelab.errors import UserError

# What torch says on a CPU, where it has no error of its own: on Linux and macOS, and on Windows.
_SAID = ("can't allocate memory", "not enough memory")


def exhausted(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch's own, Python's, or a CPU allocator's."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _SAID)


@contextmanager
def raising_one() -> Iterator[None]:
    """Raise `torch.OutOfMemoryError` whatever memory ran out.

    It is a new error: the old one's traceback holds what filled the memory.
    """
    full = ""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not exhausted(error):
            raise
        full = str(error) or "out of memory"
    if full:
        raise torch.OutOfMemoryError(full)


def check_room(parameters: int, device: torch.device, *, memory: float) -> None:
    """Refuse a model that memory of so many bytes cannot hold, before the system ends the process.

    On a CPU it is trained with its gradients and two moments; elsewhere it is made here first.
    """
    needed = 4 * (4 if device.type == "cpu" else 1) * parameters
    if needed > memory:
        raise UserError(
            f"a model of {parameters / 1e9:,.1f} billion parameters takes {needed / 2**30:,.0f} GiB"
            f" of memory, and this machine has {memory / 2**30:,.0f}; use a smaller --size"
        )


@contextmanager
def room_for(what: str, device: torch.device) -> Iterator[None]:
    """Say in a sentence that memory has no room for something that cannot be smaller."""
    try:
        with raising_one():
            yield
    except torch.OutOfMemoryError:
        raise UserError(
            f"{device}: out of memory for {what}; use a smaller --size, or a machine with more"
        ) from None
