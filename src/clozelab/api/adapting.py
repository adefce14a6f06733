"""Adapt: go on with a pretrained model on one's own text, and see what it gains and forgets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from clozelab.api.corpora import fetch_corpora
from clozelab.api.scoring import check_texts, score
from clozelab.api.tasks import finetune
from clozelab.api.training import Budget, Seed, machine_of, trained
from clozelab.api.watching import Watch, speaks
from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.interrupts import Stopped, signal_of
from clozelab.options import (
    Few,
    LocalFolder,
    ModelPlace,
    Place,
    Settings,
    Words,
    command,
)
from clozelab.runs.adaptation import FILE, BeforeAfter, read_adaptation
from clozelab.runs.directory import Run
from clozelab.runs.options import MachineOptions, SaveOptions


@command
def adapt(
    model: ModelPlace | None = None,
    *,
    data: Place | None = None,
    out: LocalFolder | None = None,
    budget: Budget | None = None,
    replay: Place | None = None,
    general: Place | None = None,
    detour: float = 0.0,
    patience: Few | None = None,
    tasks: Words = (),
    seeds: Few | None = None,
    texts: Place | None = None,
    seed: Seed | None = None,
    set: Settings = (),
    resume: LocalFolder | None = None,
    saving: SaveOptions,
    machine: MachineOptions,
    watch: Watch,
) -> Run:
    """Continue the pretraining of a model on your own text, with a recipe made for it.

    The recipe is the model's own with a few changes, which are printed. The held-out losses on the
    new text and on general text are measured before the first step and during training. The run
    keeps the weights with the lowest held-out loss on the new text. adaptation.html in the run's
    folder compares before and after, and so does the model card when the model is exported.

    Args:
        data (CORPUS): the new text, built with the model's tokenizer
        out (DIR): the run's folder
        budget: 20m, 300Mtok or 12steps (four passes over the text)
        replay (CORPUS[:SHARE]): take this share of the training tokens from general text (0.1)
        general (CORPUS): measure forgetting on the held-out text of this corpus (the corpus of
            --replay, or of the model's own run)
        detour (SHARE): train this share of the steps causally first, the rest in both directions
            (0)
        patience: stop after this many evaluations without improvement; 0 never stops (3)
        tasks (TASK,…): fine-tune on these tasks before and after, and compare the scores
        seeds: fine-tuning runs for each task (1)
        texts (FILE): compare the pseudo-perplexity of these texts, one per line
        set (KEY=VALUE): change a value of the recipe for this run
        resume (RUN): continue this adaptation with the options it was started with
    """
    on = machine_of(machine)
    if resume is not None:
        asked = (model, data, out, budget, replay, general, detour, tasks, texts, set)
        if any(asked) or (patience, seeds, seed) != (None, None, None):
            raise UserError(
                f"{resume}: a resumed adaptation keeps its options; leave the other options out"
            )
        run = Run.open(resume)
        if "adaptation" not in run.machine():
            raise UserError(
                f"{resume}: is not an adaptation; resume it with clozelab pretrain --resume"
                f" {resume}"
            )
        from clozelab.pretraining import starting

        job = starting.resumed(run.path)
        trained(job, resume, copy_to=None, saving=saving, machine=on, watch=watch, resume=True)
        return _finished(run, machine, watch, task_data=saving.task_data)
    if model is None or data is None or out is None:
        raise UserError(
            "adapt needs a model, --data CORPUS and --out DIR; or --resume DIR to resume one"
        )
    request = _request(tasks, 1 if seeds is None else seeds, texts, saving)
    if texts is not None:
        check_texts(model, texts, watch)
    fetch_corpora([place for place in (data, replay, general) if place], watch)

    from clozelab.pretraining.adaptation import adaptation

    chosen: dict[str, Any] = {"patience": patience, "seed": seed}
    job = adaptation(
        model,
        data,
        replay=replay,
        general=general,
        detour=detour,
        changes=set,
        budget=budget,
        request=request,
        **{name: each for name, each in chosen.items() if each is not None},
    )
    _explain(job, model, watch, replay=replay)
    trained(job, out, copy_to=None, saving=saving, machine=on, watch=watch)
    return _finished(Run(Path(out)), machine, watch, task_data=saving.task_data)


def _request(
    tasks: Sequence[str], seeds: int, texts: str | None, saving: SaveOptions
) -> dict[str, Any]:
    """What is to be measured at the end, known to be there before anything is written."""
    request: dict[str, Any] = {}
    if tasks:
        from clozelab.finetuning.request import Data, absolute

        for task in tasks:
            Data(task, root=saving.task_data).check()
        request = {"tasks": list(tasks), "seeds": seeds}
        if saving.task_data is not None:
            request["task_data"] = absolute(saving.task_data)
    if texts is not None:
        request["texts"] = str(Path(texts).resolve())
    return request


def _explain(job: Any, model: str, watch: Watch, *, replay: str | None) -> None:
    """Show the recipe as a difference, and what is watched, before anything runs."""
    watch.say(f"changes to the recipe of {model} ({job.recipe.name}):")
    for line in job.adaptation.request["changes"]:
        watch.say(f"  {line}")
    if job.adaptation.general is None:
        watch.warn(
            "forgetting is not measured; name a corpus of general text with --general or --replay"
        )
    else:
        general = job.adaptation.general
        less = "" if replay else f"; --replay {general.path}:0.1 would forget less of it"
        watch.say(f"general text: {general.name}{less}")


def _finished(run: Run, machine: MachineOptions, watch: Watch, *, task_data: str | None) -> Run:
    """Measure what was asked for before and after, and write all of it down.

    `task_data` is where the data of tasks is by now; None: where the record says, which names a
    URL without its credentials.
    """
    from clozelab.reporting import adaptation as reporting
    from clozelab.runs.record import read_run

    facts = run.machine()
    try:
        rows = _tasks(run, facts, machine, watch, task_data=task_data)
        rows += _perplexity(run, facts, machine, watch)
    except KeyboardInterrupt as error:
        raise Stopped(
            "stopped; the model is adapted, finish measuring it with clozelab adapt"
            f" --resume {run.path}",
            signal=signal_of(error),
        ) from None
    if not speaks():  # all of torchrun's processes measure, and one of them writes
        return run
    record = json.dumps({"rows": [asdict(row) for row in rows]}, indent=1, ensure_ascii=False)
    write_text(run.path / FILE, record + "\n")
    adapted = read_adaptation(run)
    if adapted is None:
        return run
    place = run.path / "adaptation.html"
    page = reporting.page(adapted, read_run(run, run.path.resolve().name))
    write_text(place, page.html())
    watch.say(f"{place}: {adapted.verdict}")
    if adapted.outweighed:
        watch.warn(
            f"forgetting exceeds the gain ({adapted.forgetting:.3f} to {adapted.gain:.3f}"
            " nats): replay general text with --replay CORPUS:0.1 or more, or use a lower"
            " optimiser.learning_rate or fewer steps"
        )
    return run


def _tasks(
    run: Run,
    facts: Mapping[str, Any],
    machine: MachineOptions,
    watch: Watch,
    *,
    task_data: str | None,
) -> list[BeforeAfter]:
    """Scores on dev sets, each the mean over the seeds; one that diverged learned nothing."""
    from clozelab.finetuning.finetune import tunings_of

    request, rows = facts["adaptation"], []
    how: dict[str, Any] = {**asdict(machine), "task_data": task_data or request.get("task_data")}
    how |= {"seeds": request.get("seeds", 1), "progress": watch.progress}
    for task in request.get("tasks", []):
        means = []
        for name, place in (("before", facts["from"]), ("after", str(run.path))):
            tuned = finetune(place, task, out=run.path / "tasks" / f"{task}-{name}", **how)
            tunings = tunings_of(tuned.result() or {})
            means.append({m: fmean(one[m] for one in tunings if m in one) for m in tunings[0]})
        rows += [
            BeforeAfter(f"{task}, {metric.replace('_', ' ')}", mean, means[1][metric], ".2f")
            for metric, mean in means[0].items()
        ]
    return rows


def _perplexity(
    run: Run, facts: Mapping[str, Any], machine: MachineOptions, watch: Watch
) -> list[BeforeAfter]:
    """That of a token, over all texts."""
    file = facts["adaptation"].get("texts")
    if file is None:
        return []
    how: dict[str, Any] = {"device": machine.device, "progress": watch.progress}
    places = (facts["from"], str(run.path))
    scores: list[Any] = [score(place, file=[file], **how) for place in places]
    before, after = (each.perplexity for each in scores)
    return [BeforeAfter(f"pseudo-perplexity of {Path(file).name}", before, after, ".2f")]
