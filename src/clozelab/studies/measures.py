"""What a cell is compared by beside its task scores: losses and pair accuracies on held-out text.

Masked tokens are harder to predict under some masks than under others. Where the variants of a
study mask differently, the masked-LM loss of all is measured under the masks of the base, so that
they can be compared. Other losses are measured as each recipe defines them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from clozelab import registry
from clozelab.config.recipe import Recipe, read
from clozelab.errors import UserError
from clozelab.models.load import load, pretrained
from clozelab.objectives import PAIRS
from clozelab.pretraining.evaluate import evaluate
from clozelab.runs.directory import Run
from clozelab.runs.events import means
from clozelab.studies.request import Cell, StudyRequest
from clozelab.text.store.corpus import open_stores

_ASKED = {"next_sentence": "next", "sentence_order": "order"}


def measured(
    request: StudyRequest,
    cell: Cell,
    model: Path,
    *,
    folder: Path,
    blocks: int,
    device: str | None,
) -> dict[str, Any]:
    """The measures of a cell, and whether its masked-LM loss is under the masks of the base."""
    scores: dict[str, float] = {}
    held_out = (Run(folder).result() or {}).get("held_out", {})
    base_masks = False
    for measure in request.study.measures:
        value: float | None
        kind, _, objective = measure.partition(".")
        if kind == "own":
            measure_of = registry.find("measure", objective)
            value = measure_of and float(measure_of(load(str(model)), _corpus(request, cell)))
        elif kind == "pair":
            value = _pairs(request, cell, model, objective, blocks=blocks, device=device)
        elif objective == "masked_lm" and objective in held_out and _masks_differ(request):
            # A loss under other masks could not be compared; it is better to have none.
            value = _under_base(request, cell, model, blocks=blocks, device=device)
            base_masks = value is not None
        else:
            value = held_out[objective]["loss"] if objective in held_out else None
        if value is not None:
            scores[measure] = value
    return {"scores": scores, "base_masks": base_masks, "measures": list(request.study.measures)}


def _base(request: StudyRequest) -> Recipe:
    study = request.study
    return read(study.recipe, size=request.size, overrides=study.set)


def _masks_differ(request: StudyRequest) -> bool:
    """Whether the base masks tokens, and any variant's held-out masks differ from its."""
    base, recipes = _base(request), [request.recipe(one.name) for one in request.study.variants]
    if not any(part.language_model == "masked" for part in base.objectives):
        return False
    # Copies and redrawn pairs differ by epoch, and held-out text has only one.
    masks = [
        (one.masking, replace(one.corruption, copies=0, redraw="masks"))
        for one in (base, *recipes)
        if any(part.language_model == "masked" for part in one.objectives)
    ]
    return any(other != masks[0] for other in masks)


def _under_base(
    request: StudyRequest, cell: Cell, model: Path, *, blocks: int, device: str | None
) -> float | None:
    """The masked-LM loss under the masks of the base; None where they do not fit the model."""
    load(str(model))  # an error of the model itself must be reported
    data, base = _corpus(request, cell), _base(request)
    try:
        sums = evaluate(str(model), data, masks=base, blocks=blocks, device=device)
    except UserError:
        return None
    return means(sums)["masked_lm"]["loss"]


def _pairs(
    request: StudyRequest,
    cell: Cell,
    model: Path,
    objective: str,
    *,
    blocks: int,
    device: str | None,
) -> float | None:
    """The accuracy of the model's pair head, whichever it has, on the pairs of an objective."""
    if not {*PAIRS} & {*pretrained(load(str(model))).heads}:
        return None
    data = _corpus(request, cell)
    sums = evaluate(str(model), data, pairs=_ASKED[objective], blocks=blocks, device=device)
    (head,) = {*PAIRS} & {*sums}
    return 100 * means(sums)[head]["accuracy"]


def _corpus(request: StudyRequest, cell: Cell) -> str:
    """The corpus with the held-out text: the first that a cell reads."""
    return str(open_stores(request.stores(cell.variant))[0][0].path)
