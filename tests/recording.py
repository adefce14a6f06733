"""The numbers that no change of the code's shape may change: `tests/golden/golden.json`.

Losses are those of shrunk recipes in double precision. Digests are of values alone, whatever their
fields are called and however wide their integers are: names and types may change.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learning import RECIPES, doubled, steps_of, task
from torch import Tensor

from clozelab.runs.events import means
from clozelab.runs.setup import Setup

FILE = Path(__file__).resolve().parent / "golden" / "golden.json"
PREPARED = 3  # steps whose batches are digested
EPOCHS = (0, 1, 10)  # the first two, and the one that takes up the first of BERT's ten copies again
BLOCKS = 8  # of each epoch

# The recipe, its overrides and its steps: every recipe, and what none of them has.
_WARM = "schedule.warmup=5"
CASES: dict[str, tuple[str, tuple[str, ...], int]] = {
    **{name: (name, (_WARM,), 20) for name in RECIPES},
    "bert, two lengths": ("bert", (_WARM, "schedule.phases=[[16, 0.6], [32, 0.4]]"), 20),
    "roberta, Muon": ("roberta", (_WARM, "optimiser.use=muon"), 20),
    "roberta, untied": ("roberta", (_WARM, "objectives.0.tied=false"), 20),
}
# A generator of random bits is not the same on every processor, so these are apart.
DROPPING: dict[str, tuple[str, tuple[str, ...], int]] = {
    f"{name}, dropout": (name, ("encoder.dropout=0.1",), 3) for name in ("bert", "xlnet", "elmo")
}


def measured(name: str) -> dict[str, Any]:
    """All that is recorded of a case."""
    if name in DROPPING:
        return losses(_setup(*DROPPING[name]))
    setup = _setup(*CASES[name])
    return {**losses(setup), "digests": batches(setup)}


def losses(setup: Setup) -> dict[str, Any]:
    """Every objective's loss at every step, and norms on the way and at the end."""
    steps = steps_of(setup)
    objectives = [means(step.sums) for step in steps]
    squares = [parameter.detach().square().sum() for parameter in setup.model.parameters()]
    return {
        "losses": {name: [step[name]["loss"] for step in objectives] for name in objectives[0]},
        "gradient_norms": [step.norm for step in steps],
        "learning_rates": [step.rate for step in steps],
        "parameter_norm": float(torch.stack(squares).sum().sqrt()),
    }


def batches(setup: Setup) -> dict[str, dict[str, str]]:
    """Digests of what the data path makes: the first steps, blocks of some epochs, the text."""
    steps = setup.steps
    made: dict[str, Any] = {}
    for number, job in enumerate(islice(steps.jobs(0, steps.start()), PREPARED)):
        made[f"step {number}"] = job().batches
    (source,) = steps.sources(0, steps.recipe.blocks.length)
    for epoch in EPOCHS:
        order = source.order(epoch)
        made[f"epoch {epoch}"] = {
            "order": order,
            "blocks": source.plan(epoch).blocks(order[:BLOCKS]),
            "hidden": source.share(epoch, order[:BLOCKS], progress=0.5),
        }
    made["corpus"] = source.documents
    return {name: digests(value) for name, value in made.items()}


def digests(value: Any) -> dict[str, str]:
    """The digest of every array in a value, by its place there."""
    return {place: _digest(array) for place, array in _arrays(value, "")}


def recorded() -> dict[str, Any]:
    """What the file says."""
    numbers: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return numbers


def _setup(recipe: str, overrides: tuple[str, ...], steps: int) -> Setup:
    return doubled(task(recipe, *overrides, steps=steps))


def _arrays(value: Any, place: str) -> Iterator[tuple[str, np.ndarray]]:
    """Every array under a value: of fields, of entries, of items."""
    if isinstance(value, Tensor):
        yield place, value.detach().numpy()
    elif isinstance(value, np.ndarray):
        yield place, value
    else:
        for name, inner in _inside(value):
            yield from _arrays(inner, f"{place}.{name}" if place else name)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, Mapping):
        yield from ((str(name), inner) for name, inner in value.items())
    elif hasattr(value, "_asdict"):
        yield from value._asdict().items()
    elif isinstance(value, (list, tuple)):
        yield from ((str(number), inner) for number, inner in enumerate(value))


def _digest(array: np.ndarray) -> str:
    """Of the shape and the values, integers of any width alike."""
    kind = "<f8" if np.issubdtype(array.dtype, np.floating) else "<i8"
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    return sha256(shape + array.astype(kind).tobytes()).hexdigest()[:16]
