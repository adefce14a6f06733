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
    rows = torch.searchsorted(batch.cu_seqlens[1:].contiguous(), _count(batch), right=True)
    cell = rows * batch.max_seqlen + batch.position_ids
    seen = (columns < lengths[:, None]) | (lengths[:, None] == 0)
    return tokens.flatten(), cell, seen


def attend(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, dropout: float, causal: bool
) -> Tensor:
    """[N, H, D] queries, keys and values → [N, H · D]."""
    tokens, heads, width = q.shape
    if layout.dense or layout.cells is not None:
        return _in_rows(q, k, v, layout, dropout, causal).reshape(tokens, heads * width)
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, layout.cu_seqlens, layout.cu_seqlens, layout.max_seqlen, layout.max_seqlen,
        dropout, causal, False,
    )[0]  # fmt: skip
    return out.reshape(tokens, heads * width)


def _in_rows(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout: float, causal: bool
) -> Tensor:
    """The ordinary kernel on a rectangle: the blocks as they lie, or laid into one."""
    _, heads, width = q.shape
    laid = (
        x if layout.cells is None else x.flatten(1).index_select(0, layout.cells) for x in (q, k, v)
    )
    rows = (x.view(-1, layout.max_seqlen, heads, width).transpose(1, 2) for x in laid)
    query, key, value = rows
    mask = layout.attention_mask
    if mask is not None and causal:
        size = (layout.max_seqlen, layout.max_seqlen)
        mask = mask & torch.ones(size, dtype=torch.bool, device=q.device).tril()
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
    )
    flat = out.transpose(1, 2).reshape(-1, heads * width)
    return flat if layout.cell is None else flat.index_select(0, layout.cell)


def _count(batch: Input) -> Tensor:
    """0, 1, … as the starts count."""
    return torch.arange(len(batch.ids), device=batch.ids.device, dtype=batch.cu_seqlens.dtype)
