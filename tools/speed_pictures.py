"""Draw the measurements of speed: python tools/speed_pictures.py

docs/pictures/speed.svg has the rows of benchmarks/results/gpu.json that have a peer;
docs/pictures/scale.svg the time and the memory of planning by the size of a corpus;
results/h200-swift/minutes.svg the losses of that run by the minutes of its training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from plotting import INK, PALE, SERIES, save

ROOT = Path(__file__).parents[1]
BARS = {  # from dark to light, so that they can be told apart without colour
    "clozelab": SERIES[0],
    "transformers compiled": SERIES[1],
    "transformers": PALE,
}
TITLES = {"sentence_pair": "BERT-base, sentence pairs", "segment_pair": "BERT-base, 128 tokens"}
NAMES = {"roberta": "RoBERTa", "modernbert": "ModernBERT", "deberta": "DeBERTa"}


def title(row: dict[str, Any]) -> str:
    """What a row measures, in a few words."""
    kind = next((name for name in TITLES if f'use = "{name}"' in row["recipe"]), None)
    what = row["what"]
    if kind:
        return TITLES[kind]
    return f"{NAMES[what['recipe']]}-{what['size']}, {what['length']:,} tokens"


def speed(file: Path) -> None:
    """Draw a group of bars for each row, with our ratio to each peer."""
    rows = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())["rows"]
    rows = [row for row in rows if row["peers"]]
    figure, axis = pyplot.subplots(figsize=(6.4, 0.75 * len(rows) + 0.7), layout="constrained")
    for place, row in enumerate(rows):
        sides = {"clozelab": row["clozelab"], **row["peers"]}
        for number, (name, colour) in enumerate(BARS.items()):
            rate = sides[name]["tokens_a_second"] / 1e3
            at = place + 0.27 * (number - 1)
            axis.barh(at, rate, 0.25, color=colour, label=None if place else name)
            ratio = sides[name].get("ratio")
            text = f" {rate:,.0f}" + (f"  (ours {ratio['speed']:.1f} ×)" if ratio else "")
            axis.text(rate, at, text, va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [title(row) for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("thousand real tokens a second, one H200, bf16")
    axis.set_xlim(right=1.18 * axis.get_xlim()[1])
    axis.tick_params(axis="y", labelcolor=INK)
    axis.legend(fontsize=8, loc="lower right")
    save(figure, file)


def scale(file: Path, *, millions: int = 36_000) -> None:
    """Draw time (extrapolated where dashed) and memory of planning, over the tokens of a corpus."""
    rows = json.loads((ROOT / "benchmarks/results/scale.json").read_text())["rows"]
    figure, (time, memory) = pyplot.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
    for number, name in enumerate(dict.fromkeys(row["format"] for row in rows)):
        own = sorted((row for row in rows if row["format"] == name), key=lambda r: r["millions"])
        tokens, colour = [row["tokens"] / 1e6 for row in own], f"C{number}"
        seconds = [row["plan CPU s"] for row in own]
        time.loglog(tokens, seconds, "o-", color=colour, markersize=3, label=name)
        further = [seconds[-1], seconds[-1] * millions / tokens[-1]]
        time.loglog([tokens[-1], millions], further, "--", color=colour, linewidth=0.8)
        memory.semilogx(tokens, [row["own MB"] for row in own], "o-", color=colour, markersize=3)
    time.set_ylabel("seconds of one core to plan a pass")
    memory.set_ylabel("MB that two processes hold")
    memory.set_ylim(0, 1000)
    for axis in (time, memory):
        axis.set_xlabel("million tokens")
    time.legend(fontsize=6)
    save(figure, file)


def minutes(run: Path, file: Path) -> None:
    """Draw losses over time, from the end of the first step, which includes compilation."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((run / "result.json").read_text())
    steps = [entry for entry in entries if entry["kind"] == "step"]
    each = (result["seconds"] - steps[0]["seconds"]) / (result["steps"] - 1) / 60
    figure, axis = pyplot.subplots(figsize=(5.6, 2.9), layout="constrained")
    looks: dict[str, dict[str, Any]] = {
        "step": {"linewidth": 1, "color": SERIES[0], "label": "training"},
        "held_out": {"linestyle": "", "marker": "o", "color": INK, "label": "held out"},
    }
    for kind, look in looks.items():
        losses = [(e["step"], e["masked_lm"]["loss"]) for e in entries if e["kind"] == kind]
        axis.plot([(step - 1) * each for step, _ in losses], [loss for _, loss in losses], **look)
    axis.set_xlabel("minutes of one H200")
    axis.set_ylabel("masked LM loss, nats (30 % masks)")
    axis.legend()
    save(figure, file)


if __name__ == "__main__":
    speed(ROOT / "docs/pictures/speed.svg")
    scale(ROOT / "docs/pictures/scale.svg")
    minutes(ROOT / "results/h200-swift/encoder", ROOT / "results/h200-swift/minutes.svg")
