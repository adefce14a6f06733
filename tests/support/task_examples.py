"""Examples of tasks read without a tokenizer, and a small encoder to put heads on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn

from clozelab.contracts import Array, Batch, Encoded, Pieces, Row
from clozelab.encoder import Transformer
from clozelab.finetuning.examples import TokenizedExamples
from clozelab.packed import offsets
from clozelab.training.packing import BatchShape, PackedExamples

PAD, CLS, SEP, SIZE = 0, 1, 2, 997
NOTHING = "\u200b"  # a word of which the tokenizer makes nothing
WIDTH = 8


@dataclass(frozen=True)
class FakeReader:
    """Words between spaces, in pieces of a few letters: [CLS] A [SEP] B [SEP].

    Where the `mark_last`: A [SEP] B [SEP] [CLS].
    """

    length: int = 32
    passage_first: bool = False
    piece: int = 3
    mark_last: bool = False

    def pieces(self, texts: Sequence[str]) -> Pieces:
        ids, spans, begins, words, sizes = [], [], [], [], []
        for text in texts:
            before = len(ids)
            for number, word in enumerate(re.finditer(r"\S+", text)):
                for first in range(*word.span(), self.piece):
                    last = min(first + self.piece, word.end())
                    if set(text[first:last]) != {NOTHING}:
                        ids.append(number_of(text[first:last]))
                        spans.append((first, last))
                        begins.append(first == word.start())
                        words.append(number)
            sizes.append(len(ids) - before)
        return Pieces(
            {"ids": np.array(ids, dtype=np.int32)},
            offsets(sizes),
            np.array(spans, dtype=np.int64).reshape(-1, 2),
            np.array(begins, dtype=bool),
            np.array(words, dtype=np.int64),
        )

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        return self.pieces([" ".join(words) for words in sentences])

    def num_special_tokens(self, texts: int) -> int:
        return texts + 1

    def with_special_tokens(
        self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None
    ) -> Row:
        a = first["ids"]
        b = a[:0] if second is None else second["ids"]
        parts = [a, [SEP]] if second is None else [a, [SEP], b, [SEP]]
        parts = [*parts, [CLS]] if self.mark_last else [[CLS], *parts]
        ids = np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])
        begin = 0 if self.mark_last else 1
        there = slice(begin, begin + len(a))
        then = slice(there.stop + 1, there.stop + 1 + len(b)) if second else slice(0, 0)
        segments = (np.arange(len(ids)) > there.stop) & (second is not None)
        mark = len(ids) - 1 if self.mark_last else 0
        return Row({"ids": ids, "segments": segments.astype(np.int64)}, there, then, mark)


def number_of(piece: str) -> int:
    """The id of a piece of a word."""
    return 3 + crc32(piece.encode()) % (SIZE - 3)


def share(tokenized: TokenizedExamples, name: str) -> PackedExamples:
    """Tokenized examples, packed."""
    lengths = np.diff(tokenized.starts)
    places = np.arange(int(tokenized.starts[-1])) - np.repeat(tokenized.starts[:-1], lengths)
    columns = {**tokenized.columns, "position_ids": places}
    return PackedExamples(
        columns, tokenized.starts, {name: tokenized.targets}, groups=tokenized.groups
    )


def batch(tokenized: TokenizedExamples, name: str, *, idle: int = 0) -> Batch:
    """All blocks in one batch; `idle` adds dummy blocks, empty ones and idle slots."""
    packed = share(tokenized, name)
    longest = int(np.diff(tokenized.starts).max())
    room = BatchShape(
        tokens=packed.tokens + idle * longest - min(idle, 1),
        blocks=len(packed) + 2 * idle,
        slots={name: int(tokenized.targets.starts[-1]) + idle},
        max_seqlen=longest + idle,
        constant=True,
    )
    return room.collate(packed, slice(0, len(packed)))


def rows(tokenized: TokenizedExamples, predictions: Any) -> list[Any]:
    """The predictions of each slot, group by group."""
    cuts = tokenized.targets.starts[tokenized.groups].tolist()
    values = predictions.detach().numpy()
    return [values[first:last] for first, last in zip(cuts[:-1], cuts[1:], strict=True)]


class Small(nn.Module):
    """An encoder of one layer with a head, in double precision, that drops nothing out."""

    def __init__(self, kind: Any, *, seed: int = 0, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        shape = Transformer(
            layers=layers,
            heads=2,
            hidden_size=WIDTH,
            intermediate_size=16,
            embedding_size=WIDTH,
            positions=64,
        )
        self.encoder = shape.build(SIZE)
        self.head = kind.build(WIDTH)
        self.name = kind.name
        self.double().eval()

    def encoded(self, micro_batch: Batch) -> Encoded:
        out: Encoded = self.encoder(micro_batch.input)
        return out

    def logits(self, micro_batch: Batch) -> tuple[torch.Tensor, ...]:
        logits: tuple[torch.Tensor, ...] = self.head.logits(
            self.encoded(micro_batch), micro_batch.input, micro_batch.targets[self.name]
        )
        return logits

    def predict(self, micro_batch: Batch) -> torch.Tensor:
        predictions: torch.Tensor = self.head.predict(
            self.encoded(micro_batch), micro_batch.input, micro_batch.targets[self.name]
        )
        return predictions

    def forward(self, micro_batch: Batch) -> dict[str, torch.Tensor]:
        sums: dict[str, torch.Tensor] = self.head(
            self.encoded(micro_batch), micro_batch.input, micro_batch.targets[self.name]
        )
        return sums
