"""Recorded runs of about the same size, to compare losses after as many tokens.

Losses of different texts and tokenizers are compared as shares of the loss of the unigram plateau.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from clozelab import data
from clozelab.runs.diagnostics import LEFT

_MOST_RATIO = 5.0  # the largest ratio of parameters in the layers; not tuned


@dataclass(frozen=True)
class RecordedRun:
    """One recorded run: held-out losses over the tokens seen."""

    name: str
    layers: int
    hidden_size: int
    level: float  # the loss of frequencies and copying alone
    points: Sequence[tuple[int, float]]

    def share(self, tokens: float) -> float | None:
        """Its loss after `tokens` tokens, as a share of the plateau's; None beyond its curve."""
        seen, losses = zip(*self.points, strict=True)
        if not seen[0] <= tokens <= seen[-1]:
            return None
        return float(np.interp(tokens, seen, losses)) / self.level

    @property
    def left_after(self) -> int | None:
        """The tokens seen at the first evaluation below the plateau."""
        return next((seen for seen, loss in self.points if loss < LEFT * self.level), None)


@cache
def recorded() -> tuple[RecordedRun, ...]:
    """All recorded runs."""
    rows = json.loads(data.recorded().read_text(encoding="utf-8"))
    return tuple(RecordedRun(**row) for row in rows)


def alike(size: tuple[int, int]) -> list[RecordedRun]:
    """The recorded runs of about that size, by the matrices of their layers."""
    mine = size[0] * size[1] ** 2
    return [
        run
        for run in recorded()
        if 1 / _MOST_RATIO <= run.layers * run.hidden_size**2 / mine <= _MOST_RATIO
    ]  # fmt: skip
