"""ELMo's encoder as a module (§3.1): words from their characters, then LSTMs in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozelab.contracts import Encoded, Input
from clozelab.encoder.recurrence import recur
from clozelab.layers import Linear, drop, rectangle

if TYPE_CHECKING:
    from clozelab.encoder.lstm import Lstm


class Filters(nn.Conv1d):
    """Filters of one width over the characters of a word."""

    def forward(self, letters_NEC: Tensor) -> Tensor:
        """[N, filters] the largest response anywhere in the word.

        Bias and ReLU are monotonic, so they may follow the maximum, which saves memory for the
        backward pass.
        """
        dtype = letters_NEC.dtype
        greatest = functional.conv1d(letters_NEC, self.weight.to(dtype)).max(dim=2).values
        assert self.bias is not None
        return functional.relu(greatest + self.bias.to(dtype))


class Characters(nn.Module):
    """A vector for every word from its characters; padding is a character as well."""

    def __init__(self, shape: Lstm) -> None:
        super().__init__()
        channels = sum(count for _, count in shape.filters)
        self.embedding = nn.Embedding(shape.alphabet, shape.character_width)
        self.filters = nn.ModuleList(
            Filters(shape.character_width, count, wide) for wide, count in shape.filters
        )
        self.highways = nn.ModuleList(Highway(channels) for _ in range(shape.highways))
        self.projection = Linear(channels, shape.hidden_size)
        nn.init.uniform_(self.embedding.weight, -1.0, 1.0)
        for parameter in self.filters.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)
        nn.init.normal_(self.projection.weight, std=channels**-0.5)
        nn.init.zeros_(self.projection.bias)

    def forward(self, characters_NC: Tensor, dtype: torch.dtype) -> Tensor:
        """[N, W] the vectors of words, given by the ids of characters, in that precision."""
        letters_NEC = self.embedding(characters_NC.long()).to(dtype).transpose(1, 2)
        x = torch.cat([filters(letters_NEC) for filters in self.filters], dim=1)
        for highway in self.highways:
            x = highway(x)
        words_NW: Tensor = self.projection(x)
        return words_NW


class Highway(nn.Module):
    """A dense layer with a gate that mixes it with its input; initially mostly the input."""

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
    """The order in which both directions read the words; the second starts at a block's end."""

    words: Tensor  # [2 · L · B] the word of each step and block; the second direction's plus N
    steps: Tensor  # [2 · N] where in `words` each word is read
    longest: int


def reading_order(batch: Input) -> ReadingOrder:
    """The reading order of a batch, step by step, all blocks in parallel."""
    words, cell, _ = rectangle(batch)
    longest, blocks, total = batch.max_seqlen, len(batch.cu_seqlens) - 1, len(cell)
    lengths_B = batch.cu_seqlens.diff().long()
    lengths_B1, columns_L = lengths_B[:, None], torch.arange(longest, device=words.device)
    reversed_BL = torch.where(columns_L < lengths_B1, lengths_B1 - 1 - columns_L, columns_L)
    forward_BL = words.view(blocks, longest)
    backward_BL = forward_BL.gather(1, reversed_BL) + total
    row_N = cell // longest
    forward, backward = batch.position_ids, lengths_B[row_N] - 1 - batch.position_ids + longest
    return ReadingOrder(
        words=torch.cat([forward_BL.T, backward_BL.T]).flatten(),
        steps=torch.cat([forward, backward]) * blocks + row_N.repeat(2),
        longest=longest,
    )


class BothWays(nn.Module):
    """An LSTM layer in both directions, as one recurrence; cells and outputs are clipped."""

    def __init__(self, shape: Lstm) -> None:
        super().__init__()
        width, inner = shape.hidden_size, shape.cell_size
        self.inputs = nn.Parameter(torch.empty(2, width, 4 * inner))
        self.states = nn.Parameter(torch.empty(2, width, 4 * inner))
        self.bias = nn.Parameter(torch.zeros(2, 4 * inner))  # admit, new, keep, let out
        self.projection = nn.Parameter(torch.empty(2, inner, width))
        self.clip = shape.clip
        joint = (6 / (2 * width + 4 * inner)) ** 0.5  # both are one matrix in the original
        nn.init.uniform_(self.inputs, -joint, joint)
        nn.init.uniform_(self.states, -joint, joint)
        alone = (6 / (inner + width)) ** 0.5
        nn.init.uniform_(self.projection, -alone, alone)
        with torch.no_grad():
            self.bias[:, 2 * inner : 3 * inner] = 1.0  # forget gates are open at first

    def forward(self, x_2NW: Tensor, order: ReadingOrder) -> Tensor:
        """[2, N, W] the states of each word in both directions."""
        dtype, width = x_2NW.dtype, x_2NW.shape[-1]
        read = x_2NW.flatten(0, 1).index_select(0, order.words).view(2, -1, width)
        gates = torch.baddbmm(self.bias.to(dtype)[:, None], read, self.inputs.to(dtype))
        gates_2LBI = gates.view(2, order.longest, -1, gates.shape[-1])
        states, projection = self.states.to(dtype), self.projection.to(dtype)
        out_2LBW, _, _ = recur(gates_2LBI, states, projection, self.clip)
        out: Tensor = out_2LBW.view(-1, width).index_select(0, order.steps)
        return out.view(2, -1, width)


class CharacterLstm(nn.Module):
    """Characters and layers; see `Lstm` for the sizes.

    `precision` is the dtype of the activations, the parameters' own if None; `recompute` saves
    memory by recomputing the activations inside a layer.
    """

    precision: torch.dtype | None = None
    recompute: bool = False

    def __init__(self, shape: Lstm) -> None:
        super().__init__()
        self.shape = shape
        self.characters = Characters(shape)
        self.layers = nn.ModuleList(BothWays(shape) for _ in range(shape.layers))

    def forward(self, batch: Input, *, keep: bool = False) -> Encoded:
        """The states of every word in both directions; with `keep` also those of every layer."""
        assert batch.characters is not None, "this encoder reads words by their characters"
        dtype = self.precision or self.characters.embedding.weight.dtype
        order = reading_order(batch)
        words_NW: Tensor = self.characters(batch.characters, dtype)
        x_2NW = words_NW.expand(2, *words_NW.shape)
        states = [x_2NW]
        for number, layer in enumerate(self.layers):
            x_2NW = drop(x_2NW, self.shape.dropout, self.training)
            if self.recompute and self.training:
                output: Tensor = checkpoint(layer, x_2NW, order, use_reentrant=False)
            else:
                output = layer(x_2NW, order)
            # Residual connections from the second layer on: words and states differ in kind.
            x_2NW = x_2NW + output if number else output
            if keep:
                states.append(x_2NW)
        return Encoded(_concatenate(x_2NW), None, tuple(map(_concatenate, states)) if keep else ())


def _concatenate(x_2NW: Tensor) -> Tensor:
    """[N, 2W] the left-to-right states, then the right-to-left ones."""
    return x_2NW.transpose(0, 1).flatten(1)
