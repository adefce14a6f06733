"""How many passes a run makes over its text, and how many are enough."""

from __future__ import annotations

from collections.abc import Sequence

from clozelab.text.store.corpus import Store
from clozelab.text.store.mixture import shares
from clozelab.training.budget import Budget

PASSES = 4  # over a text, beyond which one more teaches little (arXiv:2305.16264)


def passes_note(stores: Sequence[Store], tokens: float, *, budget: Budget | None) -> str:
    """A note on the passes of a run over its first text, and the budget that would be enough."""
    text = shares(stores)[0]
    passes = text.epochs(tokens)
    said = f"passes over {text.path}: {two_digits(passes)}"
    if passes <= 1.05 * PASSES:
        return said
    seconds = budget.amount if budget and budget.kind == "seconds" else None
    enough = (tokens if seconds is None else seconds) * PASSES / passes
    return (
        f"{said}; beyond {PASSES} of them one more teaches little (arXiv:2305.16264), and a model"
        f" learns a text by heart: --budget {_budget(enough, seconds is not None)} would do"
    )


def _budget(amount: float, is_time: bool) -> str:
    """An amount in the notation of --budget."""
    units = ((60, "m"), (1, "s")) if is_time else ((1e6, "Mtok"), (1e3, "ktok"))
    size, unit = next((unit_size for unit_size in units if amount >= unit_size[0]), units[-1])
    return f"{two_digits(max(1.0, amount / size)).replace(',', '')}{unit}"


def two_digits(number: float) -> str:
    """A number in two digits, from 100 on as a whole number, and never with an exponent."""
    return f"{number:.2g}" if number < 99.5 else f"{number:,.0f}"
