"""What all our formats share: a plan is columns of numbers, made piece by piece.

The pieces are concatenated in memory for a small corpus, or appended to files. Several processes
may make a plan: each runs the same program, and in every stage makes the pieces that no other
process makes. A piece is a pure function of its number, so it does not matter who makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from clozelab.contracts import Documents, Plan, PlanStretch
from clozelab.keys import mix, root
from clozelab.ranges import Part

Make = Callable[[int], Iterable[PlanStretch]]  # a piece by its number, some rows at a time


class PlanPieces(Protocol):
    """The store of a plan's pieces while it is made."""

    in_memory: bool

    def find(self, stage: str, number: int) -> PlanStretch | None:
        """A piece, if it exists."""
        ...

    def piece(self, stage: str, number: int, make: Make) -> PlanStretch:
        """A piece; one that another process makes is waited for."""
        ...

    def all_pieces(self, stage: str, count: int, make: Make) -> Iterable[PlanStretch]:
        """All pieces of a stage, to iterate over once; made by all processes that take part."""
        ...

    def drop(self, *stages: str) -> None:
        """Delete the pieces of stages from which a later, complete stage was made."""
        ...


class PiecesInMemory:
    """The pieces of a plan that is made in memory, by one process."""

    in_memory = True

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], PlanStretch] = {}

    def find(self, stage: str, number: int) -> PlanStretch | None:
        """A piece, if it exists."""
        return self._pieces.get((stage, number))

    def piece(self, stage: str, number: int, make: Make) -> PlanStretch:
        """A piece."""
        if (stage, number) not in self._pieces:
            self._pieces[stage, number] = joined(make(number))
        return self._pieces[stage, number]

    def all_pieces(self, stage: str, count: int, make: Make) -> Iterable[PlanStretch]:
        """All pieces of a stage."""
        return [self.piece(stage, number, make) for number in range(count)]

    def drop(self, *stages: str) -> None:
        """Delete the pieces of some stages."""
        for key in [key for key in self._pieces if key[0] in stages]:
            del self._pieces[key]


def joined(stretches: Iterable[PlanStretch]) -> PlanStretch:
    """Concatenate the rows of stretches, and add their counts."""
    arrays: dict[str, list[Any]] = {}
    counts = Counter[str]()
    for stretch in stretches:
        for name, values in stretch.columns.items():
            arrays.setdefault(name, []).append(values)
        counts.update(stretch.counts)
    columns = {name: parts[0] if len(parts) == 1 else np.concatenate(parts)
               for name, parts in arrays.items()}  # fmt: skip
    return PlanStretch(columns, dict(counts))


def draw(key: int, purpose: str) -> int:
    """The key of one kind of draw, derived from a plan's key."""
    return int(mix(key, root(0, purpose)))


class PlannedFormat(Part):
    """A format whose plan is made of columns."""

    def stretches(
        self, documents: Documents, key: int, pieces: PlanPieces
    ) -> Iterator[PlanStretch]:
        """The columns of a pass, some rows at a time; never empty."""
        raise NotImplementedError

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan of a pass's complete table, whose columns may be memory-mapped."""
        raise NotImplementedError

    def plan(self, documents: Documents, key: int) -> Plan:
        """Plan a pass in memory; `key` stands for (seed, purpose, copy)."""
        stretches = self.stretches(documents, key, PiecesInMemory())
        return self.opened(documents, key, joined(stretches))
