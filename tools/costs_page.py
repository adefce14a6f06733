"""Make docs/costs.md: minutes and dollars on one GPU, and what they bought, from the records.

python tools/costs_page.py [--price DOLLARS]   of an hour of an H200
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from clozelab.config.sizes import shape_name

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "costs.md"
PRICE = 4.0  # dollars an hour: an assumption
# Tasks of results/h200-tasks: the metric that is shown, and its name.
TASKS = {
    "sst2": ("accuracy", "SST-2"),
    "stsb": ("pearson", "STS-B"),
    "mnli": ("accuracy", "MNLI, a subset of 4 %"),
    "squad1": ("f1", "SQuAD 1.1 F1"),
    "wnut17": ("f1", "WNUT 2017 F1"),
}
BILLION = 1e9
TEXT = """\
# What it costs

Minutes on one H200, dollars at ${price:.2f} an hour, and what came out. The price is an assumption:
`python tools/costs_page.py --price 2.5` makes this page for yours. Every row has a record.

## From raw text to an encoder

| minutes | dollars | what you do | what you get |
|--:|--:|---|---|
{encoders}

## From an encoder to a task

Means of the recorded seeds; nine tasks shared the GPU, so alone each takes less.

| minutes | dollars | task | score after pretraining | from random weights |
|--:|--:|---|--:|--:|
{tasks}

## From two ideas to a verdict

The minutes are those of all cells, one after another; several shared the GPU, so that the whole
took less. The size is that of the base: layers × hidden size.

| minutes | dollars | study | size | cells |
|--:|--:|---|---|--:|
{studies}

`clozelab study NAME --plan` says for your text and machine what a study would take, and what it
could decide ([studies](studies.md)).

## A published size

Not run here: computed from the measured tokens a second ([speed](speed.md)), for each billion
tokens. RoBERTa's paper has some 2,000 billion; for a field of your own a few are much
([how much text?](questions/how-much-text.md)).

| minutes a billion tokens | dollars | model | million tokens a second |
|--:|--:|---|--:|
{published}

On two cores of a CPU `clozelab demo` takes two minutes, from raw text to two encoders and a task.
"""


def main() -> None:
    """Write the page for a price."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--price", type=float, default=PRICE, help=f"dollars an hour ({PRICE})")
    PAGE.write_text(page(parser.parse_args().price), encoding="utf-8")


def page(price: float = PRICE) -> str:
    """The text of the page."""
    return TEXT.format(
        price=price,
        encoders="\n".join(_encoders(price)),
        tasks="\n".join(_tasks(price)),
        studies="\n".join(_studies(price)),
        published="\n".join(_published(price)),
    )


def _cost(seconds: float, price: float) -> str:
    return f"{seconds / 60:.1f} | {seconds / 3600 * price:.2f}"


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def _encoders(price: float) -> list[str]:
    rows = []
    run = _read("h200-small/roberta/result.json")
    outcome = (
        f"{run['tokens'] / 1e6:.0f} million tokens; held-out loss {_loss(run)}: off the plateau"
    )
    what = "`roberta --size small` (6 × 512) for 75 s with compiling, beside three other runs"
    rows.append(_row(run["seconds"], price, what, f"{outcome} ([record](../results/README.md))"))
    run = _read("h200-swift/encoder/result.json")
    other = _read("h200-swift/held_out.json")["held_out"]["masked_lm"]["loss"]
    tuned = _read("h200-swift/sst2.json")["selected"]
    outcome = (
        f"{run['tokens'] / 1e6:.0f} million tokens; loss {other:.2f} under RoBERTa's masks, SST-2"
        f" {tuned:.1f} (one seed) ([record](../results/README.md#h200-swift))"
    )
    seconds = sum(run["times"].values())
    rows.append(_row(seconds, price, "`swift --budget 5m` (12 × 512), with compiling", outcome))
    run = _read("h200-tasks/encoder/result.json")
    outcome = (
        f"{run['tokens'] / 1e6:.0f} million tokens; loss {_loss(run)}; the scores below"
        " ([record](../results/README.md#h200-tasks))"
    )
    rows.append(_row(run["seconds"], price, "`roberta --size small` (6 × 512)", outcome))
    return rows


def _row(seconds: float, price: float, what: str, outcome: str) -> str:
    return f"| {_cost(seconds, price)} | {what} | {outcome} |"


def _loss(run: dict[str, Any]) -> str:
    return f"{run['held_out']['masked_lm']['loss']:.2f}"


def _tasks(price: float) -> list[str]:
    rows = []
    for task, (metric, name) in TASKS.items():
        both = _read("h200-tasks/tasks.json")["tasks"][task]
        scores = [
            f"{both[kind]['spread'][metric]['mean']:.1f}" for kind in ("pretrained", "random")
        ]
        seconds = fmean(both["pretrained"]["seconds"].values())
        rows.append(f"| {_cost(seconds, price)} | {name} | {' | '.join(scores)} |")
    return rows


def _studies(price: float) -> list[str]:
    rows = []
    for file in sorted(RESULTS.glob("*/study.toml")):
        name = file.parent.name
        cells = _read(f"{name}/result.json")["cells"]
        seconds = sum(map(_seconds, cells))
        link = f"[{name}](../results/{name}/page.md)"
        size = shape_name(_read(f"{name}/plan.json")["size"]).replace("x", " × ")
        rows.append(f"| {_cost(seconds, price)} | {link} | {size} | {len(cells)} |")
    return rows


def _seconds(cell: dict[str, Any]) -> float:
    """The time of a cell; shared pretraining counts only for the variant that did it."""
    own = cell["seconds"] if cell.get("pretrained_by", cell["variant"]) == cell["variant"] else 0.0
    return float(own + cell["tuning_seconds"])


def _published(price: float) -> list[str]:
    record = ROOT / "benchmarks" / "results" / "gpu.json"
    rows, seen = [], set()
    for row in json.loads(record.read_text(encoding="utf-8"))["rows"]:
        what, rate = row["what"], row["clozelab"]["tokens_a_second"]
        name = f"{what['recipe']} {what['size']}, blocks of {what['length']:,}"
        if what["size"] in ("base", "large") and name not in seen:
            seen.add(name)
            rows.append(f"| {_cost(BILLION / rate, price)} | {name} | {rate / 1e6:.2f} |")
    return rows


if __name__ == "__main__":
    main()
