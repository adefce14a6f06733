"""How fast the cells of a study go: tokens of a step, a short timing of it, and of fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from clozelab.config.recipe import Recipe
from clozelab.finetuning import protocols
from clozelab.finetuning.kinds import TaskKind
from clozelab.finetuning.tuning import Tuning
from clozelab.models.build import build
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.job import PretrainJob, PretrainTrainer
from clozelab.pretraining.steps import Steps
from clozelab.runs.machine import Machine, flops_a_token
from clozelab.studies.request import Request
from clozelab.text.store import Corpus
from clozelab.text.store.mixture import Store, open_stores
from clozelab.training.world import join

_SAMPLE = 200  # examples that show how long a task's are
_LEAST = 0.03  # seconds of the smallest step on a GPU
_WINDOWS = 1.5  # of a passage that does not fit a block, the tokens read for each of its own


@dataclass(frozen=True)
class Pace:
    """What a step of a variant is."""

    tokens_a_step: float
    flops_a_token: float  # a teacher's among them
    seconds_a_step: float | None = None  # None: not timed


def pace(request: Request, variant: str) -> Pace:
    """A variant's step, by a sample of its blocks; a teacher looks at them, too."""
    recipe, stores = _fitted(request, variant)
    steps = Steps(recipe, stores, seed=0, tokens=recipe.blocks.length, gpu=False)
    flops = _flops(recipe, steps)
    taught = request.study.variant(variant).teacher
    if taught is not None:
        flops += _flops(_fitted(request, taught)[0], steps) / 3  # forward alone
    return Pace(steps.tokens_a_step(), flops)


def _flops(recipe: Recipe, steps: Steps) -> float:
    """Of a token of those steps, by the model of a recipe; the mean over the phases."""
    schedule = steps.recipe.schedule
    total = tokens = 0.0
    for number, (length, share) in enumerate(schedule.phases or ((recipe.blocks.length, 1.0),)):
        sample = steps.sample(steps.sources(number, length))
        mean = sample.tokens / len(sample)
        share *= 1.0 if schedule.fill == "tokens" else mean
        predicted = sum(sample.counts().values()) / sample.tokens
        vocabulary = recipe.tokenizer.vocabulary
        total += share * flops_a_token(recipe, vocabulary, length=mean, predicted=predicted)
        tokens += share
    return total / tokens


def shape(request: Request, variant: str) -> str:
    """What decides how fast a variant goes: those that agree in it are timed once."""
    tables = request.recipe(variant).tables()
    kept = ("tokenizer", "blocks", "encoder", "objectives", "schedule")
    masking = {key: tables["masking"].get(key) for key in ("use", "rate")}
    found = [{key: tables[key] for key in kept}, masking, tables["optimiser"]["use"]]
    return repr([found, request.stores(variant), request.study.variant(variant).teacher])


def seconds_a_step(request: Request, variant: str, machine: Machine, *, budget: float) -> float:
    """Time a few steps of a variant; a student's teacher need not have learned anything."""
    recipe, stores = _fitted(request, variant)
    taught = request.study.variant(variant).teacher
    teacher = None
    if taught is not None:
        other, _ = _fitted(request, taught)
        teacher = build(other, other.tokenizer.vocabulary, seed=0)
    with join(machine.device) as world, _cleared():
        trainer = PretrainTrainer(PretrainJob(recipe, stores, teacher=teacher), machine, world)
        while True:
            try:
                return trainer.seconds_a_step(budget)
            except torch.OutOfMemoryError:
                pass  # what filled the memory is held by the error until it is forgotten
            trainer.shrink()


def tuning_seconds(request: Request, variant: str, speed: float, *, gpu: bool) -> float:
    """About how long a variant's fine-tunings take, at so many tokens a second."""
    recipe, stores = _fitted(request, variant)
    total = 0.0
    for task, data in request.tasks().items():
        found = data.found()
        train, dev = found.read("train"), found.read("dev")
        given = tuning(request, variant, task)
        length = min(given.length, recipe.blocks.length)
        each = _tokens(found.part, train, stores[0][0], length=length)
        steps = given.steps or math.ceil((given.epochs or 1) * len(train) / given.sequences)
        learned = steps * given.sequences * each
        epochs = max(1.0, steps * given.sequences / max(len(train), 1))
        judged = epochs * len(dev) * each / 3  # forward alone
        total += max((learned + judged) / speed, steps * _LEAST * gpu)
    return total


def tuning(request: Request, variant: str, task: str) -> Tuning:
    """How a variant is fine-tuned on a task: by the usual protocol or its own, and its settings."""
    data = request.tasks()[task]
    kind = data.found().kind
    word, settings = protocols.task_word(data.task, kind), request.settings(variant, task)
    return protocols.read(request.protocol(variant), word, kind, overrides=settings)


def _tokens(kind: type[TaskKind], examples: list[Any], corpus: Corpus, *, length: int) -> float:
    """The mean tokens of an example, by some of them."""
    some = examples[:: max(1, len(examples) // _SAMPLE)][:_SAMPLE]
    total = 0.0
    for example in some:
        sizes = [len(text.ids) for text in corpus.tokenizer.encode_batch(kind.texts(example))]
        over = _WINDOWS if kind.windows else 0.0
        total += sum(max(over * size, length) if size > length else size for size in sizes)
    return total / max(len(some), 1)


def _fitted(request: Request, variant: str) -> tuple[Recipe, list[Store]]:
    stores = open_stores(request.stores(variant))
    recipe = fitted(request.recipe(variant), stores[0][0])
    return recipe, stores


@contextmanager
def _cleared() -> Iterator[None]:
    """Leave the device as it was."""
    try:
        yield
    finally:
        clear()


def clear() -> None:
    """Let go of what a run has compiled and kept on the device."""
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
