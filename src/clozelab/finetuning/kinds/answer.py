"""The answer to a question, as a span of a passage (BERT §4.2, §4.3; XLNet's code)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from clozelab.contracts import Reader
from clozelab.finetuning.examples import Floats, Question, Span, TokenizedExamples
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.questions import questions
from clozelab.finetuning.kinds import decoding, windows
from clozelab.finetuning.kinds.kind import TaskKind, Texts, strings
from clozelab.finetuning.metrics import answers, chinese
from clozelab.finetuning.metrics.chinese import CHINESE
from clozelab.ranges import BelowOne, PositiveInt


@dataclass(frozen=True)
class Answer(TaskKind):
    """Questions with an answer, or with `impossible` perhaps without one (SQuAD 2.0).

    A question takes at most half a block; in short blocks the stride of windows is shorter than
    `stride`.
    """

    name: ClassVar[str] = "answer"
    from_examples: ClassVar[tuple[str, ...]] = ("threshold",)
    from_tuning: ClassVar[Mapping[str, str]] = {"dropout": "head_dropout", "head": "head"}
    scoring: ClassVar[tuple[str, ...]] = ("metrics", "language", "impossible")
    outputs: ClassVar[tuple[str, ...]] = ("head",)
    gold: ClassVar[tuple[str, ...]] = ("answers",)
    inputs: ClassVar[Texts] = Texts(2, 2, "a question and its passage")
    windows: ClassVar[bool] = True
    answers_questions: ClassVar[bool] = True
    suffix: ClassVar[str] = "json"
    beside: ClassVar[tuple[str, ...]] = ("null_odds.json",)  # SQuAD 2.0's second file
    known_metrics: ClassVar[tuple[str, ...]] = ("exact", "f1")

    impossible: bool = False
    head: Literal["span", "beam"] = "span"
    question_limit: PositiveInt = 64  # the first tokens of a question that are kept
    stride: PositiveInt = 128  # tokens of the passage from one window to the next
    longest: PositiveInt = 30  # tokens of an answer (XLNet: 64)
    best: PositiveInt = 20  # starts and ends that are considered
    beams: PositiveInt = 5  # starts, and ends of each, of the beam head
    threshold: float = 0.0  # an answer is withdrawn if the null score is above it
    language: Literal["english", "chinese"] = "english"
    metrics: tuple[str, ...] = ("exact", "f1")
    # A dense layer, gelu and a norm before the scores of a span (ModernBERT).
    transform: bool = False
    dropout: BelowOne = 0.1  # on the vectors; with beams only on the answerability

    read = staticmethod(questions)

    @classmethod
    def example(cls, value: Any, name: str) -> Question:
        """A question and its passage."""
        question, passage = strings(value)
        return Question(name, question, passage)

    @classmethod
    def derive(cls, examples: Sequence[Question], *, labels: tuple[str, ...]) -> dict[str, Setting]:
        """Whether a question has no answer, and whether passages are in Chinese."""
        impossible = any(example.answers == () for example in examples)
        text = "".join(example.passage for example in examples[:100])
        # Without spaces between words, scores are by characters.
        is_chinese = len(re.findall(f"[{chinese.HAN}]", text)) * 3 > len(text)
        return {"impossible": impossible, "language": "chinese" if is_chinese else "english"}

    def suited(self, examples: Sequence[Question], *, imported: bool = False) -> Answer:
        """The kind with questions without answer if the examples have some, for an imported model.

        The beam head's weights tell it.
        """
        if not imported or self.head == "beam":
            return self
        return replace(self, impossible=any(example.answers == () for example in examples))

    def tokenize(
        self, examples: Sequence[Question], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        """Examples as windows, a group each."""
        return windows.tokenize(self, examples, reader)

    def build(self, width: int) -> Any:
        """The head with fresh weights."""
        from clozelab.finetuning.heads.answer import BeamHead, SpanHead

        if self.head == "span":
            return SpanHead(width, dropout=self.dropout, transform=self.transform)
        return BeamHead(width, beams=self.beams, impossible=self.impossible, dropout=self.dropout)

    def decode(
        self, tokenized: TokenizedExamples, outputs: Sequence[Floats], examples: Sequence[Question]
    ) -> list[Span]:
        """The best answer to each question over its windows."""
        by_question: list[list[decoding.WindowScores]] = [[] for _ in examples]
        for window, owner in enumerate(tokenized.owners.tolist()):
            tokens = decoding.window_tokens(tokenized, window)
            by_question[owner].append(self._scores(outputs[window], tokens))
        return [self._best_answer(*pair) for pair in zip(by_question, examples, strict=True)]

    def score(self, predictions: Sequence[Span], examples: Sequence[Question]) -> dict[str, float]:
        """Exact match and F1; with `impossible` also for questions with and without answers."""
        gold, spans = self._known_answers(predictions, examples)
        texts = [span.text for span in spans]
        if self.impossible:
            return answers.squad2(gold, texts, self._rules)
        return chinese.cmrc(gold, texts) if self._rules is CHINESE else answers.squad1(gold, texts)

    def constant(self, examples: Sequence[Question]) -> dict[str, float]:
        """The scores of answering no question."""
        known = self.labelled(examples)
        return self.score([Span("", 0.0, None, ())] * len(known), known) if known else {}

    def selects(self, scores: Mapping[str, float]) -> float:
        """F1."""
        return scores["f1"]

    def calibrated(self, predictions: Sequence[Span], examples: Sequence[Question]) -> Answer:
        """The kind with the threshold that gives these predictions the best F1."""
        if not self.impossible:
            return self
        gold, spans = self._known_answers(predictions, examples)
        texts = [span.best[0].text if span.best else "" for span in spans]
        nulls = [span.null or 0.0 for span in spans]
        return replace(self, threshold=answers.best_threshold(gold, texts, nulls, self._rules))

    def decided(self, predictions: list[Span]) -> list[Span]:
        """The predictions with the threshold of this kind applied."""
        return [span._replace(text=self._answer_text(span)) for span in predictions]

    @classmethod
    def fields(cls, example: Question, prediction: Span) -> list[str]:
        """The question's id and the answer."""
        return [example.id, prediction.text]

    @classmethod
    def submission(
        cls, examples: Sequence[Question], predictions: Sequence[Span], **_: object
    ) -> dict[str, str]:
        """SQuAD's {id: text}, and the null scores if questions may have no answer."""
        spans = {example.id: span for example, span in zip(examples, predictions, strict=True)}
        texts = {name: span.text for name, span in spans.items()}
        nulls = {name: span.null for name, span in spans.items() if span.null is not None}
        files = {"": json.dumps(texts, ensure_ascii=False)}
        return files | ({cls.beside[0]: json.dumps(nulls)} if nulls else {})

    @property
    def _rules(self) -> answers.Rules:
        return CHINESE if self.language == "chinese" else answers.ENGLISH

    def _known_answers(
        self, predictions: Sequence[Span], examples: Sequence[Question]
    ) -> tuple[list[list[str]], list[Span]]:
        """The texts of the known answers, and the predictions for their questions."""
        known = self.known(predictions, examples)
        return [[answer.text for answer in gold] for gold, _ in known], [span for _, span in known]

    def _answer_text(self, span: Span) -> str:
        """The text of the best answer, empty if the null score is above the threshold."""
        withdrawn = span.null is not None and span.null > self.threshold
        return span.best[0].text if span.best and not withdrawn else ""

    def _scores(self, output: Floats, tokens: decoding.WindowTokens) -> decoding.WindowScores:
        """The scores of one window."""
        if self.head == "span":
            return decoding.read_scores(output, tokens, best=self.best, longest=self.longest)
        return decoding.read_beams(output[0], tokens, beams=self.beams, longest=self.longest)

    def _best_answer(self, windows: list[decoding.WindowScores], example: Question) -> Span:
        """The answer from all windows; the null score is the lowest of the windows.

        BERT subtracts the best answer's score from it; XLNet uses its answerability as it is.
        """
        best, score = decoding.candidates(windows, example.passage, best=self.best)
        null = None
        if self.impossible:
            null = min(window.null for window in windows)
            null = null - score if self.head == "span" else null
        span = Span("", score, null, best)
        return span._replace(text=self._answer_text(span))
