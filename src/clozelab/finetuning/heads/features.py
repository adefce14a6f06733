"""The layers between a frozen encoder and a head: a selection or mix of layers, and a BiLSTM.

BERT §5.3 compares layers; the weighted sum, γ Σ softmax(w)ⱼ hⱼ, is ELMo's (§3.2), without its norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from clozelab.contracts import Encoded, Input
from clozelab.finetuning.config import Layers
from clozelab.finetuning.heads.head import blocks


class Mix(nn.Module):
    """Some of an encoder's layers, by name, → mixed states, of its `width` or a multiple of it.

    The last four never include the embedding's output; an encoder with fewer layers gives all of
    its layers. The second to last of a single layer is the embedding's output. "All" are the
    embedding's output and every layer, as in ELMo.
    """

    # Differs from BERT §5.3: there all 12 layers are summed without the embedding's output.

    def __init__(self, chosen: Layers, *, layers: int, width: int) -> None:
        super().__init__()
        self.numbers, self.layers = _layer_numbers(chosen, layers), layers
        self.concat = chosen == "concat_last_four"
        self.width = width * len(self.numbers) if self.concat else width
        weighted = chosen.startswith("weighted")
        self.weights = nn.Parameter(torch.zeros(len(self.numbers))) if weighted else None
        self.scale = nn.Parameter(torch.ones(1)) if weighted else None

    def forward(self, encoded: Encoded) -> Encoded:
        """The encoded input with the mixed states; the encoder must have kept its layers."""
        assert len(encoded.layers) == self.layers + 1, "mixing takes every layer of its encoder"
        states = [encoded.layers[number] for number in self.numbers]
        if self.concat:
            return encoded._replace(hidden_states=torch.cat(states, dim=1))
        if self.weights is not None and self.scale is not None:
            shares = (self.scale * self.weights.softmax(0)).to(states[0].dtype).unbind()
            states = [share * state for share, state in zip(shares, states, strict=True)]
        return encoded._replace(hidden_states=sum(states[1:], states[0]))


def _layer_numbers(chosen: Layers, layers: int) -> range:
    """The numbers of the chosen layers; the embedding's output is 0."""
    first, last = {
        "embeddings": (0, 0),
        "last": (layers, layers),
        "second_to_last": (layers - 1, layers - 1),
        "weighted_all": (0, layers),
        "sum_all": (0, layers),
    }.get(chosen, (max(1, layers - 3), layers))
    return range(first, last + 1)


class Recurrent(nn.Module):
    """A BiLSTM over each block separately, in the precision of its weights.

    It is not compiled: the lengths of the blocks are read on the CPU.
    """

    # Differs from BERT §5.3: all tokens of a block are read, not the first piece of each word.

    def __init__(self, width: int, hidden: int = 768, *, layers: int = 2) -> None:
        super().__init__()
        self.width = 2 * hidden
        self.lstm = nn.LSTM(width, hidden, layers, bidirectional=True, batch_first=True)

    def forward(self, encoded: Encoded, inputs: Input) -> Encoded:
        """The encoded input with the states of both directions, [N, 2 · hidden]."""
        states = encoded.hidden_states
        rows = self._padded(states.to(next(self.lstm.parameters()).dtype), inputs)
        # An empty block is read as one token, whose state is not used.
        lengths = inputs.cu_seqlens.diff().clamp(min=1).cpu().long()
        packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        read, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(read, batch_first=True, total_length=inputs.max_seqlen)
        cells = blocks(inputs) * inputs.max_seqlen + inputs.position_ids
        flat: Tensor = out.flatten(0, 1).index_select(0, cells)
        return encoded._replace(hidden_states=flat.to(states.dtype))

    def _padded(self, states: Tensor, inputs: Input) -> Tensor:
        """[B, L, W] the blocks as padded rows; padding is never read."""
        columns = torch.arange(inputs.max_seqlen, device=states.device)
        cells = (inputs.cu_seqlens[:-1, None] + columns).clamp(max=len(states) - 1)
        return states.index_select(0, cells.flatten()).view(*cells.shape, -1)
