"""One fine-tuning in one process: the model on its device, its steps, the best weights so far.

The best weights are those with the highest score on the dev set, by the task's official
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozelab.config import recipe as recipes
from clozelab.errors import UserError
from clozelab.finetuning.evaluator import Evaluator, collated
from clozelab.finetuning.inputs import FinetuneInputs
from clozelab.finetuning.steps import StepSampler
from clozelab.finetuning.task import TunedTask, parse, to_toml
from clozelab.finetuning.tuned import Tuned, build
from clozelab.runs import machine as machines
from clozelab.runs.directory import TASK, machine_facts
from clozelab.runs.events import Began, Evaluated, Said, Scored
from clozelab.runs.machine import Machine
from clozelab.runs.saving import bare, begin_with, plainly, restore, save
from clozelab.training import checkpoint as checkpoints
from clozelab.training.checkpoint import Checkpoint
from clozelab.training.feed import Cursor
from clozelab.training.loop import Prepared, Step, TrainState
from clozelab.training.memory import FORWARD_TOKENS, empty_cache, halving
from clozelab.training.packing import pinned
from clozelab.training.world import World, full_tensor

# Steps × layers from which compiling pays: it takes 20 s and saves 2 ms per step and layer if
# kernel launches are slow (benchmarks/results/finetune.json), some 0.6 ms otherwise.
_COMPILE_FROM = 18_000
_BEST = "best/"


@dataclass(frozen=True)
class Best:
    """The weights that did best on the dev set so far."""

    value: float
    step: int
    scores: Mapping[str, float]
    task: TunedTask
    weights: Mapping[str, Tensor]

    def state(self) -> dict[str, Any]:
        """All but the weights, for a checkpoint's state."""
        scores, task = dict(self.scores), to_toml(self.task)
        return {"value": self.value, "step": self.step, "scores": scores, "task": task}


class Trial:
    """A fine-tuning set up on a machine."""

    def __init__(self, inputs: FinetuneInputs, machine: Machine, world: World) -> None:
        self.inputs, self.machine, self.world = inputs, machine, world
        self.tuning, self.kind = inputs.task.tuning, inputs.task.kind
        self.precision = machine.precision_on(world.device)
        self.tokens = machine.tokens(world.device, inputs.recipe)
        self.model = self._build_model()
        self.sampler = StepSampler(
            inputs.train,
            self.kind.name,
            batch_size=self.tuning.batch_size,
            seed=inputs.seed,
            alone=self.model.head.rows == "group",
            rank=world.rank,
            ranks=world.size,
        )
        self.schedule = self.tuning.schedule(len(self.sampler.numbers))
        self.compiled = self._compiles()
        self.train_state = self._train_state()
        self.shape = self.sampler.shape(tokens=self.tokens) if self.compiled else None
        self.best: Best | None = None

    def start(self) -> Cursor:
        """The cursor of the first step."""
        return Cursor(0, ((0, 0),))

    def began(self, first: int) -> Began:
        """The event that a run begins with."""
        examples, device = self.inputs.train, self.world.device
        length = examples.tokens / len(examples)
        recipe = self.inputs.recipe
        vocabulary = recipe.tokenizer.vocabulary
        flops = machines.flops_a_token(recipe, vocabulary, length=length, predicted={})
        return Began(
            name=self.inputs.task.name,
            recipe=recipe,
            first=first,
            steps=self.schedule.total,
            parameters=sum(p.numel() for p in self.model.parameters()),
            device=str(machines.facts(device)["gpu"] or device),
            precision=self.precision,
            micro_tokens=self.tokens,
            flops_a_token=flops,
            peak=None,
        )

    def notes(self) -> list[str]:
        """Notes for the user before the first step."""
        return list(self.inputs.notes)

    def jobs(self, first: int, cursor: Cursor) -> Iterator[Callable[[], Prepared]]:
        """Yield, from step `first` on, a job that prepares each step."""
        for step in range(first, self.schedule.total):
            yield partial(self.prepare, step)

    def prepare(self, step: int) -> Prepared:
        """The micro-batches of a step for this process."""
        examples = self.sampler.take(step)
        if self.shape is not None:
            batches, blank = self.shape.batches(examples), self.shape.collate(examples, slice(0, 0))
        else:
            batches = self.sampler.batches(examples, tokens=self.tokens)
            blank = collated(examples.select(np.arange(0)))
        gpu = self.world.device.type == "cuda"
        return Prepared(
            number=step,
            batches=[pinned(batch) if gpu else batch for batch in batches],
            blank=blank,
            counts=examples.counts(),
            tokens=examples.tokens,
            factor=self.schedule.factor(step),
            weights={self.kind.name: 1.0, "causal_lm": self.tuning.lm_weight},
            after=Cursor(0, (divmod(step + 1, self.sampler.epoch),)),
        )

    def shrink(self) -> str:
        """Halve the micro-batch after running out of memory, or refuse if it is too small."""
        held = min(self.tokens, self.sampler.largest)  # of a step, or fewer
        if held < 2 * self.sampler.longest or self.world.size > 1:
            raise UserError(
                f"{self.world.device}: out of memory with {held:,} tokens at a time;"
                " use --recompute, shorter blocks (--set length=…) or a smaller model"
            )
        self.train_state.model.zero_grad(set_to_none=True)
        empty_cache(self.world.device)
        self.tokens = held // 2
        self.shape = self.sampler.shape(tokens=self.tokens) if self.compiled else None
        return f"out of memory: at most {self.tokens:,} tokens at a time from now on"

    def evaluate(self, number: int, *, blocks: int) -> Iterator[Said | Evaluated | Scored]:
        """The scores on the dev sets; the best weights are kept."""
        scores: dict[str, float] = {}
        task = self.inputs.task
        value = 0.0
        with plainly(self.train_state.model) as model:
            assert isinstance(model, Tuned)
            for place, (name, evaluator) in enumerate(self.inputs.dev.items()):
                predictions = self._predictions(model, evaluator)
                if not place:  # the first dev set also calibrates the threshold
                    task = replace(task, kind=task.kind.calibrated(predictions, evaluator.examples))
                scored = task.kind.score(task.kind.decided(predictions), evaluator.examples)
                value = value if place else task.kind.selects(scored)
                scores |= {_score_name(what, name): score for what, score in scored.items()}
        if self.best is None or value > self.best.value:
            weights = self._copy_weights() if self.world.is_main else {}
            self.best = Best(value, number, scores, task, weights)
        best = self.best
        yield Scored(number, scores, best.step, best.scores, best.value, self.constant)

    def _predictions(self, model: Tuned, evaluator: Evaluator) -> list[Any]:
        """The predictions for a dev set, in smaller batches if memory runs out."""
        # Small batches: without its compiled graph a model needs more memory for a token.
        tokens, device = min(self.tokens, FORWARD_TOKENS), self.world.device
        return halving(
            lambda tokens: evaluator.predictions(model, device, tokens=tokens),
            tokens,
            least=self.sampler.longest if self.world.size == 1 else tokens,
            problem=f"{device}: out of memory for a dev set",
            remedy="use shorter blocks (--set length=…) or a smaller model",
        )

    @cached_property
    def constant(self) -> dict[str, float]:
        """The scores of a constant answer on the dev sets."""
        return {
            _score_name(metric, name): score
            for name, evaluator in self.inputs.dev.items()
            for metric, score in evaluator.kind.constant(evaluator.examples).items()
        }

    def save(
        self, folder: Path, step: Step, *, state: dict[str, Any], keep: int, ends: bool
    ) -> Path | None:
        """Write a checkpoint: at the end only the best weights, before that all to resume from."""
        best = self.best
        state = {"seed": self.inputs.seed, "best": best.state() if best else None, **state}
        if ends:
            assert best is not None
            if not self.world.is_main:
                return None
            texts, weights = self._texts(best.task), best.weights
            return checkpoints.save(
                folder, step.number, weights=weights, tensors={}, state=state, texts=texts, keep=1
            )
        return save(
            folder,
            step,
            self.train_state,
            self.world,
            state=state,
            texts=self._texts(self.inputs.task),
            keep=1,
            more={f"{_BEST}{name}": value for name, value in best.weights.items()} if best else {},
        )

    def recall(self, checkpoint: Checkpoint) -> Cursor:
        """Restore a checkpoint: the weights, the optimiser's moments, and the best so far."""
        if state := checkpoint.state()["best"]:
            weights = checkpoint.tensors_named(_BEST)
            task = parse(state["task"], str(checkpoint.path))
            self.best = Best(state["value"], state["step"], state["scores"], task, weights)
        if checkpoint.step == self.schedule.total:
            return self.start()  # only the result is still to be written
        return restore(checkpoint, self.train_state, self.world)

    def chosen(self) -> dict[str, Any]:
        """The entries of the result for the best weights so far."""
        if self.best is None:
            return {}
        scores = {"step": self.best.step, **self.best.scores}
        return {"dev": scores, "selected": self.best.value, "constant": self.constant}

    def facts(self) -> dict[str, Any]:
        """The machine and its settings, for the record."""
        device, inputs = self.world.device, self.inputs
        return {
            **machine_facts(),
            **machines.facts(device),
            "precision": self.precision,
            "micro_tokens": self.tokens,
            "workers": self.machine.threads,
            "recompute": bool(self.machine.recompute),
            "compiled": self.compiled,
            "kernels": self.machine.fuses(device, compiled=self.compiled),
            "graphs": self.train_state.replays,
            "processes": self.world.size,
            "seed": inputs.seed,
            "task": inputs.task.name,
            "from": inputs.origin,
            "from_task": inputs.origin_task,
            "teacher": inputs.teacher_origin,
            "examples": len(self.sampler.numbers),
            "digests": dict(inputs.digests),
        }

    def _compiles(self) -> bool:
        """Whether to compile: as the user says, or on a GPU if it pays and gives one graph."""
        if self.machine.compile is not None:
            return self.machine.compile
        recurrent = self.inputs.recipe.encoder.recurrent or self.tuning.reader != "linear"
        is_long = self.schedule.total * self.inputs.recipe.encoder.layers >= _COMPILE_FROM
        is_possible = self.world.device.type == "cuda" and self.kind.one_graph and not recurrent
        return is_possible and is_long

    def _build_model(self) -> Tuned:
        model = build(self.inputs.recipe, self.kind, self.tuning, seed=self.inputs.seed)
        begin_with(model, self.inputs.start)
        if self.inputs.teacher is not None:
            model.teacher = (self.inputs.teacher.eval().requires_grad_(False),)
            model.softness = (self.tuning.alpha, self.tuning.temperature)
        return model

    def _train_state(self) -> TrainState:
        model, device = self.model, self.world.device
        self.machine.place((model, *model.teacher), device, compiled=self.compiled)
        # Steps are so short that launching kernels takes longer than running them.
        recipe = self.inputs.recipe
        replays = self.machine.replays(device, recipe, compiled=self.compiled, usual=True)
        if self.compiled:
            machines.compile_model(model, replays=replays)
        wrapped = self.world.wrap(model, shard=False)
        part = self.tuning.optimiser_part()
        optimisers = part.build(model.named_parameters(), scale=self._scale)
        scaler = torch.amp.GradScaler(device.type) if self.precision == "fp16" else None
        clip, seed = self.tuning.clip, self.inputs.seed
        return TrainState(wrapped, optimisers, clip, seed, scaler=scaler, replays=replays)

    def _scale(self, name: str) -> float:
        """A parameter's multiple of the learning rate."""
        shape = self.inputs.recipe.encoder
        shared = name.split(".")[1] in shape.shared_modules
        return self.tuning.scale(name, shape.layers, shared=shared)

    def _copy_weights(self) -> dict[str, Tensor]:
        parameters = bare(self.train_state.model).named_parameters()
        return {name: full_tensor(value.detach()).cpu().clone() for name, value in parameters}

    def _texts(self, task: TunedTask) -> dict[str, str]:
        return {
            "recipe.toml": recipes.to_toml(self.inputs.recipe),
            "tokenizer.json": self.inputs.tokenizer.to_str(),
            TASK: to_toml(task),
        }


def _score_name(metric: str, split: str) -> str:
    """The name of a metric, with the dev set's name unless it is the first."""
    return metric if split == "dev" else f"{metric}_{split.removeprefix('dev_')}"
