"""Tasks as probes see them: rows of one or two excerpts, each with an answer.

Examples, labels and metrics are those of fine-tuning. A sentence is one row, a pair a row of two
excerpts, a tagged sentence a row for each word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clozelab.contracts import Ints
from clozelab.errors import UserError
from clozelab.files import sha256
from clozelab.finetuning.examples import Class, Number, Sentences, Tagged, Tags
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.files.sentences import contrasted_words, gold_beside
from clozelab.finetuning.files.splits import TaskSplits, found_in
from clozelab.finetuning.kinds import TaskKind
from clozelab.finetuning.request import Data
from clozelab.keys import mix, root
from clozelab.nearest import remedy
from clozelab.scoring.linear import Doubles

_WORDS_PER_ROW = 4  # count as one row of the training set


class Excerpt(NamedTuple):
    """A text, or a span of its characters."""

    text: str
    span: tuple[int, int] | None = None


class WordInContext(NamedTuple):
    """Two sentences and a word of each: does it mean the same in both?"""

    id: str
    first: str
    second: str
    label: str
    spans: tuple[tuple[int, int], tuple[int, int]]  # characters of the word


def _words_in_context(path: Path, split: str) -> list[WordInContext]:
    """The examples of fine-tuning, with the characters of the words."""
    return [
        WordInContext(
            str(number),
            pair.first,
            pair.second,
            pair.label,
            (_word_span(pair.first, pair.places[0]), _word_span(pair.second, pair.places[1])),
        )
        for number, pair in enumerate(contrasted_words(path))
    ]


def _word_span(sentence: str, number: int) -> tuple[int, int]:
    """The span of a word in a sentence of words separated by single spaces."""
    words = sentence.split(" ")
    first = sum(len(word) + 1 for word in words[:number])
    return first, first + len(words[number])


WIC = replace(NAMED["wic"], read=_words_in_context)
# Tasks whose score is the correlation of cosines with human judgements, without any fit.
COSINE = {
    **{f"sts{year}": (f"sts{year}", "test") for year in range(12, 17)},
    "stsb-cosine": ("stsb", "dev"),
    "sick-cosine": ("sickr", "test"),
}
GROUPS = {"sts": tuple(COSINE)}
KINDS = ("classify", "regress", "tag")  # of tasks that can be probed


class ProbeRows(NamedTuple):
    """Rows of some examples."""

    excerpts: list[tuple[Excerpt, ...]]  # of each row, all rows of the same size
    targets: Doubles  # [n, 1] numbers, or [n, classes] with 1 at the class
    groups: Ints  # [n] which example each row is of
    examples: list[Any]

    def all(self) -> list[Excerpt]:
        """Every excerpt."""
        return [excerpt for row in self.excerpts for excerpt in row]


@dataclass(frozen=True)
class ProbeTask:
    """A task to probe: where its examples are, and which of them are scored."""

    name: str
    data: Data
    split: str | None = None  # to score on; None: dev
    _training: dict[int, ProbeRows] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def named(cls, word: str, *, root: str | None = None, split: str | None = None) -> ProbeTask:
        """The task of a name."""
        task, usual = COSINE.get(word, (word, None))
        return cls(word, Data(task, root=root), split or usual)

    @property
    def by_cosine(self) -> bool:
        """Whether nothing is fitted."""
        return self.name in COSINE

    @cached_property
    def files(self) -> TaskSplits:
        """The files of the task, which exist."""
        if self.name == WIC.name:
            return found_in(WIC, self.data.root)
        return self.data.splits()

    def check(self) -> None:
        """Refuse a task that is missing or cannot be probed, before a model is opened."""
        if self.name in KINDS and not self.data.dev:
            raise UserError(f"{self.name}: needs files; name them with --train FILE and --dev FILE")
        if self.name == self.data.task and self.name not in known() and not self.data.dev:
            raise UserError(f"{self.name}: is not a task to probe; {remedy(self.name, known())}")
        if self.files.kind not in KINDS:
            raise UserError(
                f"{self.name}: is a {self.files.kind} task; probes need the kinds"
                f" {', '.join(KINDS)}"
            )
        for split in self._splits_read:
            if split not in self.files.splits:
                has = ", ".join(self.files.splits)
                raise UserError(f"{self.name}: has no {split} set here, only {has}")

    @property
    def scored(self) -> str:
        """The split that is scored."""
        return self.split or "dev"

    @property
    def _splits_read(self) -> tuple[str, ...]:
        return (self.scored,) if self.by_cosine else (self.scored, "train")

    @cached_property
    def kind(self) -> TaskKind:
        """The kind of task, with the metrics to report."""
        part: Any = self.files.part
        kind: TaskKind = part(**self.files.settings)
        return replace(kind, metrics=("spearman",)) if self.by_cosine else kind  # type: ignore[type-var]

    def digests(self) -> dict[str, str]:
        """The sha256 of each file that is read."""
        paths = {self.files.splits[split].source for split in self._splits_read}
        files = [path for path in paths if isinstance(path, Path)]
        files += [gold for path in files for gold in gold_beside(path)]
        return {str(path): sha256(path) for path in sorted(files)}

    @cached_property
    def scored_rows(self) -> ProbeRows:
        """The rows that are scored."""
        return self._rows(self.files.read(self.scored), place=self.scored)

    def excerpts(self, most: int) -> set[Excerpt]:
        """All excerpts to encode, with at most `most` training rows."""
        training = [] if self.by_cosine else self.training_rows(most).all()
        return {*training, *self.scored_rows.all()}

    def training_rows(self, most: int) -> ProbeRows:
        """At most `most` rows to fit a probe on, four times as many for words; 0 for all.

        A sample depends only on the numbers of the examples.
        """
        if most not in self._training:
            examples = self.files.read("train")
            order = np.argsort(mix(root(0, "probe"), np.arange(len(examples))), kind="stable")
            sizes = np.cumsum([len(_excerpts(examples[number])) for number in order])
            rows = most * _WORDS_PER_ROW if self.kind.name == "tag" else most
            fit = int(np.searchsorted(sizes, rows, side="right")) if most else len(examples)
            chosen = [examples[number] for number in np.sort(order[: max(fit, 2)])]
            self._training[most] = self._rows(chosen, place="train")
        return self._training[most]

    def predictions(self, rows: ProbeRows, outputs: Doubles) -> list[Any]:
        """The predictions of the task's kind from a probe's outputs, one per example."""
        if self.kind.name == "regress":
            return [Number(float(value)) for value in outputs[:, 0]]
        names = self.kind.label_names
        best = [names[number] for number in outputs.argmax(axis=1)]
        if self.kind.name == "classify":
            return [Class(name, {}) for name in best]
        cuts = np.searchsorted(rows.groups, np.arange(len(rows.examples) + 1)).tolist()
        return [
            Tags(tuple(best[first:stop]), (0.0,) * (stop - first)) for first, stop in pairwise(cuts)
        ]

    def _rows(self, examples: Sequence[Any], *, place: str) -> ProbeRows:
        labelled = [(example, _answers(example)) for example in examples]
        kept = [(example, answers) for example, answers in labelled if answers is not None]
        if not kept:
            raise UserError(f"{self.name}: no example of its {place} set has a label to score")
        excerpts = [_excerpts(example) for example, _ in kept]
        answers = [answer for _, each in kept for answer in each]
        groups = np.repeat(np.arange(len(kept)), [len(each) for each in excerpts])
        rows = [row for each in excerpts for row in each]
        return ProbeRows(rows, self._targets(answers), groups, [example for example, _ in kept])

    def _targets(self, answers: list[Any]) -> Doubles:
        if self.kind.name == "regress":
            return np.array(answers, dtype=np.float64)[:, None]
        names = self.kind.label_names
        number = {name: at for at, name in enumerate(names)}
        targets = np.zeros((len(answers), len(names)))
        try:
            targets[np.arange(len(answers)), [number[answer] for answer in answers]] = 1.0
        except KeyError as error:
            raise UserError(
                f"{self.name}: the label {error.args[0]!r} is none of {', '.join(names)}; fix it"
            ) from None
        return targets


def known() -> dict[str, str]:
    """Every task that can be probed, and what it is."""
    named = {
        name: task.title
        for name, task in NAMED.items()
        if task.kind in KINDS and ("train" in task.splits or name in COSINE)
    }
    cosine = {
        name: f"{NAMED[task].title}, by the cosine of their vectors"
        for name, (task, _) in COSINE.items()
    }
    groups = {name: f"all of {', '.join(tasks)}" for name, tasks in GROUPS.items()}
    return {**named, **cosine, **groups}


def tasks_of(
    words: Sequence[str], *, root: str | None = None, split: str | None = None
) -> list[ProbeTask]:
    """The tasks of these names and groups, without duplicates."""
    single = [name for word in words for name in GROUPS.get(word, (word,))]
    return [ProbeTask.named(name, root=root, split=split) for name in dict.fromkeys(single)]


def _excerpts(example: Any) -> list[tuple[Excerpt, ...]]:
    """The excerpts of each row of an example."""
    if isinstance(example, Tagged):
        text, first = " ".join(example.words), 0
        rows: list[tuple[Excerpt, ...]] = []
        for word in example.words:
            rows.append((Excerpt(text, (first, first + len(word))),))
            first += len(word) + 1
        return rows
    if isinstance(example, WordInContext):
        first_span, second_span = example.spans
        return [(Excerpt(example.first, first_span), Excerpt(example.second, second_span))]
    assert isinstance(example, Sentences)
    texts = (example.first,) if example.second is None else (example.first, example.second)
    return [tuple(Excerpt(text) for text in texts)]


def _answers(example: Any) -> Sequence[Any] | None:
    """The answer of each row of an example; None if it has no labels."""
    if isinstance(example, Tagged):
        return example.tags
    return None if example.label is None else [example.label]
