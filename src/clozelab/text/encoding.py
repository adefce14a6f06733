"""Sentences → ids and marks, fast: every distinct stretch of text is tokenised once.

A stretch is a word, or a run between spaces, with the white space before it where that matters
(the first group of a pattern, if it has one, is the stretch without it).
For tokenizers whose normaliser and pre-tokenizer never look across stretches, tokenising stretches
by themselves gives the same ids as tokenising the sentence, and most stretches of natural text are
repeated; any other tokenizer is given whole sentences.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from clozelab.contracts import Bytes, Counts, Ids, Ints, Mark
from clozelab.packed import offsets, ranges, sums
from clozelab.text.sequences import is_bytes, pattern_of, searching
from clozelab.text.vocabulary import lower_cases, settings_of
from clozelab.text.words import IDEOGRAPH_CLASS, after_space, begins, inside_segments

# The library's white space is Python's without four control characters.
_GAP = r"[^\S\x1c-\x1f]"
_ODD_GAP = r"[^\S\x1c-\x1f \t\n\r]"  # does not end a stretch: normalisers treat it differently
_SOLID = r"[\S\x1c-\x1f]"
_RUN = rf"{_SOLID}+(?:{_ODD_GAP}+{_SOLID}+)*"
_SIGN = r"!-/:-@\[-`{-~"
_CUT = rf"(?=[ \t\n\r{_SIGN}]|\Z)"  # BERT and GPT-2 both cut between letters and a sign
_LETTER = rf"(?![{_SIGN}{IDEOGRAPH_CLASS}]){_SOLID}"
_LETTERS = rf"(?:{_LETTER})+(?:{_ODD_GAP}+(?:{_LETTER})+)*"

_SPACED = re.compile(rf"{_GAP}*{_RUN}")
_BYTES = re.compile(rf"{_GAP}*(?:[A-Za-z]+{_CUT}|{_RUN})")
_BERT = re.compile(rf" ?+{_GAP}*+([0-9A-Za-z]++{_CUT}|[{_SIGN}{IDEOGRAPH_CLASS}]|{_LETTERS})")
_SENTENCE = re.compile(rf".*{_SOLID}", re.DOTALL)
_IDEOGRAPH = re.compile(rf"[{IDEOGRAPH_CLASS}]")

_MOST_LETTERS = 1 << 23  # characters of cached stretches, before the cache is cleared


@dataclass(frozen=True)
class Tokenised:
    """The tokens of some sentences, packed."""

    ids: Ids
    marks: Bytes
    starts: Ints  # offsets of the sentences
    stretches: Ints  # the numbers, in the cache, of the stretches they were cut into
    firsts: Ints | None = None  # each token's first character in its sentence, without spaces
    stops: Ints | None = None  # the character after each token's last


class CachedTokenizer:
    """A tokenizer with a cache of the tokens of stretches."""

    def __init__(self, tokenizer: Tokenizer, *, segment: bool, counts: Counts) -> None:
        self._tokenizer = literal(tokenizer)
        self._pattern = stretches(tokenizer)
        self._splits_by = pattern_of(tokenizer)
        self._lower = self._pattern is not _SENTENCE and lower_cases(tokenizer)
        self._word_level = isinstance(tokenizer.model, models.WordLevel)  # every token is a word
        self._segment = segment
        self._counts = counts
        self._forget()

    def encode(self, sentences: list[str], *, characters: bool = False) -> Tokenised:
        """Tokenise sentences; the first token of each has all marks.

        With `characters`, also the span of characters of each token.
        """
        # Lower-cased here where the tokenizer would do so, so that "The" and "the" share a stretch.
        lowered = [
            sentence.lower() if self._lower and sentence.isascii() else sentence
            for sentence in sentences
        ]
        cut = [self._pattern.findall(sentence) for sentence in lowered]
        stretch_offsets = offsets([len(stretches) for stretches in cut])
        numbers = map(self._known.__getitem__, chain.from_iterable(cut))
        number = np.fromiter(numbers, np.int64, int(stretch_offsets[-1]))
        self._learn()
        ids, marks, sizes, source = self._tokens(number)
        starts = offsets(sums(sizes, stretch_offsets))
        marks[starts[:-1][np.diff(starts) > 0]] = Mark.ALL
        for at, sentence in enumerate(sentences) if self._segment else ():
            if not sentence.isascii() and _IDEOGRAPH.search(sentence):
                span = slice(starts[at], starts[at + 1])
                lengths = sizes[stretch_offsets[at] : stretch_offsets[at + 1]]
                firsts, _ = self._characters([lowered[at]], lengths, source[span])
                self._mark_segments(sentence, marks[span], firsts)
        if not characters:
            return Tokenised(ids, marks, starts, number)
        return Tokenised(ids, marks, starts, number, *self._characters(lowered, sizes, source))

    def _characters(self, cut: list[str], sizes: Ints, source: Ints) -> tuple[Ints, Ints]:
        """The first character of each token of some sentences, and the one after its last."""
        matches = chain.from_iterable(map(self._pattern.finditer, cut))
        begins = (match.start(self._pattern.groups) for match in matches)
        shift = np.repeat(np.fromiter(begins, np.int64), sizes)
        firsts = np.frombuffer(self._firsts, np.int32)[source] + shift
        return firsts, np.frombuffer(self._stops, np.int32)[source] + shift

    def words(self, stretches: Ints) -> tuple[Ids, Bytes, Ints]:
        """Ids and marks of each distinct stretch once, and per token how often its stretch occurs.

        Every stretch begins a word here, also one whose first character has no token (a zero-width
        space): it is not next to its neighbours of the text, so no word may continue into it.
        """
        times = np.bincount(stretches)
        number = np.flatnonzero(times)
        ids, marks, sizes, _ = self._tokens(number)
        marks[offsets(sizes)[:-1][sizes > 0]] |= Mark.WORD
        return ids, marks, np.repeat(times[number], sizes)

    def _tokens(self, number: Ints) -> tuple[Ids, Bytes, Ints, Ints]:
        """The ids and marks of stretches, how many tokens each has, and their cache indices."""
        begin = np.frombuffer(self._starts, np.int64)
        sizes = begin[number + 1] - begin[number]
        source = ranges(begin[number], sizes)
        ids = np.frombuffer(self._ids, np.uint32)[source].astype(np.int32)
        return ids, np.frombuffer(self._marks, np.uint8)[source], sizes, source

    def forget(self) -> None:
        """Clear the cache if it is large; the numbers of stretches are then no longer valid."""
        if self._letters > _MOST_LETTERS:
            self._forget()

    def _learn(self) -> None:
        """Tokenise the stretches that are new; cache their ids, marks and characters."""
        learned = len(self._starts) - 1
        new = [*islice(reversed(self._known), len(self._known) - learned)][::-1]
        tokens = self._encoded(new)
        starts = offsets([len(stretch_tokens) for stretch_tokens in tokens])
        flat = chain.from_iterable(chain.from_iterable(tokens))
        ids, begin, stops = np.fromiter(flat, np.int64).reshape(-1, 3).T
        bodies = [text.lstrip(" ") for text in new]
        lead = np.array([len(text) - len(body) for text, body in zip(new, bodies, strict=True)])
        firsts = np.maximum(begin, np.repeat(lead, np.diff(starts))).astype(np.int32)
        marks = np.full(len(firsts), Mark.ALL if self._word_level else _INSIDE, dtype=np.uint8)
        marks[starts[:-1][np.diff(starts) > 0]] = Mark.ALL
        for number, (text, body) in enumerate(zip(new, bodies, strict=True)):
            if not _is_plain(body):  # in a plain word only the first token begins one
                span = slice(starts[number], starts[number + 1])
                firsts[span] = after_space(text, begin[span].tolist())
                if not self._word_level:
                    word = begins(text, firsts[span].tolist())
                    marks[span] = np.where(word, Mark.ALL, _INSIDE)
        self._starts.frombytes((starts[1:] + len(self._ids)).tobytes())
        self._ids.frombytes(ids.astype(np.uint32).tobytes())
        self._firsts.frombytes(firsts.tobytes())
        self._stops.frombytes(stops.astype(np.int32).tobytes())
        self._marks.extend(marks.tobytes())
        self._letters += sum(map(len, new))

    def _encoded(self, new: list[str]) -> list[list[tuple[int, int, int]]]:
        """For each stretch its tokens: id, first character, and the one after the last.

        For BERT, plain words go directly to the model: its normaliser and pre-tokenizer, which
        take longer than the model, would not change them.
        """
        model, bert = self._tokenizer.model, self._pattern is _BERT
        plain = [
            bert and _is_plain(text) and not (self._lower and text != text.lower()) for text in new
        ]
        others = [text for text, is_plain in zip(new, plain, strict=True) if not is_plain]
        with searching(self._splits_by):
            encodings = iter(self._tokenizer.encode_batch(others, add_special_tokens=False))
        tokens = []
        for text, is_plain in zip(new, plain, strict=True):
            if is_plain:
                tokens.append([(token.id, *token.offsets) for token in model.tokenize(text)])
            else:
                encoding = next(encodings)
                spans = zip(encoding.ids, encoding.offsets, strict=True)
                tokens.append([(number, *span) for number, span in spans])
        return tokens

    def _forget(self) -> None:
        self._known = defaultdict[str, int](count().__next__)  # a new stretch gets the next number
        self._ids, self._starts = array("I"), array("q", [0])
        self._firsts, self._stops = array("i"), array("i")
        self._marks = bytearray()
        self._letters = 0

    def _mark_segments(self, sentence: str, marks: Bytes, firsts: Ints) -> None:
        """Clear the segment mark of tokens that continue a segmented word."""
        self._counts.add("sentences with Chinese, cut into words")
        inside, failed = inside_segments(sentence)
        if failed:
            self._counts.add("sentences whose segmentation did not match", sentence[:40])
        marks[inside[np.minimum(firsts, len(sentence) - 1)]] &= np.uint8(Mark.ALL ^ Mark.SEGMENT)
        marks[:1] = Mark.ALL


# Until phrases and entities are found, every token counts as one.
_INSIDE = Mark.PHRASE | Mark.ENTITY


def _is_plain(text: str) -> bool:
    """Whether a text is one word to every tokenizer, which at most lower-cases it."""
    return text.isascii() and text.isalnum()


def literal(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that reads the names of special tokens as text, and neither pads nor truncates."""
    text = tokenizer.to_str()
    if isinstance(tokenizer.model, models.Unigram | models.WordLevel):
        # These models match all pieces, also specials; a name with a space in front never matches.
        settings = json.loads(text)
        model, added = settings["model"], settings["added_tokens"]
        names = {token["content"] for token in added if token["special"]}
        hidden = {name: f" {name}" for name in names}
        if isinstance(tokenizer.model, models.WordLevel):
            model["vocab"] = {hidden.get(word, word): n for word, n in model["vocab"].items()}
            model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
        else:
            for entry in model["vocab"]:
                entry[0] = hidden.get(entry[0], entry[0])
        settings["added_tokens"] = [token for token in added if not token["special"]]
        text = json.dumps(settings)
    copy = Tokenizer.from_str(text)
    copy.encode_special_tokens = True
    copy.no_padding()
    copy.no_truncation()
    return copy


def stretches(tokenizer: Tokenizer) -> re.Pattern[str]:
    """The pattern of the stretches that a tokenizer may be given one by one (see the module)."""
    before = settings_of(tokenizer.pre_tokenizer)
    normal = settings_of(tokenizer.normalizer)
    if any(not token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return _SENTENCE  # added tokens are matched before text is split
    if before.get("type") == "BertPreTokenizer" and normal.get("type") == "BertNormalizer":
        return _BERT if normal["handle_chinese_chars"] else _SENTENCE
    if before.get("type") == "ByteLevel" and not normal:
        if is_bytes(tokenizer):
            return _SPACED
        local = before["use_regex"] and not before["add_prefix_space"]
        return _BYTES if local else _SENTENCE
    if before.get("type") == "Metaspace" and before["prepend_scheme"] == "always":
        steps = [step for step in normal.get("normalizers", []) if step["type"] != "Lowercase"]
        local = steps[-2:] == _SQUEEZE and all(map(_stays_inside_stretches, steps[:-2]))
        return _SPACED if local and before["split"] else _SENTENCE
    return _SENTENCE


# The last steps of a normaliser that makes one plain space of all white space, also of that which
# decomposing adds (´ is a space with an accent).
_SQUEEZE = [
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]


def _stays_inside_stretches(step: dict[str, Any]) -> bool:
    """Whether a normaliser step never looks across white space."""
    if step["type"] == "Replace":
        return not any(map(str.isspace, step["pattern"].get("String", " ")))
    return step["type"] in ("NFKD", "NFD", "StripAccents")
