"""What a run may cost, in time, tokens or steps: 20m, 300Mtok, 12steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from clozelab.errors import UserError

_UNITS: dict[str, tuple[Literal["seconds", "tokens", "steps"], float]] = {
    "s": ("seconds", 1),
    "m": ("seconds", 60),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
    "tok": ("tokens", 1),
    "ktok": ("tokens", 1e3),
    "Mtok": ("tokens", 1e6),
    "Gtok": ("tokens", 1e9),
    "steps": ("steps", 1),
}


@dataclass(frozen=True)
class Budget:
    """An amount of time, tokens or steps."""

    kind: Literal["seconds", "tokens", "steps"]
    amount: float


def parse(word: str) -> Budget:
    """The budget a user wrote."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", word, re.ASCII)
    if match is None or match[2] not in _UNITS:
        raise UserError(
            f"--budget {word}: is not a budget; give a number and its unit without a space,"
            " as in 90s, 20m, 1.5h (time), 500ktok, 300Mtok, 2Gtok (tokens) or 12steps"
        )
    kind, size = _UNITS[match[2]]
    amount = float(match[1]) * size
    if amount <= 0:
        raise UserError(f"--budget {word}: must be above 0, for instance 20m")
    if kind == "steps" and not amount.is_integer():
        raise UserError(f"--budget {word}: steps are whole; give {max(1, round(amount))}steps")
    return Budget(kind, amount)


def steps(budget: Budget, *, tokens_a_step: float, seconds_a_step: float | None) -> int:
    """How many steps a budget has room for; one of time needs the seconds that a step takes."""
    if budget.kind == "steps":
        return int(budget.amount)
    if budget.kind == "tokens":
        step_cost, cost = tokens_a_step, f"{tokens_a_step:,.0f} tokens"
    elif seconds_a_step is None:
        raise ValueError("a budget of time needs the seconds a step takes")
    else:
        step_cost, cost = seconds_a_step, f"{seconds_a_step:,.3g} seconds"
    # Slightly more, against rounding: 0.3 seconds have room for three steps of 0.1.
    count = int(budget.amount / step_cost * (1 + 1e-9))
    if count < 1:
        raise UserError(
            f"--budget: {budget.amount:,.6g} {budget.kind} are too few, since one step takes"
            f" {cost}; give more, set a smaller schedule.batch_size, or use --size tiny,"
            " mini or small, which have smaller batches"
        )
    return count
