"""Which stretches of a document speak of the same thing: end-to-end ranking of antecedents over
segments, as SpanBERT §4.2 evaluates encoders (the model is the higher-order one it takes over).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clozelab.contracts import Counts, Ints, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Clusters, Document, Floats, Mention, Pronoun
from clozelab.finetuning.files.columns import Asked, Source
from clozelab.finetuning.files.documents import documents
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.kinds.kind import (
    TaskKind,
    Texts,
    check_dropout,
    check_known,
    check_metrics,
)
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
from clozelab.finetuning.metrics.pronouns import PronounAnswer, gap
from clozelab.finetuning.tokenized import TokenizedExamples, stacked
from clozelab.packed import offsets

if TYPE_CHECKING:
    from clozelab.finetuning.heads.clusters import ClustersHead

METRICS = ("conll", "muc_f1", "b_cubed_f1", "ceaf_f1", "mentions_f1")
DISTANCES = 10  # how many buckets of distances between spans there are


@dataclass(frozen=True)
class Coreference(TaskKind):
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
    from_tuning: ClassVar[Mapping[str, str]] = {"dropout": "head_dropout", "segment": "length"}
    gold: ClassVar[tuple[str, ...]] = ("clusters", "pronoun")
    reads_folders: ClassVar[bool] = True  # LitBank's
    windows: ClassVar[bool] = True
    one_graph: ClassVar[bool] = False
    suffix: ClassVar[str] = "jsonl"

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

    @classmethod
    def read(
        cls, source: Source, asked: Asked, *, settings: Mapping[str, Setting], counts: Counts
    ) -> list[Document]:
        """CoNLL-2012's columns, or JSON lines."""
        return documents(source, asked)

    @classmethod
    def example(cls, given: Any, name: str) -> Document:
        """A document in sentences of words."""
        return Document(name, tuple(tuple(sentence) for sentence in given))

    def takes(self, *, imported: bool = False) -> Texts:
        """Its sentences."""
        return Texts(1, sys.maxsize, "the sentences of a document")

    @classmethod
    def rows(cls, text: str) -> list[list[str]]:
        """A sentence a line, and a blank line between two documents."""
        parts = [part.split("\n") for part in text.split("\n\n") if part.strip()]
        return [[line for line in part if line.strip()] for part in parts]

    @classmethod
    def joined(cls, texts: Sequence[str]) -> Any:
        """The words of each sentence."""
        return [text.split() for text in texts]

    def tokenize(
        self, examples: Sequence[Document], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
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
        """Parameters by part."""
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
        self, tokenized: TokenizedExamples, outputs: Sequence[Floats], examples: Sequence[Document]
    ) -> list[Clusters]:
        """The clusters of each document: spans joined to their antecedents."""
        by_document: list[list[tuple[Mention, ...]]] = [[] for _ in examples]
        for owner, rows in zip(tokenized.owners.tolist(), outputs, strict=True):
            by_document[owner] += linked(rows)
        return [Clusters(tuple(clusters)) for clusters in by_document]

    @classmethod
    def score_names(cls, metrics: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """All that `score` computes; `metrics` say which select."""
        return METRICS

    def score(
        self, predictions: Sequence[Clusters], examples: Sequence[Document]
    ) -> dict[str, float]:
        """MUC, B³, CEAF-φ4 and their mean over the documents whose clusters are known.

        What is mentioned once is left out, predicted or not: a span without antecedent and without
        a span that takes it for one is no mention to this model, nor is it to OntoNotes. Where a
        document asks for a pronoun (GAP), the scores go by the pronouns alone.
        """
        from clozelab.finetuning.metrics.clusters import scored

        if any(document.pronoun for document in examples):
            answers = [
                answered(predicted, document.pronoun)
                for predicted, document in zip(predictions, examples, strict=True)
                if document.pronoun is not None and document.clusters is not None
            ]
            check_known(answers)
            return gap(answers)
        known = [
            (_several(document.clusters), _several(predicted.clusters))
            for predicted, document in zip(predictions, examples, strict=True)
            if document.clusters is not None
        ]
        check_known(known)
        return scored([gold for gold, _ in known], [predicted for _, predicted in known])

    def selects(self, scores: Mapping[str, float]) -> float:
        """The mean of the official metrics, or of GAP its F1."""
        return scores["f1"] if "bias" in scores else super().selects(scores)

    @classmethod
    def fields(cls, example: Document, prediction: Clusters) -> list[str]:
        """The mentions of each cluster."""
        words = [word for sentence in example.sentences for word in sentence]
        return [
            " = ".join(" ".join(words[mention.first : mention.last + 1]) for mention in cluster)
            for cluster in prediction.clusters
        ]

    @classmethod
    def submission(
        cls, examples: Sequence[Document], predictions: Sequence[Clusters], **_: object
    ) -> dict[str, str]:
        """JSON lines, as they are read."""
        records = [
            {"id": one.id, "sentences": one.sentences, "clusters": said.clusters}
            for one, said in zip(examples, predictions, strict=True)
        ]
        return {"": "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)}

    @classmethod
    def texts(cls, example: Document) -> list[str]:
        """The document."""
        return [" ".join(word for sentence in example.sentences for word in sentence)]


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


def answered(predicted: Clusters, asked: Pronoun) -> PronounAnswer:
    """Which of its two names a pronoun means (GAP), by the clusters of its document.

    It means one where a cluster has the pronoun itself and a mention that ends where the name ends:
    the name, its surname, or the name with a title, but not "Ellen's brother" for Ellen.
    """
    clusters = [cluster for cluster in predicted.clusters if asked.mention in cluster]
    ends = {mention.last for cluster in clusters for mention in cluster}
    gold = bool(asked.is_a), bool(asked.is_b)
    return PronounAnswer(asked.word, gold, (asked.a.last in ends, asked.b.last in ends))


def _several(clusters: Sequence[Sequence[Mention]]) -> list[tuple[Mention, ...]]:
    """Those with two mentions or more."""
    return [tuple(cluster) for cluster in clusters if len(cluster) > 1]
