"""What came of the fine-tunings in a folder: scores by cell and seed, their summary, the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clozelab import statistics
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.runs.directory import Run


def summary(out: Path, task: str, *, cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Every score of every trial in the folder, a summary over seeds, and the best trial.

    `cells` are those of the grid that was asked for last; others keep their place.
    """
    before = (Run(out).result() or {}).get("cells", [])
    settings = {one["name"]: one["settings"] for one in before}
    settings |= {protocols.named(cell) if cell else "": dict(cell) for cell in cells}
    told: list[dict[str, Any]] = []
    best, value = "", -math.inf
    for name, cell in settings.items():
        found = {
            int(file.parent.name.removeprefix("seed-")): Run(file.parent).result() or {}
            for file in (out / name).glob("seed-*/result.json")
        }
        done = {seed: found[seed] for seed in sorted(found) if "dev" in found[seed]}
        if not done:
            continue
        for seed, result in done.items():
            if result["selected"] > value:
                best, value = f"{name}/seed-{seed}".lstrip("/"), result["selected"]
        scores = {seed: _scores(result) for seed, result in done.items()}
        told.append(
            {
                "name": name,
                "settings": cell,
                "selected": statistics.summary([result["selected"] for result in done.values()]),
                "scores": {
                    metric: statistics.summary([one[metric] for one in scores.values()])
                    for metric in next(iter(scores.values()))
                },
                "seeds": {str(seed): one for seed, one in scores.items()},
                "diverged": len(found) - len(done),
            }
        )
    if not told:
        raise UserError(
            f"{out}: every run diverged; lower the rate (--set rate=…) or lengthen the warm-up, in"
            " a folder of its own"
        )
    return {"task": task, "best": best, "selected": value, "cells": told}


def _scores(result: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in result["dev"].items() if name != "step"}
