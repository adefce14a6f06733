"""Where the plan of a pass comes from: made in memory, or, of a large corpus, kept as a file.

A plan is a pure function of corpus, blocks, seed and copy; the order of an epoch, of blocks, seed
and epoch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from clozelab.blocks import PARTS
from clozelab.blocks.planned import PiecesInMemory, PlanPieces, joined
from clozelab.blocks.shuffle import permutation, read_at_random
from clozelab.config import slots
from clozelab.contracts import Documents, Format, Ints, Plan, PlanStretch
from clozelab.text.building import cores, memory
from clozelab.text.store import Corpus, plans
from clozelab.text.store.pieces import SharedPieces

# Sentences or blocks: up to so many, planning takes some tens of megabytes and a fraction of a
# second, and a file would save nothing.
_MANY = 1 << 20
_MUCH = 1 << 23  # up to so many, one process is done before another has begun
_WRITERS = 8  # processes that plan, at most


Program = Callable[[PlanPieces], Iterator[PlanStretch]]


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
    count = len(documents.sentences)
    if count <= _MANY or type(blocks) not in PARTS.values():
        return blocks.plan(documents, drawn.key)
    settings = {"use": slots.use("blocks", blocks), **asdict(form)}
    purpose = {"blocks": settings, "split": split, **drawn._asdict()}
    table = _kept(corpus, purpose, count)
    if corpus.bytes > memory() / 2:  # what is read ahead would push out what is needed again
        read_at_random(documents.ids, documents.marks, *table.columns.values())
    opened: Plan = form.opened(documents, drawn.key, table)
    return opened


def visited(corpus: Corpus, count: int, *, shuffled: bool, drawn: Drawn) -> Ints:
    """The numbers of a plan's blocks as an epoch visits them: shuffled, or as they are."""
    purpose = {"order": count, "shuffled": shuffled, **drawn._asdict()}
    if count <= _MANY:
        order = joined(program(corpus, purpose)(PiecesInMemory())).columns["numbers"]
    else:
        order = _kept(corpus, purpose, count).columns["numbers"]
    return np.asarray(order, dtype=np.int64)


def program(
    corpus: Corpus, purpose: Mapping[str, Any]
) -> Callable[[PlanPieces], Iterator[PlanStretch]]:
    """What makes the columns for a purpose, in as many processes as take part."""
    key = purpose["key"]
    if "blocks" in purpose:
        use, settings = purpose["blocks"]["use"], dict(purpose["blocks"])
        del settings["use"]
        form: Any = PARTS[use](**settings)
        documents = corpus.documents(purpose["split"])
        return lambda pieces: form.stretches(documents, key, pieces)
    count, shuffled = purpose["order"], purpose["shuffled"]

    def stretches(pieces: PlanPieces) -> Iterator[PlanStretch]:
        firsts = range(0, count, _MANY)
        in_order = (np.arange(first, min(first + _MANY, count)) for first in firsts)
        numbers = permutation(count, key, pieces) if shuffled else in_order
        return (PlanStretch({"numbers": some}, {}) for some in numbers)

    return stretches


def _kept(corpus: Corpus, purpose: Mapping[str, Any], count: int) -> PlanStretch:
    """Columns as a file, made by as many processes as there are cores, where that is worth it."""
    shared = count > _MUCH and not corpus.is_arriving  # which another process cannot read
    helpers = min(cores(), _WRITERS) - 1 if shared else 0
    helper = partial(_helped, corpus, helpers) if helpers else None
    return plans.load_or_write(corpus, purpose, program(corpus, purpose), helper=helper)


@contextmanager
def _helped(corpus: Corpus, count: int, folder: Path, purpose: Mapping[str, Any]) -> Iterator[None]:
    """So many processes that help to make the pieces in a folder; they end at the end.

    One that fails is not missed: the others make what it did not.
    """
    words = [sys.executable, "-m", __name__, str(corpus.path), str(folder), json.dumps(purpose)]
    quiet = subprocess.DEVNULL
    helpers = [
        subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, env=_environment())
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()


def _environment() -> dict[str, str]:
    """That of this process, with what it can import and one thread for each helper."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def help_along(place: str, folder: str, purpose: str) -> None:
    """In a process of its own: make what pieces of a plan no other process makes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    corpus = Corpus.open(place, trusting=True)
    for _ in program(corpus, json.loads(purpose))(SharedPieces(Path(folder))):
        pass


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    help_along(*sys.argv[1:])
