"""Which spans of a document refer to the same entity: end-to-end ranking of antecedents over
segments, as SpanBERT §4.2 evaluates encoders (with the higher-order model that it adopts).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, ClassVar

import numpy as np

from clozelab.contracts import Array, Counts, Reader, Row
from clozelab.errors import UserError
from clozelab.finetuning.examples import (
    Clusters,
    Document,
    Floats,
    Mention,
    Pronoun,
    TokenizedExamples,
    joined,
    place_of,
    slots,
    stacked,
)
from clozelab.finetuning.files.documents import documents
from clozelab.finetuning.kinds import segments
from clozelab.finetuning.kinds.kind import TaskKind, Texts, strings
from clozelab.finetuning.kinds.segments import DocumentWords
from clozelab.finetuning.metrics.clusters import PronounAnswer, gap, scored
from clozelab.packed import offsets
from clozelab.ranges import BelowOne, PositiveInt, above

METRICS = ("conll", "muc_f1", "b_cubed_f1", "ceaf_f1", "mentions_f1")


@dataclass(frozen=True)
class Coreference(TaskKind):
    """Clusters of mentions: each likely span gets its most probable antecedent, or none."""

    # Differs from SpanBERT §4.2: there are no features of speakers and genres, which only OntoNotes
    # has, and the hidden layers have 1000 units instead of 3000.

    name: ClassVar[str] = "coreference"
    from_tuning: ClassVar[Mapping[str, str]] = {"dropout": "head_dropout", "segment": "length"}
    gold: ClassVar[tuple[str, ...]] = ("clusters", "pronoun")
    inputs: ClassVar[Texts] = Texts(1, sys.maxsize, "the sentences of a document")
    reads_folders: ClassVar[bool] = True  # LitBank's
    windows: ClassVar[bool] = True
    one_graph: ClassVar[bool] = False
    distillable: ClassVar[bool] = False  # a student keeps other spans than its teacher
    suffix: ClassVar[str] = "jsonl"
    known_metrics: ClassVar[tuple[str, ...]] = METRICS

    segment: PositiveInt = 384  # tokens with special ones, or as many as the encoder reads
    overlap: bool = False  # a second pass over the document, shifted by half a segment
    widest: PositiveInt = 30  # words of a span, all of one sentence
    ratio: Annotated[float, above(0, "must be above 0, for instance 0.4")] = 0.4  # spans a word
    antecedents: PositiveInt = 50  # of a span, the best before it
    rounds: PositiveInt = 2  # of scoring; in between, spans are refined by their antecedents
    hidden: PositiveInt = 1000
    feature: PositiveInt = 20
    dropout: BelowOne = 0.3
    train_segments: PositiveInt = 3
    metrics: tuple[str, ...] = ("conll",)

    read = staticmethod(documents)

    @classmethod
    def example(cls, value: Any, name: str) -> Document:
        """A document in sentences of words."""
        return Document(name, tuple(strings(sentence) for sentence in value))

    @classmethod
    def rows(cls, lines: Sequence[str]) -> list[list[str]]:
        """A sentence a line, and a blank line between two documents."""
        stretches = groupby(lines, key=lambda line: bool(line.strip()))
        return [list(sentences) for has_text, sentences in stretches if has_text]

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
        # Differs from SpanBERT's code: it samples a part of a long document at every visit; here
        # all its parts are documents of their own.
        special = reader.num_special_tokens(1)
        room = min(self.segment, reader.length) - special
        if room < 1:
            raise UserError(
                f"segment = {self.segment}: leaves no room for words beside the encoder's"
                f" {special} special tokens; give at least {special + 1}"
            )
        rows: list[Row] = []
        tables: list[dict[str, Array]] = []
        sizes, owners, counts = [], [], Counts()
        for owner, document in enumerate(examples):
            words = segments.spelled(document, reader, most=room)
            self._count_unreachable(document, words, counts)
            cut = segments.stretches(words, 0, len(words.numbers), room=room)
            most = self.train_segments if training else len(cut)
            for part in (cut[at : at + most] for at in range(0, len(cut), most)):
                group = self._group(document, words, part, reader=reader, room=room)
                rows += [row for row, _ in group]
                tables += [table for _, table in group]
                sizes.append(len(group))
                owners.append(owner)
        groups, owned = offsets(sizes), np.array(owners, np.int64)
        return stacked(rows, slots(tables), groups=groups, owners=owned, counts=counts)

    def _group(
        self,
        document: Document,
        words: DocumentWords,
        part: Sequence[tuple[int, int]],
        *,
        reader: Reader,
        room: int,
    ) -> list[tuple[Row, dict[str, Array]]]:
        """The blocks of some word ranges and their slots; mentions are in the first block."""
        begin, end = part[0][0], part[-1][1]
        second_pass = segments.shifted(words, begin, end, room=room) if self.overlap else []
        passes = [(stretch, segments.WORD) for stretch in part]
        passes += [(stretch, segments.AGAIN) for stretch in second_pass]
        group = [segments.block(words, stretch, reader, kind=kind) for stretch, kind in passes]
        row, table = group[0]
        if document.clusters is not None:
            table["labels"][:1] = 1
        group[0] = row, joined([table, segments.mentions(document, words, begin, end)])
        return group

    def _count_unreachable(self, document: Document, words: DocumentWords, counts: Counts) -> None:
        """Count the mentions that no candidate span can match."""
        sentence = dict(zip(words.numbers.tolist(), words.sentences.tolist(), strict=True))
        for mention in (mention for cluster in document.clusters or () for mention in cluster):
            ends = sentence.get(mention.first), sentence.get(mention.last)
            too_wide = mention.last - mention.first >= self.widest
            if too_wide or None in ends or ends[0] != ends[1]:
                what = f"mentions of over {self.widest} words, across sentences or without tokens"
                counts.add(what, place_of(document))

    def build(self, width: int) -> Any:
        """The head with fresh weights over vectors of that width."""
        from clozelab.finetuning.heads.coreference import ClustersHead

        return ClustersHead(self, width)

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
        """All scores of `score`; `metrics` are those that select."""
        return cls.known_metrics

    def score(
        self, predictions: Sequence[Clusters], examples: Sequence[Document]
    ) -> dict[str, float]:
        """MUC, B³, CEAF-φ4 and their mean over the documents whose clusters are known.

        Singletons are left out, in gold and predictions: neither this model nor OntoNotes has
        clusters of one mention. If documents ask for a pronoun (GAP), only the pronouns are
        scored.
        """
        known = self.known(predictions, examples)
        if any(document.pronoun for document in examples):
            pairs = zip(predictions, examples, strict=True)
            return gap(
                [answered(p, d.pronoun) for p, d in pairs if d.pronoun and d.clusters is not None]
            )
        gold = [_without_singletons(clusters) for clusters, _ in known]
        return scored(gold, [_without_singletons(predicted.clusters) for _, predicted in known])

    def constant(self, examples: Sequence[Document]) -> dict[str, float]:
        """The scores of finding no cluster."""
        known = self.labelled(examples)
        return self.score([Clusters(())] * len(known), known) if known else {}

    def selects(self, scores: Mapping[str, float]) -> float:
        """The mean of the official metrics, or GAP's F1."""
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
            {"id": example.id, "sentences": example.sentences, "clusters": prediction.clusters}
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        return {"": "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)}

    @classmethod
    def texts(cls, example: Document) -> list[str]:
        """The document."""
        return [" ".join(word for sentence in example.sentences for word in sentence)]


def linked(rows: Floats) -> list[tuple[Mention, ...]]:
    """The clusters of two or more mentions, from the rows of the head's `predict`."""
    clusters: list[list[Mention]] = []
    member: list[list[Mention]] = []
    for first, last, antecedent in rows.astype(np.int64).tolist():
        if antecedent < 0:
            clusters.append([])
        member.append(clusters[-1] if antecedent < 0 else member[antecedent])
        member[-1].append(Mention(first, last))
    return _without_singletons(clusters)


def answered(predicted: Clusters, pronoun: Pronoun) -> PronounAnswer:
    """Which of its two names a pronoun refers to (GAP), by the clusters of its document.

    It refers to a name if a cluster has the pronoun and a mention that ends where the name ends:
    the name, its surname, or the name with a title, but not "Ellen's brother" for Ellen.
    """
    clusters = [cluster for cluster in predicted.clusters if pronoun.mention in cluster]
    ends = {mention.last for cluster in clusters for mention in cluster}
    gold = bool(pronoun.is_a), bool(pronoun.is_b)
    return PronounAnswer(pronoun.word, gold, (pronoun.a.last in ends, pronoun.b.last in ends))


def _without_singletons(clusters: Sequence[Sequence[Mention]]) -> list[tuple[Mention, ...]]:
    """The clusters without singletons."""
    return [tuple(cluster) for cluster in clusters if len(cluster) > 1]
