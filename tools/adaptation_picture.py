"""Draw the losses of both texts during recorded adaptations: python tools/adaptation_picture.py

docs/pictures/adaptation.svg has a panel for each direction: solid lines are the new text, dashed
lines the general text, with and without replay.
"""

from __future__ import annotations

import json
from pathlib import Path

from adaptation_tables import TEXTS
from matplotlib import pyplot
from plotting import SERIES, save

ROOT = Path(__file__).resolve().parents[1]
LOOKS = {"plain": (SERIES[1], "plain"), "replay": (SERIES[0], "with replay")}
LINES = {"held_out": ("-", "new text"), "general": ("--", "general text")}


def main() -> None:
    """Draw the record."""
    record = json.loads((ROOT / "results/adaptation/adaptation.json").read_text(encoding="utf-8"))
    ways = list(dict.fromkeys((row["from"], row["to"]) for row in record["rows"]))
    figure, axes = pyplot.subplots(
        1, len(ways), figsize=(7.2, 3), layout="constrained", sharey=True
    )
    for axis, (old, new) in zip(axes, ways, strict=True):
        for row in record["rows"]:
            if (row["from"], row["to"]) != (old, new) or row["kind"] not in LOOKS:
                continue
            colour, name = LOOKS[row["kind"]]
            for text, (line, what) in LINES.items():
                steps, losses = zip(*row["losses"][text], strict=True)
                axis.plot(steps, losses, line, color=colour, label=f"{what}, {name}")
        axis.set_title(f"{TEXTS[old]} to {TEXTS[new]}", fontsize=9)
        axis.set_xlabel("step")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    axes[0].set_ylabel("held-out loss, nats")
    save(figure, ROOT / "docs/pictures/adaptation.svg")


if __name__ == "__main__":
    main()
