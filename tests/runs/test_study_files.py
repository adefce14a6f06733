"""Study files: everything is checked when they are read, with the place and the right word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.small_studies import DYNAMIC, STATIC, STUDENT, read_study, reviews, write_study

from clozelab.errors import UserError
from clozelab.studies import spec as studies
from clozelab.studies.scores import metrics_of


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    paper = {**STATIC, "paper": {"sst2.accuracy": 92.5, "mnli.accuracy_mismatched": 84}}
    study = read_study(tmp_path, paper, DYNAMIC, STUDENT, tasks=["sst2", reviews()], equal="steps")
    again = tmp_path / "else" / "study.toml"
    again.parent.mkdir()
    again.write_text(studies.to_toml(study), encoding="utf-8")
    assert studies.read(again) == study
    assert study.variants[0].paper == {"sst2.accuracy": 92.5, "mnli.accuracy_mismatched": 84.0}


CHANGED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"nam": "x"}, {}, "variants.1.nam is not a key of variants.1; did you mean name?"),
    ({"says": 1}, {}, "variants.1.says = 1 must be a word in quotes"),
    ({"name": "Dynamic"}, {}, "use small letters"),
    ({"name": "static"}, {}, "variant static is listed twice"),
    ({"set": []}, {}, "variants static and dynamic are the same experiment"),
    ({"set": ["masking.rat=0.3"]}, {}, "variant dynamic: bert: masking.rat is not a key"),
    ({"set": ["masking.use=spam"]}, {}, "variant dynamic: bert: masking.use"),
    ({"recipe": "robertta"}, {}, "variant dynamic: recipe robertta is unknown; did you mean"),
    ({"share": 0}, {}, "share = 0 must be above 0"),
    ({"protocol": "ourz"}, {}, "protocol ourz is unknown; did you mean ours?"),
    ({"teacher": "static"}, {}, "has no objective that needs a teacher"),
    ({"recipe": "distilbert"}, {}, "learns from a teacher; name its teacher"),
    ({"recipe": "distilbert", "teacher": "statik"}, {}, "did you mean static?"),
    ({"recipe": "distilbert", "teacher": "dynamic"}, {}, "is its own teacher"),
    ({"paper": {"sst2.f2": 1.0}}, {}, "sst2.f2 is unknown"),
    ({"paper": {"sst3.accuracy": 1.0}}, {}, "task sst3 is unknown; did you mean sst2?"),
    ({"paper": {"accuracy": 1.0}}, {}, "write TASK.METRIC"),
    ({}, {"recipe": "brt"}, "recipe brt is unknown; did you mean bert?"),
    ({}, {"recip": "bert"}, "base.recip is not a key of base; did you mean recipe?"),
    ({}, {"tasks": ["sst"]}, "task sst is unknown"),
    ({}, {"tasks": ["sst2", "sst2"]}, "task sst2 is listed twice"),
    ({}, {"tasks": ["ax"]}, "task ax is unknown"),
    ({}, {"tasks": ["classify=held_out"]}, "cannot be the name of a task"),
    ({}, {"tasks": ["classify=a/reviews.v2"]}, "a name without a dot"),
    ({}, {"seeds": 0}, "seeds = 0 must be at least 1"),
    ({}, {"equal": "token"}, "did you mean tokens?"),
    ({}, {"measures": ["held_out.masked"]}, "did you mean masked_lm?"),
    ({}, {"measures": ["pair.masked_lm"]}, "use next_sentence or sentence_order"),
    ({}, {"measures": ["sst2.accuracy"]}, "is not a measure"),
    ({}, {"measures": []}, "claims.0: held_out.masked_lm is not measured"),
]


@pytest.mark.parametrize(
    ("variant", "base", "sentence"), CHANGED, ids=lambda value: str(value)[:40]
)
def test_what_is_wrong_is_refused_when_read(
    tmp_path: Path, variant: dict[str, Any], base: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_study(tmp_path, STATIC, {**DYNAMIC, **variant}, **base)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('better = "dynamic"', 'better = "dinamic"', "did you mean dynamic?"),
        ('better = "dynamic"', 'better = "static"', "compares static with itself"),
        ("on = [", "on = []  # [", "on is empty"),
        ('says = "Fresh', 'margins = 1\nsays = "Fresh', "did you mean margin?"),
        ('says = "Fresh', 'margin = -1.0\nsays = "Fresh', "margin = -1 must not be negative"),
        ("[base]", "[bass]", "bass is not a key of a study; did you mean base?"),
        ("question =", "# question =", "question is missing"),
        ('title = "Masks"', "title = 1", "title must be a string in quotes"),
        ("[[variants]]", "[variants]", "not valid TOML"),
    ],
)
def test_what_is_wrong_outside_the_variants_is_too(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    file = write_study(tmp_path / "masks.toml")
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=r"masks\.toml") as caught:
        studies.read(file)
    assert sentence in str(caught.value)


def test_layers_and_width_are_multiples_of_the_size_asked_for(tmp_path: Path) -> None:
    half = {"name": "half", "says": "half", "layers": 0.5, "hidden_size": 0.5}
    study = read_study(tmp_path, STATIC, half, set=[])
    for size, layers, width in (("small", 3, 256), ("base", 6, 384), ("tiny", 1, 64)):
        encoder = study.recipe_of("half", size=size).encoder
        assert (encoder.layers, encoder.hidden_size) == (layers, width)
        assert study.recipe_of("static", size=size).encoder.hidden_size == 2 * width


def test_a_student_keeps_its_share_of_its_teachers_layers(tmp_path: Path) -> None:
    student = {**STUDENT, "set": []}
    study = read_study(tmp_path, STATIC, student, set=[])
    for size, layers in (("small", 3), ("mini", 2), ("base", 6)):
        assert study.recipe_of("student", size=size).encoder.layers == layers


def test_a_narrower_study_keeps_the_claims_it_can_judge(tmp_path: Path) -> None:
    study = read_study(tmp_path, STATIC, DYNAMIC, STUDENT, tasks=["sst2"])
    assert len(study.narrowed(tasks=[]).claims) == 1  # of a measure
    assert study.narrowed(variants=["static", "student"]).claims == ()
    (claim,) = study.claims
    both = replace(study, claims=(replace(claim, on=("sst2.accuracy", *claim.on), says="Better."),))
    assert both.claims[0].judged == "Better."
    (part,) = both.narrowed(tasks=[]).claims
    assert part.judged == "Better. (Judged by held-out masked-LM loss alone.)"
    with pytest.raises(UserError, match="is distilled from static; name that as well"):
        study.narrowed(variants=["student"])
    changed = study.narrowed(overrides=["masking.mask_rate=0.3"])
    assert changed.recipe_of("dynamic").tables()["masking"]["mask_rate"] == 0.3
    tuned = study.narrowed(tuning=["epochs=1"])
    assert tuned.finetune == (*study.finetune, "epochs=1")


def test_a_task_of_one_s_own_that_is_left_out_takes_what_is_said_of_it_along(
    tmp_path: Path,
) -> None:
    paper = {"reviews.accuracy": 80.0, "spread.reviews.accuracy": 1.0, "sst2.accuracy": 92.5}
    tuned = ["epochs=2", "reviews.batch_size=4", "sst2.epochs=1"]
    variant = {**STATIC, "paper": paper, "finetune": ["reviews.steps=3"]}
    study = read_study(tmp_path, variant, DYNAMIC, tasks=[reviews(), "sst2"], finetune=tuned)
    assert study.narrowed() == study
    narrow = study.narrowed(tasks=[])
    assert narrow.finetune == ("epochs=2", "sst2.epochs=1")  # sst2 is known without its folder
    assert (narrow.variants[0].paper, narrow.variants[0].finetune) == ({"sst2.accuracy": 92.5}, ())
    again = tmp_path / "study.toml"
    again.write_text(studies.to_toml(narrow), encoding="utf-8")
    assert studies.read(again) == narrow


def test_tasks_have_the_metrics_that_they_are_scored_by() -> None:
    assert metrics_of("mnli") == ["accuracy", "accuracy_mismatched"]
    assert metrics_of("mrpc") == ["accuracy", "f1"]
    assert metrics_of("squad2") == ["exact", "f1"]
    assert metrics_of("pairs=somewhere/own") == ["accuracy"]


def test_commas_and_folders_name_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = studies.tasks_of(["sst2,mnli", "classify=films"])
    assert tasks == ["sst2", "mnli", f"classify={tmp_path / 'films'}"]
