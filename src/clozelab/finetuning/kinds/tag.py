"""A tag for every word of a sentence (BERT §5.3: CoNLL-2003), read at the word's first piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from clozelab.contracts import Counts, Ints, Pieces, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import (
    Floats,
    Tagged,
    Tags,
    TokenizedExamples,
    joined,
    likelihoods,
    place_of,
    slots,
    stacked,
)
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.tagged import tagged
from clozelab.finetuning.kinds.kind import Settings, TaskKind, space, strings
from clozelab.finetuning.metrics import classes, entities
from clozelab.finetuning.metrics.entities import Scheme, is_entity, is_legal
from clozelab.ranges import BelowOne

OUTSIDE = "O"


@dataclass(frozen=True)
class Tag(TaskKind):
    """Tags by name; `scheme` says how they encode entities, None reads them as `conlleval` does.

    Tags that break a scheme are no entity. The metric of tags without entities is "accuracy".

    A sentence longer than the encoder reads is split into several blocks, so every word has a tag.
    """

    name: ClassVar[str] = "tag"
    label_field: ClassVar[str | None] = "tags"
    from_examples: ClassVar[tuple[str, ...]] = ("tags",)
    outputs: ClassVar[tuple[str, ...]] = ("tags",)
    gold: ClassVar[tuple[str, ...]] = ("tags",)
    suffix: ClassVar[str] = "conll"
    known_metrics: ClassVar[tuple[str, ...]] = ("f1", "precision", "recall", "accuracy")

    tags: tuple[str, ...]
    metrics: tuple[str, ...] = ("f1",)
    scheme: Scheme | None = None
    transform: bool = False  # a dense layer, gelu and a norm before the classifier (ModernBERT)
    dropout: BelowOne = 0.1

    read = staticmethod(tagged)

    @classmethod
    def example(cls, value: Any, name: str) -> Tagged:
        """A sentence, or its words."""
        return Tagged(name, tuple(value.split()) if isinstance(value, str) else strings(value))

    @classmethod
    def rows(cls, lines: Sequence[str]) -> list[list[str]]:
        """A sentence a line, in which a tab is a space."""
        return [[" ".join(row)] for row in super().rows(lines)]

    @classmethod
    def derive(cls, examples: Sequence[Tagged], *, labels: tuple[str, ...]) -> dict[str, Setting]:
        """The tags, and accuracy as the metric if they name no entities."""
        plain = any(not is_entity(tag) for tag in labels)
        return {"tags": labels, **({"metrics": ("accuracy",)} if plain else {})}

    @classmethod
    def notes(cls, settings: Settings) -> tuple[str, ...]:
        """A note that accuracy is the metric."""
        tags = settings["tags"]
        if "metrics" not in settings or not isinstance(tags, tuple):
            return ()
        odd = next(tag for tag in tags if not is_entity(tag))
        return (f"tags such as {odd} name no entities; models are compared by accuracy",)

    @classmethod
    def stand_in(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Two tags."""
        return {"tags": ["O", "B-LOC"]}

    def tokenize(
        self, examples: Sequence[Tagged], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """A block or several for each sentence, with a slot for each word that has a token."""
        scores_entities = self.metrics != ("accuracy",)
        if scores_entities and any(example.tags for example in examples):
            entities.spans(self.tags, self.scheme)  # refuses tags that cannot be scored
        pieces = reader.words([example.words for example in examples])
        room = space(reader, 1)
        rows: list[Row] = []
        owners, tag_slots, token_facts = [], [], []
        counts = Counts()
        for number, example in enumerate(examples):
            labels = self._labels(example)
            if scores_entities and self.scheme and not is_legal(example.tags or (), self.scheme):
                counts.add(f"sentences whose tags break {self.scheme}", place_of(example))
            parts = _split_sentence(pieces, number, room)
            counts.add("sentences split to fit", place_of(example), int(len(parts) > 1))
            for part in parts:
                fit = slice(part.start, min(part.stop, part.start + room))
                counts.add("words truncated to fit", place_of(example), int(fit != part))
                row = reader.with_special_tokens(pieces.part(fit))
                begins, numbers = np.flatnonzero(pieces.begins[fit]), pieces.words[fit]
                words = np.zeros(len(row.columns["ids"]), dtype=np.int64)
                words[row.first] = numbers  # special tokens keep 0, which is not read
                rows.append(row)
                owners.append(number)
                tag_slots.append(
                    {"at": row.first.start + begins, "labels": labels[numbers[begins]]}
                )
                token_facts.append({"words": words})
        return stacked(
            rows,
            slots(tag_slots),
            owners=np.array(owners, dtype=np.int64),
            token_facts=joined(token_facts),
            counts=counts,
        )

    def build(self, width: int) -> Any:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.summary import TagHead

        return TagHead(width, len(self.tags), dropout=self.dropout, transform=self.transform)

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Tagged]
    ) -> list[Tags]:
        """A tag for each word; a word without tokens is tagged O."""
        tags = [[OUTSIDE] * len(example.words) for example in examples]
        probabilities = [[0.0] * len(example.words) for example in examples]
        starts = tokenized.targets.starts
        for block, (rows, owner) in enumerate(zip(outputs, tokenized.owners.tolist(), strict=True)):
            part = slice(int(starts[block]), int(starts[block + 1]))
            at = tokenized.starts[block] + tokenized.targets.columns["at"][part]
            words = tokenized.token_facts["words"][at].tolist()
            for word, row in zip(words, likelihoods(rows), strict=True):
                tags[owner][word] = self.tags[int(row.argmax())]
                probabilities[owner][word] = float(row.max())
        return [Tags(tuple(a), tuple(b)) for a, b in zip(tags, probabilities, strict=True)]

    def measure(self, metric: str, gold: list[Any], predicted: list[Any]) -> float:
        """Accuracy over words, or a score of entities."""
        if metric == "accuracy":
            return classes.accuracy(
                [tag for tags in gold for tag in tags], [tag for tags in predicted for tag in tags]
            )
        return entities.scores(gold, predicted, scheme=self.scheme)[metric]

    def constant(self, examples: Sequence[Tagged]) -> dict[str, float]:
        """The scores of the most frequent tag, O as a rule, for every word."""
        known = self.labelled(examples)
        counts = Counter(tag for example in known for tag in example.tags)
        if not counts:
            return {}
        ((majority, _),) = counts.most_common(1)
        tags = [(majority,) * len(example.tags) for example in known]
        return self.score([Tags(row, (1.0,) * len(row)) for row in tags], known)

    @classmethod
    def fields(cls, example: Tagged, prediction: Tags) -> list[str]:
        """The sentence with a tag behind each word."""
        pairs = zip(example.words, prediction.tags, strict=True)
        return [" ".join(f"{word}/{tag}" for word, tag in pairs)]

    @classmethod
    def styled(cls, example: Tagged, prediction: Tags) -> list[tuple[str, str]]:
        """The sentence with tags behind the words that have one."""
        parts: list[tuple[str, str]] = []
        for word, tag in zip(example.words, prediction.tags, strict=True):
            parts.append((" " if parts else "", ""))
            parts.append((word, "" if tag == OUTSIDE else "bold"))
            parts.append(("" if tag == OUTSIDE else f"/{tag}", "cyan"))
        return parts

    @classmethod
    def submission(
        cls, examples: Sequence[Tagged], predictions: Sequence[Tags], **_: object
    ) -> dict[str, str]:
        """CoNLL's columns."""
        sentences = [
            "".join(f"{word}\t{tag}\n" for word, tag in zip(example.words, tags, strict=True))
            for example, (tags, _) in zip(examples, predictions, strict=True)
        ]
        return {"": "".join(f"{sentence}\n" for sentence in sentences)}

    @classmethod
    def texts(cls, example: Tagged) -> list[str]:
        """The sentence."""
        return [" ".join(example.words)]

    def _labels(self, example: Tagged) -> Ints:
        """[words] the numbers of an example's tags."""
        if example.tags is None:
            return np.full(len(example.words), Targets.IGNORED)
        if len(example.tags) != len(example.words):
            raise UserError(
                f"{place_of(example)} has {len(example.words)} words and {len(example.tags)} tags:"
                " give one for each word"
            )
        for tag in example.tags:
            if tag not in self.tags:
                raise UserError(
                    f"{place_of(example)}: its tag {tag!r} is none of {', '.join(self.tags)};"
                    " fix it, or name it among the tags"
                )
        return np.array([self.tags.index(tag) for tag in example.tags], dtype=np.int64)


def _split_sentence(pieces: Pieces, number: int, room: int) -> list[slice]:
    """The ranges of a sentence's tokens that fit, split between words; a longer word is one."""
    sentence = pieces.text(number)
    begins = [*(np.flatnonzero(pieces.begins[sentence]) + sentence.start).tolist(), sentence.stop]
    parts, first = [], sentence.start
    for begin, end in pairwise(begins):
        if end - first > room and begin > first:
            parts.append(slice(first, begin))
            first = begin
    return [*parts, slice(first, sentence.stop)]
