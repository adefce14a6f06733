"""A tag for every word of a sentence (BERT §5.3: CoNLL-2003), read at the word's first piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

import numpy as np

from clozelab.contracts import Array, Counts, Ints, Pieces, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Floats, Tagged, Tags, likelihoods
from clozelab.finetuning.files.columns import Asked, Source
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.tagged import tagged
from clozelab.finetuning.kinds.kind import (
    TaskKind,
    check_dropout,
    check_known,
    check_metrics,
    check_names,
    in_order,
)
from clozelab.finetuning.metrics import classes, entities
from clozelab.finetuning.metrics.schemes import Scheme, illegal, is_entity
from clozelab.finetuning.tokenized import TokenizedExamples, stacked
from clozelab.packed import offsets

if TYPE_CHECKING:
    from clozelab.finetuning.heads.tags import TagHead

METRICS = ("f1", "precision", "recall", "accuracy")
OUTSIDE = "O"


class _Block(NamedTuple):
    """One block of a sentence."""

    row: Row
    at: Ints  # the first piece of each word
    labels: Ints  # its tag
    words: Ints  # the word of each token; of marks nobody asks
    owner: int  # the sentence


@dataclass(frozen=True)
class Tag(TaskKind):
    """Tags by name; `scheme` says how they spell entities, None that `conlleval` shall read them.

    By a scheme, what breaks it is no entity. Of tags that name none, "accuracy" is the metric.

    A sentence longer than the encoder reads is split into several blocks, so every word has a tag.
    """

    name: ClassVar[str] = "tag"
    label_field: ClassVar[str | None] = "tags"
    from_examples: ClassVar[tuple[str, ...]] = ("tags",)
    outputs: ClassVar[tuple[str, ...]] = ("tags",)
    gold: ClassVar[tuple[str, ...]] = ("tags",)
    suffix: ClassVar[str] = "conll"

    tags: tuple[str, ...]
    metrics: tuple[str, ...] = ("f1",)
    scheme: Scheme | None = None
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        check_metrics(self.metrics, METRICS)
        check_names(self.tags, "tags")
        if self.scheme not in (None, *get_args(Scheme)):
            raise UserError(
                f'scheme = "{self.scheme}": must be {", ".join(get_args(Scheme))}, or left out'
            )

    @classmethod
    def read(
        cls, source: Source, asked: Asked, *, settings: Mapping[str, Setting], counts: Counts
    ) -> list[Tagged]:
        """CoNLL's columns, or rows with lists."""
        return tagged(source, asked)

    @classmethod
    def example(cls, given: Any, name: str) -> Tagged:
        """A sentence, or its words."""
        return Tagged(name, tuple(given.split() if isinstance(given, str) else given))

    @classmethod
    def rows(cls, text: str) -> list[list[str]]:
        """A sentence a line, in which a tab is a space."""
        return [[" ".join(row)] for row in super().rows(text)]

    @classmethod
    def labels_of(cls, examples: Sequence[Tagged]) -> tuple[str, ...]:
        """Every tag."""
        return in_order(tag for example in examples for tag in example.tags or ())

    @classmethod
    def derive(cls, examples: Sequence[Tagged], *, labels: tuple[str, ...]) -> dict[str, Setting]:
        """The tags; accuracy is the metric of those that name no entities."""
        plain = any(not is_entity(tag) for tag in labels)
        return {"tags": labels, **({"metrics": ("accuracy",)} if plain else {})}

    @classmethod
    def notes(cls, settings: Mapping[str, Setting]) -> tuple[str, ...]:
        """That accuracy is."""
        tags = settings["tags"]
        if "metrics" not in settings or not isinstance(tags, tuple):
            return ()
        odd = next(tag for tag in tags if not is_entity(tag))
        return (f"tags such as {odd} name no entities: accuracy is what counts",)

    @classmethod
    def stand_in(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Two tags."""
        return {"tags": ["O", "B-LOC"]}

    def tokenize(
        self, examples: Sequence[Tagged], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """A group a block, and a slot for each word that has a token there."""
        if self._entities and any(example.tags for example in examples):
            entities.spans(self.tags, self.scheme)  # refuses tags that cannot be scored so
        pieces = reader.words([example.words for example in examples])
        room = reader.length - reader.marks(1)
        blocks: list[_Block] = []
        counts = Counts()
        for number, example in enumerate(examples):
            labels = self._labels(example)
            broken = f"sentences whose tags break {self.scheme}"
            counts.add(broken, example.id, int(self._broken(example)))
            parts = _parts(pieces, number, room)
            counts.add("sentences split to fit", example.id, int(len(parts) > 1))
            for part in parts:
                kept = slice(part.start, min(part.stop, part.start + room))
                counts.add("words cut to fit", example.id, int(kept != part))
                blocks.append(_block(pieces, kept, reader, labels=labels, owner=number))
        columns = {
            "at": _joined([block.at for block in blocks]),
            "labels": _joined([block.labels for block in blocks]),
        }
        return stacked(
            [block.row for block in blocks],
            Targets(offsets([len(block.at) for block in blocks]), columns),
            owners=np.array([block.owner for block in blocks], dtype=np.int64),
            kept={"words": _joined([block.words for block in blocks])},
            counts=counts,
        )

    def build(self, width: int) -> TagHead:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.tags import TagHead

        return TagHead(width, len(self.tags), dropout=self.dropout)

    def parameters(self, width: int) -> dict[str, int]:
        """Parameters of the head, by part."""
        return {"classifier": (width + 1) * len(self.tags)}

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Tagged]
    ) -> list[Tags]:
        """A tag for each word; one that has no token is outside of everything."""
        tags = [[OUTSIDE] * len(example.words) for example in examples]
        sure = [[0.0] * len(example.words) for example in examples]
        slots = tokenized.targets.starts
        for block, (rows, owner) in enumerate(zip(outputs, tokenized.owners.tolist(), strict=True)):
            mine = slice(int(slots[block]), int(slots[block + 1]))
            if mine.start == mine.stop:
                continue
            at = tokenized.starts[block] + tokenized.targets.columns["at"][mine]
            probabilities = likelihoods(rows)
            best, likely = probabilities.argmax(axis=1).tolist(), probabilities.max(axis=1)
            words = tokenized.kept["words"][at].tolist()
            for word, tag, probability in zip(words, best, likely.tolist(), strict=True):
                tags[owner][word], sure[owner][word] = self.tags[tag], probability
        return [Tags(tuple(a), tuple(b)) for a, b in zip(tags, sure, strict=True)]

    def score(self, predictions: Sequence[Tags], examples: Sequence[Tagged]) -> dict[str, float]:
        """The metrics over the sentences whose tags are known."""
        known = [
            (example.tags, prediction.tags)
            for prediction, example in zip(predictions, examples, strict=True)
            if example.tags is not None
        ]
        check_known(known)
        gold, predicted = [pair[0] for pair in known], [pair[1] for pair in known]
        return {name: self._measure(name, gold, predicted) for name in self.metrics}

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
            "".join(f"{word}\t{tag}\n" for word, tag in zip(one.words, said.tags, strict=True))
            for one, said in zip(examples, predictions, strict=True)
        ]
        return {"": "".join(f"{sentence}\n" for sentence in sentences)}

    @classmethod
    def texts(cls, example: Tagged) -> list[str]:
        """The sentence."""
        return [" ".join(example.words)]

    def _measure(
        self, name: str, gold: list[tuple[str, ...]], predicted: list[tuple[str, ...]]
    ) -> float:
        if name == "accuracy":
            return classes.accuracy(
                [tag for tags in gold for tag in tags], [tag for tags in predicted for tag in tags]
            )
        return entities.scores(gold, predicted, scheme=self.scheme)[name]

    @property
    def _entities(self) -> bool:
        """Whether a metric is of entities."""
        return self.metrics != ("accuracy",)

    def _broken(self, example: Tagged) -> bool:
        """Whether the tags of a sentence break the scheme that they are scored by."""
        if self.scheme is None or not self._entities:
            return False
        return illegal(example.tags or (), self.scheme) is not None

    def _labels(self, example: Tagged) -> Ints:
        """[words] the numbers of an example's tags."""
        if example.tags is None:
            return np.full(len(example.words), Targets.IGNORED)
        if len(example.tags) != len(example.words):
            raise UserError(
                f"example {example.id} has {len(example.words)} words and {len(example.tags)} tags:"
                " give one for each word"
            )
        for tag in example.tags:
            if tag not in self.tags:
                raise UserError(
                    f"example {example.id}: its tag {tag!r} is none of {', '.join(self.tags)};"
                    " fix it, or name it among the tags"
                )
        return np.array([self.tags.index(tag) for tag in example.tags], dtype=np.int64)


def _parts(pieces: Pieces, number: int, room: int) -> list[slice]:
    """A sentence's tokens in runs that fit, cut between words; a word that does not is a run."""
    whole = pieces.text(number)
    begins = [*(np.flatnonzero(pieces.begins[whole]) + whole.start).tolist(), whole.stop]
    parts, first = [], whole.start
    for begin, end in pairwise(begins):
        if end - first > room and begin > first:
            parts.append(slice(first, begin))
            first = begin
    return [*parts, slice(first, whole.stop)]


def _block(pieces: Pieces, kept: slice, reader: Reader, *, labels: Ints, owner: int) -> _Block:
    """Some tokens of a sentence as a block."""
    row = reader.lay(pieces.part(kept))
    begins = np.flatnonzero(pieces.begins[kept])
    numbers = pieces.words[kept]
    words = np.zeros(len(row.columns["ids"]), dtype=np.int64)
    words[row.first] = numbers
    return _Block(row, row.first.start + begins, labels[numbers[begins]], words, owner)


def _joined(parts: Sequence[Array]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])
