"""What came of a study's cells: their scores and what they cost, as result.json tells them."""

from __future__ import annotations

import json
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.files import write_text
from clozelab.runs.directory import MEASURED, Run, read_json
from clozelab.studies.cell import FAILED, TASKS, Order, done
from clozelab.studies.plan import Plan


def write(plan: Plan, orders: list[Order], out: Path) -> dict[str, Any]:
    """Tell of every cell that is done or has failed."""
    cells = [
        _told(plan, order) for order in orders if done(order) or (order.place / FAILED).exists()
    ]
    result = {"study": plan.request.study.name, "cells": cells}
    Run(out).write_result(result)
    return result


def record(order: Order, error: BaseException) -> str:
    """Note why a cell failed; the same in a line."""
    told = str(error) or type(error).__name__
    order.place.mkdir(parents=True, exist_ok=True)
    found = {
        "error": told,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "trace": "".join(traceback.format_exception(error))[-10_000:],
    }
    write_text(order.place / FAILED, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return told


def failure(order: Order) -> str | None:
    """Why a cell failed, if it did."""
    file = order.place / FAILED
    return str(read_json(file).get("error", "")) if file.exists() else None


def _told(plan: Plan, order: Order) -> dict[str, Any]:
    run, variant = Run(order.place), order.cell.variant
    result = run.result() or {}
    pace = plan.paces.get(variant)
    tokens = result.get("tokens", 0)
    return {
        "variant": variant,
        "seed": order.cell.seed,
        "scores": _scores(order),
        "tokens": tokens,
        "steps": result.get("steps", 0),
        "seconds": result.get("seconds", 0.0),
        "tuning_seconds": _tuning(order),
        "flops": tokens * pace.flops_a_token if pace else None,
        "parameters": _parameters(run),
        "pretrained_by": plan.request.twin(variant) or variant,
        "failed": failure(order),
    }


def _scores(order: Order) -> dict[str, float]:
    """By task and metric, then the measures."""
    found: dict[str, float] = {}
    for task in order.request.tasks():
        result = Run(order.place / TASKS / task).result()
        if result is not None:
            own = result["cells"][0]["seeds"].get(str(order.cell.seed), {})
            found |= {f"{task}.{metric}": value for metric, value in own.items()}
    return found | dict(read_json(order.place / MEASURED).get("scores", {}))


def _tuning(order: Order) -> float:
    files = order.place.glob(f"{TASKS}/*/seed-*/result.json")
    return float(sum((Run(file.parent).result() or {}).get("seconds", 0.0) for file in files))


def _parameters(run: Run) -> int | None:
    if not run.recipe_file.exists():
        return None
    recipe = recipes.parse(run.recipe(), str(run.recipe_file))
    return sum(recipe.parameters().values())
