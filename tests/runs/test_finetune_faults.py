"""Commands on tasks given what they cannot use: one sentence, exit code 2, nothing half done."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from support.finetune_tasks import (
    SHORT,
    base_model,
    events,
    finetune_request,
    run_finetuning,
    sample_file,
)
from support.labelled_files import jsonl, write
from support.pretrain_runs import MACHINE, pretrain_job, run_pretraining

from clozelab.cli import main
from clozelab.config.toml import PROTOCOLS
from clozelab.errors import UserError
from clozelab.files import sha256
from clozelab.finetuning import trial
from clozelab.finetuning.files import hub
from clozelab.finetuning.finetune import follow, planned
from clozelab.finetuning.inputs import forget, inputs_for
from clozelab.finetuning.request import Data, FinetuneRequest, refuse_changed
from clozelab.finetuning.tuned import Tuned
from clozelab.models.load import load
from clozelab.runs.directory import Run, json_or_empty
from clozelab.runs.events import Said, Scored
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions

torch.set_num_threads(1)

HEADER = "sentence1\tsentence2\tlabel\n"
ROWS = "".join(f"text {n}\tother {n}\t{'yes' if n % 2 else 'no'}\n" for n in range(8))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of fine-tunings on pairs."""
    out = tmp_path_factory.mktemp("known") / "pairs"
    run_finetuning(finetune_request("pairs", sample_file("pairs", 16), *SHORT), out)
    return out


Says = Callable[..., str]


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    def refused(*arguments: object) -> str:
        """The one sentence a mistake is answered with."""
        capsys.readouterr()
        assert main([str(word) for word in arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("clozelab: ") and "Traceback" not in captured.err
        return " ".join(captured.err.split())

    return refused


def tuning(out: Path, *arguments: object) -> list[object]:
    settings = [part for setting in SHORT for part in ("--set", setting)]
    return ["finetune", base_model(), *arguments, "--out", out, "--device", "cpu", *settings]


@pytest.mark.parametrize(
    ("train", "dev", "problem"),
    [
        (HEADER + ROWS, HEADER, "dev.tsv"),  # empty
        (HEADER + ROWS, "", "dev.tsv"),
        (HEADER, HEADER + ROWS, "train.tsv"),
        (HEADER + ROWS, HEADER + "a\tb\tmaybe\n", "dev.tsv:2"),  # an unknown label
        (HEADER + ROWS, HEADER + "a\tb\t\n", "dev.tsv:2"),  # none
        (HEADER + ROWS, "sentence1\tsentence2\na\tb\n", "dev.tsv"),  # no such column
        (HEADER + ROWS, HEADER + "a\tb\n", "dev.tsv:2"),  # ragged
        ("sentence1\tsentence2\na\tb\n", HEADER + ROWS, "train.tsv"),
    ],
)
def test_files_that_cannot_be_learned_from_are_named_before_anything_is_made(
    tmp_path: Path, says: Says, train: str, dev: str, problem: str
) -> None:
    a, b = write(tmp_path / "train.tsv", train), write(tmp_path / "dev.tsv", dev)
    assert problem in says(*tuning(tmp_path / "out", "pairs", "--train", a, "--dev", b))
    assert not (tmp_path / "out" / "seed-0").exists()


def test_a_task_without_files_or_dev_set_or_name_is_refused(tmp_path: Path, says: Says) -> None:
    out, file = tmp_path / "out", write(tmp_path / "a.tsv", HEADER + ROWS)
    message = says(*tuning(out, "pairs", "--train", file))
    assert "pairs has no dev split here, only train; give --dev FILE" in message
    message = says(*tuning(out, "pairs", "--dev", file))
    assert "pairs has no train split here, only dev; give --train FILE" in message
    assert "--train FILE --dev FILE" in says(*tuning(out, "classify"))
    assert "did you mean sst2?" in says(*tuning(out, "sst3", "--task-data", tmp_path))
    assert "has no data for sst2" in says(*tuning(out, "sst2", "--task-data", tmp_path))
    assert "b.tsv" in says(*tuning(out, "pairs", "--train", tmp_path / "b.tsv", "--dev", file))
    arguments = ("--train", file, "--dev", file)
    assert "--columns x" in says(*tuning(out, "pairs", *arguments, "--columns", "x"))
    assert not out.exists()
    assert (
        main([str(word) for word in tuning(out, "pairs", *arguments)]) == 0
    )  # nothing is in its way


def test_what_was_never_tuned_says_nothing_of_a_text(tmp_path: Path, says: Says) -> None:
    file = write(tmp_path / "a.tsv", HEADER + ROWS)
    for command in (["evaluate", base_model(), file], ["predict", base_model(), "--text", "a"]):
        assert "was not fine-tuned" in says(*command)
    assert "was not fine-tuned" in says("answer", base_model(), "--question", "a", "--passage", "b")
    out, arguments = tmp_path / "out", ("--train", file, "--dev", file)
    message = says(*tuning(out, "pairs", *arguments, "--teacher", base_model()))
    assert "is not fine-tuned on pairs" in message and not out.exists()


def test_a_teacher_of_another_task_is_refused(tmp_path: Path, known: Path, says: Says) -> None:
    file = write(tmp_path / "a.tsv", "sentence1\tsentence2\tscore\n" + "a\tb\t1\nc\td\t2\n")
    arguments = ("--train", file, "--dev", file, "--teacher", known)
    assert "tuned on another task" in says(*tuning(tmp_path / "out", "regress", *arguments))
    assert not (tmp_path / "out").exists()
    run_finetuning(finetune_request("regress", str(file), *SHORT), tmp_path / "numbers")
    story = {"id": "0", "sentences": [["Anna", "is", "she"]], "clusters": [[[0, 0], [2, 2]]]}
    file = write(tmp_path / "a.jsonl", jsonl(story))
    arguments = ("--train", file, "--dev", file, "--teacher", tmp_path / "numbers")
    message = says(*tuning(tmp_path / "out", "coreference", *arguments))
    assert "coreference: cannot be distilled" in message and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("encoder.positions=16", "blocks.length=16"), "reads at most 16 tokens, but blocks have"),
        (("encoder.types=1", "blocks.use=full_sentences"), "has other special tokens or segments"),
    ],
)
def test_a_teacher_that_cannot_read_the_student_s_blocks_is_refused(
    tmp_path: Path, says: Says, settings: tuple[str, ...], problem: str
) -> None:
    teacher, tuned = tmp_path / "teacher", tmp_path / "tuned"
    heads = 'objectives=[{use="masked_lm"}]'
    shape = ("encoder.layers=1", "encoder.hidden_size=64", "encoder.heads=2")
    job = pretrain_job("bert", heads, *shape, *settings, steps=1, batch_size=2, variant="small")
    run_pretraining(job, teacher)
    file = sample_file("pairs", 16)
    run_finetuning(finetune_request("pairs", file, *SHORT, model=str(teacher)), tuned)
    arguments = ("pairs", "--train", file, "--dev", file, "--teacher", tuned)
    assert f"{tuned}: {problem}" in says(*tuning(tmp_path / "out", *arguments))
    assert not (tmp_path / "out").exists()


def test_a_model_is_scored_only_on_what_it_was_tuned_for(
    tmp_path: Path, known: Path, says: Says
) -> None:
    file = write(tmp_path / "MNLI" / "dev_matched.tsv", "sentence1\tsentence2\tgold_label\n")
    write(file, "sentence1\tsentence2\tgold_label\na\tb\tneutral\n")
    remedy = "; name a model that was fine-tuned on it"
    for command in (
        ["evaluate", known, "mnli"],
        ["predict", known, "--task", "mnli", "--out", "x"],
    ):
        message = says(*command, "--task-data", tmp_path)
        labels = "contradiction, entailment, neutral"
        assert message.endswith(f"mnli: has the labels {labels}, not those of {known}{remedy}")
    write(tmp_path / "STS-B" / "dev.tsv", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t1\n")
    message = says("evaluate", known, "stsb", "--task-data", tmp_path)
    assert "is of kind regress" in message and "was fine-tuned for classify" in message


def test_a_model_of_texts_is_not_scored_on_pairs_but_may_know_more_labels(
    tmp_path: Path, says: Says
) -> None:
    rows = "".join(f"text {n}\t{n % 3}\n" for n in range(9))
    file, out = write(tmp_path / "a.tsv", f"sentence\tlabel\n{rows}"), tmp_path / "out"
    run_finetuning(finetune_request("classify", str(file), *SHORT), out)
    write(tmp_path / "WNLI" / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n")
    message = says("evaluate", out, "wnli", "--task-data", tmp_path)
    assert f"wnli: has two texts in an example, but {out} takes one text; name" in message
    write(tmp_path / "SST-2" / "dev.tsv", "sentence\tlabel\na\t1\n")
    write(tmp_path / "SST-2" / "test.tsv", "index\tsentence\n0\ta\n")
    sst2 = ("sst2", "--task-data", tmp_path)
    assert main([str(word) for word in ("evaluate", out, *sst2)]) == 0
    assert "not those of" in says("predict", out, "--task", *sst2, "--out", tmp_path / "sent")


def test_a_diagnostic_set_has_no_labels_but_a_submission(
    tmp_path: Path, says: Says, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = ("entailment", "neutral", "contradiction")
    rows = "".join(f"a {n}\tb {n}\t{labels[n % 3]}\n" for n in range(6))
    file = write(tmp_path / "a.tsv", HEADER + rows)
    out = tmp_path / "out"
    assert main([str(w) for w in tuning(out, "pairs", "--train", file, "--dev", file)]) == 0
    text = "index\tsentence1\tsentence2\n0\ta 0\tb 0\n1\ta 1\tb 1\n"
    write(tmp_path / "diagnostic" / "diagnostic.tsv", text)
    message = says("evaluate", out, "ax", "--task-data", tmp_path)
    assert (
        "no dev set with labels, only test" in message
        and "--task ax --out DIR writes its submission" in message
    )
    sent = tmp_path / "sent"
    command = ["predict", out, "--task", "ax", "--task-data", tmp_path, "--out", sent]
    assert main([str(word) for word in command]) == 0
    first, *lines = (sent / "AX.tsv").read_text(encoding="utf-8").splitlines()
    assert first == "index\tprediction" and len(lines) == 2
    assert all(line.split("\t")[1] in labels for line in lines)


def test_a_folder_with_other_files_or_another_plan_is_left_alone(
    tmp_path: Path, known: Path, says: Says
) -> None:
    file = write(tmp_path / "full" / "a.tsv", HEADER + ROWS)
    arguments = ("pairs", "--train", file, "--dev", file)
    assert "contains other files" in says(*tuning(tmp_path / "full", *arguments))
    assert "was started differently (data" in says(*tuning(known, *arguments))


def test_counts_below_one_are_refused(tmp_path: Path) -> None:
    request = finetune_request("pairs", sample_file("pairs", 16), *SHORT)
    with pytest.raises(UserError, match="--seeds 0"):
        planned(request, seeds=0)
    with pytest.raises(UserError, match="--at-once 0"):
        run_finetuning(request, tmp_path / "out", at_once=0)


def test_fine_tunings_that_are_not_all_done_are_no_model_yet(known: Path, says: Says) -> None:
    result = known / "result.json"
    text = result.read_text(encoding="utf-8")
    result.unlink()
    try:
        assert "are not done" in says("predict", known, "--text", "a", "--text", "b")
    finally:
        result.write_text(text, encoding="utf-8")


def test_a_damaged_folder_says_what_to_remove(tmp_path: Path) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    run_finetuning(request, out)
    (weights,) = (out / "seed-0" / "checkpoints").glob("step-*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"is done, but .*safetensors.*remove .*result\.json"):
        load(str(out))
    Run(out).write_result({})
    with pytest.raises(UserError, match="does not name the best run"):
        load(str(out))
    (out / "plan.json").write_text('{"x')
    with pytest.raises(UserError, match=r"plan\.json: cannot be read"):
        run_finetuning(request, out)


def test_what_was_begun_keeps_its_protocol_unless_another_is_named(tmp_path: Path) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    run_finetuning(replace(request, protocol="bert"), out)
    assert planned(request).request.protocol == "ours"
    assert planned(request, out=out).request.protocol == "bert"
    assert planned(replace(request, protocol="roberta"), out=out).request.protocol == "roberta"


def test_a_protocol_s_file_is_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    write(tmp_path / "mine.toml", PROTOCOLS.find("bert").text)
    monkeypatch.chdir(tmp_path)
    run_finetuning(replace(request, protocol="mine.toml"), out)
    monkeypatch.chdir("/")
    assert planned(request, out=out).request.protocol == str(tmp_path / "mine.toml")
    run_finetuning(planned(request, out=out, seeds=2), out)
    monkeypatch.chdir(tmp_path)
    plan = (out / "plan.json").read_text()  # as folders were once begun
    write(out / "plan.json", plan.replace(str(tmp_path / "mine.toml"), "mine.toml"))
    run_finetuning(planned(request, out=out, seeds=3), out)
    assert len(list(out.glob("seed-*/result.json"))) == 3


def test_seeds_are_not_averaged_over_files_that_have_changed(tmp_path: Path, says: Says) -> None:
    train, dev = (write(tmp_path / f"{name}.tsv", HEADER + ROWS) for name in ("train", "dev"))
    out, arguments = tmp_path / "out", ("pairs", "--train", train, "--dev", dev)
    assert main([str(word) for word in tuning(out, *arguments)]) == 0
    before = (out / "result.json").read_text(encoding="utf-8")
    write(train, HEADER + ROWS + "one more\tpair\tyes\n")
    message = says(*tuning(out, *arguments, "--seeds", 2))
    assert f"{train} has changed since {out} was started; restore" in message
    write(dev, HEADER + ROWS + "one more\tpair\tyes\n")
    message = says(*tuning(out, *arguments, "--seeds", 2, "--at-once", 2))
    assert f"{dev}, {train} have changed since" in message
    assert not (out / "seed-1").exists()
    assert (out / "result.json").read_text(encoding="utf-8") == before
    for file in (train, dev):
        write(file, HEADER + ROWS)
    assert main([str(word) for word in tuning(out, *arguments, "--seeds", 2)]) == 0
    digest = sha256(train)
    for seed in (0, 1):
        assert Run(out / f"seed-{seed}").machine()["digests"][str(train.resolve())] == digest


def glue_folder(folder: Path, word: str) -> Path:
    """A folder of tasks with a small SST-2."""
    rows = "".join(f"{word} {n}\t{n % 2}\n" for n in range(4))
    for split in ("train", "dev"):
        write(folder / "SST-2" / f"{split}.tsv", f"sentence\tlabel\n{rows}{split}\t0\n")
    return folder


def test_seeds_are_not_averaged_over_the_data_of_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, word in (("a", "fine"), ("b", "bad"), ("c", "fine")):
        glue_folder(tmp_path / folder, word)
    request, out = FinetuneRequest(base_model(), Data("sst2"), settings=SHORT), tmp_path / "out"
    monkeypatch.setenv("CLOZELAB_DATA", str(tmp_path / "a"))
    run_finetuning(request, out)
    monkeypatch.setenv("CLOZELAB_DATA", str(tmp_path / "b"))
    with pytest.raises(UserError, match=r"b/SST-2/train.tsv have changed since .*out was started"):
        run_finetuning(planned(request, seeds=2), out)
    monkeypatch.setenv("CLOZELAB_DATA", str(tmp_path / "c"))  # the same, moved
    run_finetuning(planned(request, seeds=2), out)
    assert Run(out / "seed-1").result() is not None


def test_a_fine_tuning_whose_data_folder_has_moved_goes_on(tmp_path: Path) -> None:
    def request(root: Path) -> FinetuneRequest:
        return FinetuneRequest(base_model(), Data("sst2", root=str(root)), settings=SHORT)

    old, out = glue_folder(tmp_path / "old", "fine"), tmp_path / "out"
    run_finetuning(request(old), out)
    moved, other = old.rename(tmp_path / "moved"), glue_folder(tmp_path / "other", "bad")
    run_finetuning(planned(request(moved), seeds=2), out)
    assert Run(out / "seed-1").result() is not None
    with pytest.raises(UserError, match=r"other/SST-2/train.tsv have changed since .*out was sta"):
        run_finetuning(planned(request(other), seeds=3), out)
    plan = json_or_empty(out / "plan.json")
    assert plan["data"]["root"] == str(old)
    write(out / "plan.json", json.dumps({**plan, "digests": None}))
    with pytest.raises(UserError, match=r"was started differently \(data\)"):
        run_finetuning(planned(request(moved), seeds=3), out)


def test_a_folder_to_which_not_all_files_were_moved_has_changed() -> None:
    before = {"a/train": "1", "a/dev-matched": "2", "a/dev-mismatched": "3"}
    refuse_changed(
        before,
        {name.replace("a/", "b/"): before[name] for name in before},
        since="then",
        more=False,
    )
    with pytest.raises(UserError, match=r"a/dev-mismatched has changed since then"):
        refuse_changed(before, {"b/train": "1", "b/dev-matched": "2"}, since="then", more=False)


def test_seeds_are_not_averaged_over_a_dataset_of_the_hub_that_has_changed(
    tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rows(list[dict[str, Any]]):
        features: ClassVar = dict.fromkeys(("sentence", "label", "picture"), SimpleNamespace())

    rows = [{"sentence": f"text {n}", "label": "ab"[n % 2], "picture": object()} for n in range(8)]
    module = SimpleNamespace(load_dataset=lambda *_, split: Rows(rows))
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(hub, "find_spec", lambda _: SimpleNamespace(origin="here"))
    out, name = tmp_path / "out", "hf:some/thing"
    arguments = ("classify", "--train", name, "--dev", name)
    assert main([str(word) for word in tuning(out, *arguments)]) == 0
    (before,) = {*Run(out / "seed-0").machine()["digests"].values()}
    rows[3] = {**rows[3], "sentence": "another"}
    message = says(*tuning(out, *arguments, "--seeds", 2))
    assert f"{name} (dev), {name} (train) have changed since {out} was started" in message
    assert not (out / "seed-1").exists()
    rows[3] = {**rows[3], "sentence": "text 3", "picture": object()}
    assert main([str(word) for word in tuning(out, *arguments, "--seeds", 2)]) == 0
    digests = Run(out / "seed-1").machine()["digests"]
    assert digests == dict.fromkeys((f"{name} (train)", f"{name} (dev)"), before)


def test_a_link_that_leads_to_another_file_is_a_changed_file(tmp_path: Path) -> None:
    folder = tmp_path / "SST-2"
    for name in ("first", "second", "dev"):
        write(folder / f"{name}.tsv", f"sentence\tlabel\nsome words\t1\n{name}\t0\n")
    train = folder / "train.tsv"
    train.symlink_to(folder / "first.tsv")
    before = Data("sst2", root=str(tmp_path)).digests()
    refuse_changed(before, Data("sst2", root=str(tmp_path)).digests(), since="then")
    train.unlink()
    train.symlink_to(folder / "second.tsv")
    with pytest.raises(UserError, match=r"train.tsv has changed since then"):
        refuse_changed(before, Data("sst2", root=str(tmp_path)).digests(), since="then")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "epoch=1"),
        ("--grid", "learning_rate=fast"),
        ("--set", "lm_weight=0.5"),
        ("--set", "length=2"),
        ("--set", "warmup_steps=100", "--set", "steps=10"),
        ("--set", "task.positive=perhaps"),
    ],
)
def test_a_wrong_setting_leaves_no_folder_behind(
    tmp_path: Path, says: Says, arguments: tuple[str, ...]
) -> None:
    file, out = write(tmp_path / "a.tsv", HEADER + ROWS), tmp_path / "out"
    command = ("finetune", base_model(), "pairs", "--train", file, "--dev", file, "--out", out)
    assert arguments[1].partition("=")[0] in says(*command, *arguments)
    assert not out.exists()


def test_a_file_that_changes_between_two_seeds_of_one_command_is_seen(tmp_path: Path) -> None:
    file = write(tmp_path / "train.tsv", HEADER + ROWS)
    (first, second) = planned(finetune_request("pairs", str(file), *SHORT), seeds=2).requests()
    inputs_for(first)
    write(file, HEADER + ROWS + "one more\tpair\tyes\n")
    with pytest.raises(UserError, match="has changed since the first of these runs began"):
        inputs_for(second)
    forget()


def test_a_folder_from_before_digests_goes_on_and_takes_those_of_today(tmp_path: Path) -> None:
    file, out = write(tmp_path / "a.tsv", HEADER + ROWS), tmp_path / "out"
    request = finetune_request("pairs", str(file), *SHORT)
    run_finetuning(request, out)
    plan = json_or_empty(out / "plan.json")
    del plan["digests"]
    (out / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (out / ".clozelab").unlink()  # nor were there markers
    happened = run_finetuning(planned(request, seeds=2), out)
    assert any(
        "before clozelab recorded digests of its data" in event.text
        for event in events(Said, happened)
    )
    assert json_or_empty(out / "plan.json")["digests"] == {str(file.resolve()): sha256(file)}
    assert not events(Said, run_finetuning(planned(request, seeds=2), out))


def test_a_folder_is_fine_tuned_in_by_one_process_at_a_time(tmp_path: Path, says: Says) -> None:
    file, out = write(tmp_path / "a.tsv", HEADER + ROWS), tmp_path / "out"
    request = finetune_request("pairs", str(file), *SHORT)
    first = follow(planned(request), out, machine=MACHINE, saving=SaveOptions())
    next(first)
    settings = [part for setting in SHORT for part in ("--set", setting)]
    arguments = ["--train", file, "--dev", file, "--out", out, "--device", "cpu", *settings]
    for more in ([], ["--seeds", 2, "--at-once", 2]):
        message = says("finetune", base_model(), "pairs", *arguments, *more)
        assert f"another fine-tuning is writing to it (process {os.getpid()}, since" in message
    first.close()  # type: ignore[attr-defined]
    run_finetuning(request, out)


def test_a_plan_of_somebody_else_is_left_alone(tmp_path: Path, says: Says) -> None:
    file, out = write(tmp_path / "a.tsv", HEADER + ROWS), tmp_path / "mine"
    mine = write(out / "plan.json", '{"holidays": "Rome"}')
    arguments = ("pairs", "--train", file, "--dev", file)
    assert "contains other files" in says(*tuning(out, *arguments))
    assert mine.read_text(encoding="utf-8") == '{"holidays": "Rome"}'
    assert [*out.iterdir()] == [mine]


def test_a_step_without_room_is_halved_however_large_a_micro_batch_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, sizes = Tuned.forward, list[int]()

    def tight(self: Tuned, batch: Any) -> Any:
        sizes.append(len(batch.input.ids))
        if sizes[-1] > 0.7 * sizes[0]:
            raise torch.OutOfMemoryError("no room")
        return forward(self, batch)

    monkeypatch.setattr(Tuned, "forward", tight)
    file = write(tmp_path / "a.tsv", HEADER + ROWS)
    machine = Machine(device="cpu", workers=0, micro_tokens=1 << 20)
    request = finetune_request("pairs", str(file), *SHORT)
    said = events(Said, run_finetuning(request, tmp_path / "out", machine=machine))
    (note,) = [event.text for event in said if "out of memory" in event.text]
    assert f"at most {sizes[0] // 2} tokens at a time" in note


def test_a_dev_set_is_judged_in_small_batches_and_in_smaller_ones_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.tsv", HEADER + ROWS)
    request = finetune_request("pairs", str(file), *SHORT)
    machine = Machine(device="cpu", workers=0, micro_tokens=1 << 20)
    before = events(Scored, run_finetuning(request, tmp_path / "before", machine=machine))
    predict, sizes, room = Tuned.predict, list[int](), [40]

    def tight(self: Tuned, batch: Any) -> Any:
        sizes.append(len(batch.input.ids))
        if sizes[-1] > room[0]:
            raise torch.OutOfMemoryError("no room")
        return predict(self, batch)

    monkeypatch.setattr(Tuned, "predict", tight)
    monkeypatch.setattr(trial, "FORWARD_TOKENS", 64)
    scored = events(Scored, run_finetuning(request, tmp_path / "out", machine=machine))
    assert 40 < max(sizes) <= 64
    assert [event.scores for event in scored] == [event.scores for event in before]
    room[0] = 1
    with pytest.raises(UserError, match="out of memory for a dev set"):
        run_finetuning(request, tmp_path / "none", machine=machine)
