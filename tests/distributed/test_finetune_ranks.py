"""Fine-tuning in two processes: the same steps as in one, one writer, and no gradient missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.coreference import stories
from support.finetune_tasks import (
    SHORT,
    base_model,
    finetune_request,
    run_finetuning,
    sample_file,
    weights,
)
from support.pretrain_runs import assert_close
from test_ranks import torchrun

from clozelab.runs.directory import Run


def finetune_arguments(kind: str, file: str, model: str, out: Path) -> list[str]:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    files = ["--train", file, "--dev", file, "--out", str(out)]
    return ["-m", "clozelab", "finetune", model, kind, *files, *settings, "--device", "cpu"]


def stories_file(folder: Path) -> str:
    file = folder / "stories.jsonl"
    lines = ({"sentences": story.sentences, "clusters": story.clusters} for story in stories()[:3])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("recipe", ["bert", pytest.param("xlnet", marks=pytest.mark.slow)])
def test_two_processes_tune_as_one_does(recipe: str, tmp_path: Path) -> None:
    file, model = sample_file("pairs", 16), base_model(recipe)
    torchrun(*finetune_arguments("pairs", file, model, tmp_path / "two"))
    run_finetuning(finetune_request("pairs", file, *SHORT, model=model), tmp_path / "one")
    ours, theirs = (Run(tmp_path / name).result() for name in ("one", "two"))
    assert ours is not None and theirs is not None and ours["cells"] == theirs["cells"]
    mine, other = (weights(tmp_path / name / "seed-0") for name in ("one", "two"))
    assert_close(mine, other, bound=1e-5)


@pytest.mark.slow
def test_a_process_without_a_document_goes_along(tmp_path: Path) -> None:
    torchrun(
        *finetune_arguments("coreference", stories_file(tmp_path), base_model(), tmp_path / "out")
    )
    assert Run(tmp_path / "out").result() is not None
