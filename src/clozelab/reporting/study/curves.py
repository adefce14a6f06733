"""Loss over tokens for each variant: the mean over its seeds, with a band from least to most."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from statistics import fmean

from clozelab.reporting import figures
from clozelab.reporting.document import Part
from clozelab.reporting.figures import Line
from clozelab.reporting.gathering import Points, Pretraining
from clozelab.reporting.page import smooth
from clozelab.reporting.study.cells import Evidence


def drawn(evidence: Evidence) -> Iterator[Part]:
    """A figure for each objective; runs under way are drawn faintly, one by one."""
    names = dict.fromkeys(
        name for run in evidence.runs.values() for name in (*run.held_out, *run.train)
    )
    for name in names:
        held = any(len(run.held_out.get(name, ())) > 1 for run in evidence.runs.values())
        lines = [*_lines(evidence, name, held=held)]
        if lines:
            what = "on held-out text" if held else "in training"
            yield ("heading", f"{name.replace('_', ' ')}: loss {what}, in nats")
            yield ("figure", figures.curves(lines, across="tokens seen", up="loss"))
    if names:
        yield ("note", _reading(evidence))


def _lines(evidence: Evidence, name: str, *, held: bool) -> Iterator[Line]:
    done = {(one.variant, one.seed) for one in evidence.done}
    for colour, variant in enumerate(evidence.variants):
        whole: list[Points] = []
        for place, run in evidence.runs.items():
            points = _points(run, name, held=held)
            if place[0] != variant.name or not points:
                continue
            if place in done:
                whole.append(points)
            else:
                yield Line(variant.name, points, colour, faint=True)
        if whole:
            mean, band = banded(whole)
            yield Line(variant.name, mean, colour, band=band if len(whole) > 1 else ())


def _points(run: Pretraining, name: str, *, held: bool) -> Points:
    if held:
        return run.held_out.get(name, [])
    return smooth(run.train[name]) if run.train.get(name) else []


def banded(curves: Sequence[Points]) -> tuple[Points, list[tuple[float, float, float]]]:
    """Mean, least and most of some curves, as far as all of them reach."""
    begin, end = max(one[0][0] for one in curves), min(one[-1][0] for one in curves)
    # Seeds see other text, and so have not the same tokens at a step: where all of them begin and
    # end need not be a point of the first.
    between = {x for x, _ in curves[0] if begin <= x <= end}
    places = sorted(between | {min(begin, end), end})
    found = [(x, [_at(one, x) for one in curves]) for x in places]
    return (
        [(x, fmean(values)) for x, values in found],
        [(x, min(values), max(values)) for x, values in found],
    )


def _at(curve: Points, x: float) -> float:
    """A curve's value between two of its points, or at its nearer end."""
    after = bisect_left(curve, x, key=lambda point: point[0])
    if after == 0 or after == len(curve):
        return curve[min(after, len(curve) - 1)][1]
    (left, low), (right, high) = curve[after - 1], curve[after]
    return low + (high - low) * (x - left) / (right - left)


def _reading(evidence: Evidence) -> str:
    """How the figures are to be read."""
    told = "A line is the mean over seeds, its band reaches from the lowest to the highest."
    done = {(one.variant, one.seed) for one in evidence.done}
    if evidence.runs.keys() - done:
        told += " Faint lines are cells that are not done."
    # Copies and pairs drawn again are of epochs, of which held-out text has one.
    changed = evidence.changed() - {"corruption.copies", "corruption.redraw"}
    if {key.split(".")[0] for key in changed} & {"masking", "corruption", "blocks", "tokenizer"}:
        told += (
            " Variants that hide other tokens, or are fed otherwise, are drawn under masks and"
            " blocks of their own: a lower line is an easier exercise as well as a better model."
        )
    return told
