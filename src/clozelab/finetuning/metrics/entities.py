"""Entities in tagged words, by the schemes that write them, and their precision, recall and F1.

By the conventions of seqeval: an entity counts as found where type and both ends are right
(CoNLL-2003, arXiv:cs/0306050). Tags are read as the `conlleval` script does (`scheme=None`), which
takes IOB1, IOB2, IOE and BIOES and makes entities of illegal tags too, or strictly by one scheme
(seqeval's mode="strict"). IOB1 writes B only where an entity touches another of its type before it
(arXiv:cs/9907006); IOB2 at the first word of every entity; BIOES (IOBES) also marks the last word
(E) and an only one (S).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from clozelab.errors import UserError
from clozelab.finetuning.metrics.classes import Tally

Scheme = Literal["iob1", "iob2", "bioes"]


class ParsedTag(NamedTuple):
    """A parsed tag: "B-PER" is role B of type PER."""

    role: str
    type: str


OUTSIDE = ParsedTag("O", "_")


class _Pairs(NamedTuple):
    """Pairs of successive roles: of any types, of the same type, or of two types."""

    any: frozenset[str] = frozenset()
    same: frozenset[str] = frozenset()
    other: frozenset[str] = frozenset()

    def hold(self, before: ParsedTag, tag: ParsedTag) -> bool:
        pair = before.role + tag.role
        return pair in self.any or pair in (self.same if before.type == tag.type else self.other)


def _pairs(any: str = "", same: str = "", other: str = "") -> _Pairs:
    return _Pairs(*(frozenset(words.split()) for words in (any, same, other)))


# The pairs that begin, continue and end an entity when read strictly, as seqeval does. Its IOB1 has
# corner cases: an I after a B that began nothing begins an entity, and one that ends before a B of
# another type right after its own B is lost.
_STRICT_PAIRS: dict[Scheme, tuple[_Pairs, _Pairs, _Pairs]] = {
    "iob1": (
        _pairs("OI BI", same="IB BB", other="II"),
        _pairs(same="BI II"),
        _pairs("IO IB BO", same="BB", other="II BI"),
    ),
    "iob2": (
        _pairs("OB IB BB"),
        _pairs(same="BI II"),
        _pairs("IO BO IB BB", other="II BI"),
    ),
    "bioes": (
        _pairs("OB IB BB EB SB OS IS BS ES SS"),
        _pairs(same="BI BE II IE"),
        _pairs("SO SB SI SE SS EO EB EI EE ES"),
    ),
}
# The legal pairs of successive tags.
_LEGAL_PAIRS: dict[Scheme, _Pairs] = {
    "iob1": _pairs("OO IO BO OI", same="II BI IB BB", other="II BI"),
    "iob2": _pairs("OO IO BO OB IB BB", same="BI II"),
    "bioes": _pairs("OO EO SO OB EB SB OS ES SS", same="BI BE II IE"),
}
_ROLES: dict[Scheme, str] = {"iob1": "IOB", "iob2": "IOB", "bioes": "BIOES"}


def parse(tag: str) -> ParsedTag:
    """A tag's role and type; one without a type, such as "B", has the type "_"."""
    if not is_entity(tag):
        raise UserError(
            f"tag {tag!r} is neither O nor B-, I-, E- or S- with a type: write it in IOB or BIOES,"
            " or score by accuracy alone"
        )
    role, _, kind = tag.partition("-")
    return ParsedTag(role, kind or "_")


def is_entity(tag: str) -> bool:
    """Whether a tag is one of entities, not a part of speech or the like."""
    return tag == "O" or tag.partition("-")[0] in ("B", "I", "E", "S")


def is_legal(tags: Sequence[str], scheme: Scheme) -> bool:
    """Whether the tags of a sentence follow a scheme."""
    walk = [OUTSIDE, *map(parse, tags)]
    ends = scheme != "bioes" or walk[-1].role not in "BI"
    return ends and all(_LEGAL_PAIRS[scheme].hold(*pair) for pair in pairwise(walk))


class Entity(NamedTuple):
    """A span of words, both ends included; the type is "_" if tags have none."""

    type: str
    first: int
    last: int


def spans(tags: Sequence[str], scheme: Scheme | None = None) -> list[Entity]:
    """The entities of the tags of a sentence, in order; tags that a scheme lacks are refused."""
    parsed = [parse(tag) for tag in tags]
    if scheme is None:
        return _lenient(parsed)
    for number, (tag, (role, _)) in enumerate(zip(tags, parsed, strict=True), 1):
        if role not in _ROLES[scheme]:
            raise UserError(
                f"tag {number}, {tag!r}, is not of {scheme}, which has only"
                f" {', '.join(_ROLES[scheme])}: name the scheme the tags are in"
            )
    return _strict(parsed, scheme)


def scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    scheme: Scheme | None = None,
) -> dict[str, float]:
    """`precision`, `recall` and `f1` over all entities of all sentences."""
    total = Tally()
    for golds, guesses in zip(gold, predicted, strict=True):
        true, found = set(spans(golds, scheme)), set(spans(guesses, scheme))
        right = len(true & found)
        total += Tally(right, len(true), right, len(found))
    return {"precision": total.precision, "recall": total.recall, "f1": total.f1}


def _lenient(tags: Sequence[ParsedTag]) -> list[Entity]:
    """The entities by `conlleval`: any tag but O that does not continue one begins one."""
    entities: list[Entity] = []
    before = OUTSIDE
    for place, tag in enumerate(tags):
        if tag.role in "IE" and before.role in "BI" and tag.type == before.type:
            entities[-1] = entities[-1]._replace(last=place)
        elif tag.role != "O":
            entities.append(Entity(tag.type, place, place))
        before = tag
    return entities


def _strict(tags: Sequence[ParsedTag], scheme: Scheme) -> list[Entity]:
    """The entities by the rules of a scheme."""
    begins, goes_on, ends = _STRICT_PAIRS[scheme]
    entities, place = [], 0
    walk = [OUTSIDE, *tags, OUTSIDE]
    while place < len(tags):
        first, place = place, place + 1
        if not begins.hold(walk[first], walk[first + 1]):
            continue
        while goes_on.hold(walk[place], walk[place + 1]):
            place += 1
        if ends.hold(walk[place], walk[place + 1]):
            entities.append(Entity(tags[first].type, first, place - 1))
    return entities
