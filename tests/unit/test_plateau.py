"""The unigram plateau: who is on it, who is not, and why."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from corpora import build, write
from learning import RECIPES, store, task
from texts import corpus

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.masking import Corruption
from clozelab.runs.plateau import Plateau, cause, copying, entropy, repeats, watched
from clozelab.text.store import Corpus
from clozelab.training import Schedule

LEVEL = 7.0


def plateau(steps: int = 2000, warmup: int = 100, decay: str = "constant") -> Plateau:
    schedule = Schedule(steps, warmup, 8, decay=decay)  # type: ignore[arg-type]
    why = lambda lower: "it fell back" if lower else "no cause"  # noqa: E731
    return Plateau("masked_lm", schedule, entropy=LEVEL, level=LEVEL, cause=why)


def said(given: Plateau, losses: list[float], *, every: int = 1) -> list[tuple[int, str]]:
    """What is said, and after which step; a thinned log tells of every few."""
    told = [(n, given.see(n, loss)) for n, loss in enumerate(losses, 1) if n % every == 0]
    return [(number, one) for number, one in told if one is not None]


def falling(first: float, last: float, steps: int) -> list[float]:
    return np.linspace(first, last, steps).tolist()


def test_a_loss_that_stays_is_warned_of_once_when_it_should_have_left() -> None:
    ((number, text),) = said(plateau(), [7.1] * 2000)
    assert number == 601  # three tenths of the run, in stretches of 100
    assert "for 200 steps masked_lm has stayed at 7.10" in text and "costs 7.00; no cause" in text


def test_a_thinned_log_tells_the_same() -> None:
    ((number, _),) = said(plateau(), [7.1] * 2000, every=7)
    assert 601 <= number <= 608


def test_two_stretches_are_needed_and_a_long_run_is_not_waited_for() -> None:
    ((number, _),) = said(plateau(500), [7.1] * 500)
    assert number == 301  # a warm-up of 100, two stretches of 100
    losses = [7.1] * 26_000
    ((number, _),) = said(plateau(1_000_000), losses)
    assert number == 20_101


def test_a_stretch_is_a_twentieth_of_the_run_and_neither_short_nor_long() -> None:
    assert plateau(1000).stretch == 100
    assert plateau(20_000).stretch == 1000
    assert plateau(1_000_000).stretch == 5000


def test_the_warm_up_is_not_judged() -> None:
    assert said(plateau(warmup=2000), [7.1] * 2000) == []


@pytest.mark.parametrize(("last", "warned"), [(0.979, False), (0.981, True)])
def test_only_a_loss_near_that_of_frequencies_is_on_the_plateau(last: float, warned: bool) -> None:
    assert bool(said(plateau(), [last * LEVEL] * 2000)) is warned


@pytest.mark.parametrize(("fall", "warned"), [(0.0052, False), (0.0048, True)])
def test_a_loss_that_falls_is_not(fall: float, warned: bool) -> None:
    """In stretches of 100 steps, by that share of the entropy."""
    losses = falling(8.0, 8.0 - 19 * fall * LEVEL, 1900)
    assert bool(said(plateau(), [8.0] * 100 + losses)) is warned


def test_a_rate_that_has_decayed_levels_every_loss_and_is_no_plateau() -> None:
    losses = falling(9.0, 7.5, 1100)
    assert said(plateau(decay="linear"), losses + [7.4] * 900) == []
    assert said(plateau(decay="constant"), losses + [7.4] * 900)


def test_leaving_the_plateau_is_said_once() -> None:
    losses = [7.1] * 650 + falling(7.1, 5.0, 300) + [5.0] * 200 + [7.1] * 500
    (_, first), (number, second) = said(plateau(), losses)
    assert "on the unigram plateau" in first and "left the unigram plateau" in second
    assert number == 801 and "before step 800" in second


def test_a_run_that_never_was_there_says_nothing() -> None:
    assert said(plateau(), falling(9.0, 5.0, 500) + [5.0] * 1500) == []


def test_falling_back_is_told_apart() -> None:
    ((_, text),) = said(plateau(), falling(9.0, 5.0, 500) + [7.1] * 1000)
    assert text.endswith("it fell back")


def test_entropy_is_that_of_the_counts() -> None:
    assert entropy(np.array([2.0, 2.0, 0.0, 2.0, 2.0])) == pytest.approx(math.log(4))
    assert entropy(np.array([3.0, 1.0])) == pytest.approx(0.562335, abs=1e-6)
    assert entropy(np.array([5.0])) == 0


def test_copying_costs_what_a_model_scores_that_sees_its_own_position_only() -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(50, 0.5))
    whole = entropy(shares)
    given = Corruption(mask=0.8, same=0.1, replacement="unigram")
    # Seen t: it was left with q, or any token stands there; the joint of what is seen and meant.
    q = 0.5
    joint = q * np.diag(shares) + (1 - q) * np.outer(shares, shares)
    seen = -(joint * np.log(joint / joint.sum(axis=1, keepdims=True))).sum()
    exact = 0.8 * whole + 0.2 * seen
    assert exact < copying(whole, given) == pytest.approx(exact, rel=0.02)
    assert copying(whole, Corruption(mask=1.0, same=0.0)) == pytest.approx(whole)
    assert copying(whole, Corruption(mask=0.8, same=0.0)) == pytest.approx(whole)
    assert copying(whole, Corruption(mask=0.8, same=0.2)) == pytest.approx(0.8 * whole)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_but_elmo_is_watched(name: str) -> None:
    given = task(name)
    found = watched(given.recipe, given.stores)
    if name == "elmo":  # whose loss is among samples
        assert found is None
        return
    assert found is not None and found.objective.endswith("_lm")
    assert 0.85 * found.entropy < found.level <= found.entropy
    assert 3 < found.entropy < math.log(given.recipe.tokenizer.vocabulary)
    assert (found.level == found.entropy) is (found.objective != "masked_lm")


def test_several_corpora_count_by_their_weights() -> None:
    one, two = Corpus.open(store("wordpiece")), Corpus.open(store("wordpiece", skip=30))
    given = task("bert").recipe
    alone = [watched(given, [(corpus, 1.0)]) for corpus in (one, two)]
    mostly = watched(given, [(one, 1.0), (two, 1e-6)])
    both = watched(given, [(one, 1.0), (two, 1.0)])
    assert alone[0] and alone[1] and mostly and both
    assert mostly.entropy == pytest.approx(alone[0].entropy, rel=1e-4)
    assert both.entropy > min(alone[0].entropy, alone[1].entropy)


def test_specials_do_not_count() -> None:
    given = Corpus.open(store("wordpiece"))
    before = watched(task("bert").recipe, [(given, 1.0)])
    assert given.vocabulary.counts is not None
    given.vocabulary.counts[given.vocabulary.special] = 10**6
    after = watched(task("bert").recipe, [(given, 1.0)])
    assert before and after and before.entropy == after.entropy


LIGHT = "objectives.1.weight=0.1"


def read(*overrides: str, name: str = "bert", size: str | None = None) -> Recipe:
    steps = ["schedule.steps=1200", "schedule.warmup=70"]
    return recipes.read(name, size=size, overrides=[*steps, *overrides])


@pytest.mark.parametrize(
    ("given", "facts", "told"),
    [
        (read(), {}, "12 layers with norm = post"),
        (read("encoder.norm=pre", LIGHT), {}, "may be too few"),
        (read("schedule.steps=50000", LIGHT), {}, "50,000 steps of 256 sequences may be too few"),
        (read(LIGHT, size="small"), {}, "may be too few"),
        (read(size="small"), {}, "try --set objectives.1.weight=0.1"),
        (read("encoder.norm=pre"), {}, "all of 1,200 steps of 256 sequences: try --set objective"),
        (read(name="xlnet"), {}, "may be too few"),
        (read("optimiser.rate=9e-6"), {}, "a rate of 9e-06 is unusual: raise"),
        (read("optimiser.rate=2.1e-3"), {}, "a rate of 0.0021 is unusual: lower"),
        (read(name="albert"), {}, "12 layers with norm = post"),  # LAMB's rates are others
        (read("tokenizer.vocabulary=900"), {}, "a vocabulary of 900"),
        (read(), {"repeats": 0.31}, "31% of the text"),
        (read(), {"repeats": 0.29}, "12 layers"),
        (read(), {"lower": True}, "lower optimiser.rate"),
    ],
)
def test_the_cause_is_chosen_by_facts_of_the_run(
    given: Recipe, facts: dict[str, float], told: str
) -> None:
    settings = {"lower": False, "repeats": 0.0, **facts}
    assert told in cause(given, **settings)  # type: ignore[arg-type]


def test_repeated_sentences_are_found(tmp_path: Path) -> None:
    some = corpus()[:10]
    once = build(write(tmp_path / "a.jsonl", some), tmp_path / "a", held_out=0.0)
    often = build(write(tmp_path / "b.jsonl", some * 4), tmp_path / "b", held_out=0.0)
    assert repeats(once) < 0.05
    assert repeats(often) == pytest.approx(1 - (1 - repeats(once)) / 4)
