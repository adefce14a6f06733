"""Held-out losses, under a model's own masks and under those of another recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.corpora import build, write
from support.pretrain_runs import pretrain_job, run_pretraining, store
from support.texts import tokenizer

import clozelab
from clozelab import cli
from clozelab.api.training import _stand
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.pretraining.adaptation import adaptation
from clozelab.pretraining.held_out import evaluate
from clozelab.reporting import board
from clozelab.runs.directory import Run
from clozelab.runs.events import means
from clozelab.training.loop import Measured

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that hides more than RoBERTa does."""
    out = tmp_path_factory.mktemp("evaluate") / "swift"
    run_pretraining(pretrain_job("swift", "masking.mask_rate=0.4", steps=3), out)
    return str(out)


def evaluate_sums(place: str, masks: str | None = None) -> Measured:
    return evaluate(place, store("byte_bpe"), masks=masks, blocks=40, device="cpu")


def hidden(sums: Measured) -> float:
    return sums["masked_lm"]["count"]


def test_the_masks_of_another_recipe_are_as_many_as_it_hides(place: str) -> None:
    own, theirs = evaluate_sums(place), evaluate_sums(place, "roberta")
    assert hidden(theirs) == pytest.approx(hidden(own) * 0.15 / 0.4, rel=0.1)
    assert means(own)["masked_lm"]["loss"] != means(theirs)["masked_lm"]["loss"]


@pytest.mark.parametrize("recipe", ["roberta", "xlnet"])  # all blocks at once, and in streams
def test_an_evaluation_tells_how_many_blocks_are_done(recipe: str, tmp_path: Path) -> None:
    run_pretraining(pretrain_job(recipe, steps=2), tmp_path / "run")
    events: list[tuple[int, int]] = []
    data = Run(tmp_path / "run").machine()["data"][0].rpartition(":")[0]
    results = clozelab.evaluate(
        tmp_path / "run", data=data, blocks=40, device="cpu", on_event=events.append
    )
    assert results == means(evaluate(str(tmp_path / "run"), data, blocks=40, device="cpu"))
    assert events == sorted(events) and len({total for _, total in events}) == 1
    assert events[-1][0] == events[-1][1] > 0


def test_two_recipes_are_asked_the_same_under_the_same_masks(place: str, tmp_path: Path) -> None:
    run_pretraining(pretrain_job("roberta", steps=3), tmp_path / "roberta")
    sums = evaluate_sums(str(tmp_path / "roberta"))
    assert hidden(evaluate_sums(place, "roberta")) == hidden(sums)
    again = evaluate_sums(str(tmp_path / "roberta"), "roberta")
    assert means(again) == means(sums)  # its own by name


def test_objectives_about_other_masks_are_left_out(tmp_path: Path) -> None:
    run_pretraining(pretrain_job("spanbert", steps=2), tmp_path / "spans")
    sums = evaluate(
        str(tmp_path / "spans"), store("wordpiece"), masks="bert", blocks=40, device="cpu"
    )
    assert "span_boundary" not in sums and sums["masked_lm"]["count"] > 0


def test_masks_that_do_not_fit_the_objectives_are_refused(place: str) -> None:
    for name in ("xlnet", "gpt"):
        with pytest.raises(UserError, match=f"--masks {name}: "):
            evaluate_sums(place, name)
    with pytest.raises(UserError, match="did you mean roberta"):
        evaluate_sums(place, "robeta")


def test_the_command_takes_a_recipe_s_masks(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", place, "--data", store("byte_bpe"), "--blocks", "40", "--device", "cpu"]
    outputs = []
    for more in ([], ["--masks", "roberta"]):
        capsys.readouterr()
        assert cli.main([*command, *more]) == 0
        outputs.append(capsys.readouterr().out)
    loss = means(evaluate_sums(place, "roberta"))["masked_lm"]["loss"]
    assert f"{loss:.4f}" in outputs[1] and f"{loss:.4f}" not in outputs[0]


def test_a_run_on_a_gpu_is_told_where_it_would_stand(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(Path(place))
    _stand(run, Watch())
    assert "board" not in capsys.readouterr().err  # on a CPU nothing is said
    run.remember({"gpu": "NVIDIA H200", "budget_seconds": 300.0})
    _stand(run, Watch())
    assert "another text (fingerprint" in capsys.readouterr().err
    (text,) = run.machine()["fingerprint"]
    facts = ("a", "2026-12-01", "swift", "NVIDIA H200", 0.0, 3, "web", text)
    entries = tuple(board.BoardEntry(*facts, {"own": loss}) for loss in (1.0, 99.0))
    monkeypatch.setattr(board, "board", lambda: entries)
    _stand(run, Watch())
    output = capsys.readouterr().err
    loss = means(evaluate(place, store("byte_bpe"), masks="roberta", blocks=4096, device="cpu"))
    assert f"{loss['masked_lm']['loss']:.3f} nats" in output and "place 2 of 3" in output
    _stand(run, Watch(progress=False))
    assert not capsys.readouterr().err


def test_text_without_a_target_or_a_held_out_part_is_told(tmp_path: Path) -> None:
    rare = ("masking.count=bernoulli", "masking.mask_rate=0.001")
    run_pretraining(pretrain_job("roberta", *rare, steps=1), tmp_path / "run")
    file = write(tmp_path / "a.jsonl", [f"A word and {number} more." for number in range(8)])
    words = tokenizer("byte_bpe", "small")
    for share, sentence in ((0.5, "nothing is masked in its held-out"), (0.0, "has no held-out")):
        build(file, tmp_path / f"{share}", words, held_out=share)
        with pytest.raises(UserError, match=sentence):
            evaluate(str(tmp_path / "run"), str(tmp_path / f"{share}"), device="cpu")
    with pytest.raises(UserError, match="nothing is hidden in its few blocks"):
        adaptation(str(tmp_path / "run"), str(tmp_path / "0.5"), budget="1steps")


def test_what_was_never_read_has_no_accuracy() -> None:
    sums = {"loss": 2.0, "count": 4.0, "correct": 1.0, "count_random": 0.0, "correct_random": 0.0}
    assert means({"masked_lm": sums}) == {"masked_lm": {"loss": 0.5, "accuracy": 0.25}}
