"""What a cell is compared by, beside its scores on tasks: losses and pairs on held-out text.

Masked tokens are harder to guess under some masks than under others: where the variants of a study
hide differently, the loss of all is measured under the masks of the base, so that it is of the same
question. Other losses are each recipe's own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clozelab.contracts import UserError
from clozelab.objectives import MaskedLm
from clozelab.recipe import Recipe, read
from clozelab.recipe.scores import PAIRS
from clozelab.records import Run
from clozelab.runs.evaluate import evaluate
from clozelab.runs.events import means
from clozelab.runs.fitting import fitted, open_stores
from clozelab.runs.heldout import HeldOut
from clozelab.runs.load import load, pretrained
from clozelab.runs.model import Model
from clozelab.runs.study.request import Cell, Request
from clozelab.training.world import join

MEASURED = "measured.json"
_TOKENS = 16_384
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
            found = _under_base(request, cell, model, blocks=blocks, device=device)
            common = found is not None
            found = held[objective]["loss"] if found is None else found
        else:
            found = held[objective]["loss"] if objective in held else None
        if found is not None:
            scores[measure] = found
    return {"scores": scores, "base_masks": common}


def _base(request: Request) -> Recipe:
    study = request.study
    return read(study.recipe, size=request.size, overrides=study.set)


def _masks_differ(request: Request) -> bool:
    """Whether any variant's held-out masks are others than the base's."""
    recipes = [request.recipe(one.name) for one in request.study.variants]
    # Copies, and pairs drawn again, are for epochs, of which held-out text has one.
    told = [
        (one.masking, replace(one.corruption, copies=0, redraw="masks"))
        for one in (_base(request), *recipes)
        if any(isinstance(part, MaskedLm) for part in one.objectives)
    ]
    return any(one != told[0] for one in told)


def _under_base(
    request: Request, cell: Cell, model: Path, *, blocks: int, device: str | None
) -> float | None:
    """The loss on masked tokens under the base's masks; None where they are no masks for it."""
    given = load(str(model))
    corpus = open_stores(request.stores(cell.variant))[0][0]
    base, whole = _base(request), pretrained(given)
    parts = tuple(part for part in given.recipe.objectives if isinstance(part, MaskedLm))
    if not any(isinstance(part, MaskedLm) for part in base.objectives):
        return None
    try:
        recipe = replace(
            given.recipe, masking=base.masking, corruption=base.corruption, objectives=parts
        )
        judge = HeldOut(fitted(recipe, corpus), corpus, blocks=recipe.blocks, many=blocks)
    except UserError:
        return None
    with join(device) as world:
        alone = Model(whole.encoder, {"masked_lm": whole.heads["masked_lm"]}).to(world.device)
        sums = judge.measure(alone.eval(), world, tokens=_TOKENS)
    return means(sums)["masked_lm"]["loss"]


def _pairs(
    request: Request, cell: Cell, model: Path, objective: str, *, blocks: int, device: str | None
) -> float | None:
    """How often a model's pair head, whichever it has, is right on the pairs of an objective."""
    if not {*PAIRS} & {*pretrained(load(str(model))).heads}:
        return None
    data = str(open_stores(request.stores(cell.variant))[0][0].path)
    sums = evaluate(str(model), data, pairs=_ASKED[objective], blocks=blocks, device=device)
    (head,) = {*PAIRS} & {*sums}
    return 100 * means(sums)[head]["accuracy"]
