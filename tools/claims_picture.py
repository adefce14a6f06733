"""Draw every claim of the studies under results/: python tools/claims_picture.py

results/claims.svg has the claimed advantage of each with its 95 % interval, what decides it in
points above, in nats below. What lies beyond the axis is an arrow at its end. A star says that a
claim is exploratory.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "clozelab", "font.size": 8})
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from clozelab.runs.directory import STUDY  # noqa: E402
from clozelab.studies.records import read  # noqa: E402
from clozelab.studies.verdicts import Finding, Judgement, judge  # noqa: E402

ROOT = Path(__file__).parents[1] / "results"
LOOKS = {  # colour, marker: they differ without colour
    "confirmed": ("#0072b2", "o"),
    "refuted": ("#d55e00", "X"),
    "equal": ("#cc79a7", "D"),
    "undecided": ("#8a8a8a", "|"),
}
WIDEST = {"points": 12.0, "nats": 5.0}  # that the axis shows to either side
Row = tuple[str, float, Finding]  # what is claimed, what it allows to be lost, what was found


def claims() -> list[tuple[str, Judgement]]:
    """Of every study kept, in the order of their names."""
    found = [read(file.parent) for file in sorted(ROOT.glob(f"*/{STUDY}"))]
    return [(one.folder.name, judged) for one in found for judged in judge(one)]


def rows(unit: str, judged: list[tuple[str, Judgement]]) -> list[Row]:
    """Those that are decided in a unit, where something was found."""
    return [
        (_name(study, one, finding), one.claim.margin, finding)
        for study, one in judged
        for finding in one.decisive
        if finding.unit == unit and finding.advantage is not None
    ]


def _name(study: str, one: Judgement, finding: Finding) -> str:
    on = f", on {finding.name}" if finding.name.startswith(("pair ", "share ")) else ""
    late = " *" if one.claim.exploratory else ""
    return f"{study}{late}: {one.claim.better} over {one.claim.against}{on}"


def draw(axis: Axes, unit: str, told: list[Row]) -> None:
    """A line for each, from one end of its interval to the other."""
    most = WIDEST[unit]

    def shown(value: float) -> float:
        return max(-most, min(most, value))

    for place, (_, margin, finding) in enumerate(told):
        found = finding.advantage
        assert found is not None
        colour, marker = LOOKS[finding.verdict]
        if found.value != shown(found.value):
            marker = ">" if found.value > 0 else "<"
        ends = [shown(found.low), shown(found.high)]
        axis.plot(ends, [place, place], color=colour, linewidth=3, alpha=0.45)
        axis.plot(shown(found.value), place, color=colour, marker=marker, markersize=6)
        if margin:
            axis.plot(-margin, place, color="black", marker=".", markersize=3)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(told)), [name for name, _, _ in told])
    axis.set_ylim(len(told) - 0.4, -0.6)
    axis.set_xlim(-1.03 * most, 1.03 * most)
    axis.set_xlabel(f"claimed advantage, {unit}")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(left=False)


def main() -> None:
    """One picture."""
    judged = claims()
    told = {unit: found for unit in WIDEST if (found := rows(unit, judged))}
    heights = [len(found) for found in told.values()]
    size = 7.2, 0.2 * sum(heights) + 1.5
    figure, grid = pyplot.subplots(
        len(told), figsize=size, height_ratios=heights, layout="constrained", squeeze=False
    )
    axes = grid[:, 0]
    for axis, (unit, found) in zip(axes, told.items(), strict=True):
        draw(axis, unit, found)
    for verdict, (colour, marker) in LOOKS.items():
        axes[0].plot([], [], color=colour, marker=marker, linewidth=3, alpha=0.8, label=verdict)
    axes[0].plot([], [], color="black", marker=".", linestyle="", label="what may be lost")
    figure.legend(frameon=False, ncols=5, loc="outside upper center")
    figure.savefig(ROOT / "claims.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
