"""What was claimed and what came out: each claim in words, in numbers and in a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clozelab.reporting import figures
from clozelab.reporting.document import GAP, Cell, Part, Table
from clozelab.reporting.figures import Row
from clozelab.reporting.study.claims import Finding, Judged, form, power, told

LOOKS = {"confirmed": 0, "refuted": 1, "undecided": 7}  # blue, orange, grey: for every sight
SIGNS = {"confirmed": "✓", "refuted": "✗", "undecided": "?"}


def shown(judged: Sequence[Judged], *, where: str) -> Iterator[Part]:
    """Each claim with its verdict, its numbers and a figure of them."""
    if len(judged) > 1:
        rows = [[Cell(one.claim.says), Cell(_verdict(one.verdict))] for one in judged]
        chance = "Each is judged by itself: of twenty without any effect, chance decides about one."
        yield Table(["claim", "verdict"], rows, chance)
    for one in judged:
        claim = one.claim
        yield ("heading", f"{_verdict(one.verdict)}: {claim.better} against {claim.than}")
        yield f"“{claim.says}”"
        yield told(one, where=where)
        yield _findings(one)
        yield from _forest(one)


def _findings(judged: Judged) -> Table:
    """A line for each measure, and for their mean."""
    together = [one for one in judged.decisive if one not in judged.alone]
    chances = [*judged.chances, *(None for _ in together)]
    columns = ["on", "advantage", "95 % from", "to", "unit", "seeds", "p, Holm", "verdict"]
    rows = [
        _finding(one, chance)
        for one, chance in zip([*judged.alone, *together], chances, strict=True)
    ]
    notes = []
    if any(one.unit == "nats" for one in judged.alone):
        notes.append("Of a loss, less is an advantage.")
    if len(judged.alone) > 1:
        notes.append(
            f"p is raised by Holm's method, for {len(judged.alone)} measures were looked at; the"
            " verdict is that of their mean."
            if len(judged.decisive) == 1
            else "p is raised by Holm's method; the verdict is what each unit's mean agrees on."
        )
    return Table(columns, rows, " ".join([*notes, power(judged.decisive)]).strip())


def _finding(one: Finding, chance: float | None) -> list[Cell]:
    found = one.advantage
    if found is None:
        gaps = [GAP, GAP, GAP, Cell(one.unit), GAP, GAP]
        return [Cell(one.name), *gaps, Cell(_verdict(one.verdict))]
    told = "–" if chance is None else "<0.001" if chance < 0.001 else f"{chance:.3f}"
    return [
        Cell(one.name),
        Cell(form(found.value, one.unit, sign=True), found.value),
        Cell(form(found.low, one.unit), found.low),
        Cell(form(found.high, one.unit), found.high),
        Cell(one.unit),
        Cell(f"{found.seeds} pairs" if found.paired else f"{found.seeds}, by Welch"),
        Cell(told, chance),
        Cell(_verdict(one.verdict)),
    ]


def _forest(judged: Judged) -> Iterator[Part]:
    """Advantages with their intervals about zero, a figure for each unit."""
    claim = judged.claim
    for what in dict.fromkeys(one.unit for one in judged.alone):
        shown = [*judged.alone, *(one for one in judged.decisive if one not in judged.alone)]
        rows = [
            Row(
                one.name,
                [one.advantage.value],
                one.advantage.low,
                one.advantage.high,
                LOOKS[one.verdict],
            )
            for one in shown
            if one.unit == what and one.advantage is not None
        ]
        if rows:
            margin = f"; the claim allows −{form(claim.margin, what)}" if claim.margin else ""
            across = f"advantage of {claim.better} over {claim.than}, in {what}{margin}"
            marks = [0.0, *([-claim.margin] if claim.margin else [])]
            yield ("figure", figures.dots(rows, across=across, marks=marks))


def _verdict(word: str) -> str:
    return f"{SIGNS[word]} {word}"
