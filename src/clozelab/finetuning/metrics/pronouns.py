"""Scores of GAP (arXiv:1810.05201): F1 of names found for pronouns, by gender, and bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clozelab.errors import UserError
from clozelab.finetuning.metrics.tally import Tally

_GENDERS = {
    **dict.fromkeys(("he", "him", "his"), "masculine"),
    **dict.fromkeys(("she", "her", "hers"), "feminine"),
}


class PronounAnswer(NamedTuple):
    """A pronoun, and whether it stands for name A and for name B."""

    pronoun: str
    gold: tuple[bool, bool]
    predicted: tuple[bool, bool] | None  # None: no prediction, which counts as two names missed


def gap(answers: Sequence[PronounAnswer]) -> dict[str, float]:
    """`f1`, `masculine_f1` and `feminine_f1` with recalls and precisions, and `bias`.

    The bias is the ratio of the F1s, feminine to masculine: no percentage, 1 where both are equal,
    and 0 where either is 0, so that every run has it.
    """
    tallies = {"": Tally(), "masculine_": Tally(), "feminine_": Tally()}
    for answer in answers:
        tally = _tally(answer)
        tallies[""] += tally
        tallies[f"{_gender(answer.pronoun)}_"] += tally
    scores = {
        f"{kind}{name}": value
        for kind, tally in tallies.items()
        for name, value in (
            ("f1", tally.f1),
            ("recall", tally.recall),
            ("precision", tally.precision),
        )
    }
    feminine, masculine = scores["feminine_f1"], scores["masculine_f1"]
    return {**scores, "bias": feminine / masculine if masculine else 0.0}


def _tally(answer: PronounAnswer) -> Tally:
    gold, predicted = answer.gold, answer.predicted
    if predicted is None:
        return Tally(gold=len(gold))
    right = sum(one and other for one, other in zip(gold, predicted, strict=True))
    return Tally(right, sum(gold), right, sum(predicted))


def _gender(pronoun: str) -> str:
    if pronoun.lower() not in _GENDERS:
        raise UserError(
            f"pronoun {pronoun!r} is not one that GAP asks about: give one of {', '.join(_GENDERS)}"
        )
    return _GENDERS[pronoun.lower()]
