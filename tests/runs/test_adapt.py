"""Adapt: gain and forgetting from before the first step, early stopping, resumes, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.corpora import build, texts, write
from support.finetune_tasks import sample_file
from support.pretrain_runs import (
    MACHINE,
    assert_same,
    checkpoint,
    of_kind,
    pretrain_job,
    run_pretraining,
    store,
)
from support.probe_tasks import sst2
from support.texts import tokenizer

import clozelab
from clozelab import cli
from clozelab.errors import UserError
from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.pretraining.adaptation import adaptation
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.adaptation import read_adaptation
from clozelab.runs.directory import Run
from clozelab.runs.events import Ended, Evaluated
from clozelab.runs.pacing import Pacer
from clozelab.runs.session import SaveOptions
from clozelab.text.store.mixture import shares
from clozelab.training.loop import Step
from clozelab.training.world import World

torch.set_num_threads(1)

HERE: dict[str, Any] = {"device": "cpu", "workers": 0, "progress": False, "evaluate_blocks": 16}
OFTEN = SaveOptions(save_every=2, keep=0, evaluate_every=2, evaluate_blocks=16)


def general() -> str:
    """The corpus that the model was trained on."""
    return store("wordpiece", variant="small")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on general text."""
    folder = tmp_path_factory.mktemp("general") / "run"
    run_pretraining(pretrain_job("bert", steps=2), folder)
    return folder


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus of other text."""
    folder = tmp_path_factory.mktemp("new")
    file = write(folder / "new.jsonl", texts(90)[60:])
    build(file, folder / "new", tokenizer("wordpiece", "small"), held_out=0.2)
    return str(folder / "new")


def run_command(capsys: pytest.CaptureFixture[str], arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([*arguments.split(), "--device", "cpu", "--workers", "0"])
    captured = capsys.readouterr()
    return code, captured.out, " ".join(captured.err.split())


def test_gain_and_forgetting_are_measured_from_before_the_first_step(
    model: Path, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("a small house\nthe garden of a friend\n")
    root = sst2(tmp_path / "data")
    out = tmp_path / "out"
    command_line = (
        f"adapt {model} --data {new} --budget 6steps --evaluate-every 3 --evaluate-blocks 16"
    )
    command_line += f" --set optimiser.learning_rate=0.003 --out {out} --texts {tmp_path}/texts.txt"
    command_line += f" --tasks sst2 --probe sst2 --probe-every 3 --task-data {root}"
    code, printed, err = run_command(capsys, command_line)
    assert code == 0, err
    assert "changes to the recipe of" in err
    assert "optimiser.learning_rate 0.001 → 0.003" in err and "passes over" in err
    assert "schedule.warmup 0% → 6% of the steps" in err and "schedule.steps" not in err
    assert f"general text: {general()}; --replay {general()}:0.1" in err  # of the model's own run
    run = Run(out)
    for of_text in ("held_out", "general"):
        assert [entry["step"] for entry in run.events(of_text)] == [0, 3, 6]
    record = read_adaptation(run)
    assert record is not None and record.best_step == 6 and record.gain > 0
    # Before is what the model has on its own, after is what the run has.
    ends = [dict(record.losses[text])[step] for text in ("held_out", "general") for step in (0, 6)]
    alone = [
        clozelab.evaluate(place, data=data, blocks=16, device="cpu")["masked_lm"]["loss"]
        for data in (new, general())
        for place in (model, out)
    ]
    assert ends == pytest.approx(alone, rel=1e-5)
    row_names = [row.name for row in record.rows()]
    assert {"probe of sst2, accuracy", "sst2, accuracy"} <= {*row_names}
    assert "pseudo-perplexity of texts.txt" in row_names and all(
        n in printed for n in row_names[2:]
    )
    page = (out / "adaptation.html").read_text()
    assert "new text" in page and "general text" in page and "<polyline" in page
    clozelab.export(out, tmp_path / "hf", progress=False)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "## Adaptation" in card and "pseudo-perplexity of texts.txt" in card


def test_it_stops_when_the_loss_stops_falling_and_keeps_the_best_weights(
    model: Path, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command_line = (
        f"adapt {model} --data {new} --budget 40steps --evaluate-every 1 --evaluate-blocks 16"
    )
    command_line += f" --set optimiser.learning_rate=30 --out {out} --patience 2"
    code, _, err = run_command(capsys, command_line)
    assert code == 0, err
    run = Run(out)
    assert [entry["step"] for entry in run.events("held_out")] == [0, 1, 2]
    assert run.recipe().schedule.total == 2 and (run.result() or {})["best_step"] == 0
    stopped = "early stopping after step 2 of 40: the loss was lowest after step 0 (patience 2)"
    assert stopped in " ".join(err.split())
    assert "no step lowered the loss on new; the model is unchanged" in err
    before, after = (load(str(place)).module.state_dict() for place in (model, out))
    assert all(torch.equal(before[name], after[name]) for name in before)
    # The result is that of the weights it ends with.
    (before_step, *_) = run.events("held_out")
    assert (run.result() or {})["held_out"]["masked_lm"] == before_step["masked_lm"]
    # It is done, and says the same when it is asked to go on.
    steps = run.events("step")
    code, _, err = run_command(capsys, f"adapt --resume {out}")
    assert code == 0 and Run(out).events("step") == steps


def test_the_result_has_no_probes_of_weights_that_are_not_kept(
    model: Path, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = sst2(tmp_path / "data"), tmp_path / "out"
    command_line = f"adapt {model} --data {new} --out {out} --budget 40steps --patience 1"
    command_line += " --evaluate-every 2 --evaluate-blocks 16 --set optimiser.learning_rate=0.05"
    command_line += " --set schedule.decay=constant --set schedule.warmup=0"
    command_line += f" --set schedule.batch_size=2 --probe sst2 --probe-every 0 --task-data {root}"
    code, _, err = run_command(capsys, command_line)
    assert code == 0, err
    run, result = Run(out), Run(out).result() or {}
    assert [entry["step"] for entry in run.events("probe")] == [0, 4]
    assert result["best_step"] == 2 and "probes" not in result
    assert result["held_out"]["masked_lm"] == run.events("held_out")[1]["masked_lm"]


def test_a_small_text_is_evaluated_in_every_pass(model: Path, new: str, tmp_path: Path) -> None:
    few_steps = ["schedule.batch_size=64"]
    passes = adaptation(str(model), new, changes=few_steps)  # four by default, in ten evaluations
    assert passes.budget is not None
    tokens = int(4 * passes.budget.amount)  # sixteen
    clozelab.adapt(
        model, data=new, out=tmp_path / "out", budget=f"{tokens}tok", patience=0,
        set=few_steps, evaluate_blocks=4, device="cpu", progress=False,
    )  # fmt: skip
    assert len(Run(tmp_path / "out").events("held_out")) == 1 + 16
    # Also after a kill between early stopping and the last save: the recorded run is shorter.
    alone = World(0, 1, torch.device("cpu"))
    trainer = PretrainTrainer(starting.resumed(tmp_path / "out"), MACHINE, alone)
    trainer.refit(2, 3)
    assert trainer.evaluations == 16


def test_forgetting_that_outweighs_the_gain_is_told(
    model: Path, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    plain = PretrainTrainer._judged
    calls: list[int] = []

    def judged(self: PretrainTrainer, sample: Any, length: int) -> Any:
        """New text first, then general; at the end the first fell a little, the second rose."""
        sums = plain(self, sample, length)
        calls.append(1)
        shift = {3: -0.1, 4: 0.5}.get(len(calls), 0.0)
        sums["masked_lm"]["loss"] += shift * sums["masked_lm"]["count"]
        return sums

    command_line = (
        f"adapt {model} --data {new} --budget 1steps --evaluate-blocks 16 --out {tmp_path}/out"
    )
    monkeypatch.setattr(PretrainTrainer, "_judged", judged)
    code, _, err = run_command(capsys, command_line)
    assert code == 0 and "forgetting exceeds the gain (0.5" in err and "--replay" in err


def test_new_text_is_read_as_often_with_replay_as_without(model: Path, new: str) -> None:
    alone, mixed = (
        adaptation(str(model), new, replay=replay) for replay in (None, f"{general()}:0.25")
    )
    assert alone.budget is not None and mixed.budget is not None
    (only,), (first, second) = shares(alone.stores), shares(mixed.stores)
    assert second.share == pytest.approx(0.25, rel=1e-4)
    often = only.epochs(alone.budget.amount)
    assert first.epochs(mixed.budget.amount) == pytest.approx(often, rel=1e-4)


def test_the_weight_of_the_new_text_does_not_change_the_share_of_the_replay(
    model: Path, new: str
) -> None:
    for weight in ("", ":1", ":4", ":0.25"):
        job = adaptation(str(model), f"{new}{weight}", replay=f"{general()}:0.25")
        assert shares(job.stores)[1].share == pytest.approx(0.25, rel=1e-4)


def test_an_adaptation_that_was_killed_is_the_same_when_it_goes_on(
    model: Path, new: str, tmp_path: Path
) -> None:
    job = adaptation(
        str(model), new, replay=f"{general()}:0.25", budget="8steps", patience=3,
        changes=["optimiser.learning_rate=1.0"],
    )  # fmt: skip
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    events = run_pretraining(job, straight, MACHINE, OFTEN)
    assert {event.of for event in of_kind(Evaluated, events)} == {"held_out", "general"}
    for event in pretrain(job, halved, machine=MACHINE, saving=OFTEN):
        if isinstance(event, Step) and event.number == 5:
            break
    again = starting.resumed(halved)
    assert again.adaptation is not None and again.adaptation.patience == 3
    assert again.adaptation.general is not None
    # How often it evaluates, and on how much, is on record: it decides where it ends.
    rest = list(resume(again, halved, machine=MACHINE, saving=SaveOptions(save_every=2, keep=0)))
    (ended,) = of_kind(Ended, rest)
    assert (
        ended.whole and ended.result["best_step"] == of_kind(Ended, events)[0].result["best_step"]
    )
    assert ended.result["best_step"] == 0  # such steps are too long
    last = Run(straight).recipe().schedule.total
    assert last == 6 == Run(halved).recipe().schedule.total
    assert_same(checkpoint(straight, last), checkpoint(halved, last))
    assert any(name.startswith("best.") for name in checkpoint(halved, 4).tensors())
    assert Run(straight).losses("general") == Run(halved).losses("general")
    # A share of the tokens, whatever the sizes of the two.
    from clozelab.text.store.mixture import shares

    assert shares(again.stores)[1].share == pytest.approx(0.25, rel=1e-5)


def test_a_resumed_adaptation_may_end_before_a_refit_that_it_had_recorded(
    model: Path, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PretrainTrainer, "seconds_a_step", lambda *_: 60 / 20)
    monkeypatch.setattr(Pacer, "wanted", lambda self, step, schedule: 9 if step == 7 else 0)
    changes = ["optimiser.learning_rate=1.0"]
    job = adaptation(str(model), new, budget="1m", patience=2, changes=changes)
    rarely = SaveOptions(save_every=4, keep=0, evaluate_every=0, evaluate_blocks=16)
    for event in pretrain(job, tmp_path / "run", machine=MACHINE, saving=rarely):
        if isinstance(event, Step) and event.number == 8:
            break
    run = Run(tmp_path / "run")
    assert run.recipe().schedule.refits == ((7, 9),)
    again = starting.resumed(run.path)
    list(resume(again, run.path, machine=MACHINE, saving=SaveOptions(evaluate_every=1)))
    assert run.recipe().schedule.refits == ((5, 6),)
    assert (run.result() or {})["steps"] == 6 and checkpoint(run.path, 6).step == 6


def test_a_folder_of_transformers_is_adapted_by_a_detour(
    model: Path, new: str, tmp_path: Path
) -> None:
    """Evaluations during the detour count neither as improvements nor as failures."""
    run = tmp_path / "run"
    run_pretraining(pretrain_job("roberta", steps=1), run)
    clozelab.export(run, tmp_path / "hf", progress=False)
    file = write(tmp_path / "new.jsonl", texts(75)[60:])
    build(file, tmp_path / "corpus", tokenizer("byte_bpe", "small"), held_out=0.2)
    out = clozelab.adapt(
        tmp_path / "hf", data=tmp_path / "corpus", out=tmp_path / "out", detour=0.5, patience=1,
        budget="4steps", evaluate_every=1, **HERE,
    )  # fmt: skip
    steps = [entry["step"] for entry in out.events("held_out")]
    assert steps[:3] == [0, 1, 2] and (out.result() or {})["best_step"] not in (1, 2)
    assert not out.events("general")  # nobody knows what it was trained on
    record = read_adaptation(out)
    assert record is not None and record.forgetting is None and "causal" in str(record.changes)


def test_measures_that_were_stopped_go_on(
    model: Path, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "texts.txt").write_text("a small house\n")
    out = tmp_path / "out"
    command_line = f"adapt {model} --data {new} --budget 1steps --evaluate-blocks 4 --out {out}"

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("clozelab.api.adapting.score", interrupted)
        code, _, err = run_command(capsys, f"{command_line} --texts {tmp_path}/texts.txt")
    assert code == 130 and f"clozelab adapt --resume {out}" in err
    code, printed, _ = run_command(capsys, f"adapt --resume {out}")
    assert code == 0 and "pseudo-perplexity of texts.txt" in printed


def test_measures_go_on_where_the_data_of_their_tasks_has_moved(
    model: Path, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    sst2(tmp_path / "data")
    out = tmp_path / "out"
    command_line = f"adapt {model} --data {new} --budget 1steps --evaluate-blocks 4 --out {out}"

    calls: list[int] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return clozelab.finetune(*arguments, **named)

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("clozelab.api.adapting.finetune", interrupted)
        code, _, err = run_command(capsys, f"{command_line} --tasks sst2 --task-data data")
    assert code == 130 and f"clozelab adapt --resume {out}" in err
    monkeypatch.chdir(out)
    (tmp_path / "data").rename(tmp_path / "moved")
    code, _, err = run_command(capsys, f"adapt --resume {out}")
    assert code == 2 and str(tmp_path / "data") in err
    code, printed, err = run_command(capsys, f"adapt --resume {out} --task-data ../moved")
    assert code == 0 and "sst2, accuracy" in printed, err


def test_the_credentials_of_a_url_of_task_data_are_used_and_not_recorded(
    model: Path, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    url, used = "memory://secret@adapting", list[str]()
    pytest.importorskip("fsspec").filesystem("memory").put(
        str(sst2(tmp_path / "data")) + "/", "/secret@adapting/", recursive=True
    )

    def interrupted(*_: Any, task_data: str, **__: Any) -> None:
        used.append(task_data)
        raise KeyboardInterrupt

    monkeypatch.setattr("clozelab.api.adapting.finetune", interrupted)
    command_line = f"adapt {model} --data {new} --budget 1steps --evaluate-blocks 4"
    out = tmp_path / "out"
    run_command(capsys, f"{command_line} --out {out} --tasks sst2 --task-data {url}")
    assert used == [url]
    assert Run(out).machine()["adaptation"]["task_data"] == "memory://adapting"


def test_a_damaged_run_names_the_command_that_trains_it_again(
    model: Path, new: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"budget": "1steps", "evaluate_blocks": 4, "workers": 0}
    run = clozelab.adapt(model, data=new, out=tmp_path / "out", device="cpu", progress=False, **how)
    for weights in run.path.glob("checkpoints/*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(UserError, match=f"train it again with clozelab adapt --resume {run.path}"):
        load(str(run.path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("adapt @model", "adapt needs a model, --data CORPUS and --out DIR"),
        ("adapt @model --data @new --out @out --replay @other", "its tokenizer is not that of"),
        ("adapt @model --data @new --out @out --general @other", "its tokenizer is not that of"),
        ("adapt @model --data @other --out @out", "build the corpus with --tokenizer-from"),
        ("adapt @model --data @new --out @out --replay @new:1.5", "a share of the tokens below 1"),
        ("adapt @model --data @new --out @out --replay @new:abc", "new:abc: abc is not a share"),
        ("adapt @model --data @new --out @out --replay @new:0", "new:0: a share must be above 0"),
        ("adapt @model --data @new --out @out --general @new", "is the text to adapt to"),
        ("adapt @model --data @line --out @out", "has a single document"),
        ("adapt @model --data @none --out @out", "no held-out loss, since"),
        ("adapt @t5 --data @new --out @out", "t5"),
        ("adapt @tuned --data @new --out @out", "is fine-tuned for"),
        ("adapt @model --data @new --out @out --tasks sst2 --task-data @nowhere", "SST-2"),
        ("adapt @model --data @new --out @out --tasks sst3", "sst3"),
        ("adapt @model --data @new --out @out --texts @empty", "is empty; write one text per line"),
        (
            "adapt @model --data @new --out @out --set schedule.average=0.2",
            "schedule.average: does not work here, since an adaptation ends with the weights",
        ),
        (
            "adapt @model --data @new --out @out --set encoder.hidden_size=64",
            "the encoder is that of the model",
        ),
        ("adapt @model --resume @model", "a resumed adaptation keeps its options; leave"),
        ("adapt --resume @model --patience 7", "a resumed adaptation keeps its options; leave"),
        ("adapt --resume @model --seed 0", "a resumed adaptation keeps its options; leave"),
        (
            "adapt --resume @model",
            "is not an adaptation; resume it with clozelab pretrain --resume",
        ),
    ],
)
def test_bad_input_is_told_in_a_sentence_and_nothing_is_written(
    arguments: str, problem: str, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_command(capsys, arguments.replace("@", f"{bad}/"))
    assert code == 2 and problem in err and "Traceback" not in err, err
    assert not (bad / "out").exists()


def test_blocks_in_which_nothing_is_hidden_cannot_be_compared(
    model: Path, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rarely = "--set masking.mask_rate=0.01 --set masking.count=bernoulli --evaluate-blocks 1"
    command_line = f"adapt {model} --data {new} --budget 1steps --out {tmp_path}/out {rarely}"
    code, _, err = run_command(capsys, command_line)
    assert code == 2 and "are evaluated; set a larger --evaluate-blocks" in err, err


@pytest.fixture(scope="module")
def bad(model: Path, new: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and corpora that do not serve, beside some that do."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "model").symlink_to(model)
    (folder / "new").symlink_to(new)
    (folder / "other").symlink_to(store("byte_bpe"))
    small = tokenizer("wordpiece", "small")
    build(write(folder / "line.jsonl", ["One line."]), folder / "line", small, held_out=0.0)
    file = write(folder / "none.jsonl", texts(3))
    build(file, folder / "none", small, held_out=0.0)
    (folder / "t5").mkdir()
    (folder / "t5" / "config.json").write_text('{"model_type": "t5"}')
    (folder / "empty").write_text("\n")
    clozelab.finetune(
        model, "classify", train=sample_file("definitions", 8), dev=sample_file("definitions", 8),
        out=folder / "tuned", set=["steps=1"], device="cpu", progress=False,
    )  # fmt: skip
    return folder
