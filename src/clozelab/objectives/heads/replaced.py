"""Heads over tokens of which some were replaced (ELECTRA §2, §3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Sums, Targets
from clozelab.layers import Linear, activate, initialise
from clozelab.objectives.heads.chunks import add_up
from clozelab.objectives.heads.vocabulary import VocabularyHead, logits_from_table, wide
from clozelab.objectives.objective import Tied


class DetectionHead(nn.Module):
    """A dense layer and one score per token: above 0 it was replaced."""

    def __init__(self, encoder: Tied) -> None:
        super().__init__()
        self.dense = Linear(encoder.hidden_size, encoder.hidden_size)
        self.classifier = Linear(encoder.hidden_size, 1)
        self.activation = encoder.activation
        initialise(self, encoder.hidden_size)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, their number and how many were right; also of replaced ones."""
        scores_K = self.logits(encoded.hidden_states.index_select(0, targets["at"])).squeeze(1)
        valid_K = targets["labels"] != Targets.IGNORED
        replaced_K = (_read_ids(encoded, targets) != targets["labels"]) & valid_K
        scores_K = wide(scores_K)
        losses_K = functional.binary_cross_entropy_with_logits(
            scores_K, replaced_K.to(scores_K.dtype), reduction="none"
        )
        right_K = ((scores_K > 0) == replaced_K) & valid_K
        return {
            "loss": losses_K.where(valid_K, 0.0).sum(),
            "count": valid_K.sum(),
            "correct": right_K.sum(),
            "count_replaced": replaced_K.sum(),
            "correct_replaced": (right_K & replaced_K).sum(),
        }

    def all_logits(self, encoded: Encoded) -> Tensor:
        """[N, 1] at every token."""
        return self.logits(encoded.hidden_states)

    def logits(self, states_KW: Tensor, table_VE: Tensor | None = None) -> Tensor:
        """[K, 1]; the table is ignored."""
        scores: Tensor = self.classifier(activate(self.dense(states_KW), self.activation))
        return scores


class CopyHead(VocabularyHead):
    """BERT's head, and a score for copying: a token is the one read, or that of the head."""

    def add_layers(self, encoder: Tied) -> None:
        """Add the layers before the table, and the copy score."""
        super().add_layers(encoder)
        self.copy = Linear(encoder.hidden_size, 1)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss at the targets, their number, and how many were right.

        The prediction is the likelier of the copy and the head's best token.
        """
        assert encoded.table is not None, "the encoder has no embedding table to be tied to"
        states_KW = encoded.hidden_states.index_select(0, targets["at"])
        rows = (states_KW, targets["labels"], _read_ids(encoded, targets))

        def part(states: Tensor, labels: Tensor, read: Tensor) -> tuple[Tensor, ...]:
            return self._loss_and_correct(states, labels, read, encoded.table)

        loss, correct = add_up(part, rows, vocabulary=len(encoded.table))
        return {
            "loss": loss,
            "count": (targets["labels"] != Targets.IGNORED).sum(),
            "correct": correct,
        }

    def _loss_and_correct(
        self, states_KW: Tensor, labels_K: Tensor, read_K: Tensor, table_VE: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The loss and the correct predictions of some rows."""
        valid_K, copied_K = labels_K != Targets.IGNORED, read_K == labels_K
        logits_KV = wide(logits_from_table(self.to_table(states_KW), table_VE, self.bias))
        score_K = wide(self.copy(states_KW)).squeeze(1)
        copying_K, choosing_K = functional.logsigmoid(score_K), functional.logsigmoid(-score_K)
        log_p_KV = logits_KV.log_softmax(1) + choosing_K[:, None]
        wanted_K2 = torch.stack([labels_K.clamp(min=0), read_K], 1)
        label_K, of_read_K = log_p_KV.gather(1, wanted_K2).unbind(1)
        of_read_K = copying_K.logaddexp(of_read_K)
        best_K, which_K = log_p_KV.max(1)
        guess_K = read_K.where(of_read_K >= best_K, which_K)
        loss = -of_read_K.where(copied_K, label_K).where(valid_K, 0.0).sum()
        return loss, ((guess_K == labels_K) & valid_K).sum()


def _read_ids(encoded: Encoded, targets: dict[str, Tensor]) -> Tensor:
    """[K] the ids that the encoder read at the targets."""
    assert encoded.ids is not None, "this head needs what the encoder read"
    return encoded.ids.index_select(0, targets["at"])
