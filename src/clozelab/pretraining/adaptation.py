"""Adapt: continue to pretrain a model on other text, by a recipe derived from its own.

The recipe is the model's own except where the literature on continued pretraining differs: the
learning rate rises and falls again (arXiv:2308.04014, 2403.08763), batches are small (arXiv:
2004.10964), the mask rate is that of the end of pretraining, at most 15 % (arXiv:2509.06888,
2605.12438), and some general text may be replayed (arXiv:2403.08763).
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

# Ours, and not tuned: small batches, so that a little text has many steps; at most BERT's size.
REPLAY = 0.1  # of the tokens, where no share is given
_MAX_TOKENS = 131_072  # of a step: 256 blocks of 512
_STEPS_A_PASS = 100  # over the text, if the batches then have at least
_MIN_BLOCKS = 8  # of a step
_SAMPLE = 1024  # held-out blocks that are checked for targets
_STEPS = 1000  # which a budget replaces
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
    """The job of a run that adapts the model at a place to the corpus `data`.

    `general` text is measured as well; by default the replayed text, or the text that the model
    was trained on, if that is known and still there. The first share of the steps may be a causal
    `detour` (arXiv:2605.12438). The `request` is recorded with the run.
    """
    model = load(place)
    pretrained(model)  # refused, if it is fine-tuned
    if model.recipe.encoder.reads == "words":
        raise UserError(
            f"{place}: predicts only the words of its own corpus; pretrain"
            f" {model.recipe.name} on both texts"
        )
    stores = open_stores([data])
    corpus = stores[0][0]
    shared, replayed = _replay_share(replay)
    own = _teacherless(model)
    recipe = adapted(own, blocks=_count_blocks(own, corpus), detour=detour).override(changes)
    _check_recipe(recipe, replayed)
    places = [data] if replayed is None else _mixed_places(data, replayed, shared)
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
    general_corpus = _general_corpus(job, model, general or replayed)
    if job.budget is None:
        tokens = shares(stores)[0].tokens
        job = replace(job, budget=Budget("tokens", PASSES * tokens / (1 - shared)))
    recorded = {"changes": _changes(model.recipe, job.recipe), **(request or {})}
    return replace(job, adaptation=Adaptation(general_corpus, patience, recorded))


def adapted(own: Recipe, *, blocks: int, detour: float = 0.0) -> Recipe:
    """The recipe that adapts a model of the recipe `own` to a text of `blocks` blocks."""
    if not 0 <= detour < 1:
        raise UserError(f"--detour {detour:g}: must be a share of the steps, from 0 to below 1")
    old = own.schedule
    length = own.blocks.length
    batch = max(1, min(_MAX_TOKENS // length, max(_MIN_BLOCKS, blocks // _STEPS_A_PASS)))
    batch = min(old.batch_size, batch)
    form: Any = own.blocks
    streams = "stream" in form.provides  # whose rows are the blocks of a step
    # Rows that stay together: in a stream one and its reverse, and groups that are contrasted.
    together = lcm(2 if streams and form.reverse else 1, *(p.in_batch or 1 for p in own.objectives))
    batch = max(together, batch - batch % together)
    # Adam's learning rate should fall with the square root of the batch size, and never rises.
    rate_factor = sqrt(batch / old.batch_size)
    # The share at the end of pretraining, since it may have changed on the way.
    causal = old.causal_share(old.total)
    schedule = replace(
        old,
        steps=_STEPS,
        warmup=round(_WARMUP * _STEPS),
        batch_size=batch,
        decay="linear",
        power=1.0,
        final=0.0,
        decay_share=1.0,
        phases=(),
        ramp=(),
        refits=None,
        causal=((causal, 1.0),) if causal else (),
        average=0.0,
    )
    objectives = [_with_final_weight(part) for part in own.objectives]
    if not (causal or own.encoder.causal):
        objectives = [part for part in objectives if part.language_model != "causal"]
    if detour:
        objectives = [part for part in objectives if part.language_model != "causal"]
        objectives.append(CausalLm(head="shared"))
        decay: dict[str, Any] = {"decay": "one_minus_sqrt", "decay_share": 1 - detour}
        schedule = replace(schedule, causal=((1.0, detour),), **decay)
    if streams:
        form = replace(form, rows=batch)
    try:
        return replace(
            own,
            blocks=form,
            masking=_final_masking(own.masking),
            objectives=tuple(objectives),
            optimiser=_with_rate_factor(own.optimiser, rate_factor),
            schedule=schedule,
        )
    except UserError as error:
        if not detour:
            raise
        raise UserError(f"--detour: does not work with {own.name}, because {error}") from None


def _check_recipe(recipe: Recipe, replayed: str | None) -> None:
    """Refuse what an adaptation cannot do."""
    if recipe.schedule.average:
        raise UserError(
            "schedule.average: does not work here, since an adaptation ends with the weights of"
            " its lowest held-out loss; leave it out"
        )
    if replayed is not None and "stream" in recipe.blocks.provides:
        raise UserError(
            f"--replay {replayed}: {recipe.name} reads one text in order; leave it out, or build"
            " one corpus from both texts"
        )


def _changes(own: Recipe, recipe: Recipe) -> list[str]:
    """The changed settings, a line each, without steps; the warm-up as a share of the steps."""
    old, new = own.schedule, recipe.schedule
    same_steps = replace(new, steps=old.steps, warmup=old.warmup, refits=old.refits)
    lines = changes_of(own, replace(recipe, schedule=same_steps))
    before, after = (f"{schedule.warmup / schedule.steps:.0%}" for schedule in (old, new))
    if before != after:
        lines.append(f"schedule.warmup {before} → {after} of the steps")
    return lines


def _replay_share(replay: str | None) -> tuple[float, str | None]:
    """The share of the tokens that are replayed, and the place of their corpus."""
    if replay is None:
        return 0.0, None
    place, share = weighted(replay, option="--replay", called="share")
    share = REPLAY if place == replay else share
    if not share < 1:
        raise UserError(
            f"--replay {replay}: must be a share of the tokens below 1, as in {place}:0.1"
        )
    return share, place


def _mixed_places(data: str, replayed: str, share: float) -> list[str]:
    """The places of both corpora, the second with the weight that gives it its share."""
    new, old = shares(open_stores([data, replayed]))
    # Six digits, as a run records them, so that a resumed run has the same weight.
    weight = share / (1 - share) * new.weight * new.tokens / old.tokens
    return [data, f"{replayed}:{weight:.6g}"]


def _teacherless(model: Model) -> Recipe:
    """The model's recipe without the objectives that need a teacher."""
    parts = tuple(part for part in model.recipe.objectives if not part.needs_teacher)
    if not parts:
        raise UserError(
            f"{model.place}: was trained only from a teacher and has no loss without it;"
            " adapt the teacher, and distil that"
        )
    return replace(model.recipe, objectives=parts)


def _count_blocks(recipe: Recipe, corpus: Corpus) -> int:
    tokens = int(corpus.manifest["splits"]["train"]["tokens"])
    return tokens // recipe.blocks.length


def _final_masking(masking: Any) -> Any:
    """The masking of the end of pretraining, of at most 15 % of the tokens."""
    if hasattr(masking, "stage"):
        masking = masking.stage(1.0)
    if "order_of_prediction" not in masking.provides and hasattr(masking, "mask_rate"):
        masking = replace(masking, mask_rate=min(masking.mask_rate, _MASK_RATE))
    return masking


def _with_rate_factor(optimiser: Any, factor: float) -> Any:
    """The optimiser with its peak learning rates multiplied by a factor."""
    names = [name for name in ("learning_rate", "matrix_learning_rate") if hasattr(optimiser, name)]
    rates = {name: float(f"{getattr(optimiser, name) * factor:.3g}") for name in names}
    return replace(optimiser, **rates)


def _with_final_weight(part: Any) -> Any:
    """The objective with the weight that it had at the end of pretraining."""
    if not part.course:
        return part
    return replace(part, weight=weight_at(part.weight, part.course, 1.0), course=())


def _check_text(job: PretrainJob, corpus: Corpus) -> None:
    """Refuse a corpus with too little text to train on, or no held-out text to measure."""
    blocks = job.recipe.blocks
    for store, _ in job.stores:
        BlockSource(job.recipe, store, blocks=blocks, split="train", seed=job.seed).plan(0)
    sample = held_out(job.recipe, corpus, length=blocks.length, count=_SAMPLE)
    if not isinstance(sample, str) and not sample.has_targets(followed_objective(job.recipe)):
        sample = f"{corpus.name}: no held-out loss, since nothing is hidden in its few blocks"
    if isinstance(sample, str):
        raise UserError(
            f"{sample}; adapt compares held-out text before and after: give more text, or build the"
            " corpus with a larger --held-out"
        )


def _general_corpus(job: PretrainJob, model: Model, place: str | None) -> Corpus | None:
    """The corpus of general text; one that was not asked for is left out if it is unusable."""
    corpus, named = job.stores[0][0], place is not None
    if place is None:
        trained = [word.rpartition(":")[0] for word in corpora(model)]
        place = next((known for known in trained if exists(known)), None)
    if place is None:
        return None
    try:
        general = open_stores([corpus.place, place])[1][0]
        if general.manifest["fingerprint"] == corpus.manifest["fingerprint"]:
            raise UserError(f"{place}: is the text to adapt to; name another with --general")
        sample = held_out(job.recipe, general, length=job.recipe.blocks.length, count=1)
        if isinstance(sample, str):
            raise UserError(f"{sample}; name another with --general")
    except UserError:
        if named:
            raise
        return None
    return general
