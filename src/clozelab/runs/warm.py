"""A cache for a process that trains several runs: compiled models, and texts it has read.

Compiling takes longer than training a short run. Inside `keeping`, a run whose model has the shape
of an earlier one uses that module with its compiled graphs, and sets its own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from clozelab.runs.saving import set_weights

_MOST = 16  # models that are kept; before the next one, all are dropped
T = TypeVar("T")
_kept: dict[str, tuple[nn.Module, ...]] = {}
_shared: dict[Hashable, Any] = {}
_on = False


@contextmanager
def keeping() -> Iterator[None]:
    """Cache compiled models from here on, until `forget` is called."""
    global _on
    before, _on = _on, True
    try:
        yield
    finally:
        _on = before


def keep(shape: str, *models: nn.Module) -> None:
    """Cache a compiled model, and its teacher, for the next run of its shape."""
    if _on:
        if len(_kept) >= _MOST:
            forget()
        _kept[shape] = models


def compiled_for(shape: str, *fresh: nn.Module) -> nn.Module | None:
    """The cached model that was compiled for a shape, with the weights of the fresh one."""
    models = _kept.get(shape) if _on else None
    for old, new in zip(models or (), fresh, strict=models is not None):
        old.zero_grad(set_to_none=True)
        set_weights(old, dict(new.named_parameters()))
    return models[0] if models else None


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """The value of `make()`; inside `keeping` it is cached by its key."""
    if not _on:
        return make()
    if key not in _shared:
        _shared[key] = make()
    value: T = _shared[key]
    return value


def clear() -> None:
    """Free the memory cached on the device, and outside `keeping` the compiled models."""
    if not _on:
        forget()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def forget() -> None:
    """Empty the cache."""
    _kept.clear()
    _shared.clear()
    torch.compiler.reset()
