"""The unigram plateau: a model that has learned how often tokens occur, and little more.

Every language model passes it; deep ones that normalise after each half of a layer may stay there
until their steps are used up, and only their loss tells, to whoever knows the entropy of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.keys import fold
from clozelab.masking import Corruption
from clozelab.objectives import NextSentence
from clozelab.text.store import Corpus
from clozelab.text.store.mixture import Store
from clozelab.training import Schedule
from clozelab.training.optimiser import Adamw, BertAdam

Counted = NDArray[np.float64]  # how often each id occurs, times the weight of its store

# ELMo's loss is not among them: it tells a word from samples, which no entropy compares with.
_LANGUAGE = ("masked_lm", "causal_lm", "permutation_lm")

# Two stretches are compared: a twentieth of the run each, but enough steps for their noise to go
# under, and in a long run few enough for the warning to come in time.
_PARTS, _FEWEST, _MOST = 20, 100, 5_000
_NEAR = 0.98  # of the plateau's loss: below, something else was learned
_FALL = 0.005  # of the entropy, from one stretch to the next: less is no fall
_ACTIVE = 0.5  # of the peak rate: once it has decayed further, every loss is nearly level
_EARLY, _LONG = 0.3, 20_000  # every run passes it: a share of the steps, or as many, that it may

_DEEP, _FEW = 12, 20_000  # layers, and steps of a whole run
_LOW, _HIGH = 1e-5, 2e-3  # rates that Adam rarely pretrains with
_SMALL = 1_000  # of a vocabulary
_LIGHT = 0.1  # of next-sentence prediction: a weight that slows nothing (results/nsp-saturation)
_SAMPLE, _REPEATED = 10_000, 0.3  # sentences looked at, and the share of their tokens


class Plateau:
    """Watches a run's loss; `cause` is asked why it stays, and told if it had been lower before."""

    def __init__(
        self,
        objective: str,
        schedule: Schedule,
        *,
        entropy: float,
        level: float,
        cause: Callable[[bool], str],
    ) -> None:
        self.objective, self.schedule, self.cause = objective, schedule, cause
        self.entropy, self.level = entropy, level
        self.stretch = min(max(schedule.total // _PARTS, _FEWEST), _MOST)
        self.warned = self.left = False
        self._place, self._losses, self._before = 0, [0.0, 0.0], 0.0
        self._lower = False

    def see(self, number: int, loss: float) -> str | None:
        """Take in the loss of a step, or of several up to it; answers what is to be said."""
        if number <= self.schedule.warmup:
            return None
        place = (number - self.schedule.warmup - 1) // self.stretch
        said = None
        if place != self._place and self._losses[1]:
            said = self._judge(self._losses[0] / self._losses[1])
            self._losses = [0.0, 0.0]
        self._place = place
        self._losses = [self._losses[0] + loss, self._losses[1] + 1]
        return said

    def _judge(self, mean: float) -> str | None:
        """A stretch has ended."""
        before, self._before = self._before, mean
        end = self.schedule.warmup + (self._place + 1) * self.stretch
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
            f"on the unigram plateau: for {2 * self.stretch:,} steps {self.objective} has stayed at"
            f" {mean:.2f}, and to know no more than how often each token occurs costs"
            f" {self.entropy:.2f}; {self.cause(self._lower)}"
        )


def watched(recipe: Recipe, stores: Sequence[Store]) -> Plateau | None:
    """The plateau of a run, if its objectives have one."""
    names = [slots.use("objectives", part) for part in recipe.objectives]
    name = next((name for name in names if name in _LANGUAGE), None)
    found = entropy(_counts(stores))
    if name is None or not found:
        return None
    level = copying(found, recipe.corruption) if name == "masked_lm" else found
    return Plateau(
        name,
        recipe.schedule,
        entropy=found,
        level=level,
        cause=lambda lower: cause(recipe, lower=lower, repeats=repeats(stores[0][0])),
    )


def entropy(counts: Counted) -> float:
    """Nats a token for whoever knows how often each occurs."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def copying(entropy: float, corruption: Corruption) -> float:
    """What it costs to know, besides, how often a token that is not masked was left as it is.

    Copying it is learned on the plateau: it needs no other token.
    """
    seen = 1 - corruption.mask
    kept = min(corruption.same / seen, 1.0) if seen > 0 else 0.0
    choice = -sum(share * log(share) for share in (kept, 1 - kept) if share > 0)
    return corruption.mask * entropy + seen * (choice + (1 - kept) * entropy)


def cause(recipe: Recipe, *, lower: bool, repeats: float) -> str:
    """The likeliest one, with a remedy."""
    encoder, schedule, rate = recipe.encoder, recipe.schedule, recipe.optimiser.rate
    adam = isinstance(recipe.optimiser, Adamw | BertAdam)
    if lower:
        return (
            "it had been lower, so steps are too long: lower optimiser.rate or lengthen"
            " schedule.warmup"
        )
    if repeats >= _REPEATED:
        return (
            f"{repeats:.0%} of the text are sentences that were there before: build the corpus"
            " without them (--unique, for whole documents)"
        )
    if recipe.tokenizer.vocabulary < _SMALL:
        return (
            f"a vocabulary of {recipe.tokenizer.vocabulary} makes tokens that tell little of one"
            " another: build the corpus with a larger --vocabulary"
        )
    if adam and not _LOW <= rate <= _HIGH:
        way = "raise" if rate < _LOW else "lower"
        return f"a rate of {rate:g} is unusual: {way} it by --set optimiser.rate=…"
    many = f"{schedule.total:,} steps of {schedule.sequences:,} sequences"
    post = getattr(encoder, "norm", None) == "post"
    if post and encoder.layers >= _DEEP and schedule.total < _FEW:
        return (
            f"{encoder.layers} layers with norm = post may not leave it within {many}: try"
            " --set encoder.norm=pre (the recipe swift has it), fewer sequences and so more steps,"
            " or a longer warm-up"
        )
    for number, part in enumerate(recipe.objectives):
        if isinstance(part, NextSentence) and part.weight > _LIGHT:
            return (
                f"next-sentence prediction at a weight of {part.weight:g} can keep a small encoder"
                f" near it for all of {many}: try --set objectives.{number}.weight={_LIGHT:g}"
            )
    return f"{many} may be too few: try fewer sequences and so more steps, or a longer budget"


def repeats(corpus: Corpus) -> float:
    """The share of the first text that is in sentences which were there before."""
    documents = corpus.documents()
    bounds = np.asarray(documents.sentences[: _SAMPLE + 1])
    keys = fold(documents.ids[: bounds[-1]], bounds[:-1])
    _, first = np.unique(keys, return_index=True)
    lengths = np.diff(bounds)
    return 1 - float(lengths[first].sum()) / max(int(bounds[-1]), 1)


def _counts(stores: Sequence[Store]) -> Counted:
    """How often each token is met, without specials, which are never predicted."""
    total = np.zeros(stores[0][0].vocabulary.size)
    for corpus, weight in stores:
        assert corpus.vocabulary.counts is not None
        total += weight * corpus.vocabulary.counts
    return total[stores[0][0].vocabulary.ordinary]
