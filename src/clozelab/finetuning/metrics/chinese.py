"""Scores of answers in Chinese: CMRC 2018 (arXiv:1810.07366), and DRCD by the same rules."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clozelab.finetuning.metrics.answers import best
from clozelab.finetuning.metrics.classes import percent

# The marks that CMRC's script takes out, and no others: commas, full stops, quotation marks and
# brackets of ASCII stay, as do … ‘ 【 】.
_MARKS = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")

# Differs from CMRC's script: what stands between Chinese characters is cut by a rule of ours in
# the manner of the Penn Treebank, not by NLTK: brackets, quotes, dashes and signs alone, a comma
# unless a digit follows it, a full stop at the end of a stretch, the rest between spaces whole.
HAN = r"\u4e00-\u9fa5"
_SIGNS = r"""\[\](){}<>?!"@#$%&;–—"""
_STOP = rf",(?!\d)|\.{{2,}}|\.(?=\s*(?:[{HAN}]|$))"
_SEGMENTS = re.compile(rf"[{HAN}{_SIGNS}]|{_STOP}|(?:(?!{_STOP})[^\s{HAN}{_SIGNS}])+")


def normalise(text: str) -> str:
    """Lower case, without marks."""
    return text.lower().strip().translate(_MARKS)


def segments(text: str) -> list[str]:
    """Every Chinese character, and the words between them, without marks."""
    return _SEGMENTS.findall(normalise(text))


def exact(gold: str, predicted: str) -> float:
    """1 if two answers are the same once normalised, else 0."""
    return float(normalise(gold) == normalise(predicted))


def overlap(gold: str, predicted: str) -> float:
    """F1 of the longest stretch of segments that two answers share, from 0 to 1."""
    golds, guesses = segments(gold), segments(predicted)
    shared = _stretch(golds, guesses)
    return 2 * shared / (len(golds) + len(guesses)) if shared else 0.0


def cmrc(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """`exact`, `f1` and their mean `average` over questions with the texts of their answers."""
    pairs = list(zip(gold, predicted, strict=True))
    exacts = percent(sum(best(*pair, by=exact) for pair in pairs), len(pairs))
    overlaps = percent(sum(best(*pair, by=overlap) for pair in pairs), len(pairs))
    return {"exact": exacts, "f1": overlaps, "average": (exacts + overlaps) / 2}


def _stretch(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest contiguous run that two sequences share."""
    longest, row = 0, [0] * (len(second) + 1)
    for one in first:
        # row[j]: how long a shared run ends at this element of first and the j-th of second.
        row = [0, *(row[j] + 1 if one == other else 0 for j, other in enumerate(second))]
        longest = max(longest, *row)
    return longest
