"""Scores of answers in Chinese: CMRC 2018 (arXiv:1810.07366), and DRCD by the same rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from clozelab.finetuning.metrics.answers import Rules, squad1

# The punctuation that CMRC's script removes, and no other: commas, full stops, quotation marks and
# brackets of ASCII stay, as do … ‘ 【 】.
_MARKS = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")

# Differs from CMRC's script: text between Chinese characters is tokenised by a rule of ours in the
# manner of the Penn Treebank, not by NLTK: brackets, quotes, dashes and signs singly, a comma
# unless a digit follows it, a full stop at the end of such text, all else between spaces as one.
HAN = r"\u4e00-\u9fa5"
_SIGNS = r"""\[\](){}<>?!"@#$%&;–—"""
_STOP = rf",(?!\d)|\.{{2,}}|\.(?=\s*(?:[{HAN}]|$))"
_SEGMENTS = re.compile(rf"[{HAN}{_SIGNS}]|{_STOP}|(?:(?!{_STOP})[^\s{HAN}{_SIGNS}])+")


def normalise(text: str) -> str:
    """Lower case without punctuation."""
    return text.lower().strip().translate(_MARKS)


def segments(text: str) -> list[str]:
    """Every Chinese character, and the words between them, without punctuation."""
    return _SEGMENTS.findall(normalise(text))


def overlap(gold: str, predicted: str) -> float:
    """F1 of the longest common run of segments of two answers, from 0 to 1."""
    golds, guesses = segments(gold), segments(predicted)
    shared = SequenceMatcher(None, golds, guesses, autojunk=False).find_longest_match().size
    return 2 * shared / (len(golds) + len(guesses)) if shared else 0.0


CHINESE = Rules(normalise, overlap)


def cmrc(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """`exact`, `f1` and their mean `average` over questions with the texts of their answers."""
    scores = squad1(gold, predicted, CHINESE)
    return {**scores, "average": (scores["exact"] + scores["f1"]) / 2}
