"""What a cell is compared by, beside its scores on tasks: losses and pairs on held-out text.

Masked tokens are harder to guess under some masks than under others: where the variants of a study
hide differently, the loss of all is measured under the masks of the base, so that it is of the same
question. Other losses are each recipe's own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clozelab.config.recipe import Recipe, read
from clozelab.errors import UserError
from clozelab.models.load import load, pretrained
from clozelab.objectives import PAIRS
from clozelab.pretraining.evaluate import evaluate
from clozelab.runs.directory import Run
from clozelab.runs.events import means
from clozelab.studies.request import Cell, Request
from clozelab.text.store.mixture import open_stores

_ASKED = {"next_sentence": "next", "sentence_order": "order"}


def measured(
    request: Request,
    cell: Cell,
    model: Path,
    *,
    place: Path,
    blocks: int,
    device: str | None,
) -> dict[str, Any]:
    """The study's measures of a cell, and which of them are under the base's masks."""
    scores: dict[str, float] = {}
    held = (Run(place).result() or {}).get("held_out", {})
    common = False
    for measure in request.study.measures:
        kind, _, objective = measure.partition(".")
        if kind == "pair":
            found = _pairs(request, cell, model, objective, blocks=blocks, device=device)
        elif objective == "masked_lm" and objective in held and _masks_differ(request):
            # A loss under other masks is no number to stand beside these: better none.
            found = _under_base(request, cell, model, blocks=blocks, device=device)
            common = found is not None
        else:
            found = held[objective]["loss"] if objective in held else None
        if found is not None:
            scores[measure] = found
    return {"scores": scores, "base_masks": common, "measures": list(request.study.measures)}


def _base(request: Request) -> Recipe:
    study = request.study
    return read(study.recipe, size=request.size, overrides=study.set)


def _masks_differ(request: Request) -> bool:
    """Whether the base hides tokens, and any variant's held-out masks are others."""
    base, recipes = _base(request), [request.recipe(one.name) for one in request.study.variants]
    if not any(part.language_model == "masked" for part in base.objectives):
        return False
    # Copies, and pairs drawn again, are for epochs, of which held-out text has one.
    told = [
        (one.masking, replace(one.corruption, copies=0, redraw="masks"))
        for one in (base, *recipes)
        if any(part.language_model == "masked" for part in one.objectives)
    ]
    return any(one != told[0] for one in told)


def _under_base(
    request: Request, cell: Cell, model: Path, *, blocks: int, device: str | None
) -> float | None:
    """The loss on masked tokens under the base's masks; None where they are no masks for it."""
    load(str(model))  # what is wrong with the model itself is to be told
    data, base = _corpus(request, cell), _base(request)
    try:
        sums = evaluate(str(model), data, masks=base, blocks=blocks, device=device)
    except UserError:
        return None
    return means(sums)["masked_lm"]["loss"]


def _pairs(
    request: Request, cell: Cell, model: Path, objective: str, *, blocks: int, device: str | None
) -> float | None:
    """How often a model's pair head, whichever it has, is right on the pairs of an objective."""
    if not {*PAIRS} & {*pretrained(load(str(model))).heads}:
        return None
    data = _corpus(request, cell)
    sums = evaluate(str(model), data, pairs=_ASKED[objective], blocks=blocks, device=device)
    (head,) = {*PAIRS} & {*sums}
    return 100 * means(sums)[head]["accuracy"]


def _corpus(request: Request, cell: Cell) -> str:
    """Whose held-out text it is: the first of those that a cell reads."""
    return str(open_stores(request.stores(cell.variant))[0][0].path)
