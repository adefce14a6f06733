"""Which stretches of a document speak of the same thing: end-to-end ranking of antecedents over
segments, as SpanBERT §4.2 evaluates encoders (the model is the higher-order one it takes over).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clozelab.contracts import Counts, Ints, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Document, Mention
from clozelab.finetuning.kinds.checks import check_dropout, check_known, check_metrics
from clozelab.finetuning.kinds.segments import (
    AGAIN,
    COLUMNS,
    WORD,
    Words,
    block,
    mentions,
    shifted,
    spelled,
    stretches,
)
from clozelab.finetuning.laying import Laid, stacked
from clozelab.finetuning.predictions import Clusters, Floats
from clozelab.packed import offsets

if TYPE_CHECKING:
    from clozelab.finetuning.heads.clusters import ClustersHead

METRICS = ("conll", "muc_f1", "b_cubed_f1", "ceaf_f1", "mentions_f1")
DISTANCES = 10  # how many buckets of distances between spans there are


@dataclass(frozen=True)
class Coreference:
    """Clusters of mentions, found by giving each likely span its likeliest antecedent or none.

    A document is read in segments of at most `segment` tokens, marks included (fewer where the
    encoder reads fewer); with `overlap`, a second pass is shifted by half a segment. Spans have up
    to `widest` words of one sentence; the best `ratio` · words of them are kept, and for each the
    best `antecedents` before it are scored in `rounds` rounds, spans being refined by their
    antecedents between two of them.
    """

    # Differs from SpanBERT §4.2: there are no features of speakers and genres, which only OntoNotes
    # has, and the hidden layers have 1000 units instead of 3000.

    name: ClassVar[str] = "coreference"

    segment: int = 384
    overlap: bool = False
    widest: int = 30
    ratio: float = 0.4
    antecedents: int = 50
    rounds: int = 2
    hidden: int = 1000
    feature: int = 20
    dropout: float = 0.3
    train_segments: int = 3
    metrics: tuple[str, ...] = ("conll",)

    def __post_init__(self) -> None:
        names = ("segment", "widest", "antecedents", "rounds", "hidden", "feature")
        for name in (*names, "train_segments"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.ratio <= 0:
            raise UserError(f"ratio = {self.ratio}: must be above 0, for instance 0.4")
        check_dropout(self.dropout)
        check_metrics(self.metrics, METRICS)

    def lay(self, examples: Sequence[Document], reader: Reader, *, training: bool = False) -> Laid:
        """Documents as segments, a group each.

        For `training` a document of more than `train_segments` segments is several groups.
        """
        # Differs from SpanBERT's code: it draws a stretch of a long document anew at every visit;
        # here all its stretches are documents of their own.
        room = min(self.segment, reader.length) - reader.marks(1)
        if room < 1:
            raise UserError(
                f"segment = {self.segment}: leaves no room for words beside the encoder's"
                f" {reader.marks(1)} marks; give at least {reader.marks(1) + 1}"
            )
        rows: list[Row] = []
        tables: list[Ints] = []
        sizes, owners, counts = [], [], Counts()
        for owner, document in enumerate(examples):
            words = spelled(document, reader, most=room)
            self._count(document, words, counts)
            cut = stretches(words, 0, len(words.numbers), room=room)
            most = self.train_segments if training else len(cut)
            for part in (cut[at : at + most] for at in range(0, len(cut), most)):
                group = self._group(document, words, part, reader=reader, room=room)
                rows += [row for row, _ in group]
                tables += [table for _, table in group]
                sizes.append(len(group))
                owners.append(owner)
        every = np.concatenate([*tables, np.zeros((0, len(COLUMNS)), dtype=np.int64)])
        columns = dict(zip(COLUMNS, every.T, strict=True))
        targets = Targets(offsets([len(table) for table in tables]), columns)
        return stacked(
            rows, targets, groups=offsets(sizes), owners=np.array(owners, np.int64), counts=counts
        )

    def _group(
        self,
        document: Document,
        words: Words,
        part: Sequence[tuple[int, int]],
        *,
        reader: Reader,
        room: int,
    ) -> list[tuple[Row, Ints]]:
        """The blocks of some stretches and their rows; mentions go with the first."""
        begin, end = part[0][0], part[-1][1]
        again = shifted(words, begin, end, room=room) if self.overlap else []
        passes = [(stretch, WORD) for stretch in part] + [(stretch, AGAIN) for stretch in again]
        group = [block(words, stretch, reader, kind=kind) for stretch, kind in passes]
        row, table = group[0]
        if document.clusters is not None:
            table[:1, COLUMNS.index("labels")] = 1
        group[0] = row, np.concatenate([table, mentions(document, words, begin, end)])
        return group

    def _count(self, document: Document, words: Words, counts: Counts) -> None:
        """Count the mentions that no span can be."""
        sentence = dict(zip(words.numbers.tolist(), words.sentences.tolist(), strict=True))
        for mention in (mention for cluster in document.clusters or () for mention in cluster):
            ends = sentence.get(mention.first), sentence.get(mention.last)
            wide = mention.last - mention.first >= self.widest
            if wide or None in ends or ends[0] != ends[1]:
                what = f"mentions of over {self.widest} words, across sentences or without tokens"
                counts.add(what, document.id)

    def build(self, width: int) -> ClustersHead:
        """The head with fresh weights over vectors of that width."""
        from clozelab.finetuning.heads.clusters import ClustersHead

        return ClustersHead(self, width)

    def parameters(self, width: int) -> dict[str, int]:
        """Trainable numbers by part."""
        span = 3 * width + self.feature
        pair = 3 * span + 2 * self.feature
        counts = {
            "mix": 2 * width * width + width if self.overlap else 0,
            "attention": width,
            "widths": self.widest * self.feature,
            "width_prior": self.widest,
            "mention": span * self.hidden + 2 * self.hidden + 1,
            "coarse": span * span + span,
            "distance_prior": DISTANCES,
            "distances": DISTANCES * self.feature,
            "segments": self.train_segments * self.feature,
            "antecedent": pair * self.hidden + 2 * self.hidden + 1,
            "gate": 2 * span * span + span if self.rounds > 1 else 0,
        }
        return {part: count for part, count in counts.items() if count}

    def decode(
        self, laid: Laid, outputs: Sequence[Floats], examples: Sequence[Document]
    ) -> list[Clusters]:
        """The clusters of each document: spans joined to their antecedents."""
        found: list[list[tuple[Mention, ...]]] = [[] for _ in examples]
        for owner, rows in zip(laid.owners.tolist(), outputs, strict=True):
            found[owner] += linked(rows)
        return [Clusters(tuple(clusters)) for clusters in found]

    def score(
        self, predictions: Sequence[Clusters], examples: Sequence[Document]
    ) -> dict[str, float]:
        """MUC, B³, CEAF-φ4 and their mean over the documents whose clusters are known.

        What is mentioned once is left out, predicted or not: a span without antecedent and without
        a span that takes it for one is no mention to this model, nor is it to OntoNotes.
        """
        from clozelab.finetuning.metrics.clusters import scored

        known = [
            (_several(document.clusters), _several(predicted.clusters))
            for predicted, document in zip(predictions, examples, strict=True)
            if document.clusters is not None
        ]
        check_known(known)
        return scored([gold for gold, _ in known], [found for _, found in known])

    def selects(self, scores: dict[str, float]) -> float:
        """The mean of the official metrics."""
        return fmean(scores[name] for name in self.metrics)


def linked(rows: Floats) -> list[tuple[Mention, ...]]:
    """The clusters of two mentions or more that a head's rows make: see its `predict`."""
    clusters: list[list[Mention]] = []
    member: list[list[Mention]] = []
    for first, last, antecedent in rows.astype(np.int64).tolist():
        if antecedent < 0:
            clusters.append([])
        member.append(clusters[-1] if antecedent < 0 else member[antecedent])
        member[-1].append(Mention(first, last))
    return _several(clusters)


def judged(predicted: Clusters, pronoun: Mention, names: Sequence[Mention]) -> tuple[bool, ...]:
    """Whether a pronoun means each of some names (GAP), by the clusters of its document.

    It does where a cluster has the pronoun itself and a mention that ends where the name ends: the
    name, its surname, or the name with a title, but not "Ellen's brother" for Ellen.
    """
    found = [cluster for cluster in predicted.clusters if pronoun in cluster]
    ends = {mention.last for cluster in found for mention in cluster}
    return tuple(name.last in ends for name in names)


def _several(clusters: Sequence[Sequence[Mention]]) -> list[tuple[Mention, ...]]:
    """Those with two mentions or more."""
    return [tuple(cluster) for cluster in clusters if len(cluster) > 1]
