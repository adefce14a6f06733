"""Adapt: a pretrained model goes on with other text, by a recipe that is made for it.

The recipe is the model's own but for what the literature on continued pretraining changes: the
learning rate rises and falls once more (arXiv:2308.04014, 2403.08763), steps are small (arXiv:
2004.10964), as many tokens are masked as at the end of pretraining, at most 15 % (arXiv:2509.06888,
2605.12438), and some general text may be kept in (arXiv:2403.08763).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm, sqrt
from typing import Any

from clozelab.config.overrides import keys_set
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.models.history import corpora
from clozelab.models.load import load, pretrained
from clozelab.models.model import Model
from clozelab.objectives import CausalLm
from clozelab.objectives.objective import weight_at
from clozelab.pretraining.early_stopping import Adaptation
from clozelab.pretraining.fitting import changes as changes_of
from clozelab.pretraining.held_out import held_out
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.passes import PASSES
from clozelab.pretraining.source import BlockSource
from clozelab.pretraining.starting import continued
from clozelab.runs.diagnostics import followed_objective
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import exists, open_stores, weighted
from clozelab.text.store.mixture import shares
from clozelab.training.budget import Budget

# Ours, and not tuned: steps small enough that a little text has many, as large as BERT's at most.
REPLAY = 0.1  # of the tokens, where no share is given
_TOKENS = 131_072  # of a step at most: 256 blocks of 512
_STEPS = 100  # of a pass, where the text has as many steps of
_LEAST = 8  # blocks
_SAMPLE = 1024  # held-out blocks that are looked at for targets
_ANY = 1000  # steps, which a budget replaces
_WARMUP = 0.06  # of the steps (arXiv:2004.10964)
_MASK_RATE = 0.15  # at most


def adaptation(
    place: str,
    data: str,
    *,
    replay: str | None = None,
    general: str | None = None,
    detour: float = 0.0,
    patience: int = 3,
    changes: Sequence[str] = (),
    seed: int = 0,
    budget: str | None = None,
    request: dict[str, Any] | None = None,
) -> PretrainJob:
    """A run that adapts the model at a place to a text.

    Some `general` text is measured beside it; without, that which is replayed, or which the model
    was trained on, if that is known and still there. The first share of the steps may be a causal
    `detour` (arXiv:2605.12438). The `request` is recorded with it.
    """
    model = load(place)
    pretrained(model)  # refused, if it is fine-tuned
    if model.recipe.encoder.reads == "words":
        raise UserError(
            f"{place}: predicts whole words of its own corpus, and another text has others;"
            f" pretrain {model.recipe.name} on both"
        )
    stores = open_stores([data])
    corpus = stores[0][0]
    shared, replayed = _share(replay)
    own = _teacherless(model)
    recipe = adapted(own, blocks=_blocks(own, corpus), detour=detour).override(changes)
    places = [data] if replayed is None else _mixed(data, replayed, shared)
    job = continued(
        recipe,
        place,
        data=places,
        seed=seed,
        budget=budget,
        shaped=True,
        own=keys_set(changes, "encoder", recipe.encoder),
        loaded=model,
    )
    _check_text(job, corpus)
    known = _general(job, model, general or replayed)
    if job.budget is None:
        tokens = shares(stores)[0].tokens
        job = replace(job, budget=Budget("tokens", PASSES * tokens / (1 - shared)))
    recorded = {"changes": _changes(model.recipe, job.recipe), **(request or {})}
    return replace(job, adaptation=Adaptation(known, patience, recorded))


def adapted(own: Recipe, *, blocks: int, detour: float = 0.0) -> Recipe:
    """The recipe by which a model of a recipe goes on with a text of so many blocks."""
    if not 0 <= detour < 1:
        raise UserError(f"--detour {detour:g}: a share of the steps, from 0 to below 1")
    old = own.schedule
    length = own.blocks.length
    batch = max(1, min(_TOKENS // length, max(_LEAST, blocks // _STEPS)))
    batch = min(old.batch_size, batch)
    form: Any = own.blocks
    streams = "stream" in form.provides  # whose rows are the blocks of a step
    # Rows that belong together: of a stream one and its reverse, and groups that are contrasted.
    together = lcm(2 if streams and form.reverse else 1, *(p.in_batch or 1 for p in own.objectives))
    batch = max(together, batch - batch % together)
    # Adam's steps should shrink by the root of the batch; a larger one never makes them longer.
    smaller = sqrt(batch / old.batch_size)
    # As it was when pretraining ended: some courses have an end.
    causal = old.causal_share(old.total)
    schedule = replace(
        old,
        steps=_ANY,
        warmup=round(_WARMUP * _ANY),
        batch_size=batch,
        decay="linear",
        power=1.0,
        final=0.0,
        decay_share=1.0,
        phases=(),
        ramp=(),
        refits=None,
        causal=((causal, 1.0),) if causal else (),
    )
    objectives = [_settled(part) for part in own.objectives]
    if not (causal or own.encoder.causal):
        objectives = [part for part in objectives if part.language_model != "causal"]
    if detour:
        objectives = [part for part in objectives if part.language_model != "causal"]
        objectives.append(CausalLm(head="shared"))
        fall: dict[str, Any] = {"decay": "one_minus_sqrt", "decay_share": 1 - detour}
        schedule = replace(schedule, causal=((1.0, detour),), **fall)
    if streams:
        form = replace(form, rows=batch)
    try:
        return replace(
            own,
            blocks=form,
            masking=_masking(own.masking),
            objectives=tuple(objectives),
            optimiser=_slower(own.optimiser, smaller),
            schedule=schedule,
        )
    except UserError as error:
        if not detour:
            raise
        raise UserError(f"--detour: not for a model of {own.name}, since {error}") from None


def _changes(own: Recipe, recipe: Recipe) -> list[str]:
    """What is different, a line each; steps are the budget's, and the warm-up a share of them."""
    old, new = own.schedule, recipe.schedule
    alike = replace(new, steps=old.steps, warmup=old.warmup, refits=old.refits)
    lines = changes_of(own, replace(recipe, schedule=alike))
    before, after = (f"{each.warmup / each.steps:.0%}" for each in (old, new))
    if before != after:
        lines.append(f"schedule.warmup {before} → {after} of the steps")
    return lines


def _share(replay: str | None) -> tuple[float, str | None]:
    """The share of the tokens that are replayed, and of which corpus."""
    if replay is None:
        return 0.0, None
    place, share = weighted(replay)
    share = REPLAY if place == replay else share
    if not share < 1:
        raise UserError(f"--replay {replay}: a share of the tokens, below 1, as in {place}:0.1")
    return share, place


def _mixed(data: str, replayed: str, share: float) -> list[str]:
    """Both corpora with the weights by which the second has its share."""
    new, old = shares(open_stores([data, replayed]))
    # Six digits, as a run records them: one that resumes has the same.
    weight = share / (1 - share) * new.tokens / old.tokens
    return [data, f"{replayed}:{weight:.6g}"]


def _teacherless(model: Model) -> Recipe:
    """The model's recipe without what needs a teacher, whom it has outgrown."""
    parts = tuple(part for part in model.recipe.objectives if not part.needs_teacher)
    if not parts:
        raise UserError(
            f"{model.place}: was trained under a teacher alone, and has no loss of its own; adapt"
            " its teacher, and distil that"
        )
    return replace(model.recipe, objectives=parts)


def _blocks(recipe: Recipe, corpus: Corpus) -> int:
    tokens = int(corpus.manifest["splits"]["train"]["tokens"])
    return tokens // recipe.blocks.length


def _masking(masking: Any) -> Any:
    """The masks of the end of pretraining, of at most 15 % of the tokens."""
    if hasattr(masking, "stage"):
        masking = masking.stage(1.0)
    if "order_of_prediction" not in masking.provides and hasattr(masking, "mask_rate"):
        masking = replace(masking, mask_rate=min(masking.mask_rate, _MASK_RATE))
    return masking


def _slower(optimiser: Any, factor: float) -> Any:
    """The optimiser with its peak learning rates times a factor."""
    names = [name for name in ("learning_rate", "matrix_learning_rate") if hasattr(optimiser, name)]
    rates = {name: float(f"{getattr(optimiser, name) * factor:.3g}") for name in names}
    return replace(optimiser, **rates)


def _settled(part: Any) -> Any:
    """An objective with the weight that it had at the end of pretraining."""
    if not part.course:
        return part
    return replace(part, weight=weight_at(part.weight, part.course, 1.0), course=())


def _check_text(job: PretrainJob, corpus: Corpus) -> None:
    """Refuse a text with too little to train on, or nothing to tell the gain by."""
    blocks = job.recipe.blocks
    for some, _ in job.stores:
        BlockSource(job.recipe, some, blocks=blocks, split="train", seed=job.seed).plan(0)
    sample = held_out(job.recipe, corpus, length=blocks.length, count=_SAMPLE)
    if not isinstance(sample, str) and not sample.has_targets(followed_objective(job.recipe)):
        sample = f"{corpus.name}: no held-out loss, since nothing is hidden in its few blocks"
    if isinstance(sample, str):
        raise UserError(
            f"{sample}; adapt compares held-out text before and after: give more text, or build the"
            " corpus with a larger --held-out"
        )


def _general(job: PretrainJob, model: Model, place: str | None) -> Corpus | None:
    """The general text; one that nobody named is left out where it does not serve."""
    corpus, named = job.stores[0][0], place is not None
    if place is None:
        trained = [word.rpartition(":")[0] for word in corpora(model)]
        place = next((each for each in trained if exists(each)), None)
    if place is None:
        return None
    try:
        general = open_stores([corpus.place, place])[1][0]
        if general.manifest["fingerprint"] == corpus.manifest["fingerprint"]:
            raise UserError(f"{place}: is the text to adapt to; name another by --general")
        sample = held_out(job.recipe, general, length=job.recipe.blocks.length, count=1)
        if isinstance(sample, str):
            raise UserError(f"{sample}; name another by --general")
    except UserError:
        if named:
            raise
        return None
    return general
