"""What a process that trains one run after another keeps: compiled models, and texts it has read.

Compiling takes longer than a short run trains. Where `keeping` is on, a run whose model has the
shape of an earlier one takes that module over, graphs and all, and gives it its own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from clozelab.runs.saving import set_weights

_MOST = 16  # modules that are kept; with the next one, all begin anew
T = TypeVar("T")
_kept: dict[str, tuple[nn.Module, ...]] = {}
_shared: dict[Hashable, Any] = {}
_on = False


@contextmanager
def keeping() -> Iterator[None]:
    """Keep what is compiled from here on, until `forget` is called."""
    global _on
    before, _on = _on, True
    try:
        yield
    finally:
        _on = before


def keep(shape: str, *models: nn.Module) -> None:
    """Keep a compiled model, and its teacher, for the next run of its shape."""
    if _on:
        if len(_kept) >= _MOST:
            forget()
        _kept[shape] = models


def compiled_for(shape: str, *fresh: nn.Module) -> nn.Module | None:
    """The model that was compiled for a shape, with the weights of a fresh one."""
    models = _kept.get(shape) if _on else None
    for old, new in zip(models or (), fresh, strict=models is not None):
        old.zero_grad(set_to_none=True)
        set_weights(old, dict(new.named_parameters()))
    return models[0] if models else None


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """What is made under a key: each time, or once where it is kept."""
    if not _on:
        return make()
    if key not in _shared:
        _shared[key] = make()
    value: T = _shared[key]
    return value


def clear() -> None:
    """Free what the runs of this process have cached on the device, and compiled unless kept."""
    if not _on:
        forget()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def forget() -> None:
    """Forget everything."""
    _kept.clear()
    _shared.clear()
    torch.compiler.reset()
