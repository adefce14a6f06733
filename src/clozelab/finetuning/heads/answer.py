"""The ends of an answer: scores of every token (BERT §4.2), or beams (XLNet's, ALBERT's code).

With beams a window has two slots: the first has the answer's ends, the second the passage's.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.finetuning.heads.head import (
    ABSENT,
    Columns,
    Head,
    RowsOf,
    Transform,
    block_of,
    upcast,
)
from clozelab.layers import Linear, Norm, drop, initialise


class SpanHead(Head):
    """Start and end scores, S · T and E · T, and their cross-entropy over each window's tokens."""

    rows: ClassVar[RowsOf] = "tokens"

    def __init__(self, width: int, *, dropout: float, transform: bool = False) -> None:
        super().__init__()
        self.transform = Transform(width) if transform else nn.Identity()
        self.scores = Linear(width, 2)
        self.dropout = dropout
        initialise(self, width)

    def logits(self, encoded: Encoded, inputs: Input, targets: Columns) -> tuple[Tensor, ...]:
        """[K, L] of starts and of ends; rows as `around` has them."""
        cells, exists = around(inputs, targets["at"], inputs.max_seqlen)
        scores = self.predict(encoded, inputs, targets)
        start, end = scores.index_select(0, cells.flatten()).view(*cells.shape, 2).unbind(-1)
        return start.masked_fill(~exists, ABSENT), end.masked_fill(~exists, ABSENT)

    def loss(self, logits: tuple[Tensor, ...], targets: Columns) -> Sums:
        """Sums over the windows whose answer is known."""
        losses, right = both_ends(logits[0], logits[1], targets)
        return _masked_sums(losses, right, self.labelled(targets))

    def predict(self, encoded: Encoded, inputs: Input, targets: Columns) -> Tensor:
        """[N, 2] each token's score as the first of the answer and as its last."""
        states = self.transform(encoded.hidden_states)
        return upcast(self.scores(drop(states, self.dropout, self.training)))


class WindowRows(NamedTuple):
    """The windows of a batch as rows that begin at their marks."""

    tokens: Tensor  # [P, L]
    legal: Tensor  # [P, L] true for the mark and the tokens of the passage
    states: Tensor  # [P, L, W]
    near: Tensor  # [P, L, W] each token's own part of the end layer
    start: Tensor  # [P, L] logits


class BeamHead(Head):
    """Start scores, end scores given a start, and with `impossible` the answerability."""

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

    def logits(self, encoded: Encoded, inputs: Input, targets: Columns) -> tuple[Tensor, ...]:
        """[P, L] of starts, and of ends given the right start; [P, 2] of answer and no answer.

        Rows are those of `around`, one per window; the third only with `impossible`.
        """
        rows = self._window_rows(encoded, inputs, targets)
        window = _slot(targets, 0)
        end = self._end_logits(rows, encoded.hidden_states.index_select(0, window["left"]))
        if not self.impossible:
            return rows.start, end
        score = self._unanswerable(rows)
        # As two logits, whose softmax is the sigmoid, so that it is distilled like the others.
        return rows.start, end, torch.stack([torch.zeros_like(score), score], dim=1)

    def loss(self, logits: tuple[Tensor, ...], targets: Columns) -> Sums:
        """Sums over the windows whose answer is known; answerability counts half."""
        window = _slot(targets, 0)
        losses, right = both_ends(logits[0], logits[1], window)
        if self.impossible:
            missing = (window["labels"] == 0).long()
            losses = losses + functional.cross_entropy(logits[2], missing, reduction="none") / 2
        return _masked_sums(losses, right, self.labelled(targets))

    def labelled(self, targets: Columns) -> Tensor:
        """[P] which rows are windows whose answer is known."""
        return _slot(targets, 0)["labels"] != Targets.IGNORED

    def predict(self, encoded: Encoded, inputs: Input, targets: Columns) -> Tensor:
        """[K, 2b + 2b² + 1] for b beams; a window's row is that of its first slot.

        It has log p of the b best starts, their positions in the block, log p of the b best ends of
        the first start, then of the second, …, their positions, and the logit of no answer (0 if
        there always is one).
        """
        rows = self._window_rows(encoded, inputs, targets)
        at = _slot(targets, 0)["at"]
        start = rows.start.log_softmax(1).topk(self.beams)
        tokens = rows.tokens.gather(1, start.indices)
        ends = [
            self._end_logits(rows, encoded.hidden_states.index_select(0, token))
            .log_softmax(1)
            .topk(self.beams)
            for token in tokens.unbind(1)
        ]
        end_places = torch.cat([end.indices for end in ends], dim=1)
        # A cell of padding gets a position beyond the end of the block.
        shift, columns = inputs.position_ids.index_select(0, at)[:, None], rows.start.shape[1]
        score = self._unanswerable(rows) if self.impossible else torch.zeros_like(rows.start[:, 0])
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

    def _window_rows(self, encoded: Encoded, inputs: Input, targets: Columns) -> WindowRows:
        """The windows as padded rows; what does not depend on a start is computed packed."""
        window, passage = _slot(targets, 0), _slot(targets, 1)
        tokens, exists = around(inputs, window["at"], max(inputs.max_seqlen, self.beams))
        legal = (tokens >= passage["left"][:, None]) & (tokens <= passage["right"][:, None])
        legal = (legal | (tokens == window["at"][:, None])) & exists
        states = encoded.hidden_states
        near = functional.linear(states, self.end_dense.weight[:, : self.width].to(states.dtype))
        cells = tokens.flatten()
        start = upcast(self.start(states)).index_select(0, cells).view(tokens.shape)
        return WindowRows(
            tokens,
            legal,
            states.index_select(0, cells).view(*tokens.shape, self.width),
            near.index_select(0, cells).view(*tokens.shape, self.width),
            start.masked_fill(~legal, ABSENT),
        )

    def _end_logits(self, rows: WindowRows, starts: Tensor) -> Tensor:
        """[P, L] the logits of being the end, given the vectors [P, W] of the starts."""
        weight, bias = self.end_dense.weight[:, self.width :], self.end_dense.bias
        far = functional.linear(starts, weight.to(starts.dtype), bias.to(starts.dtype))
        hidden = self.end_norm(torch.tanh(rows.near + far[:, None]))
        return upcast(self.end_scores(hidden)).squeeze(-1).masked_fill(~rows.legal, ABSENT)

    def _unanswerable(self, rows: WindowRows) -> Tensor:
        """[P] from the mark and the mean of all vectors, weighted by their start probabilities.

        The library that took over XLNet's code trains on the right start's vector instead, which
        says whether there is an answer.
        """
        probabilities = rows.start.softmax(1).to(rows.states.dtype)
        mean = (probabilities[:, None] @ rows.states).squeeze(1)
        hidden = torch.tanh(self.class_dense(torch.cat([mean, rows.states[:, 0]], dim=1)))
        return upcast(self.class_score(drop(hidden, self.dropout, self.training))).squeeze(-1)


def around(inputs: Input, at: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The block of each slot as a row: [K, columns] tokens, and which of these cells are tokens.

    A row begins at the slot's own token, continues to the end of the block and wraps around to its
    beginning, so that a column is a distance from that token, modulo the columns.
    """
    starts = inputs.cu_seqlens.long()
    block = block_of(inputs, at)
    first, length = starts[block], starts.diff()[block]
    position = ((at - first)[:, None] + torch.arange(columns, device=at.device)) % columns
    tokens = (first[:, None] + position).clamp(max=len(inputs.ids) - 1)
    return tokens, position < length[:, None]


def both_ends(start: Tensor, end: Tensor, targets: Columns) -> tuple[Tensor, Tensor]:
    """[K] the mean cross-entropy of the two ends, and whether both are right."""
    columns = start.shape[1]
    first = (targets["left"] - targets["at"]) % columns
    last = (targets["right"] - targets["at"]) % columns
    losses = functional.cross_entropy(start, first, reduction="none")
    losses = losses + functional.cross_entropy(end, last, reduction="none")
    return losses / 2, (start.argmax(1) == first) & (end.argmax(1) == last)


def _masked_sums(losses: Tensor, right: Tensor, labelled: Tensor) -> Sums:
    return {
        "loss": losses.where(labelled, 0.0).sum(),
        "count": labelled.sum(),
        "correct": (right & labelled).sum(),
    }


def _slot(targets: Columns, number: int) -> Columns:
    """The first or the second slot of every window; an odd one left over is a dummy."""
    return {
        name: values[: len(values) // 2 * 2].view(-1, 2)[:, number].contiguous()
        for name, values in targets.items()
    }
