"""What encoders and heads are made of: weights in full precision, arithmetic in the input's.

Parameters stay in the precision they are trained in and are cast where they are used, so that the
whole precision of a run is the type of its activations and needs no context around it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["gelu", "gelu_tanh", "relu", "tanh"]


class Linear(nn.Linear):
    """A dense layer in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Norm(nn.LayerNorm):
    """A layer norm that computes in the precision of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero mean, unit variance, then scale and shift."""
        wide = x.to(self.weight.dtype)
        normal = functional.layer_norm(
            wide, self.normalized_shape, self.weight, self.bias, self.eps
        )
        return normal.to(x.dtype)


class FeedForward(nn.Module):
    """Two dense layers around an activation, with the norm that belongs to them."""

    def __init__(self, width: int, inner: int, *, activation: Activation, epsilon: float) -> None:
        super().__init__()
        self.inner = Linear(width, inner)
        self.output = Linear(inner, width)
        self.norm = Norm(width, eps=epsilon)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """The two layers; norm, residual and dropout are the caller's."""
        hidden: Tensor = self.inner(x)
        out: Tensor = self.output(activate(hidden, self.activation))
        return out


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation of that name."""
    if activation in ("relu", "tanh"):
        return functional.relu(x) if activation == "relu" else torch.tanh(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def drop(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout, which costs nothing where there is none.

    On a GPU drawing is what dropout costs: there one draw of 64 bits serves four numbers, and the
    rate is kept to 1 / 65 536.
    """
    if not (training and rate):
        return x
    if not x.is_cuda or x.numel() % 4:
        return functional.dropout(x, rate, training=True)
    drawn = torch.randint(-(2**63), 2**63 - 1, (x.numel() // 4,), device=x.device)
    dropped = round(rate * 2**16)
    stays = drawn.view(torch.int16).view(x.shape) >= dropped - 2**15
    return torch.where(stays, x * (2**16 / (2**16 - dropped)), 0)


@torch.no_grad()
def initialise(module: nn.Module, width: int) -> None:
    """BERT A.2's start: matrices and tables from a normal cut at two deviations, biases zero.

    Differs from BERT A.2: narrow encoders start wider than 0.02, which suits a width of 768, so
    that a layer adds as much to its input at any width (docs/decisions/7-start.md).
    """
    deviation = 0.02 * max(1.0, 768 / width) ** 0.5
    for name, parameter in module.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        elif parameter.dim() > 1:
            bound = 2 * deviation
            nn.init.trunc_normal_(parameter, std=deviation, a=-bound, b=bound)
        else:
            parameter.zero_()
