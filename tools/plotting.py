"""Pictures by matplotlib in the colours of pages, light and dark in one file."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
from cycler import cycler

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from clozelab.files import write_text
from clozelab.reporting.palette import LIGHT, themed

INK, SOFT, PALE, PAPER = (LIGHT[name] for name in ("ink", "soft", "line", "paper"))
SERIES = tuple(LIGHT[f"s{number}"] for number in range(8))

matplotlib.rcParams.update({
    "svg.hashsalt": "clozelab",
    "font.size": 9,
    "axes.prop_cycle": cycler(color=SERIES),
    "axes.edgecolor": SOFT,
    "axes.facecolor": PAPER,
    "axes.labelcolor": SOFT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "savefig.facecolor": PAPER,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
})  # fmt: skip


def save(figure: Figure, file: Path) -> None:
    """Write a figure as SVG and close it."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    write_text(file, themed(drawn.getvalue()))
