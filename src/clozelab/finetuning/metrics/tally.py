"""Recall, precision and F1 from their numerators and denominators, which add over documents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tally:
    """What recall and precision are made of; nothing to find, or nothing found, gives 0."""

    recalled: float = 0.0  # of `gold`
    gold: float = 0.0
    precise: float = 0.0  # of `predicted`; in most metrics the same number as `recalled`
    predicted: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            recalled=self.recalled + other.recalled,
            gold=self.gold + other.gold,
            precise=self.precise + other.precise,
            predicted=self.predicted + other.predicted,
        )

    @property
    def recall(self) -> float:
        """How much of the gold was found, of 100."""
        return percent(self.recalled, self.gold)

    @property
    def precision(self) -> float:
        """How much of what was found is right, of 100."""
        return percent(self.precise, self.predicted)

    @property
    def f1(self) -> float:
        """Their harmonic mean."""
        both = self.recall + self.precision
        return 2 * self.recall * self.precision / both if both else 0.0


def percent(part: float, whole: float) -> float:
    """A part of a whole, of 100; a part of nothing is 0."""
    return 100 * part / whole if whole else 0.0
