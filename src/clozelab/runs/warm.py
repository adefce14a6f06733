"""A cache for a process that trains several runs: compiled models, and texts it has read.

Compiling takes longer than training a short run. Inside `keeping`, a run whose model has the shape
of an earlier one uses that module with its compiled graphs, and sets its own weights.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from clozelab.runs.saving import set_weights

_MOST = 16  # models that are kept; before the next one, all are dropped
_MOST_MEMORY = 0.5  # of this process's part of a GPU: a micro-batch may need the other half
T = TypeVar("T")
_kept: dict[str, tuple[nn.Module, ...]] = {}
_shared: dict[Hashable, Any] = {}
_on, _sharers = False, 1


@contextmanager
def keeping(*, sharers: int = 1) -> Iterator[None]:
    """Cache compiled models from here on, until `forget` is called.

    So many processes share the GPU: with their CUDA graphs the models may have a half of one part.
    """
    global _on, _sharers
    before, _on, _sharers = (_on, _sharers), True, sharers
    try:
        yield
    finally:
        _on, _sharers = before


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
    """Free what is no longer used, and the compiled models outside `keeping` or if too large."""
    if not _on:
        forget()
    if _release() > _MOST_MEMORY:
        _forget_models()
        _release()


def forget() -> None:
    """Empty the cache."""
    _forget_models()
    _shared.clear()


def _forget_models() -> None:
    """Drop the compiled models, with their CUDA graphs."""
    _kept.clear()
    torch.compiler.reset()


def _release() -> float:
    """Give unused memory back to the GPU; returns the share that is left of this process's part."""
    gc.collect()  # a compiled module refers to itself
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0.0
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    return torch.cuda.memory_reserved() * _sharers / total
