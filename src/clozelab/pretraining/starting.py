"""The jobs of runs that start afresh, from another model's weights, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from clozelab.config import recipe as recipes
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.models.build import build, weights_of
from clozelab.models.history import fingerprints
from clozelab.models.load import load, pretrained, within
from clozelab.models.model import Model
from clozelab.models.tables import RowSource, sources, with_rows
from clozelab.nearest import listed
from clozelab.objectives import PAIRS
from clozelab.objectives.heads.teacher import start_from
from clozelab.pretraining.early_stopping import Adaptation
from clozelab.pretraining.fitting import changes, fitted, notes
from clozelab.pretraining.job import PretrainJob
from clozelab.runs.directory import TASK, Run
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import as_it_was, exists, open_stores
from clozelab.training import budget as budgets
from clozelab.training.budget import Budget
from clozelab.training.checkpoint import newest


def fresh(
    recipe: Recipe, *, data: Sequence[str], seed: int, budget: str | None = None
) -> PretrainJob:
    """The job of a run of a recipe with fresh weights."""
    stores = open_stores(data, ahead=True)
    for part in recipe.objectives:
        if part.needs_teacher:
            raise UserError(
                f"{recipe.name}: needs a teacher; use clozelab distil TEACHER"
                f" --recipe {recipe.name}"
            )
    amount, corpus = budgets.parse(budget) if budget else None, stores[0][0]
    lines = notes(recipe, corpus)
    return PretrainJob(fitted(recipe, corpus), stores, seed=seed, budget=amount, notes=lines)


def continued(
    recipe: Recipe,
    place: str,
    *,
    data: Sequence[str],
    seed: int,
    budget: str | None = None,
    shaped: bool = False,
    own: Collection[str] = (),
    loaded: Model | None = None,
) -> PretrainJob:
    """The job of a run that starts from another model's weights, with its size and tokenizer.

    Unless the recipe's blocks and steps were set by the user (`shaped`), they are no larger than
    the model's. `own` are the settings of the encoder that the recipe keeps, which must not change
    its weights. A model that is already open is given as `loaded`.
    """
    job = fresh(recipe, data=data, seed=seed, budget=budget)
    loaded = loaded or load(place)
    encoder: Any = loaded.recipe.encoder
    if not {*own} <= encoder.free_settings:
        free = [f"encoder.{name}" for name in sorted(encoder.free_settings)]
        but = f", but for {listed(free)}" if free else ""
        raise UserError(f"the encoder is that of the model; leave --set encoder.… out{but}")
    encoder = replace(encoder, **{name: getattr(recipe.encoder, name) for name in own})
    objectives = _built_alike(job.recipe, loaded.recipe, loaded.module.heads)
    recipe = within(job.recipe, encoder, objectives=objectives)
    if not shaped:
        recipe = _as_short_as(recipe, loaded.recipe)
    corpus = job.stores[0][0]
    weights = _start_weights(recipe, loaded, corpus)
    by_words = [part for part in recipe.objectives if "words" in part.needs]
    words = tuple(f"heads.{slots.use('objectives', part)}." for part in by_words)
    said: tuple[str, ...] = ()
    if words and fingerprints(loaded)[:1] != [corpus.manifest["fingerprint"]]:
        weights = {n: value for n, value in weights.items() if not n.startswith(words)}
        said = (f"the softmax over words begins anew: it has those of {corpus.name}",)
    size = max(loaded.recipe.tokenizer.vocabulary, corpus.vocabulary.size)
    # Warnings that are due to this encoder.
    warnings = tuple(line for line in recipe.warnings() if line not in job.recipe.warnings())
    warnings += tuple(_untrained_cls(recipe, loaded))
    return replace(
        job,
        recipe=recipe.reading(corpus.tokenizer, vocabulary=size),
        start=weights,
        origin=place,
        notes=job.notes + loaded.notes + warnings + said,
    )


def _start_weights(recipe: Recipe, loaded: Model, corpus: Corpus) -> dict[str, Tensor]:
    """The weights of another model by their names in a model of the recipe."""
    if any(part.generates_input for part in recipe.objectives):
        weights = {name: value.detach() for name, value in loaded.module.named_parameters()}
    else:
        weights = weights_of(loaded.module)
    for owner in PAIRS:  # an imported pooler without a head becomes that of a pair objective
        for name in ("weight", "bias"):
            if f"pooler.{name}" in weights:
                weights[f"heads.{owner}.pooler.{name}"] = weights[f"pooler.{name}"]
    for part in recipe.objectives:  # a head that is now untied starts from the tied table
        if not getattr(part, "tied", True):
            table = f"heads.{slots.use('objectives', part)}.table"
            weights.setdefault(table, weights["encoder.embeddings.words.weight"])
    if loaded.tokenizer.get_vocab() != corpus.tokenizer.get_vocab():
        weights = _extend_vocabulary(weights, loaded, corpus.tokenizer, corpus.name)
    return weights


def _untrained_cls(recipe: Recipe, model: Model) -> Iterator[str]:
    """A note on contrasting vectors of [CLS] that no objective of the model has trained."""
    kinds = [slots.use("objectives", part) for part in model.recipe.objectives]
    trained = any(part.pooling == "cls" for part in model.recipe.objectives)
    if trained or not {*PAIRS}.isdisjoint(kinds):
        return
    for number, part in enumerate(recipe.objectives):
        if part.contrasts and part.pooling == "cls":
            yield (
                "no objective has trained the model's vector of [CLS]; after a short pretraining"
                f" the mean of the tokens is better: --set objectives.{number}.pooling=mean_all"
            )


def taught(
    recipe: Recipe,
    place: str,
    *,
    data: Sequence[str],
    seed: int,
    budget: str | None = None,
    sized: bool = False,
    own: Collection[str] = (),
) -> PretrainJob:
    """The job of a student under a teacher; unless `sized`, it is as wide as the teacher.

    `own` are the settings of the encoder that the student's recipe keeps. Where the objectives
    allow another size, that is the recipe's and the rest the teacher's, whether `sized` or not.
    """
    teacher = load(place)
    stores = open_stores(data, ahead=True)
    corpus = stores[0][0]
    objectives: list[Any] = [part for part in recipe.objectives if part.needs_teacher]
    if not objectives:
        raise UserError(
            f"{recipe.name}: has no objective that needs a teacher; use --recipe distilbert or"
            " minilm"
        )
    if teacher.tokenizer.get_vocab() != corpus.tokenizer.get_vocab():
        raise UserError(
            f"{place}: the teacher's vocabulary is not that of {corpus.name}; build the corpus"
            f" with --tokenizer-from {place}"
        )
    for part in objectives:
        if part.compares and "masked_lm" not in teacher.module.heads:
            raise UserError(
                f"{place}: has no masked_lm head, as a teacher must; name another teacher"
            )
        if part.compares and teacher.shift:
            raise UserError(
                f"{place}: predicts masked tokens from the previous position, which a"
                " student does not; use --recipe minilm, or another teacher"
            )
        try:
            part.check_teacher(teacher.recipe.encoder)
        except UserError as error:
            name = slots.use("objectives", part)
            raise UserError(f"{place}: objective {name}: {error}") from None
    if all(part.own_size for part in objectives):
        size = ("layers", "hidden_size", "heads", "intermediate_size", "embedding_size")
        recipe = _as_wide_as(recipe, teacher.recipe, {*own, *size}, more=("types",))
    elif not sized:
        recipe = _as_wide_as(recipe, teacher.recipe, own)
    said = (*notes(recipe, corpus), *_size_note(recipe.encoder, teacher.recipe.encoder))
    rows = teacher.recipe.tokenizer.vocabulary
    recipe = fitted(recipe, corpus).reading(corpus.tokenizer, vocabulary=rows)
    return PretrainJob(
        recipe,
        stores,
        seed=seed,
        budget=budgets.parse(budget) if budget else None,
        start=_teacher_weights(objectives, recipe, teacher, seed=seed),
        teacher=pretrained(teacher),
        origin=place,
        notes=said,
    )


def _size_note(student: Any, teacher: Any) -> Iterator[str]:
    """A note on a student that is larger than its teacher."""
    if student.layers * student.hidden_size > teacher.layers * teacher.hidden_size:
        yield (
            f"the student, {student.layers} × {student.hidden_size}, is larger than its teacher,"
            f" {teacher.layers} × {teacher.hidden_size}; --size makes it smaller, as in"
            f" {max(1, teacher.layers // 2)}x{teacher.hidden_size}"
        )


def resumed(place: Path, *, recipe: Recipe | None = None, data: Sequence[str] = ()) -> PretrainJob:
    """The job of a recorded run; a recipe given with it must be the recorded one."""
    run = Run.open(place)
    recorded = run.recipe()
    facts = run.machine()
    if (run.path / TASK).is_file():
        raise UserError(
            f"{place}: is a fine-tuning run; to continue it, run the same finetune command again"
        )
    if not {"seed", "data"} <= facts.keys():
        raise UserError(
            f"{place}/machine.toml: has lost the run's seed and data; restore it from a"
            f" copy, or start a new run with --from {place}"
        )
    places = _where(place, data, facts)
    stores = open_stores(places, ahead=True)
    # Early runs recorded the tokenizer that was asked for.
    recorded = recorded.reading(stores[0][0].tokenizer, vocabulary=recorded.tokenizer.vocabulary)
    seconds = facts.get("budget_seconds")
    budget = Budget("seconds", seconds) if seconds else None
    if recipe is not None:
        requested = fitted(recipe, stores[0][0])
        if facts.get("from") or facts.get("teacher"):  # which gave it its size and vocabulary
            kind: Any = recorded.tokenizer
            built = requested.objectives
            if facts.get("from"):
                built = _built_alike(requested, recorded, slots.SLOTS["objectives"])
            requested = within(
                replace(requested, tokenizer=kind), recorded.encoder, objectives=built
            )
        # The run's number of steps came from its budget.
        schedule = replace(
            requested.schedule.fitted(recorded.schedule.steps), refits=recorded.schedule.refits
        )
        refitted = replace(requested, schedule=schedule)
        changed = changes(recorded, refitted)
        if changed:
            raise UserError(
                f"{place}: was started with another recipe ({'; '.join(changed[:5])});"
                f" resume it with the same recipe, or start a new run with --from {place}"
            )
    if newest(run.checkpoints)[0] is None:  # it starts again, as it did the first time
        inputs: dict[str, Any] = {"data": places, "seed": facts["seed"]}
        if facts.get("teacher"):
            job = taught(recorded, facts["teacher"], sized=True, **inputs)
            return replace(job, recipe=recorded, budget=budget)
        if facts.get("from"):
            job = continued(recorded, facts["from"], shaped=True, **inputs)
            return replace(job, recipe=recorded, budget=budget, adaptation=_adaptation(facts))
    teacher = pretrained(load(facts["teacher"])) if facts.get("teacher") else None
    return PretrainJob(
        recorded,
        stores,
        seed=facts["seed"],
        budget=budget,
        teacher=teacher,
        origin=facts.get("teacher") or facts.get("from"),
        adaptation=_adaptation(facts),
    )


def _adaptation(facts: Mapping[str, Any]) -> Adaptation | None:
    """The adaptation settings that a run recorded, if it is an adaptation."""
    if "adaptation" not in facts:
        return None
    settings = dict(facts["adaptation"])
    place, fingerprint = settings.pop("general", None), settings.pop("general_fingerprint", "")
    patience, general = settings.pop("patience"), None
    if place is not None:
        if not exists(place):
            raise UserError(
                f"{place}: the corpus of general text is missing; restore it, then resume the run"
            )
        ((general, _),) = open_stores([as_it_was(f"{place}:1", fingerprint)])
    return Adaptation(general, patience, settings)


def _where(place: Path, data: Sequence[str], facts: Mapping[str, Any]) -> Sequence[str]:
    """The present places of a run's stores, each at the version that the run started with."""
    before = facts["data"]
    if not (data or before):
        raise UserError(
            f"{place}: was imported and has no steps to resume; start a new run with --from {place}"
        )
    if data:
        return data
    gone = [store for store in before if not exists(store.rpartition(":")[0])]
    if gone:
        raise UserError(f"{place}: its corpus {gone[0]} is missing; give its new place with --data")
    recorded = facts.get("fingerprint") or [""] * len(before)  # early runs recorded none
    return [as_it_was(*store) for store in zip(before, recorded, strict=True)]


def _as_wide_as(
    recipe: Recipe, teacher: Recipe, own: Collection[str], *, more: tuple[str, ...] = ()
) -> Recipe:
    """The student's recipe with the teacher's width and layer type, and its share of the layers.

    Settings in `own` stay the student's; those in `more` are also the teacher's. The blocks are
    no longer than the teacher's, which may have been shrunk.
    """
    student: Any = recipe.encoder
    other: Any = teacher.encoder
    if type(student) is not type(other):
        mine, theirs = (slots.use("encoder", part) for part in (student, other))
        raise UserError(
            f"{recipe.name}: encoder {mine} cannot have the size of the teacher's {theirs};"
            " set its size with --size"
        )
    bert_layers = recipes.read("bert").encoder.layers
    settings = {name: getattr(other, name) for name in {*student.block_settings, *more}}
    settings["layers"] = max(1, other.layers * student.layers // bert_layers)
    settings = {name: value for name, value in settings.items() if name not in own}
    encoder = replace(student, **settings)
    return _as_short_as(within(recipe, encoder), teacher)


def _built_alike(recipe: Recipe, other: Recipe, heads: Iterable[str]) -> tuple[Any, ...]:
    """The recipe's objectives, built as those of a model that has these heads."""
    named: dict[str, Any] = {
        name: part
        for part in other.objectives
        if (name := slots.use("objectives", part)) in {*heads}
    }
    return tuple(
        part.built_as(named.get(slots.use("objectives", part), part)) for part in recipe.objectives
    )


def _as_short_as(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with blocks and batches no larger than those of a model that was shrunk."""
    if other.blocks.length >= recipe.blocks.length:
        return recipe
    blocks: Any = recipe.blocks
    batch_size = min(recipe.schedule.batch_size, other.schedule.batch_size)
    if "stream" in blocks.provides:
        blocks = replace(blocks, rows=batch_size, reuse=-(-other.blocks.length // 2))
    return replace(
        recipe,
        blocks=replace(blocks, length=other.blocks.length),
        schedule=replace(recipe.schedule, batch_size=batch_size, phases=(), ramp=()),
    )


def _teacher_weights(
    objectives: Sequence[Any], recipe: Recipe, teacher: Model, *, seed: int
) -> dict[str, Tensor] | None:
    """The weights that a student copies from its teacher, if any."""
    student: Any = recipe.encoder
    other: Any = teacher.recipe.encoder
    choices = (part.layer_choice(other.layers, student.layers) for part in objectives)
    choice = next(filter(None, choices), None)
    if choice is None:
        return None
    size = recipe.tokenizer.vocabulary
    fresh_student = build(recipe, size, seed=seed, teacher=pretrained(teacher))
    return start_from(
        weights_of(teacher.module),
        {name: value.detach() for name, value in fresh_student.named_parameters()},
        choice=choice,
        teacher=other,
        student=student,
    )


def _extend_vocabulary(
    weights: dict[str, Tensor], loaded: Model, tokenizer: Tokenizer, place: str
) -> dict[str, Tensor]:
    """The weights with embedding rows for the words that were added to the tokenizer.

    A new word starts as the mean of the pieces that the model's tokenizer splits it into.
    """
    old, new = loaded.tokenizer.get_vocab(), tokenizer.get_vocab()
    first = loaded.vocabulary.size
    added = {word: number for word, number in new.items() if word not in old}
    if any(new.get(word) != number for word, number in old.items()) or (
        sorted(added.values()) != list(range(first, first + len(added)))
    ):
        raise UserError(
            f"{place}: its tokenizer is not that of {loaded.place}; build the corpus with"
            f" --tokenizer-from {loaded.place}, and --extend N to add words of the text"
        )
    rows = sources(loaded.tokenizer, tokenizer, initialisation="mean")
    # A table may have unused rows: new words take those first.
    spare = range(len(rows), loaded.recipe.tokenizer.vocabulary)
    rows += [RowSource([number], [1.0]) for number in spare]
    return with_rows(weights, rows, initialisation="mean")
