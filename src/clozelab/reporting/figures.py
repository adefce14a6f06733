"""Figures as SVG inside a page: curves, and dots with intervals. Colours are the page's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import accumulate, islice
from math import floor, log10
from typing import NamedTuple, TypeVar

from clozelab.reporting import palette
from clozelab.reporting.static import text_of
from clozelab.runs.record import Moment

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40
SERIES = 8  # colours
APART = 4  # successive colours that colour-blind readers distinguish; the next are dashed
DASHES = 4  # line styles of one colour
NAME = 46  # the most characters of a name beside a row of dots
POINTS = 100  # of a line, at most
KEPT = 0.9  # the decay of the moving average of noisy lines
LETTER = 6.7  # the width of a letter, about
_NAMESPACE = "http://www.w3.org/2000/svg"


class Line(NamedTuple):
    """A curve; `faint` is drawn behind the others, a band (x, low, high) behind its line."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    faint: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    clock: Sequence[Moment] = ()  # of its run, to draw it over steps or time
    noisy: bool = False  # is smoothed, adjustably


class DotRow(NamedTuple):
    """A line of dots: one for each run, and the interval of their mean."""

    name: str
    values: Sequence[float]
    low: float | None
    high: float | None
    colour: int


def curves(
    lines: Sequence[Line],
    *,
    across: str,
    up: str,
    whole: bool = False,
    marks: Mapping[str, float] | None = None,
) -> str:
    """Lines over a common axis, with a legend; `whole` does not clip their beginnings."""
    lines = [line._replace(points=smooth(line.points)) if line.noisy else line for line in lines]
    every = [point for line in lines for point in line.points]
    if not every:
        return ""
    marks = marks or {}
    last = max(x for x, _ in every)
    # The first steps are far above the rest and would flatten the curves.
    ends = [(x, y) for line in lines for x, *both in line.band for y in both]
    seen = [y for x, y in [*every, *ends] if whole or x >= 0.05 * last]
    right = last or 1.0  # all points may be before the first step
    bottom, top = _range_with_margin([*seen, *marks.values()])
    x_of = _scale(0.0, right, LEFT, WIDTH - RIGHT)
    y_of = _scale(top, bottom, TOP, HEIGHT - BOTTOM)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x_of(x):.1f},{y_of(min(y, top)):.1f}" for x, y in points)

    parts = []
    for tick in _ticks(bottom, top):
        parts.append(_line("grid", LEFT, y_of(tick), WIDTH - RIGHT, y_of(tick)))
        parts.append(_text("tick", LEFT - 6, y_of(tick) + 4, _tick_text(tick), anchor="end"))
    least = 1.0 if all(x == int(x) for x, _ in every) else 0.0  # whole ticks
    across_ticks = _ticks(0.0, right, least)
    parts += [_text("tick", x_of(x), HEIGHT - BOTTOM + 15, _tick_text(x)) for x in across_ticks]
    parts.append(_text("tick", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, escape(across)))
    rotation = f"translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)"
    parts.append(f'<g transform="{rotation}">{_text("tick", 0, 0, escape(up))}</g>')
    for name, y in marks.items():
        parts.append(_line("chance", LEFT, y_of(y), WIDTH - RIGHT, y_of(y)))
        parts.append(_text("tick", LEFT + 6, y_of(y) - 5, escape(name), anchor="start"))
    for line in lines:
        edge = [(x, low) for x, low, _ in line.band] + [(x, y) for x, _, y in line.band[::-1]]
        if edge:
            kind = f"band c{line.colour % SERIES}"
            parts.append(f'<polygon class="{kind}" points="{path(edge)}"/>')
    for line in sorted(lines, key=lambda line: not line.faint):
        kind = f"{'faint' if line.faint else 'line'} {_line_classes(line.colour)}"
        parts.append(f'<polyline class="{kind}" points="{path(thinned(line.points))}"/>')
        if not line.faint:
            x, y = line.points[-1]
            parts.append(_dot(line.colour, x_of(x), y_of(min(y, top)), 3))
    drawn = _svg(parts, HEIGHT, f"{up} over {across}")
    return drawn + legend([(line.name, line.colour) for line in lines if not line.faint])


def dots(
    rows: Sequence[DotRow],
    *,
    across: str,
    marks: Sequence[float] = (),
    chance: float | None = None,
) -> str:
    """Rows of dots, each with its mean's interval as a bar; `marks` are lines to compare with.

    `chance` is what a constant answer scores.
    """
    left, step = _name_width([row.name for row in rows]), 26
    bottom = TOP + step * len(rows)
    ends = [v for row in rows for v in (*row.values, row.low, row.high) if v is not None]
    low, high = _range_with_margin([*ends, *marks, *([] if chance is None else [chance])])
    x_of = _scale(low, high, left, WIDTH - RIGHT)
    parts = []
    for tick in _ticks(low, high):
        parts.append(_line("grid", x_of(tick), TOP, x_of(tick), bottom))
        parts.append(_text("tick", x_of(tick), bottom + 15, _tick_text(tick)))
    parts += [_line("mark", x_of(mark), TOP, x_of(mark), bottom) for mark in dict.fromkeys(marks)]
    if chance is not None:
        parts.append(_line("chance", x_of(chance), TOP, x_of(chance), bottom))
    for number, row in enumerate(rows):
        y = TOP + step * (number + 0.5)
        parts.append(_text("name", left - 10, y + 4, _trim(row.name), anchor="end"))
        if row.low is not None and row.high is not None:
            parts.append(_line(f"bar c{row.colour % SERIES}", x_of(row.low), y, x_of(row.high), y))
        parts += [_dot(row.colour, x_of(v), y, 4, f"<title>{v:.2f}</title>") for v in row.values]
    lines = _wrap(across)
    for number, line in enumerate(lines):
        half = LETTER * len(line) / 2
        middle = max(min((left + WIDTH - RIGHT) / 2, WIDTH - half), half)
        parts.append(_text("tick", middle, bottom + 34 + 15 * number, escape(line)))
    return _svg(parts, bottom + BOTTOM + 15 * (len(lines) - 1), across)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    across: str,
) -> str:
    """Numbers in a grid; the darker a cell, the smaller its number within its column.

    Each column has its own scale, since some may be harder than others.
    """
    left, top, step = _name_width(rows), 44, 30
    width = (WIDTH - left - RIGHT) / max(len(columns), 1)
    parts = [_text("tick", (left + WIDTH - RIGHT) / 2, 14, escape(across))]
    for at, name in enumerate(columns):
        x = left + at * width
        parts.append(_text("name", x + width / 2, top - 8, _trim(name)))
        column = [row[at] for row in values]
        known = [value for value in column if value is not None]
        least, most = min(known, default=0.0), max(known, default=0.0)
        for number, value in enumerate(column):
            y = top + step * number
            shade = 0.0 if value is None else 0.75 - 0.65 * (value - least) / (most - least or 1.0)
            parts.append(
                f'<rect class="cell c0" x="{x + 1:.1f}" y="{y + 1}" width="{width - 2:.1f}"'
                f' height="{step - 2}" style="fill: var(--c); fill-opacity: {shade:.2f}; stroke:'
                ' none"/>'
            )
            word = "–" if value is None else f"{value:.2f}"
            parts.append(_text("", x + width / 2, y + 19, word))
    for number, name in enumerate(rows):
        parts.append(_text("name", left - 10, top + step * number + 19, _trim(name), anchor="end"))
    return _svg(parts, top + step * len(rows) + 10, across)


def as_file(drawn: str) -> str:
    """A figure as a standalone SVG file, with its style and its legend."""
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
    opening, _, rest = figure.partition(">")
    paper = '<rect width="100%" height="100%" style="fill: var(--paper)"/>'
    style = palette.css() + text_of("figures.css")
    return f"{opening}><style>{style}</style>{paper}{rest}{inside}</svg>\n"


def legend(names: Sequence[tuple[str, int]]) -> str:
    """The names, each with a sample of its line."""
    items = (
        f'<span><svg class="key" viewBox="0 0 26 10"><line class="line {_line_classes(colour)}"'
        f' x1="0" x2="26" y1="5" y2="5"/></svg>{escape(name)}</span>'
        for name, colour in names
    )
    return f'<p class="legend">{" ".join(items)}</p>'


def _line_classes(colour: int) -> str:
    """The CSS classes of a line: its colour and, if that is not enough, its dashes."""
    dash = (colour // APART + colour // (APART * DASHES)) % DASHES
    return f"c{colour % SERIES}" + (f" d{dash}" if dash else "")


def _trim(name: str) -> str:
    """A name, shortened in its middle, since cells of a grid differ at their ends."""
    if len(name) <= NAME:
        return escape(name)
    half = (NAME - 1) // 2
    short = f"{name[:half]}…{name[-half:]}"
    return f"<title>{escape(name)}</title>{escape(short)}"


def _text(kind: str, x: float, y: float, says: str, *, anchor: str = "middle") -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{says}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _dot(colour: int, x: float, y: float, radius: int, inside: str = "") -> str:
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
    return f'<circle class="dot c{colour % SERIES}" {place}>{inside}</circle>'


def _svg(parts: Sequence[str], height: float, says: str) -> str:
    name = f'role="img" aria-label="{escape(says)}"'
    return f'<svg viewBox="0 0 {WIDTH} {height}" {name}>{"".join(parts)}</svg>'


def _wrap(text: str) -> list[str]:
    """A text wrapped into lines between its clauses."""
    lines = [""]
    for clause in text.split("; "):
        longer = f"{lines[-1]}; {clause}" if lines[-1] else clause
        if lines[-1] and LETTER * len(longer) > WIDTH:
            lines.append(clause)
        else:
            lines[-1] = longer
    return lines


def _name_width(names: Sequence[str]) -> float:
    """The width of the names beside a figure."""
    return 20 + LETTER * max(min(len(name), NAME) for name in names)


def _range_with_margin(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest of some values, with a margin."""
    low, high = min(values), max(values)
    margin = 0.06 * (high - low or 1.0)
    return low - margin, high + margin


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """A linear function from the range low to high to the range start to end."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """A few round numbers between two, at least `least` apart."""
    rough = max((high - low) / 5, least)
    size = 10 ** floor(log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = floor(low / step) + (low % step > 0)
    return [round(number * step, 10) for number in range(first, floor(high / step) + 1)]


def _tick_text(value: float) -> str:
    """A number in few characters, with a true minus sign."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}".replace("-", "−")


T = TypeVar("T")


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """At most about `most` of the points, always with the last."""
    stride = max(1, -(-len(points) // most))
    kept = list(points[::stride])
    return kept if not kept or kept[-1] is points[-1] else [*kept, points[-1]]


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """An exponential moving average with bias correction for the first values."""
    means = accumulate(
        (y for _, y in points), lambda mean, y: KEPT * mean + (1 - KEPT) * y, initial=0.0
    )
    weights = (1 - KEPT ** (number + 1) for number in range(len(points)))
    return [
        (x, mean / weight)
        for (x, _), mean, weight in zip(points, islice(means, 1, None), weights, strict=True)
    ]
