"""Every recipe, shrunk: its losses fall, it is evaluated on held-out text, and resumes exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretrain_runs import (
    MACHINE,
    QUIET,
    RECIPES,
    assert_same,
    checkpoint,
    of_kind,
    pretrain_job,
    run_pretraining,
)

from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.runs.directory import Run
from clozelab.runs.events import Ended, Evaluated, Event, Said, means
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions
from clozelab.training.loop import Step

torch.set_num_threads(1)
MAIN = {
    "gpt": "causal_lm",
    "elmo": "bidirectional_lm",
    "xlnet": "permutation_lm",
    "electra": "replaced_token",
    "deberta": "replaced_token",
    "minilm": "relations",
    "simcse": "contrastive",
    "retromae": "retromae",
}
PHASES = "schedule.phases=[[16, 0.6], [32, 0.4]]"
COURSE = "masking.course=[[0.2, 1.0], [1.0, 0.5]]"

DROPPED = "encoder.dropout=0.1"


@pytest.mark.parametrize("name", RECIPES)
def test_its_loss_falls(name: str, tmp_path: Path) -> None:
    variant = (
        "embedded" if name == "distilbert" else "small"
    )  # which has less to learn of a teacher
    job = pretrain_job(
        name, "optimiser.learning_rate=0.005", steps=30, batch_size=8, variant=variant
    )
    saving = SaveOptions(save_every=0, evaluate_every=0, evaluate_blocks=64)
    events = run_pretraining(job, tmp_path / "run", saving=saving)
    steps, main = of_kind(Step, events), MAIN.get(name, "masked_lm")
    metrics = [means(step.sums) for step in steps]
    losses = [mean[main]["loss"] for mean in metrics if main in mean]  # a causal step has no masked
    assert len(steps) == 30
    # A student's hidden words are mostly rare ones; relations begin near their teacher's.
    fall = {"distilbert": 0.1, "minilm": losses[0] / 3}.get(name, 0.2)
    assert sum(losses[-5:]) / 5 < sum(losses[:2]) / 2 - fall
    (evaluated,) = of_kind(Evaluated, events)
    held_out = means(evaluated.sums)
    if name != "elmo":  # whose losses in training are among samples
        assert held_out[main]["loss"] < losses[0]
    assert set(held_out) == set(steps[0].sums)
    result = Run.open(tmp_path / "run").result()
    assert result is not None and result["held_out"] == held_out and result["steps"] == 30
    assert load(str(tmp_path / "run")).step == 30


CASES = {
    "bert": ("bert", "encoder.dropout=0.1", "encoder.attention_dropout=0.1"),
    "albert": ("albert", "encoder.dropout=0.1"),
    "xlnet": ("xlnet", "encoder.dropout=0.1"),
    "elmo": ("elmo", "encoder.dropout=0.1", "objectives.0.samples=50"),
    "gpt": ("gpt", "encoder.dropout=0.1"),
    "distilbert": ("distilbert", "encoder.dropout=0.1"),
    "minilm": (
        "minilm",
        "encoder.dropout=0.1",
        "encoder.hidden_size=16",
        "encoder.embedding_size=16",
    ),
    "spanbert": ("spanbert",),
    "ernie": ("ernie",),
    "electra": ("electra", "encoder.dropout=0.1", "encoder.embedding_size=16"),
    "deberta": ("deberta", "encoder.layers=2", "encoder.dropout=0.1"),
    "deberta's mask decoder": (
        *("deberta", "encoder.dropout=0.1", "encoder.absolute_positions=decoder"),
        *("corruption.mask=0.8", 'objectives=[{use="masked_lm"}]'),
    ),
    "muon": ("bert", "optimiser.use=muon"),
    "normuon, mean of weights": (
        *("bert", "optimiser.use=muon"),
        *("optimiser.polynomial=polar_express", "optimiser.neuron_beta=0.95"),
        "schedule.average=0.7",
    ),
    "mosaicbert": ("mosaicbert", "encoder.dropout=0.1"),
    "modernbert": ("modernbert", "encoder.layers=3", PHASES, COURSE, "encoder.value_residual=0.2"),
    "neobert": ("neobert", PHASES, DROPPED),
    "diffusion": ("diffusion", DROPPED),
    "causal_then_masked": ("causal_then_masked", "schedule.causal=[[1.0, 0.6]]", DROPPED),
    "gpt_bert": ("gpt_bert", "schedule.causal=[[0.4, 1.0]]", DROPPED),
    "simcse": ("simcse", "objectives.0.in_batch=2", DROPPED),
    "retromae": ("retromae", DROPPED),
    "phase": ("bert", PHASES, "schedule.warmup=3", "encoder.dropout=0.1"),
}


def killed(events: Iterator[Event], after: int) -> None:
    """Draw the events of a run until it is killed behind a step."""
    for event in events:
        if isinstance(event, Step) and event.number == after:
            return


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    """What a run says of itself, but for the time things took."""
    clock = ("seconds", "times", "tokens_a_second", "waited", "slack", "starved", "limited_by")
    return {name: value for name, value in record.items() if name not in clock}


@pytest.mark.parametrize("name", CASES)
def test_five_steps_and_five_more_are_ten(name: str, tmp_path: Path) -> None:
    base, *overrides = CASES[name]
    saving = SaveOptions(save_every=5, keep=0, evaluate_every=0, evaluate_blocks=16)
    straight = tmp_path / "straight"
    run_pretraining(pretrain_job(base, *overrides, steps=10), straight, saving=saving)
    halved = tmp_path / "halved"
    job = pretrain_job(base, *overrides, steps=10)
    workers = Machine(device="cpu", workers=2)
    killed(pretrain(job, halved, machine=workers, saving=saving), 8)
    assert not (halved / "result.json").exists()
    events = list(resume(starting.resumed(halved), halved, machine=MACHINE, saving=saving))
    assert of_kind(Step, events)[0].number == 6
    assert [event.text for event in of_kind(Said, events)] == ["workers 2 → 0, from step 6 on"]
    assert of_kind(Ended, events)[0].whole
    assert_same(checkpoint(straight, 10), checkpoint(halved, 10))
    mine, other = (Run.open(place).events("step") for place in (straight, halved))
    assert [entry["step"] for entry in other] == list(range(1, 11))
    for a, b in zip(mine, other, strict=True):
        assert untimed(a) == untimed(b)
    a, b = (Run.open(place).result() for place in (straight, halved))
    assert a is not None and b is not None
    assert untimed(a) == untimed(b)


def test_workers_change_nothing(tmp_path: Path) -> None:
    for workers in (0, 1, 3):
        machine = Machine(device="cpu", workers=workers)
        run_pretraining(pretrain_job("bert", steps=6), tmp_path / str(workers), machine, QUIET)
    for workers in (1, 3):
        assert_same(checkpoint(tmp_path / "0", 6), checkpoint(tmp_path / str(workers), 6))
