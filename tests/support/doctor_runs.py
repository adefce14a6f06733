"""Runs for the doctor: logs made up and written by the project's own writer, folders of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from support.pretrain_runs import shrunk, store
from support.texts import tokenizer

import clozelab
from clozelab.diagnosis.result import CheckResult, Diagnosis
from clozelab.runs.directory import Run
from clozelab.runs.log import Log
from clozelab.text.store import Corpus
from clozelab.training.loop import Step

STEPS = 240
UNIFORM = log(8000)  # of the embedded tokenizers
_COUNT = 100.0  # targets of a step
Curve = Callable[[float], float]  # of the share of the run that is done


def learning(share: float) -> float:
    """A loss that leaves the plateau, at 6 or so, after a third of the run."""
    return 3.2 + (UNIFORM - 3.2) * max(0.0, 1 - 1.4 * share) ** 2


def noisy(value: float, number: int) -> float:
    """The value with the noise of a batch, the same every time."""
    return value + 0.03 * float(np.sin(37.0 * number) + np.cos(11.0 * number))


def run(
    folder: Path,
    *changes: str,
    loss: Curve = learning,
    norm: Curve = lambda share: 1.0,
    right: Mapping[str, float] | None = None,
    held_out: Curve | None = None,
    waited: float = 0.01,
    steps: int = STEPS,
    ended: bool = True,
    data: str | None = None,
) -> str:
    """A run of RoBERTa that was never computed; its folder."""
    text = data or store("wordpiece", documents=60, variant="embedded")
    settings = ("optimiser.learning_rate=2e-3", f"schedule.warmup={steps // 20}", *changes)
    recipe = shrunk("roberta", *settings, steps=steps)
    recipe = recipe.override({"tokenizer.vocabulary": 8000})
    machine = {
        "data": [f"{text}:1"],
        "fingerprint": [Corpus.open(text).manifest["fingerprint"]],
        "precision": "bf16",
    }
    patient = Run.create(folder, recipe_toml=recipe.to_toml(), machine=machine)
    writer = Log(patient, steps, write=True)
    right = right or {"mask": 0.4, "random": 0.35, "same": 0.98}
    for number in range(1, steps + 1):
        share = number / steps
        sums = {"masked_lm": _sums(noisy(loss(share), number), right)}
        rate = recipe.optimiser.learning_rate * recipe.schedule.factor(number - 1)
        size = noisy(norm(share), number)
        times = {"waited": waited, "slack": 0.0, "starved": 0.0}
        writer.step(Step(number, sums, size, rate, 100_000, 0.1, **times))
        if number % (steps // 10) == 0:
            held_out_metrics = {"loss": (held_out or loss)(share) + 0.05}
            writer.measured(
                "held_out", number, {"masked_lm": held_out_metrics | _accuracies(right)}
            )
    writer.close()
    if ended:
        patient.write_result({"steps": steps, "tokens": 100_000 * steps, "seconds": 0.1 * steps})
    return str(folder)


def _sums(loss: float, right: Mapping[str, float]) -> dict[str, float]:
    sums = {"loss": loss * _COUNT, "count": _COUNT, "correct": right["mask"] * _COUNT}
    for what, share in right.items():
        sums |= {f"correct_{what}": share * 10, f"count_{what}": 10.0}
    return sums


def _accuracies(right: Mapping[str, float]) -> dict[str, float]:
    return {f"accuracy_{what}": share for what, share in right.items()}


def trainer(
    folder: Path,
    loss: Curve = learning,
    *,
    norm: Curve = lambda share: 1.0,
    rate: float = 5e-4,
    config: Mapping[str, Any] | None = None,
    steps: int = 2000,
) -> str:
    """A folder as transformers' Trainer leaves it, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = []
    for number in range(20, steps + 1, 20):
        share = number / steps
        warm = min(share / 0.1, (1 - share) / 0.9)
        row = {"loss": noisy(loss(share), number), "grad_norm": noisy(norm(share), number)}
        if row["grad_norm"] != row["grad_norm"]:
            row["loss"] = 0.0  # as the Trainer writes it
        rows.append({**row, "learning_rate": rate * warm, "step": number, "epoch": share})
    state = {"global_step": steps, "max_steps": steps, "log_history": rows}
    (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    whole = {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": 8000,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        **(config or {}),
    }
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    tokenizer("wordpiece").save(str(folder / "tokenizer.json"))
    return str(folder)


def weights(
    folder: Path,
    table: np.ndarray[Any, Any],
    layer: float,
    positions: np.ndarray[Any, Any] | None = None,
) -> None:
    """A checkpoint of transformers: its embedding tables and one other matrix."""
    if positions is None:
        positions = np.full((8, 4), layer, dtype=np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "bert.embeddings"
    tensors = {
        f"{prefix}.word_embeddings.weight": table,
        f"{prefix}.position_embeddings.weight": positions,
        "bert.encoder.layer.0.output.dense.weight": np.full((4, 4), layer, dtype=np.float32),
    }
    save_file(tensors, folder / "model.safetensors")


def diagnose(place: str | None = None, **options: Any) -> Diagnosis:
    """What the doctor says."""
    return clozelab.doctor(place, **options, progress=False)


def findings(diagnosis: Diagnosis, level: str = "ill") -> dict[str, CheckResult]:
    """The findings of a level, by check; each says what it saw and what to do."""
    results = {result.check: result for result in diagnosis.findings if result.level == level}
    for result in results.values():
        assert result.title and result.evidence
        assert level == "healthy" or (result.cause and result.remedy), result
    return results


def sentences(texts: Sequence[str], number: int) -> str:
    """A document of a line of its own and lines that others have, too."""
    return "\n".join([f"This is the line of document {number} and of no other one.", *texts])
