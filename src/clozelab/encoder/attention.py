"""Attention inside packed blocks: no token sees another block, and padding is never computed.

On a GPU in half precision the flash kernel takes the packed tokens with their cumulative lengths;
blocks that are all full are a rectangle and take the dense kernel, which is faster; elsewhere
the tokens are laid into a rectangle for the ordinary kernel. Which, nobody above can tell.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from clozelab.contracts import Input


class Layout(NamedTuple):
    """Where the blocks of a batch lie, for all of its layers."""

    cu_seqlens: Tensor  # [B + 1] int32
    max_seqlen: int
    dense: bool
    cells: Tensor | None  # [B · L] the token in each cell of the rectangle
    cell: Tensor | None  # [N] the cell of each token
    attention_mask: Tensor | None  # [B, 1, 1, L] which cells are tokens


def lay_out(batch: Input, dtype: torch.dtype) -> Layout:
    """The layout of a batch whose vectors have that type."""
    bare = Layout(batch.cu_seqlens, batch.max_seqlen, batch.dense, None, None, None)
    if batch.dense and batch.attention_mask is not None:
        return bare._replace(attention_mask=batch.attention_mask[:, None, None, :])
    if batch.dense or packs(batch.ids.device, dtype):
        return bare
    cells, cell, seen = rectangle(batch)
    return bare._replace(cells=cells, cell=cell, attention_mask=seen[:, None, None, :])


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the flash kernel serves."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def rectangle(batch: Input) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks as rows: [B · L] each cell's token, [N] each token's cell, [B, L] real cells.

    The cells of an empty block count as real: a softmax needs something to look at.
    """
    columns = torch.arange(batch.max_seqlen, device=batch.ids.device)
    first, lengths = batch.cu_seqlens[:-1].long(), batch.cu_seqlens.diff().long()
    tokens = (first[:, None] + columns).clamp(max=len(batch.ids) - 1)
    numbers = torch.arange(len(batch.ids), device=batch.ids.device, dtype=batch.cu_seqlens.dtype)
    rows = torch.searchsorted(batch.cu_seqlens[1:].contiguous(), numbers, right=True)
    cell = rows * batch.max_seqlen + batch.position_ids
    seen = (columns < lengths[:, None]) | (lengths[:, None] == 0)
    return tokens.flatten(), cell, seen


def attend(
    q_NHA: Tensor, k_NHA: Tensor, v_NHA: Tensor, layout: Layout, *, dropout: float, causal: bool
) -> Tensor:
    """[N, W] attended sums, the heads side by side."""
    if not layout.dense and layout.cells is None:
        out_NHA: Tensor = torch.ops.aten._flash_attention_forward(
            q_NHA, k_NHA, v_NHA, layout.cu_seqlens, layout.cu_seqlens,
            layout.max_seqlen, layout.max_seqlen, dropout, causal, False,
        )[0]  # fmt: skip
        return out_NHA.flatten(1)
    # The ordinary kernel on a rectangle: the blocks as they lie, or laid into one.
    _, heads, width = q_NHA.shape
    rows = (
        x if layout.cells is None else x.flatten(1).index_select(0, layout.cells)
        for x in (q_NHA, k_NHA, v_NHA)
    )
    q_BHLA, k_BHLA, v_BHLA = (
        x.view(-1, layout.max_seqlen, heads, width).transpose(1, 2) for x in rows
    )
    mask = layout.attention_mask
    if mask is not None and causal:
        size = (layout.max_seqlen, layout.max_seqlen)
        mask = mask & torch.ones(size, dtype=torch.bool, device=q_NHA.device).tril()
    out_BHLA = functional.scaled_dot_product_attention(
        q_BHLA, k_BHLA, v_BHLA, attn_mask=mask, dropout_p=dropout,
        is_causal=causal and mask is None,
    )  # fmt: skip
    flat = out_BHLA.transpose(1, 2).reshape(-1, heads * width)
    return flat if layout.cell is None else flat.index_select(0, layout.cell)
