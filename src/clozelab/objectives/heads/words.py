"""Predicting words each way through one softmax too large to be used whole (ELMo §3.1, §3.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Sums, Targets
from clozelab.objectives.heads.chunks import add_up
from clozelab.objectives.heads.vocabulary import classification_sums
from clozelab.objectives.widths import Widths


class WordHead(nn.Module):
    """Left-to-right states predict the next word, right-to-left states the one before.

    In training `samples` words stand for all, unless that is all of them; the loss is then that
    of telling a word from the samples, not to be compared with the loss of an evaluation.
    """

    def __init__(self, encoder: Widths, words: int, *, samples: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, encoder.width)
        self.bias = nn.Parameter(torch.zeros(words))
        self.samples = samples
        nn.init.normal_(self.words.weight, std=encoder.width**-0.5)

    def forward(self, encoded: Encoded, targets: dict[str, Tensor]) -> Sums:
        """The loss over both directions, how many predictions there are, and how many were right.

        Among samples nothing is said to be right.
        """
        states = torch.cat(encoded.hidden_states.index_select(0, targets["at"]).chunk(2, dim=1))
        labels = torch.cat([targets["labels"], targets["back_labels"]])
        if self.training and self.samples < len(self.bias):
            loss = self._sampled(states, labels)
            return {"loss": loss, "count": (labels != Targets.IGNORED).sum()}
        names = ("loss", "count", "correct")
        sums = add_up(self._whole, (states, labels), vocabulary=len(self.bias))
        return dict(zip(names, sums, strict=True))

    def logits(self, states: Tensor) -> Tensor:
        """[K, W] of either direction → [K, words]."""
        weight, bias = self.words.weight.to(states.dtype), self.bias.to(states.dtype)
        return functional.linear(states, weight, bias)

    def _whole(self, states: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        found = classification_sums(self.logits(states), labels)
        return found["loss"], found["count"], found["correct"]

    def _sampled(self, states: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy among each label and the samples, each less the log of its chance there.

        So corrected, what is best among samples is best among all words (arXiv:1412.2007).
        """
        there = labels != Targets.IGNORED
        label = labels.where(there, 0)
        samples, chances = draw(len(self.bias), self.samples, like=self.bias)
        shift = self.bias - chances.log()
        weight = self.words.weight.index_select(0, samples).to(states.dtype)
        others = functional.linear(states, weight) + shift.index_select(0, samples)
        # A sample that happens to be the label is no rival of itself.
        others = others.masked_fill(samples == label[:, None], torch.finfo(others.dtype).min)
        own = (states * self.words.weight.index_select(0, label)).sum(dim=1)
        own = own + shift.index_select(0, label)
        losses = torch.logaddexp(own, others.logsumexp(dim=1)) - own
        return losses.where(there, 0.0).sum()


@torch.no_grad()
def draw(words: int, samples: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """[samples] different words, frequent ones likelier, and [words] each one's chance of it.

    Words are numbered by frequency, so their shares fall like 1 / rank. Each arrives at a random
    time, the likelier the sooner, and the first few are taken: given when the next arrives, a word
    is among them if its own time is earlier.
    """
    rank = torch.arange(1, words + 1, dtype=like.dtype, device=like.device)
    shares = torch.log1p(1 / rank) / math.log(words + 1)
    times = -torch.log1p(-torch.rand_like(shares)) / shares
    soonest = times.topk(samples + 1, largest=False)
    return soonest.indices[:-1], -torch.expm1(-shares * soonest.values[-1])
