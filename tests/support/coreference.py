"""Documents with marked mentions, a reader of letters, and batches: for tests of coreference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from torch import Tensor

from clozelab.contracts import Array, Input, Pieces, Row
from clozelab.finetuning.examples import Document, Mention, TokenizedExamples
from clozelab.packed import offsets
from clozelab.training.packing import BatchShape, PackedExamples

STORIES = (
    "[1 Anna ] met [2 Paul ] at [3 the station ] . [1 She ] gave [2 him ] [4 a letter ] ."
    " [2 He ] read [4 it ] in [3 the old station ] .",
    "[1 The baker ] closed [2 the shop ] . [1 He ] was tired , and [2 it ] was empty .",
    "[1 My sister ] has [2 a dog ] . [2 The dog ] likes [1 her ] , but [2 it ] fears [3 cats ] .",
    "[1 Paul ] called [2 [1 his ] mother ] . [2 She ] told [1 him ] about [3 the garden ] . [3 It ]"
    " was green .",
    "[1 The king ] built [2 a bridge ] . [2 The bridge ] fell . [1 The king ] wept .",
    "[1 Anna ] and [2 [1 her ] brother ] sailed . [2 He ] steered [3 the boat ] . [1 She ] slept .",
    "[1 A student ] lost [2 a key ] . [3 The teacher ] found [2 it ] and gave [2 it ] to"
    " [1 him ] .",
    "[1 The children ] sang . [2 Their mother ] heard [1 them ] . [2 She ] was glad .",
    "[1 The river ] is long . [1 It ] passes [2 a town ] . In [2 the town ] lives [3 the baker ] ."
    " [3 He ] fears [1 it ] .",
    "[1 The doctor ] wrote to [2 Anna ] . [2 She ] answered [1 her ] at once .",
    "[1 Paul ] bought [2 a horse ] from [3 a farmer ] . [3 The farmer ] missed [2 it ] . [1 Paul ]"
    " sold [2 the horse ] .",
    "[1 The moon ] rose over [2 the sea ] . [2 It ] was calm , and [1 the moon ] was red .",
)


def marked(text: str, name: str = "story") -> Document:
    """A document from words, sentence ends and bracketed mentions with the number of a cluster."""
    words: list[str] = []
    stops, opened = [], []
    clusters: dict[int, list[Mention]] = {}
    for word in text.split():
        if word.startswith("["):
            opened.append((int(word[1:]), len(words)))
        elif word == "]":
            number, first = opened.pop()
            clusters.setdefault(number, []).append(Mention(first, len(words) - 1))
        else:
            words.append(word)
            stops += [len(words)] if word == "." else []
    starts = [0, *stops] if stops and stops[-1] == len(words) else [0, *stops, len(words)]
    sentences = [tuple(words[a:b]) for a, b in pairwise(starts)]
    return Document(name, tuple(sentences), tuple(map(tuple, clusters.values())))


def stories() -> list[Document]:
    """The embedded documents."""
    return [marked(text, f"story {number}") for number, text in enumerate(STORIES)]


@dataclass(frozen=True)
class Letters:
    """A reader whose tokens are runs of `size` letters; "~" is a word without tokens."""

    size: int = 3
    length: int = 64
    passage_first: bool = False
    opening: bool = True  # a mark stands before the text; XLNet has none there
    known: dict[str, int] = field(default_factory=lambda: {"<": 0, ">": 1})

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Not needed."""
        raise NotImplementedError

    def spelled(self, word: str) -> list[str]:
        """The tokens of a word."""
        word = word.lower().strip("~")
        return [word[at : at + self.size] for at in range(0, len(word), self.size)]

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        """Sentences as tokens."""
        cut = [[self.spelled(word) for word in words] for words in sentences]
        ids = [self.known.setdefault(p, len(self.known)) for s in cut for word in s for p in word]
        begins = [at == 0 for s in cut for word in s for at in range(len(word))]
        words = [number for s in cut for number, word in enumerate(s) for _ in word]
        starts = offsets([sum(map(len, s)) for s in cut])
        spans = np.zeros((len(ids), 2), dtype=np.int64)
        columns = {"ids": np.array(ids, dtype=np.int64)}
        return Pieces(columns, starts, spans, np.array(begins, bool), np.array(words, np.int64))

    def num_special_tokens(self, texts: int) -> int:
        """Two around a text, one before another."""
        return texts + 1

    def with_special_tokens(
        self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None
    ) -> Row:
        """A text and its marks."""
        begin = int(self.opening)
        ids = np.concatenate([[0] * begin, first["ids"], [1] * (2 - begin)]).astype(np.int64)
        assert len(ids) <= self.length
        columns = {"ids": ids, "segments": np.zeros_like(ids)}
        return Row(columns, slice(begin, begin + len(first["ids"])), slice(0, 0), 0)


def batch(
    tokenized: TokenizedExamples, group: int, *, idle: int = 0
) -> tuple[Input, dict[str, Tensor]]:
    """One group as a micro-batch, with so many dummy tokens and slots behind."""
    lengths = np.diff(tokenized.starts)
    places = np.arange(tokenized.starts[-1]) - np.repeat(tokenized.starts[:-1], lengths)
    share = PackedExamples(
        {**tokenized.columns, "position_ids": places}, tokenized.starts, {"task": tokenized.targets}
    )
    part = slice(int(tokenized.groups[group]), int(tokenized.groups[group + 1]))
    tokens = int(tokenized.starts[part.stop] - tokenized.starts[part.start]) + idle
    slots = int(tokenized.targets.starts[part.stop] - tokenized.targets.starts[part.start]) + idle
    blocks = part.stop - part.start + idle
    longest = int(lengths.max(initial=1))
    room = BatchShape(tokens, blocks, {"task": slots}, max_seqlen=longest, constant=bool(idle))
    micro_batch = room.collate(share, part)
    return micro_batch.input, micro_batch.targets["task"]
