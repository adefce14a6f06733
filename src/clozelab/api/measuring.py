"""Measures of models as they are: scores, losses on held-out text, what frozen layers hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clozelab.api.models import identity, layer_of, opened
from clozelab.api.tasks import TaskFiles
from clozelab.api.texts import refuse_existing, write_record
from clozelab.api.watching import Watch
from clozelab.contracts import Pooling
from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.options import (
    ModelLike,
    Overwrite,
    Place,
    Places,
    Words,
    command,
    located,
    refuse_given,
)
from clozelab.remote.access import shown
from clozelab.runs.options import Device

if TYPE_CHECKING:
    from clozelab.pretraining.matrix import MaskMatrix
    from clozelab.scoring.probe import Probes
    from clozelab.scoring.probed import ProbeTask
    from clozelab.text.store import Corpus


@command
def evaluate(
    model: ModelLike,
    task: Place | None = None,
    *,
    split: str | None = None,
    data: Place | None = None,
    pairs: Literal["next", "order"] | None = None,
    masks: str | None = None,
    blocks: int | None = None,
    out: Place | None = None,
    overwrite: Overwrite = False,
    device: Device | None = None,
    files: TaskFiles,
    watch: Watch,
) -> dict[str, dict[str, float]]:
    """Measure the scores of a fine-tuned model, or the held-out losses of a pretrained one.

    Args:
        task: a known task or a labelled file
        split: split of the task to score; it must have labels (dev)
        data (CORPUS): measure losses on the held-out text of this corpus
        pairs: test the pair objective on next sentences, or on the order of sentences
        masks (RECIPE): mask as this recipe does (the model's own)
        blocks: held-out blocks to read (1,024)
        out (FILE.json): record the results, digests of the data, and the commit
    """
    if (task is None) == (data is None):
        raise UserError(
            "evaluate needs a task or a labelled file for a fine-tuned model, or --data CORPUS for"
            " a pretrained one"
        )
    if task is None:
        why = "is for a task or a labelled file, not for --data"
        refuse_given({"--split": split, "--columns": files.columns or None}, why)
    else:
        why = f"is for held-out losses on --data CORPUS, not for {task}"
        refuse_given({"--pairs": pairs, "--masks": masks, "--blocks": blocks}, why)
    split, blocks = split or "dev", 1024 if blocks is None else blocks
    refuse_existing(out, overwrite=overwrite)
    place = located(model, "model")
    facts: dict[str, Any] = {"model": shown(place)}
    if task is not None:
        _check_task(task, files)
        loaded, facts["task"] = opened(model, watch), shown(task)

        from clozelab.contracts import Counts
        from clozelab.finetuning.predict import data_of, follow_score

        labelled = data_of(loaded, task, root=files.task_data, columns=files.columns, part=split)
        if out is not None:
            facts["digests"] = labelled.digests(part=split)
        counts = Counts()
        work = follow_score(loaded, labelled, part=split, device=device, place=place, counts=counts)
        facts["scores"] = results = watch.drain(work, "evaluating", 1)
        watch.warn(*counts.lines())
    else:
        _, store = _corpus(str(data))

        from clozelab.pretraining.held_out import follow
        from clozelab.runs.events import means

        how: dict[str, Any] = {"pairs": pairs, "masks": masks, "blocks": blocks}
        losses = follow(place, str(data), **how, device=device)
        results = means(watch.drain(losses, "evaluating", blocks))
        facts |= {**how, "data": store, "held_out": results}
    if out is not None:
        write_record(out, facts)
    return results


@command
def matrix(
    model: Places,
    *,
    data: Place,
    masks: Words = (),
    blocks: int = 8192,
    pairs: int = 16_384,
    out: Place | None = None,
    picture: Place | None = None,
    overwrite: bool = False,
    device: Device | None = None,
    watch: Watch,
) -> MaskMatrix:
    """Measure the held-out losses of models under every masking strategy, on the same blocks.

    Masked language models are measured under all strategies. Models with a pair objective are also
    tested on next sentences and on the order of sentences.

    Args:
        model: pretrained runs, or Hugging Face directories
        data (CORPUS): the corpus whose held-out text is read
        masks (NAME,…): strategies (token, whole_word, span, …) or recipes (those of the models)
        blocks: held-out blocks at most (8,192)
        pairs: sentence pairs at most, for models with a pair objective; 0 for none (16,384)
        out (FILE.json): record the losses, the corpus's fingerprint, and the commit
        picture (FILE.svg): draw the matrix
        overwrite: replace the files if they exist
    """
    corpus, store = _corpus(data)
    _check_outputs(out, picture, overwrite=overwrite)

    from clozelab.pretraining.matrix import follow
    from clozelab.reporting import figures

    work = follow(model, corpus, masks=masks, blocks=blocks, pairs=pairs, device=device)
    result = watch.drain(work, "cells", 1)
    if result.blocks and result.blocks < blocks:
        watch.say(
            f"{data}: the held-out text has only {result.blocks:,} blocks; all of them were read"
        )
    if out is not None:
        write_record(out, {"paths": model, "data": store, **result.as_json()})
    if picture is not None:  # models down, strategies across
        losses = [[None if cell is None else cell.loss for cell in row] for row in result.cells]
        across = f"held-out loss in nats under the masks of a column, blocks of {result.length}"
        drawn = figures.heat_map(result.models, result.masks, losses, across=f"{across} tokens")
        write_text(Path(picture), figures.as_file(drawn))
    return result


@command
def probe(
    model: ModelLike,
    task: Places,
    *,
    layer: Any = "all",
    pool: Pooling | None = None,
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
    """Score the layers of a frozen model on tasks with linear probes, without fine-tuning it.

    A probe is fitted on the training set, where cross-validation chooses its penalty, and scored on
    the dev set. Nothing is random: the same model and data give the same numbers. Of several
    layers, the reported score is that of the layer with the lowest cross-validation loss. The tasks
    sts12 … sts16, stsb-cosine and sick-cosine (sts: all of them) fit nothing: they correlate the
    cosine of two texts' vectors with human judgements, and report the last layer.

    Args:
        task: known tasks of the kinds classify, regress or tag (see clozelab tasks), wic, sts, …;
            or one of those three kinds for your own files
        layer: all, last, or a number; 0 is the embedding (all)
        pool: the vector of a text: the mean of its tokens, the mean with special tokens (mean_all),
            or its [CLS] (what the model was trained for, else mean)
        fit: ridge regression in closed form, or logistic regression (ridge)
        examples: texts at most to fit a probe on, or four times as many words; 0 for all (16,384)
        split: split of the task to score on (dev)
        train (FILE): your own training set, .tsv .csv .jsonl .parquet … or hf:NAME
        dev (FILE): your own set to score on
        out (FILE.json): record the scores, digests of data and model, and the commit
        picture (FILE.svg): draw the scores by layer
        overwrite: replace the files if they exist
    """
    chosen = layer_of(layer)
    tasks = _probe_tasks(task, split=split, train=train, dev=dev, files=files)
    for one in tasks:
        one.check()  # before torch, which takes seconds to load
    _check_outputs(out, picture, overwrite=overwrite)

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
            watch.warn(*(f"{one.name}: {note}" for note in one.files.notes))
            later = set[Excerpt]().union(*wanted[number + 1 :])
            work = follow(one, encoder, layers=layers, by=fit, most=examples, needed=later)
            results.append(watch.drain(work, one.name, 1))
    if encoder.cut:
        watch.warn(f"texts truncated to the length of the training blocks: {encoder.cut:,}")
    probes = Probes(loaded.place, tuple(results))
    if out is not None:
        record = {
            "model": identity(loaded),
            **{"layer": chosen, "pool": encoder.pool, "fit": fit, "examples": examples},
            "digests": {one.name: one.digests() for one in tasks},
            "probes": [one.as_json() for one in probes.results],
        }
        write_record(out, record)
    if picture is not None:
        write_text(Path(picture), _by_layer(probes))
    return probes


def _check_task(task: str, files: TaskFiles) -> None:
    """Refuse a task or a file that is not there, before torch is loaded."""
    from clozelab.finetuning.files.hub import is_hub
    from clozelab.finetuning.files.named import NAMED
    from clozelab.finetuning.files.tables import existing
    from clozelab.finetuning.request import Data
    from clozelab.remote.cache import local_file

    if task in NAMED:
        Data(task, root=files.task_data, columns=tuple(files.columns)).check()
    elif not is_hub(task) and existing(local_file(task)) is None:
        raise UserError(
            f"{task}: is neither a file nor a known task; check the path, or see clozelab tasks"
        )


def _corpus(data: str) -> tuple[Corpus, dict[str, str]]:
    """A corpus, and what is recorded of it; opened before torch, which takes seconds to load."""
    from clozelab.text.store.corpus import open_stores

    ((corpus, _),) = open_stores([data])
    return corpus, {"path": corpus.name, "fingerprint": corpus.manifest["fingerprint"]}


def _check_outputs(out: str | None, picture: str | None, *, overwrite: bool) -> None:
    if picture is not None and Path(picture).suffix != ".svg":
        raise UserError(f"--picture {picture}: must end in .svg; rename it")
    refuse_existing(out, picture, overwrite=overwrite)


def _probe_tasks(
    words: Places, *, split: str | None, train: str | None, dev: str | None, files: TaskFiles
) -> list[ProbeTask]:
    from clozelab.finetuning.request import Data
    from clozelab.scoring.probed import ProbeTask, tasks_of

    if train is None and dev is None:
        if files.columns:
            raise UserError("--columns is for your own files; name them with --train and --dev")
        return tasks_of(words, root=files.task_data, split=split)
    if len(words) != 1 or train is None or dev is None:
        raise UserError(
            "probes on your own files need one kind of task (classify, pairs, regress or"
            " tag), --train FILE and --dev FILE"
        )
    if split is not None:
        raise UserError(
            "--split is for known tasks; leave it out, since --dev names the set to score"
        )
    data = Data(words[0], train=train, dev=dev, columns=tuple(files.columns))
    data.check()
    return [ProbeTask(words[0], data)]


def _by_layer(probes: Probes) -> str:
    """Each task's first metric over the layers, drawn."""
    from clozelab.reporting import figures

    lines = []
    for colour, one in enumerate(probes.results):
        metric = one.metrics[0]
        points = [(float(each.layer), each.scores[metric]) for each in one.layers]
        lines.append(figures.Line(f"{one.task}: {metric.replace('_', ' ')}", points, colour))
    return figures.as_file(figures.curves(lines, across="layer", up="score", whole=True))
