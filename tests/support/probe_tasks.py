"""Tasks made for probes: sentences that say their class by a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.labelled_files import write

NOUNS = ("house", "garden", "letter", "sister", "morning", "carriage", "door", "friend", "town")


def sentences(count: int, *, first: int = 0) -> list[tuple[str, str]]:
    """Sentences that say by a word whether they are good."""
    draw = np.random.default_rng(first)
    lines = []
    for _ in range(count):
        label = int(draw.integers(2))
        words = [*draw.choice(NOUNS, size=5), ("evil", "good")[label]]
        lines.append((" ".join(draw.permutation(words)), str(label)))
    return lines


def sst2(root: Path, *, shuffled: bool = False) -> Path:
    for split, count, seed in (("train", 200, 0), ("dev", 100, 1)):
        rows = sentences(count, first=seed)
        labels = [label for _, label in rows]
        labels = list(np.random.default_rng(5).permutation(labels)) if shuffled else labels
        lines = [f"{text}\t{label}\n" for (text, _), label in zip(rows, labels, strict=True)]
        write(root / "SST-2" / f"{split}.tsv", "sentence\tlabel\n" + "".join(lines))
    return root
