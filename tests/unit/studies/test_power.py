"""What a plan says of a claim before it is run, and how claims and variants are written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.study_folders import TEXT

from clozelab.cli import main
from clozelab.errors import UserError
from clozelab.statistics import power_within
from clozelab.studies import spec
from clozelab.studies.cells import tuning_scores
from clozelab.studies.power import _least_delta, claim_powers, paper_effect
from clozelab.studies.records import packed_items, unpacked_items
from clozelab.studies.request import Cell, StudyRequest
from clozelab.studies.scores import sampling_variance
from clozelab.studies.spec import Claim, StudySpec

ON = ("sst2.accuracy", "mnli.accuracy")


def written_study(tmp_path: Path, text: str = TEXT) -> StudySpec:
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    return spec.read(tmp_path / "study.toml")


def test_more_seeds_and_larger_effects_have_more_power(tmp_path: Path) -> None:
    study = replace(
        written_study(tmp_path), claims=(Claim("dynamic", ON, "", than="static", effect=2.0),)
    )
    few, many_seeds = (claim_powers(replace(study, seeds=n))[0] for n in (3, 20))
    assert (
        few.at_effect
        and few.at_half
        and many_seeds.at_effect
        and few.detectable
        and many_seeds.detectable
    )
    assert (
        few.at_half < few.at_effect < many_seeds.at_effect
        and few.detectable > many_seeds.detectable
    )
    assert claim_powers(replace(study, noise={"sst2.accuracy": 50.0}))[0].at_effect < 0.1  # type: ignore
    unknown = replace(study, claims=(Claim("dynamic", ("mrpc.f2",), "", than="static"),))
    assert claim_powers(unknown)[0].unknown == ("mrpc.f2",)


def test_the_noise_is_that_of_the_size_if_it_was_recorded(tmp_path: Path) -> None:
    study = replace(
        written_study(tmp_path), claims=(Claim("dynamic", ON, "", than="static", effect=2.0),)
    )
    mini, usual, wide, small = (
        claim_powers(study, size=size)[0] for size in ("mini", None, "6x512", "small")
    )
    assert mini == usual and wide == small
    assert wide.detectable and mini.detectable and wide.detectable < mini.detectable
    stated = replace(study, noise=dict.fromkeys(ON, 1.0))
    assert claim_powers(stated, size="6x512") == claim_powers(stated)


def detectable(study: StudySpec, *claims: Claim, **known: dict[str, float]) -> float:
    """Of the first of some claims."""
    least = claim_powers(replace(study, claims=claims), **known)[0].detectable
    assert least is not None
    return least


def test_a_share_of_the_other_has_that_share_of_its_noise(tmp_path: Path) -> None:
    study, better = written_study(tmp_path), Claim("dynamic", ON, "", than="static")
    half, alone = replace(better, ratio=0.5), replace(better, ratio=1e-9)
    assert detectable(study, half) == pytest.approx(detectable(study, better) * 0.625**0.5)
    assert detectable(study, alone) == pytest.approx(detectable(study, better) * 0.5**0.5)


def test_a_margin_is_subtracted_and_claims_of_equality_are_corrected_apart(tmp_path: Path) -> None:
    study, better = written_study(tmp_path), Claim("dynamic", ON, "", than="static")
    assert detectable(study, replace(better, margin=0.5)) == pytest.approx(
        detectable(study, better) - 0.5
    )
    equal = replace(better, kind="equal", delta=2.0)
    other = replace(equal, better="single")
    assert detectable(study, equal, better) == detectable(study, equal)
    assert detectable(study, equal, other) > detectable(study, equal)


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.002])
@pytest.mark.parametrize("freedom", [1.5, 3.0, 10.5, 60.0, 1e6])
def test_the_least_delta_is_reached_four_times_in_five(freedom: float, alpha: float) -> None:
    delta = _least_delta(2.0, freedom, alpha)
    assert power_within(0.0, delta, 2.0, freedom, alpha=alpha) == pytest.approx(0.8, abs=1e-6)


def test_two_seeds_are_enough_where_only_the_items_differ(tmp_path: Path) -> None:
    study, claim = written_study(tmp_path), Claim("dynamic", ON[:1], "", than="static")
    known = {"noise": {ON[0]: 1e-6}, "sizes": {"sst2": 872.0}}
    least = detectable(replace(study, seeds=2), claim, **known)
    error = sampling_variance(ON[0], 60.0, {"sst2": 872}) ** 0.5  # two sides that half agree
    assert least == pytest.approx((1.960 + 0.842) * error, rel=1e-3)


def test_a_share_of_runs_has_as_many_items_as_seeds(tmp_path: Path) -> None:
    study, claim = written_study(tmp_path), Claim("dynamic", ("run.finished",), "", than="static")
    known = {"noise": {"run.finished": 1e-6}}
    least = detectable(replace(study, seeds=20), claim, **known)
    both = 2 * sampling_variance("run.finished", 60.0, {"run": 20})  # as verdicts have it
    assert least == pytest.approx((1.960 + 0.842) * both**0.5, rel=1e-3)


def test_the_paper_s_effect_is_by_its_numbers_or_by_the_claim(tmp_path: Path) -> None:
    study = written_study(tmp_path)
    claim = study.claims[0]
    assert paper_effect(study, claim, ON) == pytest.approx((0.4 - 0.3) / 2)
    assert paper_effect(study, replace(claim, effect=3.0), ON) == 3.0
    nothing = Claim("single", ON, "", than="static")
    assert paper_effect(study, nothing, ON) is None
    assert paper_effect(study, replace(nothing, margin=0.5), ON) == 0.0


def test_a_plan_warns_of_claims_that_would_stay_undecided(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["study", "roberta-masking", "--plan", "--seeds", "3"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "paper's effect" in output and "would probably stay undecided" in output
    # Claims of the same variants are told apart by what they are on.
    assert "static on squad2.f1, …" in output and "static on pairs.blimp" in output


@pytest.mark.parametrize(("more", "why"), [
    ('kind = "equal"', "needs delta"), ("delta = 0.0", "above 0"),
    ("level = 50.0", "name the other"),
    ('kind = "same"', "unknown"), ("seeds = 0", "above 0"), ("deltas = 1.0", "is not a key"),
])  # fmt: skip
def test_claims_are_read_strictly(tmp_path: Path, more: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        written_study(tmp_path, f"{TEXT}{more}\n")


def test_a_margin_has_one_unit(tmp_path: Path) -> None:
    both = TEXT.replace('says = "Several', 'margin = 0.5\nsays = "Several')
    with pytest.raises(UserError, match="write a claim for each"):
        written_study(tmp_path, both)


def test_a_variant_again_has_other_seeds_and_nothing_of_its_own(tmp_path: Path) -> None:
    again = '[[variants]]\nname = "twice"\nsays = "A/A"\nagain = "dynamic"\n'
    study = written_study(tmp_path, TEXT.replace("[[claims]]", f"{again}[[claims]]", 1))
    assert study.variant("twice").set == study.variant("dynamic").set
    assert spec.read(_written(tmp_path, study)) == replace(study, name="again")
    request = StudyRequest(study, ("corpus",))
    assert request.seed(Cell("dynamic", 2)) == 2 and request.seed(Cell("twice", 2)) == 1002
    assert request.shares_pretraining_with("twice") is None
    with pytest.raises(UserError, match="leave all but says out"):
        written_study(tmp_path, TEXT.replace("[[claims]]", f'{again}set = ["x=1"]\n[[claims]]', 1))


def _written(tmp_path: Path, study: StudySpec) -> Path:
    file = tmp_path / "again.toml"
    file.write_text(spec.to_toml(replace(study, name="again")), encoding="utf-8")
    return file


def test_several_tunings_of_one_encoder_are_one_score() -> None:
    tunings = [{"accuracy": 80.0}, {"accuracy": 84.0}]
    assert tuning_scores("mrpc", tunings, ()) == {"mrpc.accuracy": 82.0}
    measures = ("spread.mrpc.accuracy", "worst.mrpc.accuracy", "best.mrpc.accuracy")
    scores = tuning_scores("mrpc", tunings, measures)
    assert [scores[name] for name in measures] == pytest.approx([8**0.5, 80.0, 84.0])


def test_items_are_kept_as_a_word() -> None:
    items = [0.0, 100.0, 50.0] * 500
    assert unpacked_items(packed_items(items)).tolist() == items
    assert len(packed_items(items)) < 200


def test_a_score_is_as_certain_as_its_items_are_many() -> None:
    pairs = sampling_variance("pair.next_sentence", 50.0, {"pair": 1024})
    assert pairs**0.5 == pytest.approx(1.56, abs=0.01)
    assert sampling_variance("sst2.accuracy", 100.0, {"sst2": 872}) > 0  # all right is not certain
    assert sampling_variance("held_out.masked_lm", 3.0, {"held_out": 20_000}) ** 0.5 < 0.01
