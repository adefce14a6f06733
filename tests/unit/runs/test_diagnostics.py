"""What limits a run is told by how long its steps waited; the unigram plateau by its loss."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from support.corpora import build, write
from support.pretrain_runs import RECIPES, pretrain_job, store
from support.processes import run_process
from support.texts import corpus

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.masking import Corruption
from clozelab.runs.diagnostics import (
    AHEAD,
    ARITHMETIC,
    FEED,
    HIGH,
    HOST,
    IDLE,
    MEMORY,
    SENTENCES,
    SHARED,
    Plateau,
    StepTimes,
    bottleneck,
    copying_loss,
    plateau_cause,
    plateau_of,
    repeated_share,
    unigram_entropy,
)
from clozelab.text.store import Corpus
from clozelab.training import Schedule
from clozelab.training.loop import Step
from clozelab.training.timing import core_wait

MORE, LESS = 1.001, 0.999
# Ten seconds of a device that is busy, waited for, and at half of its rate.
WELL = {"seconds": 10.0, "tokens": 1000.0, "waited": 0.0, "slack": 5.0, "busy": 9.9}
FULL = HIGH * 10.0 / 1000.0  # operations a token at which it is at the border, with a peak of 1


def bottleneck_of(
    flops: float = 1.0, peak: float | None = 1.0, **changed: float | None
) -> str | None:
    spent = StepTimes(**{**WELL, **changed})  # type: ignore[arg-type]
    return bottleneck(spent, flops_a_token=flops, peak=peak)


def test_a_busy_device_is_bound_by_arithmetic_at_a_high_rate_and_by_memory_below() -> None:
    assert bottleneck_of(FULL * MORE) == ARITHMETIC
    assert bottleneck_of(FULL * LESS) == MEMORY


def test_without_a_measured_rate_the_two_are_not_told_apart() -> None:
    assert bottleneck_of(FULL, peak=None) is None
    assert bottleneck_of(FULL, peak=None, busy=1.0) == HOST


@pytest.mark.parametrize(("share", "word"), [(MORE, "feed"), (LESS, "host")])
def test_an_idle_device_waits_for_the_feed_if_half_of_that_time_is_spent_there(
    share: float, word: str
) -> None:
    cause = bottleneck_of(busy=6.0, waited=share * 2.0)
    assert cause == word


def test_a_device_that_rests_for_little_is_limited_by_neither_feed_nor_host() -> None:
    for waited, limited in ((10.0, FEED), (0.0, HOST)):
        assert bottleneck_of(busy=10.0 - IDLE * 10.0 * MORE, waited=waited) == limited
        assert bottleneck_of(busy=10.0 - IDLE * 10.0 * LESS, waited=waited) == ARITHMETIC


def test_a_device_nobody_waits_for_is_limited_by_the_host_however_busy_it_seems() -> None:
    assert bottleneck_of(slack=AHEAD * 10.0 * LESS) == HOST
    assert bottleneck_of(slack=AHEAD * 10.0 * MORE) == ARITHMETIC
    # Where the text was waited for meanwhile, the host was ahead as well.
    assert bottleneck_of(slack=0.0, waited=AHEAD * 10.0 * MORE) == ARITHMETIC


def test_a_cpu_waits_for_its_feed_or_computes() -> None:
    assert bottleneck_of(busy=None, slack=0.0, peak=None, waited=IDLE * 10.0 * MORE) == FEED
    assert bottleneck_of(busy=None, slack=0.0, peak=None, waited=IDLE * 10.0 * LESS) == ARITHMETIC


def test_without_a_step_nothing_is_said() -> None:
    assert bottleneck(StepTimes(), flops_a_token=1.0, peak=1.0) is None


def step(number: int, *, busy: float | None = 0.5) -> Step:
    return Step(number, {}, 0.0, 0.0, 100 * number, 1.0, waited=0.25, slack=0.125, busy=busy)


def test_steps_add_up_and_those_before_count_as_much_as_is_kept() -> None:
    first = StepTimes().then(step(1), keep=0.0)
    assert first == StepTimes(1.0, 100.0, 0.25, 0.125, 0.5) and first.speed == 100.0
    assert first.then(step(2), keep=1.0) == StepTimes(2.0, 300.0, 0.5, 0.25, 1.0)
    assert first.then(step(2), keep=0.5) == StepTimes(1.5, 250.0, 0.375, 0.1875, 0.75)
    assert first.then(step(2), keep=0.0) == StepTimes(1.0, 200.0, 0.25, 0.125, 0.5)
    assert first.then(step(2, busy=None), keep=1.0).busy is None


def test_every_word_has_a_sentence() -> None:
    assert {*SENTENCES} == {"feed", "host", "memory", "arithmetic", "shared"}
    assert "--workers" in SENTENCES["feed"] and "--micro-batch" in SENTENCES["host"]


def test_a_cpu_that_others_use_is_no_fault_of_its_arithmetic() -> None:
    assert bottleneck_of(busy=None, starved=IDLE * 10.0 * MORE) == SHARED
    assert bottleneck_of(busy=None, starved=IDLE * 10.0 * LESS) == ARITHMETIC
    assert (
        bottleneck_of(busy=None, starved=5.0, waited=5.0) == SHARED
    )  # the feed's threads wait as well


@pytest.mark.thorough
@pytest.mark.skipif(core_wait() is None, reason="the kernel does not tell how long threads wait")
def test_waiting_for_a_core_is_measured() -> None:
    """Two processes on one core: each waits for about half of the time."""
    # The other begins when everything is imported, which takes longer than what is timed.
    code = (
        "import os, subprocess, sys, time, torch\ntorch.set_num_threads(1)\n"
        "from clozelab.training.timing import core_wait\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "other = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "began, end = core_wait(), time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\n"
        "print(core_wait() - began)\n"
        "other.kill()"
    )
    done = run_process([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.1


LEVEL = 7.0


def plateau(steps: int = 2000, warmup: int = 100, decay: str = "constant") -> Plateau:
    schedule = Schedule(steps, warmup, 8, decay=decay)  # type: ignore[arg-type]
    why = lambda lower, schedule: "it fell back" if lower else "no cause"  # noqa: E731
    return Plateau("masked_lm", schedule, entropy=LEVEL, level=LEVEL, cause=why)


def warnings_of(watch: Plateau, losses: list[float], *, every: int = 1) -> list[tuple[int, str]]:
    """What is said, and after which step; a thinned log tells of every few."""
    messages = [(n, watch.see(n, loss)) for n, loss in enumerate(losses, 1) if n % every == 0]
    return [(number, message) for number, message in messages if message is not None]


def falling(first: float, last: float, steps: int) -> list[float]:
    return np.linspace(first, last, steps).tolist()


def test_a_loss_that_stays_is_warned_of_once_when_it_should_have_left() -> None:
    ((number, text),) = warnings_of(plateau(), [7.1] * 2000)
    assert number == 601  # three tenths of the run, in stretches of 100
    assert "for 200 steps masked_lm has stayed at 7.10" in text and "gives 7.00; no cause" in text


def test_a_thinned_log_tells_the_same() -> None:
    ((number, _),) = warnings_of(plateau(), [7.1] * 2000, every=7)
    assert 601 <= number <= 608


def test_two_stretches_are_needed_and_a_long_run_is_not_waited_for() -> None:
    ((number, _),) = warnings_of(plateau(500), [7.1] * 500)
    assert number == 301  # a warm-up of 100, two stretches of 100
    losses = [7.1] * 26_000
    ((number, _),) = warnings_of(plateau(1_000_000), losses)
    assert number == 20_101


def test_a_stretch_is_a_twentieth_of_the_run_and_neither_short_nor_long() -> None:
    assert plateau(1000).stretch == 100
    assert plateau(20_000).stretch == 1000
    assert plateau(1_000_000).stretch == 5000


def test_the_warm_up_is_not_judged() -> None:
    assert warnings_of(plateau(warmup=2000), [7.1] * 2000) == []


@pytest.mark.parametrize(("last", "warned"), [(0.979, False), (0.981, True)])
def test_only_a_loss_near_that_of_frequencies_is_on_the_plateau(last: float, warned: bool) -> None:
    assert bool(warnings_of(plateau(), [last * LEVEL] * 2000)) is warned


@pytest.mark.parametrize(("fall", "warned"), [(0.0052, False), (0.0048, True)])
def test_a_loss_that_falls_is_not(fall: float, warned: bool) -> None:
    """In stretches of 100 steps, by that share of the entropy."""
    losses = falling(8.0, 8.0 - 19 * fall * LEVEL, 1900)
    assert bool(warnings_of(plateau(), [8.0] * 100 + losses)) is warned


def test_a_rate_that_has_decayed_levels_every_loss_and_is_no_plateau() -> None:
    losses = falling(9.0, 7.5, 1100)
    assert warnings_of(plateau(decay="linear"), losses + [7.4] * 900) == []
    assert warnings_of(plateau(decay="constant"), losses + [7.4] * 900)


def test_leaving_the_plateau_is_said_once() -> None:
    losses = [7.1] * 650 + falling(7.1, 5.0, 300) + [5.0] * 200 + [7.1] * 500
    (_, first), (number, second) = warnings_of(plateau(), losses)
    assert "on the unigram plateau" in first and "left the unigram plateau" in second
    assert number == 801 and "before step 800" in second


def test_a_run_that_never_was_there_says_nothing() -> None:
    assert warnings_of(plateau(), falling(9.0, 5.0, 500) + [5.0] * 1500) == []


def test_a_short_run_that_ends_no_better_than_frequencies_is_told_at_its_end() -> None:
    text = plateau(24, warmup=2).at_end(8.3) or ""
    assert "masked_lm ends at 8.30" in text and "gives 7.00; 24 steps of 8 sequences" in text
    assert (plateau(24, warmup=2).at_end(7.1) or "").endswith("gives 7.00; no cause")
    assert plateau(24, warmup=2).at_end(0.99 * LEVEL) is None
    assert plateau(10, warmup=2).at_end(8.3) is None  # a trial
    warned = plateau()
    assert warnings_of(warned, [7.1] * 2000) and warned.at_end(7.1) is None  # it was told before


def test_falling_back_is_told_apart() -> None:
    ((_, text),) = warnings_of(plateau(), falling(9.0, 5.0, 500) + [7.1] * 1000)
    assert text.endswith("it fell back")


def test_entropy_is_that_of_the_counts() -> None:
    assert unigram_entropy(np.array([2.0, 2.0, 0.0, 2.0, 2.0])) == pytest.approx(math.log(4))
    assert unigram_entropy(np.array([3.0, 1.0])) == pytest.approx(0.562335, abs=1e-6)
    assert str(unigram_entropy(np.array([5.0]))) == "0.0"  # not −0.0


def test_copying_costs_what_a_model_scores_that_sees_its_own_position_only() -> None:
    shares = np.random.default_rng(0).dirichlet(np.full(50, 0.5))
    whole = unigram_entropy(shares)
    corruption = Corruption(mask=0.8, same=0.1, replacement="unigram")
    # Seen t: it was left with q, or any token stands there; the joint of what is seen and meant.
    q = 0.5
    joint = q * np.diag(shares) + (1 - q) * np.outer(shares, shares)
    seen = -(joint * np.log(joint / joint.sum(axis=1, keepdims=True))).sum()
    exact = 0.8 * whole + 0.2 * seen
    assert exact < copying_loss(whole, corruption) == pytest.approx(exact, rel=0.02)
    assert copying_loss(whole, Corruption(mask=1.0, same=0.0)) == pytest.approx(whole)
    assert copying_loss(whole, Corruption(mask=0.8, same=0.0)) == pytest.approx(whole)
    assert copying_loss(whole, Corruption(mask=0.8, same=0.2)) == pytest.approx(0.8 * whole)


@pytest.mark.thorough
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_that_predicts_tokens_is_watched(name: str) -> None:
    job = pretrain_job(name)
    watch = plateau_of(job.recipe, job.stores)
    if name in ("elmo", "minilm", "simcse"):  # whose losses are among samples, or of no tokens
        assert watch is None
        return
    assert watch is not None and watch.objective.endswith(("_lm", "generator"))
    assert 0.85 * watch.entropy < watch.level <= watch.entropy
    assert 3 < watch.entropy < math.log(job.recipe.tokenizer.vocabulary)
    copies = watch.objective == "masked_lm" and job.recipe.corruption.same > 0
    assert (watch.level < watch.entropy) is copies


def test_several_corpora_count_by_their_weights() -> None:
    first, second = Corpus.open(store("wordpiece")), Corpus.open(store("wordpiece", skip=30))
    job = pretrain_job("bert").recipe
    alone = [plateau_of(job, [(corpus, 1.0)]) for corpus in (first, second)]
    mostly = plateau_of(job, [(first, 1.0), (second, 1e-6)])
    both = plateau_of(job, [(first, 1.0), (second, 1.0)])
    assert alone[0] and alone[1] and mostly and both
    assert mostly.entropy == pytest.approx(alone[0].entropy, rel=1e-4)
    assert both.entropy > min(alone[0].entropy, alone[1].entropy)


def test_specials_do_not_count() -> None:
    wordpiece_corpus = Corpus.open(store("wordpiece"))
    before = plateau_of(pretrain_job("bert").recipe, [(wordpiece_corpus, 1.0)])
    assert wordpiece_corpus.vocabulary.counts is not None
    wordpiece_corpus.vocabulary.counts[wordpiece_corpus.vocabulary.special] = 10**6
    after = plateau_of(pretrain_job("bert").recipe, [(wordpiece_corpus, 1.0)])
    assert before and after and before.entropy == after.entropy


LIGHT = "objectives.1.weight=0.1"


def read(*overrides: str, name: str = "bert", size: str | None = None) -> Recipe:
    steps = ["schedule.steps=1200", "schedule.warmup=70"]
    return recipes.read(name, size=size, overrides=[*steps, *overrides])


@pytest.mark.parametrize(
    ("recipe", "facts", "sentence"),
    [
        (read(), {}, "12 layers with norm = post"),
        (read("encoder.norm=pre", LIGHT), {}, "may be too few"),
        (read("schedule.steps=50000", LIGHT), {}, "50,000 steps of 256 sequences may be too few"),
        (read(LIGHT, size="small"), {}, "may be too few"),
        (read(size="small"), {}, "try --set objectives.1.weight=0.1"),
        (read("encoder.norm=pre"), {}, "all of 1,200 steps of 256 sequences: try --set objective"),
        (read(name="xlnet"), {}, "may be too few"),
        (read("corruption.same=0", LIGHT, size="mini"), {}, "no masked token is left unchanged"),
        (read(name="electra", size="mini"), {}, "--set corruption.same=0.1"),
        (read("corruption.same=0", "encoder.norm=pre", LIGHT), {}, "may be too few"),
        (read(name="diffusion", size="mini"), {}, "may be too few"),
        (read("optimiser.learning_rate=9e-6"), {}, "a learning rate of 9e-06 is unusual: raise"),
        (read("optimiser.learning_rate=2.1e-3"), {}, "a learning rate of 0.0021 is unusual: lower"),
        (read(name="albert"), {}, "12 layers with norm = post"),  # LAMB's rates are others
        (read("tokenizer.vocabulary=900"), {}, "a vocabulary of 900"),
        (read(), {"repeats": 0.31}, "31% of the text"),
        (read(), {"repeats": 0.29}, "12 layers"),
        (read(), {"lower": True}, "lower optimiser.learning_rate"),
    ],
)
def test_the_cause_is_chosen_by_facts_of_the_run(
    recipe: Recipe, facts: dict[str, float], sentence: str
) -> None:
    settings = {"lower": False, "repeats": 0.0, **facts}
    assert sentence in plateau_cause(recipe, **settings)  # type: ignore[arg-type]


def test_repeated_sentences_are_found(tmp_path: Path) -> None:
    some = corpus()[:10]
    once = build(write(tmp_path / "a.jsonl", some), tmp_path / "a", held_out=0.0)
    often = build(write(tmp_path / "b.jsonl", some * 4), tmp_path / "b", held_out=0.0)
    assert repeated_share(once) < 0.05
    assert repeated_share(often) == pytest.approx(1 - (1 - repeated_share(once)) / 4)
