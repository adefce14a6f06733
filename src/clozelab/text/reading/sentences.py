"""Text → consecutive sentences: English by nupunkt, or where it is not installed by a plain rule
(a regular expression and lists of abbreviations); Chinese and Japanese by a rule of their own,
also within a text that mixes them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from clozelab.contracts import Counts
from clozelab.errors import UserError

if TYPE_CHECKING:
    import nupunkt

LONGEST = 10_000  # characters of a sentence, without the white space before it
_CUT = f"sentences over {LONGEST:,} characters cut"
_WINDOW = 1 << 17  # characters; nupunkt has an object in memory for every stop of its input
_UNBROKEN = 2_000  # characters; nupunkt takes quadratic time over a run without white space

_EASTERN = (
    "\u2e80-\u2fdf\u3000-\u30ff\u3100-\u312f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uffee"
)
_EASTERN_CHARACTER = re.compile(f"[{_EASTERN}\U00020000-\U0003ffff]")
# A run of stops of Chinese or Japanese text, from the run's first, and the closing quotes and
# brackets after it. Western marks count only beside an eastern character or stop; a comma after
# the quote continues the sentence. A single set of characters comes first, which is fast to search.
_STOPS = "[。！？；｡!?…]"
_EASTERN_END = re.compile(
    f"{_STOPS}(?<!{_STOPS}{{2}})"
    f"(?:(?<=[。！？；｡])|(?<=[{_EASTERN}][!?])|(?<=[{_EASTERN}]…)(?=…)|(?=[!?…]*+[。！？；｡]))"
    f"{_STOPS}*+[”’」』）】》〉］｝〕〗〙〛]*+(?![，、：,…—])"
)
# A stop after small letters, digits or a bracket and before a capitalised word: mostly the end of
# a sentence. A single set of characters comes first, which is fast to search.
_LIKELY = re.compile(
    r"[.!?](?:(?<=[a-z]{3}[.!?])|(?<=[0-9]{2}\.)|(?<=\)\.)|(?<=[a-z]{3}\.)[\"”])(?=\s+[A-Z][a-z])"
)
_WESTERN_STOP = re.compile(r"[.!?…]\S{0,8}\s")


# The plain rule for English.
_RULE = 1  # its version, part of a store's record: raise it when the rule changes


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLOSING = "\"'”’»)\\]}*_"
_OPENING = "\"'“‘«(\\[{*_¿¡—–-"
# A run of stops, from its first, with closing quotes and brackets, before white space; then the
# next word, without opening ones. A stop before another spaced stop (". . .") is not the last.
_STOP = re.compile(
    rf"([.!?…](?<![.!?…]{{2}})[.!?…]*+)[{_CLOSING}]*+"
    rf"(?=\s+[{_OPENING}]*+([\w'’]{{0,12}}))(?!\s+[.!?…]++(?:\s|$))"
)
_DOTTED = re.compile(r"(?:\w{1,3}\.)+\w{1,3}")  # U.S, a.m, Ph.D
_SPEAKER = frozenset(["I", "I'm", "I'll", "I'd", "I've", "I’m", "I’ll", "I’d", "I’ve"])
# Abbreviations that never end a sentence: a name, a number or a phrase must follow.
_OPEN = _words(
    "mr mrs ms dr prof hon rev gen sen rep gov pres capt cpt col lt sgt maj cmdr adm st ste mt"
    " messrs mme mlle mssrs fr msgr supt e.g i.e eg ie cf viz vs ca approx resp incl esp"
)
# Abbreviations before a number; elsewhere they are words, or end a sentence.
_NUMBERED = _words(
    "no nos fig figs p pp vol vols ch chap sec sect art eq eqs ed app op par para pt ver jan feb"
    " mar apr jun jul aug sep sept oct nov dec"
)
# Abbreviations that end a sentence if the next word is one that mostly begins one.
_EITHER = _words(
    "inc co corp ltd llc plc bros jr sr esq etc al dept univ assn ave blvd rd hwy bldg"
    " oz lb lbs ft hr hrs min sec kg km cm mm mph tue tues thu thur thurs fri"
    " jan feb mar apr jun jul aug sep sept oct nov dec fig vol ibid calif conn penn tex"
    " mich minn va md ariz colo"
)
_STARTERS = _words(
    "A About After All Also Although Among An And Another Any As At Because Before Both But By"
    " Can Could Did Do Does During Each Even Every Finally First For From Had Has Have He Her"
    " Here His How However I If I'm I’m In Is It Its It's It’s Just Last Later Let Like Many May"
    " Maybe Meanwhile More Most Much My Nearly Neither Never Next No Nobody None Nor Not Nothing"
    " Now Of On Once One Only Or Other Others Our Over Perhaps Please Several She Should Similarly"
    " Since So Some Soon Still Such That The Their Then There Therefore These They This Those"
    " Though Through Thus To Today Under Unlike Until Was We Were What When Where Whether Which"
    " While Who Why Will With Without Would Yes Yesterday Yet You Your"
)
_KNOWN = _OPEN | _NUMBERED | _EITHER

Ends = Callable[[str], list[int]]
Splitting = Literal["auto", "nupunkt", "plain", "none"]  # none: a line is a sentence


@dataclass(frozen=True)
class Splitter:
    """Splits a text into sentences; `name` has the rule and version, for records."""

    name: str
    ends: Ends  # a line of text → where its sentences end, without the last end

    def split(self, text: str, counts: Counts | None = None, *, place: str = "") -> list[str]:
        """The sentences of `text`, which joined give it again; `counts` gets those that are cut.

        White space between two sentences belongs to the second; a newline always ends a sentence;
        no sentence is only white space, so a blank text has none.
        """
        ends = self.ends
        if ends is not _no_ends and not text.isascii() and _EASTERN_CHARACTER.search(text):
            ends = partial(_mixed_ends, western=ends)
        return _tile(text, ends, counts=counts, place=place)


def lines(
    text: str, counts: Counts | None = None, *, place: str = "", whole: bool = False
) -> list[str]:
    """The sentences of a text that has one per line, with white space as in `split`.

    Long ones are cut unless they must stay `whole`.
    """
    return _tile(text, _no_ends, counts=counts, place=place, whole=whole)


def splitter(kind: str = "auto") -> Splitter:
    """The splitter of that kind; `auto` takes nupunkt where it is installed."""
    if kind not in get_args(Splitting):
        raise UserError(
            f"sentence splitter {kind!r} is unknown; choose auto, nupunkt, plain or none"
        )
    if kind == "none":
        return Splitter("none", _no_ends)
    if kind != "plain":
        try:
            from nupunkt import __version__

            return Splitter(f"nupunkt {__version__}, rule {_RULE}", _nupunkt_ends)
        except ImportError:
            if kind == "nupunkt":
                raise UserError(
                    "the sentence splitter nupunkt is not installed; pip install nupunkt,"
                    " or choose plain"
                ) from None
    return Splitter(f"plain {_RULE}", plain_ends)


def _no_ends(line: str) -> list[int]:
    return []


def _tile(
    text: str, ends: Ends, *, counts: Counts | None, place: str, whole: bool = False
) -> list[str]:
    pieces: list[str] = []
    start = base = 0
    for line in text.split("\n"):
        stripped = line.rstrip()
        if stripped:
            for end in ends(stripped):
                pieces.append(text[start : base + end])
                start = base + end
            stop = base + len(stripped)
            pieces.append(text[start:stop])
            start = stop
        base += len(line) + 1
    if not pieces:
        return []
    if start < len(text):
        pieces[-1] += text[start:]
    if not whole and max(map(len, pieces)) > LONGEST:
        shorter = [part for piece in pieces for part in _cut_sentence(piece)]
        if counts is not None:
            counts.add(_CUT, place, len(shorter) - len(pieces))
        return shorter
    return pieces


def _cut_sentence(piece: str) -> Iterator[str]:
    """Cut a sentence into pieces of at most LONGEST characters, without white space in front."""
    start, stop = 0, len(piece.rstrip())
    while True:
        first = stop - len(piece[start:stop].lstrip())
        if stop - first <= LONGEST:
            yield piece[start:]
            return
        end = first + LONGEST
        if piece[end].isspace() or piece[end - 1].isspace():
            end = first + len(piece[first:end].rstrip())
        else:
            words = piece[first:end].rsplit(None, 1)
            end = first + len(words[0]) if len(words) == 2 else whole_character(piece, end)
        yield piece[start:end]
        start = end


def whole_character(text: str, end: int) -> int:
    """The last position up to `end` where a cut does not split an accent or emoji from its base."""
    for cut in range(end, max(end - 64, 1), -1):
        after, before = text[cut], text[cut - 1]
        joined = (
            unicodedata.category(after).startswith("M")
            or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
            or "\u200d" in (after, before)
            or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        )
        if not joined:
            return cut
    return end


def _mixed_ends(line: str, *, western: Ends) -> list[int]:
    """The ends of a line with eastern characters: by the eastern rule, and by `western` between."""
    stops = _eastern_ends(line)
    if not _WESTERN_STOP.search(line):
        return stops
    ends: list[int] = []
    for start, stop in pairwise([0, *stops, len(line)]):
        ends += (start + end for end in western(line[start:stop]))
        ends.append(stop)
    return ends[:-1]


def _eastern_ends(line: str) -> list[int]:
    ends: list[int] = []
    quotes = start = 0
    for match in _EASTERN_END.finditer(line):
        end = match.end()
        # A straight quote is a closing one if an odd number of them came before it.
        quotes += line.count('"', start, end)
        start = end
        if quotes % 2 and line.startswith('"', end):
            end += 1
        if end < len(line):
            ends.append(end)
    return ends


def _nupunkt_ends(line: str) -> list[int]:
    """The ends that a regular expression is sure of, and nupunkt's between them."""
    ends: list[int] = []
    start = 0
    likely = (match.end() for match in _LIKELY.finditer(line))
    for end in [*(end for end in likely if not _abbreviated(line, end)), len(line)]:
        if _WESTERN_STOP.search(line, start, end):  # before slicing, for speed
            ends += (start + stop for stop in _nupunkt_windows(line[start:end]))
        ends.append(end)
        start = end
    return ends[:-1]


def _nupunkt_windows(line: str) -> list[int]:
    if len(line) <= _UNBROKEN:
        return _nupunkt_stops(line)
    if max(map(len, line.split())) > _UNBROKEN:
        return plain_ends(line)
    ends: list[int] = []
    start = 0
    while len(line) - start > _WINDOW:
        words = line[start : start + _WINDOW].rsplit(None, 1)[0]
        # The last sentence of a window may continue in the next, unless it fills the window.
        ends += (start + end for end in _nupunkt_stops(words) or [len(words)])
        start = ends[-1]
    return ends + [start + end for end in _nupunkt_stops(line[start:])]


def _nupunkt_stops(line: str) -> list[int]:
    return [stop for _, stop in _nupunkt().span_tokenize(line)][:-1]


@cache
def _nupunkt() -> nupunkt.PunktSentenceTokenizer:
    import nupunkt

    return nupunkt.load("default")


def plain_ends(line: str) -> list[int]:
    """Where the sentences of a line without trailing white space end, without the last end."""
    stops: list[int] = []
    start = 0
    for match in _STOP.finditer(line):
        marks, after = match.groups()
        if after and after[0].islower():
            continue
        end = match.end()
        if marks == "." and end - match.start() == 1:
            if not _ends_sentence(line, match.start(), start=start, after=after):
                continue
        elif after in _SPEAKER and marks[-1] in ".…":  # "Well... I think"
            continue
        stops.append(end)
        start = end
    return stops


def _ends_sentence(line: str, stop: int, *, start: int, after: str) -> bool:
    """Whether the single full stop at `stop` ends the sentence that starts at `start`."""
    low = max(start, stop - 24)  # no abbreviation is longer
    word = line[line.rfind(" ", low, stop) + 1 or low : stop].lstrip("\"'“‘«([{*_—–-\t\n\u00a0")
    lower = word.lower()
    if lower in _OPEN:
        return False
    if lower in _NUMBERED and after[:1].isdigit():
        return False
    if len(word) == 1 and word.isalpha():
        return after in _STARTERS
    if word.isdigit():  # "3. The third item": a number alone is no sentence
        return len(word) > 3 or bool(line[start : stop - len(word)].strip(" ("))
    if lower in _EITHER or ("." in word and _DOTTED.fullmatch(word)):
        return after in _STARTERS
    return True


def _abbreviated(line: str, end: int) -> bool:
    """Whether the word before the stop that ends at `end` is a known abbreviation."""
    word = line[line.rfind(" ", max(0, end - 24), end) + 1 : end].rstrip('."”').lower()
    return word in _KNOWN
