"""Texts as one encoder reads them: its tokenizer, and the marks of its kind.

BERT has [CLS] A [SEP] B [SEP] and tells the texts apart by type; RoBERTa, which has no types, puts
two separators between them; XLNet has A <sep> B <sep> <cls>; GPT has a mark before, between and
after, and ELMo reads words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Text:
    """One text, as the encoder is to have it."""

    columns: dict[str, Array]  # "ids", "segments" and what else `Input` names, a row a token
    own: slice  # which of them are the text's and not marks
    cls: int | None  # where [CLS] stands, if it does
    begins: Bools  # [own] which begin a word
    spans: Ints  # [own, 2] the characters each covers
    cut: bool = False  # it was longer than the model reads

    def __len__(self) -> int:
        return len(self.columns["ids"])


@dataclass(frozen=True)
class TaskReader:
    """A `Reader` for the encoder of a recipe."""

    recipe: Recipe
    tokenizer: Tokenizer
    length: int  # the most tokens a block may have
    spelling: Spelling | None = None  # of a corpus, where words are to have their numbers in it
    marked: bool = True  # whether marks stand around the texts of a task

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids the tokenizer deals in."""
        return describe(self.tokenizer)

    @property
    def passage_first(self) -> bool:
        """Whether a passage comes before its question (XLNet) or after it."""
        return self._layout.passage_first

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """Texts as tokens, or as words where the encoder reads those."""
        for text in texts:
            if not isinstance(text, str):
                raise UserError(f"{text!r:.60}: is not a text; give a string")
            if not text.isascii() and not _is_unicode(text):
                raise UserError(
                    f"{text!r:.60}: is not Unicode text; it has half of a surrogate pair"
                )
        self._encoder.forget()
        encoded = self._encoder.encode(list(texts), characters=True)
        assert encoded.firsts is not None
        assert encoded.stops is not None
        # A token of white space alone stands for nothing before the character behind it.
        stops = np.maximum(encoded.firsts, encoded.stops)
        spans = np.stack([encoded.firsts, stops], axis=1)
        begins = (encoded.marks & Mark.WORD) != 0
        if self.recipe.encoder.reads == "words":
            return self._spelled(encoded, spans, begins)
        columns: dict[str, Array] = {"ids": encoded.ids}
        return Pieces(columns, encoded.starts, spans, begins, _counted(begins, encoded.starts))

    def words(self, sentences: Sequence[Sequence[str]]) -> Pieces:
        """Sentences in words as tokens, a space between any two."""
        pieces = self.pieces([" ".join(words) for words in sentences])
        first = offsets([len(words) for words in sentences])
        begins = offsets([len(word) + 1 for words in sentences for word in words])
        # The sentences one after another, so that words ascend over all of them.
        owner = np.repeat(np.arange(len(sentences)), np.diff(pieces.starts))
        place = pieces.spans[:, 0] + begins[first[owner]]
        word = np.searchsorted(begins[:-1], place, side="right") - 1
        fresh = np.ones(len(word), dtype=bool)
        fresh[1:] = word[1:] != word[:-1]
        return pieces._replace(begins=fresh, words=word - first[owner])

    def marks(self, texts: int) -> int:
        """How many tokens of a block of one text, or two, are not theirs."""
        if not self.marked:
            return 0
        around = len(self._layout.before) + len(self._layout.after)
        return around + (self._separators if texts == 2 else 0)

    def lay(self, first: Mapping[str, Array], second: Mapping[str, Array] | None = None) -> Row:
        """Texts with the marks of the encoder's kind around them."""
        opens, middle, closes = self._marks if self.marked else ([], {}, [])
        between = [middle] * (self._separators if self.marked else 0)
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
                "a text has no tokens, and the model reads texts without marks around them; leave"
                " it out"
            )
        if second is not None and self.recipe.encoder.segment_types not in (0, 1):
            segments[b.start :] = 1
        if self._layout.cls_segment is not None:
            segments[-1] = self._layout.cls_segment
        return Row(columns, a, b, len(segments) - 1 if self._layout.summary == "last" else 0)

    @property
    def limit(self) -> int | None:
        """The most tokens of its own a text may have; a recurrent encoder reads any number.

        Attention without a table of positions does, too, but its memory grows with the square: what
        it was trained on will do.
        """
        encoder = self.recipe.encoder
        if encoder.recurrent:
            return None
        return (encoder.max_positions or self.recipe.blocks.length) - self.own_marks

    @property
    def own_marks(self) -> int:
        """How many marks `read` puts around a text: those that pretraining showed."""
        return self.marks(1) if self._layout.in_pretraining else 0

    def around(self, ids: Array) -> Text:
        """Some tokens with the marks around them that the model knows from its training."""
        spans = np.zeros((len(ids), 2), np.int64)
        return self._with_marks({"ids": ids}, np.ones(len(ids), bool), spans)

    def read(self, texts: Sequence[str], *, most: int | None = None) -> list[Text]:
        """Texts as the model reads them, each cut where the model's positions end, or to `most`."""
        most = self.limit if most is None else most
        pieces, rows = self.pieces(texts), []
        for number in range(len(texts)):
            every = pieces.text(number)
            stop = every.stop if most is None else min(every.stop, every.start + most)
            part = slice(every.start, stop)
            text = self._with_marks(pieces.part(part), pieces.begins[part], pieces.spans[part])
            rows.append(replace(text, cut=part.stop < every.stop))
        return rows

    def _with_marks(self, columns: dict[str, Array], begins: Bools, spans: Ints) -> Text:
        """A text with a task's marks around it, but for those that pretraining never showed."""
        if not self._layout.in_pretraining:
            columns = {**columns, "segments": np.zeros(len(spans), dtype=np.int64)}
            return Text(columns, slice(0, len(spans)), None, begins, spans)
        row = self.lay(columns)
        cls = None if self._layout.summary is None else row.mark
        return Text(row.columns, row.first, cls, begins, spans)

    @cached_property
    def _encoder(self) -> CachedTokenizer:
        return CachedTokenizer(self.tokenizer, segment=False, counts=Counts())

    @property
    def _layout(self) -> TextLayout:
        return self.recipe.encoder.layout

    @cached_property
    def _separators(self) -> int:
        """Between two texts: two where RoBERTa's class in transformers fits, else one."""
        encoder = self.recipe.encoder
        if not encoder.layout.in_pretraining:
            return 1
        family = FAMILIES[family_for(encoder, frozenset(), self.vocabulary)]
        return 2 if family.is_roberta else 1

    @cached_property
    def _marks(self) -> tuple[list[dict[str, Array]], dict[str, Array], list[dict[str, Array]]]:
        """What stands before, between and after the texts."""
        layout, known = self._layout, self.vocabulary.roles
        opening = len(layout.before)
        roles = [*layout.before, layout.between, *layout.after]
        roles = [r if r in known else layout.fallback or r for r in roles]
        ids = np.array([self.vocabulary.role(role) for role in roles], dtype=np.int32)
        columns: dict[str, Array] = {"ids": ids}
        if self.recipe.encoder.reads == "words":  # where an opening one is spelled as such
            every, starts = np.ones(len(ids), dtype=bool), np.array([0, len(ids)])
            columns = self._spell(ids, every, starts=starts, fixed=True)
        tokens = [{name: columns[name][n : n + 1] for name in columns} for n in range(len(ids))]
        return tokens[:opening], tokens[opening], tokens[opening + 1 :]

    @cached_property
    def _spelling(self) -> Spelling:
        """What the ids spell; without a corpus no word has a number."""
        return self.spelling or Spelling(
            *letters(self.tokenizer), np.zeros(0, np.uint64), np.zeros(0, np.int32)
        )

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

    def _spelled(self, encoded: Tokenised, spans: Ints, begins: Bools) -> Pieces:
        """The words of the texts."""
        first = np.flatnonzero(begins)
        last = np.append(first, len(begins))[1:] - 1
        columns = self._spell(encoded.ids, begins, starts=encoded.starts, fixed=False)
        starts = np.searchsorted(first, encoded.starts)
        covered = np.stack([spans[first, 0], spans[last, 1]], axis=1)
        every = np.ones(len(first), dtype=bool)
        return Pieces(columns, starts, covered, every, _counted(every, starts))


def _is_unicode(text: str) -> bool:
    """Whether a text is one to a tokenizer; Python also has strings with half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _counted(begins: Bools, starts: Ints) -> Ints:
    """The number of each token's word in its own text."""
    running = offsets(begins)
    return np.asarray(running[1:] - 1 - np.repeat(running[starts[:-1]], np.diff(starts)))


def packed(texts: Sequence[Text], device: torch.device) -> Input:
    """Several texts, one after another."""
    starts = offsets([len(text) for text in texts])
    columns: dict[str, Any] = {
        name: _tensor(np.concatenate([text.columns[name] for text in texts]), device)
        for name in texts[0].columns
    }
    places = np.concatenate([np.arange(len(text)) for text in texts])
    return Input(
        **columns,
        position_ids=_tensor(places, device),
        cu_seqlens=_tensor(starts, device).int(),
        max_seqlen=max(len(text) for text in texts),
    )


def _tensor(values: Array, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)
