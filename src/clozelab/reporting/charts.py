"""Curves with their axes: drawn as SVG, and as the data that static/figures.js draws anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from clozelab.reporting.figures import Line, curves, thinned
from clozelab.runs.record import Moment

POINTS = 240  # of a line, at most


class Chart(NamedTuple):
    """Curves with what their axes are; as `drawn`, or as the data of the same figure."""

    title: str
    lines: Sequence[Line]
    across: str
    up: str
    whole: bool = False
    base: str = ""  # what x counts: tokens, or steps; nothing where there is no other axis
    marks: Mapping[str, float] = {}  # values to compare with, as of chance, by name
    note: str = ""  # below the title

    @property
    def drawn(self) -> str:
        """As SVG, for who has no script."""
        return curves(
            self.lines, across=self.across, up=self.up, whole=self.whole, marks=self.marks
        )

    def data(self, clocks: list[Sequence[Moment]]) -> dict[str, Any]:
        """For figures.js; clocks that are not among those of the page are added to them."""
        words: dict[str, Any] = {"title": self.title, "up": self.up, "across": self.across}
        words["lines"] = [_data(line, self.base, clocks) for line in self.lines]
        if self.note:
            words["note"] = self.note
        if self.base:
            words["base"] = self.base
        if self.whole:
            words["whole"] = True
        if self.marks:
            words["marks"] = [{"y": _rounded(y), "name": name} for name, y in self.marks.items()]
        return words


def clock_data(clock: Sequence[Moment]) -> dict[str, list[float | None]]:
    """The moments of a run, fewer of them, for figures.js."""
    some = thinned(clock, POINTS)
    return {
        "steps": [one.step for one in some],
        "tokens": [one.tokens for one in some],
        "seconds": [_rounded(one.seconds) for one in some],
    }


def _data(line: Line, base: str, clocks: list[Sequence[Moment]]) -> dict[str, Any]:
    """A line; the places of its points are left out where they are the moments of its clock."""
    words: dict[str, Any] = {"name": line.name, "colour": line.colour}
    points = thinned(line.points, POINTS)
    at_moments = False
    if base and line.clock:
        if not any(line.clock is clock for clock in clocks):
            clocks.append(line.clock)
        words["clock"] = next(n for n, clock in enumerate(clocks) if clock is line.clock)
        moments = [one.tokens if base == "tokens" else one.step for one in line.clock]
        at_moments = moments == [x for x, _ in line.points]
    if not at_moments:
        words["x"] = [_rounded(x, 7) for x, _ in points]
    words["y"] = [_rounded(y) for _, y in points]
    if line.band:
        band = thinned(line.band, POINTS)
        words["low"], words["high"] = ([_rounded(b[side]) for b in band] for side in (1, 2))
    for name in ("faint", "noisy"):
        if getattr(line, name):
            words[name] = True
    return words


def _rounded(value: float | None, digits: int = 4) -> float | None:
    """A number of a few digits, whole where it is; None where it is not finite."""
    if value is None or not isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) else short
