"""Relations of queries, keys and values, compared with a teacher's (MiniLMv2 §3.1).

The caller runs the teacher, in evaluation mode, on the student's input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Sums, Targets
from clozelab.objectives.heads.chunks import add_up
from clozelab.objectives.heads.vocabulary import wide

if TYPE_CHECKING:
    from clozelab.objectives.relations import Relations


class Relating(nn.Module):
    """The KL divergence of relations, for each token the mean over relation heads."""

    def __init__(self, part: Relations) -> None:
        super().__init__()
        self.heads = part.heads
        self.weights = {"queries": part.queries, "keys": part.keys, "values": part.values}
        # Arguments of both encoders: project the student's last layer, the teacher's chosen one.
        self.asks: tuple[dict[str, Any], ...] = ({"project": -1}, {"project": part.teacher_layer})

    def forward(self, student: Encoded, teacher: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The weighted loss at the targets, their number, and the loss of each kind of relation."""
        mine, theirs = student.projections, teacher.projections
        assert mine is not None
        assert theirs is not None
        counts_K = targets["labels"] != Targets.IGNORED
        cells_K = mine.cell.index_select(0, targets["at"])
        shares = wide(mine.qkv).new_zeros(mine.seen.numel())
        shares_BL = shares.index_add(0, cells_K, counts_K.to(shares.dtype)).view_as(mine.seen)
        length = mine.seen.shape[1]

        def divergence(
            mine_BLW: Tensor, theirs_BLW: Tensor, seen_BL: Tensor, shares_BL: Tensor
        ) -> tuple[Tensor]:
            with torch.no_grad():
                target_BHLL = self._relations(theirs_BLW, seen_BL)
            log_p_BHLL = self._relations(mine_BLW, seen_BL)
            kl_BHLL = functional.kl_div(log_p_BHLL, target_BHLL, reduction="none", log_target=True)
            kl_BHL = kl_BHLL.masked_fill(~seen_BL[:, None, None], 0.0).sum(dim=3)
            return ((kl_BHL.mean(dim=1) * shares_BL).sum(),)

        # The rest of the last layer is in no relation. It gets a gradient of zero, since DDP waits
        # for the gradient of every parameter.
        sums = {"loss": 0 * wide(student.hidden_states).sum(), "count": counts_K.sum()}
        for number, (name, weight) in enumerate(self.weights.items()):
            rows = (mine.qkv[:, :, number], theirs.qkv[:, :, number].detach())
            (sums[name],) = add_up(
                divergence,
                (*rows, mine.seen, shares_BL),
                vocabulary=self.heads * length * length,
            )
            sums["loss"] = sums["loss"] + weight * sums[name]
        return sums

    def _relations(self, x_BLW: Tensor, seen_BL: Tensor) -> Tensor:
        """[B, H, L, L] the log-relations of each token to those of its block."""
        blocks, length, _ = x_BLW.shape
        x_BHLA = wide(x_BLW).reshape(blocks, length, self.heads, -1).transpose(1, 2)
        scores = x_BHLA @ x_BHLA.transpose(2, 3) / math.sqrt(x_BHLA.shape[3])
        # Finite, so that padding has a gradient of zero and not NaN.
        least = torch.finfo(scores.dtype).min
        return scores.masked_fill(~seen_BL[:, None, None], least).log_softmax(dim=3)
