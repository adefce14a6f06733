"""Logits and labels → sums, in single precision at least."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from clozelab.contracts import Sums, Targets

ABSENT = -1e9  # the logit of what does not exist: finite, so that divergences are


def wide(x: Tensor) -> Tensor:
    """At least single precision."""
    return x if x.dtype == torch.float64 else x.float()


def labelled(labels: Tensor) -> Tensor:
    """Which labels count."""
    return labels != Targets.IGNORED


def classified(logits: Tensor, labels: Tensor) -> Sums:
    """Cross-entropy and hits over the labels that count."""
    loss = functional.cross_entropy(
        wide(logits), labels, ignore_index=Targets.IGNORED, reduction="sum"
    )
    right = logits.argmax(-1) == labels
    return {"loss": loss, "count": labelled(labels).sum(), "correct": right.sum()}


def measured(values: Tensor, labels: Tensor) -> Sums:
    """Squared errors over the labels that count; of a number nothing is said to be right."""
    x, there = wide(values), labelled(labels)
    errors = (x - labels.to(x.dtype)).where(there, 0.0)
    return {"loss": errors.square().sum(), "count": there.sum()}
