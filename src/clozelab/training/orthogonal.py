"""Matrices are made nearly orthogonal by odd polynomials of their singular values.

x ← a x + (b x xᵀ + c (x xᵀ)²) x replaces every singular value σ by a σ + b σ³ + c σ⁵. Repeated on
matrices with a Frobenius norm of 1, it brings the values near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

Polynomial = tuple[float, float, float]  # a, b, c

# Muon's own (Jordan et al. 2024), the same in every iteration; found there for the steepest slope
# at zero. The values end between 0.7 and 1.2.
_STEEP = (3.4445, -4.7750, 2.0315)
# Of Polar Express (arXiv:2505.16932, §3 and appendix): the smallest singular value that it is made
# for; the narrowest interval, relative to the largest value, since smaller values would be lifted
# too slowly; and a margin for rounding, which the last polynomial does not need.
_SMALLEST, _NARROWEST, _MARGIN = 1e-3, 0.024073274, 1.01
_CLOSE = 1e-4  # intervals relatively narrower than this are a point to the solver


def orthogonal(matrices: Tensor, polynomials: Sequence[Polynomial]) -> Tensor:
    """[M, R, C] → matrices with the same singular vectors and values near 1.

    In the precision that is fast on the device: the polynomials forgive rounding.
    """
    x = matrices.to(product_dtype(matrices.device))
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for a, b, c in polynomials:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


def steep(iterations: int) -> list[Polynomial]:
    """Muon's polynomial, once for each iteration."""
    return [_STEEP] * iterations


@cache
def polar_express(iterations: int) -> list[Polynomial]:
    """For each iteration the polynomial that brings all values nearest to 1 (arXiv:2505.16932).

    Each is the best one on the interval that the ones before it leave.
    """
    low, high = _SMALLEST, 1.0
    polynomials = []
    for _ in range(iterations):
        polynomial = _nearest_to_one(max(low, _NARROWEST * high), high)
        ends = _values(polynomial, np.array([low, high]))
        polynomial = polynomial * (2 / ends.sum())  # centred on 1 where low is below the interval
        low = float(_values(polynomial, np.array(low)))
        high = 2 - low
        polynomials.append(polynomial)
    margins = _MARGIN ** np.array([1, 3, 5])
    scaled = [*(polynomial / margins for polynomial in polynomials[:-1]), polynomials[-1]]
    return [(float(a), float(b), float(c)) for a, b, c in scaled]


def _nearest_to_one(low: float, high: float) -> np.ndarray:
    """[3] of the odd polynomials of degree 5, the one that is nearest to 1 on an interval.

    By Remez' exchange: its error has the same size, with alternating signs, at both ends and at
    its two extrema between them.
    """
    if high - low < _CLOSE * high:
        middle = (low + high) / 2
        return np.array([15, -10, 3]) / 8 / middle ** np.array([1, 3, 5])
    inner = np.array([low + (high - low) / 4, high - (high - low) / 4])
    error = 0.0
    while True:
        points = np.array([low, *inner, high])
        powers = points[:, None] ** [1, 3, 5]
        *polynomial, largest = np.linalg.solve(
            np.column_stack([powers, [1, -1, 1, -1]]), np.ones(4)
        )
        if abs(largest) <= error:  # it rises until rounding stops it
            return np.array(polynomial)
        error = abs(largest)
        # The extrema are the roots of a + 3 b σ² + 5 c σ⁴.
        a, b, c = polynomial
        root = np.sqrt(9 * b**2 - 20 * a * c)
        inner = np.sqrt((-3 * b + np.array([-root, root])) / (10 * c))


def _values(polynomial: np.ndarray, at: np.ndarray) -> np.ndarray:
    powers: np.ndarray = at[..., None] ** [1, 3, 5] @ polynomial
    return powers


def product_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the processor multiplies it natively, float32 where it would be emulated.

    A CPU without AVX-512's bfloat16 instructions is five to thirty times slower in bfloat16. What
    torch may use of a CPU can be less than what it has (ATEN_CPU_CAPABILITY).
    """
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)  # since Ampere
    else:
        usable = torch.backends.cpu.get_cpu_capability() == "AVX512"
        native = usable and bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    return torch.bfloat16 if native else torch.float32
