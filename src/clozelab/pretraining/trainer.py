"""A pretraining job on a machine: the model on its device, the optimisers, the feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.models.build import DELTA, PretrainingModel, build
from clozelab.models.model import Model
from clozelab.nearest import listed
from clozelab.pretraining.early_stopping import EarlyStopping
from clozelab.pretraining.held_out import HeldOut, held_out
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.passes import passes_note, two_digits
from clozelab.pretraining.source import BlockSource, rows_of_a_group, views_of
from clozelab.pretraining.step_processes import StepProcesses
from clozelab.pretraining.steps import Steps
from clozelab.ranges import largest_divisor
from clozelab.runs import machine as machines
from clozelab.runs import warm
from clozelab.runs.diagnostics import followed_objective
from clozelab.runs.directory import machine_facts
from clozelab.runs.events import Began, Evaluated, Said, Scored, means
from clozelab.runs.machine import Machine
from clozelab.runs.pacing import EVALUATIONS
from clozelab.runs.saving import begin_with, plainly, save, set_weights
from clozelab.text.building import memory
from clozelab.text.store import Corpus
from clozelab.text.store.mixture import shares
from clozelab.training import budget as budgets
from clozelab.training.budget import Budget
from clozelab.training.checkpoint import Checkpoint
from clozelab.training.feed import Cursor, ahead
from clozelab.training.loop import Measured, Prepared, Step, TrainState, train
from clozelab.training.memory import FORWARD_TOKENS, check_room, empty_cache, halving
from clozelab.training.schedule import Schedule
from clozelab.training.updates import WeightMean
from clozelab.training.world import World, full_tensor

# The hidden size up to which steps are replayed as CUDA graphs. At 768, steps of 32,768 tokens are
# 7 % faster so in blocks of 128 tokens, and as fast in blocks of 512 (benchmarks/README.md).
_NARROW = 768
_WARMUP_STEPS = 3  # that are not timed, before those that are
_TIMED_TOKENS = 4096  # of a timed step on a CPU, where a large one takes minutes; not tuned
_TIMED_BLOCKS = 64  # by which the time of an evaluation is estimated; not tuned


class PretrainTrainer:
    """A job on a machine: the model, its optimisers and its feed, for a session to train."""

    def __init__(self, job: PretrainJob, machine: Machine, world: World) -> None:
        if job.probe is not None and machine.shard:
            raise UserError("--probe: does not work with sharded weights; leave --shard out")
        self.job, self.machine, self.world = job, machine, world
        self.recipe, self.seed = job.recipe, job.seed
        self.precision = machine.precision_on(world.device)
        self.tokens = self._micro_tokens()  # of a micro-batch
        job.check(processes=world.size)
        self.compiled = machine.compiles(world.device, job.recipe)
        self.model = self._model()
        self.train_state = self._train_state()
        self.steps = self._steps()
        self._check_texts()
        self._held_out: dict[tuple[str, int], HeldOut | str] = {}
        self.early_stopping: EarlyStopping | None = None
        if job.adaptation is not None:
            objective = followed_objective(self.recipe)
            self.early_stopping = EarlyStopping(objective, job.adaptation.patience)

    @property
    def schedule(self) -> Schedule:
        """The steps of the whole run, and their learning rates."""
        return self.recipe.schedule

    def jobs(self, first: int, cursor: Cursor) -> Iterator[Callable[[], Prepared]]:
        """Yield, from step `first` on, a job that prepares each step."""
        return self._jobs(self.steps, first, cursor)

    def fit(self, budget: Budget) -> None:
        """Fit the number of steps of the schedule to a budget.

        A budget of time does not include compiling and timing a few steps.
        """
        seconds = self.seconds_a_step(budget.amount) if budget.kind == "seconds" else None
        tokens = self.steps.tokens_a_step()
        steps = budgets.steps(budget, tokens_a_step=tokens, seconds_a_step=seconds)
        self.recipe = replace(self.recipe, schedule=self.recipe.schedule.fitted(steps))
        self.steps = self._steps()

    def refit(self, step: int, total: int) -> str:
        """Fit the schedule from `step` on to end after `total` steps; returns the recipe's text."""
        schedule = self.recipe.schedule.refitted(step, total)
        self.recipe = self.steps.recipe = replace(self.recipe, schedule=schedule)
        return recipes.to_toml(self.recipe)

    def seconds_a_step(self, budget: float) -> float:
        """The mean seconds of a step, timed for 5 % of the budget; the model is then reset."""
        weights = {name: full_tensor(value.detach()).clone() for name, value in self._parameters()}
        done: list[Step] = []
        jobs = self._jobs(self._steps(self._timed_recipe()), 0, self.steps.start())
        try:
            with closing(ahead(jobs, workers=self.machine.threads)) as feed:
                stepping = train(self.train_state, feed, self.world)
                done += islice(stepping, _WARMUP_STEPS)
                # Every process must take as many.
                wanted = min(20.0, budget / 20) / max(done[-1].seconds, 1e-3)
                done += islice(stepping, self.world.all_reduce_max(min(max(int(wanted), 2), 500)))
        finally:
            set_weights(self.train_state.model, weights)
            self._reset(self.train_state)
        timed = done[_WARMUP_STEPS:] or done[-1:]  # a recipe may have fewer steps than these
        rate = sum(step.seconds for step in timed) / sum(step.tokens for step in timed)
        return self._mean(rate * self.steps.tokens_a_step())

    def seconds_an_evaluation(self, blocks: int) -> float:
        """The seconds to evaluate `blocks` held-out blocks, timed on a few; 0 without any."""
        length, total = self.length(0), 0.0
        for corpus in self._texts().values():
            sample = held_out(self.recipe, corpus, length=length, count=blocks)
            if isinstance(sample, str):
                continue
            few, seconds = sample.part(sample.groups[0][:_TIMED_BLOCKS]), 0.0
            for _ in range(2):  # the first time is slower
                began = machines.now(self.world.device)
                self._judged(few, length)
                seconds = machines.now(self.world.device) - began
            total += seconds * sample.size / few.size
        return self._mean(total)

    def shrink(self) -> str:
        """Halve the micro-batch after memory ran out; returns a note, or raises `UserError`."""
        length, device = self.recipe.blocks.length, self.world.device
        batch_size, views = self.recipe.schedule.batch_size, views_of(self.recipe)
        rows = rows_of_a_group(self.recipe, batch_size)
        group = rows * views if rows > 1 else 1  # blocks that stay together
        held = min(self.tokens // length, batch_size * views)  # of a step, or fewer
        if group > 1 and held <= group:
            raise UserError(f"{device}: {self._group_too_large()}")
        fits = max(held // 2, group)
        if fits == held or self.world.size > 1:
            raise UserError(
                f"{device}: out of memory with micro-batches of {held} sequences;"
                f" use --micro-batch {fits}, --recompute or a smaller --size"
            )
        self.train_state.model.zero_grad(set_to_none=True)
        empty_cache(device)
        self.tokens = fits * length
        self.steps = self._steps()
        return f"out of memory: micro-batches of {fits} sequences from here on"

    def _group_too_large(self) -> str:
        """A message with remedies, where memory has no room for one group."""
        batch_size = self.recipe.schedule.batch_size
        rows = rows_of_a_group(self.recipe, batch_size)
        fewer = largest_divisor(batch_size, rows // 2)
        number = [part.contrasts for part in self.recipe.objectives].index(True)
        remedies = [f"--set objectives.{number}.in_batch={fewer}"] if fewer > 1 else []
        remedies += ["--recompute", "a smaller --size"]
        return (
            f"out of memory with a group of {rows} rows of {views_of(self.recipe)} texts, which"
            f" --micro-batch does not divide; use {listed(remedies)}"
        )

    def length(self, step: int) -> int:
        """The length of the blocks in a step."""
        return self.schedule.phase(step).length or self.recipe.blocks.length

    def sources(self, step: int) -> list[BlockSource]:
        """The stores with blocks of the length of a step."""
        return self.steps.sources(self.schedule.phase(step).number)

    def began(self, first: int) -> Began:
        """The event that describes the run before its first step."""
        sample = self.steps.sample(self.sources(first))
        flops = machines.flops_a_token(
            self.recipe,
            self.recipe.tokenizer.vocabulary,
            length=sample.tokens / len(sample),
            predicted=self.steps.predicted(self.sources(first)),
        )
        device = self.world.device
        return Began(
            name=self.recipe.name,
            recipe=self.recipe,
            first=first,
            steps=self.schedule.total,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            device=str(machines.facts(device)["gpu"] or device),
            precision=self.precision,
            micro_tokens=self.tokens,
            flops_a_token=flops,
            peak=machines.peak(device, self.precision),
        )

    def notes(self) -> list[str]:
        """Notes for the user before the first step."""
        said = list(self.job.notes)
        if self.job.start is not None:
            known = {*self.job.start, DELTA}  # which begins at zero in any case
            missing = {n.split(".")[1] for n, _ in self._parameters() if n not in known}
            if missing:
                said.append(f"fresh weights for {', '.join(sorted(missing))}")
        if len(self.job.stores) > 1:
            total = self.schedule.total * self.steps.tokens_a_step()
            mixed = (
                f"{part.path} {part.share:.0%} ({two_digits(part.epochs(total))} epochs)"
                for part in shares(self.job.stores)
            )
            said.append(f"the tokens of a step are of {', '.join(mixed)}")
        if self.job.adaptation is not None:
            total = self.schedule.total * self.steps.tokens_a_step()
            said.append(passes_note(self.job.stores, total, budget=self.job.budget))
        wanted = self.recipe.schedule.batch_size_at(0)
        there = sum(source.size for source in self.sources(0))
        group = rows_of_a_group(self.recipe, wanted)
        if there < group:
            said.append(
                f"texts in the corpus: {there:,}; {group:,} are told apart, so a text is also its"
                " own negative: give more text, or make a smaller schedule.batch_size"
            )
        elif there < wanted:
            said.append(f"blocks in the corpus: {there:,}; a step takes {wanted:,}, so they repeat")
        return said

    def evaluate(self, number: int, *, blocks: int) -> Iterator[Said | Evaluated | Scored]:
        """Yield the losses on held-out blocks of the length of that step."""
        length = self.length(max(0, number - 1))
        for of, corpus in self._texts().items():
            if (of, length) not in self._held_out:
                blocks_or_reason = held_out(self.recipe, corpus, length=length, count=blocks)
                self._held_out[of, length] = blocks_or_reason
                if isinstance(blocks_or_reason, str):
                    yield Said(blocks_or_reason)
            sample = self._held_out[of, length]
            if isinstance(sample, HeldOut):
                sums = self._judged(sample, length)
                if of == "held_out" and self.early_stopping is not None:
                    self._update_early_stopping(number, sums)
                yield Evaluated(
                    number, sums, of, self.early_stopping.step if self.early_stopping else None
                )

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the run; an adaptation has one in every pass at least.

        It goes by the planned steps: a resumed run evaluates after the same shares of it, whatever
        refits it has recorded.
        """
        if self.early_stopping is None:
            return EVALUATIONS
        tokens = self.schedule.steps * self.steps.tokens_a_step()
        return max(EVALUATIONS, round(shares(self.job.stores)[0].epochs(tokens)))

    def _texts(self) -> dict[str, Corpus]:
        """The corpora whose held-out text is measured, by their names in the log."""
        texts = {"held_out": self.job.stores[0][0]}
        if self.job.adaptation is not None and self.job.adaptation.general is not None:
            texts["general"] = self.job.adaptation.general
        return texts

    def _update_early_stopping(self, number: int, sums: Measured) -> None:
        """Keep the weights if they are the best so far; steps that are all causal do not count."""
        assert self.early_stopping is not None
        detour = number and self.schedule.causal_share(number - 1) == 1
        if not detour:
            mean = means(sums).get(self.early_stopping.objective)
            if mean is None:
                raise UserError(
                    f"{self.job.stores[0][0].name}: no held-out loss to compare, since nothing is"
                    " hidden in the blocks that are evaluated; set a larger --evaluate-blocks"
                )
            self.early_stopping.see(number, mean["loss"], self._weights)

    def _weights(self) -> dict[str, Tensor]:
        parameters = self._parameters()
        return {name: full_tensor(value.detach()).cpu().clone() for name, value in parameters}

    def _judged(self, sample: HeldOut, length: int) -> Measured:
        """The sums over held-out blocks, in smaller micro-batches if memory runs out."""

        def measured(tokens: int) -> Measured:
            plain = plainly(self.train_state.model, wrapped=bool(self.machine.shard))
            with plain as model:
                return sample.measure(model, self.world, tokens=tokens)

        # Small micro-batches: logits of all tokens of a large one would take tens of gigabytes.
        tokens = min(self.tokens, max(FORWARD_TOKENS, length))
        return halving(
            measured,
            tokens,
            least=length if self.world.size == 1 else tokens,  # all processes take the same
            problem=f"{self.world.device}: out of memory for held-out blocks",
            remedy="use a smaller --micro-batch or --size",
        )

    def probed(self) -> dict[str, dict[str, float]]:
        """The scores of the job's probes on the present weights."""
        assert self.job.probe is not None
        tokenizer = self.job.stores[0][0].tokenizer
        with plainly(self.model), plainly(self.model.encoder):
            now = Model("the run", self.recipe, tokenizer, self.model.eval())
            return self.job.probe(now, self.world.device)

    def save(
        self, folder: Path, step: Step, *, state: dict[str, Any], keep: int, ends: bool
    ) -> Path | None:
        """Write a checkpoint that the run can resume from, also at its end.

        An adaptation ends with the weights that early stopping kept.
        """
        state = {"data": self.job.identity(), "seed": self.seed, **state}
        if self.early_stopping is not None:
            state["best"] = self.early_stopping.state()
            if ends and self.early_stopping.weights:
                set_weights(self.train_state.model, self.early_stopping.weights)
        return save(
            folder,
            step,
            self.train_state,
            self.world,
            state=state,
            texts={
                "recipe.toml": recipes.to_toml(self.recipe),
                "tokenizer.json": self.job.stores[0][0].tokenizer.to_str(),
            },
            keep=keep,
            more=self.early_stopping.tensors() if self.early_stopping and not ends else {},
        )

    def recall(self, checkpoint: Checkpoint) -> None:
        """Restore the state of early stopping from a checkpoint."""
        if self.early_stopping is not None:
            self.early_stopping.recall(checkpoint)

    def facts(self) -> dict[str, Any]:
        """The machine and the settings, for machine.toml."""
        device = self.world.device
        return {
            **machine_facts(),
            **machines.facts(device),
            "precision": self.precision,
            "micro_tokens": self.tokens,
            "workers": self.machine.threads,
            "compiled": self.compiled,
            "kernels": self.machine.fuses(device, compiled=self.compiled),
            "graphs": self.train_state.replays,
            "recompute": bool(self.machine.recompute),
            "sharded": bool(self.machine.shard),
            "muon": self.recipe.optimiser.product_precision(device),
            "processes": self.world.size,
            **self.job.facts(),
        }

    def _check_texts(self) -> None:
        if rows_of_a_group(self.recipe, 2) > 1 and sum(s.size for s in self.sources(0)) < 2:
            raise UserError(
                f"{self.job.stores[0][0].name}: has only one text, but {self.recipe.name}"
                " tells texts apart; give more text"
            )

    def _micro_tokens(self) -> int:
        """Tokens of a micro-batch: as asked, or as much as every process has memory for."""
        tokens = self.machine.tokens(self.world.device, self.recipe)
        return tokens if self.machine.micro_batch else -self.world.all_reduce_max(-tokens)

    def _model(self) -> PretrainingModel:
        size = self.recipe.tokenizer.vocabulary
        if not self.machine.shard:
            parameters = sum(self.recipe.parameters().values())
            check_room(parameters, self.world.device, memory=memory())
        model = build(self.recipe, size, seed=self.seed, teacher=self.job.teacher)
        if self.job.start is not None:
            begin_with(model, self.job.start)
        return model

    def _train_state(self) -> TrainState:
        """The model on its device, wrapped, before the first step."""
        device, compiled = self.world.device, self.compiled
        replays = self.machine.replays(
            device, self.recipe, compiled=compiled, usual=self._waits_for_launches()
        )
        if compiled:
            self.model = self._compiled_model(replays=replays)
        else:
            self.machine.place((self.model, *self.model.teacher), device, compiled=False)
        wrapped = self.world.wrap(self.model, shard=bool(self.machine.shard))
        state = TrainState(wrapped, [], self.recipe.optimiser.clip, self.seed, replays=replays)
        self._reset(state)
        return state

    def _reset(self, state: TrainState) -> None:
        """Begin anew with everything that training changes, except the weights."""
        fp16 = self.precision == "fp16"
        state.optimisers = self.recipe.optimiser.build(self._parameters())
        state.mean = WeightMean(self.model.parameters()) if self.schedule.average else None
        state.scaler = torch.amp.GradScaler(self.world.device.type) if fp16 else None
        state.memory = None

    def _compiled_model(self, *, replays: bool) -> PretrainingModel:
        """The model on its device, compiled now or for an earlier run of its shape."""
        model, device = self.model, self.world.device
        tables = self.recipe.tables()
        # Teachers of equal parameters may still differ, as in the number of their heads.
        taught_by: tuple[Any, ...] = model.teacher
        parameters = [[(n, p.shape) for n, p in one.named_parameters()] for one in taught_by]
        teachers = [one.encoder.shape for one in taught_by], parameters
        shape = repr((tables["encoder"], tables["objectives"], self.recipe.tokenizer.vocabulary))
        shape += repr((teachers, device, self.precision, self.machine, replays))
        compiled = warm.compiled_for(shape, model, *model.teacher)
        if isinstance(compiled, PretrainingModel):
            return compiled
        self.machine.place((model, *model.teacher), device, compiled=True)
        # Sharded weights are gathered between layers, which breaks the graph.
        machines.compile_model(model, whole=not self.machine.shard, replays=replays)
        if self.world.size == 1:
            warm.keep(shape, model, *model.teacher)
        return model

    def _waits_for_launches(self) -> bool:
        """Whether a GPU may compute a step faster than the CPU launches it.

        So it is in narrow models; CUDA graphs help if a step is one micro-batch of one process.
        """
        step_tokens = self.recipe.schedule.batch_size * self.recipe.blocks.length
        alone = self.world.size == 1 and step_tokens <= self.tokens
        return alone and self.recipe.encoder.hidden_size <= _NARROW

    def _timed_recipe(self) -> Recipe:
        """The recipe to time; on a CPU with steps of few blocks, which cost as much per token.

        With a memory, or with a contrastive objective, the number of rows of a step stays as it is.
        """
        recipe = self.recipe
        blocks = max(1, _TIMED_TOKENS // recipe.blocks.length) * self.world.size
        fixed = recipe.encoder.memory or any(part.contrasts for part in recipe.objectives)
        if self.world.device.type != "cpu" or fixed or recipe.schedule.batch_size <= blocks:
            return recipe
        return replace(recipe, schedule=replace(recipe.schedule, batch_size=blocks, ramp=()))

    def _steps(self, recipe: Recipe | None = None) -> Steps:
        return Steps(
            recipe or self.recipe,
            self.job.stores,
            seed=self.seed,
            rank=self.world.rank,
            size=self.world.size,
            tokens=self.tokens,
            gpu=self.world.device.type == "cuda",
        )

    def _jobs(self, steps: Steps, first: int, cursor: Cursor) -> Iterator[Callable[[], Prepared]]:
        """The jobs that prepare the steps: on a GPU in other processes."""
        count = self.machine.threads
        if not (steps.gpu and count and StepProcesses.can_prepare(steps)):
            return steps.jobs(first, cursor)
        processes = StepProcesses(steps, cursor, count=count)
        return steps.jobs(first, cursor, ready=processes.ready)

    def _mean(self, seconds: float) -> float:
        """The mean over the processes, so that all compute with the same value."""
        mean = torch.tensor(seconds, dtype=torch.float64, device=self.world.device)
        return float(self.world.all_reduce_sum(mean)) / self.world.size

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self.model.named_parameters())
