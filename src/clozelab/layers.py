"""The layers of encoders and heads: weights in full precision, arithmetic in the input's.

Parameters stay in the precision they are trained in and are cast where they are used, so that the
precision of a run is the dtype of its activations, and autocast is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Input

Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "tanh"]
Normalisation = Literal["layer", "rms"]


class Linear(nn.Linear):
    """A dense layer in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Norm(nn.LayerNorm):
    """A norm that computes in the precision of its weights.

    "layer" gives zero mean and unit variance, then scales and, with a bias, shifts; "rms"
    (arXiv:1910.07467) divides by the root of the mean square, then scales.
    """

    def __init__(
        self, width: int, *, eps: float, bias: bool = True, kind: Normalisation = "layer"
    ) -> None:
        super().__init__(width, eps=eps, bias=bias and kind == "layer")
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """x, normalised."""
        wide = x.to(self.weight.dtype)
        if self.kind == "rms":
            normal = functional.rms_norm(wide, self.normalized_shape, self.weight, self.eps)
        else:
            normal = functional.layer_norm(
                wide, self.normalized_shape, self.weight, self.bias, self.eps
            )
        return normal.to(x.dtype)


def norm_of(encoder: Any, width: int) -> Norm:
    """A norm of the kind that an encoder and its heads have."""
    return Norm(width, eps=encoder.epsilon, bias=encoder.bias, kind=encoder.normalisation)


class FeedForward(nn.Module):
    """Two dense layers with an activation in between, and their norm, of an encoder's kinds.

    A gated one (arXiv:2002.05202) has twice the inner width: the activation of the first half is
    multiplied by the second, GeGLU with gelu and SwiGLU with silu.
    """

    activation: Activation

    def __init__(self, encoder: Any, inner: int, *, gated: bool = False) -> None:
        super().__init__()
        width, bias = encoder.hidden_size, encoder.bias
        self.inner = Linear(width, 2 * inner if gated else inner, bias=bias)
        self.output = Linear(inner, width, bias=bias)
        self.norm = norm_of(encoder, width)
        self.activation, self.gated = encoder.activation, gated

    def forward(self, x: Tensor) -> Tensor:
        """The output of the two layers; norm, residual and dropout are the caller's."""
        hidden: Tensor = self.inner(x)
        if self.gated:
            hidden, gate = hidden.chunk(2, dim=-1)
            hidden = activate(hidden, self.activation) * gate
        else:
            hidden = activate(hidden, self.activation)
        out: Tensor = self.output(hidden)
        return out


_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "silu": functional.silu,
    "tanh": torch.tanh,
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply the activation of that name."""
    return _ACTIVATIONS[activation](x)


class Rows(NamedTuple):
    """Which rows of a tensor are computed."""

    at: Tensor  # [T] their indices
    of: int  # the number of all rows


def row_length(batch: Input) -> int:
    """The length of rows when blocks are padded to rows: the longest that a block may have.

    On a CPU only that of the longest block; elsewhere constant shapes are better.
    """
    if batch.ids.device.type != "cpu" or torch.compiler.is_compiling():
        return batch.max_seqlen
    return max(1, int(batch.cu_seqlens.diff().max()))


def rectangle(batch: Input) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks as padded rows: [B · L] tokens of cells, [N] cells of tokens, [B, L] real cells.

    The cells of an empty block count as real, since a softmax over nothing is NaN.
    """
    columns = torch.arange(batch.max_seqlen, device=batch.ids.device)
    first, lengths = batch.cu_seqlens[:-1].long(), batch.cu_seqlens.diff().long()
    tokens = (first[:, None] + columns).clamp(max=len(batch.ids) - 1)
    numbers = torch.arange(len(batch.ids), device=batch.ids.device, dtype=batch.cu_seqlens.dtype)
    # Not in a slice of the tensor: compiled for a GPU, the search would ignore its offset.
    rows = torch.searchsorted(batch.cu_seqlens, numbers, right=True) - 1
    cell = rows * batch.max_seqlen + batch.position_ids
    seen = (columns < lengths[:, None]) | (lengths[:, None] == 0)
    return tokens.flatten(), cell, seen


def drop(x: Tensor, rate: float, training: bool, rows: Rows | None = None) -> Tensor:
    """Dropout; nothing is computed without it.

    If x has only some rows of a tensor, they are dropped as if all were there. On a GPU most of the
    cost is drawing: there one draw of 64 bits serves four numbers, and the rate is rounded to
    1 / 65 536.
    """
    if not (training and rate):
        return x
    shape = x.shape if rows is None else (rows.of, *x.shape[1:])
    size = math.prod(shape)
    if not x.is_cuda or size % 4:
        if rows is None:
            return functional.dropout(x, rate, training=True)
        factors = functional.dropout(x.new_ones(shape), rate, training=True)
        return x * factors.index_select(0, rows.at)
    bits = torch.randint(-(2**63), 2**63 - 1, (size // 4,), device=x.device)
    dropped = round(rate * 2**16)
    kept = bits.view(torch.int16).view(shape) >= dropped - 2**15
    kept = kept if rows is None else kept.index_select(0, rows.at)
    return torch.where(kept, x * (2**16 / (2**16 - dropped)), 0)


_drawn = ContextVar("_drawn", default=True)  # whether weights are initialised


@contextmanager
def unset_weights() -> Iterator[None]:
    """Leave the weights of new modules uninitialised, since all will be read from a file."""
    token = _drawn.set(False)
    try:
        yield
    finally:
        _drawn.reset(token)


@torch.no_grad()
def initialise(module: nn.Module, width: int) -> None:
    """Initialise as BERT A.2: matrices and tables from a normal truncated at 2σ, biases zero.

    Differs from BERT A.2: σ = 0.02 suits a width of 768; narrower encoders have a larger one, so
    that a layer adds as much to its input at any width (docs/decisions/7-start.md).
    """
    if not _drawn.get():
        return
    deviation = 0.02 * max(1.0, 768 / width) ** 0.5
    for name, parameter in module.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        elif parameter.dim() > 1:
            bound = 2 * deviation
            nn.init.trunc_normal_(parameter, std=deviation, a=-bound, b=bound)
        else:
            parameter.zero_()
