"""Texts as one encoder reads them: its tokenizer and its special tokens.

BERT has [CLS] A [SEP] B [SEP] and tells the texts apart by type; RoBERTa, which has no types, puts
two separators between them; XLNet has A <sep> B <sep> <cls>; GPT has a special token before,
between and after, and ELMo reads words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from clozelab.blocks.words import spell
from clozelab.config.recipe import Recipe
from clozelab.contracts import (
    Array,
    Blocks,
    Bools,
    Counts,
    Ids,
    Input,
    Ints,
    Mark,
    Pieces,
    Pooling,
    Row,
    Spelling,
    TextLayout,
    Vocabulary,
)
from clozelab.errors import UserError
from clozelab.models.interop.families import FAMILIES
from clozelab.models.interop.fitting import family_for
from clozelab.packed import offsets
from clozelab.text.encoding import CachedTokenizer, Tokenised
from clozelab.text.vocabulary import describe, letters

_OTHER, _TARGET = 1, 2  # of Input.kinds
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which is no character


@dataclass(frozen=True)
class Text:
    """One text as the encoder reads it."""

    columns: dict[str, Array]  # "ids", "segments" and other fields of `Input`, a row per token
    own: slice  # the rows of the text, without the special tokens
    cls: int | None  # the position of [CLS], if there is one
    begins: Bools  # [own] whether each token begins a word
    spans: Ints  # [own, 2] the characters that each token covers
    cut: bool = False  # it was longer than the model reads

    def __len__(self) -> int:
        return len(self.columns["ids"])

    def pooled(self, pool: Pooling) -> slice:
        """The rows whose mean is the vector of the text; its last token stands in for a [CLS]."""
        if pool == "mean":
            return self.own
        if pool == "mean_all":
            return slice(0, len(self))
        at = self.own.stop - 1 if self.cls is None else self.cls
        return slice(at, at + 1)


@dataclass(frozen=True)
class TaskReader:
    """A `Reader` for the encoder of a recipe."""

    recipe: Recipe
    tokenizer: Tokenizer
    length: int  # the most tokens a block may have
    spelling: Spelling | None = None  # of a corpus, if words are to be numbered as in it
    special_tokens: bool = True  # whether the texts of a task get special tokens
    separators: int | None = None  # between two texts; None: as many as the encoder's family has

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids and special tokens of the tokenizer."""
        return describe(self.tokenizer)

    @property
    def passage_first(self) -> bool:
        """Whether a passage comes before its question (XLNet) or after it."""
        return self._layout.passage_first

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Texts as tokens, or as words if the encoder reads words."""
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"{text!r:.60}: is not a text; give a string")
            if not text.isascii() and _HALF_PAIR.search(text):
                raise UserError(
                    f"{text!r:.60}: is not Unicode text; it has half of a surrogate pair"
                )
        self._cached_tokenizer.forget()
        encoded = self._cached_tokenizer.encode(list(texts), characters=True)
        assert encoded.firsts is not None
        assert encoded.stops is not None
        # A token of white space alone covers no character: its stop would precede its first.
        stops = np.maximum(encoded.firsts, encoded.stops)
        spans = np.stack([encoded.firsts, stops], axis=1)
        begins = (encoded.marks & Mark.WORD) != 0
        if self.recipe.encoder.reads == "words":
            return self._word_pieces(encoded, spans, begins)
        columns: dict[str, Array] = {"ids": encoded.ids}
        return Pieces(columns, encoded.starts, spans, begins, _word_numbers(begins, encoded.starts))

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        """The tokens of sentences that are given as words, joined by spaces."""
        pieces = self.pieces([" ".join(words) for words in sentences])
        first_word = offsets([len(words) for words in sentences])
        word_starts = offsets([len(word) + 1 for words in sentences for word in words])
        # Positions count over all sentences, so that one search finds the word of every token.
        sentence_of = np.repeat(np.arange(len(sentences)), np.diff(pieces.starts))
        position = pieces.spans[:, 0] + word_starts[first_word[sentence_of]]
        word = np.searchsorted(word_starts[:-1], position, side="right") - 1
        begins_word = np.ones(len(word), dtype=bool)
        begins_word[1:] = word[1:] != word[:-1]
        return pieces._replace(begins=begins_word, words=word - first_word[sentence_of])

    def num_special_tokens(self, texts: int) -> int:
        """How many special tokens a block of one or two texts has."""
        if not self.special_tokens:
            return 0
        around = len(self._layout.before) + len(self._layout.after)
        return around + (self._separators if texts == 2 else 0)

    def with_special_tokens(
        self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None
    ) -> Row:
        """One or two texts with the special tokens of the encoder."""
        opens, middle, closes = self._special_columns if self.special_tokens else ([], {}, [])
        between = [middle] * (self._separators if self.special_tokens else 0)
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
        if not len(segments):
            raise UserError(
                "a text has no tokens, and the model adds no special tokens; leave it out"
            )
        if second is not None and self.recipe.encoder.segment_types not in (0, 1):
            segments[b.start :] = 1
        if self._layout.cls_segment is not None:
            segments[-1] = self._layout.cls_segment
        return Row(columns, a, b, len(segments) - 1 if self._layout.summary == "last" else 0)

    @property
    def limit(self) -> int | None:
        """The most tokens a text may have without special tokens; None if the encoder is recurrent.

        Attention without learned positions has no limit either, but its memory grows with the
        square of the length: its limit is the length that it was trained on.
        """
        encoder = self.recipe.encoder
        if encoder.recurrent:
            return None
        return (encoder.max_positions or self.recipe.blocks.length) - self.own_special_tokens

    @property
    def own_special_tokens(self) -> int:
        """How many special tokens `read` adds to a text: those seen in pretraining."""
        return self.num_special_tokens(1) if self._layout.in_pretraining else 0

    @property
    def separator(self) -> Ids:
        """The token between documents, which follow one another where all is read causally.

        It stands before a text there; there is none if the tokenizer has no such token.
        """
        roles = self.vocabulary.roles
        return np.array([roles[role] for role in ("eod", "sep") if role in roles][:1], np.int32)

    def around(self, ids: Array) -> Text:
        """Tokens with the special tokens around them that were seen in pretraining."""
        spans = np.zeros((len(ids), 2), np.int64)
        return self._add_special({"ids": ids}, np.ones(len(ids), bool), spans)

    def read(self, texts: Sequence[str], *, most: int | None = None) -> list[Text]:
        """Texts as the model reads them, each truncated to `most` tokens or its limit."""
        most = self.limit if most is None else most
        pieces, rows = self.pieces(texts), []
        for number in range(len(texts)):
            full = pieces.text(number)
            stop = full.stop if most is None else min(full.stop, full.start + most)
            part = slice(full.start, stop)
            text = self._add_special(pieces.part(part), pieces.begins[part], pieces.spans[part])
            rows.append(replace(text, cut=part.stop < full.stop))
        return rows

    def _add_special(self, columns: dict[str, Array], begins: Bools, spans: Ints) -> Text:
        """A text with its special tokens, if pretraining had them."""
        if not self._layout.in_pretraining:
            columns = {**columns, "segments": np.zeros(len(spans), dtype=np.int64)}
            return Text(columns, slice(0, len(spans)), None, begins, spans)
        row = self.with_special_tokens(columns)
        cls = None if self._layout.summary is None else row.mark
        return Text(row.columns, row.first, cls, begins, spans)

    @cached_property
    def _cached_tokenizer(self) -> CachedTokenizer:
        return CachedTokenizer(self.tokenizer, segment=False, counts=Counts())

    @property
    def _layout(self) -> TextLayout:
        return self.recipe.encoder.layout

    @cached_property
    def _separators(self) -> int:
        """How many separate two texts: two if RoBERTa's class in transformers fits, else one."""
        encoder = self.recipe.encoder
        if not encoder.layout.in_pretraining:
            return 1
        if self.separators is not None:
            return self.separators
        family = FAMILIES[family_for(encoder, frozenset(), self.vocabulary)]
        return 2 if family.is_roberta else 1

    @cached_property
    def _special_columns(
        self,
    ) -> tuple[list[dict[str, Array]], dict[str, Array], list[dict[str, Array]]]:
        """The special tokens before, between and after the texts."""
        layout, known = self._layout, self.vocabulary.roles
        opening = len(layout.before)
        roles = [*layout.before, layout.between, *layout.after]
        roles = [r if r in known else layout.fallback or r for r in roles]
        ids = np.array([self.vocabulary.role(role) for role in roles], dtype=np.int32)
        columns: dict[str, Array] = {"ids": ids}
        if self.recipe.encoder.reads == "words":  # a special token is a word
            begins, starts = np.ones(len(ids), dtype=bool), np.array([0, len(ids)])
            columns = self._spell(ids, begins, starts=starts, fixed=True)
        tokens = [{name: columns[name][n : n + 1] for name in columns} for n in range(len(ids))]
        return tokens[:opening], tokens[opening], tokens[opening + 1 :]

    @cached_property
    def _spelling(self) -> Spelling:
        """The characters of each id; without a corpus no word has a number."""
        return self.spelling or Spelling(
            *letters(self.tokenizer), np.zeros(0, np.uint64), np.zeros(0, np.int32)
        )

    def _spell(self, ids: Ids, begins: Bools, *, starts: Ints, fixed: bool) -> dict[str, Array]:
        """The words of some tokens, by their characters."""
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

    def _word_pieces(self, encoded: Tokenised, spans: Ints, begins: Bools) -> Pieces:
        """The pieces of texts whose tokens are joined to words."""
        first = np.flatnonzero(begins)
        last = np.append(first, len(begins))[1:] - 1
        columns = self._spell(encoded.ids, begins, starts=encoded.starts, fixed=False)
        starts = np.searchsorted(first, encoded.starts)
        word_spans = np.stack([spans[first, 0], spans[last, 1]], axis=1)
        all_begin = np.ones(len(first), dtype=bool)
        return Pieces(columns, starts, word_spans, all_begin, _word_numbers(all_begin, starts))


def _word_numbers(begins: Bools, starts: Ints) -> Ints:
    """The index of each token's word within its text."""
    running = offsets(begins)
    return np.asarray(running[1:] - 1 - np.repeat(running[starts[:-1]], np.diff(starts)))


def batches(texts: Sequence[Text], *, tokens: int) -> Iterator[Ints]:
    """Yield the indices of texts in batches of that many tokens, the longest texts first.

    A word that is read by its characters takes the memory of eight tokens.
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")  # texts of similar length fill batches evenly
    done = 0
    while done < len(order):
        longest = texts[order[done]]
        row = max(len(longest), 1) * (8 if "characters" in longest.columns else 1)
        size = max(1, tokens // row)
        yield order[done : done + size]
        done += size


def packed(texts: Sequence[Text], device: torch.device) -> Input:
    """Several texts packed into one input."""
    starts = offsets([len(text) for text in texts])
    columns: dict[str, Any] = {
        name: _tensor(np.concatenate([text.columns[name] for text in texts]), device)
        for name in texts[0].columns
    }
    positions = np.concatenate([np.arange(len(text)) for text in texts])
    return Input(
        **columns,
        position_ids=_tensor(positions, device),
        cu_seqlens=_tensor(starts, device).int(),
        max_seqlen=max(len(text) for text in texts),
    )


def in_order(batch: Input, ranks: torch.Tensor, queries: torch.Tensor) -> Input:
    """Full blocks of one length with an order of prediction, and queries at some of their tokens.

    A query [B, T] sees the tokens of lower rank [N]; tokens of rank -1 see each other.
    """
    half = (batch.max_seqlen + 1) // 2
    # The encoder orders the second half of a block after the first; this cancels that offset.
    offset = (batch.position_ids >= half) * (batch.max_seqlen + 1)
    kinds = torch.where(ranks >= 0, _TARGET, _OTHER)
    return batch._replace(order=ranks - offset, kinds=kinds, queries=queries)


def _tensor(values: Array, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)
