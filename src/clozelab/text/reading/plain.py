"""Where English sentences end, by one regular expression and lists of abbreviations: the rule for
machines without nupunkt."""

from __future__ import annotations

import re

VERSION = 1  # part of a store's record: raise it when the rule changes


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLOSING = "\"'”’»)\\]}*_"
_OPENING = "\"'“‘«(\\[{*_¿¡—–-"
# A run of stops, from its first, with what closes on it, before white space; then the next word,
# without what opens before it. A stop that another spaced stop follows (". . .") is not the last.
_STOP = re.compile(
    rf"([.!?…](?<![.!?…]{{2}})[.!?…]*+)[{_CLOSING}]*+"
    rf"(?=\s+[{_OPENING}]*+([\w'’]{{0,12}}))(?!\s+[.!?…]++(?:\s|$))"
)
_DOTTED = re.compile(r"(?:\w{1,3}\.)+\w{1,3}")  # U.S, a.m, Ph.D
_SPEAKER = frozenset(["I", "I'm", "I'll", "I'd", "I've", "I’m", "I’ll", "I’d", "I’ve"])
# Never the last word of a sentence: a name, a number or a phrase must follow.
_OPEN = _words(
    "mr mrs ms dr prof hon rev gen sen rep gov pres capt cpt col lt sgt maj cmdr adm st ste mt"
    " messrs mme mlle mssrs fr msgr supt e.g i.e eg ie cf viz vs ca approx resp incl esp"
)
# Before a number a reference, elsewhere a word of its own or a sentence's last.
_NUMBERED = _words(
    "no nos fig figs p pp vol vols ch chap sec sect art eq eqs ed app op par para pt ver jan feb"
    " mar apr jun jul aug sep sept oct nov dec"
)
# May end a sentence: does where a word follows that mostly begins one.
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


def ends(line: str) -> list[int]:
    """Where the sentences of a line without trailing white space end, the last end left out."""
    stops: list[int] = []
    start = 0
    for match in _STOP.finditer(line):
        marks, after = match.groups()
        if after and after[0].islower():
            continue
        end = match.end()
        if marks == "." and end - match.start() == 1:
            if not _breaks(line, match.start(), start=start, after=after):
                continue
        elif after in _SPEAKER and marks[-1] in ".…":  # "Well... I think"
            continue
        stops.append(end)
        start = end
    return stops


def _breaks(line: str, stop: int, *, start: int, after: str) -> bool:
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


def abbreviated(line: str, end: int) -> bool:
    """Whether the word before the stop that ends at `end` is a known abbreviation."""
    word = line[line.rfind(" ", max(0, end - 24), end) + 1 : end].rstrip('."”').lower()
    return word in _KNOWN
