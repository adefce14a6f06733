"""The generator: a small masked language model whose samples the encoder reads (ELECTRA §2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.objectives.heads.chunks import LOGITS
from clozelab.objectives.heads.reading import reading
from clozelab.objectives.heads.vocabulary import VocabularyHead, wide
from clozelab.objectives.replaced import BITS

if TYPE_CHECKING:
    from clozelab.objectives.replaced import Generator


class GeneratorModule(nn.Module):
    """`forward(input, targets)` returns the input with a sample at every target, and the sums."""

    def __init__(self, part: Generator, shape: Any, vocabulary: int) -> None:
        super().__init__()
        self.encoder = shape.build(vocabulary)
        self.head = VocabularyHead(shape, vocabulary)
        self.sharing = part.sharing

    def share_with(self, encoder: nn.Module) -> None:
        """Share the embeddings of the encoder, as the recipe says."""
        if self.sharing != "none":
            disentangled = self.sharing == "gradient_disentangled"
            self.encoder.share_embeddings(encoder, disentangled=disentangled)

    def forward(self, batch: Input, targets: dict[str, Tensor]) -> tuple[Input, Sums]:
        """The input with the sampled tokens, and the sums of the masked language model."""
        read = reading({"masked_lm": targets}, {"masked_lm": ("at",)}, len(batch.ids))
        encoded: Encoded = self.encoder(batch, at=None if read is None else read.at)
        counted = targets if read is None else read.targets["masked_lm"]
        logits_KV, sums = self.head.predict(encoded, counted)
        samples_K = sampled(logits_KV, targets["draws"])
        return batch._replace(ids=with_tokens(batch.ids, samples_K, targets)), sums


@torch.no_grad()
def sampled(logits_KV: Tensor, draws_K: Tensor) -> Tensor:
    """[K] samples of the softmax: the first token whose cumulative probability exceeds the draw.

    A few rows at a time, since all probabilities would need the memory of a training step.
    """
    rows = max(1, LOGITS // logits_KV.shape[1])
    chunks = zip(torch.split(logits_KV, rows), torch.split(draws_K, rows), strict=True)
    return torch.cat([_sample(logits, draws) for logits, draws in chunks])


def _sample(logits_KV: Tensor, draws_K: Tensor) -> Tensor:
    cumulative_KV = wide(logits_KV).softmax(1).cumsum(1)
    # Times the rounded sum of the probabilities, so that every draw is below it.
    bound_K = draws_K.to(cumulative_KV.dtype) * 2.0**-BITS * cumulative_KV[:, -1]
    first_K = torch.searchsorted(cumulative_KV, bound_K[:, None], right=True).squeeze(1)
    return first_K.clamp(max=logits_KV.shape[1] - 1)


def with_tokens(ids_N: Tensor, tokens_K: Tensor, targets: dict[str, Tensor]) -> Tensor:
    """[N] the ids with other tokens at the targets; unused slots write past the end."""
    size = len(ids_N)
    at_K = torch.where(targets["labels"] == Targets.IGNORED, size, targets["at"])
    return torch.cat([ids_N, ids_N.new_zeros(1)]).scatter(0, at_K, tokens_K)[:size]
