"""Pretraining: start a run, go on with one, distil a teacher into a student."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from filelock import FileLock

from clozelab.api.corpora import fetch_corpora
from clozelab.api.recipes import RecipeOptions
from clozelab.api.watching import Watch, copying, follow_run, noticed, speaks
from clozelab.errors import UserError
from clozelab.options import (
    CopyTo,
    Data,
    LocalFolder,
    MixTemperature,
    ModelPlace,
    Place,
    RecipeLike,
    budget_word,
    command,
    whole,
)
from clozelab.remote.access import is_url, shown
from clozelab.runs.directory import Run
from clozelab.runs.options import MachineOptions, SaveOptions

if TYPE_CHECKING:
    from clozelab.config.recipe import Recipe
    from clozelab.pretraining.job import PretrainJob
    from clozelab.runs.machine import Machine


Budget = Annotated[
    str,
    budget_word,
    "20m, 300Mtok or 12steps; the schedule is fitted to it, and adjusted to the measured speed",
]
Seed = Annotated[int, whole, "seed of weights, order, masks and dropout (0)"]
Shard = Annotated[bool, "shard the weights over the processes of torchrun"]


@command
def pretrain(
    recipe: RecipeLike | None = None,
    *,
    data: Data = (),
    mix_temperature: MixTemperature | None = None,
    out: LocalFolder | None = None,
    copy_to: CopyTo | None = None,
    budget: Budget | None = None,
    seed: Seed | None = None,
    from_: Place | None = None,
    resume: LocalFolder | None = None,
    shard: Shard | None = None,
    changes: RecipeOptions,
    saving: SaveOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Pretrain an encoder, or resume a run.

    Args:
        out (DIR): the run's folder
        from_ (MODEL): start from the weights of a run, a Hugging Face directory or a hub name
        resume (RUN): resume this run with the options it was started with
    """
    on = machine_of(machine, shard=shard)
    if resume is not None:
        if out is not None or from_ is not None:
            raise UserError(
                f"{resume}: a run is resumed in its own folder; leave out --out and --from"
            )
        changed = recipe is None and (changes.set or changes.size)
        if changed or any(option is not None for option in (budget, seed, mix_temperature)):
            raise UserError(
                f"{resume}: a resumed run keeps its options; leave out --set, --size,"
                " --seed, --budget and --mix-temperature, or start a new run with --from"
                f" {resume}"
            )
        own = None if recipe is None else changes.read(recipe, watch)
        return _resumed(resume, own, data, copy_to=copy_to, saving=saving, machine=on, watch=watch)
    if recipe is None or not data or out is None:
        raise UserError(
            "pretrain needs a recipe, --data CORPUS and --out DIR; or --resume DIR to resume a run"
        )
    from clozelab.config.overrides import keys_set
    from clozelab.pretraining import starting
    from clozelab.text.store.mixture import tempered

    read = changes.read(recipe, watch)
    fetch_corpora(data, watch, ahead=True)
    places = tempered(data, mix_temperature)
    source: dict[str, Any] = {"data": places, "seed": seed or 0, "budget": budget}
    if from_ is None:
        job = starting.fresh(read, **source)
    elif changes.size is not None:
        raise UserError("--from takes the encoder of that model; leave --size out")
    else:
        job = starting.continued(
            read,
            from_,
            shaped=any(change.startswith(("blocks.", "schedule.")) for change in changes.set),
            own=keys_set(changes.set, "encoder", read.encoder),
            **source,
        )
    return trained(job, out, copy_to=copy_to, saving=saving, machine=on, watch=watch)


@command
def resume(
    run: LocalFolder,
    *,
    recipe: RecipeLike | None = None,
    data: Data = (),
    copy_to: CopyTo | None = None,
    shard: Shard | None = None,
    saving: SaveOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Resume a run with the options it was started with.

    Args:
        run: the run, or its folder
        recipe: a name or a TOML file, to check that it is the run's recipe
        data (CORPUS[:WEIGHT]): the run's corpora, if they have moved
    """
    own = None if recipe is None else RecipeOptions().read(recipe, watch)
    on = machine_of(machine, shard=shard)
    return _resumed(run, own, data, copy_to=copy_to, saving=saving, machine=on, watch=watch)


@command
def distil(
    teacher: ModelPlace,
    *,
    out: LocalFolder,
    copy_to: CopyTo | None = None,
    data: Data = (),
    recipe: RecipeLike = "distilbert",
    budget: Budget | None = None,
    seed: Seed = 0,
    shard: Shard | None = None,
    changes: RecipeOptions,
    saving: SaveOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Distil a teacher into a student.

    Args:
        out (DIR): the run's folder
        recipe: the student's recipe (distilbert)
    """
    from clozelab.config.overrides import keys_set
    from clozelab.pretraining import starting

    read = changes.read(recipe, watch)
    fetch_corpora(data, watch, ahead=True)
    job = starting.taught(
        read,
        teacher,
        data=data,
        seed=seed,
        budget=budget,
        sized=changes.size is not None,
        own=keys_set(changes.set, "encoder", read.encoder),
    )
    on = machine_of(machine, shard=shard)
    return trained(job, out, copy_to=copy_to, saving=saving, machine=on, watch=watch)


def _resumed(
    run: str,
    recipe: Recipe | None,
    data: Data,
    *,
    copy_to: str | None,
    watch: Watch,
    **options: Any,
) -> Run:
    from clozelab.pretraining import starting

    if copy_to and not Path(run).exists():
        _restore(Path(run), copy_to, watch)
    options |= {"copy_to": copy_to, "watch": watch}
    job = starting.resumed(Path(run), recipe=recipe, data=data)
    return trained(job, run, resume=True, **options)


def _restore(run: Path, url: str, watch: Watch) -> None:
    """Restore a run from its copy: one process of torchrun does, and the others wait for it."""
    from clozelab.remote import copies

    watch.say(f"{run}: is missing; restoring it from its copy at {shown(url)}")
    run.parent.mkdir(parents=True, exist_ok=True)
    lock = run.with_name(f".{run.name}.restoring")
    try:
        with FileLock(lock):
            if not run.exists():
                copies.restore(url, run)
    finally:
        lock.unlink(missing_ok=True)


def trained(
    job: Any,
    out: str,
    *,
    copy_to: str | None,
    saving: SaveOptions,
    machine: Machine,
    watch: Watch,
    resume: bool = False,
) -> Run:
    """Train until the run ends; who says how often to save has it so, however long that takes."""
    from clozelab.pretraining import pretrain as training

    place, train = Path(out), training.resume if resume else training.pretrain
    if saving.save_every is not None:
        saving = replace(saving, max_seconds_between_saves=None)
    job, saving = _probing(job, saving, place)
    with copying(place, copy_to, watch) as update:
        events = train(job, place, machine=machine, saving=saving)
        verb = "pretrain" if job.adaptation is None else "adapt"
        follow_run(noticed(events, update), place, watch, verb=verb)
    if job.adaptation is None:
        _stand(Run(place), watch)
    return Run(place)


def _stand(run: Run, watch: Watch) -> None:
    """Say where a run of some minutes on one GPU would stand among those that are recorded."""
    from clozelab.reporting import board

    machine, result = run.machine(), run.result() or {}
    if not watch.progress or not speaks() or not board.concerns(run.recipe().name, machine):
        return
    minutes = result.get("times", {}).get("training", 0.0) / 60
    reason = board.obstacle(machine, minutes)
    if reason is not None:
        watch.say(f"board: {reason}, so this run is not ranked (results/board/README.md)")
        return

    from clozelab.pretraining.held_out import follow
    from clozelab.runs.events import means
    from clozelab.runs.machine import recorded_device

    data = machine["data"][0].rpartition(":")[0]
    how: dict[str, Any] = {"masks": board.MASKS, "blocks": board.BLOCKS}
    try:
        work = follow(str(run.path), data, **how, device=recorded_device(machine))
        losses = means(watch.drain(work, "evaluating", board.BLOCKS))
    except UserError as error:  # it predicts something else, or its corpus has moved
        watch.say(f"board: this run is not ranked, because {error}")
        return
    if "masked_lm" not in losses:
        watch.say("board: this run is not ranked, because it predicts no masked tokens")
        return
    loss = losses["masked_lm"]["loss"]
    for line in board.standing(loss, minutes, board.rivals(machine, minutes)):
        watch.say(line)


def _probing(job: PretrainJob, saving: SaveOptions, place: Path) -> tuple[PretrainJob, SaveOptions]:
    """The job with the probes that are asked for, or that its run recorded."""
    if not saving.probe and (place / "machine.toml").exists():
        recorded = Run(place).machine()
        names = ("probe", "probe_every", "probe_examples", "task_data")
        known: dict[str, Any] = {name: recorded.get(name) for name in names}
        if saving.task_data is not None:  # where it is by now
            known["task_data"] = saving.task_data
        saving = replace(saving, **known) if known["probe"] else saving
    if not saving.probe:
        return job, saving
    from clozelab.finetuning.files.splits import VARIABLE
    from clozelab.scoring.during import training_probes

    root = saving.task_data or os.environ.get(VARIABLE)
    root = root if not root or is_url(root) else str(Path(root).resolve())
    most = 4096 if saving.probe_examples is None else saving.probe_examples
    probes = training_probes(saving.probe, root=root, most=most)
    saving = replace(saving, task_data=root and shown(root), probe_examples=most)
    if probes.pairs and job.recipe.encoder.reads == "words":
        raise UserError(
            f"--probe {probes.pairs[0].name}: {job.recipe.name} predicts only words of its"
            " corpus; use clozelab score --pairs after training"
        )
    return replace(job, probe=probes, probe_constants=probes.constants()), saving


def machine_of(options: MachineOptions, *, shard: bool | None = None) -> Machine:
    """The machine that some options choose."""
    from clozelab.runs.machine import Machine

    return Machine(**asdict(options), shard=shard)
