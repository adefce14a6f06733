"""The layers of a `Stack` in the fewest passes over memory, for half precision on a GPU.

The same arithmetic as the plain layers: biases are added, and their gradients added up, in the
passes of the norms and activations that follow; what is dropped is drawn there, by counter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozelab.encoder.attention import Layout, Scope, attend
from clozelab.layers import FeedForward, Linear, Norm

if TYPE_CHECKING:
    from clozelab.encoder.self_attention import Attention
    from clozelab.encoder.stack import Stack
    from clozelab.encoder.transformer import Transformer


def serves(shape: Transformer) -> bool:
    """Whether the kernels know its block, which is BERT's; the compiler fuses what others have."""
    layer = shape.bias and not shape.gated and shape.normalisation == "layer"
    attention = shape.position_embedding == "learned" and not (shape.window or shape.qk_norm)
    known = shape.activation in ("gelu", "gelu_tanh", "relu") and not shape.value_residual
    return layer and attention and known


def layers(stack: Stack, x: Tensor, layout: Layout, *, keep: bool) -> list[Tensor]:
    """What the last layer puts out; with `keep` what each does."""
    shape, states = stack.shape, []
    seeds = torch.randint(2**63 - 1, (shape.layers, 3), device=x.device)
    normal = x if stack.norm is None else stack.halves(0)[0].normalised(x)
    for number in range(shape.layers):
        last = number == shape.layers - 1
        after = stack.norm if last or stack.norm is None else stack.halves(number + 1)[0].norm
        arguments = (stack, stack.halves(number), after, x, normal, layout, seeds[number])
        if stack.recompute and stack.training:
            x, normal = checkpoint(_layer, *arguments, use_reentrant=False)
        else:
            x, normal = _layer(*arguments)
        if keep and not last:
            states.append(x)
    return [*states, normal]


def _layer(
    stack: Stack,
    halves: tuple[Attention, FeedForward],
    after: Norm | None,
    x: Tensor,
    normal: Tensor,
    layout: Layout,
    seeds: Tensor,
) -> tuple[Tensor, Tensor]:
    """One layer: the sum it leaves, and that sum normalised; in BERT's they are the same."""
    attention, ffn = halves
    rate = stack.shape.dropout if stack.training else 0.0
    first, second = (attention.norm, ffn.norm) if after is None else (ffn.norm, after)
    assert first is not None, "only the first layer of a pre-norm stack may lack a norm"
    attended = _attended(attention, normal, layout, seeds[0])
    x, normal = _add_norm(x, attended, attention.output, first, rate, seeds[1])
    x = normal if after is None else x
    expanded = _expanded(ffn, normal)
    x, normal = _add_norm(x, expanded, ffn.output, second, rate, seeds[2])
    return (normal, normal) if after is None else (x, normal)


def _attended(attention: Attention, x: Tensor, layout: Layout, seed: Tensor) -> Tensor:
    """Attention up to its last product, which lacks its bias."""
    from clozelab.kernels.attention import SHORT
    from clozelab.kernels.attention import attend as attend_packed
    from clozelab.kernels.heads import WIDTHS

    qkv = attention.qkv(x).view(x.shape[0], 3, attention.heads, -1)
    rate = attention.rate if attention.training else 0.0
    # Long rectangles without dropout take the library's kernel, which is made for them.
    long = layout.max_seqlen > SHORT and not rate
    dense = layout.dense and (long or layout.attention_mask is not None)
    if dense or qkv.shape[-1] not in WIDTHS:
        q, k, v = qkv.unbind(1)
        out = attend(q, k, v, layout, scope=Scope(attention.causal), dropout=rate)
    else:
        out = attend_packed(
            qkv,
            layout.cu_seqlens,
            seed=seed,
            max_seqlen=layout.max_seqlen,
            rate=rate,
            causal=attention.causal,
        )
    return _product(attention.output, out)


def _expanded(ffn: FeedForward, x: Tensor) -> Tensor:
    """The feed-forward layer up to its last product, which lacks its bias."""
    from clozelab.kernels.activation import activate

    return _product(ffn.output, activate(_product(ffn.inner, x), ffn.inner.bias, ffn.activation))


def _add_norm(
    x: Tensor, addend: Tensor, linear: Linear, norm: Norm, rate: float, seed: Tensor
) -> tuple[Tensor, Tensor]:
    """What a half adds to x, the bias of its last product included, and the norm of that."""
    from clozelab.kernels.sums import add_norm

    return add_norm(
        x,
        addend,
        bias=linear.bias,
        weight=norm.weight,
        shift=norm.bias,
        seed=seed,
        rate=rate,
        epsilon=norm.eps,
    )


def _product(linear: Linear, x: Tensor) -> Tensor:
    """The product of a dense layer alone."""
    return functional.linear(x, linear.weight.to(x.dtype))
