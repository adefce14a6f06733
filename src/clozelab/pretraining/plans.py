"""Where the plan of a pass comes from: made in memory, or, of a large corpus, kept as a file.

A plan is a pure function of corpus, blocks, seed and copy; the order of an epoch, of blocks, seed
and epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clozelab.blocks import PARTS
from clozelab.blocks.shuffle import permutation
from clozelab.config import slots
from clozelab.contracts import Documents, Format, Ints, Plan, PlanStretch
from clozelab.text.store import Corpus, plans

# Sentences or blocks: up to so many, planning takes some tens of megabytes and a fraction of a
# second, and a file would save nothing.
_MANY = 1 << 20


class Drawn(NamedTuple):
    """Of which draws a plan is: the key, and the seed and the copy or epoch that it stands for."""

    key: int
    seed: int
    copy: int


def planned(
    corpus: Corpus, documents: Documents, blocks: Format, *, split: str, drawn: Drawn
) -> Plan:
    """The blocks of a pass over a split of a corpus.

    A format from outside may change without notice, so its plans are never kept.
    """
    form: Any = blocks
    if len(documents.sentences) <= _MANY or type(blocks) not in PARTS.values():
        return blocks.plan(documents, drawn.key)
    settings = {"use": slots.use("blocks", blocks), **asdict(form)}
    table = plans.kept(
        corpus,
        {"blocks": settings, "split": split, **drawn._asdict()},
        lambda folder: form.stretches(documents, drawn.key, folder),
    )
    opened: Plan = form.opened(documents, drawn.key, table)
    return opened


def visited(corpus: Corpus, count: int, *, shuffled: bool, drawn: Drawn) -> Ints:
    """The numbers of a plan's blocks as an epoch visits them: shuffled, or as they are."""

    def stretches(folder: Path | None) -> Iterator[PlanStretch]:
        firsts = range(0, count, _MANY)
        in_order = (np.arange(first, min(first + _MANY, count)) for first in firsts)
        numbers = permutation(count, drawn.key, folder) if shuffled else in_order
        return (PlanStretch({"numbers": some}, {}) for some in numbers)

    if count <= _MANY:
        return np.concatenate([stretch.columns["numbers"] for stretch in stretches(None)])
    purpose = {"order": count, "shuffled": shuffled, **drawn._asdict()}
    order = plans.kept(corpus, purpose, stretches).columns["numbers"]
    return np.asarray(order, dtype=np.int64)
