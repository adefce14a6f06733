"""Probes: what the layers of a frozen model hold of tasks, and how near its vectors are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clozelab.api.models import layer_of, opened
from clozelab.api.tasks import TaskFiles
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.options import ModelLike, Place, Places, command
from clozelab.runs.options import Device

if TYPE_CHECKING:
    from clozelab.scoring.probe import Probes
    from clozelab.scoring.probed import ProbeTask


@command
def probe(
    model: ModelLike,
    task: Places,
    *,
    layer: Any = "all",
    pool: Literal["mean", "cls"] = "mean",
    fit: Literal["ridge", "logistic"] = "ridge",
    examples: int = 16_384,
    split: str | None = None,
    train: Place | None = None,
    dev: Place | None = None,
    out: Place | None = None,
    picture: Place | None = None,
    overwrite: bool = False,
    device: Device | None = None,
    files: TaskFiles,
    watch: Watch,
) -> Probes:
    """Read tasks off the layers of a frozen model by linear probes; nothing of it is tuned.

    A probe is fitted on the training set, its penalty chosen there by cross-validation, and scored
    on the dev set. Nothing is drawn: the same model and data give the same numbers. Of several
    layers the one with the least loss in cross-validation counts. The tasks sts12 … sts16,
    stsb-cosine and sick-cosine (sts: all of them) correlate the cosine of two texts' vectors with
    people's judgement, without any fit; there the last layer counts.

    Args:
        model: a run, a checkpoint, a Hugging Face directory or a hub name
        task: known tasks to classify, regress or tag (see clozelab tasks), wic, sts, …; or one of
            those three words for one's own files
        layer: all, last, or a number; 0 is the embedding (all)
        pool: a text is the mean of its tokens, or its [CLS] (mean)
        fit: ridge regression in closed form, or logistic regression (ridge)
        examples: texts at most to fit a probe on, or four times as many words; 0 for all (16,384)
        split: of the task, to score on (dev)
        train (FILE): of one's own, .tsv .csv .jsonl .parquet … or hf:NAME
        dev (FILE): of one's own, to score on
        out (FILE.json): record the scores, digests of data and model, the commit
        picture (FILE.svg): draw the scores by layer
        overwrite: replace the files if they are there
        device: where to compute (a GPU, if there is one)
    """
    from clozelab.files import check_output, write_text

    if picture is not None and Path(picture).suffix != ".svg":
        raise UserError(f"--picture {picture}: is drawn as .svg; name it so")
    chosen = layer_of(layer)
    tasks = _tasks(task, split=split, train=train, dev=dev, files=files)
    for one in tasks:
        one.check()  # before torch, which takes seconds to load
    for place in (out, picture):
        if place is not None:
            check_output(Path(place), overwrite=overwrite)

    from clozelab.runs.directory import machine_facts
    from clozelab.scoring.frozen import FrozenEncoder
    from clozelab.scoring.probe import Probes, follow, layers_of
    from clozelab.scoring.probed import Excerpt
    from clozelab.training.world import join

    loaded = opened(model, watch)
    results = []
    with join(device) as world:
        loaded.module.to(world.device).eval()
        encoder = FrozenEncoder(loaded, world.device, pool=pool)
        layers = layers_of(encoder, chosen)
        # What later tasks ask for, too, is computed once and kept until then.
        wanted = [one.excerpts(examples) for one in tasks]
        for number, one in enumerate(tasks):
            for note in one.files.notes:
                watch.warn(f"{one.name}: {note}")
            later = set[Excerpt]().union(*wanted[number + 1 :])
            work = follow(one, encoder, layers=layers, by=fit, most=examples, needed=later)
            results.append(watch.drain(work, one.name, 1))
    if encoder.cut:
        watch.warn(f"texts longer than the blocks the model was trained on, cut: {encoder.cut:,}")
    probes = Probes(loaded.place, tuple(results))
    if out is not None:
        record = {
            "machine": machine_facts(),
            "model": {"place": loaded.place, "step": loaded.step, "sha256": loaded.digest},
            **{"layer": chosen, "pool": pool, "fit": fit, "examples": examples},
            "digests": {one.name: one.digests() for one in tasks},
            "probes": [one.as_json() for one in probes.results],
        }
        write_text(Path(out), json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if picture is not None:
        write_text(Path(picture), _drawn(probes))
    return probes


def _tasks(
    words: Places, *, split: str | None, train: str | None, dev: str | None, files: TaskFiles
) -> list[ProbeTask]:
    from clozelab.finetuning.request import Data
    from clozelab.scoring.probed import ProbeTask, tasks_of

    if train is None and dev is None:
        if files.columns:
            raise UserError("--columns is for one's own files: name them by --train and --dev")
        return tasks_of(words, root=files.task_data, split=split)
    if len(words) != 1 or train is None or dev is None:
        raise UserError(
            "probes on one's own files need one word (classify, pairs, regress or tag), --train"
            " FILE and --dev FILE"
        )
    if split is not None:
        raise UserError("--split is of a known task: leave it out, --dev names what is scored")
    (word,) = words
    data = Data(word, train=train, dev=dev, columns=tuple(files.columns))
    data.check()
    return [ProbeTask(word, data)]


def _drawn(probes: Probes) -> str:
    """Each task's first metric over the layers."""
    from clozelab.reporting import figures
    from clozelab.reporting.figures import Line

    lines = [
        Line(
            f"{one.task}: {one.metrics[0].replace('_', ' ')}",
            [(float(each.layer), each.scores[one.metrics[0]]) for each in one.layers],
            colour,
        )
        for colour, one in enumerate(probes.results)
    ]
    return figures.as_file(figures.curves(lines, across="layer", up="score", whole=True))
