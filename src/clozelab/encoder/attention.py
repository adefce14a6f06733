"""Attention inside packed blocks: no token attends to another block, without padding.

On a GPU in half precision the flash kernel takes the packed tokens with their cumulative lengths;
blocks that are all full form a rectangle and take the dense kernel, which is faster unless it has
to be masked; elsewhere the tokens are padded to a rectangle for the ordinary kernel. The result is
the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from clozelab.contracts import Input
from clozelab.encoder.positions import Rotation
from clozelab.layers import rectangle, row_length


class Layout(NamedTuple):
    """The layout of a batch's blocks, for all layers."""

    cu_seqlens: Tensor  # [B + 1] int32
    max_seqlen: int
    dense: bool
    cells: Tensor | None  # [B · L] the token in each cell of the rectangle
    cell: Tensor | None  # [N] the cell of each token
    attention_mask: Tensor | None  # [B, 1, 1, L] which cells are tokens
    flash: bool  # whether the flash kernel can be used
    causal: bool = False  # a token attends only to those on its left


class DistanceTable(NamedTuple):
    """The table of disentangled attention, for all layers (DeBERTa §3.1)."""

    states: Tensor  # [P, W]
    rows: Tensor  # [2 · positions − 1] of every distance


class PositionHeads(NamedTuple):
    """A layer's queries and keys of distances, where it has them."""

    rows: Tensor  # [2 · positions − 1] of every distance
    query: Tensor | None  # [P, H, A]
    key: Tensor | None

    @property
    def scale(self) -> float:
        """The factor of scores, which have one more term for each of the two (DeBERTa §3.1)."""
        heads = [x for x in (self.query, self.key) if x is not None]
        return float(((1 + len(heads)) * heads[0].shape[2]) ** -0.5)


class Scope(NamedTuple):
    """What a layer's tokens attend to, and how distances enter the scores."""

    window: int = 0  # tokens around each, half of them on either side; 0: the whole block
    rotation: Rotation | None = None  # of queries and keys
    slopes: Tensor | None = None  # [H] what a score loses by each token of distance
    relative: DistanceTable | None = None


def lay_out(
    batch: Input, dtype: torch.dtype, *, head_size: int, adds: bool = False, causal: bool = False
) -> Layout:
    """The layout of a batch, for heads of that type and size; `adds`: whether something is added
    to the scores.

    A `causal` encoder reads every batch causally, others those that are marked so.
    """
    # The flash kernel can add only slopes, and its gradient ignores them.
    flash = packs(batch.ids.device, dtype, head_size) and not adds
    layout = Layout(
        batch.cu_seqlens, batch.max_seqlen, batch.dense,
        cells=None, cell=None, attention_mask=None, flash=flash, causal=causal or batch.causal,
    )  # fmt: skip
    if batch.dense and batch.attention_mask is not None:
        return layout._replace(attention_mask=batch.attention_mask[:, None, None, :])
    if batch.dense or flash:
        return layout
    length = row_length(batch)
    cells, cell, seen = rectangle(batch._replace(max_seqlen=length))
    mask = seen[:, None, None, :]
    return layout._replace(max_seqlen=length, cells=cells, cell=cell, attention_mask=mask)


def packs(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether the flash kernel can be used: heads in multiples of 16 bytes, at most 256 wide."""
    fits = head_size % 8 == 0 and head_size <= 256
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and fits


def attend(
    q_NHA: Tensor,
    k_NHA: Tensor,
    v_NHA: Tensor,
    layout: Layout,
    *,
    scope: Scope,
    dropout: float,
    distances: PositionHeads | None = None,
) -> Tensor:
    """[N, W] attention outputs, heads concatenated; queries and keys are already rotated."""
    full = layout.dense and (not scope.window or layout.attention_mask is not None)
    if layout.flash and not full:
        # Both ends of a window are included, here as below.
        side = scope.window // 2 or None
        out_NHA: Tensor = torch.ops.aten._flash_attention_forward(
            q_NHA, k_NHA, v_NHA, layout.cu_seqlens, layout.cu_seqlens,
            layout.max_seqlen, layout.max_seqlen, dropout, layout.causal, False,
            window_size_left=side, window_size_right=0 if side and layout.causal else side,
        )[0]  # fmt: skip
        return out_NHA.flatten(1)
    # The ordinary kernel on a rectangle: the blocks as they are, or padded.
    _, heads, width = q_NHA.shape
    rows = (
        x if layout.cells is None else x.flatten(1).index_select(0, layout.cells)
        for x in (q_NHA, k_NHA, v_NHA)
    )
    q_BHLA, k_BHLA, v_BHLA = (
        x.view(-1, layout.max_seqlen, heads, width).transpose(1, 2) for x in rows
    )
    columns = _columns(layout, q_NHA.device)
    ahead = columns - columns[:, None]
    added = _score_bias(q_BHLA, k_BHLA, ahead, scope, distances)
    mask = _mask(ahead, layout, scope, added)
    out_BHLA = functional.scaled_dot_product_attention(
        q_BHLA, k_BHLA, v_BHLA, attn_mask=mask, dropout_p=dropout,
        is_causal=layout.causal and mask is None,
        scale=None if distances is None else distances.scale,
    )  # fmt: skip
    flat = out_BHLA.transpose(1, 2).reshape(-1, heads * width)
    return flat if layout.cell is None else flat.index_select(0, layout.cell)


def attend_at(
    q_BHA: Tensor,
    k_NHA: Tensor,
    v_NHA: Tensor,
    layout: Layout,
    *,
    scope: Scope,
    at_B: Tensor,
    distances: PositionHeads | None = None,
) -> Tensor:
    """[B, W] attention outputs of one token of each full block."""
    blocks, heads, width = q_BHA.shape
    k_BHLA, v_BHLA = (
        x.view(blocks, layout.max_seqlen, heads, width).transpose(1, 2) for x in (k_NHA, v_NHA)
    )
    q_BH1A = q_BHA[:, :, None]
    ahead = _ahead_of(at_B, layout)
    added = _score_bias(q_BH1A, k_BHLA, ahead, scope, distances)
    mask = _mask(ahead, layout, scope, added)
    scale = None if distances is None else distances.scale
    attended = functional.scaled_dot_product_attention(q_BH1A, k_BHLA, v_BHLA, mask, scale=scale)
    return attended.reshape(blocks, heads * width)


def attend_folded(
    asks_BHW: Tensor, x_NW: Tensor, layout: Layout, *, scope: Scope, at_B: Tensor, size: int
) -> Tensor:
    """[B, H, W] weighted sums of states for one token of each full block, for heads of that size.

    The states themselves are keys and values.
    """
    x_B1LW = x_NW.view(asks_BHW.shape[0], 1, layout.max_seqlen, -1)
    ahead = _ahead_of(at_B, layout)
    added = _score_bias(asks_BHW[:, :, None], x_B1LW, ahead, scope, None)
    mask = _mask(ahead, layout, scope, added)
    mask = None if mask is None else mask.transpose(1, 2)  # heads take the place of queries
    return functional.scaled_dot_product_attention(
        asks_BHW[:, None], x_B1LW, x_B1LW, mask, scale=size**-0.5
    )[:, 0]


def _ahead_of(at_B: Tensor, layout: Layout) -> Tensor:
    """[B, 1, 1, L] the position of each key minus that of its block's query."""
    queries = (at_B % layout.max_seqlen).int()
    return _columns(layout, at_B.device) - queries[:, None, None, None]


def _columns(layout: Layout, device: torch.device) -> Tensor:
    """[L] the columns of the rectangle."""
    return torch.arange(layout.max_seqlen, device=device, dtype=torch.int32)


def _mask(ahead: Tensor, layout: Layout, scope: Scope, added: Tensor | None) -> Tensor | None:
    """The attention mask, boolean or with `added` scores; None where the kernel needs none.

    `ahead` is the position of a key minus that of the query: [L, L], or [B, 1, 1, L] if each block
    has one query.
    """
    visible = layout.attention_mask
    if scope.window:
        near = ahead.abs() <= scope.window // 2
        # A cell of padding sees itself, since a softmax over nothing is NaN.
        visible = near if visible is None else (near & visible) | (ahead == 0)
    if layout.causal and not (visible is None and added is None):
        visible = ahead <= 0 if visible is None else visible & (ahead <= 0)
    if added is None or visible is None:
        return visible if added is None else added
    return added.where(visible, float("-inf"))


def _score_bias(
    q_BHQA: Tensor, k_BHLA: Tensor, ahead: Tensor, scope: Scope, distances: PositionHeads | None
) -> Tensor | None:
    """The terms of the scores by distance, [H, Q, L] or [B, H, Q, L]; None without any."""
    if scope.slopes is not None:
        return (-scope.slopes[:, None, None] * ahead.abs()).to(q_BHQA.dtype)
    if distances is None:
        return None
    # Differs from DeBERTa §3.1, as its code does: keys are multiplied with the query's distance
    # from the key, where the paper has the key's from the query, which is the negative.
    rows = distances.rows[distances.rows.shape[0] // 2 - ahead.long()]
    rows = rows.expand(*q_BHQA.shape[:3], k_BHLA.shape[2])
    terms = []
    if distances.key is not None:
        by_row = q_BHQA @ (distances.scale * distances.key).permute(1, 2, 0)
        terms.append(by_row.gather(3, rows))
    if distances.query is not None:
        by_row = k_BHLA @ (distances.scale * distances.query).permute(1, 2, 0)
        terms.append(by_row.gather(3, rows.transpose(2, 3)).transpose(2, 3))
    return sum(terms[1:], terms[0])
