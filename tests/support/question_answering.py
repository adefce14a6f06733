"""What tests of questions and answers share: a reader without a tokenizer, batches, references."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from clozelab.contracts import Array, Batch, Encoded, Input, Pieces, Row
from clozelab.finetuning.examples import GoldAnswer as Gold
from clozelab.finetuning.examples import Question, TokenizedExamples
from clozelab.packed import offsets
from clozelab.training.packing import BatchShape, PackedExamples

CLS, SEP = 1, 2


@dataclass
class FakeReader:
    """Tokens are whatever the pattern matches; an id is a hash of its characters."""

    length: int = 24
    passage_first: bool = False
    pattern: str = r"\w{1,3}|[^\w\s]"
    calls: int = 0  # how often texts were tokenised

    def pieces(self, texts: Sequence[str]) -> Pieces:
        self.calls += 1
        matches = [list(re.finditer(self.pattern, text)) for text in texts]
        every = [match for some in matches for match in some]
        spans = np.array([match.span() for match in every], dtype=np.int64).reshape(-1, 2)
        ids = np.array([10 + sum(map(ord, m.group())) % 50 for m in every], dtype=np.int64)
        nothing = np.zeros(len(ids), dtype=np.int64)
        columns: dict[str, Array] = {"ids": ids, "segments": nothing}
        return Pieces(columns, offsets([len(s) for s in matches]), spans, nothing > 0, nothing)

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        raise NotImplementedError

    def num_special_tokens(self, texts: int) -> int:
        return texts + 1

    def with_special_tokens(
        self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None
    ) -> Row:
        assert second is not None
        a, b = first["ids"].tolist(), second["ids"].tolist()
        if self.passage_first:
            ids, shift, mark = [*a, SEP, *b, SEP, CLS], 0, len(a) + len(b) + 2
        else:
            ids, shift, mark = [CLS, *a, SEP, *b, SEP], 1, 0
        assert len(ids) <= self.length
        middle = shift + len(a)
        columns: dict[str, Array] = {"ids": np.array(ids), "segments": np.zeros_like(ids)}
        return Row(columns, slice(shift, middle), slice(middle + 1, middle + 1 + len(b)), mark)


def ask(passage: str, *answers: str, question: str = "who ?", id: str = "q") -> Question:
    """A question whose answers are found where they first occur."""
    golds = tuple(Gold(text, passage.index(text)) for text in answers)
    return Question(id, question, passage, golds)


def one_hot(tokenized: TokenizedExamples) -> list[NDArray[np.float64]]:
    """Scores of a span head that knows: 10 at the right start and the right end, else 0."""
    out = []
    columns = tokenized.targets.columns
    for window, (begin, end) in enumerate(pairwise(tokenized.starts)):
        scores = np.zeros((end - begin, 2))
        scores[columns["left"][window], 0] = 10
        scores[columns["right"][window], 1] = 10
        if columns["labels"][window] != 1:  # less sure that there is none than that there is
            scores = scores / 2
        out.append(scores)
    return out


def drawn(tokenized: TokenizedExamples, seed: int) -> list[NDArray[np.float64]]:
    """Scores at random."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, 2)) for n in np.diff(tokenized.starts)]


def batch(
    tokenized: TokenizedExamples, *, blocks: slice | None = None, spare: int = 0, longest: int = 0
) -> Batch:
    """Some blocks as the packer lays them, with `spare` tokens, blocks and slots of dummies."""
    lengths = np.diff(tokenized.starts)
    places = np.arange(int(tokenized.starts[-1])) - np.repeat(tokenized.starts[:-1], lengths)
    share = PackedExamples(
        {**tokenized.columns, "position_ids": places},
        tokenized.starts,
        {"answer": tokenized.targets},
    )
    part = blocks or slice(0, len(lengths))
    tokens = int(lengths[part].sum())
    slots = int(np.diff(tokenized.targets.starts)[part].sum())
    room = BatchShape(
        tokens=tokens + spare,
        blocks=len(lengths[part]) + spare,
        slots={"answer": slots + spare},
        max_seqlen=longest or int(lengths.max()),
        constant=spare > 0,
    )
    return room.collate(share, part)


def encode(batch_input: Input, width: int, *, table: torch.Tensor | None = None) -> Encoded:
    """Vectors that depend on a token and its place alone; padding, id 0, has large ones."""
    generator = torch.Generator().manual_seed(0)
    token_table = torch.randn(64, width, generator=generator, dtype=torch.float64)
    places = torch.randn(512, width, generator=generator, dtype=torch.float64)
    token_table[0] *= 50
    states = token_table[batch_input.ids] + places[batch_input.position_ids]
    return Encoded(states, table)
