"""The kernels on a GPU, or else as Triton's interpreter runs them: one program after another."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not there to run or interpret the kernels")

from triton.runtime.interpreter import ScanOps

from clozelab.kernels import activation, attention, draws, entropy, relative, rotation, sums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

__all__ = ["DEVICE", "activation", "attention", "draws", "entropy", "relative", "rotation", "sums"]


def _scanned(scan: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """A scan whose steps take whole columns; the interpreter's own take a cell, a minute a test."""
    lines = [np.moveaxis(one.handle.data, scan.axis, 0) for one in inputs]
    steps: list[tuple[Any, ...]] = []
    for cells in zip(*lines, strict=True):
        here = tuple(scan.to_tensor(cell, one.dtype) for cell, one in zip(cells, inputs, strict=True))
        steps.append(scan.combine_fn.fn(*steps[-1], *here) if steps else here)
    columns = zip(*steps, strict=True)
    return [
        scan.to_tensor(np.stack([step.handle.data for step in column], axis=scan.axis), one.dtype)
        for column, one in zip(columns, inputs, strict=True)
    ]


ScanOps.generic_scan = _scanned
