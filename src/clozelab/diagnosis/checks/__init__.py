"""The checks: each returns its finding on a case, or None if it cannot tell.

The most serious come first. A new check is a function in one of the modules and a line here.
"""

from __future__ import annotations

from collections.abc import Callable

from clozelab.diagnosis.case import Case
from clozelab.diagnosis.checks import loss, model, steps, text
from clozelab.diagnosis.result import CheckResult

CHECKS: dict[str, Callable[[Case], CheckResult | None]] = {
    "weights": model.weights,
    "not finite": steps.not_finite,
    "mask token": model.mask_token,
    "collapse": loss.collapse,
    "plateau": loss.plateau,
    "embeddings": model.embeddings,
    "small steps": steps.small_steps,
    "gradient norm": steps.gradient_norm,
    "spikes": steps.spikes,
    "masked share": model.masked_share,
    "accuracy": model.accuracy,
    "tokenizer": text.splitting,
    "unknown tokens": text.unknown_tokens,
    "held-out text": text.shared,
    "repeated text": text.repeated,
    "overfitting": loss.overfitting,
    "level": loss.level,
    "speed": steps.speed,
}
