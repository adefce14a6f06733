"""What kinds of tasks refuse: settings that mean nothing, examples that cannot be scored."""

from __future__ import annotations

from collections.abc import Sequence

from clozelab.errors import UserError


def check_dropout(rate: float) -> None:
    """Refuse a rate that is none."""
    if not 0 <= rate < 1:
        raise UserError(f"dropout = {rate}: must be at least 0 and below 1")


def check_metrics(metrics: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse metrics that say nothing of such a task."""
    if not metrics or not set(metrics) <= set(known):
        raise UserError(f"metrics = {list(metrics)}: give some of {', '.join(known)}")


def check_names(names: tuple[str, ...], what: str) -> None:
    """Refuse labels that do not tell classes apart."""
    if len(set(names)) != len(names) or len(names) < 2:
        raise UserError(f"{what} = {list(names)}: give at least two, each once")


def check_known(known: Sequence[object]) -> None:
    """Refuse to score where no label is known."""
    if not known:
        raise UserError("no example has a label, so there is nothing to score: give labelled ones")
