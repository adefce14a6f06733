"""What one process or several do in the tests beside: train, save in the middle, go on.

Run by torchrun it is one of two processes: `ranks.py FOLDER NAME=PLACE…`, with the place of a store
for each tokenizer, and of a teacher.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from support.pretrain_runs import double_precision_trainer, shrunk

from clozelab.pretraining import starting
from clozelab.pretraining.held_out import held_out
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.machine import Machine
from clozelab.runs.saving import bare, restore, save
from clozelab.training import orthogonal
from clozelab.training.budget import parse
from clozelab.training.checkpoint import open_checkpoint
from clozelab.training.loop import train
from clozelab.training.world import World, exit_process, join

STEPS, MIDDLE = 4, 2
CASES = {
    "bert": ("bert", "wordpiece", 5, False),
    "bert sharded": ("bert", "wordpiece", 5, True),
    "xlnet": ("xlnet", "unigram", 4, False),
    "xlnet sharded": ("xlnet", "unigram", 4, True),
    "albert sharded": ("albert", "unigram", 5, True),
    "elmo": ("elmo", "byte_bpe", 5, False),
    "electra": ("electra", "wordpiece", 5, False),
    "electra sharded": ("electra", "wordpiece", 5, True),
    "deberta": ("deberta", "unigram", 5, False),
    "deberta sharded": ("deberta", "unigram", 5, True),
    "modernbert sharded": ("modernbert", "byte_bpe", 5, True),
    "mosaicbert": ("mosaicbert", "wordpiece", 5, False),
    "neobert sharded": ("neobert", "wordpiece", 5, True),
    "diffusion": ("diffusion", "byte_bpe", 5, False),
    "minilm": ("minilm", "wordpiece", 5, False),
    "minilm sharded": ("minilm", "wordpiece", 5, True),
    "causal_then_masked sharded": ("causal_then_masked", "byte_bpe", 5, True),
    "gpt_bert": ("gpt_bert", "byte_bpe", 5, False),
    "simcse": ("simcse", "wordpiece", 6, False),
    "swift sharded": ("swift", "byte_bpe", 5, True),
    "little": ("spanbert", "wordpiece", 1, False),  # fewer blocks than processes
}
Losses = list[dict[str, dict[str, float]]]


class Case(NamedTuple):
    """A recipe and how it is wrapped."""

    name: str
    kind: str
    sequences: int
    sharded: bool


def a_task(case: Case, stores: dict[str, str]) -> PretrainJob:
    """The run of a case."""
    more = ["encoder.layers=2"] if case.name in ("bert", "modernbert") else []
    more += ["objectives.0.samples=32768"] if case.name == "elmo" else []
    more += ["objectives.0.in_batch=2"] if case.name == "simcse" else []
    more += ["schedule.causal=[[0.4, 1.0]]"] if case.name == "gpt_bert" else []
    more += ["optimiser.neuron_beta=0.9"] if case.name == "swift" else []
    more += ["schedule.average=0.75"] if case.name in ("swift", "electra") else []
    recipe = shrunk(case.name, *more, steps=STEPS, batch_size=case.sequences)
    data = [stores[case.kind]]
    if case.name == "minilm":
        return starting.taught(recipe, stores["teacher"], data=data, seed=0, sized=True)
    return starting.fresh(recipe, data=data, seed=0)


def set_up(case: Case, stores: dict[str, str], world: World) -> PretrainTrainer:
    """The case in double precision; the first process has more micro-batches than the second."""
    sharded = case.sharded and world.size > 1
    machine = Machine(device="cpu", workers=0, micro_batch=1 + 3 * world.rank, shard=sharded)
    return double_precision_trainer(a_task(case, stores), machine, world)


def go(trainer: PretrainTrainer, folder: Path, begin: Path | None = None) -> Losses:
    """Take the steps, from a checkpoint on if one is given, saving in the middle and at the end."""
    first, cursor = 0, trainer.steps.start()
    if begin is not None:
        checkpoint = open_checkpoint(begin)
        first, cursor = checkpoint.step, restore(checkpoint, trainer.train_state, trainer.world)
    jobs = trainer.steps.jobs(first, cursor)
    losses = []
    with patch.object(orthogonal, "product_dtype", return_value=torch.float64):
        for step in train(trainer.train_state, (job() for job in jobs), trainer.world):
            losses.append({**step.sums, "": {"norm": step.norm, "tokens": step.tokens}})
            if step.number in (MIDDLE, STEPS):
                keep: dict[str, Any] = {"state": {"tokens": 0}, "texts": {}, "keep": 0}
                save(folder, step, trainer.train_state, trainer.world, **keep)
    return losses


def measure_held_out(trainer: PretrainTrainer) -> Any:
    """What held-out text comes to."""
    corpus = trainer.job.stores[0][0]
    evaluator = held_out(trainer.recipe, corpus, length=trainer.recipe.blocks.length, count=7)
    assert not isinstance(evaluator, str), evaluator
    model = trainer.train_state.model if trainer.machine.shard else bare(trainer.train_state.model)
    return evaluator.measure(model, trainer.world, tokens=64)


def main(folder: Path, stores: dict[str, str]) -> None:
    """Every case in two processes, from its beginning and from where one process stopped."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with join("cpu") as world:
        for name, settings in CASES.items():
            case = Case(*settings)
            trainer = set_up(case, stores, world)
            straight = go(trainer, folder / "two" / name)
            results[name] = {"straight": straight, "held_out": measure_held_out(trainer)}
            begin = folder / "one" / name / f"step-{MIDDLE:08d}"
            results[name]["after"] = go(set_up(case, stores, world), folder / "after" / name, begin)
        timed = PretrainTrainer(
            a_task(Case("bert", "wordpiece", 4, False), stores), Machine("cpu"), world
        )
        timed.fit(parse("0.5s"))
        results["steps"] = world.sum_counts([timed.recipe.schedule.steps])
        results["mine"] = timed.recipe.schedule.steps
        (folder / f"{world.rank}.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    pairs = [word.split("=", 1) for word in sys.argv[2:]]
    main(Path(sys.argv[1]), {kind: place for kind, place in pairs})
    exit_process(0)
