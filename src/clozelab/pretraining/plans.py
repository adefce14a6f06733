"""The plan of a pass over a corpus: made in memory, or for a large corpus cached as a file.

A plan is a pure function of corpus, format, seed and copy; the order of an epoch is one of the
number of blocks, seed and epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clozelab import registry
from clozelab.blocks import PARTS
from clozelab.blocks.planned import PiecesInMemory, PlanPieces, joined
from clozelab.blocks.shuffle import permutation, read_at_random
from clozelab.config import slots
from clozelab.contracts import Documents, Format, Ints, Plan, PlanStretch
from clozelab.runs.processes import workers
from clozelab.text.building import cores, memory
from clozelab.text.store import Corpus, plans
from clozelab.text.store.pieces import SharedPieces

# Sentences or blocks up to which planning takes some tens of megabytes and a fraction of a second,
# so that a file would save nothing.
_IN_MEMORY = 1 << 20
_ONE_PROCESS = 1 << 23  # up to which one process is done before another has started
_MAX_PROCESSES = 8  # that plan


Program = Callable[[PlanPieces], Iterator[PlanStretch]]


class Drawn(NamedTuple):
    """The key of a plan's draws, with the seed and the copy or epoch that it is made of."""

    key: int
    seed: int
    copy: int


def planned(
    corpus: Corpus, documents: Documents, blocks: Format, *, split: str, drawn: Drawn
) -> Plan:
    """The blocks of a pass over a split of a corpus.

    A format from outside may change without notice, so its plans are never cached.
    """
    form: Any = blocks
    count = len(documents.sentences)
    if count <= _IN_MEMORY or not registry.is_own("blocks", type(blocks)):
        return blocks.plan(documents, drawn.key)
    settings = {"use": slots.use("blocks", blocks), **asdict(form)}
    purpose = {"blocks": settings, "split": split, **drawn._asdict()}
    table = _load_or_write(corpus, purpose, count)
    if corpus.bytes > memory() / 2:  # readahead would evict pages that are needed again
        read_at_random(documents.ids, documents.marks, *table.columns.values())
    opened: Plan = form.opened(documents, drawn.key, table)
    return opened


def visited(corpus: Corpus, count: int, *, shuffled: bool, drawn: Drawn) -> Ints:
    """The numbers of a plan's blocks in the order of an epoch: shuffled or not."""
    purpose = {"order": count, "shuffled": shuffled, **drawn._asdict()}
    if count <= _IN_MEMORY:
        order = joined(program(corpus, purpose)(PiecesInMemory())).columns["numbers"]
    else:
        order = _load_or_write(corpus, purpose, count).columns["numbers"]
    return np.asarray(order, dtype=np.int64)


def program(
    corpus: Corpus, purpose: Mapping[str, Any]
) -> Callable[[PlanPieces], Iterator[PlanStretch]]:
    """The function that makes the columns for a purpose; several processes may run it."""
    key = purpose["key"]
    if "blocks" in purpose:
        use, settings = purpose["blocks"]["use"], dict(purpose["blocks"])
        del settings["use"]
        form: Any = PARTS[use](**settings)
        documents = corpus.documents(purpose["split"])
        return lambda pieces: form.stretches(documents, key, pieces)
    count, shuffled = purpose["order"], purpose["shuffled"]

    def stretches(pieces: PlanPieces) -> Iterator[PlanStretch]:
        firsts = range(0, count, _IN_MEMORY)
        in_order = (np.arange(first, min(first + _IN_MEMORY, count)) for first in firsts)
        numbers = permutation(count, key, pieces) if shuffled else in_order
        return (PlanStretch({"numbers": stretch}, {}) for stretch in numbers)

    return stretches


def _load_or_write(corpus: Corpus, purpose: Mapping[str, Any], count: int) -> PlanStretch:
    """The columns from their file, written first, by several processes if it is large."""
    shared = count > _ONE_PROCESS and not corpus.is_arriving  # which others cannot read
    helpers = min(cores(), _MAX_PROCESSES) - 1 if shared else 0
    helper = partial(_helped, corpus, helpers) if helpers else None
    return plans.load_or_write(corpus, purpose, program(corpus, purpose), helper=helper)


@contextmanager
def _helped(corpus: Corpus, count: int, folder: Path, purpose: Mapping[str, Any]) -> Iterator[None]:
    """Run `count` processes that help to make the pieces in a folder; end them on exit.

    If one fails, the others make its pieces.
    """
    with workers(threads=1) as processes:
        for _ in range(count):
            processes.submit(_help_along, str(corpus.path), folder, purpose)
        yield


def _help_along(place: str, folder: Path, purpose: Mapping[str, Any]) -> None:
    """Make the pieces of a plan that no other process makes."""
    corpus = Corpus.open(place, trusting=True)
    for _ in program(corpus, purpose)(SharedPieces(folder)):
        pass
