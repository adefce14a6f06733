"""Runs made for tests: small stores, shrunk recipes, and a run from its beginning to its end."""

from __future__ import annotations

import atexit
import math
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from support.corpora import build, write
from support.texts import corpus, tokenizer
from torch import Tensor

from clozelab import data
from clozelab.config.recipe import Recipe, names, read
from clozelab.pretraining import starting
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.pretrain import pretrain
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.events import Event, means
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions
from clozelab.training.checkpoint import Checkpoint, open_checkpoint
from clozelab.training.loop import Step, train
from clozelab.training.world import World

HERE = World(0, 1, torch.device("cpu"))
MACHINE = Machine(device="cpu", workers=0)
QUIET = SaveOptions(save_every=0, evaluate_every=0, evaluate_blocks=32)
RECIPES = names()
STORES = {
    **dict.fromkeys(("bert", "bert_cased", "bert_multilingual", "bert_whole_word"), "wordpiece"),
    **dict.fromkeys(("distilbert", "minilm", "spanbert", "electra"), "wordpiece"),
    **dict.fromkeys(("mosaicbert", "neobert", "simcse", "retromae"), "wordpiece"),
    **dict.fromkeys(("albert", "xlnet", "deberta"), "unigram"),
    **dict.fromkeys(("roberta", "swift", "elmo", "modernbert", "diffusion"), "byte_bpe"),
    **dict.fromkeys(("causal_then_masked", "gpt_bert"), "byte_bpe"),
    **dict.fromkeys(("bert_chinese", "roberta_wwm"), "chinese"),
    "gpt": "char_bpe",
    "dna": "kmer",
    "ernie": "units",
}
_SHAPES = {
    "transformer": {
        "layers": 1,
        "hidden_size": 32,
        "heads": 2,
        "intermediate_size": 64,
        "embedding_size": 32,
    },
    "relative": {"layers": 2, "hidden_size": 32, "heads": 2, "intermediate_size": 64, "memory": 16},
    "lstm": {
        "layers": 2,
        "hidden_size": 16,
        "cell_size": 32,
        "filters": "[[1, 8], [2, 8], [3, 16]]",
        "highways": 1,
    },
}


@cache
def store(kind: str, *, documents: int = 60, skip: int = 0, variant: str = "small") -> str:
    """A store of the embedded text, built once for all tests; its folder.

    With a small vocabulary: most of the time of a shrunk run goes by its size.
    """
    folder = Path(tempfile.mkdtemp(prefix="clozelab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    out = folder / "corpus"
    if kind == "chinese":
        build(str(data.chinese()), out, tokenizer("wordpiece"), held_out=0.1)
    elif kind == "units":
        names = str(data.chinese_entities())
        known = tokenizer("chars")
        build(str(data.chinese()), out, known, held_out=0.1, phrases=True, entities=names)
    else:
        file = write(folder / "text.jsonl", corpus()[skip : skip + documents])
        build(file, out, tokenizer(kind, variant), held_out=0.1)
    return str(out)


def shrunk(name: str, *overrides: str, steps: int = 4, batch_size: int = 4) -> Recipe:
    """A recipe so small that a step takes milliseconds; nothing is dropped out."""
    whole = read(name, size="tiny").tables()
    shape = dict(_SHAPES[whole["encoder"]["use"]])
    if name == "albert":
        shape["embedding_size"] = 16
    settings = {f"encoder.{key}": value for key, value in shape.items()}
    for key in ("dropout", "attention_dropout"):
        if key in whole["encoder"]:
            settings[f"encoder.{key}"] = 0.0
    settings["blocks.length"] = 32
    if name == "minilm":
        settings["objectives.0.heads"] = 8
    if name == "xlnet":
        settings |= {"blocks.reuse": 16, "blocks.rows": batch_size}
    settings |= {"schedule.steps": steps, "schedule.warmup": 0, "schedule.batch_size": batch_size}
    shrinking = [f"{key}={value}" for key, value in settings.items()]
    return read(name, size="tiny", overrides=[*shrinking, *overrides])


def pretrain_job(
    name: str, *overrides: str, seed: int = 0, variant: str = "small", **shape: int
) -> PretrainJob:
    """The job of a shrunk recipe on its store; a student learns from a small teacher."""
    recipe = shrunk(name, *overrides, **shape)
    data = [store(STORES[name], variant=variant)]
    if any(part.needs_teacher for part in recipe.objectives):
        return starting.taught(recipe, teacher(variant), data=data, seed=seed, sized=True)
    return starting.fresh(recipe, data=data, seed=seed)


@cache
def teacher(variant: str = "small") -> str:
    """A small BERT that was trained for a few steps; its folder."""
    folder = Path(tempfile.mkdtemp(prefix="clozelab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    job = pretrain_job("bert", "encoder.layers=2", variant=variant)
    list(pretrain(job, folder / "run", machine=MACHINE, saving=QUIET))
    return str(folder / "run")


def double_precision_trainer(
    job: PretrainJob, machine: Machine = MACHINE, world: World = HERE
) -> PretrainTrainer:
    """A trainer in double precision, in which splits can be compared."""
    if job.teacher is not None:
        job.teacher.double()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        trainer = PretrainTrainer(job, machine, world)
    finally:
        torch.set_default_dtype(before)
    assert all(p.dtype == torch.float64 for p in trainer.model.parameters())
    return trainer


def steps_of(trainer: PretrainTrainer) -> list[Step]:
    """Every step of a job."""
    jobs = trainer.steps.jobs(0, trainer.steps.start())
    return list(train(trainer.train_state, (job() for job in jobs), trainer.world))


def assert_detects(name: str, *, steps: int) -> None:
    """A recipe learns which tokens of a few documents were replaced, not just how many."""
    width = [
        "encoder.hidden_size=64",
        "encoder.intermediate_size=256",
        "encoder.embedding_size=64",
        "encoder.layers=2",
    ]
    recipe = shrunk(name, *width, "optimiser.learning_rate=3e-3", steps=steps, batch_size=16)
    few = store(STORES[name], documents=3, variant="embedded")  # a text that it can learn by heart
    trainer = PretrainTrainer(starting.fresh(recipe, data=[few], seed=0), MACHINE, HERE)
    last = [means(step.sums)["replaced_token"] for step in steps_of(trainer)[-10:]]
    share = recipe.masking.mask_rate  # type: ignore[attr-defined]
    chance = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert fmean(metrics["loss"] for metrics in last) < 0.8 * chance
    assert fmean(metrics["accuracy_replaced"] for metrics in last) > 0.4


def run_pretraining(
    job: PretrainJob, out: Path, machine: Machine = MACHINE, saving: SaveOptions = QUIET
) -> list[Event]:
    """Run a job to its end; the events."""
    return list(pretrain(job, out, machine=machine, saving=saving))


def of_kind(kind: type, events: Sequence[Any]) -> list[Any]:
    """The events of a kind."""
    return [event for event in events if isinstance(event, kind)]


def checkpoint(out: Path, step: int) -> Checkpoint:
    """A run's checkpoint after a step."""
    return open_checkpoint(out / "checkpoints" / f"step-{step:08d}")


def assert_same(a: Checkpoint, b: Checkpoint) -> None:
    """Weights, moments, memory and the feed's place are the same, bit for bit."""
    for mine, other in ((a.weights(), b.weights()), (a.tensors(), b.tensors())):
        assert mine.keys() == other.keys() and mine
        for name in mine:
            assert torch.equal(mine[name], other[name]), name
    for key in ("step", "phase", "places", "tokens"):
        assert a.state()[key] == b.state()[key]


def assert_close(mine: dict[str, Tensor], other: dict[str, Tensor], bound: float = 1e-9) -> None:
    """Tensors by name are the same up to rounding."""
    assert mine.keys() == other.keys() and mine
    for name in mine:
        torch.testing.assert_close(mine[name], other[name], rtol=0, atol=bound, msg=name)
