"""Embedding tables that never moved: by Adam's second moments, or by two checkpoints.

A row that never had a gradient has a second moment of zero; one that never moved is the same in two
checkpoints. Only the tables are read, without torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

_WEIGHTS = "model.safetensors"
_MOMENT = "exp_avg_sq"
# In our checkpoints, and in those of transformers.
_WORDS = re.compile(r"(.*\.)?(embeddings\.words|word_embeddings|tok_embeddings|wte)\.weight")
_POSITIONS = re.compile(r"(.*\.)?(embeddings\.positions|position_embeddings|wpe)\.weight")


@dataclass(frozen=True)
class EmbeddingTable:
    """An embedding table, and which of its rows never moved."""

    name: str
    kind: str  # words or positions
    rows: int
    unmoved: Sequence[int]
    others_moved: bool  # whether other weights moved
    seen_by: str  # how that is known
    finite: bool = True


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run or a trainer by age, then the folder itself."""
    folders = [*(folder / "checkpoints").glob("step-*"), *folder.glob("checkpoint-*")]
    numbers = {path: path.name.rpartition("-")[2] for path in folders}
    numbered = sorted((int(number), path) for path, number in numbers.items() if number.isdigit())
    return [*(path for _, path in numbered), folder]


def damaged(folder: Path) -> Path | None:
    """The file of the newest weights, if it cannot be read."""
    saved = [path / _WEIGHTS for path in checkpoints(folder) if (path / _WEIGHTS).is_file()]
    for file in saved[-1:]:
        try:
            with safe_open(file, framework="np"):
                pass
        except SafetensorError:
            return file
        except OSError:  # removed meanwhile
            pass
    return None


def tables(folder: Path) -> list[EmbeddingTable]:
    """The embedding tables of the newest checkpoint, if it is known which rows moved."""
    saved = [path for path in checkpoints(folder) if (path / _WEIGHTS).is_file()]
    try:
        return list(_tables(saved)) if saved else []
    except (OSError, SafetensorError, TypeError, ValueError):  # removed meanwhile, or of bfloat16
        return []


def _tables(saved: Sequence[Path]) -> Iterator[EmbeddingTable]:
    # The final weights in a trainer's folder are often a copy of its last checkpoint.
    *earlier, newest = saved[:-1] if len(saved) > 2 and saved[-1] == saved[-2].parent else saved
    before = earlier[-1] if earlier else None
    with safe_open(newest / _WEIGHTS, framework="np") as weights:
        moments = dict(_moments(newest / "state"))
        for name in weights.keys():  # noqa: SIM118 - it is no dictionary
            kind = _table_kind(name)
            if kind is None:
                continue
            values = weights.get_tensor(name)
            finite = bool(np.isfinite(values).all())
            if moments:
                unmoved = _rows_without_gradient(moments.get(name), len(values))
                yield EmbeddingTable(
                    name, kind, len(values), unmoved, True, "Adam's moments", finite
                )
            elif before is not None:
                table = _compared(before, newest, name, kind, values, weights, finite=finite)
                is_copy = not table.others_moved and newest == before.parent
                yield from () if is_copy else (table,)
            elif not finite:
                yield EmbeddingTable(name, kind, len(values), [], True, "its values", finite)


def _table_kind(name: str) -> str | None:
    if _WORDS.fullmatch(name):
        return "words"
    return "positions" if _POSITIONS.fullmatch(name) else None


def _rows_without_gradient(moment: Any, rows: int) -> list[int]:
    """The rows whose second moment is zero; all if the table has no moment."""
    if moment is None:
        return list(range(rows))
    return [int(row) for row in np.flatnonzero(~np.asarray(moment).any(axis=1))]


def _moments(folder: Path) -> Iterator[tuple[str, Any]]:
    """Adam's second moments of the embedding tables, by their names."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                owner, _, key = name.partition("/")[2].rpartition("/")
                if key == _MOMENT:
                    yield owner, tensors.get_tensor(name) if _table_kind(owner) else None


def _compared(
    before: Path, newest: Path, name: str, kind: str, values: Any, weights: Any, *, finite: bool
) -> EmbeddingTable:
    with safe_open(before / _WEIGHTS, framework="np") as earlier:
        same = (earlier.get_tensor(name) == values).all(axis=1)
        others = _other_names(weights.keys())
        moved = any(
            not np.array_equal(earlier.get_tensor(other), weights.get_tensor(other))
            for other in others
        )
    unmoved = [int(row) for row in np.flatnonzero(same)]
    seen_by = f"{before.name} and {newest.name}"
    return EmbeddingTable(name, kind, len(values), unmoved, moved, seen_by, finite)


def _other_names(names: Iterable[str]) -> list[str]:
    """The names of a few weights other than embeddings."""
    return [name for name in names if _table_kind(name) is None and name.endswith("weight")][:4]
