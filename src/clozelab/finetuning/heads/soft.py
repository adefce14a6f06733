"""Learning a task from a fine-tuned teacher (DistilBERT §4.1): its logits, beside the labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from clozelab.finetuning.heads.judging import wide


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
