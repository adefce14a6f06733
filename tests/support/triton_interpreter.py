"""The kernels on a GPU, or else as Triton's interpreter runs them: one program after another."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not there to run or interpret the kernels")

from triton.runtime.interpreter import ScanOps

from clozelab.kernels import (
    activation,
    attention,
    distances,
    dropout,
    entropy,
    relative,
    rotation,
    sums,
)

__all__ = ["DEVICE", "activation", "attention", "distances", "dropout", "entropy", "relative"]
__all__ += ["rotation", "sums"]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _scan(scan: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Whole columns at a step: the interpreter's own takes a cell, and half a minute for a tile."""
    columns = zip(*(np.moveaxis(each.handle.data, scan.axis, 0) for each in inputs), strict=True)
    steps: list[tuple[Any, ...]] = []
    for column in columns:
        values = [scan.to_tensor(x, each.dtype) for x, each in zip(column, inputs, strict=True)]
        steps.append(scan.combine_fn.fn(*steps[-1], *values) if steps else tuple(values))
    return [
        scan.to_tensor(np.stack([x.handle.data for x in line], axis=scan.axis), each.dtype)
        for line, each in zip(zip(*steps, strict=True), inputs, strict=True)
    ]


ScanOps.generic_scan = _scan
