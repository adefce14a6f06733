"""Keep the scores of fine-tunings under results/: a table, a picture, and what made them.

    python tools/keep_tasks.py TUNED results/NAME --encoder RUN --commit HASH

TUNED has folders pretrained/TASK and random/TASK as `clozelab finetune` writes them; unfinished
runs of a task are left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

from keep_results import keep

from clozelab.statistics import summary

ARMS = ("pretrained", "random")
MAIN = {"squad1": "f1", "stsb": "pearson", "mrpc": "accuracy"}


def read(folder: Path) -> dict[str, Any]:
    """One task's finished runs: scores by seed, their spread, settings and machine."""
    runs = {
        run.name.removeprefix("seed-"): json.loads((run / "result.json").read_text())
        for run in sorted(folder.glob("seed-*"))
        if (run / "result.json").exists()
    }
    first = folder / "seed-0"
    task = tomllib.loads((first / "task.toml").read_text())
    machine = tomllib.loads((first / "machine.toml").read_text())
    scores = {
        seed: {name: value for name, value in result["dev"].items() if name != "step"}
        for seed, result in runs.items()
    }
    metrics = next(iter(scores.values()))
    return {
        "task": task["task"],
        "tuning": task["tuning"],
        "examples": machine["examples"],
        "steps": next(iter(runs.values()))["steps"],
        "seconds": {seed: round(result["seconds"], 1) for seed, result in runs.items()},
        "seeds": scores,
        "spread": {
            name: summary([seed_scores[name] for seed_scores in scores.values()])
            for name in metrics
        },
    }


def interval_text(spread: dict[str, float]) -> str:
    """A mean and half its interval."""
    half = f" ± {spread['high'] - spread['mean']:.1f}" if "high" in spread else ""
    runs = "" if spread["runs"] == 3 else f" ({spread['runs']} runs)"
    return f"{spread['mean']:.1f}{half}{runs}"


def draw(results: dict[str, dict[str, Any]], file: Path) -> None:
    """Each task's runs as dots, pretrained and random."""
    from matplotlib import pyplot
    from plotting import SERIES, save

    figure, axis = pyplot.subplots(figsize=(6.4, 0.42 * len(results) + 0.9), layout="constrained")
    colours = {"pretrained": SERIES[0], "random": SERIES[1]}
    place = {"pretrained": 6, "random": -12}  # offset of the mean's label, above or below its dots
    for row, (task, arms) in enumerate(results.items()):
        for arm, result in arms.items():
            name = main_metric(task, result)
            values = [scores[name] for scores in result["seeds"].values()]
            label = arm if not row else None
            axis.plot(values, [row] * len(values), "o", color=colours[arm], ms=5, label=label)
            mean = result["spread"][name]["mean"]
            axis.annotate(
                f"{mean:.1f}",
                (mean, row),
                (0, place[arm]),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=colours[arm],
            )
    names = [f"{task} {main_metric(task, arms['pretrained'])}" for task, arms in results.items()]
    axis.set_yticks(range(len(results)), names)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("dev score; a dot a seed, and their mean")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(loc="lower right")
    save(figure, file)


def main_metric(task: str, result: dict[str, Any]) -> str:
    """The metric that is drawn."""
    return MAIN.get(task, next(iter(result["spread"])))


def main() -> None:
    """Keep, draw, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tuned", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    keep(arguments.encoder, arguments.out / "encoder", arguments.commit)
    tasks = sorted(path.name for path in (arguments.tuned / ARMS[0]).iterdir())
    results = {task: {arm: read(arguments.tuned / arm / task) for arm in ARMS} for task in tasks}
    text = json.dumps({"commit": arguments.commit, "tasks": results}, indent=1)
    (arguments.out / "tasks.json").write_text(text + "\n", encoding="utf-8")
    draw(results, arguments.out / "tasks.svg")
    print("| task | metric | pretrained | random weights |\n|---|---|--:|--:|")
    for task, arms in results.items():
        for metric in arms["pretrained"]["spread"]:
            cells = (interval_text(arms[arm]["spread"][metric]) for arm in ARMS)
            print(f"| {task} | {metric} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
