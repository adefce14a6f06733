"""The base class of heads of tasks (vectors → logits → sums), and functions that heads share."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.layers import Linear, Norm, activate

Columns = dict[str, Tensor]  # the targets of a batch: a row a slot
RowsOf = Literal["slots", "tokens", "group"]
ABSENT = -1e9  # the logit of what is missing: finite, so that divergences are


class Head(nn.Module):
    """The head of a task: it defines `predict`, and `logits` and `loss` if they differ."""

    # What a row of `predict` is for: a slot of the targets, a token, or anything in a group.
    rows: ClassVar[RowsOf] = "slots"

    def forward(self, encoded: Encoded, inputs: Input, targets: Columns) -> Sums:
        """The sums over the rows that have a label."""
        return self.loss(self.logits(encoded, inputs, targets), targets)

    def logits(self, encoded: Encoded, inputs: Input, targets: Columns) -> tuple[Tensor, ...]:
        """The logits of the loss and of distillation, a distribution in each row."""
        return (self.predict(encoded, inputs, targets),)

    def loss(self, logits: tuple[Tensor, ...], targets: Columns) -> Sums:
        """The sums of loss, labelled rows and correct ones; by default of cross-entropy."""
        return classified(logits[0], targets["labels"])

    def labelled(self, targets: Columns) -> Tensor:
        """Which rows of the logits have a label."""
        return targets["labels"] != Targets.IGNORED

    def predict(self, encoded: Encoded, inputs: Input, targets: Columns) -> Tensor:
        """The rows from which the kind of task makes predictions."""
        raise NotImplementedError


class Transform(nn.Module):
    """A dense layer, gelu and a norm without biases, as in a head over the vocabulary.

    ModernBERT's heads begin so (arXiv:2412.13663, its released code), those of tasks too.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width, bias=False)
        self.norm = Norm(width, eps=1e-5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform vectors of any leading shape."""
        transformed: Tensor = self.norm(activate(self.dense(x), "gelu"))
        return transformed


def upcast(x: Tensor) -> Tensor:
    """At least single precision."""
    return x if x.dtype == torch.float64 else x.float()


def classified(logits: Tensor, labels: Tensor) -> Sums:
    """Cross-entropy and correct predictions over the labelled rows."""
    ignored = Targets.IGNORED
    loss = functional.cross_entropy(upcast(logits), labels, ignore_index=ignored, reduction="sum")
    right = logits.argmax(-1) == labels
    return {"loss": loss, "count": (labels != ignored).sum(), "correct": right.sum()}


def squared_errors(values: Tensor, labels: Tensor) -> Sums:
    """Squared errors over the labelled rows, without correct predictions."""
    x, labelled = upcast(values), labels != Targets.IGNORED
    errors = (x - labels.to(x.dtype)).where(labelled, 0.0)
    return {"loss": errors.square().sum(), "count": labelled.sum()}


def softened(
    student: tuple[Tensor, ...],
    teacher: tuple[Tensor, ...],
    labelled: Tensor,
    *,
    temperature: float,
) -> Tensor:
    """T² · KL(teacher ‖ student) at temperature T, summed over the labelled rows (DistilBERT §4.1).

    Several tensors, like the start and the end of an answer, are averaged. A single column is a
    number, not a distribution: its loss is the squared error.
    """

    def distances(logits: Tensor, target: Tensor) -> Tensor:
        if logits.shape[-1] == 1:
            return (logits - target).square().squeeze(-1)
        log_p = functional.log_softmax(logits / temperature, dim=-1)
        log_q = functional.log_softmax(target / temperature, dim=-1)
        divergence = functional.kl_div(log_p, log_q, reduction="none", log_target=True)
        return temperature**2 * divergence.sum(-1)

    sums = [
        distances(upcast(own), upcast(other).detach()).where(labelled, 0.0).sum()
        for own, other in zip(student, teacher, strict=True)
    ]
    return torch.stack(sums).mean()


# No shape below depends on the data: dummies and empty blocks are rows like any other.


def blocks(inputs: Input) -> Tensor:
    """[N] the block of each token: the number of blocks that end before it."""
    # No searchsorted, which does not compile for a part of a tensor.
    ends = inputs.cu_seqlens[1:].long()
    ended = ends.new_zeros(len(inputs.ids) + 1).index_add(0, ends, torch.ones_like(ends))
    return ended.cumsum(0)[:-1]


def block_of(inputs: Input, tokens: Tensor) -> Tensor:
    """The block of some tokens, by their positions in the batch."""
    return blocks(inputs).index_select(0, tokens)


def block_means(states: Tensor, inputs: Input) -> Tensor:
    """[B, W] the mean vector of each block; zero for an empty one."""
    x = upcast(states)
    lengths = inputs.cu_seqlens.diff()
    if inputs.attention_mask is not None:
        x = x.where(inputs.attention_mask.flatten()[:, None], 0.0)
        lengths = inputs.attention_mask.sum(1)
    empty = x.new_zeros(len(inputs.cu_seqlens) - 1, x.shape[1])
    sums = empty.index_add(0, blocks(inputs), x)
    return (sums / lengths.clamp(min=1)[:, None]).to(states.dtype)
