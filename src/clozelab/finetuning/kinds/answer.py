"""The answer to a question, as a stretch of a passage (BERT §4.2, §4.3; XLNet's code)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from clozelab.contracts import Counts, Ints, Reader
from clozelab.errors import UserError
from clozelab.finetuning.examples import Floats, Question, Span
from clozelab.finetuning.files.columns import Asked, Source
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.questions import questions
from clozelab.finetuning.kinds import decoding, windows
from clozelab.finetuning.kinds.kind import (
    TaskKind,
    Texts,
    check_dropout,
    check_known,
    check_metrics,
)
from clozelab.finetuning.metrics.chinese import HAN
from clozelab.finetuning.tokenized import TokenizedExamples

if TYPE_CHECKING:
    from clozelab.finetuning.heads.beam import BeamHead
    from clozelab.finetuning.heads.span import SpanHead

METRICS = ("exact", "f1")


@dataclass(frozen=True)
class Answer(TaskKind):
    """Questions to which there is an answer, or where `impossible` there may be none (SQuAD 2.0).

    A question keeps its first `question_limit` tokens, and never more than half a block; windows
    begin every `stride` tokens of the passage, or oftener where blocks are short. An answer has at
    most `longest` tokens (XLNet: 64), of the `best` starts and ends, or of the `beams` starts and
    `beams` ends of each; it is withdrawn where the null score is over `threshold`. `dropout` falls
    on the vectors, or with beams on what judges answerability alone.
    """

    name: ClassVar[str] = "answer"
    from_examples: ClassVar[tuple[str, ...]] = ("threshold",)
    from_tuning: ClassVar[Mapping[str, str]] = {"dropout": "head_dropout", "head": "head"}
    scoring: ClassVar[tuple[str, ...]] = ("metrics", "language", "impossible")
    outputs: ClassVar[tuple[str, ...]] = ("head",)
    gold: ClassVar[tuple[str, ...]] = ("answers",)
    windows: ClassVar[bool] = True
    answers_questions: ClassVar[bool] = True
    suffix: ClassVar[str] = "json"
    beside: ClassVar[tuple[str, ...]] = ("null_odds.json",)  # SQuAD 2.0's second file

    impossible: bool = False
    head: Literal["span", "beam"] = "span"
    question_limit: int = 64
    stride: int = 128
    longest: int = 30
    best: int = 20
    beams: int = 5
    threshold: float = 0.0
    language: Literal["english", "chinese"] = "english"
    metrics: tuple[str, ...] = METRICS
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        check_metrics(self.metrics, METRICS)
        for name in ("question_limit", "stride", "longest", "best", "beams"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.head not in ("span", "beam"):
            raise UserError(f'head = "{self.head}": must be "span" or "beam"')
        if self.language not in ("english", "chinese"):
            raise UserError(f'language = "{self.language}": must be "english" or "chinese"')
        if self.impossible and self.language == "chinese":
            raise UserError(
                "impossible = true: Chinese is scored as CMRC 2018 does it, where every question"
                " has an answer; leave it out"
            )

    @classmethod
    def read(
        cls, source: Source, asked: Asked, *, settings: Mapping[str, Setting], counts: Counts
    ) -> list[Question]:
        """SQuAD's JSON, or a row a question."""
        return questions(source, asked, counts=counts)

    @classmethod
    def example(cls, given: Any, name: str) -> Question:
        """A question and its passage."""
        question, passage = given
        return Question(name, question, passage)

    def takes(self, *, imported: bool = False) -> Texts:
        """Two texts."""
        return Texts(2, 2, "a question and its passage")

    @classmethod
    def derive(cls, examples: Sequence[Question], *, labels: tuple[str, ...]) -> dict[str, Setting]:
        """Whether a question has no answer, and whether passages are in Chinese."""
        impossible = any(example.answers == () for example in examples)
        text = "".join(example.passage for example in examples[:100])
        # Where words have no spaces between them, scores go by characters.
        chinese = not impossible and len(re.findall(f"[{HAN}]", text)) * 3 > len(text)
        return {"impossible": impossible, "language": "chinese" if chinese else "english"}

    def tokenize(
        self, examples: Sequence[Question], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """A group a window."""
        return windows.tokenize(
            examples,
            reader,
            question_limit=self.question_limit,
            stride=self.stride,
            longest=self.longest,
            bounds=self.head == "beam",
        )

    def build(self, width: int) -> SpanHead | BeamHead:
        """The head with fresh weights."""
        if self.head == "span":
            from clozelab.finetuning.heads.span import SpanHead

            return SpanHead(width, dropout=self.dropout)
        from clozelab.finetuning.heads.beam import BeamHead

        return BeamHead(width, beams=self.beams, impossible=self.impossible, dropout=self.dropout)

    def parameters(self, width: int) -> dict[str, int]:
        """Parameters of the head, by part; without `impossible` nothing judges that."""
        if self.head == "span":
            return {"scores": 2 * width + 2}
        dense = 2 * width * width + width
        ends = {"end_dense": dense, "end_norm": 2 * width, "end_scores": width + 1}
        judged = {"class_dense": dense, "class_score": width} if self.impossible else {}
        return {"start": width + 1, **ends, **judged}

    def decode(
        self, tokenized: TokenizedExamples, outputs: Sequence[Floats], examples: Sequence[Question]
    ) -> list[Span]:
        """The best answer to each question over its windows."""
        read: list[list[tuple[decoding.Read, Ints, Ints]]] = [[] for _ in examples]
        for window, owner in enumerate(tokenized.owners.tolist()):
            where = slice(int(tokenized.starts[window]), int(tokenized.starts[window + 1]))
            said = self._read(outputs[window], self._inside(tokenized, window, where))
            begin, end = tokenized.kept["begin"][where], tokenized.kept["end"][where]
            read[owner].append((said, np.asarray(begin, int), np.asarray(end, int)))
        return [self._answer(*pair) for pair in zip(read, examples, strict=True)]

    def score(self, predictions: Sequence[Span], examples: Sequence[Question]) -> dict[str, float]:
        """Exact match and F1; where `impossible` also apart for those with and without answer."""
        from clozelab.finetuning.metrics import answers, chinese

        known, gold = _known(predictions, examples)
        texts = [prediction.text for prediction in known]
        if self.language == "chinese":
            return chinese.cmrc(gold, texts)
        return answers.squad2(gold, texts) if self.impossible else answers.squad1(gold, texts)

    def selects(self, scores: Mapping[str, float]) -> float:
        """F1."""
        return scores["f1"]

    def calibrated(self, predictions: Sequence[Span], examples: Sequence[Question]) -> Answer:
        """The same with the threshold that gives these predictions the best F1."""
        if not self.impossible:
            return self
        from clozelab.finetuning.metrics.answers import best_threshold

        known, gold = _known(predictions, examples)
        texts = [span.best[0].text if span.best else "" for span in known]
        best = best_threshold(gold, texts, [span.null or 0.0 for span in known])
        return replace(self, threshold=best["best_f1_thresh"])

    def decided(self, predictions: list[Span]) -> list[Span]:
        """Predictions with this threshold in place of the one they were made with."""
        return [span._replace(text=self._given(span)) for span in predictions]

    @classmethod
    def fields(cls, example: Question, prediction: Span) -> list[str]:
        """The question's id and the answer."""
        return [example.id, prediction.text]

    @classmethod
    def submission(
        cls, examples: Sequence[Question], predictions: Sequence[Span], **_: object
    ) -> dict[str, str]:
        """SQuAD's {id: text}; where questions may have no answer, also how likely that is."""
        spans = {one.id: span for one, span in zip(examples, predictions, strict=True)}
        texts = {name: span.text for name, span in spans.items()}
        nulls = {name: span.null for name, span in spans.items() if span.null is not None}
        files = {"": json.dumps(texts, ensure_ascii=False)}
        return files | ({cls.beside[0]: json.dumps(nulls)} if nulls else {})

    @classmethod
    def texts(cls, example: Question) -> list[str]:
        """The question and its passage."""
        return [f"{example.question} {example.passage}"]

    @property
    def two_texts(self) -> bool:
        """Always."""
        return True

    def _given(self, span: Span) -> str:
        """The answer that is given: the best, unless the null score is over the threshold."""
        withdrawn = span.null is not None and span.null > self.threshold
        return span.best[0].text if span.best and not withdrawn else ""

    def _inside(self, tokenized: TokenizedExamples, window: int, where: slice) -> decoding.Inside:
        slot = int(tokenized.targets.starts[window])
        return decoding.Inside(
            tokenized.kept["passage"][where].astype(bool),
            tokenized.kept["most"][where].astype(bool),
            int(tokenized.targets.columns["at"][slot]),
        )

    def _read(self, output: Floats, inside: decoding.Inside) -> decoding.Read:
        """What one window says."""
        if self.head == "span":
            return decoding.read_scores(output, inside, best=self.best, longest=self.longest)
        return decoding.read_beams(output[0], inside, beams=self.beams, longest=self.longest)

    def _answer(self, read: list[tuple[decoding.Read, Ints, Ints]], example: Question) -> Span:
        """The answer from all windows; the null score is that of the one surest of an answer.

        BERT compares it with the best answer's score; XLNet's answerability stands for itself.
        """
        best, score = decoding.candidates(read, example.passage, best=self.best)
        null = None
        if self.impossible:
            null = min(said.null for said, _, _ in read)
            null = null - score if self.head == "span" else null
        span = Span("", score, null, best)
        return span._replace(text=self._given(span))


def _known(
    predictions: Sequence[Span], examples: Sequence[Question]
) -> tuple[list[Span], list[list[str]]]:
    """The predictions for questions whose answers are known, and the texts of those."""
    known = [
        (prediction, [answer.text for answer in example.answers])
        for prediction, example in zip(predictions, examples, strict=True)
        if example.answers is not None
    ]
    check_known(known)
    return [prediction for prediction, _ in known], [texts for _, texts in known]
