"""Cosines of the texts of a group, and the cross-entropy of each text's positive (SimCSE eq. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Sums, Targets
from clozelab.layers import Linear, initialise
from clozelab.objectives.heads.vocabulary import wide

if TYPE_CHECKING:
    from clozelab.objectives.contrastive import Contrastive


class Contrasting(nn.Module):
    """Targets are blocks in order: a text, then its positive, then its hard negative."""

    def __init__(self, part: Contrastive, width: int) -> None:
        super().__init__()
        self.temperature, self.pooling, self.sizes = part.temperature, part.pooling, part.sizes
        self.projection = Linear(width, width) if part.projection else None
        initialise(self, width)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss over texts that have a label, their number, and how many were right."""
        first_K = targets["labels"] != Targets.IGNORED
        views_K, groups_K = targets["views"], targets["groups"]
        count = first_K.sum()
        if not len(views_K):
            return {"loss": 0 * wide(encoded.hidden_states).sum(), "count": count, "correct": count}
        x_KW = wide(self._pooled(encoded.hidden_states, targets["left"], targets["right"]))
        if self.projection is not None:
            x_KW = self.projection(x_KW).tanh()
        candidates_KK = (groups_K[:, None] == groups_K) & (views_K > 0)
        # The positive of a slot is the next slot; the last one is never counted, and wraps around.
        positive_K = torch.arange(len(views_K), device=views_K.device).roll(-1)
        loss, correct = x_KW.new_zeros(()), count
        for size in (*self.sizes, x_KW.shape[1]):
            z_KW = functional.normalize(x_KW[:, :size], dim=1)
            # Finite, so that a slot without candidates has a gradient of zero and not NaN.
            scores_KK = z_KW @ z_KW.T / self.temperature
            scores_KK = scores_KK.masked_fill(~candidates_KK, torch.finfo(scores_KK.dtype).min)
            right_K = scores_KK.gather(1, positive_K[:, None]).squeeze(1)
            loss_K = scores_KK.logsumexp(dim=1) - right_K
            loss = loss + loss_K.where(first_K, 0.0).sum()
            correct = ((right_K == scores_KK.amax(dim=1)) & first_K).sum()
        return {"loss": loss, "count": count, "correct": correct}

    def _pooled(self, x_NW: Tensor, left_K: Tensor, right_K: Tensor) -> Tensor:
        """[K, W] the pooled vector of each block; that of unused slots is arbitrary."""
        if self.pooling == "cls":
            return x_NW.index_select(0, left_K)
        # Blocks are in order: a token belongs to the first block that ends at or after it.
        token_N = torch.arange(len(x_NW), device=x_NW.device)
        slot_N = torch.searchsorted(right_K.cummax(0).values, token_N)
        slot_N = slot_N.clamp(max=len(left_K) - 1)
        inside_N = (left_K[slot_N] <= token_N) & (token_N <= right_K[slot_N])
        sums_KW = wide(x_NW).new_zeros(len(left_K), x_NW.shape[1])
        sums_KW = sums_KW.index_add(0, slot_N, wide(x_NW) * inside_N[:, None])
        return sums_KW / (right_K - left_K + 1)[:, None]
