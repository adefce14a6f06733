"""Losses: logits and labels, or a teacher's logits (DistilBERT §4.1), as sums."""

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


def softened(
    mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...], there: Tensor, *, temperature: float
) -> Tensor:
    """T² · KL(theirs ‖ mine) at temperature T, summed over the real rows.

    Several tensors, like the start and the end of an answer, are averaged. One column is a number
    and not a distribution: it is held to the teacher's by the squared error.
    """
    parts = [
        _apart(wide(own), wide(other).detach(), temperature).where(there, 0.0).sum()
        for own, other in zip(mine, theirs, strict=True)
    ]
    return torch.stack(parts).mean()


def _apart(mine: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """[rows]."""
    if mine.shape[-1] == 1:
        return (mine - theirs).square().squeeze(-1)
    found = functional.log_softmax(mine / temperature, dim=-1)
    wanted = functional.log_softmax(theirs / temperature, dim=-1)
    rows = functional.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
    return temperature**2 * rows
