"""The decoder of RetroMAE (§3.3): two streams, and an attention mask for every token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Input, Sums
from clozelab.layers import (
    FeedForward,
    Linear,
    drop,
    initialise,
    norm_of,
    rectangle,
    row_length,
)
from clozelab.objectives.heads.generator import with_tokens
from clozelab.objectives.heads.vocabulary import VocabularyHead

if TYPE_CHECKING:
    from clozelab.objectives.retromae import RetroMae

_CELLS = 2**32  # the number of values of a draw
_LOW = _CELLS - 1


class RetroMaeDecoder(nn.Module):
    """One BERT layer, whose queries come from another stream than its keys and values.

    A query is the [CLS] vector plus a position; keys and values are that vector and the original
    tokens plus their positions. Differs from the released code: positions and the head over the
    vocabulary are the decoder's own, and not those of the encoder.
    """

    def __init__(self, part: RetroMae, encoder: Any, vocabulary: int) -> None:
        super().__init__()
        width, narrow = encoder.hidden_size, encoder.embedding_size
        self.projection = Linear(narrow, width, bias=encoder.bias) if narrow != width else None
        self.input_norm = norm_of(encoder, width)
        self.query = Linear(width, width, bias=encoder.bias)
        self.key_value = Linear(width, 2 * width, bias=encoder.bias)
        self.output = Linear(width, width, bias=encoder.bias)
        self.output_norm = norm_of(encoder, width)
        self.ffn = FeedForward(encoder, 4 * width)
        self.heads, self.rate = encoder.heads, encoder.dropout
        self.hidden = round(part.mask_rate * _CELLS)
        initialise(self, width)
        # Standard deviation 1, as large as the vector that they are added to: at 0.02 the vector
        # drowns a query's position. 2 x 64, 300 steps, mask_rate = 1: a loss of 0.5, not 1.6.
        self.positions = nn.Embedding(encoder.max_positions, width)
        self.head = VocabularyHead(encoder, vocabulary)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss over all tokens, their number, and how many were right."""
        batch, table_VE = encoded.input, encoded.table
        assert batch is not None, "this decoder needs what the encoder read"
        assert table_VE is not None, "the encoder has no embedding table to be tied to"
        states_KW = self._decoded(encoded.hidden_states, table_VE, batch, targets)
        at_K = torch.arange(len(states_KW), device=states_KW.device)
        sums: Sums = self.head(Encoded(states_KW, table_VE), {**targets, "at": at_K})
        return sums

    def _decoded(
        self, states_NW: Tensor, table_VE: Tensor, batch: Input, targets: dict[str, Tensor]
    ) -> Tensor:
        """[K, W] the states that predict the targets."""
        length = row_length(batch)
        tokens, cell_N, seen_BL = rectangle(batch._replace(max_seqlen=length))
        tokens_BL, cell_K = tokens.view_as(seen_BL), cell_N.index_select(0, targets["at"])
        vectors_BW = states_NW.index_select(0, tokens_BL[:, 0])
        columns_L = torch.arange(length, device=states_NW.device)
        positions_LW = self.positions(columns_L).to(states_NW.dtype)
        query_BLW = self.input_norm(vectors_BW[:, None] + positions_LW)
        originals_N = with_tokens(batch.ids, targets["labels"], targets)  # before masking
        words_NE = functional.embedding(originals_N, table_VE)
        words_NW = words_NE.to(states_NW.dtype)
        words_NW = words_NW if self.projection is None else self.projection(words_NW)
        words_BLW = words_NW.index_select(0, tokens).view_as(query_BLW)
        context_BLW = self.input_norm(words_BLW + positions_LW)
        context_BLW = torch.cat([vectors_BW[:, None], context_BLW[:, 1:]], dim=1)
        draws_N = torch.zeros_like(batch.ids).scatter(0, targets["at"], targets["draws"])
        visible_BLL = self._visible(draws_N[tokens_BL], seen_BL)
        heads = (*seen_BL.shape, -1, self.heads, states_NW.shape[1] // self.heads)
        (q_BHLA,) = self.query(query_BLW).view(heads).permute(2, 0, 3, 1, 4)
        k_BHLA, v_BHLA = self.key_value(context_BLW).view(heads).permute(2, 0, 3, 1, 4)
        out_BHLA = functional.scaled_dot_product_attention(
            q_BHLA, k_BHLA, v_BHLA, attn_mask=visible_BLL[:, None]
        )
        # From here on only the targets.
        attended_KW = out_BHLA.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, cell_K)
        x_KW = query_BLW.flatten(0, 1).index_select(0, cell_K)
        x_KW = self.output_norm(x_KW + self._dropped(self.output(attended_KW)))
        decoded_KW: Tensor = self.ffn.norm(x_KW + self._dropped(self.ffn(x_KW)))
        return decoded_KW

    def _dropped(self, x: Tensor) -> Tensor:
        return drop(x, self.rate, self.training)

    def _visible(self, draws_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """[B, L, L] the attention mask of each query: the vector, and the sampled other tokens.

        A draw is a hash of the query's key and the key's position (§3.3, eq. 8).
        """
        column_L = torch.arange(draws_BL.shape[1], device=draws_BL.device)
        x = (draws_BL[:, :, None] - column_L * 0x61C8864F) & _LOW
        x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW
        x = ((x ^ (x >> 15)) * 0x735A2D97) & _LOW
        drawn_BLL = (x ^ (x >> 15)) >= self.hidden
        others_LL = column_L[:, None] != column_L
        return (drawn_BLL & others_LL & seen_BL[:, None]) | (column_L == 0)
