"""The kernels as Triton's interpreter runs them: on a CPU, one program after another."""

import pytest

pytest.importorskip("triton", reason="Triton is not there to interpret the kernels")

from clozelab.kernels import activation, attention, draws, relative, sums

__all__ = ["activation", "attention", "draws", "relative", "sums"]
