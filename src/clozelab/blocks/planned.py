"""What every format of ours shares: a plan is columns of numbers, made piece by piece.

Joined in memory the pieces are the plan of a small corpus; appended to files, of any. Where several
processes make one, each runs the same program, and of every stage makes the pieces that no other
process makes: a piece is a pure function of its number, so who makes it does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from clozelab.contracts import Documents, Plan, PlanStretch
from clozelab.keys import mix, root
from clozelab.ranges import Part

Make = Callable[[int], Iterable[PlanStretch]]  # a piece by its number, some rows at a time


class PlanPieces(Protocol):
    """Where the pieces of a plan are while it is made."""

    in_memory: bool

    def find(self, stage: str, number: int) -> PlanStretch | None:
        """A piece, if it is there."""
        ...

    def piece(self, stage: str, number: int, make: Make) -> PlanStretch:
        """A piece; one that another process makes is waited for."""
        ...

    def all_pieces(self, stage: str, count: int, make: Make) -> Sequence[PlanStretch]:
        """All pieces of a stage, made by whoever takes part."""
        ...

    def drop(self, *stages: str) -> None:
        """Let go of the pieces of stages that a later one, which is whole, was made of."""
        ...


class PiecesInMemory:
    """The pieces of a plan that is made in memory, by one process."""

    in_memory = True

    def __init__(self) -> None:
        self._there: dict[tuple[str, int], PlanStretch] = {}

    def find(self, stage: str, number: int) -> PlanStretch | None:
        """A piece, if it is there."""
        return self._there.get((stage, number))

    def piece(self, stage: str, number: int, make: Make) -> PlanStretch:
        """A piece."""
        if (stage, number) not in self._there:
            self._there[stage, number] = joined(make(number))
        return self._there[stage, number]

    def all_pieces(self, stage: str, count: int, make: Make) -> Sequence[PlanStretch]:
        """All pieces of a stage."""
        return [self.piece(stage, number, make) for number in range(count)]

    def drop(self, *stages: str) -> None:
        """Let go of the pieces of some stages."""
        for place in [place for place in self._there if place[0] in stages]:
            del self._there[place]


def joined(stretches: Iterable[PlanStretch]) -> PlanStretch:
    """The rows of some stretches in one, and their counts added."""
    arrays: dict[str, list[Any]] = {}
    counts = Counter[str]()
    for stretch in stretches:
        for name, values in stretch.columns.items():
            arrays.setdefault(name, []).append(values)
        counts.update(stretch.counts)
    columns = {name: some[0] if len(some) == 1 else np.concatenate(some)
               for name, some in arrays.items()}  # fmt: skip
    return PlanStretch(columns, dict(counts))


def draw(key: int, purpose: str) -> int:
    """The key of one kind of draw under a plan's key."""
    return int(mix(key, root(0, purpose)))


class PlannedFormat(Part):
    """A format whose plan is columns."""

    def stretches(
        self, documents: Documents, key: int, pieces: PlanPieces | None = None
    ) -> Iterator[PlanStretch]:
        """The columns of a pass, some rows at a time; never empty."""
        raise NotImplementedError

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan that the whole table of a pass is; its columns may be mapped."""
        raise NotImplementedError

    def plan(self, documents: Documents, key: int) -> Plan:
        """Plan a pass in memory; `key` stands for (seed, purpose, copy)."""
        return self.opened(documents, key, joined(self.stretches(documents, key)))
