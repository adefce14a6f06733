"""The consistency of a study: variants, their teachers and recipes, claims and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clozelab.config.tables import plain
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.nearest import listed, remedy
from clozelab.studies.scores import MEASURE_KINDS, TUNINGS, check_score, named_task, unit

if TYPE_CHECKING:
    from clozelab.studies.spec import Claim, StudySpec, Variant


def check(study: StudySpec, place: str) -> None:
    """Refuse variants, claims and scores that do not fit together."""
    if len(study.variants) < 1:
        raise UserError(f"{place}: variants are missing; write each under [[variants]]")
    known = [one.name for one in study.variants]
    for name in known:
        if known.count(name) > 1:
            raise UserError(f"{place}: variant {name} is listed twice; give each its own name")
    scored = [named_task(task, place=place) for task in study.tasks]
    for task in scored:
        if scored.count(task) > 1:
            raise UserError(f"{place}: task {task} is listed twice; list it once")
    for word in (*study.finetune, *(word for one in study.variants for word in one.finetune)):
        _check_tuning(word, scored, place)
    for measure in study.measures:
        _check_measure(study, measure, scored, f"{place}: base.measures")
    for variant in study.variants:
        for score in variant.paper:
            check_score(score, study.tasks, place=f"{place}: variant {variant.name}: paper")
        _check_teacher(study, variant, place)
    for number, claim in enumerate(study.claims):
        _check_claim(study, claim, scored, f"{place}: claims.{number}")
    _check_recipes(study, place)


def _check_measure(study: StudySpec, measure: str, tasks: Sequence[str], place: str) -> None:
    kind, _, name = measure.partition(".")
    if kind not in MEASURE_KINDS:
        fix = remedy(kind, MEASURE_KINDS)
        raise UserError(f"{place}: {measure} is not a measure; write KIND.NAME, {fix}")
    check_score(measure, study.tasks, place=place)
    if kind == "under" and name not in (known := [one.name for one in study.variants]):
        raise UserError(f"{place}: {measure}: no variant is called that; {remedy(name, known)}")
    if kind in TUNINGS and (study.tunings < 2 or name.partition(".")[0] not in tasks):
        raise UserError(f"{place}: {measure}: needs its task in base.tasks, and base.tunings = 2")


def _check_tuning(word: str, tasks: Sequence[str], place: str) -> None:
    """Refuse TASK.KEY=VALUE with an unknown task; the word `task` itself is allowed."""
    task, dot, _ = word.partition("=")[0].partition(".")
    known = (*tasks, *(name for name in protocols.tasks() if name not in tasks))
    if dot and task not in (*known, "task"):
        raise UserError(f"{place}: fine-tuning {word}: {task} is not a task; {remedy(task, known)}")


def _check_teacher(study: StudySpec, variant: Variant, place: str) -> None:
    """Refuse an unknown teacher, and a variant that is its own teacher, also indirectly."""
    seen, teacher = [variant.name], variant.teacher
    while teacher is not None:
        if teacher in seen:
            raise UserError(f"{place}: variant {variant.name} is its own teacher; name another")
        others = [one.name for one in study.variants if one.name not in seen]
        if teacher not in others:
            fix = remedy(teacher, others)
            raise UserError(f"{place}: variant {variant.name}: teacher {teacher} is unknown; {fix}")
        seen.append(teacher)
        teacher = study.variant(teacher).teacher


def _check_claim(study: StudySpec, claim: Claim, tasks: Sequence[str], place: str) -> None:
    known = [one.name for one in study.variants]
    for side in (claim.better, claim.than):
        if side and side not in known:
            raise UserError(f"{place}: variant {side} is unknown; {remedy(side, known)}")
    if claim.better == claim.than:
        raise UserError(f"{place}: compares {claim.better} with itself; name two variants")
    if not claim.on:
        raise UserError(f"{place}: on is empty; name a score, as in sst2.accuracy")
    for score in claim.on:
        check_score(score, study.tasks, place=place)
        if score not in study.measures and score.partition(".")[0] not in tasks:
            able = (*study.measures, *(f"{task}.…" for task in tasks))
            raise UserError(
                f"{place}: {score} is not measured; add it to base.tasks or base.measures"
                + (f", or use {listed(able)}" if able else "")
            )
    amounts = (claim.margin, claim.delta, claim.level, claim.effect)
    if any(amounts) and len({unit(score) for score in claim.on}) > 1:
        raise UserError(
            f"{place}: a margin, a delta or an effect has one unit, but the measures of on"
            " have several; write a claim for each"
        )


def _check_recipes(study: StudySpec, place: str) -> None:
    """Resolve every variant's recipe, and refuse two that are the same experiment."""
    seen: dict[str, str] = {}
    for variant in study.variants:
        try:
            recipe = study.recipe_of(variant)
        except UserError as error:
            raise UserError(f"{place}: variant {variant.name}: {error}") from None
        taught = any(part.needs_teacher for part in recipe.objectives)
        if taught != (variant.teacher is not None):
            other = "leave teacher out, or use recipe distilbert or minilm"
            fix = "name its teacher" if taught else other
            what = "learns from a teacher" if taught else "has no objective that needs a teacher"
            raise UserError(f"{place}: variant {variant.name} {what}; {fix}")
        rest = replace(variant, name="x", says="", paper={}, set=(), recipe=None, teacher=None)
        same = repr((recipe.tables(), plain(rest), variant.teacher))
        if same in seen:
            raise UserError(
                f"{place}: variants {seen[same]} and {variant.name} are the same experiment;"
                " let them differ in set, recipe, share, finetune, protocol or data"
            )
        seen[same] = variant.name
