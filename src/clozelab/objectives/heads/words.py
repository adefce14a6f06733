"""Predicting words in both directions by a sampled softmax (ELMo §3.1, §3.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Sums, Targets
from clozelab.objectives.heads.chunks import add_up
from clozelab.objectives.heads.vocabulary import classification_sums
from clozelab.objectives.objective import Widths


class WordHead(nn.Module):
    """Left-to-right states predict the next word, right-to-left states the one before.

    In training the softmax is over `samples` sampled words, unless that is all of them; that loss
    cannot be compared with the loss of an evaluation.
    """

    def __init__(self, encoder: Widths, words: int, *, samples: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, encoder.hidden_size)
        self.bias = nn.Parameter(torch.zeros(words))
        self.samples = samples
        nn.init.normal_(self.words.weight, std=encoder.hidden_size**-0.5)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss over both directions, the count and, unless sampled, how many were right."""
        states_KW = torch.cat(encoded.hidden_states.index_select(0, targets["at"]).chunk(2, dim=1))
        labels_K = torch.cat([targets["labels"], targets["back_labels"]])
        if self.training and self.samples < len(self.bias):
            loss = self._sampled_loss(states_KW, labels_K)
            return {"loss": loss, "count": (labels_K != Targets.IGNORED).sum()}
        names = ("loss", "count", "correct")
        sums = add_up(self._full_sums, (states_KW, labels_K), vocabulary=len(self.bias))
        return dict(zip(names, sums, strict=True))

    def logits(self, states_KW: Tensor) -> Tensor:
        """[K, words] the logits of states of either direction."""
        weight, bias = self.words.weight.to(states_KW.dtype), self.bias.to(states_KW.dtype)
        return functional.linear(states_KW, weight, bias)

    def _full_sums(self, states_KW: Tensor, labels_K: Tensor) -> tuple[Tensor, ...]:
        sums = classification_sums(self.logits(states_KW), labels_K)
        return sums["loss"], sums["count"], sums["correct"]

    def _sampled_loss(self, states_KW: Tensor, labels_K: Tensor) -> Tensor:
        """Cross-entropy of each label among the S samples, each logit less its log-chance.

        By this correction the best word among samples is the best of all words (arXiv:1412.2007).
        """
        valid_K = labels_K != Targets.IGNORED
        label_K = labels_K.where(valid_K, 0)
        samples_S, chances = draw(len(self.bias), self.samples, like=self.bias)
        shift = self.bias - chances.log()
        weight_SW = self.words.weight.index_select(0, samples_S).to(states_KW.dtype)
        others_KS = functional.linear(states_KW, weight_SW) + shift.index_select(0, samples_S)
        # A sample that is the label itself must not count twice.
        same_KS = samples_S == label_K[:, None]
        others_KS = others_KS.masked_fill(same_KS, torch.finfo(others_KS.dtype).min)
        own_K = (states_KW * self.words.weight.index_select(0, label_K)).sum(dim=1)
        own_K = own_K + shift.index_select(0, label_K)
        losses_K = torch.logaddexp(own_K, others_KS.logsumexp(dim=1)) - own_K
        return losses_K.where(valid_K, 0.0).sum()


@torch.no_grad()
def draw(words: int, samples: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """[samples] distinct words, frequent ones likelier, and [words] the chance of each.

    Words are numbered by frequency, so their shares fall like 1 / rank. Each gets a random
    exponential time, likelier words earlier ones, and the first are taken: given the time of the
    next one, a word is among them if its own time is earlier.
    """
    rank = torch.arange(1, words + 1, dtype=like.dtype, device=like.device)
    shares = torch.log1p(1 / rank) / math.log(words + 1)
    times = -torch.log1p(-torch.rand_like(shares)) / shares
    soonest = times.topk(samples + 1, largest=False)
    return soonest.indices[:-1], -torch.expm1(-shares * soonest.values[-1])
