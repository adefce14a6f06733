"""The schedule as functions, cards E4 and E6: rates, phases, ramps, and other lengths of run."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples

from clozelab.config.recipe import read
from clozelab.errors import UserError
from clozelab.training.schedule import Phase, Schedule

DECAYS = ["linear", "google_linear", "cosine", "polynomial", "one_minus_sqrt", "constant"]
PLATEAUS = {"linear", "cosine", "polynomial", "one_minus_sqrt"}  # that may fall later


def schedule(**values: Any) -> Schedule:
    return Schedule(**{"steps": 100, "warmup": 10, "batch_size": 8} | values)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    steps = draw(st.integers(1, 300))
    decay = draw(st.sampled_from(DECAYS))
    parts = draw(st.lists(st.integers(1, 50), max_size=5))
    lengths = [64 * (n + 1) for n in range(len(parts))]
    rests = draw(st.lists(st.integers(1, 50), max_size=4))
    rest = sum(rests) + draw(st.integers(1, 50))
    return Schedule(
        steps=steps,
        warmup=draw(st.integers(0, steps)),
        batch_size=64,
        decay=decay,  # type: ignore[arg-type]
        power=draw(st.sampled_from([0.5, 2.0])) if decay == "polynomial" else 1.0,
        final=draw(st.sampled_from([0.0, 0.001, 0.5])),
        decay_share=draw(st.sampled_from([0.1, 0.5, 1.0])) if decay in PLATEAUS else 1.0,
        phases=tuple((n, p / sum(parts)) for n, p in zip(lengths, parts, strict=True)),
        ramp=tuple((2 + n, p / rest) for n, p in enumerate(rests)),
        causal=tuple((n / 4, p / rest) for n, p in enumerate(rests)),
    )


@pytest.mark.parametrize("decay", DECAYS)
def test_the_rate_rises_from_nought_in_equal_steps(decay: str) -> None:
    fitted = schedule(decay=decay)
    assert [fitted.factor(step) for step in range(10)] == [step / 10 for step in range(10)]
    assert schedule(decay=decay, warmup=0).factor(0) == 1


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({"decay": "linear"}, {10: 1, 55: 0.5, 99: 1 / 90, 100: 0}),
        ({"decay": "google_linear"}, {9: 0.9, 10: 0.9, 50: 0.5, 99: 0.01, 100: 0}),
        ({"decay": "cosine"}, {10: 1, 40: 0.75, 55: 0.5, 70: 0.25, 100: 0}),
        ({"decay": "polynomial", "power": 2}, {10: 1, 55: 0.25, 100: 0}),
        ({"decay": "polynomial", "power": 0.5}, {10: 1, 55: 0.5**0.5, 100: 0}),
        ({"decay": "constant"}, {10: 1, 55: 1, 100: 1}),
        ({"decay": "linear", "final": 0.2}, {10: 1, 55: 0.6, 100: 0.2}),
        ({"decay": "cosine", "final": 0.2}, {10: 1, 55: 0.6, 100: 0.2}),
        ({"decay": "google_linear", "final": 0.2}, {10: 0.92, 100: 0.2}),
        ({"decay": "one_minus_sqrt"}, {10: 1, 20: 2 / 3, 50: 1 / 3, 100: 0}),
        (
            {"decay": "one_minus_sqrt", "decay_share": 0.25},
            {10: 1, 74: 1, 75: 1, 76: 0.8, 84: 0.4, 91: 0.2, 99: 1 - 0.96**0.5, 100: 0},
        ),
        ({"decay": "linear", "decay_share": 0.5, "final": 0.2}, {49: 1, 50: 1, 75: 0.6, 100: 0.2}),
        ({"decay": "linear", "decay_share": 0.95}, {10: 1, 55: 0.5, 100: 0}),
    ],
)
def test_the_rate_falls_as_its_decay_says(
    settings: dict[str, Any], factors: dict[int, float]
) -> None:
    fitted = schedule(**settings)
    assert {step: fitted.factor(step) for step in factors} == pytest.approx(factors, abs=1e-12)


@given(schedules())
@max_examples(200)
def test_the_rate_is_never_stuck_at_nought_and_ends_where_it_should(fitted: Schedule) -> None:
    factors = [fitted.factor(step) for step in range(fitted.steps + 1)]
    assert all(0 < factor <= 1 for factor in factors[1:-1])
    assert factors[-1] == (1 if fitted.decay == "constant" else fitted.final)
    assert fitted.factor(fitted.steps + 7) == factors[-1]
    assert factors[0] == 0 or not fitted.warmup
    falling = factors[fitted.warmup :]
    assert falling == sorted(falling, reverse=True)


def test_berts_rate_is_above_nought_all_through_its_second_phase() -> None:
    for steps in (1_000_000, 2_000, 20):
        fitted = read("bert").schedule.fitted(steps)
        phase = fitted.phase(steps - 1)
        assert phase.length == 512 and phase.number == 1
        assert phase.last - phase.first + 1 == steps // 10
        assert all(fitted.factor(step) > 0 for step in range(phase.first, phase.last + 1))


@given(schedules())
@max_examples(200)
def test_every_step_is_in_one_phase(fitted: Schedule) -> None:
    each = [fitted.phase(step) for step in range(fitted.steps)]
    runs = [(phase, len(list(steps))) for phase, steps in groupby(each)]
    after = 0
    for phase, count in runs:
        assert (phase.first, phase.last) == (after, after + count - 1)
        after += count
    assert after == fitted.steps
    assert fitted.phase(fitted.steps + 3) == each[-1]
    if not fitted.phases:
        assert each[0] == Phase(None, 0, fitted.steps - 1, 0)
        return
    assert all(phase.length == fitted.phases[phase.number][0] for phase, _ in runs)
    if fitted.steps >= len(fitted.phases):
        assert [phase.number for phase, _ in runs] == list(range(len(fitted.phases)))
    if fitted.steps >= 10 * len(fitted.phases) ** 2 / min(share for _, share in fitted.phases):
        for (_, share), (_, count) in zip(fitted.phases, runs, strict=True):
            assert abs(count - share * fitted.steps) <= 1


def test_phases_are_their_shares_of_the_steps() -> None:
    fitted = schedule(steps=1000, phases=((128, 0.9), (512, 0.1)))
    assert fitted.phase(899) == Phase(128, 0, 899, 0)
    assert fitted.phase(900) == Phase(512, 900, 999, 1)
    assert schedule(steps=2, warmup=0, phases=((128, 0.99), (512, 0.01))).phase(1).length == 512
    assert schedule(steps=2, warmup=0, phases=((128, 0.01), (512, 0.99))).phase(0).length == 128
    assert schedule(steps=1, warmup=0, phases=((128, 0.9), (512, 0.1))).phase(0).length == 128


@given(schedules())
@max_examples(200)
def test_steps_grow_along_the_ramp_to_full_size(fitted: Schedule) -> None:
    sizes = [fitted.batch_size_at(step) for step in range(fitted.steps)]
    assert sizes == sorted(sizes)
    allowed = [size for size, _ in fitted.ramp] + [fitted.batch_size]
    assert set(sizes) <= set(allowed)
    if fitted.steps >= len(allowed):
        assert set(sizes) == set(allowed)
    assert fitted.batch_size_at(fitted.steps) == sizes[-1]


def test_a_ramp_takes_its_shares_of_the_steps() -> None:
    fitted = schedule(ramp=((2, 0.25), (4, 0.5)))
    assert [fitted.batch_size_at(step) for step in (0, 24, 25, 74, 75, 99)] == [2, 2, 4, 4, 8, 8]
    assert schedule().batch_size_at(0) == 8


@pytest.mark.parametrize(
    ("steps", "warmup"), [(1, 0), (2, 1), (12, 1), (20, 1), (21, 2), (400, 20), (5_000, 250)]
)
def test_a_short_run_warms_up_for_one_step_in_twenty(steps: int, warmup: int) -> None:
    fitted = read("bert").schedule.fitted(steps)
    assert (fitted.steps, fitted.warmup) == (steps, warmup)


@pytest.mark.parametrize("decay", ["google_linear", "constant"])
def test_a_plateau_goes_with_a_decay_that_can_wait(decay: str) -> None:
    with pytest.raises(UserError, match=f'decay_share = .* no effect with decay = "{decay}"'):
        schedule(decay=decay, decay_share=0.1)
    with pytest.raises(UserError, match=r"decay_share = 1\.5: must be a share"):
        schedule(decay_share=1.5)


def test_a_plateau_keeps_its_share_of_a_shorter_run_and_of_a_refitted_one() -> None:
    fitted = schedule(decay="one_minus_sqrt", decay_share=0.25)
    assert fitted.fitted(400).factor(300) == 1 > fitted.fitted(400).factor(301)
    late = fitted.refitted(50, 150)  # the second half of the schedule in twice the steps
    assert late.factor(100) == 1 > late.factor(101)
    assert late.factor(150) == 0


def test_a_fitted_warm_up_keeps_its_share_up_to_half() -> None:
    assert schedule(warmup=30).fitted(50).warmup == 15
    assert schedule(warmup=90).fitted(50).warmup == 25
    assert schedule(warmup=0).fitted(50).warmup == 0
    assert schedule(warmup=1).fitted(1000).warmup == 10  # longer runs are no short runs
    fitted = schedule(warmup=1, phases=((64, 0.5), (128, 0.5)), ramp=((4, 0.1),))
    assert fitted.fitted(100) == fitted
    assert fitted.fitted(40).phase(20) == Phase(128, 20, 39, 1)
    assert fitted.fitted(40).batch_size_at(3) == 4


def test_progress_is_the_share_of_the_steps() -> None:
    assert [schedule().progress(step) for step in (0, 25, 100, 120)] == [0, 0.25, 1, 1]


def shares_of_the_mean(averaged: Schedule) -> list[float]:
    """The share that the weights after each step have in the mean after the last one."""
    shares = [averaged.share_of_mean(step) for step in range(averaged.total)]
    return [
        share * prod(1 - later for later in shares[step + 1 :]) for step, share in enumerate(shares)
    ]


def test_the_last_weights_have_equal_shares_of_the_mean() -> None:
    assert not any(shares_of_the_mean(schedule()))
    shares = shares_of_the_mean(schedule(average=0.25))
    assert shares == pytest.approx([0.0] * 75 + [1 / 25] * 25)
    assert shares_of_the_mean(schedule(average=1.0)) == pytest.approx([1 / 100] * 100)
    assert schedule(average=0.25).fitted(8).share_of_mean(6) == 1
    with pytest.raises(UserError, match=r"average = 1\.5: must be a share"):
        schedule(average=1.5)


def test_steps_that_take_less_of_the_run_after_a_refit_have_less_of_the_mean() -> None:
    refitted = schedule(average=0.5).refitted(75, 125)  # the last quarter in twice the steps
    shares = shares_of_the_mean(refitted)
    assert shares == pytest.approx([0.0] * 50 + [1 / 50] * 25 + [1 / 100] * 50)


# --- refits ---


@given(schedules(), st.data())
@max_examples(60)
def test_a_refit_keeps_the_share_done_and_goes_on_to_the_end(
    fitted: Schedule, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, fitted.steps - 1))
    total = data.draw(st.integers(at + 1, at + 400))
    refit = fitted.refitted(at, total)
    for step in range(at + 1):  # what was done stays as it was
        assert refit.factor(step) == pytest.approx(fitted.factor(step), abs=1e-12)
        assert refit.batch_size_at(step) == fitted.batch_size_at(step)
        assert refit.phase(step).number == fitted.phase(step).number
    shares = [refit.progress(step) for step in range(total + 1)]
    assert shares == sorted(shares) and shares[-1] == 1 and shares[-2] < 1
    assert refit.total == total and refit.factor(total) == fitted.factor(fitted.steps)
    # The learning rate is the same function of the share done.
    for step in range(at, total, max(1, (total - at) // 7)):
        place = refit.progress(step) * fitted.steps
        low, high = int(place), int(place) + 1
        near = sorted((fitted.factor(low), fitted.factor(high)))
        jump = 1e-9 + abs(fitted.factor(max(fitted.warmup - 1, 0)) - fitted.factor(fitted.warmup))
        assert near[0] - jump <= refit.factor(step) <= near[1] + jump


@given(schedules(), st.data())
@max_examples(60)
def test_a_refit_moves_the_end_of_the_warm_up(fitted: Schedule, data: st.DataObject) -> None:
    assert fitted.warmed == fitted.warmup
    at = data.draw(st.integers(0, fitted.steps - 1))
    refit = fitted.refitted(at, data.draw(st.integers(at + 1, at + 400)))
    places = [refit.progress(step) * fitted.steps for step in range(refit.total + 1)]
    rising = [place < fitted.warmup - 1e-6 for place in places]
    assert rising == [step < refit.warmed for step in range(len(places))]


def test_refits_of_refits_go_on_from_where_they_stand() -> None:
    fitted = schedule(warmup=0).refitted(20, 60).refitted(40, 50)
    shares = {step: fitted.progress(step) for step in (20, 30, 40, 45, 50, 70)}
    assert shares == pytest.approx({20: 0.2, 30: 0.4, 40: 0.6, 45: 0.8, 50: 1, 70: 1})
    assert fitted.total == 50 and fitted.fitted(30).refits is None
    assert fitted.refitted(30, 31).refits == ((20, 60), (30, 31))  # the later one is void


@pytest.mark.parametrize("refits", [((5, 5),), ((100, 120),), ((30, 60), (20, 50)), ((-1, 5),)])
def test_refits_out_of_place_are_refused(refits: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(UserError, match="out of place"):
        schedule(refits=refits)


@given(schedules())
@max_examples(40)
def test_stretches_cover_what_is_left(fitted: Schedule) -> None:
    for first in (0.0, 0.37):
        stretches = [*fitted.stretches(first)]
        assert sum(share for share, *_ in stretches) == pytest.approx(1 - first)
        assert {phase for _, phase, _ in stretches} <= set(range(max(1, len(fitted.phases))))
    assert [size for *_, size in schedule(ramp=((2, 0.25), (4, 0.5))).stretches(0.5)] == [4, 8]


@pytest.mark.parametrize(
    ("causal", "runs"),
    [
        ((), [(0.0, 100)]),
        (((1.0, 0.25),), [(1.0, 25), (0.0, 75)]),
        (((0.0625, 1.0),), [(0.0625, 100)]),
        (((1.0, 0.2), (0.5, 0.3), (0.1, 0.5)), [(1.0, 20), (0.5, 30), (0.1, 50)]),
        (((0.0, 0.1), (1.0, 0.001)), [(0.0, 10), (1.0, 1), (0.0, 89)]),
    ],
)
def test_a_share_of_the_blocks_is_read_causally(
    causal: tuple[tuple[float, float], ...], runs: list[tuple[float, int]]
) -> None:
    fitted = schedule(causal=causal)
    shares = [fitted.causal_share(step) for step in range(100)]
    assert [(share, len([*group])) for share, group in groupby(shares)] == runs
    assert fitted.causal_share(1000) == shares[-1]
    assert fitted.mean_causal_share == pytest.approx(sum(shares) / 100, abs=0.01)
    longer = fitted.fitted(1000)  # shares stay shares
    assert longer.causal_share(10 * runs[0][1] - 1) == runs[0][0]
    later = fitted.refitted(10, 190)  # half as fast: what is left takes twice the steps
    assert later.causal_share(10 + 2 * (runs[0][1] - 10) - 1) == runs[0][0]
    assert "causal" not in read("roberta").to_toml().split("[schedule]")[1]
