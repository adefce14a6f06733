"""The layers of a `Stack` in the fewest passes over memory, for half precision on a GPU.

The same arithmetic as the plain layers: biases are added, and their gradients added up, in the
passes of the norms and activations that follow; what is dropped is drawn there, by counter. Queries
and keys are turned, windows kept, and distances scored inside attention.
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


# The values of an encoder's settings that are known here; of settings not named, all are. Other
# layers are plain ones, and in a layer that is known other attention is.
_LAYERS = {"value_residual": (0.0,)}
_ATTENTION = {"position_embedding": ("learned", "rotary", "disentangled"), "qk_norm": (False,)}


def serves(shape: Transformer) -> bool:
    """Whether its layers are known here."""
    return _knows(shape, _LAYERS)


def _knows(shape: Transformer, facts: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(getattr(shape, name) in values for name, values in facts.items())


def layers(
    stack: Stack,
    x: Tensor,
    layout: Layout,
    scopes: list[Scope],
    *,
    keep: bool,
    at: Tensor | None = None,
) -> list[Tensor]:
    """What the last layer puts out, perhaps `at` some tokens alone; with `keep` what each does."""
    shape, states = stack.shape, []
    seeds = torch.randint(2**63 - 1, (shape.layers, 3), device=x.device)
    normal = x if stack.norm is None else stack.halves(0)[0].normalised(x)
    for number, scope in enumerate(scopes):
        last = number == shape.layers - 1
        after = stack.norm if last or stack.norm is None else stack.halves(number + 1)[0].norm
        inputs = (x, normal, layout, scope, at if last else None, seeds[number])
        arguments = (stack, stack.halves(number), after, *inputs)
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
    scope: Scope,
    at: Tensor | None,
    seeds: Tensor,
) -> tuple[Tensor, Tensor]:
    """One layer: the sum it leaves, and that sum normalised; in BERT's they are the same.

    `at` some tokens what follows attention is computed for these alone.
    """
    attention, ffn = halves
    rate = stack.shape.dropout if stack.training else 0.0
    first, second = (attention.norm, ffn.norm) if after is None else (ffn.norm, after)
    assert first is not None, "only the first layer of a pre-norm stack may lack a norm"
    heads = _attended(stack, attention, normal, layout, scope, seeds[0])
    if at is not None:
        x, heads = x.index_select(0, at), heads.index_select(0, at)
    attended = _product(attention.output, heads)
    x, normal = _add_norm(x, attended, attention.output, first, rate, seeds[1], at)
    x = normal if after is None else x
    expanded = _expanded(ffn, normal)
    x, normal = _add_norm(x, expanded, ffn.output, second, rate, seeds[2], at)
    return (normal, normal) if after is None else (x, normal)


def _attended(
    stack: Stack, attention: Attention, x: Tensor, layout: Layout, scope: Scope, seed: Tensor
) -> Tensor:
    """The sums of all heads."""
    from clozelab.kernels.attention import LONG, SHORT, attend
    from clozelab.kernels.heads import WIDTHS

    heads: Tensor
    rate = attention.rate if attention.training else 0.0
    # Long blocks without dropout and windows take the library's kernels, which are made for them,
    # but know no distances.
    ours = rate or scope.window or scope.relative is not None
    long = layout.max_seqlen > (SHORT if layout.dense else LONG) and not ours
    masked = layout.dense and layout.attention_mask is not None
    if long or masked or not _knows(stack.shape, {**_ATTENTION, "head_size": WIDTHS}):
        heads, _ = attention(x, layout, scope)
        return heads
    heads = attend(
        attention.qkv(x).view(x.shape[0], 3, attention.heads, -1),
        layout.cu_seqlens,
        seed=seed,
        max_seqlen=layout.max_seqlen,
        rate=rate,
        causal=layout.causal,
        window=scope.window,
        rotation=scope.rotation,
        distances=attention.distances(scope.relative),
    )
    return heads


def _expanded(ffn: FeedForward, x: Tensor) -> Tensor:
    """The feed-forward layer up to its last product, which lacks its bias."""
    from clozelab.kernels.activation import activate

    inner = _product(ffn.inner, x)
    expanded = activate(inner, ffn.inner.bias, ffn.activation, gated=ffn.gated)
    return _product(ffn.output, expanded)


def _add_norm(
    x: Tensor,
    addend: Tensor,
    linear: Linear,
    norm: Norm,
    rate: float,
    seed: Tensor,
    at: Tensor | None,
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
        numbers=at,
        rate=rate,
        epsilon=norm.eps,
        centred=norm.kind == "layer",
    )


def _product(linear: Linear, x: Tensor) -> Tensor:
    """The product of a dense layer alone."""
    return functional.linear(x, linear.weight.to(x.dtype))
