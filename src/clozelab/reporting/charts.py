"""Curves with their axes: drawn as SVG, and as data for static/figures.js."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from clozelab.reporting.figures import Line, curves, thinned
from clozelab.runs.record import Moment

POINTS = 240  # of a line, at most


class Chart(NamedTuple):
    """Curves and their axes, as SVG (`drawn`) or as `data`."""

    title: str
    lines: Sequence[Line]
    across: str
    up: str
    whole: bool = False
    base: str = ""  # the unit of x, tokens or steps; empty if x cannot be changed
    marks: Mapping[str, float] = {}  # horizontal lines to compare with, by name
    note: str = ""  # below the title

    @property
    def drawn(self) -> str:
        """The figure as SVG, for readers without JavaScript."""
        return curves(
            self.lines, across=self.across, up=self.up, whole=self.whole, marks=self.marks
        )

    def data(self, clocks: list[Sequence[Moment]]) -> dict[str, Any]:
        """The data for figures.js; new clocks are added to those of the page."""
        words: dict[str, Any] = {"title": self.title, "up": self.up, "across": self.across}
        words["lines"] = [_line_data(line, self.base, clocks) for line in self.lines]
        if self.note:
            words["note"] = self.note
        if self.base:
            words["base"] = self.base
        if self.whole:
            words["whole"] = True
        if self.marks:
            words["marks"] = [{"y": _rounded(y), "name": name} for name, y in self.marks.items()]
        return words


def charts_data(charts: Sequence[Chart]) -> dict[str, Any]:
    """The data of charts for figures.js, and the clocks of their runs."""
    clocks: list[Sequence[Moment]] = []
    data = [chart.data(clocks) for chart in charts]
    return {"charts": data, "clocks": [clock_data(clock) for clock in clocks]}


def clock_data(clock: Sequence[Moment]) -> dict[str, list[float | None]]:
    """The moments of a run, thinned, for figures.js."""
    moments = thinned(clock, POINTS)
    return {
        "steps": [moment.step for moment in moments],
        "tokens": [moment.tokens for moment in moments],
        "seconds": [_rounded(moment.seconds) for moment in moments],
    }


def _line_data(line: Line, base: str, clocks: list[Sequence[Moment]]) -> dict[str, Any]:
    """The data of a line, without x values if these are the moments of its clock."""
    words: dict[str, Any] = {"name": line.name, "colour": line.colour}
    points = thinned(line.points, POINTS)
    at_moments = False
    if base and line.clock:
        if not any(line.clock is clock for clock in clocks):
            clocks.append(line.clock)
        words["clock"] = next(n for n, clock in enumerate(clocks) if clock is line.clock)
        moments = [moment.tokens if base == "tokens" else moment.step for moment in line.clock]
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
    """A number rounded to a few digits, an int if it is whole; None if it is not finite."""
    if value is None or not isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) else short
