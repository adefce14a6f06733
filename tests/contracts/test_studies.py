"""What every study that ships promises: it runs at any size, and reports its paper truly."""

import tomllib
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

import pytest

from clozelab.config import recipe as recipes
from clozelab.finetuning import protocols
from clozelab.finetuning.files.named import NAMED
from clozelab.studies import spec as studies
from clozelab.studies.scores import TUNINGS, metrics_of
from clozelab.studies.spec import StudySpec, Variant

ASKED = {
    *("bert-tasks", "bert-masking", "bert-size", "bert-features", "bert-corpus"),
    *("roberta-masking", "roberta-formats", "roberta-batch", "roberta-scale", "roberta-bpe"),
    *("spanbert-masking", "spanbert-objective"),
    *("albert-embedding", "albert-sharing", "albert-sentence", "albert-depth", "albert-width"),
    *("xlnet", "distilbert", "wwm-zh", "mask-rate", "family", "lengths", "adam"),
    *("nsp-saturation", "calibration", "tuning-restarts", "learning-curves", "batch-masks"),
    *("span-length", "next-negatives", "independence", "cls", "unchanged-tokens"),
    *("masked-or-replaced", "masked-or-replaced-seconds", "generator-size"),
    *("modern-block", "mask-rate-schedule", "long-context", "causal-then-masked"),
    *("embedding-sharing", "swift-choices", "swift-objective"),
}
every_study = pytest.mark.parametrize("name", studies.names())


@cache
def study_of(name: str) -> StudySpec:
    return studies.read(name)


def text_of(name: str) -> str:
    return (resources.files("clozelab") / "studies" / "papers" / f"{name}.toml").read_text("utf-8")


def gain(score: str, better: Variant, than: Variant) -> float:
    """How far the paper's numbers agree with a claim: of losses, lower is better."""
    difference = better.paper[score] - than.paper[score]
    return -difference if score.startswith("held_out.") else difference


def experiment(study: StudySpec, variant: Variant, size: str) -> str:
    """All by which a variant differs from another."""
    recipe = study.recipe_of(variant, size=size).tables()
    return repr(
        (
            recipe,
            variant.share,
            variant.teacher,
            variant.data,
            variant.finetune,
            variant.protocol,
            variant.again,
        )
    )


def test_there_is_a_study_for_every_table_asked_for() -> None:
    assert set(studies.names()) == ASKED


def test_no_two_studies_have_one_title_or_ask_one_question() -> None:
    all_studies = [study_of(name) for name in studies.names()]
    assert len({study.title for study in all_studies}) == len(all_studies)
    assert len({study.question for study in all_studies}) == len(all_studies)


@every_study
def test_a_study_says_first_what_its_table_argues(name: str) -> None:
    lines = text_of(name).splitlines()
    assert lines[0].startswith("# ") and lines[0][2].isupper()
    assert max(map(len, lines)) <= 100
    study = study_of(name)
    assert study.question.endswith("?")
    assert study.claims, "a table claims something"
    assert all(claim.says.endswith(".") for claim in study.claims)
    assert study.seeds >= 3


@every_study
@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_every_variant_resolves_at_every_size(name: str, size: str) -> None:
    study = study_of(name)
    for variant in study.variants:
        assert study.recipe_of(variant, size=size).warnings() == []


@every_study
@pytest.mark.parametrize("size", ["small", "base"])  # at tiny, narrow embeddings are full ones
def test_no_two_variants_are_the_same_experiment(name: str, size: str) -> None:
    study = study_of(name)
    assert len(study.variants) > 1
    experiments = [experiment(study, variant, size) for variant in study.variants]
    assert len(set(experiments)) == len(experiments)


@every_study
def test_students_have_fewer_layers_than_their_teachers(name: str) -> None:
    study = study_of(name)
    for variant in study.variants:
        if variant.teacher is not None:
            for size in ("tiny", "small", "base"):
                taught = study.recipe_of(variant, size=size).encoder
                teacher = study.recipe_of(variant.teacher, size=size).encoder
                assert 2 * taught.layers == teacher.layers
                assert taught.hidden_size == teacher.hidden_size


@every_study
def test_claims_name_variants_and_scores_that_are_there(name: str) -> None:
    tables: dict[str, Any] = tomllib.loads(text_of(name))
    variants = [variant["name"] for variant in tables["variants"]]
    assert len(set(variants)) == len(variants)
    tasks = tables["base"].get("tasks", ())
    scores = {f"{task}.{metric}" for task in tasks for metric in metrics_of(task)}
    scores |= set(tables["base"].get("measures", ()))
    for claim in tables["claims"]:
        assert claim["better"] in variants and claim["better"] != claim.get("than")
        assert claim.get("than") in variants or "level" in claim
        assert set(claim["on"]) <= scores
        assert len(set(claim["on"])) == len(claim["on"])
    for variant in tables["variants"]:
        assert set(variant.get("paper", {})) <= scores


@every_study
def test_a_study_can_be_narrowed_to_any_variant_and_to_no_task(name: str) -> None:
    study = study_of(name)
    for variant in study.variants:
        others = {variant.teacher or "", variant.again} - {""}
        few = study.narrowed(variants=[variant.name, *others], tasks=[])
        kinds = [measure.partition(".") for measure in few.measures]
        assert {kind[2] for kind in kinds if kind[0] == "under"} <= {variant.name, *others}
        assert not {kind[0] for kind in kinds} & {*TUNINGS}
        assert all({*claim.on} <= {*few.measures} for claim in few.claims)


@every_study
def test_the_papers_numbers_are_scores_or_losses(name: str) -> None:
    for variant in study_of(name).variants:
        for score, value in variant.paper.items():
            # The losses are logarithms of perplexities, all of them well trained.
            assert 0 < value < (5 if score.startswith("held_out.") else 100), score


@every_study
def test_the_papers_own_numbers_bear_out_its_claims(name: str) -> None:
    study = study_of(name)
    for claim in study.claims:
        if not claim.than or claim.ratio != 1:
            continue
        better, than = study.variant(claim.better), study.variant(claim.than)
        both = [score for score in claim.on if score in better.paper and score in than.paper]
        if both and claim.kind == "better":
            assert fmean(gain(score, better, than) for score in both) >= -claim.margin, claim.says


@every_study
def test_every_variant_can_be_tuned_to_every_task(name: str) -> None:
    study = study_of(name)
    for variant in study.variants:
        base = recipes.read(variant.recipe or study.recipe)
        for recipe in (base, study.recipe_of(variant, size="tiny")):
            protocol = variant.protocol or protocols.protocol_for(recipe, base=base)
            for task in study.tasks:
                settings = [*study.finetune, *variant.finetune]
                general = [line for line in settings if "." not in line.split("=")[0]]
                tuning = protocols.read(protocol, task, NAMED[task].kind, overrides=general)
                wanted = dict(line.split("=") for line in settings)
                own = {key: value for key, value in wanted.items() if "." not in key}
                read = {key: getattr(tuning, key) for key in own}
                assert {k: f"{v:g}" if k == "epochs" else v for k, v in read.items()} == own


@every_study
def test_a_study_tells_how_to_give_the_corpora_it_needs(name: str) -> None:
    text = text_of(name)
    for variant in study_of(name).variants:
        if variant.data is not None:
            assert f"--data {variant.data}=" in text
