"""Ranking the antecedents of spans, coarse to fine, with higher-order refinement: the model that
SpanBERT §4.2 puts over its encoder. Shapes follow the document, so it is never compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from clozelab.contracts import Encoded, Input, Sums
from clozelab.errors import UserError
from clozelab.finetuning.heads.losses import ABSENT, labelled, wide
from clozelab.finetuning.heads.mentions import (
    Spans,
    averaged,
    candidates,
    gathered,
    placed,
    uncrossed,
)
from clozelab.finetuning.kinds.coreference import DISTANCES
from clozelab.finetuning.kinds.segments import MENTION
from clozelab.layers import Linear, drop, initialise

if TYPE_CHECKING:
    from clozelab.finetuning.kinds.coreference import Coreference


class Scorer(nn.Module):
    """One hidden layer over several vectors side by side, and a score.

    The layer's product with each vector is the caller's to take, where there are fewest of it.
    """

    def __init__(self, sizes: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(
            Linear(size, hidden, bias=number == 0) for number, size in enumerate(sizes)
        )
        self.output = Linear(hidden, 1)

    def forward(self, added: Tensor, rate: float) -> Tensor:
        """[…, hidden], the products added up → […]."""
        scores: Tensor = self.output(drop(added.relu_(), rate, self.training))
        return scores.squeeze(-1)


class ClustersHead(nn.Module):
    """For each span kept of one document, a score for every antecedent it may have.

    Logits are [S, 1 + A] (the first for no antecedent, always 0), [S, A] the rows of the
    antecedents, and [S, 2] the words of the document that the spans begin and end with.
    """

    rows: ClassVar[Literal["slots", "tokens", "group"]] = "group"

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

    def forward(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Sums:
        """The loss of the document, and the share of its spans whose antecedent is right."""
        return self.loss(self.logits(encoded, inputs, targets), targets)

    def logits(
        self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, antecedents and spans: see the class."""
        # Scores of a softmax over a whole document, in full precision: little is gained by less.
        states = wide(encoded.states)
        words = placed(inputs, targets)
        count = len(words.numbers)
        if not count:
            nothing = targets["at"][:0, None]
            # A process without a document has a gradient for every weight all the same.
            touched = torch.stack([parameter.sum() for parameter in self.parameters()]).sum()
            return states[:0, :1] + 0 * touched, nothing[:, :0], nothing.expand(0, 2)
        pieces = states[words.places]
        if self.mix is not None:
            second = states[words.again]
            share = torch.sigmoid(self.mix(torch.cat([pieces, second], dim=1)))
            pieces = second + share * (pieces - second)
        scores, inside = gathered(
            pieces, self.attention(pieces).squeeze(1), words.owners, count=count
        )
        held = pieces[words.firsts], pieces[words.lasts], inside
        spans = candidates(words.sentences, widest=self.task.widest)
        mention = self._mentions(spans, held, scores)
        kept = uncrossed(spans, mention.detach(), most=max(1, int(self.task.ratio * count)))
        spans, mention = spans.take(kept), mention[kept]
        vectors = self._vectors(spans, held, scores)
        ranked, antecedents = self._ranked(vectors, mention, words.segments[spans.first])
        ends = torch.stack([words.numbers[spans.first], words.numbers[spans.last]], dim=1)
        return ranked, antecedents, ends

    def loss(self, logits: tuple[Tensor, ...], targets: dict[str, Tensor]) -> Sums:
        """Minus the log of the share that right antecedents have, or "none" where there is none."""
        scores, antecedents, ends = logits
        documents = labelled(targets["labels"]).sum()
        assert int(documents) <= 1, "a batch of this head is one document"
        clusters = _clusters(ends, targets)
        mine, theirs = clusters[:, None], clusters[antecedents]
        before = antecedents < torch.arange(len(scores), device=scores.device)[:, None]
        right = (mine == theirs) & (mine > 0) & before
        right = torch.cat([~right.any(dim=1, keepdim=True), right], dim=1)
        wanted = scores.masked_fill(~right, ABSENT).logsumexp(dim=1)
        loss = (scores.logsumexp(dim=1) - wanted).sum() * documents
        chosen = scores.argmax(dim=1, keepdim=True) if len(scores) else antecedents.new_zeros(0, 1)
        hits = right.gather(1, chosen).sum() / max(len(scores), 1)
        return {"loss": loss, "count": documents, "correct": hits * documents}

    def there(self, targets: dict[str, Tensor]) -> Tensor:
        """No rows are the same for two models: each keeps spans of its own."""
        raise UserError(
            "coreference: a student keeps other spans than its teacher, so it cannot be distilled;"
            " distil the encoder and fine-tune it"
        )

    def predict(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Tensor:
        """[S, 3] first word, last word, and the row of the antecedent or -1."""
        scores, antecedents, ends = self.logits(encoded, inputs, targets)
        if not len(scores):
            return scores.new_zeros(0, 3)
        none = antecedents.new_full((len(antecedents), 1), -1)
        best = torch.cat([none, antecedents], dim=1).gather(1, scores.argmax(dim=1, keepdim=True))
        return torch.cat([ends, best], dim=1).to(scores.dtype)

    def _mentions(self, spans: Spans, held: tuple[Tensor, ...], scores: Tensor) -> Tensor:
        """[C] how likely a mention each span is."""
        first, last, inside, width = self.mention.inner
        # A feature is dropped for a whole document: its products are taken row by row of the table.
        widths = drop(self.widths.weight.to(scores.dtype), self.task.dropout, self.training)
        added = first(held[0])[spans.first] + last(held[1])[spans.last]
        added = added + averaged(inside(held[2]), scores, spans) + width(widths)[spans.width]
        prior: Tensor = self.width_prior(spans.width).squeeze(1)
        out: Tensor = self.mention(added, self.task.dropout) + prior.to(scores.dtype)
        return out

    def _vectors(self, spans: Spans, held: tuple[Tensor, ...], scores: Tensor) -> Tensor:
        """[S, span] both ends, the words by attention, the width."""
        width = self.widths(spans.width).to(scores.dtype)
        width = drop(width, self.task.dropout, self.training)
        inside = averaged(held[2], scores, spans)
        return torch.cat([held[0][spans.first], held[1][spans.last], inside, width], dim=1)

    def _ranked(self, vectors: Tensor, mention: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """[S, 1 + A] scores and [S, A] which antecedents they are of."""
        fast, antecedents = self._pruned(vectors, mention)
        number = torch.arange(len(vectors), device=vectors.device)[:, None]
        near = _bucket(number - antecedents)
        far = (segments[:, None] - segments[antecedents]).clamp(0, self.task.train_segments - 1)
        none = fast.new_zeros(len(fast), 1)
        for turn in range(self.task.rounds):
            slow = self._compared(vectors, antecedents, near, far)
            scores = torch.cat([none, (fast + slow).clamp(min=ABSENT)], dim=1)
            if self.gate is not None and turn + 1 < self.task.rounds:
                vectors = self._refined(vectors, scores, antecedents)
        return scores, antecedents

    def _pruned(self, vectors: Tensor, mention: Tensor) -> tuple[Tensor, Tensor]:
        """[S, A] coarse scores of the best antecedents, and which they are."""
        rate, count = self.task.dropout, len(vectors)
        source = drop(self.coarse(vectors), rate, self.training)
        # Differs from SpanBERT's code: scaled as attention is, so that scores start small.
        scores = source @ drop(vectors, rate, self.training).T / vectors.shape[1] ** 0.5
        number = torch.arange(count, device=vectors.device)
        apart = number[:, None] - number
        prior = self.distance_prior(_bucket(apart)).squeeze(-1).to(scores.dtype)
        scores = scores + prior + mention[:, None] + mention
        scores = scores.masked_fill(apart <= 0, 2 * ABSENT)
        best, which = scores.topk(min(self.task.antecedents, count))
        return best, which

    def _compared(self, vectors: Tensor, antecedents: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """[S, A] how well each span and antecedent go together."""
        mine, theirs, both, distance, segment = self.antecedent.inner
        tables = [
            drop(table.weight.to(vectors.dtype), self.task.dropout, self.training)
            for table in (self.distances, self.segments)
        ]
        added = both(vectors[:, None] * vectors[antecedents]) + mine(vectors)[:, None]
        added = added + theirs(vectors)[antecedents]
        added = added + distance(tables[0])[near] + segment(tables[1])[far]
        out: Tensor = self.antecedent(added, self.task.dropout)
        return out

    def _refined(self, vectors: Tensor, scores: Tensor, antecedents: Tensor) -> Tensor:
        """Spans moved towards the antecedents they expect, as far as a gate lets them."""
        assert self.gate is not None
        share = scores.softmax(dim=1)
        expected = torch.einsum("sa,saw->sw", share[:, 1:], vectors[antecedents])
        expected = expected + share[:, :1] * vectors
        gate = torch.sigmoid(self.gate(torch.cat([vectors, expected], dim=1)))
        return gate * vectors + (1 - gate) * expected


def _bucket(distance: Tensor) -> Tensor:
    """0 to 4 as they are, then up to 7, 15, 31, 63 and all above."""
    bounds = torch.tensor([1, 2, 3, 4, 5, 8, 16, 32, 64], device=distance.device)
    return torch.bucketize(distance, bounds, right=True)


def _clusters(ends: Tensor, targets: dict[str, Tensor]) -> Tensor:
    """[S] the cluster of each span; 0 is none."""
    gold = targets["kind"] == MENTION
    same = (ends[:, None, 0] == targets["word"][gold]) & (ends[:, None, 1] == targets["last"][gold])
    return (
        (same * targets["cluster"][gold]).amax(dim=1) if gold.any() else ends.new_zeros(len(ends))
    )
