"""Students of relations: another size than the teacher's, its block, and what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.pretrain_runs import (
    MACHINE,
    QUIET,
    of_kind,
    pretrain_job,
    run_pretraining,
    shrunk,
    store,
    teacher,
)

from clozelab.cli import main
from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.contracts import Input
from clozelab.errors import UserError
from clozelab.models import exchange
from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain
from clozelab.runs.events import means
from clozelab.training.loop import Step


def run_of(folder: Path, name: str, *overrides: str, **shape: int) -> str:
    """A model that was trained for a step; its folder."""
    list(pretrain(pretrain_job(name, *overrides, **shape), folder, machine=MACHINE, saving=QUIET))
    return str(folder)


def student(place: str, kind: str, recipe: Recipe | None = None) -> starting.PretrainJob:
    return starting.taught(
        shrunk("minilm") if recipe is None else recipe,
        place,
        data=[store(kind)],
        seed=0,
        budget="2steps",
    )


def test_a_student_of_another_size_is_distilled_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    arguments = ["--recipe", "minilm", "--size", "3x64", "--set", "objectives.0.heads=16"]
    run = ["--data", store("wordpiece"), "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["distil", teacher(), *arguments, *run, "--budget", "2steps"]) == 0
    distilled, taught_by = load(str(tmp_path / "run")), load(teacher()).recipe
    assert (distilled.recipe.encoder.layers, distilled.recipe.encoder.hidden_size) == (3, 64)
    assert (
        taught_by.encoder.hidden_size == 32
        and distilled.recipe.blocks.length == taught_by.blocks.length
    )
    exchange.export(str(tmp_path / "run"), tmp_path / "hf")
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf").double().eval()
    assert type(model).__name__ == "BertModel"
    ids = torch.arange(9)[None] % 50
    batch = Input(ids[0], torch.arange(9), torch.zeros(9).long(), torch.tensor([0, 9]).int(), 9)
    with torch.no_grad():
        mine = distilled.module.double().encoder(batch).hidden_states  # type: ignore[operator]
        theirs = model(input_ids=ids).last_hidden_state[0]
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--data", store("wordpiece")]) == 2
    assert "without a head to measure" in " ".join(capsys.readouterr().err.split())
    for command, rest, sentence in (
        ("fill", ["A [MASK]."], "has no head that predicts tokens"),
        ("score", ["--text", "A text."], "has no head that predicts tokens"),
        ("generate", [], "has no masked language model to generate with"),
    ):
        assert main([command, str(tmp_path / "run"), *rest]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_student_has_the_block_of_its_teacher_but_its_own_size(tmp_path: Path) -> None:
    place = run_of(tmp_path / "roberta", "roberta", "encoder.layers=2", steps=1)
    other = load(place).recipe.encoder
    job = student(place, "byte_bpe")
    mine = job.recipe.encoder
    assert (mine.position_offset, mine.types, mine.epsilon) == (2, 0, other.epsilon)
    assert job.start is None and job.teacher is not None
    whole = recipes.read("minilm", overrides=["objectives.0.heads=8"])
    asked = starting.taught(whole, place, data=[store("byte_bpe")], seed=0)
    assert any("is larger than its teacher, 2 × 32" in note for note in asked.notes)
    large = asked.recipe
    assert (large.encoder.layers, large.encoder.hidden_size) == (6, 384)
    assert large.blocks.length == load(place).recipe.blocks.length
    run_pretraining(job, tmp_path / "run")
    exchange.export(str(tmp_path / "run"), tmp_path / "hf")
    assert '"RobertaModel"' in (tmp_path / "hf" / "config.json").read_text("utf-8")


def test_a_teacher_needs_no_head_and_may_be_of_transformers(tmp_path: Path) -> None:
    place = run_of(tmp_path / "electra", "electra", "encoder.embedding_size=16", steps=1)
    steps = of_kind(Step, run_pretraining(student(place, "wordpiece"), tmp_path / "run"))
    assert 0 < means(steps[-1].sums)["relations"]["loss"] < 3
    exchange.export(teacher(), tmp_path / "hf")
    job = student(str(tmp_path / "hf"), "wordpiece")
    assert len(of_kind(Step, run_pretraining(job, tmp_path / "other"))) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--set", "objectives.0.heads=64"],
            "64 relation heads do not divide the teacher's hidden size",
        ),
        (
            ["--set", "objectives.0.heads=8", "--set", "objectives.0.teacher_layer=7"],
            "the teacher has the layers 0 to 1",
        ),
        (["--size", "2x96"], "hidden size that heads of 64 do not divide"),
        (
            ["--set", "objectives.0.heads=7"],
            "7 relation heads do not divide encoder.hidden_size = 384",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--recipe", "minilm", "--data", store("wordpiece"), "--out", str(tmp_path / "run")]
    assert main(["distil", teacher(), *run, *arguments]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert sentence in message and "Traceback" not in message
    assert not (tmp_path / "run").exists()


def test_bench_has_no_teacher(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["minilm", "--size", "tiny", "--data", store("wordpiece"), "--device", "cpu"]
    assert main(["bench", *arguments]) == 2
    assert "which bench does not have" in " ".join(capsys.readouterr().err.split())


def test_another_tokenizer_and_no_teacher_are_refused() -> None:
    with pytest.raises(UserError, match="teacher's vocabulary is not that of"):
        student(teacher(), "byte_bpe")
    with pytest.raises(UserError, match="minilm: needs a teacher; use clozelab distil"):
        starting.fresh(shrunk("minilm"), data=[store("wordpiece")], seed=0)
