"""Questions about passages as blocks: a window slides over each passage (BERT's SQuAD code)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from clozelab.contracts import Array, Bools, Counts, Ints, Pieces, Reader, Row, Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Question, TokenizedExamples, stacked
from clozelab.packed import offsets, ranges

Cuts = tuple[tuple[int, int], ...]  # where windows over a passage begin and end


class Window(NamedTuple):
    """A stretch of a passage and the question about it, not yet tokenized."""

    owner: int  # which example
    question: slice  # over the tokens of all questions
    passage: slice  # over the tokens of all passages
    most: Bools  # which of those have more context here than in any other window
    label: int  # 1: the answer is inside, 0: it is not, IGNORED: nobody knows
    answer: tuple[int, int]  # its first and last token, counted in the window


def tokenize(
    examples: Sequence[Question],
    reader: Reader,
    *,
    question_limit: int,
    stride: int,
    longest: int,
    bounds: bool,
) -> TokenizedExamples:
    """Windows over every example's passage, with the first answer listed as what is right.

    One slot a window; with `bounds` a second one says where its passage lies.

    Differs from BERT's code: in short blocks windows come closer than `stride`, so that an answer
    of `longest` tokens is whole in one of them, or one of half a window where that is less.
    """
    counts = Counts()
    distinct = list(dict.fromkeys(example.passage for example in examples))
    numbers = {text: number for number, text in enumerate(distinct)}
    questions = reader.pieces([example.question for example in examples])
    passages = reader.pieces(distinct)
    limit = min(question_limit, _half(reader))
    windows: list[Window] = []
    for owner, example in enumerate(examples):
        question = questions.text(owner)
        if question.stop - question.start > limit:
            counts.add("questions cut", example.id)
            question = slice(question.start, question.start + limit)
        passage = passages.text(numbers[example.passage])
        room = reader.length - reader.marks(2) - (question.stop - question.start)
        step = min(stride, max(room - longest, (room + 1) // 2))
        cuts = windows_over(passage.stop - passage.start, room, step)
        most = most_context(cuts)
        gold = _gold(example, passages.spans[passage], cuts, counts)
        for number, (begin, end) in enumerate(cuts):
            inside = slice(passage.start + begin, passage.start + end)
            best = most[begin:end] == number
            windows.append(Window(owner, question, inside, best, *gold[number]))
    rows = [_row(window, questions, passages, reader) for window in windows]
    texts = [row.first if reader.passage_first else row.second for row in rows]
    return stacked(
        rows,
        _targets(windows, rows, texts, bounds=bounds),
        owners=np.array([window.owner for window in windows], dtype=np.int64),
        token_facts=_token_facts(windows, rows, texts, passages),
        counts=counts,
    )


@lru_cache(maxsize=1 << 16)
def windows_over(tokens: int, room: int, stride: int) -> Cuts:
    """Where windows of at most `room` begin and end: at 0, stride, … until the end is covered."""
    cuts = [(0, min(room, tokens))]
    while cuts[-1][1] < tokens:
        begin = cuts[-1][0] + min(stride, room)
        cuts.append((begin, min(begin + room, tokens)))
    return tuple(cuts)


@lru_cache(maxsize=1 << 12)
def most_context(windows: Cuts) -> Ints:
    """The window in which each token has most to its shorter side; long ones, then early ones win.

    BERT's score min(left, right) + 0.01 · length, a hundredfold so that ties are exact.
    """
    place = np.arange(windows[-1][1])
    scores = [
        np.where(
            (place >= begin) & (place < end),
            100 * np.minimum(place - begin, end - 1 - place) + end - begin,
            -1,
        )
        for begin, end in windows
    ]
    return np.asarray(np.argmax(scores, axis=0))


def located(example: Question, spans: Ints) -> tuple[int, int] | None:
    """The first and the last token that share a character with the first answer listed."""
    assert example.answers
    answer = example.answers[0]
    if not example.passage.startswith(answer.text, answer.start):
        return None
    first = int(np.searchsorted(spans[:, 1], answer.start, side="right"))
    last = int(np.searchsorted(spans[:, 0], answer.start + len(answer.text), side="left")) - 1
    return (first, last) if first <= last else None


def _half(reader: Reader) -> int:
    """The most that a question may take of a block, so that a passage has room beside it."""
    half = (reader.length - reader.marks(2)) // 2
    if half < 1:
        raise UserError(
            f"length = {reader.length}: leaves no room for a question and a passage;"
            " use an encoder of longer blocks"
        )
    return half


def _gold(
    example: Question, spans: Ints, cuts: Cuts, counts: Counts
) -> list[tuple[int, tuple[int, int]]]:
    """For each window its label, and where the answer is if it is whole inside."""
    nowhere = (0, 0)
    if not example.answers:
        label = Targets.IGNORED if example.answers is None else 0
        return [(label, nowhere)] * len(cuts)
    answer = located(example, spans)
    if answer is None:
        counts.add("answers that no token of the passage shows", example.id)
        return [(Targets.IGNORED, nowhere)] * len(cuts)
    first, last = answer
    gold = [
        (1, (first - begin, last - begin)) if begin <= first and last < end else (0, nowhere)
        for begin, end in cuts
    ]
    if not any(label for label, _ in gold):
        counts.add("answers that no window holds whole", example.id)
    return gold


def _row(window: Window, questions: Pieces, passages: Pieces, reader: Reader) -> Row:
    question, passage = questions.part(window.question), passages.part(window.passage)
    texts = (passage, question) if reader.passage_first else (question, passage)
    return reader.lay(*texts)


def _targets(
    windows: Sequence[Window], rows: Sequence[Row], texts: Sequence[slice], *, bounds: bool
) -> Targets:
    """Where the answer is in each window, and the mark where it is not.

    With `bounds`, then where the passage is, in slots that have no label.
    """
    at = np.array([row.mark for row in rows], dtype=np.int64)
    begin = np.array([text.start for text in texts], dtype=np.int64)
    labels = np.array([window.label for window in windows], dtype=np.int64)
    answers = np.array([window.answer for window in windows], dtype=np.int64).reshape(-1, 2)
    inside = labels == 1
    columns = {
        "at": [at],
        "left": [np.where(inside, begin + answers[:, 0], at)],
        "right": [np.where(inside, begin + answers[:, 1], at)],
        "labels": [labels],
    }
    if bounds:
        end = np.array([text.stop for text in texts], dtype=np.int64)
        columns["at"].append(at)
        columns["left"].append(np.where(begin < end, begin, at))
        columns["right"].append(np.where(begin < end, end - 1, at))
        columns["labels"].append(np.full_like(labels, Targets.IGNORED))
    slots = len(columns["at"])
    return Targets(
        slots * np.arange(len(rows) + 1),
        {name: np.stack(values, axis=1).reshape(-1) for name, values in columns.items()},
    )


def _token_facts(
    windows: Sequence[Window], rows: Sequence[Row], texts: Sequence[slice], passages: Pieces
) -> dict[str, Array]:
    """For every token: is it the passage's, has it most context here, which characters is it."""
    starts = offsets([len(row.columns["ids"]) for row in rows])
    begin = np.array([text.start for text in texts], dtype=np.int64)
    sizes = np.array([text.stop - text.start for text in texts], dtype=np.int64)
    source = np.array([window.passage.start for window in windows], dtype=np.int64)
    where = ranges(starts[:-1] + begin, sizes)
    spans = np.zeros((starts[-1], 2), dtype=np.int64)
    spans[where] = passages.spans[ranges(source, sizes)]
    passage, most = np.zeros((2, starts[-1]), dtype=bool)
    passage[where] = True
    most[where] = np.concatenate([np.zeros(0, bool), *[window.most for window in windows]])
    return {"passage": passage, "most": most, "begin": spans[:, 0], "end": spans[:, 1]}
