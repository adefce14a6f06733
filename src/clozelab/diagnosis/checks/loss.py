"""Checks of the loss: its level, a plateau, a collapse, overfitting."""

from __future__ import annotations

import numpy as np

from clozelab.diagnosis.case import Case, Floats, TrainingLog
from clozelab.diagnosis.recorded import alike
from clozelab.diagnosis.result import CheckResult, caution, healthy, ill
from clozelab.nearest import counted
from clozelab.runs.diagnostics import LEFT, plateau_cause

# Thresholds set on the recorded runs (docs/doctor.md), whose faults are known.
_PARTS = 20  # parts of a log that are averaged
_LEAST_LINES = 20  # lines; a shorter log is not judged
_LEFT_IF_ESTIMATED = 0.95  # as LEFT, if the loss of the plateau is estimated
_LEAST_FALL = 0.02  # share of its loss; a curve that falls by less in its second half is level
_ABOVE = 1.15  # times the plateau's loss; above it not even frequencies are learned
_RISEN = 0.08  # share of the best loss by which a final loss has risen
_BEHIND = 0.1  # share of the plateau's loss above every recorded run
_LEVEL_NAMES = {
    "unigram": "token frequencies alone",
    "plateau": "frequencies and copying",
    "bigram": "the previous token",
}
_TOO_GOOD = 0.2  # nats per token; no prose is as easy


def stretches(log: TrainingLog) -> tuple[Floats, Floats]:
    """The last step and the mean loss of each part of the log."""
    known = np.isfinite(log.loss)
    count = min(_PARTS, max(int(known.sum()) // 3, 1))
    steps, losses = (np.array_split(values[known], count) for values in (log.steps, log.loss))
    ends = [part[-1] for part in steps if len(part)]
    return np.array(ends), np.array([part.mean() for part in losses if len(part)])


def level(case: Case) -> CheckResult | None:
    """Compare the loss with entropies of the text, and with recorded runs."""
    loss, limits = case.loss, case.losses
    names = ("uniform", "unigram", "plateau", "bigram")
    marks = ", ".join(f"{name} {limits[name]:.2f}" for name in names if name in limits)
    if case.kind == "corpus" and "bigram" in limits:
        title = f"a model learns from context when its loss is below {limits['bigram']:.2f}"
        return healthy(title, f"{marks} nats per token")
    if loss is None or not case.language_model or "uniform" not in limits:
        return None
    if case.worse_than_guessing:
        rate = f", which is {case.log.peak:g}," if case.log is not None and case.log.peak else ""
        return ill(
            f"the loss of {loss:.2f} is worse than uniform guessing",
            f"{marks} nats per token",
            cause="training made the model confident in wrong tokens: the learning rate was too"
            " high, or the labels belong to other positions",
            remedy=f"halve the learning rate{rate} or, if it is far above 1e-3, set it to 1e-3; if"
            " the loss stays as bad, check the labels of one batch",
        )
    if loss < _TOO_GOOD:
        return caution(
            f"the loss of {loss:.2f} is implausibly low for prose",
            f"{marks} nats per token",
            cause="the encoder sees the tokens that it should predict, or the text repeats itself",
            remedy="look at one batch: masked tokens must not be in the input",
        )
    below = [name for name in names[1:] if name in limits and loss < limits[name]]
    place = f", below that of {_LEVEL_NAMES[below[-1]]}" if below else ""
    behind, evidence = _beside_recorded(case, loss)
    if behind:
        return caution(
            f"the loss of {loss:.2f} is higher than in recorded runs of this size",
            f"{marks} nats a token; {evidence}",
            cause="the learning rate, the batch size or the text differs from theirs",
            remedy="compare the recipe with theirs: clozelab diff",
        )
    if "unigram" in limits and not below and case.log is not None and not case.log.young:
        return None  # the check of the plateau reports it
    return healthy(f"the loss is {loss:.2f}{place}", "; ".join(filter(None, [marks, evidence])))


def _beside_recorded(case: Case, loss: float) -> tuple[bool, str]:
    """Whether a run is behind all recorded ones after as many tokens, and a sentence on it."""
    log, limit = case.log, case.plateau
    if case.size is None or log is None or limit is None or case.continued or not len(log.tokens):
        return False, ""
    tokens = float(log.tokens[-1])
    shares = [share for run in alike(case.size) if (share := run.share(tokens)) is not None]
    if not shares:
        return False, ""
    mine = loss / limit
    runs = f"{counted(len(shares), 'recorded run')} of about this size"
    among = f"{min(shares):.2f}" + (f" to {max(shares):.2f}" if len(shares) > 1 else "")
    evidence = f"{mine:.2f} of the plateau's loss; {runs} after as many tokens: {among}"
    # Otherwise the limit is only estimated.
    return case.unigram_known and mine > max(shares) + _BEHIND, evidence


def plateau(case: Case) -> CheckResult | None:
    """Check whether the loss is stuck at that of frequencies and copying alone."""
    log, limit = case.log, case.plateau
    if log is None or limit is None or not case.language_model or case.continued:
        return None
    if case.worse_than_guessing:
        return None  # reported by another check
    ends, means = stretches(log)
    if np.isfinite(log.loss).sum() < _LEAST_LINES:
        return None
    known = f"{limit:.2f}" if case.unigram_known else f"about {limit:.2f} (as of English text)"
    left = np.flatnonzero(means < (LEFT if case.unigram_known else _LEFT_IF_ESTIMATED) * limit)
    if len(left):
        step = int(ends[left[0]])
        title = f"left the unigram plateau before step {step:,}"
        return healthy(title, f"the plateau is {known}, the loss is now {means[-1]:.2f}")
    reached = means <= (1.02 if case.unigram_known else 1.1) * limit
    since = int(ends[np.flatnonzero(reached)[0]]) if reached.any() else int(ends[0])
    evidence = f"the loss is {means[-1]:.2f}, frequencies and copying alone give {known};"
    evidence += (
        f" it stayed there for {max(log.done - since, 0):,} of {log.done:,} steps{_recorded(case)}"
    )
    cause, _, remedy = _cause_and_remedy(case, means).partition(": ")
    how = {"cause": cause, "remedy": remedy.removeprefix("try ")}
    if log.young:
        where = "above" if means[-1] > _ABOVE * limit else "on"
        title = f"still {where} the unigram plateau, which every run passes"
        wait = "wait until a third of the steps are done, then run the doctor again"
        return caution(title, evidence, cause="the run has only started", remedy=wait)
    if means[-1] > _ABOVE * limit:
        evidence = (
            f"the loss is {means[-1]:.2f} after {log.done:,} steps, frequencies alone give {known}"
        )
        return ill("has not learned the token frequencies yet", evidence, **how)
    falls = means[len(means) // 2] - means[-1] > _LEAST_FALL * limit
    if falls and log.done < log.total:
        return caution("still on the unigram plateau, but falling slowly", evidence, **how)
    return ill(f"{'still' if falls else 'stuck'} on the unigram plateau", evidence, **how)


def _recorded(case: Case) -> str:
    """A clause on when recorded runs of that size left the plateau."""
    runs = alike(case.size) if case.size else []
    if not runs:
        return ""
    left = [run.left_after / 1e6 for run in runs if run.left_after is not None]
    clause = f"; {len(left)} of {len(runs)} recorded runs of about this size left it"
    clause += f", half of them before {np.median(left):.0f} million tokens" if len(left) > 1 else ""
    seen = float(case.log.tokens[-1]) if case.log is not None and len(case.log.tokens) else 0.0
    return clause + (f"; this run has seen {seen / 1e6:.3g} million" if seen > 0 else "")


def _cause_and_remedy(case: Case, means: Floats) -> str:
    """The most likely cause and, after a colon, the remedy."""
    if case.recipe is not None:
        lower = bool(means[:-1].min() < means[-1] / (1 + _RISEN))
        repeats = case.text.repeated if case.text is not None else 0.0
        return plateau_cause(case.recipe, lower=lower, repeats=repeats)
    peak = case.log.peak if case.log is not None else 0.0
    if 0 < peak <= 5e-5:
        return (
            f"a peak learning rate of {peak:.2g} is one for fine-tuning: use 1e-4 to 1e-3 to"
            " pretrain from random weights"
        )
    return (
        "there are too few or too large steps, or too many layers for post-norm: use"
        " smaller batches with more steps, a learning rate of 5e-4 to 1e-3 and a longer"
        " warm-up"
    )


def collapse(case: Case) -> CheckResult | None:
    """Check whether the loss had been lower, and rose for good."""
    log = case.log
    if log is None or np.isfinite(log.loss).sum() < _LEAST_LINES:
        return None
    ends, means = stretches(log)
    best = int(means.argmin())
    risen = means[-2:].min() - means[best]
    if case.changes_course or risen < _RISEN * means[best] or best >= len(means) - 2:
        return None
    at = int(np.searchsorted(log.steps, ends[best]))
    rate = float(log.learning_rate[min(at, len(log.learning_rate) - 1)])
    return ill(
        "the training loss fell, then rose and stayed high",
        f"{means[best]:.2f} at step {int(ends[best]):,}, where the learning rate was {rate:.2g};"
        f" {means[-1]:.2f} at step {int(ends[-1]):,}",
        cause="the learning rate is too high for this model",
        remedy=f"halve {case.key('optimiser.learning_rate')}",
    )


def overfitting(case: Case) -> CheckResult | None:
    """Check whether the held-out loss rises while the training loss falls."""
    log = case.log
    if log is None or len(log.held_out) < 3 or log.end is None:
        return None
    steps, losses = zip(*log.held_out, strict=True)
    best = int(np.argmin(losses))
    evidence = (
        f"held-out loss {losses[-1]:.2f} (best {losses[best]:.2f} at step {int(steps[best]):,}), "
    )
    evidence += f"training loss {log.end:.2f}{_passes_clause(case)}"
    rises = losses[-1] > (1 + _RISEN) * losses[best]
    if not (rises and log.end < losses[-1] / (1 + _RISEN)):
        gap = losses[-1] - log.end
        return healthy(
            "the held-out loss follows the training loss", f"{evidence}, gap {gap:+.2f} nats"
        )
    copies = case.recipe.corruption.copies if case.recipe else 0
    cause = "the text is repeated too often for a model of this size"
    remedy = f"stop at step {int(steps[best]):,}, or use more text"
    if copies:
        cause = f"the same {copies} cop{'ies' if copies > 1 else 'y'} of the masks are repeated"
        remedy = "use dynamic masking: --set corruption.copies=0"
    title = "overfitting: the held-out loss rises"
    return ill(title, evidence, cause=cause, remedy=remedy)


def _passes_clause(case: Case) -> str:
    log = case.log
    if log is None or case.text is None or not len(log.tokens) or not np.isfinite(log.tokens[-1]):
        return ""
    return f", {log.tokens[-1] / max(case.text.tokens, 1):.3g} passes over the text"
