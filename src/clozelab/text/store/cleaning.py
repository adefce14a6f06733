"""What of the shards stays: what repeats an earlier document, line or paragraph is left out.

A few examples of it are kept, for the record of the corpus.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clozelab.contracts import Counts
from clozelab.text.store.parts import in_parts
from clozelab.text.store.shards import ShardPlan

_TOKENS = 32  # of an example


def clean(plan: ShardPlan, *, options: dict[str, Any], counts: Counts) -> ShardPlan:
    """The plan without what is to be left out; `counts` gets how much that is, and examples."""
    if options["unique"] is not None:
        plan = _without_repeats(plan, options["unique"], counts=counts)
    return plan


def _without_repeats(plan: ShardPlan, level: str, *, counts: Counts) -> ShardPlan:
    """Only the first of equal documents, lines or paragraphs; examples are the most frequent."""
    total = sum(len(shard.digests_of(level)) for shard in plan.shards())
    tables = (shard.digests_of(level) for shard in plan.shards())
    first_seen = np.zeros(total, dtype=bool)
    frequent: list[tuple[int, int]] = []  # minus how often, and the first of them
    for numbers, rows in in_parts(tables, total=total, folder=plan.folder / "parts"):
        _, first, times = np.unique(rows, axis=0, return_index=True, return_counts=True)
        first_seen[numbers[first]] = True
        repeated = np.flatnonzero(times > 1)
        frequent += zip((-times[repeated]).tolist(), numbers[first[repeated]].tolist(), strict=True)
        frequent = sorted(frequent)[: Counts.EXAMPLES]
    texts = _texts(plan, [number for _, number in frequent], level=level)
    counts.add(
        f"{level} left out as repeats",
        number=int((~first_seen).sum()),
        examples=[f"{-times:,} × {texts[number]}" for times, number in frequent],
    )
    return plan.only(level, first_seen)


def _texts(plan: ShardPlan, numbers: list[int], *, level: str) -> dict[int, str]:
    """How some of the documents, lines or paragraphs begin, by their numbers."""
    texts: dict[int, str] = {}
    first = 0
    for shard in plan.shards() if numbers else ():
        bounds = shard.bounds_of(level)
        last = first + len(bounds) - 1
        for number in numbers:
            if first <= number < last:
                start, stop = shard.sentences[bounds[number - first :][:2]].tolist()
                ids = shard.ids[start : min(stop, start + _TOKENS)].tolist()
                text = plan.tokenizer.decode(ids, skip_special_tokens=False)
                texts[number] = " ".join(text.split()) + (" …" if stop - start > _TOKENS else "")
        first = last
    return texts
