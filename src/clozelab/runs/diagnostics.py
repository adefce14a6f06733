"""Diagnostics of a run: what limits its speed, and whether its loss is on the unigram plateau.

Speed is limited by the feed, by the host that launches the work, by the device's memory or
arithmetic, or by other processes on the same CPU. Nothing is measured here: a step records how long
the loop waited for text and for a core, how long the device worked and the host waited for it.

A model is on the unigram plateau when it has learned how often tokens occur, and little more. Every
language model passes it. Deep post-norm models may stay there until the run ends, which shows only
in their loss, compared with the entropy of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import ObjectivePart
from clozelab.keys import fold
from clozelab.masking import Corruption
from clozelab.text.store import Corpus
from clozelab.text.store.corpus import Store
from clozelab.training import Schedule

if TYPE_CHECKING:
    from clozelab.training.loop import Step

IDLE = 0.1  # of the time: if the device idles less, a faster feed or host would gain little
AHEAD = 0.03  # of the time: a host that waits for the device for less is the bottleneck itself
HIGH = 0.45  # of the measured peak: wide models reach it; below, memory traffic takes the time
FIRST_TIMED = 3  # the first step that counts: those before it compile, and wait for the first text

FEED, HOST, MEMORY, ARITHMETIC, SHARED = "feed", "host", "memory", "arithmetic", "shared"
SENTENCES = {  # what a user can do about each
    FEED: "the device waits for text; use more --workers",
    HOST: "the device waits for the host; use a larger --micro-batch, more sequences per step or"
    " --compile",
    MEMORY: "the device is limited by memory bandwidth; a wider model, or one without dropout,"
    " would use it better",
    ARITHMETIC: "the device computes nearly all the time; only a faster device helps",
    SHARED: "other processes use the CPU cores part of the time; run it alone, or wait",
}


@dataclass(frozen=True)
class StepTimes:
    """The times of several steps, added up."""

    seconds: float = 0.0
    tokens: float = 0.0
    waited: float = 0.0  # the loop, for the feed
    slack: float = 0.0  # the host, for the device
    busy: float | None = None  # the device; None on a CPU
    starved: float = 0.0  # a CPU, for cores that other processes had

    def then(self, step: Step, *, keep: float) -> StepTimes:
        """These times multiplied by `keep`, plus those of a step; below 1, old steps fade out."""
        names = [field.name for field in fields(self) if getattr(step, field.name) is not None]
        sums = {n: keep * (getattr(self, n) or 0.0) + getattr(step, n) for n in names}
        return StepTimes(**sums)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / max(self.seconds, 1e-9)


def bottleneck(spent: StepTimes, *, flops_a_token: float, peak: float | None) -> str | None:
    """What limits the speed; `peak` is the measured rate in operations a second, if known."""
    if not spent.seconds:
        return None
    if spent.busy is None:  # a CPU, which is its own host
        if spent.starved >= IDLE * spent.seconds:
            return SHARED
        return FEED if spent.waited >= IDLE * spent.seconds else ARITHMETIC
    idle = spent.seconds - spent.busy
    if idle >= IDLE * spent.seconds:
        return FEED if spent.waited >= idle / 2 else HOST
    # By its events a device that waits for launches seems busy; but then the host never waits.
    if spent.slack + spent.waited < AHEAD * spent.seconds:
        return HOST
    if peak is None:
        return None
    return ARITHMETIC if spent.speed * flops_a_token >= HIGH * peak else MEMORY


# Two stretches are compared: 5 % of the run each, but enough steps to average out the noise, and
# in a long run few enough for the warning to come in time.
_PARTS, _FEWEST, _MOST = 20, 100, 5_000
_NEAR = 0.98  # of the plateau's loss: below, the model has learned more
LEFT = 0.9  # of the plateau's loss: a run that ends below it has left the plateau for good
# Of the replaced tokens: a detector that finds fewer knows only their share; not tuned.
FOUND = 0.01
_FALL = 0.005  # of the entropy, from one stretch to the next: less does not count as a fall
_ACTIVE = 0.5  # of the peak learning rate: below, every loss is nearly constant
_TRIAL = 10  # steps, of which nobody expects that they teach much
_EARLY, _LONG = 0.3, 20_000  # share of the steps, or steps, before which there is no warning

# Likely causes, by rules of thumb: as deep as base, in a run far shorter than the published ones; a
# vocabulary of little more than letters; text of which a third is copies.
_DEEP, _FEW = 12, 20_000  # layers, and steps of a whole run
SMALL_VOCABULARY = 1_000
_LIGHT = 0.1  # of next-sentence prediction: a weight that slows nothing (results/nsp-saturation)
_SAMPLE, REPEATED = 10_000, 0.3  # sentences looked at, and the share of their tokens


@dataclass(eq=False)
class Plateau:
    """Watches the loss of a run for the unigram plateau."""

    objective: str
    schedule: Schedule
    _: KW_ONLY
    entropy: float
    level: float  # the loss of the plateau
    cause: Callable[[bool, Schedule], str]  # why it stays, given whether it had been lower before

    def __post_init__(self) -> None:
        self.stretch = min(max(self.schedule.total // _PARTS, _FEWEST), _MOST)
        self.warned = self.left = self._lower = False
        self._stretch, self._losses, self._before = 0, list[float](), 0.0

    def see(self, number: int, loss: float) -> str | None:
        """Add the loss of a step, or the mean of several up to it; returns a warning or None."""
        if number <= self.schedule.warmed:
            return None
        stretch = (number - self.schedule.warmed - 1) // self.stretch
        warning = None
        if stretch != self._stretch and self._losses:
            warning = self._judge(fmean(self._losses))
            self._losses = []
        self._stretch = stretch
        self._losses.append(loss)
        return warning

    def at_end(self, loss: float) -> str | None:
        """A warning if the run ends no better than token frequencies, also if it was short."""
        known = self.warned and not self.left
        if loss < self.entropy or known or self.schedule.total <= _TRIAL:
            return None
        reached = loss < self.entropy / _NEAR
        return (
            f"learned little: {self.objective} ends at {loss:.2f}, and predicting by token"
            f" frequency alone gives {self.entropy:.2f};"
            f" {self.cause(self._lower, self.schedule) if reached else _too_few(self.schedule)}"
        )

    def _judge(self, mean: float) -> str | None:
        """Compare the stretch that has ended with the one before; returns a warning or None."""
        before, self._before = self._before, mean
        end = self.schedule.warmed + (self._stretch + 1) * self.stretch
        if mean < _NEAR * self.level:
            self._lower = True
            if self.warned and not self.left:
                self.left = True
                return f"left the unigram plateau before step {end:,}: {self.objective} {mean:.2f}"
            return None
        level = before >= _NEAR * self.level and before - mean < _FALL * self.entropy
        early = end < min(_EARLY * self.schedule.total, _LONG)
        if self.warned or early or not level or self.schedule.factor(end) < _ACTIVE:
            return None
        self.warned = True
        return (
            f"on the unigram plateau: for {2 * self.stretch:,} steps {self.objective} has"
            f" stayed at {mean:.2f}, and predicting by token frequency"
            f"{' and copying' if self.level < self.entropy else ''} alone gives"
            f" {self.level:.2f}; {self.cause(self._lower, self.schedule)}"
        )


def followed_objective(recipe: Recipe) -> str:
    """The objective whose held-out loss is followed: the language model.

    If only some blocks are read causally, that is the masked language model.
    """
    causal = recipe.schedule.causal
    parts = [p for p in recipe.objectives if not (causal and p.language_model == "causal")]
    models = [part for part in parts if part.language_model or part.generates_input]
    return slots.use("objectives", (models or parts)[0])


def _language_model(recipe: Recipe) -> ObjectivePart | None:
    """The objective that can be on the plateau, or None.

    ELMo has none: its sampled softmax is not comparable with the entropy.
    """
    parts = (part for part in recipe.objectives if part.language_model or part.generates_input)
    return next(parts, None)


def plateau_of(recipe: Recipe, stores: Sequence[Store]) -> Plateau | None:
    """The plateau of a run, if it trains a language model."""
    part = _language_model(recipe)
    entropy = unigram_entropy(token_counts(stores))
    if part is None or not entropy:
        return None
    level = plateau_level(recipe, entropy)
    name = slots.use("objectives", part)

    def cause(lower: bool, schedule: Schedule) -> str:
        present = replace(recipe, schedule=schedule)  # it may have been refitted
        return plateau_cause(present, lower=lower, repeats=repeated_share(stores[0][0]))

    return Plateau(name, recipe.schedule, entropy=entropy, level=level, cause=cause)


def plateau_level(recipe: Recipe, entropy: float) -> float:
    """The loss of the plateau on a text of that entropy; lower where tokens are left unmasked."""
    part = _language_model(recipe)
    masked = part is not None and (part.generates_input or part.language_model == "masked")
    return copying_loss(entropy, recipe.corruption) if masked else entropy


def unigram_entropy(counts: NDArray[Any] | None) -> float:
    """The entropy of the token frequencies, in nats per token."""
    assert counts is not None
    shares = counts[counts > 0] / counts.sum()
    return float(abs((shares * np.log(shares)).sum()))  # never −0.0


def copying_loss(entropy: float, corruption: Corruption) -> float:
    """The loss of a model that also knows how often a target that is not masked is unchanged.

    Copying the token is learned on the plateau, since it needs no other token.
    """
    seen = 1 - corruption.mask
    same = min(corruption.same / seen, 1.0) if seen > 0 else 0.0
    choice = -sum(share * log(share) for share in (same, 1 - same) if share > 0)
    return corruption.mask * entropy + seen * (choice + (1 - same) * entropy)


def plateau_cause(recipe: Recipe, *, lower: bool, repeats: float) -> str:
    """The likeliest cause of a plateau, with a remedy."""
    encoder, schedule, rate = recipe.encoder, recipe.schedule, recipe.optimiser.learning_rate
    low, high = recipe.optimiser.usual_rates or (rate, rate)
    if lower:
        return (
            "it had been lower, so the updates are too large: lower optimiser.learning_rate"
            " or lengthen schedule.warmup"
        )
    if not low <= rate <= high:
        fix = f"{'raise' if rate < low else 'lower'} it with --set optimiser.learning_rate=…"
        return f"a learning rate of {rate:g} is unusual: {fix}"
    if repeats >= REPEATED:
        return (
            f"{repeats:.0%} of the text are repeated sentences: build the corpus without"
            " them (--unique lines)"
        )
    if recipe.tokenizer.vocabulary < SMALL_VOCABULARY:
        return (
            f"a vocabulary of {recipe.tokenizer.vocabulary} makes tokens that say little"
            " about each other: build the corpus with a larger --vocabulary"
        )
    length = _length(schedule)
    post = getattr(encoder, "norm", None) == "post"
    if post and encoder.layers >= _DEEP and schedule.total < _FEW:
        return (
            f"{encoder.layers} layers with norm = post may not leave it within {length}: try"
            " --set encoder.norm=pre (as the recipe swift does), smaller batches with more"
            " steps, or a longer warm-up"
        )
    if post and _leaves_none_unchanged(recipe):
        return (
            "no masked token is left unchanged, without which an encoder with norm = post may not"
            f" leave it within {length}: try --set corruption.mask=0.8 --set corruption.same=0.1,"
            " or --set encoder.norm=pre"
        )
    for number, part in enumerate(recipe.objectives):
        if "next" in part.needs and part.weight > _LIGHT:
            return (
                f"next-sentence prediction at a weight of {part.weight:g} can keep a small encoder"
                f" near it for all of {length}: try --set objectives.{number}.weight={_LIGHT:g}"
            )
    return _too_few(schedule)


def _leaves_none_unchanged(recipe: Recipe) -> bool:
    """Whether masked tokens could stay unchanged, but none does; in masked diffusion none may."""
    part = _language_model(recipe)
    masked = part is not None and (part.generates_input or part.language_model == "masked")
    return masked and recipe.corruption.same == 0 and getattr(part, "weighting", "even") == "even"


def _length(schedule: Schedule) -> str:
    return f"{schedule.total:,} steps of {schedule.batch_size:,} sequences"


def _too_few(schedule: Schedule) -> str:
    more = "try smaller batches with more steps, or a longer budget"
    return f"{_length(schedule)} may be too few: {more}"


def repeated_share(corpus: Corpus) -> float:
    """The share of the first sentences' tokens that are in repeated sentences."""
    documents = corpus.documents()
    bounds = np.asarray(documents.sentences[: _SAMPLE + 1])
    keys = fold(documents.ids[: bounds[-1]], bounds[:-1])
    _, first = np.unique(keys, return_index=True)
    lengths = np.diff(bounds)
    return 1 - float(lengths[first].sum()) / max(int(bounds[-1]), 1)


def token_counts(stores: Sequence[Store]) -> NDArray[np.float64]:
    """How often each token occurs, without special tokens, which are never predicted."""
    total = np.zeros(stores[0][0].vocabulary.size)
    for corpus, weight in stores:
        assert corpus.vocabulary.counts is not None
        total += weight * corpus.vocabulary.counts
    return total[stores[0][0].vocabulary.ordinary]
