"""Figures as SVG inside a page: curves, and dots with intervals. Colours are the page's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from math import floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40
SERIES = 8  # colours
APART = 4  # successive colours that colour-blind readers can tell apart; the next are dashed
DASHES = 4  # line styles of one colour
NAME = 46  # characters beside a row of dots
_NAMESPACE = "http://www.w3.org/2000/svg"


class Line(NamedTuple):
    """A curve; `faint` is drawn behind the others, a band (x, low, high) behind its line."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    faint: bool = False
    band: Sequence[tuple[float, float, float]] = ()


class DotRow(NamedTuple):
    """A line of dots: one for each run, and the interval of their mean."""

    name: str
    values: Sequence[float]
    low: float | None
    high: float | None
    colour: int


def curves(lines: Sequence[Line], *, across: str, up: str, whole: bool = False) -> str:
    """Lines over a common axis, with a legend; `whole` shows their beginnings in full, too."""
    every = [point for line in lines for point in line.points]
    if not every:
        return ""
    right = max(x for x, _ in every) or 1.0
    # The first steps are far above the rest, and would flatten the curves.
    ends = [(x, y) for line in lines for x, *both in line.band for y in both]
    heights = [y for x, y in [*every, *ends] if whole or x >= 0.05 * right]
    low, high = min(heights), max(heights)
    bottom, top = low - 0.06 * (high - low or 1.0), high + 0.06 * (high - low or 1.0)

    def place(point: tuple[float, float]) -> str:
        x = LEFT + point[0] / right * (WIDTH - LEFT - RIGHT)
        y = TOP + (top - min(point[1], top)) / (top - bottom) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    least = 1.0 if all(x == int(x) for x, _ in every) else 0.0  # no layer is between two
    parts = [_frame(0.0, right, bottom, top, across=across, up=up, least=least)]
    for line in lines:
        edge = [(x, low) for x, low, _ in line.band] + [(x, y) for x, _, y in line.band[::-1]]
        if edge:
            path = " ".join(place(point) for point in edge)
            parts.append(f'<polygon class="band c{line.colour % SERIES}" points="{path}"/>')
    for line in sorted(lines, key=lambda line: not line.faint):
        kind = "faint" if line.faint else "line"
        path = " ".join(place(point) for point in _thinned(line.points))
        parts.append(f'<polyline class="{kind} {_look(line.colour)}" points="{path}"/>')
        if not line.faint:
            x, y = place(line.points[-1]).split(",")
            parts.append(f'<circle class="dot c{line.colour % SERIES}" cx="{x}" cy="{y}" r="3"/>')
    drawn = _svg("".join(parts), HEIGHT, f"{up} over {across}")
    return drawn + legend([(line.name, line.colour) for line in lines if not line.faint])


def dots(rows: Sequence[DotRow], *, across: str, marks: Sequence[float] = ()) -> str:
    """Rows of dots, one below another, each with its mean's interval as a bar.

    `marks` are values to compare with, each a line from top to bottom.
    """
    left, step = 20 + 6.7 * max(min(len(row.name), NAME) for row in rows), 26
    height = TOP + step * len(rows) + BOTTOM
    ends = [v for row in rows for v in (*row.values, row.low, row.high) if v is not None]
    ends += marks
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low or 1.0)
    low, high = low - margin, high + margin

    def x_of(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - RIGHT)

    parts = []
    for tick in _ticks(low, high):
        parts.append(
            f'<line class="grid" x1="{x_of(tick):.1f}" x2="{x_of(tick):.1f}" y1="{TOP}"'
            f' y2="{height - BOTTOM}"/><text class="tick" text-anchor="middle"'
            f' x="{x_of(tick):.1f}" y="{height - BOTTOM + 15}">{_short(tick)}</text>'
        )
    for mark in dict.fromkeys(marks):
        parts.append(
            f'<line class="mark" x1="{x_of(mark):.1f}" x2="{x_of(mark):.1f}" y1="{TOP}"'
            f' y2="{height - BOTTOM}"/>'
        )
    for number, row in enumerate(rows):
        y = TOP + step * number + step / 2
        parts.append(
            f'<text class="name" text-anchor="end" x="{left - 10:.1f}" y="{y + 4}">'
            f"{_cut(row.name)}</text>"
        )
        if row.low is not None and row.high is not None:
            parts.append(
                f'<line class="bar c{row.colour % SERIES}" x1="{x_of(row.low):.1f}"'
                f' x2="{x_of(row.high):.1f}" y1="{y}" y2="{y}"/>'
            )
        parts += [
            f'<circle class="dot c{row.colour % SERIES}" cx="{x_of(v):.1f}" cy="{y}" r="4">'
            f"<title>{v:.2f}</title></circle>"
            for v in row.values
        ]
    parts.append(
        f'<text class="tick" text-anchor="middle" x="{(left + WIDTH - RIGHT) / 2:.1f}"'
        f' y="{height - 6}">{escape(across)}</text>'
    )
    return _svg("".join(parts), height, across)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    across: str,
    form: str = ".2f",
) -> str:
    """Numbers in a grid; the darker a cell, the smaller its number is among those of its column.

    Columns have scales of their own: one may be harder than another for everybody.
    """
    left, top, step = 20 + 6.7 * max(min(len(name), NAME) for name in rows), 44, 30
    width = (WIDTH - left - RIGHT) / max(len(columns), 1)
    height = top + step * len(rows) + 10
    parts = [
        f'<text class="tick" text-anchor="middle" x="{(left + WIDTH - RIGHT) / 2:.1f}" y="14">'
        f"{escape(across)}</text>"
    ]
    for at, name in enumerate(columns):
        parts.append(
            f'<text class="name" text-anchor="middle" x="{left + (at + 0.5) * width:.1f}"'
            f' y="{top - 8}">{_cut(name)}</text>'
        )
        known = [row[at] for row in values]
        ends = [value for value in known if value is not None]
        for number, value in enumerate(known):
            x, y = left + at * width, top + step * number
            spread = max(ends) - min(ends) if ends else 0.0
            shade = 0.0 if value is None else 0.75 - 0.65 * (value - min(ends)) / (spread or 1.0)
            word = "–" if value is None else format(value, form)
            parts.append(
                f'<rect class="cell c0" x="{x + 1:.1f}" y="{y + 1}" width="{width - 2:.1f}"'
                f' height="{step - 2}" style="fill: var(--c); fill-opacity: {shade:.2f}; stroke:'
                f' none"/><text text-anchor="middle" x="{x + width / 2:.1f}" y="{y + 19}">'
                f"{word}</text>"
            )
    for number, name in enumerate(rows):
        parts.append(
            f'<text class="name" text-anchor="end" x="{left - 10:.1f}"'
            f' y="{top + step * number + 19}">{_cut(name)}</text>'
        )
    return _svg("".join(parts), height, across)


def as_file(drawn: str) -> str:
    """A figure as an SVG file of its own: with its style, and its legend below it."""
    figure, _, below = drawn.partition("</svg>")
    height = float(re.search(r'viewBox="0 0 \d+ ([\d.]+)"', figure)[1])  # type: ignore[index]
    names = re.findall(r'class="line ([^"]+)"[^>]*/></svg>(.*?)</span>', below)
    inside = "".join(
        f'<g transform="translate({LEFT} {height + 14 + 18 * number:g})"><line class="line {look}"'
        f' x1="0" x2="26" y1="-4" y2="-4"/><text x="34">{name}</text></g>'
        for number, (look, name) in enumerate(names)
    )
    size = f"0 0 {WIDTH} {height + 18 * len(names) + (8 if names else 0):g}"
    figure = re.sub(r'<svg viewBox="[^"]+"', f'<svg xmlns="{_NAMESPACE}" viewBox="{size}"', figure)
    style = (resources.files("clozelab") / "reporting" / "page.css").read_text(encoding="utf-8")
    opening, _, rest = figure.partition(">")
    return f"{opening}><style>{style}</style>{rest}{inside}</svg>\n"


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Names, each with a piece of its line."""
    items = (
        f'<span><svg class="key" viewBox="0 0 26 10"><line class="line {_look(colour)}"'
        f' x1="0" x2="26" y1="5" y2="5"/></svg>{escape(name)}</span>'
        for name, colour in names
    )
    return f'<p class="legend">{" ".join(items)}</p>'


def _look(colour: int) -> str:
    """The CSS classes of a line: its colour and, where that is not enough, its dashes."""
    dash = (colour // APART + colour // (APART * DASHES)) % DASHES
    return f"c{colour % SERIES}" + (f" d{dash}" if dash else "")


def _cut(name: str) -> str:
    """A name, without its middle where it is too long: cells of a grid differ at their ends."""
    if len(name) <= NAME:
        return escape(name)
    half = (NAME - 1) // 2
    short = f"{name[:half]}…{name[-half:]}"
    return f"<title>{escape(name)}</title>{escape(short)}"


def _frame(
    left: float, right: float, bottom: float, top: float, *, across: str, up: str, least: float
) -> str:
    """Grid, ticks and labels of the axes; ticks across are at least so far apart."""
    parts = []
    for tick in _ticks(bottom, top):
        y = TOP + (top - tick) / (top - bottom) * (HEIGHT - TOP - BOTTOM)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">'
            f"{_short(tick)}</text>"
        )
    for tick in _ticks(left, right, least):
        x = LEFT + (tick - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}">'
            f"{_short(tick)}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="tick" text-anchor="middle" x="{middle}" y="{HEIGHT - 6}">'
        f'{escape(across)}</text><text class="tick" text-anchor="middle"'
        f' transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">{escape(up)}</text>'
    )
    return "".join(parts)


def _svg(inside: str, height: float, says: str) -> str:
    name = f'role="img" aria-label="{escape(says)}"'
    return f'<svg viewBox="0 0 {WIDTH} {height}" {name}>{inside}</svg>'


def _ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """A few round numbers between two, at least so far apart."""
    rough = max((high - low) / 5, least)
    size = 10 ** floor(log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = floor(low / step) + (low % step > 0)
    return [round(number * step, 10) for number in range(first, floor(high / step) + 1)]


def _short(value: float) -> str:
    """A number in few characters, with a true minus sign."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}".replace("-", "−")


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most 300 points, the last included."""
    every = max(1, len(points) // 300)
    thinned = list(points[::every])
    return thinned if thinned[-1] == points[-1] else [*thinned, points[-1]]
