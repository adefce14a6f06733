"""What every format of ours shares: a plan is columns of numbers, made a stretch at a time.

Joined in memory the stretches are the plan of a small corpus; appended to files, of any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clozelab.contracts import Documents, Plan, PlanStretch
from clozelab.keys import mix, root
from clozelab.ranges import Part


def draw(key: int, purpose: str) -> int:
    """The key of one kind of draw under a plan's key."""
    return int(mix(key, root(0, purpose)))


class PlannedFormat(Part):
    """A format whose plan is columns."""

    def stretches(
        self, documents: Documents, key: int, folder: Path | None = None
    ) -> Iterator[PlanStretch]:
        """The columns of a pass, some rows at a time; never empty.

        What is too long for memory lies in nameless files of the folder meanwhile.
        """
        raise NotImplementedError

    def opened(self, documents: Documents, key: int, table: PlanStretch) -> Plan:
        """The plan that the whole table of a pass is; its columns may be mapped."""
        raise NotImplementedError

    def plan(self, documents: Documents, key: int) -> Plan:
        """Plan a pass in memory; `key` stands for (seed, purpose, copy)."""
        stretches = list(self.stretches(documents, key))
        columns = {
            name: np.concatenate([stretch.columns[name] for stretch in stretches])
            for name in stretches[0].columns
        }
        counts = Counter[str]()
        for stretch in stretches:
            counts.update(stretch.counts)
        return self.opened(documents, key, PlanStretch(columns, counts))
