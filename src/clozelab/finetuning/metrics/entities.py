"""Entities in tagged words, and their precision, recall and F1 by the conventions of seqeval.

An entity counts as found where type and both ends are right (CoNLL-2003, arXiv:cs/0306050). Tags
are read as the `conlleval` script does (`scheme=None`), which takes IOB1, IOB2, IOE and BIOES and
makes entities of illegal tags too, or strictly by one scheme (seqeval's mode="strict").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from clozelab.errors import UserError
from clozelab.finetuning.metrics.schemes import OUTSIDE, Scheme, Tag, parse, rules
from clozelab.finetuning.metrics.tally import Tally


class Entity(NamedTuple):
    """A stretch of words, both ends included; the type of tags without one is "_"."""

    type: str
    first: int
    last: int


def spans(tags: Sequence[str], scheme: Scheme | None = None) -> list[Entity]:
    """The entities that the tags of a sentence say, in order."""
    parsed = [parse(tag) for tag in tags]
    return _strict(parsed, scheme) if scheme else _lenient(parsed)


def scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    scheme: Scheme | None = None,
) -> dict[str, float]:
    """`precision`, `recall` and `f1` over all entities of all sentences."""
    total = sum(by_type(gold, predicted, scheme=scheme).values(), Tally())
    return {"precision": total.precision, "recall": total.recall, "f1": total.f1}


def by_type(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    scheme: Scheme | None = None,
) -> dict[str, Tally]:
    """What was there, found and right of each type; types in alphabetical order."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for number, (golds, guesses) in enumerate(zip(gold, predicted, strict=True)):
        if len(golds) != len(guesses):
            raise UserError(
                f"sentence {number + 1}: {len(golds)} gold tags and {len(guesses)} predicted:"
                " give one for each word"
            )
        there, found = set(spans(golds, scheme)), set(spans(guesses, scheme))
        for entity in there | found:
            right = entity in there and entity in found
            tallies[entity.type] += Tally(right, entity in there, right, entity in found)
    return dict(sorted(tallies.items()))


def _lenient(tags: Sequence[Tag]) -> list[Entity]:
    """One that is neither outside nor goes on with the entity before it begins another."""
    found: list[Entity] = []
    before = OUTSIDE
    for place, tag in enumerate(tags):
        if tag.role in "IE" and before.role in "BI" and tag.type == before.type:
            found[-1] = found[-1]._replace(last=place)
        elif tag.role != "O":
            found.append(Entity(tag.type, place, place))
        before = tag
    return found


def _strict(tags: Sequence[Tag], scheme: Scheme) -> list[Entity]:
    """Only what begins, goes on and ends by the rules of the scheme."""
    begins, goes_on, ends = rules(scheme, tags)
    found, place = [], 0
    walk = [OUTSIDE, *tags, OUTSIDE]
    while place < len(tags):
        first, place = place, place + 1
        if not begins(walk[first], walk[first + 1]):
            continue
        while goes_on(walk[place], walk[place + 1]):
            place += 1
        if ends(walk[place], walk[place + 1]):
            found.append(Entity(tags[first].type, first, place - 1))
    return found
