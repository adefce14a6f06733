"""Checks of the steps: values that are not finite, spikes, gradient norms, length, speed."""

from __future__ import annotations

import numpy as np

from clozelab.diagnosis.case import Case, TrainingLog
from clozelab.diagnosis.result import CheckResult, caution, healthy, ill
from clozelab.nearest import counted
from clozelab.runs.diagnostics import (
    FEED,
    HOST,
    SENTENCES,
    SHARED,
    StepTimes,
    bottleneck,
)
from clozelab.training.optimiser import Adamw

_LEAST_LINES = 20  # lines; fewer are not judged
_WINDOW = 9  # lines before one, whose median a spike is compared with
# By these only one of 61 recorded runs has a spike; its norm rose to 32 at that step.
_DEVIATIONS, _JUMP = 6.0, 0.05  # deviations, and share of the loss, by which a spike is above
_MANY = 3  # spikes that are no accident
_STEEP = 3.0  # times the usual norm, at a spike
_GROWN = 5.0  # times, of the norm: recorded runs stay below 3
_LARGE = 5.0  # a norm; recorded runs end between 0.1 and 4
_CLIPPED = 10.0  # times the clip
_VANISHED = 1e-3  # a norm, a hundredth of the lowest of recorded runs
# Sums of the learning rates of a run: recorded runs that left the plateau have 0.7 to 8, those with
# less than 0.3 stayed on it. Weights start with a deviation of about 0.02.
_SHORT_PATH, _TOO_SHORT_PATH = 0.2, 0.05
_HIGH = 0.1  # a learning rate above that of all optimisers; Muon's is 0.02
_LOW = 1e-4  # the lowest learning rate of pretraining in the papers, BERT's
_WAITED = 0.3  # share of the time spent waiting for text


def not_finite(case: Case) -> CheckResult | None:
    """Check for NaN and infinity, and what came before."""
    log = case.log
    if broken := [table.name for table in case.tables if not table.finite]:
        return ill(
            "the checkpoint has NaN weights",
            f"in {broken[0]}",
            cause="the optimiser took a step with a gradient that was not finite",
            remedy="continue from an earlier checkpoint with half the learning rate",
        )
    if log is None or not (len(log.steps) or log.not_finite):
        return None
    if not log.not_finite:
        return healthy("losses and gradients are finite", f"{log.done:,} steps")
    step, what = log.not_finite[0]
    before = (log.steps < step) & np.isfinite(log.norm)
    norms = log.norm[before]
    usual, last = (float(np.median(norms)), float(norms[-3:].max())) if len(norms) else (0.0, 0.0)
    where = f"first at step {step:,}: {what}" if what else f"first at step {step:,}"
    where += f", in {len(log.not_finite):,} lines of the log" if len(log.not_finite) > 1 else ""
    if usual and last > _GROWN * usual:
        return ill(
            "the loss became NaN after the gradients grew",
            f"{where}; the gradient norm was usually {usual:.2g}, and {last:.2g} just before",
            cause="the learning rate is too high"
            + (", and there is no warm-up" if not log.warmup else ""),
            remedy="halve the learning rate"
            if log.warmup
            else f"set {case.key('schedule.warmup')} to a twentieth of the steps",
        )
    if log.peak > _HIGH:
        return ill(
            "the loss became NaN suddenly",
            f"{where}; the peak learning rate is {log.peak:g}",
            cause="the learning rate is far too high",
            remedy=f"set {case.key('optimiser.learning_rate')} to 1e-3 or less",
        )
    half = log.settings.get("precision") in ("fp16", None)
    evidence = (
        f"the gradient norm was usually {usual:.2g}, and {last:.2g} just before" if usual else ""
    )
    return ill(
        "the loss became NaN suddenly",
        "; ".join(filter(None, [where, evidence])),
        cause="values too large for half precision"
        if half
        else "a batch without targets, or with an input that is not finite",
        remedy="use bf16 instead of fp16 (--precision bf16), or fp32 to see whether the NaN"
        " persists"
        if half
        else f"look at the batch of step {step:,}",
    )


def spiked(log: TrainingLog) -> tuple[list[int], float]:
    """The lines at which spikes of the loss begin, and the noise of the loss."""
    losses = log.loss[log.after_warmup]
    lines = np.flatnonzero(log.after_warmup)
    windows = np.lib.stride_tricks.sliding_window_view(losses, _WINDOW)[:-1]
    usual = np.median(windows, axis=1)
    excess = losses[_WINDOW:] - usual
    noise = 1.4826 * float(np.median(np.abs(excess - np.median(excess))))
    high = excess > np.maximum(_DEVIATIONS * noise, _JUMP * np.abs(usual))
    begins = np.flatnonzero(high & ~np.append(False, high[:-1]))
    return [int(lines[at + _WINDOW]) for at in begins], noise


def spikes(case: Case) -> CheckResult | None:
    """Check for jumps of the loss after the warm-up."""
    log = case.log
    if log is None or log.after_warmup.sum() < _LEAST_LINES:
        return None
    if case.changes_course:
        return None
    at, noise = spiked(log)
    if not at:
        return healthy("the loss has no spikes", f"it varies by {noise:.2g} between log lines")
    usual = float(np.nanmedian(log.norm)) if np.isfinite(log.norm).any() else 0.0
    worst = max(at, key=lambda line: log.loss[line])
    shown = ", ".join(f"{int(log.steps[line]):,}" for line in at[:5])
    evidence = f"{len(at)} after the warm-up, at steps {shown}{' …' * (len(at) > 5)};"
    evidence += f" the highest is {log.loss[worst]:.2f}, the usual variation is {noise:.2g}"
    there = float(np.nan_to_num(log.norm[at]).max())
    steep = usual > 0 and there > _STEEP * usual
    if steep:
        evidence += f"; the gradient norm there is {there:.2g}, usually {usual:.2g}"
    clip = f"set {case.key('optimiser.clip')} to 1"
    rate = f"lower {case.key('optimiser.learning_rate')} by a third"
    say = ill if len(at) >= _MANY else caution
    return say(
        f"the loss has {counted(len(at), 'spike')}",
        evidence,
        cause="single updates are too large" if steep else "some batches differ from the others",
        remedy=(clip if log.clip == 0 else rate)
        if steep
        else "look at the text of these steps for other languages, tables or broken encodings",
    )


def gradient_norm(case: Case) -> CheckResult | None:
    """Check the gradient norm against the learning rate and the clip."""
    log = case.log
    if log is None:
        return None
    norms = log.norm[log.after_warmup & np.isfinite(log.norm)]
    if len(norms) < _LEAST_LINES:
        return None
    quarter = len(norms) // 4
    early, late = float(np.median(norms[:quarter])), float(np.median(norms[-quarter:]))
    evidence = f"{early:.2g} after the warm-up, {late:.2g} now; peak learning rate {log.peak:.2g}"
    evidence += f", clip {log.clip:g}" if log.clip else ""
    if late < _VANISHED and (case.loss or 0.0) > 1:
        return ill(
            "the gradients have vanished",
            evidence,
            cause="no gradient flows back through the layers: dead activations, frozen layers, or"
            " post-norm in a deep model",
            remedy="use pre-norm (--set encoder.norm=pre)",
        )
    if late > _GROWN * early and late > _LARGE:
        return ill(
            "the gradients grow while the model trains",
            evidence,
            cause="the learning rate is too high for this model",
            remedy=f"halve {case.key('optimiser.learning_rate')}",
        )
    # ELECTRA's losses have weights that sum to 51, and their gradient is clipped as one.
    weight = sum(part.weight for part in case.recipe.objectives) if case.recipe else 1.0
    blown = case.worse_than_guessing  # steps were too long, which clipping does not fix
    if log.clip and not blown and min(early, late) > _CLIPPED * max(weight, 1.0) * log.clip:
        return ill(
            "clipping reduces every step to a tenth or less",
            evidence,
            cause="the clip is far below the usual gradient norm, for instance because losses are"
            " summed",
            remedy=f"raise {case.key('optimiser.clip')} to {late:.1g}",
        )
    return healthy("the gradient norm is steady", evidence)


def small_steps(case: Case) -> CheckResult | None:
    """Check whether all steps together can move the weights far enough."""
    log = case.log
    if log is None or case.continued or not log.peak:
        return None
    if case.recipe is None and (not case.language_model or case.plateau is None):
        return None  # it may be a fine-tuning, whose steps are small
    usual = case.recipe.optimiser.usual_rates if case.recipe else Adamw.usual_rates
    if usual is None:  # the learning rate is not the length of a step
        return None
    peak, far = log.peak, log.travelled
    if case.recipe is not None:
        schedule, peak = case.recipe.schedule, case.recipe.optimiser.learning_rate
        sample = np.linspace(0, schedule.total, 500, endpoint=False)
        far = peak * schedule.total * float(np.mean([schedule.factor(int(n)) for n in sample]))
    elif log.done < log.total:
        far *= log.total / max(log.done, 1)
    evidence = f"peak learning rate {peak:.2g}; all steps together can move a weight by {far:.2g}"
    if peak < usual[0] or far < _TOO_SHORT_PATH:
        few = peak >= _LOW
        return ill(
            f"the steps are too {'few' if few else 'small'} to train from random weights",
            f"{evidence}, while recorded runs that learned something reached 0.7 or more",
            cause="the run is too short" if few else "the learning rate is one for fine-tuning",
            remedy="use smaller batches with more steps"
            if few
            else f"set {case.key('optimiser.learning_rate')} to 1e-4 or more",
        )
    if far < _SHORT_PATH:
        return caution(
            "the run is short for its learning rate",
            f"{evidence}, while recorded runs that learned something reached 0.7 or more",
            cause=f"{log.total:,} steps at this learning rate change the weights too little",
            remedy="use smaller batches with more steps, or a longer budget",
        )
    return healthy("the steps are large enough", evidence)


def speed(case: Case) -> CheckResult | None:
    """Check what limits the speed."""
    log = case.log
    if log is None or log.times is None or not log.times.seconds:
        return None
    times: StepTimes = log.times
    limit = log.limited_by or bottleneck(times, flops_a_token=0.0, peak=None)
    evidence = (
        f"{times.speed:,.0f} tokens per second, {times.waited / times.seconds:.0%} of the time"
    )
    evidence += " waiting for text"
    if limit not in (FEED, HOST, SHARED):
        title = f"{limit}-bound" if limit else "the device does not wait for data"
        return healthy(title, evidence)
    cause, _, remedy = SENTENCES[limit].partition("; ")
    say = ill if limit == FEED and times.waited > _WAITED * times.seconds else caution
    return say(f"{limit}-bound", evidence, cause=cause, remedy=remedy)
