"""The best learning rate and epochs for fine-tuning small encoders, by tasks that are not reported.

    python benchmarks/tuning_sweep.py RUN --task-data DIR --minutes 9 --out tuning-sweep.json

RUN is tuned on QQP's subset, MR, SUBJ, TREC and WiC at every rate and number of epochs. A task's
scores are taken as differences from its own mean, so that all count alike. QQP stands for tasks
of more than 20,000 examples, the others for small ones, and each group has epochs of its own. QQP
and WiC, which have pairs, are tuned from a model of MNLI as well: whether that helps is the mean
difference at the chosen setting. Stopped, or out of --minutes, the same command goes on.

MR's sentences are in SST-2, which is reported: its settings are chosen with them, no weight is.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import clozelab
from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.interrupts import Stopped, terminable
from clozelab.runs.directory import Run, machine_facts

GROUPS = {"small": ("mr", "subj", "trec", "wic"), "large": ("qqp",)}
PAIRS = ("qqp", "wic")
FIRST = "mnli"
SAVING = 25.0  # seconds reserved for running commands to save

Setting = tuple[float, float]  # learning rate and epochs


def sweep(arguments: argparse.Namespace) -> bool:
    """Run the remaining fine-tunings of every task; returns whether all are done."""
    options: dict[str, Any] = {"task_data": arguments.task_data, "protocol": arguments.protocol}
    options |= {"seeds": arguments.seeds, "at_once": arguments.at_once, "set": arguments.set}
    options |= {"device": arguments.device} if arguments.device else {}
    work = Path(arguments.work)
    tasks = [(task, "", group) for group, names in GROUPS.items() for task in names]
    if not arguments.without_mnli:
        tasks += [(task, FIRST, group) for task, _, group in tasks if task in PAIRS]
    whole = True
    for task, first, group in tasks:
        if task not in arguments.tasks or (work / f"{task}{first}" / "result.json").exists():
            continue
        rates = ",".join(f"{rate:g}" for rate in arguments.rates)
        epochs = ",".join(f"{number:g}" for number in arguments.epochs[group])
        grid = [f"learning_rate={rates}", *([] if arguments.set else [f"epochs={epochs}"])]
        model = str(work / FIRST) if first else arguments.run
        try:
            if first and Run(Path(model)).result() is None:
                clozelab.finetune(arguments.run, FIRST, out=model, **{**options, "seeds": 1})
            clozelab.finetune(model, task, out=str(work / f"{task}{first}"), grid=grid, **options)
        except Stopped:
            return False
        except UserError as problem:  # of this task: the others go on
            print(f"{task}: {problem}", flush=True)
            whole = False
    return whole


def scores_of(folder: Path) -> dict[Setting, float]:
    """The mean over seeds of a task's score at each setting."""
    result = Run(folder).result() or {"cells": []}
    return {
        (cell["settings"]["learning_rate"], cell["settings"].get("epochs", 0.0)): cell["selected"][
            "mean"
        ]
        for cell in result["cells"]
    }


def centred(tables: Mapping[str, Mapping[Setting, float]]) -> dict[Setting, float]:
    """Each setting's mean over tasks of its difference from the task's mean."""
    means = {task: fmean(table.values()) for task, table in tables.items()}
    common = set.intersection(*({*table} for table in tables.values())) if tables else set()
    return {
        setting: fmean(tables[task][setting] - means[task] for task in tables)
        for setting in sorted(common)
    }


def chosen(work: Path, tasks: list[str]) -> dict[str, Any]:
    """For each group the best setting, and the scores of all settings."""
    choices: dict[str, Any] = {}
    for group, names in GROUPS.items():
        tables = {task: scores_of(work / task) for task in names if task in tasks}
        tables = {task: table for task, table in tables.items() if table}
        over = centred(tables)
        if not over:
            continue
        best = max(over, key=lambda setting: over[setting])
        first = {
            task: scores_of(work / f"{task}{FIRST}").get(best, float("nan")) - tables[task][best]
            for task in tables
            if task in PAIRS and (work / f"{task}{FIRST}" / "result.json").exists()
        }
        choices[group] = {
            "learning_rate": best[0],
            "epochs": best[1],
            "mnli_first": first,
            "over_tasks": [[*setting, round(value, 3)] for setting, value in over.items()],
            "scores": {
                task: [[*setting, round(value, 3)] for setting, value in table.items()]
                for task, table in tables.items()
            },
        }
    return choices


def main() -> None:
    """Sweep for some minutes, then print the best setting so far."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--task-data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default="runs/tuning-sweep")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--protocol", default="swift", help="for what is not swept (swift)")
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-5, 5e-5, 1e-4, 2e-4])
    parser.add_argument("--small-epochs", type=float, nargs="+", default=[3, 10])
    parser.add_argument("--large-epochs", type=float, nargs="+", default=[2, 4])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument(
        "--tasks", nargs="+", default=[t for names in GROUPS.values() for t in names]
    )
    parser.add_argument("--without-mnli", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="for a rehearsal: steps=2")
    parser.add_argument("--device")
    arguments = parser.parse_args()
    arguments.epochs = {"small": arguments.small_epochs, "large": arguments.large_epochs}
    began = time.perf_counter()
    # As Ctrl-C would: running commands save, and are continued the next time.
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, max(60 * arguments.minutes - SAVING, 1.0))
    with terminable():
        whole = sweep(arguments)
    signal.setitimer(signal.ITIMER_REAL, 0)
    options = {
        name: value for name, value in vars(arguments).items() if name not in ("run", "task_data")
    }
    record: dict[str, Any] = {
        "machine": machine_facts(),
        "asked": options,
        "whole": whole,
        "seconds": time.perf_counter() - began,
        "groups": chosen(Path(arguments.work), arguments.tasks),
    }
    write_text(Path(arguments.out), json.dumps(record, indent=1) + "\n")
    for group, choice in record["groups"].items():
        setting = f"{choice['learning_rate']:g}, {choice['epochs']:g} epochs"
        print(f"{group}: {setting}; MNLI first: {choice['mnli_first']}")
    print("done" if whole else "not done; the same command goes on")


if __name__ == "__main__":
    main()
