"""Pretrain: a recipe, stores and a budget → a run directory with checkpoints and a log.

Both functions are generators of events, which the caller displays. A run's folder records its
recipe, seed and machine settings, with which it resumes. While a run is written, its folder is
locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from clozelab.config import recipe as recipes
from clozelab.errors import UserError
from clozelab.nearest import counted
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.diagnostics import plateau_of
from clozelab.runs.directory import Run
from clozelab.runs.events import Event, Said
from clozelab.runs.machine import Machine, recorded_device
from clozelab.runs.options import SaveOptions
from clozelab.runs.pacing import Pacer, Stopwatch, Times
from clozelab.runs.saving import restore
from clozelab.runs.session import Session
from clozelab.text.tokenizers import part_of
from clozelab.training.budget import Budget
from clozelab.training.checkpoint import newest, tidy
from clozelab.training.memory import room_for
from clozelab.training.world import World, join

_FEW_STEPS = 100  # fewer teach a model little; not tuned


def pretrain(
    job: PretrainJob, out: Path, *, machine: Machine, saving: SaveOptions
) -> Iterator[Event]:
    """Start a run in a new folder."""
    watch, run = Stopwatch(), Run(out)
    with join(machine.device) as world, ExitStack() as locks:
        exists = run.recipe_file.exists()
        if exists:
            locks.enter_context(_lock(run, world))
        run.refuse_started()  # before anything is built or timed
        with room_for("the model", world.device):
            trainer = PretrainTrainer(job, machine, world)
        if job.budget is not None:
            yield from _fit(trainer, job.budget)
        if not exists:
            locks.enter_context(_lock(run, world))
        if world.is_main:
            # Tells a reader that the recipe has the corpus's tokenizer.
            part = part_of(job.stores[0][0].tokenizer)
            tokenizer = trainer.recipe.tables()["tokenizer"]["use"] if part else None
            facts = {**trainer.facts(), "tokenizer": tokenizer, "keep": saving.checkpoints}
            # Tells a reader which runs' losses can be compared.
            text = job.stores[0][0].tokenizer.to_str()
            facts["tokenizer_digest"] = sha256(text.encode()).hexdigest()[:16]
            facts |= {**_probing(job, saving), **saving.recorded()}
            Run.create(out, recipe_toml=recipes.to_toml(trainer.recipe), machine=facts)
        world.barrier()
        session = _session(trainer, run, saving, times=Times(setup=watch.read()))
        yield from session.go(0, trainer.steps.start())


def _probing(job: PretrainJob, saving: SaveOptions) -> dict[str, Any]:
    """What machine.toml records of the probes."""
    constants = {"probe_constants": job.probe_constants} if job.probe_constants else {}
    return {**saving.probing(), **constants}


def resume(
    job: PretrainJob, out: Path, *, machine: Machine, saving: SaveOptions
) -> Iterator[Event]:
    """Resume a run from its newest undamaged checkpoint."""
    watch, run = Stopwatch(), Run.open(out)
    facts = run.machine()
    changes, changed, saving = saving.changes(facts), saving.recorded(), saving.recalled(facts)
    changed |= _probing(job, saving) if saving.probing() else {}
    if facts.get("keep", saving.keep) != saving.keep:
        changed["keep"] = saving.keep
    with join(machine.device or recorded_device(facts)) as world, _lock(run, world):
        _check_schedule(run, job)
        machine = machine.recalled(facts, world.device, recipe=job.recipe, processes=world.size)
        with room_for("the model", world.device):
            trainer = PretrainTrainer(job, machine, world)
        if world.is_main:
            if changed:
                run.remember(changed)
            tidy(run.checkpoints, keep=saving.checkpoints if run.result() is None else 0)
        world.barrier()
        checkpoint, skipped = newest(run.checkpoints)
        for line in skipped:
            yield Said(line)
        first, cursor, state = 0, trainer.steps.start(), dict[str, Any]()
        if checkpoint is None:
            yield Said(f"{out}: no complete checkpoint; the run starts from the beginning")
        else:
            state = checkpoint.state()
            if not state:
                raise UserError(
                    f"{out}: was imported and has no steps to resume; start a new run with"
                    f" --from {out}"
                )
            _check_data(out, state["data"], trainer.job.identity())
            with room_for("the checkpoint", world.device):
                first, cursor = checkpoint.step, restore(checkpoint, trainer.train_state, world)
                trainer.recall(checkpoint)
        times = Times(**state.get("times", {}))
        times.add("setup", watch.read())
        session = _session(trainer, run, saving, times=times, first=first)
        if state:
            session.recall(state)
        if world.is_main:
            run.resumed(first)
        if first < trainer.schedule.total:
            yield from session.settle(first, also=changes)
        yield from session.go(first, cursor)


def _lock(run: Run, world: World) -> AbstractContextManager[None]:
    """Lock the run's folder against other writers; the main process does so for all."""
    return run.writing() if world.is_main else nullcontext()


def _session(
    trainer: PretrainTrainer, run: Run, saving: SaveOptions, *, times: Times, first: int = 0
) -> Session:
    verb = "pretrain" if trainer.job.adaptation is None else "adapt"
    again = f"clozelab {verb} --resume {run.path}"
    plateau = plateau_of(trainer.recipe, trainer.job.stores)
    session = Session(trainer, run, saving, again=again, plateau=plateau, times=times)
    session.evaluations, session.refit = trainer.evaluations, trainer.refit
    session.probe = trainer.probed if trainer.job.probe is not None else None
    if (stopping := trainer.early_stopping) is not None:
        session.early = lambda: stopping.reason
    budget = trainer.job.budget
    if budget is not None and budget.kind == "seconds" and first < trainer.schedule.total:
        session.pacer = Pacer(
            budget.amount,
            times,
            tokens_a_step=lambda share: trainer.steps.tokens_a_step(share),
            evaluation=trainer.seconds_an_evaluation(saving.held_out_blocks),
            most=trainer.evaluations,
            done=trainer.schedule.progress(first),
        )
        session.evaluations = session.pacer.evaluations
    return session


def _fit(trainer: PretrainTrainer, budget: Budget) -> Iterator[Event]:
    """Fit the schedule to the budget; shrink the micro-batch if timing runs out of memory."""
    size = f"{trainer.schedule.batch_size:,} × {trainer.recipe.blocks.length:,} tokens"
    if budget.kind == "seconds":
        yield Said(f"timing a few steps of {size} to fit the schedule to the budget")
    while True:
        try:
            trainer.fit(budget)
            break
        except torch.OutOfMemoryError:
            pass  # the tensors stay in memory until the error is gone
        yield Said(trainer.shrink())
    steps = trainer.schedule.total
    if budget.kind != "steps" and steps < _FEW_STEPS:
        sizes = ", or use --size tiny, mini or small" if trainer.job.start is None else ""
        yield Said(
            f"the budget is only {counted(steps, 'step')} of {size}; smaller steps teach more:"
            f" set a smaller schedule.batch_size{sizes}"
        )


def _check_schedule(run: Run, job: PretrainJob) -> None:
    """Refuse to resume if another process has refitted the run since its recipe was read."""
    recorded = run.recipe()
    if recorded.schedule != job.recipe.schedule:
        raise UserError(f"{run.path}: was continued by another process; run the same command again")


def _check_data(out: Path, before: list[Any], now: list[Any]) -> None:
    """Refuse to resume with other text than the run began with; its path may have changed."""
    texts, texts_now = ([(s["made"], s["weight"]) for s in stores] for stores in (before, now))
    if texts != texts_now:
        raise UserError(
            f"{out}: was started with other data ({_listed(before)}, now {_listed(now)});"
            " give the same --data"
        )


def _listed(data: list[Any]) -> str:
    return ", ".join(f"{store['path']}:{store['weight']:g}" for store in data)
