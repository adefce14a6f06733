"""Draw the claims of the studies under results/: python tools/claims_picture.py

results/claims.svg has the advantage of each claim with its 95 % interval: above those decided in
points, below those decided in nats; results/holds.svg has the claims of README. The last rows of a
panel are A/A pairs: the same recipe with other seeds, on the measures of the claims. Axes are
linear up to their first tick and logarithmic beyond. A star marks an exploratory claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import chance
import holds
from matplotlib import pyplot
from matplotlib.axes import Axes
from plotting import INK, PALE, SERIES, SOFT, save

from clozelab.reporting.study.claims import COLOURS
from clozelab.statistics import Estimate
from clozelab.studies.verdicts import Finding, Judgement

pyplot.rcParams["font.size"] = 8

ROOT = Path(__file__).parents[1] / "results"
CHANCE = "chance alone: the same recipe, other seeds (A/A)"
LOOKS = {  # colour, marker; the markers differ without colour
    "confirmed": (SERIES[COLOURS["confirmed"]], "o"),
    "refuted": (SERIES[COLOURS["refuted"]], "X"),
    "equal": (SERIES[COLOURS["equal"]], "D"),
    "undecided": (SERIES[COLOURS["undecided"]], "|"),
    "a difference": (SERIES[COLOURS["confirmed"]], "o"),
    "no difference that counts": (SERIES[COLOURS["equal"]], "D"),
    CHANCE: (SERIES[4], "s"),
}
_GAP = 0.4  # of a row, between the claims and the A/A pairs
# On either side of zero.
TICKS: dict[str, list[float]] = {"points": [1, 5, 25, 100], "nats": [0.05, 0.2, 1, 5]}


class Row(NamedTuple):
    """A line of the picture: an interval and its look."""

    name: str
    estimate: Estimate
    look: str
    margin: float = 0.0  # the loss that the claim allows


def decided(unit: str, judged: list[tuple[str, Judgement]]) -> list[Row]:
    """The claims that are decided in a unit and have a measured advantage."""
    return [
        Row(
            _name(study, judgement, finding),
            finding.advantage,
            finding.verdict,
            judgement.claim.margin,
        )
        for study, judgement in judged
        for finding in judgement.decisive
        if finding.unit == unit and finding.advantage is not None
    ]


def headlines(unit: str, judged: list[tuple[str, Judgement]]) -> list[Row]:
    """The claims of README that are decided in a unit, by result: a difference, or none."""
    headline_rows = []
    for row, judgement in holds.rows(judged):
        finding = holds.decisive(judgement)
        same = judgement.verdict == "equal" or (
            judgement.claim.kind == "equal" and judgement.verdict == "confirmed"
        )
        if finding.unit == unit and finding.advantage is not None:
            look = "no difference that counts" if same else "a difference"
            headline_rows.append(Row(row.label, finding.advantage, look))
    return headline_rows


def _name(study: str, judgement: Judgement, finding: Finding) -> str:
    on = f", on {finding.name}" if finding.name.startswith(("pair ", "share ")) else ""
    late = " *" if judgement.claim.exploratory else ""
    return f"{study}{late}: {judgement.claim.better} over {judgement.claim.against}{on}"


def draw(axis: Axes, unit: str, rows: list[Row]) -> None:
    """Draw each interval as a line, its estimate as a marker."""
    places = [number + _GAP * (row.look == CHANCE) for number, row in enumerate(rows)]
    for place, row in zip(places, rows, strict=True):
        colour, marker = LOOKS[row.look]
        ends = [row.estimate.low, row.estimate.high]
        axis.plot(ends, [place, place], color=colour, linewidth=3, alpha=0.45)
        axis.plot(row.estimate.value, place, color=colour, marker=marker, markersize=6)
        if row.margin:
            axis.plot(-row.margin, place, color=INK, marker=".", markersize=3)
    if any(row.look == CHANCE for row in rows) and rows[0].look != CHANCE:
        first = [row.look for row in rows].index(CHANCE)
        axis.axhline(first - 0.5 + _GAP / 2, color=PALE, linewidth=0.8)
    axis.axvline(0, color=SOFT, linewidth=0.8)
    axis.set_xscale("symlog", linthresh=TICKS[unit][0])
    # Zero is in every picture, with some space beside it.
    space = 0.3 * TICKS[unit][0]
    least = min(-space, *(row.estimate.low for row in rows))
    most = max(space, *(row.estimate.high for row in rows))
    ticks = [sign * tick for sign in (-1, 1) for tick in TICKS[unit]]
    marked = sorted({0, *(tick for tick in ticks if least <= tick <= most)})
    axis.set_xticks(marked, [f"{tick:+g}".replace("-", "−") if tick else "0" for tick in marked])
    axis.set_xlim(1.3 * least, 1.3 * most)
    axis.set_yticks(places, [row.name for row in rows])
    axis.set_ylim(places[-1] + 0.6, -0.6)
    axis.set_xlabel(f"advantage, {unit} (logarithmic beyond ±{TICKS[unit][0]:g})")
    axis.spines["left"].set_visible(False)
    axis.minorticks_off()
    axis.tick_params(axis="y", left=False, labelcolor=INK)


def picture(panels: dict[str, list[Row]], place: Path) -> None:
    """Draw a panel for each unit, with a legend."""
    heights = [len(rows) for rows in panels.values()]
    size = 8.0, 0.2 * sum(heights) + 1.7
    figure, grid = pyplot.subplots(
        len(panels), figsize=size, height_ratios=heights, layout="constrained", squeeze=False
    )
    axes = grid[:, 0]
    for axis, (unit, rows) in zip(axes, panels.items(), strict=True):
        draw(axis, unit, rows)
    every = [row for rows in panels.values() for row in rows]
    for look, (colour, marker) in LOOKS.items():
        if any(row.look == look for row in every):
            axes[0].plot([], [], color=colour, marker=marker, linewidth=3, alpha=0.8, label=look)
    if any(row.margin for row in every):
        axes[0].plot([], [], color=INK, marker=".", linestyle="", label="what may be lost")
    figure.legend(ncols=3, loc="outside upper center")
    save(figure, place)


def main() -> None:
    """Both pictures."""
    studies = holds.studies()
    judged = holds.claims(studies)
    in_readme = holds.rows(judged)
    named = {row.study for row, _ in in_readme}
    pairs = chance.differences(studies, _measures(judgement for _, judgement in judged))
    readme_pairs = chance.differences(
        [study for study in studies if study.folder.name in named],
        _measures(judgement for _, judgement in in_readme),
    )
    all_panels, readme_panels = dict[str, list[Row]](), dict[str, list[Row]]()
    for unit in TICKS:
        all_panels[unit] = decided(unit, judged) + [
            Row(f"{pair.study}: {pair.says}", pair.estimate, CHANCE)
            for pair in pairs
            if pair.unit == unit
        ]
        readme_panels[unit] = headlines(unit, judged) + [
            Row(pair.says, pair.estimate, CHANCE) for pair in readme_pairs if pair.unit == unit
        ]
    picture({unit: rows for unit, rows in all_panels.items() if rows}, ROOT / "claims.svg")
    picture({unit: rows for unit, rows in readme_panels.items() if rows}, ROOT / "holds.svg")


def _measures(judgements: Iterable[Judgement]) -> set[str]:
    """The measures that claims are decided on."""
    return {measure for judgement in judgements for measure in judgement.claim.on}


if __name__ == "__main__":
    main()
