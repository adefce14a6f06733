"""The numbers that no change of the code's shape may change: `tests/golden/golden.json`.

Losses are those of shrunk recipes and tasks in double precision. Digests are of values alone,
whatever their fields are called and however wide their integers are: names and types may change.
Where training begins with weights, it begins with stored ones: single precision is not the same
on every processor.
"""

from __future__ import annotations

import atexit
import json
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from support import finetune_tasks
from support.coreference import stories
from support.finetune_tasks import STILL, finetune_request, inputs_of, sample_file
from support.labelled_files import jsonl, write
from support.pretrain_runs import (
    RECIPES,
    double_precision_trainer,
    pretrain_job,
    shrunk,
    steps_of,
    store,
)
from torch import Tensor, nn

from clozelab.pretraining import starting
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.reporting import study
from clozelab.reporting.records import gather
from clozelab.runs.record import RunRecord
from clozelab.studies import records
from clozelab.training import orthogonal
from clozelab.training.loop import Step

HERE = Path(__file__).resolve().parents[1] / "golden"
FILE = HERE / "golden.json"
RESULTS = Path(__file__).resolve().parents[2] / "results"
PREPARED = 3  # steps whose batches are digested
EPOCHS = (0, 1, 10)  # the first two, and the one that takes up the first of BERT's ten copies again
BLOCKS = 8  # of each epoch

# The recipe, its overrides and its steps: every recipe, and what none of them has.
_WARM = "schedule.warmup=5"
RUNS: dict[str, tuple[str, tuple[str, ...], int]] = {
    **{name: (name, (_WARM,), 20) for name in RECIPES},
    "bert, two lengths": ("bert", (_WARM, "schedule.phases=[[16, 0.6], [32, 0.4]]"), 20),
    "bert, two corpora": ("bert", (_WARM,), 20),
    "bert, more blocks by and by": ("bert", (_WARM, "schedule.ramp=[[2, 0.5]]"), 20),
    "bert, its own Adam": ("bert", (_WARM, "optimiser.use=bert_adam"), 20),
    "roberta, steps of tokens": (
        "roberta",
        (_WARM, "blocks.use=doc_sentences", "schedule.fill=tokens"),
        20,
    ),
    "roberta, untied": ("roberta", (_WARM, "objectives.0.tied=false"), 20),
    "electra, all tokens": ("electra", (_WARM, "objectives.1.use=all_tokens_lm"), 20),
    "deberta, its mask decoder": (
        "deberta",
        (
            *(_WARM, "encoder.layers=2", "encoder.position_projections=own"),
            *("encoder.absolute_positions=decoder", 'objectives=[{use="masked_lm"}]'),
        ),
        20,
    ),
    "modernbert, windows and a course": (
        "modernbert",
        (_WARM, "encoder.layers=3", "masking.course=[[0.0, 1.0], [1.0, 0.5]]"),
        20,
    ),
    "roberta, another block": (
        "roberta",
        (
            *(_WARM, "encoder.layers=2", "encoder.qk_norm=true", "encoder.value_residual=0.5"),
            *("encoder.output_init=zero", "encoder.activation=relu2", "encoder.norm=pre"),
        ),
        20,
    ),
    "spanbert, joint": ("spanbert", (_WARM, "objectives.1.use=span_joint"), 20),
}
# A generator of random bits is not the same on every processor, so these are apart.
DROPOUT: dict[str, tuple[str, tuple[str, ...], int]] = {
    name: (name, ("encoder.dropout=0.1",), 3) for name in ("bert", "xlnet", "elmo")
}
# The kind of task, its embedded file and further settings.
TUNINGS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "classify": ("classify", "definitions", ()),
    "pairs": ("pairs", "pairs", ()),
    "regress": ("regress", "lengths", ()),
    "tag": ("tag", "tags", ()),
    "choose": ("choose", "choices", ()),
    "answer": ("answer", "spans", ()),
    "answer, beam": ("answer", "spans", ("head=beam",)),
    "coreference": ("coreference", "stories", ("task.hidden=16",)),
    "tag, frozen": ("tag", "tags", ("features=last", "reader=bilstm", "hidden=16")),
    "classify, layer decay": (
        "classify",
        "definitions",
        ("layer_decay=0.5", "optimiser=bert_adam"),
    ),
}


@cache
def old() -> Path:
    """A folder with what version 0.1.0 wrote: a corpus, runs, a fine-tuning, a study.

    Its commands were given in a folder /old; what they recorded of it says this folder now.
    """
    folder = Path(tempfile.mkdtemp(prefix="clozelab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unpack_old(folder)
    return folder


def unpack_old(folder: Path) -> None:
    """The same in a folder of one's own, where it may be changed."""
    with tarfile.open(HERE / "old.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for file in folder.rglob("*"):
        # What lies in a checkpoint is sealed, and tells of no place that is looked at.
        if file.suffix in (".json", ".toml") and "checkpoints" not in file.parts:
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace("/old/", f"{folder}/"), encoding="utf-8")


def pretraining(name: str) -> dict[str, Any]:
    """Losses and batches of a recipe."""
    recipe, overrides, steps = RUNS[name]
    if name in ("distilbert", "minilm"):
        teacher, text = str(old() / "run"), [str(old() / "corpus")]
        student = shrunk(recipe, *overrides, steps=steps)
        trainer = double_precision_trainer(starting.taught(student, teacher, data=text, seed=0))
    elif name == "bert, two corpora":
        whole = store("wordpiece", variant="embedded")
        text = [whole, f"{store('wordpiece', documents=20, skip=60, variant='embedded')}:0.5"]
        job = starting.fresh(shrunk(recipe, *overrides, steps=steps), data=text, seed=0)
        trainer = double_precision_trainer(job)
    else:
        trainer = double_precision_trainer(
            pretrain_job(recipe, *overrides, steps=steps, variant="embedded")
        )
    # Muon multiplies in the precision that is fast on a processor.
    with patch.object(orthogonal, "product_dtype", return_value=torch.float64):
        numbers = _numbers(steps_of(trainer), trainer.model)
    return {**numbers, "digests": _batches(trainer)}


def dropout(name: str) -> dict[str, Any]:
    """Losses of a recipe with dropout."""
    recipe, overrides, steps = DROPOUT[name]
    trainer = double_precision_trainer(
        pretrain_job(recipe, *overrides, steps=steps, variant="embedded")
    )
    return _numbers(steps_of(trainer), trainer.model)


def tuning(name: str) -> dict[str, Any]:
    """Losses and batches of a task, from the old run's weights on."""
    kind, source, settings = TUNINGS[name]
    few = 1 if kind == "coreference" else 4
    common = (f"batch_size={few}", "learning_rate=1e-3", "length=48", "steps=4", "warmup=0", *STILL)
    inputs = inputs_of(
        finetune_request(kind, _examples(source), *common, *settings, model=str(old() / "run"))
    )
    work = finetune_tasks.double_precision_trial(inputs)
    jobs = islice(work.jobs(0, work.start()), PREPARED)
    batches = {f"step {number}": job().batches for number, job in enumerate(jobs)}
    batch_digests = {place: digests(value) for place, value in batches.items()}
    return {**_numbers(finetune_tasks.steps_of(work), work.model), "digests": batch_digests}


def result(name: str) -> dict[str, Any]:
    """How much a recorded folder tells: its scores, costs and curves, whatever their names."""
    folder = RESULTS / name
    scores: list[float] = []
    costs: list[float] = []
    if (folder / "study.toml").exists():
        evidence = records.read(folder)
        assert study.page(evidence).written(Path("page.html"))
        runs = [*evidence.runs.values()]
        for outcome in evidence.cells:
            scores += outcome.scores.values()
            costs += outcome.cost.values()
    else:
        runs = gather([folder])[0]
    for run in runs:
        costs += [run.steps, run.tokens, run.seconds]
        scores += [value for metrics in run.last.values() for value in metrics.values()]
    points = [value for run in runs for value in _curves(run)]
    values = {"scores": scores, "costs": costs, "points": points}
    return {
        "runs": len(runs),
        "layers": sum(run.recipe.encoder.layers for run in runs),
        "digests": {what: {f"{len(v)} values": _digest(np.sort(v))} for what, v in values.items()},
    }


OTHERS = {"unfinished", "board"}  # folders of results that are no records themselves
SECTIONS: dict[str, tuple[Callable[[str], dict[str, Any]], Sequence[str]]] = {
    "pretraining": (pretraining, [*RUNS]),
    "dropout": (dropout, [*DROPOUT]),
    "fine-tuning": (tuning, [*TUNINGS]),
    "results": (
        result,
        sorted(
            result_dir.name
            for result_dir in RESULTS.iterdir()
            if result_dir.is_dir() and result_dir.name not in OTHERS
        ),
    ),
}


def recorded() -> dict[str, dict[str, Any]]:
    """What the file says, by section and case."""
    sections: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return sections


def digests(value: Any) -> dict[str, str]:
    """The digest of every array in a value, by its place there."""
    return {place: _digest(array) for place, array in _arrays(value, "")}


def _numbers(steps: Sequence[Step], model: nn.Module) -> dict[str, Any]:
    """Every objective's loss at every step, and norms on the way and at the end."""
    squares = [parameter.detach().square().sum() for parameter in model.parameters()]
    return {
        "losses": {name: [_loss(step.sums[name]) for step in steps] for name in steps[0].sums},
        "gradient norms": [step.norm for step in steps],
        "learning rates": [step.learning_rate for step in steps],
        "parameter norm": float(torch.stack(squares).sum().sqrt()),
    }


def _loss(sums: Mapping[str, float]) -> float:
    """The mean over the targets of a step; 0 where it has none."""
    return sums["loss"] / max(sums["count"], 1)


def _batches(trainer: PretrainTrainer) -> dict[str, dict[str, str]]:
    """Digests of what the data path makes: the first steps, blocks of some epochs, the text."""
    steps = trainer.steps
    contents: dict[str, Any] = {}
    for number, job in enumerate(islice(steps.jobs(0, steps.start()), PREPARED)):
        contents[f"step {number}"] = job().batches
    for number, source in enumerate(steps.sources(0)):
        for epoch in EPOCHS:
            visited = source.order(epoch)
            contents[f"corpus {number}, epoch {epoch}"] = {
                "order": visited,
                "blocks": source.plan(epoch).blocks(visited[:BLOCKS]),
                "hidden": source.examples(epoch, visited[:BLOCKS], progress=0.5),
            }
        contents[f"corpus {number}"] = source.documents
    return {name: digests(value) for name, value in contents.items()}


def _examples(source: str) -> str:
    """A file of a few examples."""
    if source == "stories":
        records = [story._asdict() for story in stories()[:6]]
        return str(write(finetune_tasks.shared_folder() / "stories.jsonl", jsonl(*records)))
    if source == "lengths":  # of definitions
        lines = Path(sample_file("definitions", 16)).read_text(encoding="utf-8").splitlines()[1:]
        texts = [line.split("\t")[0] for line in lines]
        rows = "".join(f"{text}\t{len(text.split()) / 5}\n" for text in texts)
        return str(
            write(finetune_tasks.shared_folder() / "lengths.tsv", "sentence\tscore\n" + rows)
        )
    return sample_file(source, 16)


def _curves(run: RunRecord) -> Iterator[float]:
    for curves in (run.train, run.held_out):
        for points in curves.values():
            yield from (value for _, value in points)


def _arrays(value: Any, place: str) -> Iterator[tuple[str, np.ndarray]]:
    """Every array under a value: of fields, of entries, of items."""
    if isinstance(value, Tensor):
        yield place, value.detach().numpy()
    elif isinstance(value, np.ndarray):
        yield place, value
    else:
        for name, inner in _inside(value):
            yield from _arrays(inner, f"{place}.{name}" if place else name)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, Mapping):
        yield from ((str(name), inner) for name, inner in value.items())
    elif hasattr(value, "_asdict"):
        yield from value._asdict().items()
    elif isinstance(value, (list, tuple)):
        yield from ((str(number), inner) for number, inner in enumerate(value))


def _digest(array: np.ndarray) -> str:
    """Of the shape and the values, integers of any width alike."""
    kind = "<f8" if np.issubdtype(array.dtype, np.floating) else "<i8"
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    return sha256(shape + array.astype(kind).tobytes()).hexdigest()[:16]
