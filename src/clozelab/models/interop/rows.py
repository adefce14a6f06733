"""An encoder for rows of one length with padding on either side, and heads on what it makes."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input
from clozelab.errors import UserError
from clozelab.models.interop.heads import SUMMARISED, TaskHead

_ABSENT = -1e9  # the logit of padding


class Predicts(Protocol):
    """A head over the vocabulary."""

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """[K, W] → [K, V]."""
        ...


class Rows(nn.Module):
    """The states and, with a head, the logits of every token."""

    def __init__(self, encoder: nn.Module, head: Predicts | nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head: Any = head if isinstance(head, nn.Module) else None
        self.outputs = ("last_hidden_state", "logits")[: 1 if self.head is None else 2]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """[B, L] ids → [B, L, W] states and, with a head, [B, L, V] logits."""
        encoded = _encoded(self.encoder, input_ids, attention_mask, token_type_ids)
        states = encoded.states.view(*input_ids.shape, -1)
        if self.head is None:
            return (states,)
        logits: Tensor = self.head.logits(encoded.states, encoded.table)
        return states, logits.view(*input_ids.shape, -1)


class Judged(nn.Module):
    """The logits of a task: [B, C] of classify and regress (one), [B, L, T] of tag.

    Of choose a row is one choice: [B · C, L] ids → [B · C, 1]. Of answer, [B, L] each for its first
    and its last token.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, task: TaskHead, *, last: bool) -> None:
        super().__init__()
        if task.vectors != "last" or (task.kind == "answer" and task.head == "beam"):
            how = f'"{task.vectors}" vectors' if task.vectors != "last" else 'head = "beam"'
            raise UserError(
                f"task {task.kind} with {how}: not available as a graph of ONNX; use the run as it"
                " is (`clozelab predict`)"
            )
        if task.kind not in (*SUMMARISED, "tag", "answer"):
            raise UserError(
                f"task {task.kind}: not available as a graph of ONNX; use the run as it is"
                " (`clozelab predict`)"
            )
        self.encoder, self.head, self.task, self.last = encoder, head, task, last
        answers = task.kind == "answer"
        self.outputs = ("start_logits", "end_logits") if answers else ("logits",)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """[B, L] ids → logits."""
        head: Any = self.head
        encoded = _encoded(self.encoder, input_ids, attention_mask, token_type_ids)
        states = encoded.states.view(*input_ids.shape, -1)
        if self.task.kind == "tag":
            return (head.classifier(states),)
        if self.task.kind == "answer":
            scores = head.scores(states).masked_fill(attention_mask[..., None] == 0, _ABSENT)
            return scores[..., 0], scores[..., 1]
        vector = self._pooled(states, attention_mask)
        activation = self.task.summary.activation
        if activation != "none":
            vector = head.dense(vector)
            vector = torch.tanh(vector) if activation == "tanh" else torch.relu(vector)
        return (head.classifier(vector),)

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        """[B, L, W] → [B, W], of the first or the last token, or the mean of all."""
        here = mask.to(states.dtype)
        if self.task.pool == "mark":
            counted = mask.cumsum(1) * mask
            wanted = counted.amax(1, keepdim=True) if self.last else 1
            here = (counted == wanted).to(states.dtype)
        share = here / here.sum(1, keepdim=True).clamp(min=1)
        return (share[:, None] @ states).squeeze(1)


def _encoded(
    encoder: nn.Module, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None
) -> Encoded:
    """Rows as blocks of one length, of which the mask says what is there."""
    rows, length = input_ids.shape
    types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    batch = Input(
        ids=input_ids.flatten(),
        places=(attention_mask.cumsum(1) - 1).clamp(min=0).flatten(),
        segments=types.flatten(),
        starts=torch.arange(rows + 1, dtype=torch.int32, device=input_ids.device) * length,
        longest=length,
        dense=True,
        seen=attention_mask > 0,
    )
    encoded: Encoded = encoder(batch)
    return encoded
