"""Pretraining: start a run, go on with one, distil a teacher into a student."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.api.recipes import RecipeLike, RecipeOptions
from clozelab.api.watching import Watch, follow_run
from clozelab.errors import UserError
from clozelab.options import Place, Places, command
from clozelab.runs.directory import Run
from clozelab.runs.options import MachineOptions, SaveOptions

if TYPE_CHECKING:
    from clozelab.config.recipe import Recipe
    from clozelab.runs.machine import Machine


@command
def pretrain(
    recipe: RecipeLike | None = None,
    *,
    data: Places = (),
    out: Place | None = None,
    budget: str | None = None,
    seed: int | None = None,
    from_: Place | None = None,
    resume: Place | None = None,
    shard: bool | None = None,
    changes: RecipeOptions,
    saving: SaveOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Train an encoder, or go on with a run.

    Args:
        recipe: a name or a TOML file
        data (CORPUS[:WEIGHT]): a corpus; several are mixed by their size times their weight
        out (DIR): the run's folder
        budget: 20m, 300Mtok or 12steps; the schedule is fitted to it, and to the pace as it goes
        seed: of weights, order, masks and dropout (0)
        from_ (MODEL): begin with the weights of a run, a Hugging Face directory or a hub name
        resume (RUN): go on with this run, as it was started
        shard: share the weights out over processes, under torchrun
    """
    on = machine_of(machine, shard=shard)
    if resume is not None:
        if out is not None or from_ is not None:
            raise UserError(f"{resume}: is resumed where it stands; leave --out and --from out")
        changed = recipe is None and (changes.set or changes.size)
        if changed or budget is not None or seed is not None:
            raise UserError(
                f"{resume}: a run is resumed as it was started; leave --set, --size, --seed and"
                f" --budget out, or start a run of its own with --from {resume}"
            )
        own = None if recipe is None else changes.read(recipe, watch)
        return _resumed(resume, own, data=data, saving=saving, machine=on, watch=watch)
    if recipe is None or not data or out is None:
        raise UserError(
            "pretrain needs a recipe, --data CORPUS and --out DIR; or --resume DIR to go on"
        )
    from clozelab.pretraining import starting
    from clozelab.pretraining.pretrain import pretrain as train

    found, seed = changes.read(recipe, watch), seed or 0
    if from_ is None:
        task = starting.fresh(found, data=data, seed=seed, budget=budget)
    elif changes.size is not None or any(one.startswith("encoder.") for one in changes.set):
        raise UserError("--from brings its own encoder: leave --size and --set encoder.… out")
    else:
        shaped = any(one.startswith(("blocks.", "schedule.")) for one in changes.set)
        task = starting.continued(found, from_, shaped=shaped, data=data, seed=seed, budget=budget)
    place = Path(out)
    follow_run(train(task, place, machine=on, saving=_saving(saving)), place, watch)
    return Run(place)


@command
def resume(
    run: Place,
    *,
    recipe: RecipeLike | None = None,
    data: Places = (),
    shard: bool | None = None,
    saving: SaveOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Go on with a run, as it was started.

    Args:
        run: the run, or its folder
        recipe: to be sure that it is the run's
        data (CORPUS[:WEIGHT]): where the corpora of the run are by now
        shard: share the weights out over processes, under torchrun
    """
    own = None if recipe is None else RecipeOptions().read(recipe, watch)
    on = machine_of(machine, shard=shard)
    return _resumed(run, own, data=data, saving=saving, machine=on, watch=watch)


def _resumed(
    run: str,
    recipe: Recipe | None,
    *,
    data: Places,
    saving: SaveOptions,
    machine: Machine,
    watch: Watch,
) -> Run:
    from clozelab.pretraining import starting
    from clozelab.pretraining.pretrain import resume as train

    place = Path(run)
    task = starting.resumed(place, recipe=recipe, data=data)
    follow_run(train(task, place, machine=machine, saving=_saving(saving)), place, watch)
    return Run(place)


@command
def distil(
    teacher: Place,
    *,
    out: Place,
    data: Places = (),
    recipe: RecipeLike = "distilbert",
    budget: str | None = None,
    seed: int = 0,
    shard: bool | None = None,
    changes: RecipeOptions,
    saving: SaveOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Train a student under a teacher.

    Args:
        teacher: a run, a Hugging Face directory or a hub name
        data (CORPUS[:WEIGHT]): a corpus; several are mixed by their size times their weight
        out (DIR): the run's folder
        recipe: of the student (distilbert)
        budget: 20m, 300Mtok or 12steps; the schedule is fitted to it, and to the pace as it goes
        seed: of weights, order, masks and dropout (0)
        shard: share the weights out over processes, under torchrun
    """
    from clozelab.pretraining import starting
    from clozelab.pretraining.pretrain import pretrain as train

    keys = [one.partition("=")[0] for one in changes.set]
    task = starting.taught(
        changes.read(recipe, watch),
        teacher,
        data=data,
        seed=seed,
        budget=budget,
        sized=changes.size is not None,
        own=[key.removeprefix("encoder.") for key in keys if key.startswith("encoder.")],
    )
    place, on = Path(out), machine_of(machine, shard=shard)
    follow_run(train(task, place, machine=on, saving=_saving(saving)), place, watch)
    return Run(place)


def machine_of(options: MachineOptions, *, shard: bool | None = None) -> Machine:
    """The machine that some options choose."""
    from clozelab.runs.machine import Machine

    return Machine(**asdict(options), shard=shard)


def _saving(saving: SaveOptions) -> SaveOptions:
    """Who says how often to save has it so, however long that takes."""
    return saving if saving.save_every is None else replace(saving, max_seconds_between_saves=None)
