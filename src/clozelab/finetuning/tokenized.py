"""Examples as packed blocks of tokens: what a kind of task makes of them.

A `Reader` knows the tokenizer and the special tokens of one encoder ([CLS] A [SEP] B [SEP], XLNet's
A <sep> B <sep> <cls>, …); kinds of tasks know neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clozelab.contracts import Array, Counts, Ints, Row, Targets
from clozelab.packed import offsets


@dataclass(frozen=True)
class TokenizedExamples:
    """Examples as packed blocks with what is to be predicted in them.

    A group is what is judged together and drawn together: the choices of a question, the segments
    of a document, and otherwise one block.
    """

    columns: Mapping[str, Array]  # [N] what the encoder reads
    starts: Ints  # [B + 1] first token of each block
    targets: Targets
    groups: Ints  # [G + 1] first block of each group
    owners: Ints  # [G] the example that each group was made of
    kept: Mapping[str, Array] = field(default_factory=dict)  # [N] for reading predictions alone
    counts: Counts = field(default_factory=Counts)  # what was cut or left out


def stacked(
    rows: Sequence[Row],
    targets: Targets,
    *,
    groups: Ints | None = None,
    owners: Ints | None = None,
    kept: Mapping[str, Array] | None = None,
    counts: Counts | None = None,
) -> TokenizedExamples:
    """Rows one after another; unless told otherwise, each is a group and an example of its own."""
    names = rows[0].columns if rows else {}
    groups = np.arange(len(rows) + 1) if groups is None else groups
    return TokenizedExamples(
        columns={name: np.concatenate([row.columns[name] for row in rows]) for name in names},
        starts=offsets([len(row.columns["ids"]) for row in rows]),
        targets=targets,
        groups=groups,
        owners=np.arange(len(groups) - 1) if owners is None else owners,
        kept=kept or {},
        counts=counts or Counts(),
    )


def trimmed(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two texts to keep: the longer loses its last tokens, then both in turn.

    So does BERT's code, where the second one loses the first of those.
    """
    over = max(0, first + second - room)
    most = min(over, abs(first - second))
    rest = over - most
    first -= most * (first > second) + rest // 2
    second -= most * (second > first) + (rest + 1) // 2
    return max(first, 0), max(second, 0)
