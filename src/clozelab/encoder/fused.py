"""The layers of a `Stack` by the Triton kernels of `kernels/`, for half precision on a GPU.

`streams.py` uses the half-layers of this module in XLNet's streams.

The same arithmetic as the plain layers in fewer passes over memory. The biases of linear layers are
added, and their gradients summed, by the kernel that follows: the activation, or the residual sum
with dropout and norm. Rotary embedding, sliding windows and scores by relative position are inside
the attention kernels. Dropout masks are counter-based: hashes of a seed, drawn for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozelab.encoder.attention import Layout, Scope
from clozelab.layers import FeedForward, Linear, Norm

if TYPE_CHECKING:
    from clozelab.encoder.self_attention import Attention
    from clozelab.encoder.stack import Stack
    from clozelab.encoder.transformer import Transformer


# The values of an encoder's settings that the kernels support; of settings not named, all. Other
# layers are computed plainly; in a supported layer, unsupported attention alone is.
_LAYERS = {"value_residual": (0.0,)}
_ATTENTION = {"position_embedding": ("learned", "rotary", "disentangled"), "qk_norm": (False,)}


def serves(shape: Transformer) -> bool:
    """Whether the kernels support an encoder's layers."""
    return _supports(shape, _LAYERS)


def _supports(shape: Transformer, settings: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(getattr(shape, name) in values for name, values in settings.items())


def layers(
    stack: Stack,
    x: Tensor,
    layout: Layout,
    scopes: list[Scope],
    *,
    keep: bool,
    at: Tensor | None = None,
) -> list[Tensor]:
    """[N, W] hidden states of the last layer, behind the last norm; with `keep` of every layer.

    `at` [K] are the tokens whose states are read: the last layer returns only these, [K, W].
    """
    shape, states = stack.shape, []
    seeds = torch.randint(2**63 - 1, (shape.layers, 3), device=x.device)
    normed = x if stack.norm is None else stack.halves(0)[0].normalised(x)
    for number, scope in enumerate(scopes):
        last = number == shape.layers - 1
        after = stack.norm if last or stack.norm is None else stack.halves(number + 1)[0].norm
        inputs = (x, normed, layout, scope, at if last else None, seeds[number])
        arguments = (stack, stack.halves(number), after, *inputs)
        if stack.recompute and stack.training:
            x, normed = checkpoint(_layer, *arguments, use_reentrant=False)
        else:
            x, normed = _layer(*arguments)
        if keep and not last:
            states.append(x)
    return [*states, normed]


def _layer(
    stack: Stack,
    halves: tuple[Attention, FeedForward],
    after: Norm | None,
    x: Tensor,
    normed: Tensor,
    layout: Layout,
    scope: Scope,
    at: Tensor | None,
    seeds: Tensor,
) -> tuple[Tensor, Tensor]:
    """One layer: the residual stream after it, and its norm for the next layer to read.

    In a post-norm stack (`after` is None) both are the same. Given `at` [K], all that follows
    attention is computed for these tokens alone.
    """
    attention, ffn = halves
    dropout = stack.shape.dropout if stack.training else 0.0
    post = after is None
    first, second = (attention.norm, ffn.norm) if after is None else (ffn.norm, after)
    assert first is not None, "only the first layer of a pre-norm stack may lack a norm"
    heads, normed = _attended(stack, attention, normed, layout, scope, seeds[0], is_residual=post)
    x = normed if post else x
    if at is not None:
        x, heads = x.index_select(0, at), heads.index_select(0, at)
    attended = _product(attention.output, heads)
    x, normed = add_norm(x, attended, attention.output, first, dropout, seeds[1], at)
    product, normed = _linear(normed, ffn.inner.weight, None, is_residual=post)
    x = normed if post else x
    expanded = _activated(ffn, product, seeds[2])
    x, normed = add_norm(x, expanded, ffn.output, second, dropout, seeds[2], at)
    return (normed, normed) if post else (x, normed)


def _attended(
    stack: Stack,
    attention: Attention,
    x: Tensor,
    layout: Layout,
    scope: Scope,
    seed: Tensor,
    *,
    is_residual: bool,
) -> tuple[Tensor, Tensor]:
    """[N, W] attention outputs, the heads side by side, before the output projection; and x.

    `is_residual`: whether the residual sum reads x, too, which it then reads as returned here.
    """
    from clozelab.kernels.attention import LONG_SEQLEN, SHORT_SEQLEN, attend, sums_bias_gradient
    from clozelab.kernels.heads import HEAD_DIMS

    heads: Tensor
    dropout = attention.rate if attention.training else 0.0
    # Torch's kernels are faster for long blocks without dropout and window; they do not support
    # scores by relative position.
    ours = dropout or scope.window or scope.relative is not None
    long = layout.max_seqlen > (SHORT_SEQLEN if layout.dense else LONG_SEQLEN) and not ours
    masked = layout.dense and layout.attention_mask is not None
    if long or masked or not _supports(stack.shape, {**_ATTENTION, "head_size": HEAD_DIMS}):
        heads, _ = attention(x, layout, scope)
        return heads, x
    bias: Tensor | None = attention.qkv.bias
    plain = scope.rotation is None and scope.relative is None
    pays = sums_bias_gradient(len(x), len(layout.cu_seqlens) - 1, layout.max_seqlen)
    summed = bias if plain and pays else None
    added = bias if summed is None else summed.detach()
    product, x = _linear(x, attention.qkv.weight, added, is_residual=is_residual)
    heads = attend(
        product.view(len(x), 3, attention.heads, -1),
        layout.cu_seqlens,
        bias=summed,
        seed=seed,
        max_seqlen=layout.max_seqlen,
        dropout=dropout,
        causal=layout.causal,
        window=scope.window,
        rotation=scope.rotation,
        distances=attention.distances(scope.relative),
    )
    return heads, x


def feed_forward(ffn: FeedForward, x: Tensor, seed: Tensor, dropout: float = 0.0) -> Tensor:
    """[N, W] the output of a feed-forward layer without the bias of its last product.

    Dropout is that of the activations, between the two products.
    """
    return _activated(ffn, _product(ffn.inner, x), seed, dropout)


def _activated(ffn: FeedForward, product: Tensor, seed: Tensor, dropout: float = 0.0) -> Tensor:
    """The rest of a feed-forward layer after its first product."""
    from clozelab.kernels.activation import activated_product

    return activated_product(
        product,
        ffn.inner.bias,
        ffn.output.weight.to(product.dtype),
        ffn.activation,
        seed=seed,
        gated=ffn.gated,
        dropout=dropout,
    )


def add_norm(
    x: Tensor,
    addend: Tensor,
    linear: Linear,
    norm: Norm,
    dropout: float,
    seed: Tensor,
    at: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x plus what a half-layer adds, `addend` and the bias of `linear`; and its norm."""
    from clozelab.kernels import sums

    return sums.add_norm(
        x,
        addend,
        bias=linear.bias,
        norm_weight=norm.weight,
        norm_bias=norm.bias,
        seed=seed,
        row_ids=at,
        dropout=dropout,
        eps=norm.eps,
        centred=norm.kind == "layer",
    )


def _product(linear: Linear, x: Tensor) -> Tensor:
    """The matrix product of a linear layer, without its bias."""
    return functional.linear(x, linear.weight.to(x.dtype))


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, is_residual: bool
) -> tuple[Tensor, Tensor]:
    """x Wᵀ + bias, and x for whatever else reads it: in a post-norm layer it `is_residual`, too."""
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if is_residual:
        both: tuple[Tensor, Tensor]
        both = _LinearAndResidual.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return both
    return functional.linear(x, weight, bias), x


class _LinearAndResidual(torch.autograd.Function):
    """x Wᵀ + bias, and x for the residual sum that follows in a post-norm layer.

    The gradient of x is that of the sum plus that of the product. Left to autograd, this is a
    product that accumulates, for which torch copies the other gradient first. Here the product is
    added to it in place, where the compiler finds that nothing else reads it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The product, and x."""
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients of x, the weight and the bias."""
        x, weight = ctx.saved_tensors
        d_product, d_x = grads
        d_bias = d_product.sum(0) if ctx.needs_input_grad[2] else None
        if torch.compiler.is_compiling():
            _add_product(d_x, d_product, weight)
        else:
            d_x = torch.addmm(d_x, d_product, weight)
        return d_x, d_product.t() @ x, d_bias


@torch.library.custom_op("clozelab::add_product", mutates_args=("total",))
def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product in place."""
    total.addmm_(left, right)


@_add_product.register_fake
def _(total: Tensor, left: Tensor, right: Tensor) -> None:
    return None
