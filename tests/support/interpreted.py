"""The kernels on a GPU, or else as Triton's interpreter runs them: one program after another."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not there to run or interpret the kernels")

from clozelab.kernels import activation, attention, draws, entropy, relative, rotation, sums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

__all__ = ["DEVICE", "activation", "attention", "draws", "entropy", "relative", "rotation", "sums"]
