"""Ranking the antecedents of spans, coarse to fine, with higher-order refinement: the model that
SpanBERT §4.2 puts over its encoder. Shapes depend on the document, so it is never compiled.

A span's vector is its first and last piece, and a sum of its pieces by attention. The softmax over
pieces is computed over words, each with the combined vector and weight of its pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Input, Sums, Targets
from clozelab.finetuning.heads.head import ABSENT, Columns, Head, RowsOf, upcast
from clozelab.finetuning.kinds.segments import AGAIN, MENTION, WORD
from clozelab.layers import Linear, drop, initialise

if TYPE_CHECKING:
    from clozelab.finetuning.kinds.coreference import Coreference


DISTANCES = 10  # buckets of distances between spans


class BatchWords(NamedTuple):
    """The positions in a batch of a document's n words with T pieces."""

    numbers: Tensor  # [n] in the document
    sentences: Tensor  # [n]
    segments: Tensor  # [n]
    firsts: Tensor  # [n] first piece, counted over the T
    lasts: Tensor  # [n] last piece
    owners: Tensor  # [T] the word of each piece
    places: Tensor  # [T] the position of each piece in the batch
    again: Tensor  # [T] its position in the second pass, or else in the first


class Spans(NamedTuple):
    """Spans of words inside a sentence, both ends included, in document order."""

    first: Tensor  # [C]
    last: Tensor  # [C]

    @property
    def width(self) -> Tensor:
        """[C] words less one."""
        return self.last - self.first


class Scorer(nn.Module):
    """One hidden layer over several concatenated vectors, and a score.

    The caller multiplies each vector by its part of the layer, before rows are repeated.
    """

    def __init__(self, sizes: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(
            Linear(size, hidden, bias=number == 0) for number, size in enumerate(sizes)
        )
        self.output = Linear(hidden, 1)

    def forward(self, added: Tensor, dropout: float) -> Tensor:
        """[…, hidden], the products added up → […]."""
        scores: Tensor = self.output(drop(added.relu_(), dropout, self.training))
        return scores.squeeze(-1)


class ClustersHead(Head):
    """For each span kept of one document, a score for each candidate antecedent.

    Logits are [S, 1 + A] (the first for no antecedent, always 0), [S, A] the rows of the
    antecedents, and [S, 2] the words of the document that the spans begin and end with.
    """

    rows: ClassVar[RowsOf] = "group"

    def __init__(self, task: Coreference, width: int) -> None:
        super().__init__()
        self.task = task
        span, feature = 3 * width + task.feature, task.feature
        self.mix = Linear(2 * width, width) if task.overlap else None
        self.attention = Linear(width, 1, bias=False)
        self.widths = nn.Embedding(task.widest, feature)
        self.mention = Scorer((width, width, width, feature), task.hidden)
        # Differs from SpanBERT's code: a prior is a table of scores, not a network over a table.
        self.width_prior = nn.Embedding(task.widest, 1)
        self.coarse = Linear(span, span)
        self.distance_prior = nn.Embedding(DISTANCES, 1)
        self.distances = nn.Embedding(DISTANCES, feature)
        self.segments = nn.Embedding(task.train_segments, feature)
        self.antecedent = Scorer((span, span, span, feature, feature), task.hidden)
        self.gate = Linear(2 * span, span) if task.rounds > 1 else None
        initialise(self, width)

    def logits(
        self, encoded: Encoded, inputs: Input, targets: Columns
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, antecedents and spans: see the class."""
        # Full precision, for softmaxes over a whole document: half would gain little.
        states = upcast(encoded.hidden_states)
        words = placed(inputs, targets)
        count = len(words.numbers)
        if not count:
            nothing = targets["at"][:0, None]
            # A process without a document still needs a gradient for every weight.
            touched = torch.stack([parameter.sum() for parameter in self.parameters()]).sum()
            return states[:0, :1] + 0 * touched, nothing[:, :0], nothing.expand(0, 2)
        pieces = states[words.places]
        if self.mix is not None:
            second = states[words.again]
            share = torch.sigmoid(self.mix(torch.cat([pieces, second], dim=1)))
            pieces = second + share * (pieces - second)
        attention = self.attention(pieces).squeeze(1)
        scores, inside = gathered(pieces, attention, words.owners, count=count)
        vectors = pieces[words.firsts], pieces[words.lasts], inside
        spans = candidates(words.sentences, widest=self.task.widest)
        mention = self._mention_scores(spans, vectors, scores)
        chosen = uncrossed(spans, mention.detach(), most=max(1, int(self.task.ratio * count)))
        spans, mention = Spans(spans.first[chosen], spans.last[chosen]), mention[chosen]
        ranked, antecedents = self._ranked(
            self._span_vectors(spans, vectors, scores), mention, words.segments[spans.first]
        )
        ends = torch.stack([words.numbers[spans.first], words.numbers[spans.last]], dim=1)
        return ranked, antecedents, ends

    def loss(self, logits: tuple[Tensor, ...], targets: Columns) -> Sums:
        """Minus the log of the probability of all right antecedents, or of "none"."""
        scores, antecedents, ends = logits
        documents = (targets["labels"] != Targets.IGNORED).sum()
        assert int(documents) <= 1, "a batch of this head is one document"
        clusters = _gold_clusters(ends, targets)
        own, other = clusters[:, None], clusters[antecedents]
        before = antecedents < torch.arange(len(scores), device=scores.device)[:, None]
        right = (own == other) & (own > 0) & before
        right = torch.cat([~right.any(dim=1, keepdim=True), right], dim=1)
        right_mass = scores.masked_fill(~right, ABSENT).logsumexp(dim=1)
        loss = (scores.logsumexp(dim=1) - right_mass).sum() * documents
        chosen = scores.argmax(dim=1, keepdim=True) if len(scores) else antecedents.new_zeros(0, 1)
        hits = right.gather(1, chosen).sum() / max(len(scores), 1)
        return {"loss": loss, "count": documents, "correct": hits * documents}

    def predict(self, encoded: Encoded, inputs: Input, targets: Columns) -> Tensor:
        """[S, 3] first word, last word, and the row of the antecedent or -1."""
        scores, antecedents, ends = self.logits(encoded, inputs, targets)
        if not len(scores):
            return scores.new_zeros(0, 3)
        none = antecedents.new_full((len(antecedents), 1), -1)
        best = torch.cat([none, antecedents], dim=1).gather(1, scores.argmax(dim=1, keepdim=True))
        return torch.cat([ends, best], dim=1).to(scores.dtype)

    def _mention_scores(self, spans: Spans, vectors: tuple[Tensor, ...], scores: Tensor) -> Tensor:
        """[C] the mention score of each span."""
        first, last, inside, width = self.mention.inner
        # Dropout applies to the table, so that a feature is dropped for the whole document.
        widths = self._drop(self.widths.weight.to(scores.dtype))
        added = first(vectors[0])[spans.first] + last(vectors[1])[spans.last]
        added = added + averaged(inside(vectors[2]), scores, spans) + width(widths)[spans.width]
        prior: Tensor = self.width_prior(spans.width).squeeze(1)
        out: Tensor = self.mention(added, self.task.dropout) + prior.to(scores.dtype)
        return out

    def _span_vectors(self, spans: Spans, vectors: tuple[Tensor, ...], scores: Tensor) -> Tensor:
        """[S, span] vectors: both ends, the words by attention, the width."""
        width = self._drop(self.widths(spans.width).to(scores.dtype))
        inside = averaged(vectors[2], scores, spans)
        return torch.cat([vectors[0][spans.first], vectors[1][spans.last], inside, width], dim=1)

    def _ranked(self, vectors: Tensor, mention: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """[S, 1 + A] scores and [S, A] their antecedents."""
        fast, antecedents = self._coarse_scores(vectors, mention)
        number = torch.arange(len(vectors), device=vectors.device)[:, None]
        near = _bucket(number - antecedents)
        far = (segments[:, None] - segments[antecedents]).clamp(0, self.task.train_segments - 1)
        none = fast.new_zeros(len(fast), 1)
        for turn in range(self.task.rounds):
            slow = self._compared(vectors, antecedents, near, far)
            scores = torch.cat([none, (fast + slow).clamp(min=ABSENT)], dim=1)
            if self.gate is not None and turn + 1 < self.task.rounds:
                vectors = self._refine(vectors, scores, antecedents)
        return scores, antecedents

    def _coarse_scores(self, vectors: Tensor, mention: Tensor) -> tuple[Tensor, Tensor]:
        """[S, A] coarse scores of the best antecedents, and which they are."""
        # Differs from SpanBERT's code: scaled as attention is, so that scores start small.
        source = self._drop(self.coarse(vectors))
        scores = source @ self._drop(vectors).T / vectors.shape[1] ** 0.5
        number = torch.arange(len(vectors), device=vectors.device)
        distance = number[:, None] - number
        prior = self.distance_prior(_bucket(distance)).squeeze(-1).to(scores.dtype)
        scores = scores + prior + mention[:, None] + mention
        scores = scores.masked_fill(distance <= 0, 2 * ABSENT)
        best, which = scores.topk(min(self.task.antecedents, len(vectors)))
        return best, which

    def _compared(self, vectors: Tensor, antecedents: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """[S, A] the fine score of each span and antecedent."""
        own, other, product, distance, segment = self.antecedent.inner
        distances = self._drop(self.distances.weight.to(vectors.dtype))
        segments = self._drop(self.segments.weight.to(vectors.dtype))
        added = product(vectors[:, None] * vectors[antecedents]) + own(vectors)[:, None]
        added = added + other(vectors)[antecedents]
        added = added + distance(distances)[near] + segment(segments)[far]
        out: Tensor = self.antecedent(added, self.task.dropout)
        return out

    def _refine(self, vectors: Tensor, scores: Tensor, antecedents: Tensor) -> Tensor:
        """The span vectors moved by a gate towards their expected antecedents."""
        assert self.gate is not None
        share = scores.softmax(dim=1)
        expected = torch.einsum("sa,saw->sw", share[:, 1:], vectors[antecedents])
        expected = expected + share[:, :1] * vectors
        gate = torch.sigmoid(self.gate(torch.cat([vectors, expected], dim=1)))
        return gate * vectors + (1 - gate) * expected

    def _drop(self, x: Tensor) -> Tensor:
        return drop(x, self.task.dropout, self.training)


def placed(inputs: Input, targets: Columns) -> BatchWords:
    """The words of a document from the rows of its targets."""
    first_pass, second_pass = targets["kind"] == WORD, targets["kind"] == AGAIN
    at, numbers = targets["at"][first_pass], targets["word"][first_pass]
    sizes = targets["right"][first_pass] - at + 1
    other = at.clone()
    other[torch.searchsorted(numbers, targets["word"][second_pass])] = targets["at"][second_pass]
    firsts = sizes.cumsum(0) - sizes
    owners = torch.repeat_interleave(torch.arange(len(at), device=at.device), sizes)
    inside = torch.arange(len(owners), device=at.device) - firsts[owners]
    return BatchWords(
        numbers=numbers,
        sentences=targets["sentence"][first_pass],
        segments=torch.searchsorted(inputs.cu_seqlens.long(), at, right=True) - 1,
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
    legal = (last < count) & (sentences[last.clamp(max=count - 1)] == sentences[first])
    return Spans(first.expand_as(last)[legal], last[legal])


def gathered(
    pieces: Tensor, scores: Tensor, owners: Tensor, *, count: int
) -> tuple[Tensor, Tensor]:
    """[n] the combined score of each word's pieces, and [n, W] their weighted mean."""
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
    # Only the words inside are read, without a copy for each span.
    return functional.embedding_bag(
        words[inside],
        vectors,
        (spans.width + 1).cumsum(0) - spans.width - 1,
        mode="sum",
        per_sample_weights=weights[inside],
    )


def uncrossed(spans: Spans, scores: Tensor, *, most: int) -> Tensor:
    """At most `most` of the best spans of which no two cross, in document order.

    Spans are chosen by score; one that crosses a chosen span is skipped.
    """
    first, last = spans.first.tolist(), spans.last.tolist()
    farthest: dict[int, int] = {}  # by its first word, the last word of the longest span chosen
    earliest: dict[int, int] = {}  # by its last word, the first
    chosen: list[int] = []
    for number in scores.argsort(descending=True, stable=True).tolist():
        begin, end = first[number], last[number]
        out_right = any(farthest.get(word, -1) > end for word in range(begin + 1, end + 1))
        out_left = any(earliest.get(word, begin) < begin for word in range(begin, end))
        if not (out_right or out_left):
            chosen.append(number)
            farthest[begin] = max(farthest.get(begin, end), end)
            earliest[end] = min(earliest.get(end, begin), begin)
        if len(chosen) == most:
            break
    return torch.tensor(sorted(chosen), device=scores.device, dtype=torch.long)


def _bucket(distance: Tensor) -> Tensor:
    """The bucket of a distance: 0 to 4 one each, then up to 7, 15, 31, 63 and above."""
    bounds = torch.tensor([1, 2, 3, 4, 5, 8, 16, 32, 64], device=distance.device)
    return torch.bucketize(distance, bounds, right=True)


def _gold_clusters(ends: Tensor, targets: Columns) -> Tensor:
    """[S] the gold cluster of each span; 0 is none."""
    gold = targets["kind"] == MENTION
    if not gold.any():
        return ends.new_zeros(len(ends))
    same = (ends[:, None, 0] == targets["word"][gold]) & (ends[:, None, 1] == targets["last"][gold])
    return (same * targets["cluster"][gold]).amax(dim=1)
