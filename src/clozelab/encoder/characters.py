"""ELMo's encoder as a module (§3.1): words from their characters, then LSTMs in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozelab.contracts import Encoded, Input
from clozelab.encoder.attention import rectangle
from clozelab.encoder.recurrence import recur
from clozelab.layers import Linear, drop

if TYPE_CHECKING:
    from clozelab.encoder.lstm import Lstm


class Filters(nn.Conv1d):
    """Filters of one width over the characters of a word."""

    def forward(self, letters: Tensor) -> Tensor:
        """[N, character width, C] → [N, filters]: the greatest response anywhere in the word.

        Bias and rectifier rise with what they are given, so they may follow the maximum, and
        nothing as long as the word is kept for the way back.
        """
        most = functional.conv1d(letters, self.weight.to(letters.dtype)).max(dim=2).values
        assert self.bias is not None
        return functional.relu(most + self.bias.to(letters.dtype))


class Characters(nn.Module):
    """A vector for every word from its characters alone; padding is a character like another."""

    def __init__(self, shape: Lstm) -> None:
        super().__init__()
        channels = sum(many for _, many in shape.filters)
        self.embedding = nn.Embedding(shape.alphabet, shape.character_width)
        self.filters = nn.ModuleList(
            Filters(shape.character_width, many, wide) for wide, many in shape.filters
        )
        self.highways = nn.ModuleList(Highway(channels) for _ in range(shape.highways))
        self.projection = Linear(channels, shape.width)
        nn.init.uniform_(self.embedding.weight, -1.0, 1.0)
        for parameter in self.filters.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)
        nn.init.normal_(self.projection.weight, std=channels**-0.5)
        nn.init.zeros_(self.projection.bias)

    def forward(self, characters: Tensor, dtype: torch.dtype) -> Tensor:
        """[N, C] character numbers → [N, W] in the given precision."""
        letters = self.embedding(characters.long()).to(dtype).transpose(1, 2)
        x = torch.cat([filters(letters) for filters in self.filters], dim=1)
        for highway in self.highways:
            x = highway(x)
        out: Tensor = self.projection(x)
        return out


class Highway(nn.Module):
    """A dense layer with a gate that mixes it with its input; it starts by passing that on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, 2 * width)  # the transform, then its gate
        nn.init.normal_(self.dense.weight, std=width**-0.5)
        with torch.no_grad():
            self.dense.bias.zero_()[width:] = -2.0

    def forward(self, x: Tensor) -> Tensor:
        """gate · transform + (1 - gate) · x."""
        transform, gate = self.dense(x).chunk(2, dim=-1)
        return torch.lerp(x, functional.relu(transform), torch.sigmoid(gate))


class ReadingOrder(NamedTuple):
    """When each word of a batch is read in both directions: the second starts at a block's end."""

    words: Tensor  # [2 · L · B] the word each step reads in each block; the second's count from N
    steps: Tensor  # [2 · N] where in `words` each word is read
    longest: int


def lay(batch: Input) -> ReadingOrder:
    """Lay the blocks of a batch side by side, step by step."""
    words, cell, _ = rectangle(batch)
    longest, blocks, total = batch.max_seqlen, len(batch.cu_seqlens) - 1, len(cell)
    lengths = batch.cu_seqlens.diff().long()
    columns = torch.arange(longest, device=words.device)
    turned = torch.where(columns < lengths[:, None], lengths[:, None] - 1 - columns, columns)
    forward = words.view(blocks, longest)
    backward = forward.gather(1, turned) + total
    row = cell // longest
    there, back = batch.position_ids, lengths[row] - 1 - batch.position_ids + longest
    return ReadingOrder(
        words=torch.cat([forward.T, backward.T]).flatten(),
        steps=torch.cat([there, back]) * blocks + row.repeat(2),
        longest=longest,
    )


class BothWays(nn.Module):
    """One LSTM layer in each direction, as one recurrence; cells and outputs are clipped."""

    def __init__(self, shape: Lstm) -> None:
        super().__init__()
        width, inner = shape.width, shape.inner
        self.inputs = nn.Parameter(torch.empty(2, width, 4 * inner))
        self.states = nn.Parameter(torch.empty(2, width, 4 * inner))
        self.bias = nn.Parameter(torch.zeros(2, 4 * inner))  # admit, new, keep, let out
        self.projection = nn.Parameter(torch.empty(2, inner, width))
        self.clip = shape.clip
        joint = (6 / (2 * width + 4 * inner)) ** 0.5  # both products are one matrix in the original
        nn.init.uniform_(self.inputs, -joint, joint)
        nn.init.uniform_(self.states, -joint, joint)
        alone = (6 / (inner + width)) ** 0.5
        nn.init.uniform_(self.projection, -alone, alone)
        with torch.no_grad():
            self.bias[:, 2 * inner : 3 * inner] = 1.0  # a cell starts out remembering

    def forward(self, x: Tensor, rows: ReadingOrder) -> Tensor:
        """[2, N, W] → [2, N, W]: each word from those before it in its direction."""
        dtype, width = x.dtype, x.shape[-1]
        laid = x.flatten(0, 1).index_select(0, rows.words).view(2, -1, width)
        known = torch.baddbmm(self.bias.to(dtype)[:, None], laid, self.inputs.to(dtype))
        known = known.view(2, rows.longest, -1, known.shape[-1])
        out, _, _ = recur(known, self.states.to(dtype), self.projection.to(dtype), self.clip)
        read: Tensor = out.view(-1, width).index_select(0, rows.steps)
        return read.view(2, -1, width)


class CharacterLstm(nn.Module):
    """Characters and layers; see `Lstm` for the sizes.

    `precision` is the type of the activations, the parameters' own if None; `recompute` trades
    time for memory by keeping no activations inside a layer.
    """

    precision: torch.dtype | None = None
    recompute: bool = False

    def __init__(self, shape: Lstm) -> None:
        super().__init__()
        self.shape = shape
        self.characters = Characters(shape)
        self.layers = nn.ModuleList(BothWays(shape) for _ in range(shape.layers))

    def forward(self, batch: Input, *, keep: bool = False) -> Encoded:
        """Both directions' states of every word; with `keep` those of every layer as well."""
        assert batch.characters is not None, "this encoder reads words by their characters"
        dtype = self.precision or self.characters.embedding.weight.dtype
        rows = lay(batch)
        words: Tensor = self.characters(batch.characters, dtype)
        x = words.expand(2, *words.shape)
        states = [x]
        for number, layer in enumerate(self.layers):
            x = drop(x, self.shape.dropout, self.training)
            if self.recompute and self.training:
                output: Tensor = checkpoint(layer, x, rows, use_reentrant=False)
            else:
                output = layer(x, rows)
            # Words and states differ in kind: a layer adds to the one below from the second on.
            x = x + output if number else output
            if keep:
                states.append(x)
        return Encoded(_joined(x), None, tuple(map(_joined, states)) if keep else ())


def _joined(x: Tensor) -> Tensor:
    """[N, 2W]: the left-to-right states, then the right-to-left ones."""
    return x.transpose(0, 1).flatten(1)
