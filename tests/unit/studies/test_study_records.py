"""A study's cells in one file: the same study, the same page, and loose again when it goes on."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
from support.study_folders import SCORES, pretraining, study

from clozelab.cli import main
from clozelab.config import recipe as recipes
from clozelab.errors import UserError
from clozelab.finetuning.finetune import summary, tunings_of
from clozelab.reporting.study import page
from clozelab.runs.directory import PLAN, STUDY, Run
from clozelab.runs.record import read_run
from clozelab.studies import spec as studies
from clozelab.studies.cells import FAILED, cell_result, record_failure, tuning_scores
from clozelab.studies.measures import MEASURERS
from clozelab.studies.records import PACKED, pack, read, unpack
from clozelab.studies.verdicts import judge
from clozelab.training.loop import DivergedError, check_finite

RESULTS = Path(__file__).parents[3] / "results"


def files(folder: Path) -> dict[str, bytes]:
    inside = (file for file in folder.rglob("*") if file.is_file() and file.name != ".lock")
    own = {file.relative_to(folder).as_posix(): file.read_bytes() for file in inside}
    return {name: content for name, content in own.items() if not name.endswith(".clozelab")}


def test_a_packed_study_reads_as_the_loose_one_and_has_few_files(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", begun=[("single", 2)], scores={**SCORES, "single": []})
    (folder / "cells/dynamic/seed-0/measured.json").write_text('{"base_masks": true}')
    for other in ("dynamic/seed-0-old", "static/seed-0/tasks/sst2/seed-0"):  # which are no cells
        shutil.copytree(folder / "cells/dynamic/seed-0", folder / "cells" / other)
    before, loose = read(folder), files(folder)
    pack(folder)
    assert sorted(files(folder)) == [PACKED, "plan.json", "result.json", "study.toml"]
    assert read(folder) == before and before.base_masks
    assert page(read(folder)).html() == page(before).html()
    assert main(["report", str(folder), "--out", str(tmp_path / "p.html")]) == 0
    unpack(folder)
    assert files(folder) == loose


def test_packing_gives_the_same_bytes_and_takes_up_what_is_new(tmp_path: Path) -> None:
    first, second = study(tmp_path / "a"), study(tmp_path / "b")
    for folder in (first, second):
        pack(folder)
    assert (first / PACKED).read_bytes() == (second / PACKED).read_bytes()
    pack(first)
    assert (first / PACKED).read_bytes() == (second / PACKED).read_bytes()
    newer = first / "cells/static/seed-0"
    newer.mkdir(parents=True)
    (newer / "result.json").write_text('{"seconds": 1.0}')
    pack(first)
    lines = [json.loads(line) for line in (first / PACKED).read_text().splitlines()]
    assert {"file": "cells/static/seed-0/result.json", "text": '{"seconds": 1.0}'} in lines


def test_a_kill_while_unpacking_loses_nothing(tmp_path: Path) -> None:
    folder = study(tmp_path / "s")
    before = files(folder)
    pack(folder)
    packed = (folder / PACKED).read_bytes()
    unpack(folder)
    (folder / "cells/static/seed-1/result.json").unlink()  # it had not come so far
    (folder / PACKED).write_bytes(packed)
    unpack(folder)
    assert files(folder) == before


def test_a_verdict_does_not_depend_on_the_order_in_which_cells_are_found() -> None:
    record = read(RESULTS / "albert-sentence-untuned")
    backwards = replace(record, measured=dict(reversed(record.measured.items())))
    assert judge(record) == judge(backwards)
    # Blocks of other pairs have other tokens to predict: each side counts its own.
    hidden = {name: record.sizes_of(name)["held_out.masked_lm"] for name in ("none", "next")}
    assert hidden == {"none": 129_507, "next": 149_740}


def test_only_records_are_packed(tmp_path: Path) -> None:
    folder = study(tmp_path / "s")
    weights = folder / "cells/static/seed-0/model.safetensors"
    weights.write_bytes(b"\xff\xfe\x00")
    before = files(folder)
    with pytest.raises(UserError, match="safetensors: is not text"):
        pack(folder)
    assert files(folder) == before
    with pytest.raises(UserError, match="is not a study"):
        pack(tmp_path)


@pytest.mark.parametrize("line", ["{", "[]", '{"file": "cells/a"}',
                                  '{"file": "cells/../../a", "text": ""}',
                                  '{"file": "/tmp/a", "text": ""}'])  # fmt: skip
def test_a_damaged_pack_is_refused_in_a_sentence(tmp_path: Path, line: str) -> None:
    folder = study(tmp_path / "s")
    (folder / PACKED).write_text(f"{line}\n")
    for reads in (read, unpack, pack):
        with pytest.raises(UserError, match="restore it from a copy"):
            reads(folder)


def test_recorded_studies_have_at_most_eight_files() -> None:
    recorded = [file.parent for file in RESULTS.glob("*/study.toml")]
    assert len(recorded) > 10
    for folder in recorded:
        assert len([file for file in folder.rglob("*") if file.is_file()]) <= 8, folder


def with_plateau(folder: Path, level: float) -> Path:
    plan = json.loads((folder / PLAN).read_text())
    plan["plateau"] = dict.fromkeys(SCORES, level)
    (folder / PLAN).write_text(json.dumps(plan))
    return folder


def test_a_run_under_way_has_not_ended_on_the_plateau(tmp_path: Path) -> None:
    scores = {name: list(values)[:2] for name, values in SCORES.items()}
    folder = with_plateau(study(tmp_path / "s", scores=scores), 6.0)
    before = [finding.verdict for finding in judge(read(folder))]
    recipe = studies.read(folder / STUDY).recipe_of("single", size="tiny")
    pretraining(folder / "cells/single/seed-2", recipe, 2, 6.5, share=0.1)
    assert [finding.verdict for finding in judge(read(folder))] == before
    assert "not tested" not in before


def test_a_cell_that_failed_at_once_has_not_left_the_plateau(tmp_path: Path) -> None:
    failed = {("single", seed): "step 1: the loss of masked_lm is nan" for seed in range(3)}
    folder = study(tmp_path / "s", scores={**SCORES, "single": [None] * 3}, failed=failed)
    record = read(with_plateau(folder, 6.0))
    assert record.scores("single", "run.left_plateau") == dict.fromkeys(range(3), 0.0)
    assert set(record.scores("static", "run.left_plateau").values()) == {100.0}


def test_runs_that_diverge_leave_a_claim_not_tested(tmp_path: Path) -> None:
    cell = tmp_path / "cell"
    job = SimpleNamespace(folder=cell)
    with pytest.raises(DivergedError) as raised:
        check_finite({"masked_lm": {"loss": math.nan}}, 12)
    message = record_failure(job, raised.value)  # type: ignore[arg-type]
    assert json.loads((cell / FAILED).read_text())["diverged"] is True
    record_failure(job, UserError("no such file"))  # type: ignore[arg-type]
    assert json.loads((cell / FAILED).read_text())["diverged"] is False
    # A failure that was recorded without this field is told by its message.
    (cell / FAILED).write_text(json.dumps({"error": message}))
    job.request = SimpleNamespace(tasks=dict, shares_pretraining_with=lambda _: None)
    job.cell = SimpleNamespace(variant="dynamic", seed=2)
    result = cell_result(job, flops_a_token=None)  # type: ignore[arg-type]
    assert result["failed"] == message and "diverged" not in result
    # Records without this field have the message alone.
    verdicts = {}
    for what in (message, "the machine was out of memory"):
        scores = {**SCORES, "dynamic": [*SCORES["dynamic"][:2], None]}
        folder = study(tmp_path / what, scores=scores, failed={("dynamic", 2): what})
        verdicts[what] = [judgement.verdict for judgement in judge(read(folder))]
    assert verdicts[message][::2] == ["not tested"] * 2
    assert "not tested" not in verdicts["the machine was out of memory"]


def test_a_loss_that_is_not_finite_does_not_make_a_study_unreadable(tmp_path: Path) -> None:
    folder = with_plateau(study(tmp_path / "s"), 6.0)
    log = folder / "cells/single/seed-0/metrics.jsonl"
    with log.open("a") as stream:
        stream.write('{"kind": "held_out", "step": 40, "masked_lm": {"loss": null}}\n')
    record = read(folder)
    assert record.runs["single", 0].reached is not None
    assert page(record).html()


def test_a_generator_can_stay_on_the_plateau(tmp_path: Path) -> None:
    recipe_toml = recipes.to_toml(recipes.read("electra"))
    run = Run.create(tmp_path / "r", recipe_toml=recipe_toml, machine={})
    losses = {"generator": {"loss": 7.7}, "replaced_token": {"loss": 0.1}}
    run.append({"kind": "held_out", "step": 4, **losses})
    assert read_run(run, "electra").reached == 7.7


@pytest.mark.parametrize("found", [0.004, 0.4])
def test_a_detector_that_finds_nothing_leaves_a_claim_not_tested(
    tmp_path: Path, found: float
) -> None:
    folder = with_plateau(study(tmp_path / "s"), 6.0)
    before = [judgement.verdict for judgement in judge(read(folder))]
    for seed in range(3):
        cell = folder / f"cells/dynamic/seed-{seed}"
        (cell / "recipe.toml").write_text(recipes.to_toml(recipes.read("electra")))
        detected = {"loss": 0.4, "accuracy": 0.9, "accuracy_replaced": found}
        log = {"generator": {"loss": 3.0}, "replaced_token": detected}
        Run(cell).append({"kind": "held_out", "step": 40, **log})
    judgements = judge(read(folder))
    if found > 0.01:
        assert [judgement.verdict for judgement in judgements] == before
    else:
        assert judgements[0].verdict == "not tested" != before[0]
        why = str(judgements[0].decisive[0].why)
        assert "3 of 3 runs of dynamic find less than 1% of the replaced tokens" in why


@pytest.mark.parametrize("accuracies", [[70, 69, 68], [70, None, None], [70]])
def test_a_tuning_that_diverged_counts_as_one_that_learned_nothing(
    tmp_path: Path, accuracies: list[float | None]
) -> None:
    for seed, accuracy in enumerate(accuracies):
        (tmp_path / f"seed-{seed}").mkdir()
        done = {"dev": {"step": 1, "accuracy": accuracy}, "selected": accuracy}
        result = {**done, "constant": {"accuracy": 50.0}}
        Run(tmp_path / f"seed-{seed}").write_result(result if accuracy else {"diverged": "nan"})
    names = [f"{kind}.rte.accuracy" for kind in ("spread", "worst")]
    scores = tuning_scores("rte", tunings_of(summary(tmp_path, "rte", cells=({},))), names)
    values = [50.0 if accuracy is None else accuracy for accuracy in accuracies]
    assert scores["rte.accuracy"] == fmean(values)
    assert scores.get("worst.rte.accuracy") == (min(values) if len(values) > 1 else None)
    assert ("spread.rte.accuracy" in scores) == (len(values) > 1)


def test_a_claim_without_its_measure_says_so(tmp_path: Path) -> None:
    folder = with_plateau(study(tmp_path / "s"), 1.0)
    spec = (folder / STUDY).read_text().replace("held_out.masked_lm", "pairs.blimp")
    (folder / STUDY).write_text(spec)
    several = judge(read(folder))[1]
    assert several.verdict == "not tested"
    assert any("was not measured" in str(finding.why) for finding in several.decisive)


@pytest.mark.parametrize(
    ("name", "objective", "other"),
    [
        ("roberta", "masked_lm", None),
        ("bert", "masked_lm", "next_sentence"),
        ("electra", "generator", "replaced_token"),
        ("simcse", "contrastive", None),
        ("gpt", "causal_lm", None),
        ("causal_then_masked", "masked_lm", "causal_lm"),
    ],
)
def test_spikes_are_those_of_the_loss_that_is_followed(
    tmp_path: Path, name: str, objective: str, other: str | None
) -> None:
    recipe = recipes.read(name, size="tiny")
    run = Run.create(tmp_path / name, recipe_toml=recipes.to_toml(recipe), machine={})
    losses = [5.0] * 60
    losses[30] = losses[40] = 6.0
    losses[50] = 5.3
    if other is not None:  # it switches, or jumps, and is not counted
        for step in range(1, 61):
            run.append({"kind": "step", "step": step, other: {"loss": 3.0 + 2.0 * (step == 50)}})
    for step, loss in enumerate(losses, 61):
        run.append({"kind": "step", "step": step, objective: {"loss": loss}})
    value = MEASURERS["log"](SimpleNamespace(folder=run.path), "spikes")  # type: ignore[arg-type]
    usual = [fmean(losses[at - 20 : at]) for at in range(20, 60)]
    jumps = sum(loss > mean + 0.5 for loss, mean in zip(losses[20:], usual, strict=True))
    assert value is not None and value.score == jumps == 2
