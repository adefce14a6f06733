"""The speed of cells: tokens, operations and time of a step, and the time of fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from clozelab.config.recipe import Recipe
from clozelab.config.renamed import recorded
from clozelab.finetuning import protocols
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.kinds import TaskKind
from clozelab.models.build import build
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.steps import Steps
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.machine import Machine, flops_a_token
from clozelab.runs.warm import clear
from clozelab.studies.request import StudyRequest
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import Store, open_stores
from clozelab.training.world import World, join

# For the estimates of a plan; how the values were found is not recorded.
_SAMPLE = 200  # examples, to estimate a task's mean length
_LEAST_STEP = 0.03  # seconds of the shortest step on a GPU
_WINDOWS = 1.5  # tokens read per token of a passage that is longer than a block


@dataclass(frozen=True)
class Pace:
    """The cost of a step of a variant."""

    tokens_a_step: float
    flops_a_token: float  # with its teacher's
    seconds_a_step: float | None = None  # None: not timed


def pace(request: StudyRequest, variant: str) -> Pace:
    """The cost of a variant's step with that of its teacher, from a sample of blocks."""
    recipe, stores = _fitted(request, variant)
    steps = Steps(recipe, stores, seed=0, tokens=recipe.blocks.length, gpu=False)
    flops = _flops(recipe, steps)
    teacher = request.study.variant(variant).teacher
    if teacher is not None:
        flops += _flops(_fitted(request, teacher)[0], steps) / 3  # the forward pass alone
    return Pace(steps.tokens_a_step(), flops)


def _flops(recipe: Recipe, steps: Steps) -> float:
    """The operations per token of a recipe's model in these steps: the mean over phases."""
    schedule = steps.recipe.schedule
    total = tokens = 0.0
    for number, share in enumerate([share for _, share in schedule.phases] or [1.0]):
        sources = steps.sources(number)
        sample, predicted = steps.sample(sources), steps.predicted(sources)
        mean = sample.tokens / len(sample)
        share *= 1.0 if schedule.fill == "tokens" else mean
        vocabulary = recipe.tokenizer.vocabulary
        total += share * flops_a_token(recipe, vocabulary, length=mean, predicted=predicted)
        tokens += share
    return total / tokens


def shape(request: StudyRequest, variant: str) -> str:
    """A key of all settings that determine the speed of a variant."""
    tables = request.recipe(variant).tables()
    names = ("tokenizer", "blocks", "encoder", "objectives", "schedule")
    masking = {key: tables["masking"].get(key) for key in ("use", "mask_rate")}
    shape = [{key: tables[key] for key in names}, masking, tables["optimiser"]["use"]]
    return repr([shape, request.stores(variant), request.study.variant(variant).teacher])


def seconds_a_step(
    request: StudyRequest, variant: str, machine: Machine, *, budget: float
) -> float:
    """Time a few steps of a variant, with a teacher of random weights if it has one."""
    with join(machine.device) as world:
        try:
            return _time_steps(request, variant, machine, world, budget=budget)
        finally:
            clear()  # now that the trainer is gone: cells need the memory of the device


def _time_steps(
    request: StudyRequest, variant: str, machine: Machine, world: World, *, budget: float
) -> float:
    recipe, stores = _fitted(request, variant)
    name = request.study.variant(variant).teacher
    teacher = None
    if name is not None:
        other, _ = _fitted(request, name)
        teacher = build(other, other.tokenizer.vocabulary, seed=0)
    trainer = PretrainTrainer(PretrainJob(recipe, stores, teacher=teacher), machine, world)
    while True:
        try:
            return trainer.seconds_a_step(budget)
        except torch.OutOfMemoryError:
            pass  # retry outside of the handler, which keeps tensors alive
        trainer.shrink()


def tuning_seconds(request: StudyRequest, variant: str, speed: float, *, gpu: bool) -> float:
    """The estimated seconds of a variant's fine-tunings, at a speed in tokens per second."""
    recipe, stores = _fitted(request, variant)
    total = 0.0
    for task, data in request.tasks().items():
        splits = data.splits()
        train, dev = splits.read("train"), splits.read("dev")
        settings = tuning(request, variant, task)
        longest = min(settings.length, recipe.blocks.length)
        length = _tokens(splits.part, train, stores[0][0], length=longest)
        batch = settings.batch_size
        steps = settings.steps or math.ceil((settings.epochs or 1) * len(train) / batch)
        epochs = max(1.0, steps * batch / max(len(train), 1))
        evaluated = epochs * len(dev) * length / 3  # the forward pass alone
        total += max((steps * batch * length + evaluated) / speed, steps * _LEAST_STEP * gpu)
    return total * request.study.tunings


def tuning(request: StudyRequest, variant: str, task: str) -> FinetuneConfig:
    """The fine-tuning settings of a variant on a task: its protocol with overrides."""
    data = request.tasks()[task]
    kind = data.splits().kind
    word, settings = protocols.task_word(data.task, kind), request.settings(variant, task)
    with recorded():  # of a study that was recorded, or may be
        return protocols.read(request.protocol(variant), word, kind, overrides=settings)


def _tokens(kind: type[TaskKind], examples: list[Any], corpus: Corpus, *, length: int) -> float:
    """The mean number of tokens of an example, from a sample."""
    sample = examples[:: max(1, len(examples) // _SAMPLE)][:_SAMPLE]
    total = 0.0
    for example in sample:
        sizes = [len(text.ids) for text in corpus.tokenizer.encode_batch(kind.texts(example))]
        overlap = _WINDOWS if kind.windows else 0.0
        total += sum(max(overlap * size, length) if size > length else size for size in sizes)
    return total / max(len(sample), 1)


def _fitted(request: StudyRequest, variant: str) -> tuple[Recipe, list[Store]]:
    stores = open_stores(request.stores(variant))
    recipe = fitted(request.recipe(variant), stores[0][0])
    return recipe, stores
