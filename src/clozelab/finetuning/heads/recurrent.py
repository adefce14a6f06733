"""A BiLSTM over features that stay as they are: BERT's tagger of §5.3, ELMo's task model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from clozelab.contracts import Encoded, Input
from clozelab.finetuning.heads.blocks import blocks


class Recurrent(nn.Module):
    """Reads each block in both directions, none of another; in its weights' own precision.

    It is not compiled: the lengths of the blocks are read on the CPU.
    """

    # Differs from BERT §5.3: all tokens of a block are read, not the first piece of each word.

    def __init__(
        self, width: int, hidden: int = 768, *, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width = 2 * hidden
        self.lstm = nn.LSTM(
            width,
            hidden,
            num_layers=layers,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=True,
            batch_first=True,
        )

    def forward(self, encoded: Encoded, given: Input) -> Encoded:
        """What was encoded, with the states of both directions, [N, 2 · hidden]."""
        states = encoded.states
        rows = self._laid(states.to(next(self.lstm.parameters()).dtype), given)
        # An empty block is read as one token, which is then nobody's.
        lengths = given.starts.diff().clamp(min=1).cpu().long()
        packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        read, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(read, batch_first=True, total_length=given.longest)
        cells = blocks(given) * given.longest + given.places
        flat: Tensor = out.flatten(0, 1).index_select(0, cells)
        return encoded._replace(states=flat.to(states.dtype))

    def _laid(self, states: Tensor, given: Input) -> Tensor:
        """[B, L, W] the blocks as rows; what lies beyond a block's end is never read."""
        columns = torch.arange(given.longest, device=states.device)
        cells = (given.starts[:-1, None] + columns).clamp(max=len(states) - 1)
        return states.index_select(0, cells.flatten()).view(*cells.shape, -1)
