"""Questions about passages as blocks: a window slides over each passage (BERT's SQuAD code)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clozelab.contracts import Array, Bools, Counts, Ints, Reader, Row, Targets
from clozelab.finetuning.examples import (
    Question,
    TokenizedExamples,
    joined,
    place_of,
    slots,
    stacked,
)
from clozelab.finetuning.kinds.kind import space

if TYPE_CHECKING:
    from clozelab.finetuning.kinds.answer import Answer

Cuts = tuple[tuple[int, int], ...]  # where windows over a passage begin and end


class WindowGold(NamedTuple):
    """The gold answer in a window."""

    label: int  # 1: the answer is inside, 0: it is not, IGNORED: not known
    first: int = 0  # its first and last token, counted in the window
    last: int = 0


def tokenize(kind: Answer, examples: Sequence[Question], reader: Reader) -> TokenizedExamples:
    """Windows over every example's passage, with the first listed answer as the target.

    A window has one slot, for the beam head a second one with the bounds of the passage.

    Differs from BERT's code: in short blocks windows come closer than `stride`, so that an answer
    of `longest` tokens is whole in one of them, or one of half a window where that is less.
    """
    counts = Counts()
    distinct = dict.fromkeys(example.passage for example in examples)
    numbers = {text: number for number, text in enumerate(distinct)}
    questions = reader.pieces([example.question for example in examples])
    passages = reader.pieces([*numbers])
    limit = min(kind.question_limit, space(reader, 2) // 2)  # at most half of a block
    rows: list[Row] = []
    owners, gold_slots, token_facts = [], [], []
    for owner, example in enumerate(examples):
        question = questions.text(owner)
        if question.stop - question.start > limit:
            counts.add("questions truncated to fit", place_of(example))
            question = slice(question.start, question.start + limit)
        passage = passages.text(numbers[example.passage])
        room = reader.length - reader.num_special_tokens(2) - (question.stop - question.start)
        step = min(kind.stride, max(room - kind.longest, (room + 1) // 2))
        cuts = windows_over(passage.stop - passage.start, room, step)
        most = most_context(cuts)
        gold = _window_gold(example, passages.spans[passage], cuts, counts)
        for number, (begin, end) in enumerate(cuts):
            inside = slice(passage.start + begin, passage.start + end)
            texts = questions.part(question), passages.part(inside)
            row = reader.with_special_tokens(*(texts[::-1] if reader.passage_first else texts))
            text = row.first if reader.passage_first else row.second
            best = most[begin:end] == number
            rows.append(row)
            owners.append(owner)
            gold_slots.append(_slots(row.mark, text, gold[number], bounds=kind.head == "beam"))
            token_facts.append(_token_facts(row, text, most=best, spans=passages.spans[inside]))
    return stacked(
        rows,
        slots(gold_slots),
        owners=np.array(owners, dtype=np.int64),
        token_facts=joined(token_facts),
        counts=counts,
    )


@lru_cache(maxsize=1 << 16)
def windows_over(tokens: int, room: int, stride: int) -> Cuts:
    """The bounds of windows of at most `room` tokens: from 0, stride, … until the end."""
    cuts = [(0, min(room, tokens))]
    while cuts[-1][1] < tokens:
        begin = cuts[-1][0] + min(stride, room)
        cuts.append((begin, min(begin + room, tokens)))
    return tuple(cuts)


@lru_cache(maxsize=1 << 12)
def most_context(windows: Cuts) -> Ints:
    """The window in which each token has most context on its shorter side; ties: long, then early.

    BERT's score min(left, right) + 0.01 · length, times 100 so that ties are exact.
    """
    position = np.arange(windows[-1][1])
    scores = [
        np.where(
            (position >= begin) & (position < end),
            100 * np.minimum(position - begin, end - 1 - position) + end - begin,
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


def _window_gold(example: Question, spans: Ints, cuts: Cuts, counts: Counts) -> list[WindowGold]:
    """The label of each window, and the answer's position if it is completely inside."""
    if not example.answers:
        label = Targets.IGNORED if example.answers is None else 0
        return [WindowGold(label)] * len(cuts)
    answer = located(example, spans)
    if answer is None:
        counts.add("answers that no token of the passage shows", place_of(example))
        return [WindowGold(Targets.IGNORED)] * len(cuts)
    first, last = answer
    inside = [begin <= first and last < end for begin, end in cuts]
    counts.add("answers that no window holds whole", place_of(example), int(not any(inside)))
    return [
        WindowGold(1, first - begin, last - begin) if is_inside else WindowGold(0)
        for is_inside, (begin, _) in zip(inside, cuts, strict=True)
    ]


def _slots(mark: int, text: slice, gold: WindowGold, *, bounds: bool) -> dict[str, Sequence[int]]:
    """The slot of a window: the ends of the answer, or the mark if there is none.

    With `bounds`, a second, unlabelled slot has the ends of the passage.
    """
    ends = (text.start + gold.first, text.start + gold.last) if gold.label == 1 else (mark, mark)
    table = [(mark, *ends, gold.label)]
    if bounds:
        ends = (text.start, text.stop - 1) if text.start < text.stop else (mark, mark)
        table.append((mark, *ends, Targets.IGNORED))
    return dict(zip(("at", "left", "right", "labels"), zip(*table, strict=True), strict=True))


def _token_facts(row: Row, text: slice, *, most: Bools, spans: Ints) -> dict[str, Array]:
    """For every token: if it is the passage's and has most context here, and its characters."""
    size = len(row.columns["ids"])
    passage, best = np.zeros((2, size), dtype=bool)
    begin, end = np.zeros((2, size), dtype=np.int64)
    passage[text], best[text] = True, most
    begin[text], end[text] = spans.T
    return {"passage": passage, "most": best, "begin": begin, "end": end}
