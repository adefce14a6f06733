"""The interface of a kind of task, as fine-tuning, predicting and studies use it.

A kind is a frozen dataclass that inherits from `TaskKind`. Its fields are stored in task.toml:
numbers, words and tuples of them. It must have `read`, `example`, `tokenize`, `build`, `decode`,
and `measure` or `score`; the rest has a default that suits most kinds. `KINDS` names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple, Self

from clozelab.contracts import Counts, Reader
from clozelab.errors import UserError
from clozelab.finetuning.examples import Floats, TokenizedExamples
from clozelab.finetuning.files.columns import ReadOptions, Source
from clozelab.finetuning.files.named import Setting
from clozelab.ranges import BelowOne, Checked

CUT = "texts truncated to the maximum length"

Settings = Mapping[str, Setting]


class Texts(NamedTuple):
    """How many texts make an example on the command line, and what they are."""

    least: int
    most: int
    words: str


class TaskKind(Checked, ABC):
    """A kind of task. An example is a NamedTuple with an `id`; so is a prediction, without one."""

    # Its name.
    name: ClassVar[str]
    # Other words for it with a user's own files, and the settings of each.
    words: ClassVar[Mapping[str, Settings]] = {}

    # The sources of its fields.
    label_field: ClassVar[str | None] = None  # the names of its labels
    class_fields: ClassVar[tuple[str, ...]] = ()  # other fields that name a label
    from_examples: ClassVar[tuple[str, ...]] = ()  # fields that the examples decide, not a protocol
    from_tuning: ClassVar[Mapping[str, str]] = {"dropout": "head_dropout"}  # ← of the fine-tuning
    scoring: ClassVar[tuple[str, ...]] = ("metrics",)  # how predictions are scored
    outputs: ClassVar[tuple[str, ...]] = ()  # fields that must be equal in a teacher

    # Its properties.
    inputs: ClassVar[Texts] = Texts(1, 1, "one text")  # the texts of an example
    gold: ClassVar[tuple[str, ...]] = ("label",)  # fields of an example that hold its label
    reads_folders: ClassVar[bool] = False  # whether a folder may hold its examples
    windows: ClassVar[bool] = False  # whether a long text is read in several blocks, not truncated
    one_graph: ClassVar[bool] = True  # whether its head compiles as one graph
    distillable: ClassVar[bool] = True  # whether a student can learn from the logits of a teacher
    answers_questions: ClassVar[bool] = False  # whether an example is a question and its passage
    suffix: ClassVar[str] = "tsv"  # of the file of predictions that benchmarks take
    beside: ClassVar[tuple[str, ...]] = ()  # other files that go with it

    # The metrics to compute, a field of every kind, and those it knows (empty: any).
    metrics: tuple[str, ...]
    known_metrics: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.known_metrics and (not self.metrics or {*self.metrics} - {*self.known_metrics}):
            known = ", ".join(self.known_metrics)
            raise UserError(f"metrics = {list(self.metrics)}: give some of {known}")
        names = self.label_names
        if self.label_field and (len({*names}) != len(names) or len(names) < 2):
            raise UserError(f"{self.label_field} = {list(names)}: give at least two, each once")

    # From files and texts to examples.

    @classmethod
    @abstractmethod
    def read(
        cls, source: Source, options: ReadOptions, *, settings: Settings, counts: Counts
    ) -> list[Any]:
        """The examples of a file; what was skipped or fixed is added to `counts`."""

    @classmethod
    @abstractmethod
    def example(cls, value: Any, name: str) -> Any:
        """An input from Python as an unlabelled example."""

    @classmethod
    def unlabelled(cls, example: Any) -> Any:
        """An example without its labels."""
        return example._replace(**dict.fromkeys(cls.gold))

    def takes(self, *, imported: bool = False) -> Texts:
        """The texts of an example; an `imported` model may not say whether they are pairs."""
        return self.inputs

    @classmethod
    def rows(cls, lines: Sequence[str]) -> list[list[str]]:
        """The texts of each example of a text file: an example a line, tabs between its texts."""
        return [line.split("\t") for line in lines]

    @classmethod
    def joined(cls, texts: Sequence[str]) -> Any:
        """The texts of a command or a line as the argument of `example`."""
        return texts[0] if len(texts) == 1 else tuple(texts)

    # From examples to settings.

    @classmethod
    def file_settings(cls, source: Source, options: ReadOptions) -> dict[str, Setting]:
        """The settings that the columns of a file imply."""
        return {}

    @classmethod
    def labels_of(cls, examples: Sequence[Any]) -> tuple[str, ...]:
        """Every label of the training examples, for a kind with a `label_field`."""
        gold = (label for example in examples for label in cls.gold_labels(example))
        return in_order(gold) if cls.label_field else ()

    @classmethod
    def gold_labels(cls, example: Any) -> tuple[str, ...]:
        """The labels of an example (the first of `gold`): one, several, or none if not known."""
        label = getattr(example, cls.gold[0])
        if label is None:
            return ()
        return tuple(label) if isinstance(label, list | tuple) else (str(label),)

    @classmethod
    def derive(cls, examples: Sequence[Any], *, labels: tuple[str, ...]) -> dict[str, Setting]:
        """The settings that a user's own examples imply."""
        return {} if cls.label_field is None else {cls.label_field: labels}

    @classmethod
    def notes(cls, settings: Settings) -> tuple[str, ...]:
        """Notes for the user on the derived settings."""
        return ()

    @classmethod
    def stand_in(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Values for fields without a default, to check the settings of a protocol."""
        return {}

    def suited(self, examples: Sequence[Any], *, imported: bool = False) -> Self:
        """The kind adapted to some examples, in settings that do not affect weights."""
        return self

    def word(self, file: Path, options: ReadOptions, *, imported: bool = False) -> str:
        """The word for a task of such a file: `name`, or one of `words`."""
        return self.name

    # From examples to tensors, and back.

    @abstractmethod
    def tokenize(
        self, examples: Sequence[Any], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """Examples as packed blocks with their targets, in numpy.

        The reader knows the tokenizer and the special tokens of the encoder; a kind knows neither.
        """

    @abstractmethod
    def build(self, width: int) -> Any:
        """The initialised head over vectors of that width; only here torch is imported."""

    @abstractmethod
    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Floats], examples: Sequence[Any]
    ) -> list[Any]:
        """A prediction for each example, from the head's rows for each group of blocks."""

    # From predictions to scores.

    @classmethod
    def score_names(cls, metrics: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """The names of the scores that a study may compare, by the `metrics` of the task."""
        usual: tuple[str, ...] = getattr(cls, "metrics", ())
        return usual if metrics is None else metrics

    def score(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """The official scores, in per cent, over the labelled examples."""
        known = self.known(predictions, examples)
        gold, predicted = [label for label, _ in known], [prediction[0] for _, prediction in known]
        return {name: self.measure(name, gold, predicted) for name in self.metrics}

    def known(self, predictions: Sequence[Any], examples: Sequence[Any]) -> list[tuple[Any, Any]]:
        """The known labels (the first of `gold`), each with its prediction."""
        pairs = zip(examples, predictions, strict=True)
        labels = ((getattr(example, self.gold[0]), prediction) for example, prediction in pairs)
        known = [(label, prediction) for label, prediction in labels if label is not None]
        if not known:
            raise UserError(
                "no example has a label, so there is nothing to score; give labelled examples"
            )
        return known

    def labelled(self, examples: Sequence[Any]) -> list[Any]:
        """The examples whose label is known."""
        return [example for example in examples if getattr(example, self.gold[0]) is not None]

    def measure(self, metric: str, gold: list[Any], predicted: list[Any]) -> float:
        """One of the metrics, from labels and the first fields of their predictions."""
        raise NotImplementedError(f"{self.name} has neither measure() nor score()")

    def constant(self, examples: Sequence[Any]) -> dict[str, float]:
        """The scores of a constant answer; empty if there is no such answer."""
        return {}

    def selects(self, scores: Mapping[str, float]) -> float:
        """The number that selects the best model, larger is better: the mean of the metrics."""
        return fmean(scores[name] for name in self.metrics)

    def calibrated(self, predictions: Sequence[Any], examples: Sequence[Any]) -> Self:
        """The kind with settings chosen on the dev set, such as a threshold."""
        return self

    def decided(self, predictions: list[Any]) -> list[Any]:
        """The predictions with these calibrated settings applied."""
        return predictions

    # From predictions to text.

    @classmethod
    def fields(cls, example: Any, prediction: Any) -> list[str]:
        """A line of output: the prediction, then the texts of the example."""
        return [cls.spelled(prediction), *cls.texts(example)]

    @classmethod
    def styled(cls, example: Any, prediction: Any) -> list[tuple[str, str]] | None:
        """The same for a terminal as texts with their styles; None: as `fields`."""
        return None

    @classmethod
    def spelled(cls, prediction: Any) -> str:
        """A prediction in a table of predictions: its first field."""
        return str(prediction[0])

    @classmethod
    def submission(
        cls,
        examples: Sequence[Any],
        predictions: Sequence[Any],
        *,
        spelled: Callable[[Any], str] | None = None,
    ) -> dict[str, str]:
        """The contents of the submission file, as "", and of those `beside` it.

        By default a table of ids and predictions, which a task may spell in its own way.
        """
        spelled = spelled or cls.spelled
        pairs = zip(examples, predictions, strict=True)
        rows = [f"{example.id}\t{spelled(prediction)}\n" for example, prediction in pairs]
        return {"": "index\tprediction\n" + "".join(rows)}

    # For estimates of time, and for exports.

    @classmethod
    def texts(cls, example: Any) -> list[str]:
        """The texts that the encoder reads of an example, one per block."""
        fields = example._asdict().items()
        hidden = {"id", *cls.gold}
        return [" ".join(v for name, v in fields if name not in hidden and isinstance(v, str))]

    @property
    def two_texts(self) -> bool:
        """Whether a block holds two texts, so that an export depends on their separators."""
        return self.takes().least > 1

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits; empty if it has none."""
        return getattr(self, self.label_field) if self.label_field else ()


@dataclass(frozen=True, kw_only=True)
class SummaryKind(TaskKind):
    """A kind whose head reads one vector a block: classify, regress, choose.

    The vector is BERT's (§3.2), that of the first token, through the dense layer of its pooler;
    RoBERTa, DistilBERT, ELECTRA, XLNet and GPT differ by an activation, a dropout or a bias,
    ModernBERT by a transform in place of the dense layer.
    """

    numeric: ClassVar[bool] = False  # whether labels are numbers

    # After the dense layer; none: no such layer.
    summary: Literal["tanh", "relu", "gelu", "none"] = "tanh"
    pool: Literal["mark", "mean"] = "mark"  # the vector of a block
    drop_first: bool = False  # drop out before the dense layer as well as after it
    bias: bool = True
    transform: bool = False  # a dense layer, gelu and a norm before the classifier
    dropout: BelowOne = 0.1

    def build(self, width: int) -> Any:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.summary import SummaryHead

        return SummaryHead(self, width)


def space(reader: Reader, texts: int) -> int:
    """The tokens of a block without special tokens, for one text or two."""
    special = reader.num_special_tokens(texts)
    if reader.length < special + texts:
        what = "a text" if texts == 1 else "two texts"
        raise UserError(
            f"length = {reader.length}: leaves no room for {what} beside {special} special"
            f" tokens; give at least {special + texts}"
        )
    return reader.length - special


def strings(values: Any) -> tuple[str, ...]:
    """A sequence of texts as a tuple; a single string and other values are refused."""
    if isinstance(values, str | Mapping) or not all(isinstance(value, str) for value in values):
        raise TypeError
    return tuple(values)


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in order; whole numbers by size, and "O" first."""
    distinct = set(labels)
    if all(label.removeprefix("-").isdecimal() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))  # 1, then 01
    return tuple(sorted(distinct, key=lambda label: (label != "O", label)))
