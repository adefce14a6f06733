"""Probes while a run trains: points in its log, a curve on its page, and no change to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.labelled_files import jsonl, write
from support.pretrain_runs import assert_same, checkpoint, shrunk, store
from support.probe_tasks import NOUNS, sst2

import clozelab
from clozelab import cli
from clozelab.config.recipe import to_toml
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.directory import Run

torch.set_num_threads(1)


@pytest.fixture
def pretrain_command(tmp_path: Path) -> list[str]:
    """A command that trains with dropout, which randomness would show in."""
    recipe = shrunk("roberta", "encoder.dropout=0.1", "encoder.attention_dropout=0.1", steps=6)
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    data = ["--data", store("byte_bpe"), "--device", "cpu", "--workers", "0"]
    return ["pretrain", str(tmp_path / "recipe.toml"), *data, "--evaluate-every", "0"]


def points(place: Path) -> list[dict[str, object]]:
    return Run(place).events("probe")


def test_a_probed_run_is_the_same_run_with_points_on_its_curve(
    pretrain_command: list[str], tmp_path: Path
) -> None:
    plain, probed = tmp_path / "plain", tmp_path / "probed"
    probing = ["--probe", "sst2", "--probe-every", "2", "--task-data", str(sst2(tmp_path / "data"))]
    assert cli.main([*pretrain_command, "--out", str(plain)]) == 0
    assert cli.main([*pretrain_command, "--out", str(probed), *probing]) == 0
    assert_same(checkpoint(plain, 6), checkpoint(probed, 6))
    curve_points = points(probed)
    assert [entry["step"] for entry in curve_points] == [2, 4, 6] and not points(plain)
    for entry in curve_points:
        assert entry["sst2"]["accuracy"] > 60 and 0 <= entry["sst2"]["layer"] <= 1
    result = json.loads((probed / "result.json").read_text())
    assert result["probes"]["sst2"] == curve_points[-1]["sst2"]
    facts = Run(probed).machine()
    assert facts["probe"] == ["sst2"] and facts["probe_every"] == 2
    constant = facts["probe_constants"]["sst2 accuracy"]
    assert 50 <= constant < 100 and len(facts["tokenizer_digest"]) == 16
    # The last point is what the command says of the model.
    model = clozelab.load(probed, progress=False)
    alone = model.probe(
        "sst2", task_data=tmp_path / "data", examples=4096, device="cpu", progress=False
    )
    assert alone["sst2"].scores["accuracy"] == curve_points[-1]["sst2"]["accuracy"]
    page = tmp_path / "page.html"
    clozelab.report(probed, out=page, progress=False)
    assert "probe of sst2 accuracy, of 100" in page.read_text()
    assert f'"marks":[{{"y":{constant:g},"name":"a constant answer"}}]' in page.read_text()


def test_minimal_pairs_are_points_on_the_curve_too(
    pretrain_command: list[str], tmp_path: Path
) -> None:
    pairs = [
        {"sentence_good": f"the {noun} is good", "sentence_bad": f"the {noun} good is", "UID": "x"}
        for noun in NOUNS
    ]
    write(tmp_path / "data" / "blimp" / "blimp.jsonl", jsonl(*pairs))
    probing = ["--probe", "blimp,sst2", "--probe-every", "0", "--probe-examples", "6"]
    plain, probed = tmp_path / "plain", tmp_path / "probed"
    assert cli.main([*pretrain_command, "--out", str(plain)]) == 0
    data = ["--task-data", str(sst2(tmp_path / "data"))]
    assert cli.main([*pretrain_command, "--out", str(probed), *probing, *data]) == 0
    assert_same(checkpoint(plain, 6), checkpoint(probed, 6))
    (entry,) = points(probed)
    assert set(entry) == {"kind", "step", "blimp", "sst2"} and entry["step"] == 6
    assert Run(probed).machine()["probe_constants"]["blimp accuracy"] == 50
    assert entry["blimp"]["accuracy"] * 6 / 100 % 0.5 == pytest.approx(0, abs=1e-9)


def test_a_run_whose_probes_are_nan_has_diverged(
    pretrain_command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    probed = PretrainTrainer.probed

    def after_a_bad_step(trainer: PretrainTrainer) -> dict[str, dict[str, float]]:
        for weight in trainer.model.parameters():
            weight.data.fill_(float("nan"))
        return probed(trainer)

    monkeypatch.setattr(PretrainTrainer, "probed", after_a_bad_step)
    probing = ["--probe", "sst2", "--probe-every", "4", "--task-data", str(sst2(tmp_path / "data"))]
    out = tmp_path / "out"
    assert cli.main([*pretrain_command, "--out", str(out), "--save-every", "2", *probing]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"diverged; try an earlier step; the last good checkpoint is {out}" in said
    assert [entry["step"] for entry in Run(out).events("diverged")] == [4]


def test_a_resumed_run_goes_on_with_its_probes(pretrain_command: list[str], tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    probing = ["--probe", "sst2", "--probe-every", "2", "--task-data", str(sst2(tmp_path / "data"))]
    saves = ["--save-every", "3", "--keep", "0"]
    for place in (whole, parted):
        assert cli.main([*pretrain_command, "--out", str(place), *probing, *saves]) == 0
    for gone in (parted / "checkpoints").glob("step-*6"):
        for file in sorted(gone.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        gone.rmdir()
    (parted / "result.json").unlink()
    assert cli.main(["pretrain", "--resume", str(parted)]) == 0
    assert_same(checkpoint(whole, 6), checkpoint(parted, 6))
    assert points(parted) == points(whole)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--probe", "sst3"], "sst3: is not a task to probe; did you mean sst2?"),
        (["--probe", "sst2,blim"], "blim: is not a task to probe; did you mean blimp?"),
        (["--probe", "sst2", "--task-data", "nowhere"], "nowhere has no data for sst2"),
        (["--probe-every", "2"], "name them with --probe"),
        (
            ["--probe", "sst2", "--shard"],
            "--probe: does not work with sharded weights; leave --shard out",
        ),
    ],
)
def test_mistakes_are_told_before_a_run_begins(
    pretrain_command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    says: str,
) -> None:
    options = [] if "--task-data" in more else ["--task-data", str(sst2(tmp_path / "data"))]
    assert cli.main([*pretrain_command, "--out", str(tmp_path / "run"), *more, *options]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "run").exists()
