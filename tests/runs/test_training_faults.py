"""Training commands given what they cannot use: one sentence, and nothing half done."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretrain_runs import (
    MACHINE,
    QUIET,
    pretrain_job,
    run_pretraining,
    shrunk,
    store,
    teacher,
)

from clozelab.cli import main
from clozelab.errors import UserError
from clozelab.pretraining import starting
from clozelab.pretraining import trainer as setup
from clozelab.pretraining.held_out import evaluate
from clozelab.pretraining.pretrain import pretrain
from clozelab.runs.directory import Run

torch.set_num_threads(1)


@pytest.mark.parametrize("text", ["{", ""])
def test_a_run_without_its_machine_file_is_refused(tmp_path: Path, text: str) -> None:
    run_pretraining(pretrain_job("bert", steps=1), tmp_path / "run")
    (tmp_path / "run" / "machine.toml").write_text(text)
    with pytest.raises(UserError, match=r"machine\.toml: (is not valid TOML|has lost)"):
        starting.resumed(tmp_path / "run")


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run_pretraining(pretrain_job("bert", steps=1), tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text("{")
    assert main(["pretrain", "--resume", str(tmp_path / "run")]) == 2


@pytest.mark.parametrize("arguments", [["--out", "x"], ["--from", "x"], ["--budget", "9steps"]])
def test_resuming_takes_nothing_that_it_would_not_heed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", "bert", "--resume", teacher(), *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_an_encoder_is_not_changed_where_another_model_brings_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--from", teacher(), "--data", store("wordpiece"), "--out", str(tmp_path / "run")]
    assert main(["pretrain", "bert", *options, "--set", "encoder.layers=3"]) == 2
    output = capsys.readouterr().err
    assert "leave --set encoder.… out, but for encoder.attention_dropout" in output
    assert main(["pretrain", "bert", *options, "--size", "tiny"]) == 2
    assert "takes the encoder of that model; leave --size out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_context_is_extended_where_positions_have_no_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_pretraining(pretrain_job("modernbert", "encoder.positions=40"), tmp_path / "short")
    command = ["pretrain", "modernbert", "--from", str(tmp_path / "short"), "--budget", "2steps"]
    command += ["--data", store("byte_bpe"), "--out", str(tmp_path / "long"), "--device", "cpu"]
    longer = ["encoder.positions=160", "encoder.rope_theta=7", "blocks.length=160"]
    longer += ["schedule.phases=[]", "schedule.batch_size=4", "schedule.ramp=[]"]
    settings = [word for change in longer for word in ("--set", change)]
    assert main([*command, *settings, "--set", "encoder.layers=2"]) == 2
    output = capsys.readouterr().err
    assert "encoder.dropout, encoder.local_rope_theta, encoder.positions" in output
    assert main([*command, *settings]) == 0
    recipe = Run.open(tmp_path / "long").recipe()
    shape: Any = recipe.encoder
    assert (shape.positions, shape.rope_theta, recipe.blocks.length) == (160, 7.0, 160)
    assert shape.hidden_size == 32
    student: Any = starting.taught(
        shrunk("distilbert"), str(tmp_path / "long"), data=[store("byte_bpe")], seed=0
    ).recipe.encoder
    assert student == replace(shape, types=0, output_init="normal")  # of its teacher's block


def test_a_recipe_beside_a_continued_run_is_compared_but_for_its_size(tmp_path: Path) -> None:
    recipe = shrunk("bert", steps=1)
    begun = starting.continued(recipe, teacher(), data=[store("wordpiece")], seed=0)
    list(pretrain(begun, tmp_path / "run", machine=MACHINE, saving=QUIET))
    starting.resumed(tmp_path / "run", recipe=recipe)
    with pytest.raises(UserError, match=r"masking\.mask_rate"):
        starting.resumed(tmp_path / "run", recipe=shrunk("bert", "masking.mask_rate=0.3", steps=1))


def test_a_corpus_that_was_moved_is_asked_for(tmp_path: Path) -> None:
    shutil.copytree(store("wordpiece"), tmp_path / "corpus")
    job = starting.fresh(shrunk("bert", steps=1), data=[str(tmp_path / "corpus")], seed=0)
    run_pretraining(job, tmp_path / "run")
    (tmp_path / "corpus").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="new place with --data"):
        starting.resumed(tmp_path / "run")
    starting.resumed(tmp_path / "run", data=[str(tmp_path / "moved")])


def test_a_full_disk_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(setup, "save", full)
    with pytest.raises(UserError, match=r"No space left.*--resume"):
        run_pretraining(pretrain_job("bert", steps=1), tmp_path / "run")


def test_no_blocks_to_evaluate_are_refused() -> None:
    with pytest.raises(UserError, match="--blocks 0"):
        evaluate(teacher(), store("wordpiece"), blocks=0)
