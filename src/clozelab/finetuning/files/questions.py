"""Questions about passages: SQuAD's JSON (1.1, 2.0, CMRC 2018, DRCD), or a row a question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import GoldAnswer, Id, Question
from clozelab.finetuning.files.columns import DEFAULTS, Columns, ReadOptions, Source, text_of
from clozelab.finetuning.files.tables import empty, located, parsed, suffix, text

RELOCATED = "answers found elsewhere in the passage than their file says"
NOT_FOUND = "answers not found in the passage"
SKIPPED = "questions skipped because no answer of theirs is found in the passage"
_ROLES = ("question", "passage", "answers", "id")


def questions(
    source: Source, options: ReadOptions = DEFAULTS, *, counts: Counts | None = None, **_: object
) -> list[Question]:
    """The examples of a file.

    An answer that is not where its file says is searched in the passage, nearest first. One that is
    not found still counts as right when predictions are scored: it comes last, and begins where the
    passage ends. A question without any other is left out of training, as in BERT's code.
    """
    counts = Counts() if counts is None else counts
    examples: list[Question] = []
    seen: set[str] = set()
    for place, question in _read(source, options, counts):
        if question.id in seen:
            raise UserError(
                f"{place} repeats the id {question.id!r}; give each question its own id"
            )
        seen.add(question.id)
        if question.answers is None and options.labelled:
            raise UserError(f"{place} has no answers; add them, or remove the question")
        if question.answers:
            answers = _relocate(question.passage, question.answers, place, counts)
            if options.training:
                answers = [answer for answer in answers if answer.start < len(question.passage)]
                if not answers:
                    counts.add(SKIPPED, place)
                    continue
            question = question._replace(answers=tuple(answers))
        examples.append(question)
    if not examples:
        raise UserError(
            f"{source if isinstance(source, Path) else source.name} has no question; add"
            " examples, or name another file"
        )
    return examples


def _relocate(
    passage: str, answers: tuple[GoldAnswer, ...], place: str, counts: Counts
) -> list[GoldAnswer]:
    """The answers with corrected starts; those that are not found come last."""
    found, not_found = [], []
    for answer in answers:
        if passage.startswith(answer.text, answer.start) and answer.start >= 0:
            found.append(answer)
            continue
        # A lookahead, so that occurrences may overlap.
        starts = [m.start() for m in re.finditer(f"(?={re.escape(answer.text)})", passage)]
        if starts:
            counts.add(RELOCATED, place)
            nearest = min(starts, key=lambda start: abs(start - answer.start))
            found.append(GoldAnswer(answer.text, nearest))
        else:
            counts.add(NOT_FOUND, place)
            not_found.append(GoldAnswer(answer.text, len(passage)))
    return found + not_found


def _read(source: Source, options: ReadOptions, counts: Counts) -> Iterator[tuple[str, Question]]:
    if isinstance(source, Path):
        source = located(source)
        content = text(source) if suffix(source) == ".json" else ""
        if content.lstrip().startswith("{") and '"paragraphs"' in content:
            yield from _read_squad(parsed(content, source), str(source))
            return
        if suffix(source) == ".json" and not content.strip():
            raise empty(source)
    yield from _read_table(Columns(source, options, counts, roles=_ROLES))


def _read_squad(value: Any, name: str) -> Iterator[tuple[str, Question]]:
    """Yield the questions of SQuAD's nested JSON, located by id, since it is all on one line."""
    try:
        for article in value["data"]:
            for paragraph in article["paragraphs"]:
                context = str(paragraph["context"])
                for asks in paragraph["qas"]:
                    place, question = f"{name}: question {asks['id']}", asks["question"].strip()
                    gold = _read_answers(asks, context)
                    yield place, Question(Id(str(asks["id"]), place), question, context, gold)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{name} is not in SQuAD's layout ({error}): it needs data, paragraphs, context, qas,"
            " question, id, answers, text and answer_start"
        ) from None


def _read_table(columns: Columns) -> Iterator[tuple[str, Question]]:
    question = columns.find("question", ("question", "query"))
    passage = columns.find("passage", ("context", "passage", "paragraph"))
    answers = columns.labels("answers", ("answers", "answer", "answer_text"))
    for number, row in enumerate(columns.rows):
        context = row.values.get(passage)
        if not isinstance(context, str):
            raise UserError(f"{row.place} has no text in the column {passage!r}; write one there")
        try:
            gold = _read_answers(row.values, context, column=answers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{row.place} has answers that cannot be read ({error}): write"
                ' [{"text": …, "answer_start": …}], or the text alone'
            ) from None
        name = columns.id(row, number)
        yield row.place, Question(name, text_of(row, question), context, gold)


def _read_answers(
    record: Mapping[str, Any], passage: str, *, column: str | None = "answers"
) -> tuple[GoldAnswer, ...] | None:
    """Read answers: records, texts, one text, or a list of texts and one of starts.

    A text without a start begins where it first occurs in the passage.
    """
    if record.get("is_impossible") in (True, "true", "True", "1"):
        return ()
    value = record.get(column or "")
    if value is None:
        return None
    if isinstance(value, str):
        texts, starts = [value], [record.get("answer_start")]
    elif isinstance(value, dict) and isinstance(value["text"], str):
        texts, starts = [value["text"]], [value.get("answer_start")]
    elif isinstance(value, dict):
        texts, starts = value["text"], value.get("answer_start") or [None] * len(value["text"])
    else:
        texts = [item if isinstance(item, str) else item["text"] for item in value]
        starts = [None if isinstance(item, str) else item["answer_start"] for item in value]
    return tuple(
        GoldAnswer(text, max(passage.find(text), 0) if start in (None, "") else int(start))
        for text, start in zip(texts, starts, strict=True)
        if text.strip()
    )
