"""Fine-tunings made for tests: barely pretrained encoders, and small parts of the embedded tasks.

So few examples are learned by heart, whatever the encoder knows: scores are of the same examples.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from support.pretrain_runs import HERE, MACHINE, of_kind, pretrain_job, run_pretraining

from clozelab import data
from clozelab.finetuning.finetune import FinetunePlan, Happened, follow, planned
from clozelab.finetuning.inputs import FinetuneInputs, inputs_for
from clozelab.finetuning.request import Data, FinetuneRequest
from clozelab.finetuning.trial import Trial
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions
from clozelab.training.loop import Step, train

STILL = ("dropout=0", "attention_dropout=0", "head_dropout=0")
QUICK = ("batch_size=8", "learning_rate=2e-3", "length=64", "epochs=12", *STILL)
SHORT = ("batch_size=8", "learning_rate=1e-3", "length=64", "steps=2", *STILL)
_SHAPE = {
    "layers": 2,
    "hidden_size": 64,
    "heads": 2,
    "intermediate_size": 128,
    "embedding_size": 64,
    "positions": 64,
}


@cache
def shared_folder() -> Path:
    """One for all that is made once."""
    path = Path(tempfile.mkdtemp(prefix="clozelab-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def base_model(recipe: str = "bert", *, variant: str = "small") -> str:
    """A small run of that recipe after a few steps, made once; a small vocabulary learns less."""
    return _base_model(recipe, variant)


@cache
def _base_model(recipe: str, variant: str) -> str:
    place = shared_folder() / f"{recipe}-{variant}"
    shape = _SHAPE if recipe in ("bert", "gpt") else {}
    overrides = [f"encoder.{key}={value}" for key, value in shape.items()]
    overrides += ["blocks.reuse=32"] if recipe == "xlnet" else []
    run_pretraining(
        pretrain_job(
            recipe, *overrides, "blocks.length=64", steps=4, batch_size=4, variant=variant
        ),
        place,
    )
    return str(place)


@cache
def sample_file(name: str, count: int) -> str:
    """The first examples of an embedded task, as a file."""
    source = data.task(name, "train")
    text, file = (
        source.read_text(encoding="utf-8"),
        shared_folder() / f"{name}-{count}{source.suffix}",
    )
    if name == "spans":
        whole = json.loads(text)
        del whole["data"][0]["paragraphs"][count:]
        file.write_text(json.dumps(whole), encoding="utf-8")
    elif name == "tags":
        file.write_text("\n\n".join(text.split("\n\n")[:count]) + "\n", encoding="utf-8")
    else:
        lines = text.splitlines(keepends=True)
        file.write_text("".join(lines[: count + (name != "choices")]), encoding="utf-8")
    return str(file)


def finetune_request(
    kind: str, file: str, *settings: str, model: str | None = None, **more: Any
) -> FinetuneRequest:
    """A request to learn a file and be judged by it."""
    data_spec = Data(kind, train=file, dev=more.pop("dev", file))
    return FinetuneRequest(model or base_model(), data_spec, settings=settings or QUICK, **more)


def named_request(
    task: str, root: Path, *settings: str, model: str | None = None, **more: Any
) -> FinetuneRequest:
    """A request to learn a task that goes by name."""
    return FinetuneRequest(
        model or base_model(), Data(task, root=str(root)), settings=settings or SHORT, **more
    )


def run_finetuning(
    request: FinetuneRequest | FinetunePlan,
    out: Path,
    *,
    at_once: int = 1,
    machine: Machine = MACHINE,
) -> list[Happened]:
    """Fine-tune to the end; everything that happens."""
    plan = request if isinstance(request, FinetunePlan) else planned(request)
    return list(follow(plan, out, machine=machine, saving=SaveOptions(), at_once=at_once))


def events(kind: type, happened: Sequence[Happened]) -> list[Any]:
    """The events of a kind."""
    return of_kind(kind, [record.event for record in happened])


def double_precision_trial(inputs: FinetuneInputs, machine: Machine = MACHINE) -> Trial:
    """A trial in double precision, in which splits can be compared."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return Trial(inputs, machine, HERE)
    finally:
        torch.set_default_dtype(before)


def steps_of(work: Trial) -> list[Step]:
    """Every step of a trial."""
    jobs = work.jobs(0, work.start())
    return list(train(work.train_state, (job() for job in jobs), work.world))


def inputs_of(request: FinetuneRequest, **settings: Any) -> FinetuneInputs:
    """The inputs of a request, with some settings of the tuning changed."""
    inputs = inputs_for(replace(request, protocol="ours"))
    tuning = replace(inputs.task.tuning, **settings)
    return replace(inputs, task=replace(inputs.task, tuning=tuning))


def weights(place: Path) -> dict[str, torch.Tensor]:
    """Those of the newest checkpoint of a run."""
    from clozelab.training.checkpoint import newest

    newest_checkpoint, passed = newest(place / "checkpoints")
    assert newest_checkpoint is not None and not passed
    return newest_checkpoint.weights()


def equal(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    assert mine.keys() == other.keys()
    return all(torch.equal(mine[name], other[name]) for name in mine)
