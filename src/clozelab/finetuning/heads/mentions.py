"""Spans of a document's words: which there are, what they hold, which are kept.

A span's vector is its first and last piece, and a sum of its pieces by attention. A softmax over
pieces is one over words once each word has the vector and the weight of its own pieces together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from clozelab.contracts import Input
from clozelab.finetuning.kinds.segments import AGAIN, WORD


class Words(NamedTuple):
    """Where the words of a document lie in a batch, n of them with T pieces."""

    numbers: Tensor  # [n] in the document
    sentences: Tensor  # [n]
    segments: Tensor  # [n]
    firsts: Tensor  # [n] first piece, counted over the T
    lasts: Tensor  # [n] last piece
    owners: Tensor  # [T] the word of each piece
    places: Tensor  # [T] where each piece lies in the batch
    again: Tensor  # [T] where it does in the second pass, or else in the first


class Spans(NamedTuple):
    """Stretches of words inside a sentence, both ends included, in the order of the document."""

    first: Tensor  # [C]
    last: Tensor  # [C]

    @property
    def width(self) -> Tensor:
        """[C] words less one."""
        return self.last - self.first

    def take(self, chosen: Tensor) -> Spans:
        """Some of them."""
        return Spans(self.first[chosen], self.last[chosen])


def placed(inputs: Input, targets: dict[str, Tensor]) -> Words:
    """The words that the rows of a document name."""
    real, twice = targets["kind"] == WORD, targets["kind"] == AGAIN
    at, numbers = targets["at"][real], targets["word"][real]
    sizes = targets["right"][real] - at + 1
    other = at.clone()
    other[torch.searchsorted(numbers, targets["word"][twice])] = targets["at"][twice]
    firsts = sizes.cumsum(0) - sizes
    owners = torch.repeat_interleave(torch.arange(len(at), device=at.device), sizes)
    inside = torch.arange(len(owners), device=at.device) - firsts[owners]
    return Words(
        numbers=numbers,
        sentences=targets["sentence"][real],
        segments=torch.searchsorted(inputs.starts.long(), at, right=True) - 1,
        firsts=firsts,
        lasts=firsts + sizes - 1,
        owners=owners,
        places=at[owners] + inside,
        again=other[owners] + inside,
    )


def candidates(sentences: Tensor, *, widest: int) -> Spans:
    """Every span of up to `widest` words of one sentence."""
    count = len(sentences)
    first = torch.arange(count, device=sentences.device)[:, None]
    last = first + torch.arange(min(widest, max(count, 1)), device=sentences.device)
    there = (last < count) & (sentences[last.clamp(max=count - 1)] == sentences[first])
    return Spans(first.expand_as(last)[there], last[there])


def gathered(
    pieces: Tensor, scores: Tensor, owners: Tensor, *, count: int
) -> tuple[Tensor, Tensor]:
    """[n] the weight of each word's pieces together, as a score, and [n, W] their weighted mean."""
    most = scores.new_full((count,), -torch.inf).scatter_reduce(0, owners, scores, "amax").detach()
    weights = (scores - most[owners]).exp()
    total = scores.new_zeros(count).index_add(0, owners, weights)
    mixed = pieces.new_zeros(count, pieces.shape[1]).index_add(0, owners, weights[:, None] * pieces)
    return most + total.log(), mixed / total[:, None]


def averaged(vectors: Tensor, scores: Tensor, spans: Spans) -> Tensor:
    """[C, ·] the mean of each span's words, weighted by the softmax of their scores."""
    longest = int(spans.width.max()) + 1
    steps = torch.arange(longest, device=scores.device)
    words = (spans.first[:, None] + steps).clamp(max=len(scores) - 1)
    inside = steps <= spans.width[:, None]
    weights = scores[words].masked_fill(~inside, -torch.inf).softmax(dim=1)
    # Only the words inside are read, and no span's rows are ever copied out.
    return functional.embedding_bag(
        words[inside],
        vectors,
        (spans.width + 1).cumsum(0) - spans.width - 1,
        mode="sum",
        per_sample_weights=weights[inside],
    )


def uncrossed(spans: Spans, scores: Tensor, *, most: int) -> Tensor:
    """The best spans of which no two cross, `most` of them if there are, in document order.

    The better ones come first; one that crosses a span already kept is passed over.
    """
    first, last = spans.first.tolist(), spans.last.tolist()
    farthest: dict[int, int] = {}  # by its first word, the last word of the longest span kept
    earliest: dict[int, int] = {}  # by its last word, the first
    kept: list[int] = []
    for number in scores.argsort(descending=True, stable=True).tolist():
        begin, end = first[number], last[number]
        out_right = any(farthest.get(word, -1) > end for word in range(begin + 1, end + 1))
        out_left = any(earliest.get(word, begin) < begin for word in range(begin, end))
        if not (out_right or out_left):
            kept.append(number)
            farthest[begin] = max(farthest.get(begin, end), end)
            earliest[end] = min(earliest.get(end, begin), begin)
        if len(kept) == most:
            break
    return torch.tensor(sorted(kept), device=scores.device, dtype=torch.long)
