"""A model whose weights are NaN: every command says so, and none takes it for a tie or a score."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import random_models

import clozelab
from clozelab.errors import UserError

torch.set_num_threads(1)
SILENT: dict[str, Any] = {"progress": False, "device": "cpu"}
FILES = {
    "pairs.tsv": "good\tbad\nthe queen was here\tthe queen here was\n",
    "facts.tsv": "sentence\tobject\nthe [MASK]\tqueen\nthe queen [MASK]\twas\n",
    "train.tsv": "text\tlabel\n" + "the queen\ta\nthe king\tb\n" * 5,
}
COMMANDS: dict[str, Callable[[Any, Path], object]] = {
    "score": lambda model, _: clozelab.score(model, text=["the queen"], **SILENT),
    "pairs": lambda model, at: clozelab.score(model, pairs=at / "pairs.tsv", **SILENT),
    "facts": lambda model, at: clozelab.score(model, facts=at / "facts.tsv", **SILENT),
    "fill": lambda model, _: clozelab.fill(model, "the [MASK]", **SILENT),
    "generate": lambda model, _: clozelab.generate(model, length=3, **SILENT),
    "embed": lambda model, _: clozelab.embed(model, ["the queen"], **SILENT),
    "probe": lambda model, at: clozelab.probe(
        model, "classify", train=at / "train.tsv", dev=at / "train.tsv", **SILENT
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_diverged_is_refused(command: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    model = random_models.model("bert", double=False)
    COMMANDS[command](model, tmp_path)
    diverged = replace(model, module=deepcopy(model.module))
    for weight in diverged.module.parameters():
        weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match=f"{model.place}: gives NaN, because its training diverged"):
        COMMANDS[command](diverged, tmp_path)


@pytest.mark.parametrize("command", ["score", "fill", "generate"])
def test_an_infinite_logit_is_refused_as_nan_is(command: str, tmp_path: Path) -> None:
    model = random_models.model("bert", double=False)
    diverged = replace(model, module=deepcopy(model.module))
    bias: Any = diverged.module.heads["masked_lm"].bias
    bias.data[diverged.vocabulary.ordinary[0]] = float("inf")
    with pytest.raises(UserError, match="gives NaN, because its training diverged"):
        COMMANDS[command](diverged, tmp_path)
