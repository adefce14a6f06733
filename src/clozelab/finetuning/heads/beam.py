"""An answer's end given its start, by beams, and whether there is one (XLNet's and ALBERT's code).

A window has two slots: the mark with the answer's ends, then the mark with the passage's.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.finetuning.heads.losses import ABSENT, wide
from clozelab.finetuning.heads.span import around, both_ends
from clozelab.layers import Linear, Norm, drop, initialise


class Rows(NamedTuple):
    """The windows of a batch as rows that begin at their marks."""

    tokens: Tensor  # [P, L]
    legal: Tensor  # [P, L] the mark, and the tokens of the passage
    states: Tensor  # [P, L, W]
    near: Tensor  # [P, L, W] what each token itself adds to its being the end
    start: Tensor  # [P, L] logits


class BeamHead(nn.Module):
    """Start scores, end scores for a start, and where `impossible` the answerability."""

    rows: ClassVar[Literal["slots", "tokens", "group"]] = "slots"

    def __init__(self, width: int, *, beams: int, impossible: bool, dropout: float) -> None:
        super().__init__()
        self.start = Linear(width, 1)
        self.end_dense = Linear(2 * width, width)
        self.end_norm = Norm(width, eps=1e-12)
        self.end_scores = Linear(width, 1)
        if impossible:
            self.class_dense = Linear(2 * width, width)
            self.class_score = Linear(width, 1, bias=False)
        self.width, self.beams = width, beams
        self.impossible, self.dropout = impossible, dropout
        initialise(self, width)

    def forward(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Sums:
        """The loss over the windows, how many there are, and how many have both ends right."""
        return self.loss(self.logits(encoded, inputs, targets), targets)

    def logits(
        self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """[P, L] of starts and of ends given the right start; [P, 2]: there is an answer, or not.

        Rows as `around` lays them, one a window; the third only where `impossible`.
        """
        laid = self._lay(encoded, inputs, targets)
        window = _slot(targets, 0)
        end = self._ends(laid, encoded.states.index_select(0, window["left"]))
        if not self.impossible:
            return laid.start, end
        score = self._unanswerable(laid)
        # One logit as two: their softmax is its sigmoid, and can be distilled like the others.
        return laid.start, end, torch.stack([torch.zeros_like(score), score], dim=1)

    def loss(self, logits: tuple[Tensor, ...], targets: dict[str, Tensor]) -> Sums:
        """Sums over the windows whose answer is known; answerability counts half."""
        window = _slot(targets, 0)
        losses, right = both_ends(logits[0], logits[1], window)
        if self.impossible:
            missing = (window["labels"] == 0).long()
            losses = losses + functional.cross_entropy(logits[2], missing, reduction="none") / 2
        there = self.there(targets)
        return {
            "loss": losses.where(there, 0.0).sum(),
            "count": there.sum(),
            "correct": (right & there).sum(),
        }

    def there(self, targets: dict[str, Tensor]) -> Tensor:
        """[P] which rows are windows whose answer is known."""
        return _slot(targets, 0)["labels"] != Targets.IGNORED

    def predict(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Tensor:
        """[K, 2b + 2b² + 1] for b beams; a window's row is that of its first slot.

        In it are log p of the b best starts, their places in the block, log p of the b best ends
        of the first start, then of the second, …, the places of those, and the logit of there
        being no answer (0 where there always is one).
        """
        laid = self._lay(encoded, inputs, targets)
        at = _slot(targets, 0)["at"]
        start = laid.start.log_softmax(1).topk(self.beams)
        chosen = laid.tokens.gather(1, start.indices)
        ends = [
            self._ends(laid, encoded.states.index_select(0, token)).log_softmax(1).topk(self.beams)
            for token in chosen.unbind(1)
        ]
        end_places = torch.cat([end.indices for end in ends], dim=1)
        # A cell that is no token has the place that would be its, beyond the block's end.
        shift, columns = inputs.places.index_select(0, at)[:, None], laid.start.shape[1]
        score = (
            self._unanswerable(laid) if self.impossible else torch.zeros_like(start.values[:, 0])
        )
        row = torch.cat(
            [
                start.values,
                (start.indices + shift) % columns,
                *[end.values for end in ends],
                (end_places + shift) % columns,
                score[:, None],
            ],
            dim=1,
        )
        both = row.repeat_interleave(2, dim=0)
        return functional.pad(both, (0, 0, 0, len(targets["at"]) - len(both)))

    def _lay(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Rows:
        """The rectangle; what needs no start is computed on the packed tokens."""
        window, passage = _slot(targets, 0), _slot(targets, 1)
        tokens, there = around(inputs, window["at"], max(inputs.longest, self.beams))
        legal = (tokens >= passage["left"][:, None]) & (tokens <= passage["right"][:, None])
        legal = (legal | (tokens == window["at"][:, None])) & there
        states = encoded.states
        near = functional.linear(states, self.end_dense.weight[:, : self.width].to(states.dtype))
        cells = tokens.flatten()
        start = wide(self.start(states)).index_select(0, cells).view(tokens.shape)
        return Rows(
            tokens,
            legal,
            states.index_select(0, cells).view(*tokens.shape, self.width),
            near.index_select(0, cells).view(*tokens.shape, self.width),
            start.masked_fill(~legal, ABSENT),
        )

    def _ends(self, laid: Rows, starts: Tensor) -> Tensor:
        """[P, L] the logits of being the end, given the vectors [P, W] of the starts."""
        weight, bias = self.end_dense.weight[:, self.width :], self.end_dense.bias
        far = functional.linear(starts, weight.to(starts.dtype), bias.to(starts.dtype))
        hidden = self.end_norm(torch.tanh(laid.near + far[:, None]))
        return wide(self.end_scores(hidden)).squeeze(-1).masked_fill(~laid.legal, ABSENT)

    def _unanswerable(self, laid: Rows) -> Tensor:
        """[P] from the mark and the mean of all vectors, each as likely as it is the start.

        The library that took over XLNet's code trains on the right start's vector instead, which
        says whether there is an answer.
        """
        chance = laid.start.softmax(1).to(laid.states.dtype)
        mean = (chance[:, None] @ laid.states).squeeze(1)
        hidden = torch.tanh(self.class_dense(torch.cat([mean, laid.states[:, 0]], dim=1)))
        return wide(self.class_score(drop(hidden, self.dropout, self.training))).squeeze(-1)


def _slot(targets: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    """The first or the second slot of every window; an odd one left over is idle."""
    return {
        name: values[: len(values) // 2 * 2].view(-1, 2)[:, number].contiguous()
        for name, values in targets.items()
    }
