"""What a run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from clozelab.config.recipe import Recipe
from clozelab.training.loop import Measured, Step


@dataclass(frozen=True)
class Began:
    """The run is set up; this is what it will do."""

    name: str
    recipe: Recipe
    first: int  # steps done before
    steps: int  # of the whole run
    parameters: int
    device: str
    precision: str
    micro_tokens: int
    flops_a_token: float
    peak: float | None  # operations a second of the device, where known


@dataclass(frozen=True)
class Said:
    """Something the user should know."""

    text: str


@dataclass(frozen=True)
class Refitted:
    """What is left of the schedule was fitted to the pace: the run has so many steps by now."""

    step: int
    steps: int  # of the whole run


@dataclass(frozen=True)
class Evaluated:
    """A held-out text, with the same masks every time."""

    step: int
    sums: Measured
    of: str = "held_out"  # the text of the run; "general": what an adapted model learned from
    best_step: int | None = None  # the step whose weights an adaptation would end with


@dataclass(frozen=True)
class Scored:
    """A task's dev set, by its metrics."""

    step: int
    scores: Mapping[str, float]
    best: int  # the step after which they were best so far
    at_best: Mapping[str, float]
    selected: float  # the number by which the best is chosen, at its best
    constant: Mapping[str, float] = field(default_factory=dict)  # what one answer for all scores


@dataclass(frozen=True)
class Probed:
    """What the layers hold of some tasks: scores by task and metric, and the layer they are of."""

    step: int
    scores: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    step: int
    path: Path


@dataclass(frozen=True)
class Ended:
    """The last event: every step was taken, or the run was told to stop."""

    step: int
    whole: bool
    result: Mapping[str, Any]
    signal: int = 0  # that told it to stop, perhaps behind its last step; 0 is none


T = TypeVar("T")

Event = Began | Said | Step | Refitted | Evaluated | Scored | Probed | Saved | Ended


def drained(following: Generator[Any, None, T]) -> T:
    """What a generator returns in the end, whatever it tells on its way."""
    while True:
        try:
            next(following)
        except StopIteration as done:
            result: T = done.value
            return result


def means(sums: Measured) -> dict[str, dict[str, float]]:
    """An objective's sums over its targets: loss, accuracy, and accuracies by what was read.

    One without a target has no mean, and what was never read has no accuracy.
    """
    all_means: dict[str, dict[str, float]] = {}
    for name, values in sums.items():
        if not values["count"]:
            continue
        mean = {"loss": values["loss"] / values["count"]}
        for what in ("", "_mask", "_random", "_same", "_replaced"):
            if values.get(f"count{what}") and f"correct{what}" in values:
                mean[f"accuracy{what}"] = values[f"correct{what}"] / values[f"count{what}"]
        for what in ("soft", "cosine"):
            if what in values:
                mean[what] = values[what] / values["count"]
        all_means[name] = mean
    return all_means
