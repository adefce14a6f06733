"""Units for knowledge masking that need no private tool: gazetteer, given spans, mined phrases.

All are found in tokens: a word's key is a hash of its ids, an n-gram's key one of its words' keys,
and a unit is an n-gram whose key is in a table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from clozelab.contracts import Array, Bools, Bytes, Counts, Ints, Keys, Mark
from clozelab.errors import UserError
from clozelab.keys import fold, mix
from clozelab.packed import contains, look_up
from clozelab.text.encoding import CachedTokenizer, Tokenised

LONGEST_ENTITY = 16  # words (ideographs, in Chinese)
LONGEST_PHRASE = 4  # words
# Not tuned. Rare pairs may be neighbours by accident.
LEAST_COUNT = 8  # how often two words must be neighbours to be a phrase
LEAST_NPMI = 0.35  # and their least normalised PMI, from 0 to 1


class NgramTable(dict[int, Keys]):
    """The known n-grams of words: for each n, the sorted keys of those of n words."""

    def rows(self) -> Keys:
        """The table as an array of rows [n, key]."""
        rows = [(n, key) for n, keys in self.items() for key in keys.tolist()]
        return np.array(rows, dtype=np.uint64).reshape(-1, 2)

    @classmethod
    def of(cls, rows: Keys) -> NgramTable:
        """The table from the array that `rows` returned."""
        lengths = np.unique(rows[:, 0]).tolist()
        return cls({n: rows[rows[:, 0] == n, 1] for n in lengths})


def gazetteer(lines: Iterable[str], tokenizer: CachedTokenizer, counts: Counts) -> NgramTable:
    """The n-gram table of a list of names, one per line; order and repetition do not matter."""
    names = sorted({line.strip() for line in lines} - {""})
    table: defaultdict[int, set[int]] = defaultdict(set)
    for lead in ("", " ", "\n"):  # byte BPE gives a word other ids after a space or a line break
        tokenised = tokenizer.encode([lead + name for name in names])
        for number, name in enumerate(names):
            span = slice(tokenised.starts[number], tokenised.starts[number + 1])
            ids, begins = tokenised.ids[span], np.flatnonzero(tokenised.marks[span] & Mark.WORD)
            if not 0 < len(begins) <= LONGEST_ENTITY:
                if not lead:
                    counts.add(f"names of no or more than {LONGEST_ENTITY} words left out", name)
                continue
            *_, last = windows(fold(ids, begins), len(begins))
            table[len(begins)].add(int(last[0]))
    return NgramTable({n: np.array(sorted(table[n]), dtype=np.uint64) for n in sorted(table)})


def windows(words: Keys, longest: int) -> Iterator[Keys]:
    """Yield for n = 1, 2, … the keys of all n-grams of consecutive words."""
    yield (keys := words)
    for n in range(1, min(longest, len(words))):
        yield (keys := mix(keys[:-1], words[n:]))


def mark_entities(ids: Array, marks: Bytes, starts: Ints, *, entities: NgramTable) -> Ints:
    """Clear the entity bit behind the first token of every entity, longest match from the left.

    Returns the entities as [·, 2] half-open spans of tokens; an entity may be a single token.
    """
    if not entities:
        return np.zeros((0, 2), dtype=np.int64)
    first = np.flatnonzero(marks & Mark.WORD)
    sentence = np.searchsorted(starts, first, side="right")
    best = np.zeros(len(first), dtype=np.int64)
    for number, keys in enumerate(windows(fold(ids, first), max(entities))):
        if (n := number + 1) in entities:
            same = sentence[: len(keys)] == sentence[number : number + len(keys)]
            best[: len(keys)][contains(entities[n], keys) & same] = n
    return _mark_units(marks, first, best, bit=Mark.ENTITY)


def _mark_units(marks: Bytes, first: Ints, words: Ints, *, bit: int) -> Ints:
    """Clear `bit` inside units of words[i] words from word i on, leftmost first; [·, 2] spans."""
    stop = np.append(first[1:], len(marks))
    spans, next_free = [], 0
    for word in np.flatnonzero(words).tolist():
        if word >= next_free:
            next_free = word + int(words[word])
            begin, end = int(first[word]), int(stop[next_free - 1])
            marks[begin + 1 : end] &= np.uint8(Mark.ALL ^ bit)
            spans.append((begin, end))
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def mark_span(
    tokenised: Tokenised, begin: int, end: int, *, bit: int, shifts: Ints, counts: Counts
) -> None:
    """Clear `bit` behind the first token of the characters [begin, end) of a document.

    `shifts` has for each token the character of the document at which its sentence begins. A span
    whose edge is inside a token is widened to the whole token, one that goes past the end of a
    sentence is cut there; both are counted.
    """
    assert tokenised.firsts is not None
    assert tokenised.stops is not None
    firsts, stops = tokenised.firsts + shifts, tokenised.stops + shifts
    inside = np.flatnonzero((stops > begin) & (firsts < end))
    if not len(inside):
        counts.add("spans without a token")
        return
    if firsts[inside[0]] < begin or stops[inside[-1]] > end:
        counts.add("spans widened to whole tokens")
    cleared = np.setdiff1d(inside[1:], tokenised.starts)
    if len(cleared) < len(inside) - 1:
        counts.add("spans cut at the end of a sentence")
    tokenised.marks[cleared] &= np.uint8(Mark.ALL ^ bit)


class KeyCounts:
    """Counts of keys in bounded memory: above the limit, the rarest keys are dropped."""

    def __init__(self, limit: int = 4_000_000) -> None:
        self._limit = limit
        self._keys: list[Keys] = [np.zeros(0, dtype=np.uint64)]
        self._counts: list[Ints] = [np.zeros(0, dtype=np.int64)]
        self._waiting = 0

    def add(self, keys: Keys, counts: Ints) -> None:
        """Add counts; they are merged only when many have come together."""
        self._keys.append(keys)
        self._counts.append(counts)
        self._waiting += len(keys)
        if self._waiting > max(len(self._keys[0]), 1 << 18):
            self.table()

    def table(self) -> tuple[Keys, Ints]:
        """All keys, ascending, and their counts."""
        keys, place = np.unique(np.concatenate(self._keys), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate(self._counts)).astype(np.int64)
        if len(keys) > self._limit:
            floor = np.partition(counts, len(keys) - self._limit)[len(keys) - self._limit]
            frequent = counts > floor
            # Of the keys that tie at the floor, keep as many as there is room for.
            frequent[np.flatnonzero(counts == floor)[: self._limit - int(frequent.sum())]] = True
            keys, counts = keys[frequent], counts[frequent]
        self._keys, self._counts, self._waiting = [keys], [counts], 0
        return keys, counts


def pairs(ids: Array, marks: Bytes, starts: Ints, *, lettered: Bools) -> tuple[Keys, Keys]:
    """The keys of all (segmented) words, and of all pairs of neighbours without signs."""
    first = np.flatnonzero(marks & Mark.SEGMENT)
    words = fold(ids, first)
    sentence = np.searchsorted(starts, first, side="right")
    plain = np.logical_or.reduceat(lettered[ids], first)  # a word may begin with a lone space
    linked = (sentence[1:] == sentence[:-1]) & plain[1:] & plain[:-1]
    return words, mix(words[:-1], words[1:])[linked]


def mine(words: tuple[Keys, Ints], together: tuple[Keys, Ints], *, pieces: Iterator[Keys]) -> Keys:
    """The keys of pairs of words that are neighbours far more often than chance (normalised PMI).

    `pieces` yields the text once more, in arrays [3, ·]: keys of a pair, its first and second word.
    """
    total = max(int(words[1].sum()), 1)
    frequent = together[1] >= LEAST_COUNT
    keys, counts = together[0][frequent], together[1][frequent]
    chosen = np.zeros(len(keys), dtype=bool)
    for pair, left, right in pieces:
        known = contains(keys, pair)
        at = np.searchsorted(keys, pair[known])
        joint = counts[at] / total
        word_counts = [look_up(*words, keys[known], default=1) for keys in (left, right)]
        chance = word_counts[0] * word_counts[1] / total**2
        npmi = np.log(joint / np.maximum(chance, 1e-300)) / -np.log(joint)
        chosen[at[npmi >= LEAST_NPMI]] = True
    return keys[chosen]


def mark_phrases(ids: Array, marks: Bytes, starts: Ints, *, phrases: Keys) -> Ints:
    """Clear the phrase bit inside chains of paired words, at most LONGEST_PHRASE; [·, 2] spans."""
    if not len(phrases):
        return np.zeros((0, 2), dtype=np.int64)
    first = np.flatnonzero(marks & Mark.SEGMENT)
    words, sentence = fold(ids, first), np.searchsorted(starts, first, side="right")
    linked = np.zeros(len(first), dtype=bool)  # a word and the next are a pair
    linked[:-1] = contains(phrases, mix(words[:-1], words[1:])) & (sentence[1:] == sentence[:-1])
    here, ends = np.arange(len(first)), np.flatnonzero(~linked)  # the last word of every chain
    sizes = np.minimum(ends[np.searchsorted(ends, here)] - here + 1, LONGEST_PHRASE)
    return _mark_units(marks, first, np.where(linked, sizes, 0), bit=Mark.PHRASE)


def read_spans(lines: Iterable[str], place: str) -> dict[str, list[tuple[int, int, int]]]:
    """Spans by document, from a TSV of document, start character, end character, kind."""
    spans: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.rstrip("\r\n").split("\t")
        try:
            document, begin, end, kind = fields
            span = int(begin), int(end), Mark.PHRASE if kind == "phrase" else Mark.ENTITY
        except ValueError:
            raise UserError(
                f"{place}:{number}: expected document, start, end and kind with tabs between, for"
                ' instance "notes.jsonl:12<tab>0<tab>5<tab>entity"'
            ) from None
        if not 0 <= span[0] < span[1]:
            raise UserError(f"{place}:{number}: a span needs 0 ≤ start < end")
        spans[document].append(span)
    return dict(spans)
