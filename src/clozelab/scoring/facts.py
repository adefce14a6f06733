"""Cloze facts: which object a model puts into a sentence about a subject (LAMA, arXiv:1909.01066).

As in LAMA, the object is one token, and a model chooses among a fixed set of tokens: here among the
objects of the file that are one token to its tokenizer. Facts with other objects are left out and
counted. Each sentence is tokenised with its object in it, and the object's token is masked. If
several candidates are equally likely, a fact counts by the chance that a draw among them is right.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clozelab.contracts import Array, Counts, Ids, Ints, Pieces
from clozelab.errors import UserError
from clozelab.files import sha256
from clozelab.finetuning.files.columns import Columns, ReadOptions, text_of
from clozelab.finetuning.files.named import File, Named
from clozelab.scoring.sets import find, groups

if TYPE_CHECKING:
    from clozelab.scoring.likelihood import Nats, Precision, TextScorer

BLANK = "[MASK]"
_COLUMNS = {
    "sentence": ("sentence", "masked_sentence", "masked_sentences"),
    "object": ("object", "obj_label"),
    "relation": ("relation", "predicate_id"),
}
NAMED_FACTS = {
    "lama_trex": Named(
        "lama_trex",
        "LAMA T-REx: facts of Wikipedia",
        "classify",
        ("lama_trex", "TREx"),
        {"test": (File("trex.jsonl"),)},
    )
}
_ROWS = 256  # of a batch


class Fact(NamedTuple):
    """A sentence with a blank, and the object that belongs there."""

    sentence: str
    object: str
    relation: str
    place: str

    @property
    def filled(self) -> str:
        """The sentence with the object in it."""
        return self.sentence.replace(BLANK, self.object)

    @property
    def span(self) -> tuple[int, int]:
        """The characters of the object in the filled sentence."""
        start = self.sentence.index(BLANK)
        return start, start + len(self.object)


class FactFiles(NamedTuple):
    """Facts by name or by file, found and not yet read."""

    name: str
    file: Path
    columns: Mapping[str, str]

    def digests(self) -> dict[str, str]:
        """The sha256 of the file."""
        return {str(self.file.resolve()): sha256(self.file)}

    def read(self) -> list[Fact]:
        """All facts."""
        return list(_read_facts(self.file, self.columns))

    def follow(
        self,
        text_scorer: TextScorer,
        *,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> Generator[tuple[int, int], None, FactScores]:
        """Score the facts, yielding how many are done and how many there are."""
        from clozelab.scoring.likelihood import computing, read
        from clozelab.training.world import join

        if text_scorer.kind != "masked":
            raise UserError(
                f"{text_scorer.model.place}: is not a masked language model, which facts"
                " need; name one that is"
            )
        facts = self.read()
        pieces = read(text_scorer, [fact.filled for fact in facts], places=lambda n: facts[n].place)
        at = _object_positions(pieces, facts, special=text_scorer.model.vocabulary.special)
        (chosen,) = np.nonzero(at >= 0)
        if not len(chosen):
            raise UserError(
                f"{self.file}: has no object that is a single token of"
                f" {text_scorer.model.place}; use another model, or other facts"
            )
        labels = pieces.columns["ids"][pieces.starts[chosen] + at[chosen]].astype(np.int64)
        candidates = np.unique(labels)
        first, ten = np.zeros(len(facts)), np.zeros(len(facts))
        lengths, done = np.diff(pieces.starts), 0
        with join(device) as world, computing(text_scorer, world.device, precision):
            for length in np.unique(lengths[chosen])[::-1]:
                numbers = chosen[lengths[chosen] == length]
                for batch in np.split(numbers, range(0, len(numbers), _ROWS))[1:]:
                    ids = pieces.columns["ids"][pieces.starts[batch, None] + np.arange(length)]
                    first[batch], ten[batch] = _hits(text_scorer, ids, at[batch], candidates)
                    done += len(batch)
                    yield done, len(chosen)
        kept = tuple(facts[number] for number in chosen)
        left_out = len(facts) - len(chosen)
        return FactScores(self.name, kept, left_out, len(candidates), first[chosen], ten[chosen])


class Precisions(NamedTuple):
    """How often the object was the best candidate, or among the best ten, in per cent."""

    at_1: float
    at_10: float
    items: int


@dataclass(frozen=True, repr=False)
class FactScores:
    """The scores of a model on some facts."""

    name: str
    facts: tuple[Fact, ...]  # those whose object is one token
    left_out: int  # the others
    candidates: int  # to choose among
    at_1: Nats  # [F] 1, 0, or the chance among equals
    at_10: Nats

    def __repr__(self) -> str:
        whole = self.all
        first = f"{whole.at_1:.2f} % of {whole.items:,} facts right"
        return f"FactScores({self.name!r}, {first}, {whole.at_10:.2f} % among the first ten)"

    @property
    def all(self) -> Precisions:
        """Over all facts."""
        return self._precisions(np.arange(len(self.facts)))

    @cached_property
    def relations(self) -> dict[str, Precisions]:
        """Of each relation."""
        items = groups(fact.relation for fact in self.facts)
        return {name: self._precisions(numbers) for name, numbers in items.items()}

    @property
    def over_relations(self) -> Precisions:
        """The mean of the relations, as LAMA reports it."""
        values = np.array([(row.at_1, row.at_10) for row in self.relations.values()])
        first, ten = values.mean(axis=0).tolist()
        return Precisions(first, ten, len(values))

    def as_json(self) -> dict[str, Any]:
        """The JSON values of a record."""
        return {
            "facts": self.name,
            "candidates": self.candidates,
            "left_out": self.left_out,
            "all": self.all._asdict(),
            "over_relations": self.over_relations._asdict(),
            "relations": {name: row._asdict() for name, row in self.relations.items()},
        }

    def _precisions(self, numbers: Ints) -> Precisions:
        at_1, at_10 = (100 * float(values[numbers].mean()) for values in (self.at_1, self.at_10))
        return Precisions(at_1, at_10, len(numbers))


def find_facts(word: str, *, root: str | None = None, columns: Mapping[str, str]) -> FactFiles:
    """Facts by the name of a set in the folder of tasks, or by file."""
    return FactFiles(*find(word, NAMED_FACTS, option="--facts", root=root, columns=columns))


def _hits(text_scorer: TextScorer, ids: Array, at: Ints, candidates: Ints) -> tuple[Nats, Nats]:
    """[R] whether the masked token is the best candidate, and whether it is among the best ten."""
    import torch

    from clozelab.models.model import refuse_nan

    with torch.inference_mode():
        masked = np.arange(ids.shape[1]) == at[:, None]
        encoded, states, objects = text_scorer.masked(ids, masked, at=at)
        logits = text_scorer.head.logits(states, encoded.table).cpu()[:, candidates]
        refuse_nan(text_scorer.model, logits)
        own = logits.gather(1, torch.from_numpy(np.searchsorted(candidates, objects))[:, None])
        better, equal = (mask.sum(1).numpy() for mask in (logits > own, logits == own))
    return np.clip((1 - better) / equal, 0, 1), np.clip((10 - better) / equal, 0, 1)


def _object_positions(pieces: Pieces, facts: Sequence[Fact], *, special: Ids) -> Ints:
    """[F] the position of each object's token; -1 if it is not a single known token."""
    positions = np.full(len(facts), -1)
    unknown = np.isin(pieces.columns["ids"], special)
    for number, fact in enumerate(facts):
        start, stop = fact.span
        spans = pieces.spans[pieces.text(number)]
        (inside,) = np.nonzero((spans[:, 1] > start) & (spans[:, 0] < stop))
        single = len(inside) == 1 and spans[inside[0], 0] >= start and spans[inside[0], 1] <= stop
        if single and not unknown[pieces.starts[number] + inside[0]]:
            positions[number] = inside[0]
    return positions


def _read_facts(file: Path, named: Mapping[str, str]) -> Iterator[Fact]:
    columns = Columns(file, ReadOptions(columns=named), Counts(), roles=tuple(_COLUMNS))
    sentence, object_ = (columns.find(role, _COLUMNS[role]) for role in ("sentence", "object"))
    relation = columns.sought("relation", _COLUMNS["relation"])
    for row in columns.rows:
        value = row.values.get(sentence)
        text = str(value[0]) if isinstance(value, list) and value else text_of(row, sentence)
        if text.count(BLANK) != 1:
            raise UserError(f"{row.place}: has {text.count(BLANK)} blanks; write {BLANK} once")
        name = "" if relation is None else text_of(row, relation)
        answer = text_of(row, object_)
        if not answer:
            raise UserError(f"{row.place}: has no object; write one, or leave the row out")
        yield Fact(text, answer, name or "all", row.place)
