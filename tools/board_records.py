"""Reading the records of an entry of the board, and comparing them with the entry.

Whatever does not agree raises a UserError.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from clozelab import statistics
from clozelab.errors import UserError

MASKS, BLOCKS = "roberta", 4096  # of the held-out loss
PAIRS = 67_000  # of BLiMP
# The tasks in the order of the table, the metric that counts, and the tunings of an encoder whose
# mean is its score.
TASKS = {
    "cola": ("matthews", 5),
    "sst2": ("accuracy", 3),
    "mrpc": ("accuracy", 5),
    "stsb": ("pearson", 5),
    "rte": ("accuracy", 5),
    "mnli": ("accuracy", 3),
    "squad1": ("f1", 1),
}
SCORES = ("loss", "own", "blimp", *TASKS)
LOG_SLACK = 1.03  # the steps in the log may take so many times the seconds of the result
AGREE = 5e-3  # the tolerance for numbers with two decimals


@dataclass(frozen=True)
class Text:
    """A training text; fingerprints are those of its corpora with one tokenizer."""

    name: str
    says: str
    build: str = ""
    fingerprint: str = ""  # "": the record does not tell
    held_out: str = ""  # of the corpus that the loss is measured on


@dataclass(frozen=True)
class Figure:
    """A mean over seeds, half its 95 % interval where there are two, and the tunings of each."""

    mean: float
    half: float | None
    tunings: int = 0


@dataclass(frozen=True)
class Entry:
    """An entry whose records agree with it."""

    name: str
    date: str
    recipe: str
    gpu: str
    text: Text
    minutes: float
    tokens: int
    seeds: tuple[int, ...]
    commit: str
    figures: Mapping[str, Figure]
    note: str = ""


def read_texts(file: Path) -> dict[str, Text]:
    """The texts of texts.toml, where there is one."""
    tables = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: Text(name, **table) for name, table in tables.items()}


def computed_entry(folder: Path, texts: Mapping[str, Text]) -> Entry:
    """An entry computed from its records; records that contradict each other are refused."""
    stated = tomllib.loads((folder / "entry.toml").read_text(encoding="utf-8"))
    where = folder.name
    if stated["text"] not in texts:
        raise UserError(f"{where}: text {stated['text']} is not in texts.toml; describe it there")
    text, rows = texts[stated["text"]], stated["seeds"]
    seconds, tokens, values = [], [], dict[str, list[float]]()
    tunings: dict[str, int] = {}
    facts: dict[str, set[str]] = {"gpu": set(), "commit": set(), "recipe": set()}
    for row in rows:
        machine = _check_run(folder / row["run"], row["seed"], text, f"{where}, seed {row['seed']}")
        seconds.append(machine["seconds"])
        tokens.append(machine["tokens"])
        for name in facts:
            facts[name].add(str(machine.get(name, "not recorded")))
        for name, value in _measured(folder, row, text, where).items():
            values.setdefault(name, []).append(value)
        for task, file in row.get("tasks", {}).items():
            scores = _tuned(folder / file, task, f"{where}, seed {row['seed']}")
            values.setdefault(task, []).append(fmean(scores))
            tunings[task] = min(tunings.get(task, len(scores)), len(scores))
    if len({row["seed"] for row in rows}) < len(rows):
        raise UserError(f"{where}: a seed is there twice; enter each once")
    for name, distinct in facts.items():
        if len(distinct) > 1:
            raise UserError(
                f"{where}: its seeds have more than one {name} ({', '.join(sorted(distinct))});"
                " enter them apart"
            )
    for name, several in values.items():
        if len(several) < len(rows):
            raise UserError(
                f"{where}: {name} is missing for some seeds; measure it for all or none"
            )
    known = {name: next(iter(distinct)) for name, distinct in facts.items()}
    figures = {
        name: _figure(values[name], tunings.get(name, 0)) for name in SCORES if name in values
    }
    return Entry(
        where,
        str(stated["date"]),
        known["recipe"],
        known["gpu"],
        text,
        max(seconds) / 60,
        max(tokens),
        tuple(row["seed"] for row in rows),
        known["commit"],
        figures,
        stated.get("note", ""),
    )


def checked_entry(folder: Path, texts: Mapping[str, Text]) -> Entry:
    """An entry that agrees with its records; any other is refused."""
    entry = computed_entry(folder, texts)
    stated = tomllib.loads((folder / "entry.toml").read_text(encoding="utf-8"))
    for name in ("recipe", "gpu", "commit"):
        if stated.get(name) != getattr(entry, name):
            raise UserError(
                f"{entry.name}: says {name} {stated.get(name)}, and its records have"
                f" {getattr(entry, name)}; correct one of them"
            )
    numbers = {"minutes": entry.minutes, **{k: v.mean for k, v in entry.figures.items()}}
    stated_numbers = {"minutes": stated.get("minutes"), **stated.get("scores", {})}
    for name in {**numbers, **stated_numbers}:
        own, other = stated_numbers.get(name), numbers.get(name)
        if own is None or other is None or abs(own - other) > AGREE + 1e-9:
            recorded = "none" if other is None else f"{other:.2f}"
            raise UserError(
                f"{entry.name}: says {name} {own}, and its records give {recorded};"
                " correct one of them"
            )
    return entry


def _check_run(place: Path, seed: int, text: Text, where: str) -> dict[str, Any]:
    """Machine, recipe, seconds of training and tokens of a run, checked against each other."""
    machine = tomllib.loads((place / "machine.toml").read_text(encoding="utf-8"))
    recipe = tomllib.loads((place / "recipe.toml").read_text(encoding="utf-8"))
    result = json.loads((place / "result.json").read_text(encoding="utf-8"))
    lines = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    log = [json.loads(line) for line in lines]
    if machine.get("seed") != seed:
        raise UserError(f"{where}: the run has seed {machine.get('seed')}; name that")
    if str(machine.get("commit")).endswith("-dirty"):
        raise UserError(
            f"{where}: others cannot get its commit, which was changed; run a clean one"
        )
    if machine.get("processes", 1) != 1 or not machine.get("gpu"):
        raise UserError(f"{where}: the run was not on one GPU alone; the board is for those")
    own = machine.get("fingerprint", [""])
    if own != [text.fingerprint]:
        raise UserError(
            f"{where}: the run read the text {_short(own)}, and {text.name} is"
            f" {_short([text.fingerprint])}; name the right text, or describe this one in"
            " texts.toml"
        )
    # Steps alone: set-up, compilation, evaluations and saves are not counted.
    seconds = result.get("times", {}).get("training", result["seconds"])
    steps = [entry for entry in log if entry["kind"] == "step"]
    pace = sum(entry["seconds"] for entry in steps) / sum(entry["tokens"] for entry in steps)
    if pace * result["tokens"] > LOG_SLACK * seconds:
        raise UserError(
            f"{where}: its log has steps for {pace * result['tokens']:.0f} seconds, and its result"
            f" says {seconds:.0f}; one of them is wrong"
        )
    last = [entry for entry in log if entry["kind"] == "held_out"][-1]
    if last["step"] != result["steps"] or any(
        last.get(name, {}).get("loss") != value["loss"]
        for name, value in result["held_out"].items()
    ):
        raise UserError(f"{where}: the last evaluation in its log is not that of its result")
    facts = {"seconds": seconds, "tokens": result["tokens"], "recipe": recipe["name"]}
    return {**machine, **facts}


def _measured(folder: Path, row: Mapping[str, Any], text: Text, where: str) -> dict[str, float]:
    """The losses and the BLiMP score of a seed that were measured."""
    values = {}
    for name, fingerprint in (("held_out", text.held_out), ("own", text.fingerprint)):
        if name not in row:
            continue
        record = json.loads((folder / row[name]).read_text(encoding="utf-8"))
        if record["masks"] != MASKS or record["blocks"] != BLOCKS:
            raise UserError(
                f"{where}: {row[name]} is of {record['blocks']} blocks under the masks of"
                f" {record['masks']}; the board's are {BLOCKS} under those of {MASKS}"
            )
        if record["data"]["fingerprint"] != fingerprint:
            raise UserError(
                f"{where}: {row[name]} is over the text"
                f" {_short([record['data']['fingerprint']])}, and {text.name} has"
                f" {_short([fingerprint])} there"
            )
        values["loss" if name == "held_out" else name] = record["held_out"]["masked_lm"]["loss"]
    if "blimp" in row:
        record = json.loads((folder / row["blimp"]).read_text(encoding="utf-8"))
        result = json.loads((folder / row["run"] / "result.json").read_text(encoding="utf-8"))
        if record["model"]["step"] != result["steps"]:
            raise UserError(
                f"{where}: BLiMP is of step {record['model']['step']}, and the run ends with"
                f" {result['steps']}; score its last checkpoint"
            )
        if record["all"]["items"] != PAIRS:
            pairs = record["all"]["items"]
            raise UserError(f"{where}: BLiMP has {PAIRS:,} pairs, and this is of {pairs:,}")
        values["blimp"] = record["all"]["accuracy"]
    return values


def _tuned(file: Path, task: str, where: str) -> list[float]:
    """The scores of a task's fine-tunings, from a record of `finetune` or of several tasks."""
    record = json.loads(file.read_text(encoding="utf-8"))
    if "tasks" in record:
        arm = record["tasks"][task].get("pretrained", record["tasks"][task])
        seeds, spread = arm["seeds"], arm["spread"]
    else:
        (cell,) = record["cells"]
        seeds, spread = cell["seeds"], cell["scores"]
    metric, _ = TASKS[task]
    scores = [scores[metric] for scores in seeds.values()]
    if abs(fmean(scores) - spread[metric]["mean"]) > 1e-6:
        raise UserError(f"{where}: the mean of {task} is not that of its tunings")
    return scores


def _figure(values: list[float], tunings: int) -> Figure:
    summary = statistics.summary(values)
    half = summary["high"] - summary["mean"] if "high" in summary else None
    return Figure(summary["mean"], half, tunings)


def _short(fingerprints: list[str]) -> str:
    return ", ".join(fingerprint[:12] or "not recorded" for fingerprint in fingerprints)
