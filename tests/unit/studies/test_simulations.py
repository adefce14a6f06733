"""Verdicts on simulated studies: how often they are false, and whether the stated power is reached.

A simulated study has four variants and three claims. The quick version bounds the rates within
three standard errors of a few hundred studies; the slow one takes ten times as many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from clozelab.statistics import contrast, item_error
from clozelab.studies.power import claim_powers
from clozelab.studies.records import CellResult, StudyRecord, packed_items
from clozelab.studies.spec import Claim, Paper, StudySpec, Variant
from clozelab.studies.verdicts import judge

pytestmark = pytest.mark.thorough
LOSS, PAIRS = "held_out.masked_lm", "pairs.blimp"
NAMES = ("a", "b", "c", "d")
CLAIMS = (("a", "b"), ("c", "d"), ("a", "c"))
QUICK, SLOW = 150, 4000


class World(NamedTuple):
    """How noisy the variants are, how much of the noise the seeds share, and what is claimed."""

    noise: Sequence[float] = (1.0, 1.0, 1.0, 1.0)  # over seeds
    shared: float = 0.0  # of the variance
    teacher: bool = False  # whether b, c and d are students of a
    claims: Sequence[tuple[str, str]] = CLAIMS


WORLDS = {
    "alike": World(),
    "a noisy pair": World((3.0, 3.0, 1.0, 1.0)),
    "one noisy": World((10.0, 1.0, 1.0, 1.0)),
    "a quiet pair": World((1.0, 1.0, 3.0, 3.0)),
    "a quiet base": World((0.2, 1.0, 1.0, 1.0), claims=(("b", "a"), ("c", "a"), ("d", "a"))),
    "seeds that act alike": World(shared=0.8),
    "a shared teacher": World(shared=0.9, teacher=True),
    "a shared teacher, unequal": World((3.0, 1.0, 1.0, 3.0), shared=0.5, teacher=True),
}


class ItemWorld(NamedTuple):
    """How noisy the means of items' scores are: by seeds, by items, and by a run on an item.

    In units of the deviation that a mean of items with a deviation of one has.
    """

    seeds: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    items: Sequence[float] = (1.0, 1.0, 1.0, 1.0)  # what a variant happens to know
    chance: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    count: int = 100
    shared: float = 0.0  # of what a run makes of an item, with the runs of the same seed


ITEM_WORLDS = {
    "all alike": ItemWorld(),
    "many seeds' noise": ItemWorld(seeds=(3.0,) * 4, items=(0.3,) * 4, chance=(0.3,) * 4),
    "many items' noise": ItemWorld(seeds=(0.3,) * 4, chance=(0.3,) * 4),
    "chance alone": ItemWorld(seeds=(0.0,) * 4, items=(0.0,) * 4),
    "chance that seeds share": ItemWorld(seeds=(0.3,) * 4, items=(0.3,) * 4, shared=0.9),
    "unequal seeds": ItemWorld(seeds=(3.0, 1.0, 1.0, 3.0)),
    "one noisy": ItemWorld(seeds=(10.0, 1.0, 1.0, 1.0), items=(0.5,) * 4, chance=(0.5,) * 4),
    "unequal items": ItemWorld(items=(3.0, 1.0, 1.0, 0.3)),
    "unequal chance": ItemWorld(seeds=(0.3,) * 4, items=(0.1,) * 4, chance=(3.0, 1.0, 1.0, 1.0)),
    "few items": ItemWorld(count=20),
}


def simulated(
    measure: str,
    *,
    seeds: int,
    claims: Sequence[tuple[str, str]] = CLAIMS,
    delta: float | None = None,
    teacher: bool = False,
) -> StudySpec:
    """A study of four variants, three of them perhaps students of the first."""
    return StudySpec(
        recipe="bert",
        measures=(measure,),
        seeds=seeds,
        name="simulated",
        title="",
        question="",
        paper=Paper("", ""),
        variants=tuple(
            Variant(name, "", teacher="a" if teacher and name != "a" else None) for name in NAMES
        ),
        claims=tuple(Claim(a, (measure,), "", than=b, delta=delta) for a, b in claims),
    )


def studies(
    world: World,
    *,
    seeds: int,
    count: int,
    effect: float = 0.0,
    claims: Sequence[tuple[str, str]] = (),
    delta: float | None = None,
) -> Iterator[StudyRecord]:
    """Simulated studies, in which a is better than the others by the effect."""
    claims = claims or world.claims
    spec = simulated(LOSS, seeds=seeds, claims=claims, delta=delta, teacher=world.teacher)
    draw = np.random.default_rng(sum(map(ord, repr((world[:3], seeds))))).normal
    own = draw(size=(count, 4, seeds)) * np.array(world.noise)[:, None]
    common = draw(size=(count, 1, seeds)) * float(np.mean(world.noise))
    values = math.sqrt(1 - world.shared) * own + math.sqrt(world.shared) * common
    values[:, 0] -= effect  # of losses, less is better
    for study in values.tolist():
        cells = [
            CellResult(name, seed, {LOSS: value}, {})
            for name, row in zip(NAMES, study, strict=True)
            for seed, value in enumerate(row)
        ]
        yield StudyRecord(Path(), spec, {"items": {"held_out": 1e12}}, tuple(cells), {})


def false_verdicts(world: World, *, seeds: int, count: int) -> float:
    judgements = [judge(study) for study in studies(world, seeds=seeds, count=count)]
    return float(
        np.mean(
            [any(judgement.verdict != "undecided" for judgement in each) for each in judgements]
        )
    )


def above(rate: float, count: int) -> float:
    return rate + 3 * math.sqrt(rate * (1 - rate) / count)


@pytest.mark.parametrize("seeds", [3, 12])
@pytest.mark.parametrize("world", WORLDS)
def test_without_an_effect_few_studies_have_a_verdict(world: str, seeds: int) -> None:
    assert false_verdicts(WORLDS[world], seeds=seeds, count=QUICK) <= above(0.05, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 4, 5, 8, 12, 20])
@pytest.mark.parametrize("world", WORLDS)
def test_without_an_effect_at_most_one_in_twenty_has_a_verdict(world: str, seeds: int) -> None:
    assert false_verdicts(WORLDS[world], seeds=seeds, count=SLOW) <= above(0.05, SLOW)


def power_reached(seeds: int, count: int) -> tuple[float, float]:
    """The power that a plan states for the first claim, and how often the claim is confirmed."""
    study = next(studies(World(), seeds=seeds, count=1))
    known: dict[str, Any] = {"noise": {LOSS: 1.0}, "sizes": {"held_out": 1e12}}
    effect = claim_powers(study.study, **known)[0].detectable
    assert effect is not None
    first, *rest = study.study.claims
    planned = replace(study.study, claims=(replace(first, effect=effect), *rest))
    plan = claim_powers(planned, **known)[0].at_effect
    assert plan is not None
    judgements = [judge(s)[0] for s in studies(World(), seeds=seeds, count=count, effect=effect)]
    return plan, float(np.mean([each.verdict == "confirmed" for each in judgements]))


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_the_power_that_a_plan_states_is_reached(seeds: int) -> None:
    stated, reached = power_reached(seeds, QUICK)
    assert stated == pytest.approx(0.8, abs=0.01)  # at the minimum detectable effect
    assert reached >= 0.8 - 3 * math.sqrt(0.8 * 0.2 / QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 4, 5, 8, 12, 20])
def test_the_stated_power_is_reached_in_thousands_of_studies(seeds: int) -> None:
    assert power_reached(seeds, SLOW)[1] >= 0.8 - 3 * math.sqrt(0.8 * 0.2 / SLOW)


@pytest.mark.parametrize(("effect", "rate"), [(0.0, None), (2.0, 0.05)])
def test_equal_is_said_of_what_is_equal_and_not_at_the_very_edge(
    effect: float, rate: float | None
) -> None:
    repeated = studies(
        World(), seeds=10, count=QUICK, effect=effect, claims=[("a", "b")], delta=2.0
    )
    verdicts = [judge(study)[0].verdict for study in repeated]
    if rate is None:
        assert verdicts.count("equal") > 0.9 * QUICK and "undecided" not in verdicts[:20]
        assert 1 - verdicts.count("equal") / QUICK <= above(0.05, QUICK)
    else:
        assert verdicts.count("equal") / QUICK <= above(rate, QUICK)


def test_pairing_helps_where_a_teacher_is_shared() -> None:
    world = World(shared=0.9, teacher=True)
    taught = [judge(s)[0] for s in studies(world, seeds=5, count=100, effect=1.0)]
    alone = [judge(s)[0] for s in studies(World(), seeds=5, count=100, effect=1.0)]
    counts = [
        sum(judgement.verdict == "confirmed" for judgement in each) for each in (taught, alone)
    ]
    assert counts[0] > 2 * counts[1] and taught[0].decisive[0].advantage.paired  # type: ignore


def studies_of_items(world: ItemWorld, *, seeds: int, count: int) -> Iterator[StudyRecord]:
    """Simulated studies without an effect that record a score for each item."""
    spec, shape = simulated(PAIRS, seeds=seeds), (4, seeds, world.count)
    draw = np.random.default_rng(sum(map(ord, repr((world[:3], seeds))))).normal
    by_seed, by_item, by_run = (
        np.array(deviation)[:, None, None] for deviation in (world.seeds, world.items, world.chance)
    )
    for _ in range(count):
        own, common = draw(size=shape), draw(size=(1, *shape[1:]))
        runs = math.sqrt(1 - world.shared) * own + math.sqrt(world.shared) * common
        items = draw(size=(1, 1, world.count)) + by_item * draw(size=(4, 1, world.count))
        items = items + by_run * runs
        items += by_seed * draw(size=(4, seeds, 1)) / math.sqrt(world.count)
        cells, item_scores = [], {}
        for name, rows in zip(NAMES, items, strict=True):
            for seed, row in enumerate(rows):
                cells.append(CellResult(name, seed, {PAIRS: float(row.mean())}, {}))
                item_scores[name, seed] = {"items": {PAIRS: packed_items(row)}}
        yield StudyRecord(Path(), spec, {}, tuple(cells), {}, measured=item_scores)


def false_verdicts_of_items(world: ItemWorld, *, seeds: int, count: int) -> float:
    judgements = [judge(study) for study in studies_of_items(world, seeds=seeds, count=count)]
    return float(
        np.mean(
            [any(judgement.verdict != "undecided" for judgement in each) for each in judgements]
        )
    )


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("world", ITEM_WORLDS)
def test_items_and_seeds_give_few_verdicts_without_an_effect(world: str, seeds: int) -> None:
    rate = false_verdicts_of_items(ITEM_WORLDS[world], seeds=seeds, count=QUICK)
    assert rate <= above(0.05, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 12, 20])
@pytest.mark.parametrize("world", ITEM_WORLDS)
def test_items_and_seeds_give_at_most_one_in_twenty(world: str, seeds: int) -> None:
    rate = false_verdicts_of_items(ITEM_WORLDS[world], seeds=seeds, count=SLOW)
    assert rate <= above(0.05, SLOW)


@pytest.mark.parametrize("seeds", [3, 12])
def test_the_error_of_items_and_seeds_is_that_of_repeated_studies(seeds: int) -> None:
    """Neither more nor less: of studies without an effect, the variance of the first advantage."""
    for name in ("all alike", "many seeds' noise", "many items' noise"):
        repeated = studies_of_items(ITEM_WORLDS[name], seeds=seeds, count=QUICK)
        advantages = [
            advantage for study in repeated if (advantage := judge(study)[0].decisive[0].advantage)
        ]
        spread = float(np.var([advantage.value for advantage in advantages]))
        mean_square = float(np.mean([advantage.error**2 for advantage in advantages]))
        assert mean_square == pytest.approx(spread, rel=3 * math.sqrt(2 / QUICK) + 0.1), name


@pytest.mark.parametrize(("seeds", "count"), [(3, 400), (5, 50), (20, 200)])
def test_resampling_seeds_and_items_together_has_a_closed_form(seeds: int, count: int) -> None:
    """The Multi-Bootstrap of a difference of means is what `item_error` and the seeds' variances
    are computed from. It counts a run's chance on an item three times, and seeds too little.
    """
    random = np.random.default_rng(seeds)
    ease, known = random.normal(size=count), random.normal(size=(2, 1, count))
    sides = ease + known + random.normal(size=(2, seeds, count))
    sides += 0.1 * random.normal(size=(2, seeds, 1))
    draws = 8000
    items = random.multinomial(count, [1 / count] * count, size=draws) / count  # both sides alike
    runs = random.multinomial(seeds, [1 / seeds] * seeds, size=(2, draws)) / seeds
    means = np.einsum("vds,vsi,di->vd", runs, sides, items, optimize=True)
    drawn = float((means[0] - means[1]).var())

    # Seeds of the two sides are resampled apart, so a run's chance is that of each side alone.
    of_seeds = sum(float(side.mean(1).var()) / seeds for side in sides)
    alone = [item_error(dict(enumerate(side))) for side in sides]
    both = item_error(*(dict(enumerate(side)) for side in sides))
    fewer = (1 - 1 / seeds) * (1 - 1 / count)
    closed = of_seeds + (1 - 1 / count) * both.variance + fewer * sum(rate.chance for rate in alone)
    assert drawn == pytest.approx(closed, rel=0.05)
    assert both.chance == pytest.approx(sum(rate.chance for rate in alone), rel=0.1)


def test_runs_that_agree_by_chance_are_not_certain() -> None:
    """505, 505 and 506 of 1,024: seeds that vary less than their answers do."""
    random = np.random.default_rng(5)
    rows = [np.roll(np.arange(1024) < right, shift) for right, shift in
            zip((505, 505, 506), random.integers(0, 1024, 3), strict=True)]  # fmt: skip
    ours = {seed: 100.0 * random.permutation(row) for seed, row in enumerate(rows)}
    theirs = {seed: 100.0 * (random.permutation(1024) < 480) for seed in range(3)}
    scores = {
        "a": {k: float(x.mean()) for k, x in ours.items()},
        "b": dict.fromkeys(range(3), 46.875),
    }
    estimate = contrast(scores, "a", "b", items=item_error(ours, theirs))
    assert estimate is not None
    assert estimate.error >= 0.9 * math.sqrt(2 / 3) * 100 * math.sqrt(0.25 / 1024)
    assert estimate.p() > 0.01
