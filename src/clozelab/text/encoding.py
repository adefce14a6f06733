"""Sentences → ids and marks, fast: every distinct stretch of text is tokenised once.

A stretch is a word, or a run between spaces, with the white space before it. For the tokenizers
whose normaliser and pre-tokenizer never look across stretches, encoding them apart and joining
gives the same ids as encoding the sentence, and natural text repeats its stretches; any other
tokenizer gets whole sentences.
"""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab.contracts import Bytes, Counts, Ids, Ints, Mark
from clozelab.packed import offsets, ranges, sums
from clozelab.text.words import IDEOGRAPH_CLASS, after_space, begins, inside_segments

# White space for the library is what Python takes for it, less the four control characters.
_GAP = r"[^\S\x1c-\x1f]"
_ODD_GAP = r"[^\S\x1c-\x1f \t\n\r]"  # stays inside a stretch: normalisers differ about it
_SOLID = r"[\S\x1c-\x1f]"
_RUN = rf"{_SOLID}+(?:{_ODD_GAP}+{_SOLID}+)*"
_SIGN = r"!-/:-@\[-`{-~"
_WORD = rf"[A-Za-z]+(?=[ \t\n\r{_SIGN}]|\Z)"  # BERT and GPT-2 both cut after letters before a sign
_LETTER = rf"(?![{_SIGN}{IDEOGRAPH_CLASS}]){_SOLID}"
_LETTERS = rf"(?:{_LETTER})+(?:{_ODD_GAP}+(?:{_LETTER})+)*"

_SPACED = re.compile(rf"{_GAP}*{_RUN}")
_BYTES = re.compile(rf"{_GAP}*(?:{_WORD}|{_RUN})")
_BERT = re.compile(rf"{_GAP}*(?:{_WORD}|[{_SIGN}{IDEOGRAPH_CLASS}]|{_LETTERS})")
_SENTENCE = re.compile(rf".*{_SOLID}", re.DOTALL)
_IDEOGRAPH = re.compile(rf"[{IDEOGRAPH_CLASS}]")

_MOST_LETTERS = 1 << 23  # characters of remembered stretches, before they are forgotten


@dataclass(frozen=True)
class Encoded:
    """Some sentences as tokens, packed."""

    ids: Ids
    marks: Bytes
    starts: Ints  # first token of each sentence, then the end
    firsts: Ints | None = None  # the character of its sentence each token begins at, after spaces
    stops: Ints | None = None  # the character after its last


class Encoder:
    """A tokenizer with its memory of stretches."""

    def __init__(self, tokenizer: Tokenizer, *, segment: bool, counts: Counts) -> None:
        self._tokenizer = _literal(tokenizer)
        self._pattern = stretches(tokenizer)
        self._segment = segment
        self._counts = counts
        self._forget()

    def encode(self, sentences: list[str], *, characters: bool = False) -> Encoded:
        """Ids and marks of some sentences; the first token of each begins every kind of unit.

        With `characters`, also the characters of its sentence that each token covers.
        """
        found = [self._pattern.findall(sentence) for sentence in sentences]
        stretch = [piece for pieces in found for piece in pieces]
        self._learn(stretch)
        number = np.fromiter(map(self._known.__getitem__, stretch), np.int64, len(stretch))
        begin = np.frombuffer(self._starts, np.int64)
        sizes = begin[number + 1] - begin[number]
        source = ranges(begin[number], sizes)
        ids = np.frombuffer(self._ids, np.uint32)[source].astype(np.int32)
        marks = np.frombuffer(self._marks, np.uint8)[source]
        pieces = offsets([len(pieces) for pieces in found])
        starts = offsets(sums(sizes, pieces))
        marks[starts[:-1][np.diff(starts) > 0]] = Mark.ALL
        segmented = self._ideographic(sentences) if self._segment else []
        if not (characters or segmented):
            return Encoded(ids, marks, starts)
        before = offsets(np.fromiter(map(len, stretch), np.int64, len(stretch)))
        shift = np.repeat(before[:-1] - np.repeat(before[pieces[:-1]], np.diff(pieces)), sizes)
        firsts = np.frombuffer(self._firsts, np.int32)[source] + shift
        stops = np.frombuffer(self._stops, np.int32)[source] + shift
        encoded = Encoded(ids, marks, starts, firsts, stops)
        for at in segmented:
            self._mark_segments(sentences[at], encoded, at)
        return encoded

    def _learn(self, stretch: list[str]) -> None:
        """Tokenise the stretches not met before; remember their ids, marks and characters."""
        new = set(stretch).difference(self._known)
        if self._letters + sum(map(len, new)) > _MOST_LETTERS:
            self._forget()
            new = set(stretch)
        ordered = sorted(new)
        encodings = self._tokenizer.encode_batch(ordered, add_special_tokens=False)
        for text, encoding in zip(ordered, encodings, strict=True):
            places = encoding.offsets
            firsts = after_space(text, [first for first, _ in places])
            self._known[text] = len(self._starts) - 1
            self._ids.extend(encoding.ids)
            self._firsts.extend(firsts)
            self._stops.extend([stop for _, stop in places])
            self._marks.extend(map(_BEGINS.__getitem__, begins(text, firsts)))
            self._starts.append(len(self._ids))
            self._letters += len(text)

    def _forget(self) -> None:
        self._known: dict[str, int] = {}
        self._ids, self._starts = array("I"), array("q", [0])
        self._firsts, self._stops = array("i"), array("i")
        self._marks = bytearray()
        self._letters = 0

    @staticmethod
    def _ideographic(sentences: list[str]) -> list[int]:
        """The sentences with an ideograph in them."""
        return [
            number
            for number, sentence in enumerate(sentences)
            if not sentence.isascii() and _IDEOGRAPH.search(sentence)
        ]

    def _mark_segments(self, sentence: str, encoded: Encoded, number: int) -> None:
        """Take the segment mark from what lies inside a segmented word of a sentence."""
        assert encoded.firsts is not None
        self._counts.add("sentences segmented")
        inside, failed = inside_segments(sentence)
        if failed:
            self._counts.add("sentences whose segmentation did not match", sentence[:40])
        span = slice(encoded.starts[number], encoded.starts[number + 1])
        if span.start < span.stop:
            at = np.minimum(encoded.firsts[span], len(sentence) - 1)
            encoded.marks[span][inside[at]] &= np.uint8(Mark.ALL ^ Mark.SEGMENT)
            encoded.marks[span.start] = Mark.ALL


# Until phrases and entities are found, every token is a unit of those kinds.
_BEGINS = {True: Mark.ALL, False: Mark.PHRASE | Mark.ENTITY}


def _literal(tokenizer: Tokenizer) -> Tokenizer:
    """A copy to which the name of a special is text, and which neither pads nor truncates."""
    settings = json.loads(tokenizer.to_str())
    if settings["model"]["type"] == "Unigram":
        # It looks for all its pieces in the text, the specials first: no piece has a plain space.
        added = settings["added_tokens"]
        names = {token["content"] for token in added if token["special"]}
        for entry in settings["model"]["vocab"]:
            entry[0] = f" {entry[0]}" if entry[0] in names else entry[0]
        settings["added_tokens"] = [token for token in added if not token["special"]]
    copy = Tokenizer.from_str(json.dumps(settings))
    copy.encode_special_tokens = True
    copy.no_padding()
    copy.no_truncation()
    return copy


def stretches(tokenizer: Tokenizer) -> re.Pattern[str]:
    """The stretches a tokenizer may be given one by one: see the module's opening."""
    settings = json.loads(tokenizer.to_str())
    before = settings.get("pre_tokenizer") or {}
    normal = settings.get("normalizer") or {}
    if any(not token["special"] for token in settings["added_tokens"]):
        return _SENTENCE  # added words are matched before anything is split
    if before.get("type") == "BertPreTokenizer" and normal.get("type") == "BertNormalizer":
        return _BERT if normal["handle_chinese_chars"] else _SENTENCE
    if before.get("type") == "ByteLevel" and not normal:
        local = before["use_regex"] and not before["add_prefix_space"]
        return _BYTES if local else _SENTENCE
    if before.get("type") == "Metaspace" and before["prepend_scheme"] == "always":
        steps = [step for step in normal.get("normalizers", []) if step["type"] != "Lowercase"]
        local = steps[-2:] == _SQUEEZE and all(map(_inside_stretches, steps[:-2]))
        return _SPACED if local and before["split"] else _SENTENCE
    return _SENTENCE


# The end of a normaliser that leaves one plain space between runs, whatever white space was there
# or came of decomposing (´ is a space with an accent).
_SQUEEZE = [
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]


def _inside_stretches(step: dict[str, Any]) -> bool:
    """Whether a normaliser never looks across white space."""
    if step["type"] == "Replace":
        letters = step["pattern"].get("String", " ")
        return not any(letter.isspace() for letter in letters)
    return step["type"] in ("NFKD", "NFD", "StripAccents")
