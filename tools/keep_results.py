"""Keep the records of some runs under results/, thinned, with a picture of their curves.

    python tools/keep_results.py RUNS results/NAME --commit HASH

RUNS holds a folder for each run, as benchmarks/recipes.py leaves them. Of the steps' lines at most
200 are kept, evenly; every evaluation is. The commit is added where a run could not know it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

LINES = 200  # step entries that are kept of a log, and the last ones besides
LAST = 3


def thin(file: Path, lines: int = LINES) -> list[dict[str, Any]]:
    """A run's entries, fewer of them; the last steps, which tell where it ended, are kept.

    What is that short already stays as it is: a study is kept again whenever it continues.
    """
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    steps = [entry for entry in entries if entry["kind"] == "step"]
    if len(steps) <= lines + LAST:
        return entries
    shown = [*steps[:: -(-len(steps) // lines)], *steps[-LAST:]]
    shown_steps = {id(entry) for entry in shown}
    return [entry for entry in entries if entry["kind"] != "step" or id(entry) in shown_steps]


def keep(run: Path, place: Path, commit: str) -> list[dict[str, Any]]:
    """One run's records."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.toml", "result.json"):
        shutil.copy(run / name, place / name)
    machine = (run / "machine.toml").read_text(encoding="utf-8")
    if "commit" not in tomllib.loads(machine):
        machine = f'commit = "{commit}"\n{machine}'
    (place / "machine.toml").write_text(machine, encoding="utf-8")
    entries = thin(run / "metrics.jsonl")
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (place / "metrics.jsonl").write_text(lines, encoding="utf-8")
    return entries


def draw(runs: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Every run's main loss, smoothed by its log, and its held-out loss as dots."""
    from matplotlib import pyplot
    from plotting import INK, save

    columns = min(5, len(runs))
    rows = -(-len(runs) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(2.3 * columns, 1.9 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(runs) :]:
        axis.axis("off")
    for axis, (name, entries) in zip(axes.flat, runs.items(), strict=False):
        objectives = [key for key, value in entries[0].items() if isinstance(value, dict)]
        main = next(key for key in objectives if key.endswith("_lm"))
        for key in objectives:
            points = [(e["step"], e[key]["loss"]) for e in entries if e["kind"] == "step"]
            axis.plot(*zip(*points, strict=True), linewidth=0.9, label=key, alpha=0.85)
        held = [(e["step"], e[main]["loss"]) for e in entries if e["kind"] == "held_out"]
        axis.plot(*zip(*held, strict=True), ".", color=INK, markersize=3)
        axis.set_title(name, fontsize=9)
        axis.legend(fontsize=6)
    figure.supxlabel("steps", fontsize=8)
    figure.supylabel("loss, nats", fontsize=8)
    save(figure, file)


def main() -> None:
    """Keep, draw, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--least", type=int, default=10, help="steps a run must have to be kept")
    arguments = parser.parse_args()
    runs_by_name: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(arguments.runs.iterdir()):
        file = run / "result.json"
        if file.exists() and json.loads(file.read_text())["steps"] >= arguments.least:
            runs_by_name[run.name] = keep(run, arguments.out / run.name, arguments.commit)
            result = json.loads(file.read_text())
            losses = ", ".join(f"{k} {v['loss']:.2f}" for k, v in result["held_out"].items())
            print(f"| {run.name} | {result['steps']:,} | {result['tokens'] / 1e6:.1f} | {losses} |")
    draw(runs_by_name, arguments.out / "curves.svg")


if __name__ == "__main__":
    main()
