"""The board of recorded encoders trained for minutes on one GPU, and where a run ranks.

`board.json` is made of results/board by tools/board.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from clozelab.nearest import counted

OURS = "swift"  # the recipe whose runs are told why they cannot be compared
MASKS, BLOCKS = "roberta", 4096  # with which the loss is measured
_SLACK = 1.02  # an entry may have taken this much longer than the run


class BoardEntry(NamedTuple):
    """A row of the board."""

    name: str
    date: str
    recipe: str
    gpu: str
    minutes: float  # of training, without compilation
    seeds: int
    text: str
    fingerprint: str  # of the corpus; empty: not recorded
    scores: Mapping[str, float]


@cache
def board() -> tuple[BoardEntry, ...]:
    """The entries at the release of this version."""
    text = (resources.files(__package__) / "board.json").read_text(encoding="utf-8")
    return tuple(BoardEntry(**entry) for entry in json.loads(text)["entries"])


def concerns(recipe: str, machine: Mapping[str, Any]) -> bool:
    """Whether a run may be compared with the board: a budget of time on one GPU."""
    texts = [[entry.fingerprint] for entry in board() if entry.fingerprint]
    timed = bool(machine.get("budget_seconds")) and bool(machine.get("gpu"))
    return timed and (recipe == OURS or machine.get("fingerprint") in texts)


def obstacle(
    machine: Mapping[str, Any], minutes: float, entries: Sequence[BoardEntry] | None = None
) -> str | None:
    """Why a run cannot be compared with any entry, in a sentence; None: it can."""
    entries = board() if entries is None else entries
    texts = machine.get("fingerprint", [])
    if machine.get("processes", 1) != 1:
        return "its entries are of one GPU"
    known = [entry for entry in entries if [entry.fingerprint] == texts]
    if not known:
        short = ", ".join(text[:12] for text in texts) or "unknown"
        return f"this is another text (fingerprint {short}) than any of its entries'"
    if not any("own" in entry.scores for entry in known):
        return "of its entries on this text none has a loss on the corpus's own held-out part"
    if not rivals(machine, minutes, entries):
        return f"none of its entries on this text took at most {minutes:.1f} minutes"
    return None


def rivals(
    machine: Mapping[str, Any], minutes: float, entries: Sequence[BoardEntry] | None = None
) -> list[BoardEntry]:
    """The entries on a run's text that took no longer, the lowest loss first."""
    entries = board() if entries is None else entries
    fair = [
        entry
        for entry in entries
        if [entry.fingerprint] == machine.get("fingerprint")
        and "own" in entry.scores
        and entry.minutes <= _SLACK * minutes
    ]
    return sorted(fair, key=lambda entry: entry.scores["own"])


def standing(loss: float, minutes: float, fair: Sequence[BoardEntry]) -> list[str]:
    """The lines of a table that ranks a run among entries."""
    place = 1 + sum(entry.scores["own"] <= loss for entry in fair)
    head = f"board: {loss:.3f} nats under {MASKS}'s masks after {minutes:.1f} minutes"
    rows = [
        f"  {entry.scores['own']:.3f}  {entry.minutes:4.1f} min  {entry.recipe}, {entry.date},"
        f" {entry.gpu}, {counted(entry.seeds, 'seed')}"
        for entry in fair
    ]
    rows.insert(place - 1, f"  {loss:.3f}  {minutes:4.1f} min  this run")
    return [f"{head}: place {place} of {len(rows)}, of those that took no longer", *rows]
