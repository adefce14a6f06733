"""The events that a run yields while it trains."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from clozelab.config.recipe import Recipe
from clozelab.training.loop import Measured, Step


@dataclass(frozen=True)
class Began:
    """The run is set up; this describes it."""

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
    """A note for the user."""

    text: str


@dataclass(frozen=True)
class Refitted:
    """The rest of the schedule was refitted: the run now has another number of steps."""

    step: int
    steps: int  # of the whole run


@dataclass(frozen=True)
class Evaluated:
    """The sums on a held-out text, with the same masks every time."""

    step: int
    sums: Measured
    of: str = "held_out"  # the text of the run; "general": what an adapted model learned from
    best_step: int | None = None  # the step whose weights an adaptation would end with


@dataclass(frozen=True)
class Scored:
    """The metrics of a task on its dev set."""

    step: int
    scores: Mapping[str, float]
    best: int  # the step after which they were best so far
    at_best: Mapping[str, float]
    selected: float  # the number by which the best is chosen, at its best
    constant: Mapping[str, float] = field(default_factory=dict)  # the scores of a constant answer


@dataclass(frozen=True)
class Probed:
    """The scores of probes by task and metric, and the layer that they are of."""

    step: int
    scores: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    step: int
    path: Path


@dataclass(frozen=True)
class Ended:
    """The last event: the run took all its steps, or was stopped."""

    step: int
    whole: bool
    result: Mapping[str, Any]
    signal: int = 0  # that stopped it, perhaps after its last step; 0 is none


T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

Event = Began | Said | Step | Refitted | Evaluated | Scored | Probed | Saved | Ended


def drained(following: Generator[Any, None, T]) -> T:
    """Exhaust a generator and return its return value."""
    while True:
        try:
            next(following)
        except StopIteration as done:
            result: T = done.value
            return result


def mapped(following: Generator[A, None, T], change: Callable[[A], B]) -> Generator[B, None, T]:
    """The same generator with its events changed."""
    while True:
        try:
            event = next(following)
        except StopIteration as done:
            result: T = done.value
            return result
        yield change(event)


def means(sums: Measured) -> dict[str, dict[str, float]]:
    """Each objective's means over its targets: loss, accuracy, and accuracies by decision.

    An objective without targets has no mean, and a decision that never occurred no accuracy.
    """
    all_means: dict[str, dict[str, float]] = {}
    for name, values in sums.items():
        if not values["count"]:
            continue
        mean = {"loss": values["loss"] / values["count"]}
        for suffix in ("", "_mask", "_random", "_same", "_replaced"):
            if values.get(f"count{suffix}") and f"correct{suffix}" in values:
                mean[f"accuracy{suffix}"] = values[f"correct{suffix}"] / values[f"count{suffix}"]
        for suffix in ("soft", "cosine"):
            if suffix in values:
                mean[suffix] = values[suffix] / values["count"]
        all_means[name] = mean
    return all_means
