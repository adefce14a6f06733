"""Texts of a task as one encoder reads them: its tokenizer, and the marks of its kind.

BERT has [CLS] A [SEP] B [SEP] and tells the texts apart by type; RoBERTa, which has no types, puts
two separators between them; XLNet has A <sep> B <sep> <cls>; GPT has a mark before, between and
after, and ELMo reads words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab.blocks.words import spell
from clozelab.config.recipe import Recipe
from clozelab.contracts import (
    Array,
    Blocks,
    Bools,
    Counts,
    Ids,
    Ints,
    Mark,
    Pieces,
    Row,
    Spelling,
    Vocabulary,
)
from clozelab.encoder import Lstm, Relative, Transformer
from clozelab.models.interop.fitting import fitting
from clozelab.models.interop.heads import ROBERTAS
from clozelab.packed import offsets
from clozelab.text.encoding import Encoded, Encoder
from clozelab.text.spelling import letters
from clozelab.text.vocabulary import describe


@dataclass(frozen=True)
class TaskReader:
    """A `Reader` for the encoder of a recipe."""

    recipe: Recipe
    tokenizer: Tokenizer
    length: int  # the most tokens a block may have

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids the tokenizer deals in."""
        return describe(self.tokenizer)

    @property
    def passage_first(self) -> bool:
        """XLNet reads a passage before its question."""
        return isinstance(self.recipe.encoder, Relative)

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Texts as tokens, or as words where the encoder reads those."""
        self._encoder.forget()
        encoded = self._encoder.encode(list(texts), characters=True)
        assert encoded.firsts is not None
        assert encoded.stops is not None
        # A token of white space alone stands for nothing before the character behind it.
        stops = np.maximum(encoded.firsts, encoded.stops)
        spans = np.stack([encoded.firsts, stops], axis=1)
        begins = (encoded.marks & Mark.WORD) != 0
        if isinstance(self.recipe.encoder, Lstm):
            return self._spelled(encoded, spans, begins)
        columns: dict[str, Array] = {"ids": encoded.ids}
        return Pieces(columns, encoded.starts, spans, begins, _counted(begins, encoded.starts))

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        """Sentences in words as tokens, a space between any two."""
        found = self.pieces([" ".join(words) for words in sentences])
        first = offsets([len(words) for words in sentences])
        begins = offsets([len(word) + 1 for words in sentences for word in words])
        # The sentences one after another, so that words ascend over all of them.
        owner = np.repeat(np.arange(len(sentences)), np.diff(found.starts))
        place = found.spans[:, 0] + begins[first[owner]]
        word = np.searchsorted(begins[:-1], place, side="right") - 1
        fresh = np.ones(len(word), dtype=bool)
        fresh[1:] = word[1:] != word[:-1]
        return found._replace(begins=fresh, words=word - first[owner])

    def marks(self, texts: int) -> int:
        """How many tokens of a block of one text, or two, are not theirs."""
        return texts + 1 + (texts == 2 and self._doubled)

    def lay(self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None) -> Row:
        """Texts with the marks of the encoder's kind around them."""
        encoder = self.recipe.encoder
        opens, middle, closes = self._marks
        between = [middle] * (2 if self._doubled else 1)
        a = slice(len(opens), len(opens) + len(first["ids"]))
        b, parts = slice(0, 0), [*opens, first]
        if second is not None:
            begin = a.stop + len(between)
            b, parts = slice(begin, begin + len(second["ids"])), [*parts, *between, second]
        parts += closes
        columns: dict[str, Array] = {
            name: np.concatenate([part[name] for part in parts]) for name in first
        }
        columns["segments"] = segments = np.zeros(len(columns["ids"]), dtype=np.uint8)
        if isinstance(encoder, Relative):
            segments[a.stop + 1 :] = 1 if second is not None else 0
            segments[-1] = 2
        elif second is not None and isinstance(encoder, Transformer) and encoder.types > 1:
            segments[b] = 1
            segments[b.stop] = 1
        at_end = isinstance(encoder, Relative) or self._causal
        return Row(columns, a, b, len(segments) - 1 if at_end else 0)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.tokenizer, segment=False, counts=Counts())

    @property
    def _causal(self) -> bool:
        encoder = self.recipe.encoder
        return isinstance(encoder, Transformer) and encoder.causal

    @property
    def _doubled(self) -> bool:
        """Two separators stand between two texts where RoBERTa's class in transformers fits."""
        encoder = self.recipe.encoder
        if not isinstance(encoder, Transformer) or encoder.causal:
            return False
        return fitting(encoder, frozenset(), self.vocabulary) in ROBERTAS

    @cached_property
    def _marks(self) -> tuple[list[dict[str, Array]], dict[str, Array], list[dict[str, Array]]]:
        """What stands before, between and after the texts."""
        encoder, role = self.recipe.encoder, self.vocabulary.role
        if isinstance(encoder, Lstm):
            ids = np.array([role("cls"), role("sep")], np.int32)
            rows = self._spell(ids, np.ones(2, dtype=bool), starts=np.array([0, 2]), fixed=True)
            opening, closing = ({name: rows[name][n : n + 1] for name in rows} for n in (0, 1))
            return [opening], closing, [closing]
        if self._causal:
            # GPT adds three tokens for this; those that its text never had serve as well.
            known = self.vocabulary.roles
            spare = [known.get(name, known.get("eod")) for name in ("cls", "sep", "mask")]
            before, between, after = (role("eod") if one is None else one for one in spare)
            return [_token(before)], _token(between), [_token(after)]
        if isinstance(encoder, Relative):
            return [], _token(role("sep")), [_token(role("sep")), _token(role("cls"))]
        return [_token(role("cls"))], _token(role("sep")), [_token(role("sep"))]

    @cached_property
    def _spelling(self) -> Spelling:
        """What the ids spell; the numbers of words are for pretraining alone."""
        return Spelling(*letters(self.tokenizer), np.zeros(0, np.uint64), np.zeros(0, np.int32))

    def _spell(self, ids: Ids, begins: Bools, *, starts: Ints, fixed: bool) -> dict[str, Array]:
        """Tokens as words by their characters."""
        blocks = Blocks(
            ids=ids.astype(np.int32),
            starts=starts,
            marks=np.where(begins, Mark.ALL, 0).astype(np.uint8),
            segments=np.zeros(len(ids), dtype=np.uint8),
            fixed=np.full(len(ids), fixed),
            numbers=np.arange(len(starts) - 1),
        )
        form: Any = self.recipe.blocks
        words = spell(blocks, self._spelling, length=form.characters)
        return {"ids": words.ids, "characters": words.characters}

    def _spelled(self, encoded: Encoded, spans: Ints, begins: Bools) -> Pieces:
        """The words of the texts."""
        first = np.flatnonzero(begins)
        last = np.append(first, len(begins))[1:] - 1
        columns = self._spell(encoded.ids, begins, starts=encoded.starts, fixed=False)
        starts = np.searchsorted(first, encoded.starts)
        covered = np.stack([spans[first, 0], spans[last, 1]], axis=1)
        every = np.ones(len(first), dtype=bool)
        return Pieces(columns, starts, covered, every, _counted(every, starts))


def _token(number: int) -> dict[str, Array]:
    return {"ids": np.array([number], dtype=np.int32)}


def _counted(begins: Bools, starts: Ints) -> Ints:
    """The number of each token's word in its own text."""
    running = offsets(begins)
    return np.asarray(running[1:] - 1 - np.repeat(running[starts[:-1]], np.diff(starts)))
