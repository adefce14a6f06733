"""Columns of numbers in a folder: written some rows at a time, memory-mapped when read.

NAME.bin    a column
plan.json   the purpose of the columns, a checksum of each, a seal; written last
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from clozelab import files
from clozelab.contracts import PlanStretch
from clozelab.text.store.corpus import CHECKED_WHOLE
from clozelab.text.store.manifest import render

NAME = "plan.json"


def write(
    folder: Path, stretches: Iterable[PlanStretch], *, purpose: Mapping[str, Any], lasting: bool
) -> None:
    """Write the columns, then their description; `lasting` syncs them to the disk."""
    columns, counts = _write_columns(folder, stretches, lasting=lasting)
    text = render({"purpose": dict(purpose), "columns": columns, "counts": counts})
    if lasting:
        files.write_text(folder / NAME, text)
    else:
        part = folder / f".{NAME}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, folder / NAME)


def _write_columns(
    folder: Path, stretches: Iterable[PlanStretch], *, lasting: bool
) -> tuple[dict[str, Any], dict[str, int]]:
    """Append the rows of each stretch to the columns; their descriptions, and the sum of counts."""
    columns: dict[str, dict[str, Any]] = {}
    digests: dict[str, Any] = {}
    counts = Counter[str]()
    with ExitStack() as stack:
        streams: dict[str, Any] = {}
        for stretch in stretches:
            for name, values in stretch.columns.items():
                if name not in streams:
                    streams[name] = stack.enter_context((folder / f"{name}.bin").open("xb"))
                    columns[name] = {"dtype": values.dtype.str, "length": 0}
                    digests[name] = sha256()
                rows = np.ascontiguousarray(values).data
                streams[name].write(rows)
                digests[name].update(rows)
                columns[name]["length"] += len(values)
            counts.update(stretch.counts)
        for stream in streams.values():
            stream.flush()
            if lasting:
                os.fsync(stream.fileno())
    for name, digest in digests.items():
        columns[name]["sha256"] = digest.hexdigest()
    return columns, dict(counts)


def mapped(folder: Path, *, checksums: bool | None = None) -> PlanStretch | None:
    """The columns in a folder, memory-mapped; None if they are missing, unfinished or damaged.

    Sizes are compared, and checksums too: if asked for, or by default for up to 256 MB.
    """
    entry = read(folder)
    if entry is None:
        return None
    if checksums is None:
        checksums = sum(map(_column_bytes, entry["columns"].values())) <= CHECKED_WHOLE
    columns = {}
    try:
        for name, column in entry["columns"].items():
            file = folder / f"{name}.bin"
            if file.stat().st_size != _column_bytes(column):
                return None
            if checksums and files.sha256(file) != column["sha256"]:
                return None
            empty = np.zeros(0, dtype=column["dtype"])  # an empty file cannot be mapped
            values = np.memmap(file, dtype=column["dtype"], mode="r") if column["length"] else empty
            columns[name] = np.asarray(values)
    except FileNotFoundError:  # it is missing, or being removed
        return None
    with suppress(OSError):  # it may belong to another user
        os.utime(folder / NAME)
    return PlanStretch(columns, entry["counts"])


def _column_bytes(column: Mapping[str, Any]) -> int:
    return int(column["length"] * np.dtype(column["dtype"]).itemsize)


def read(folder: Path) -> dict[str, Any] | None:
    """The description of the columns; None if they are unfinished or its seal is broken."""
    try:
        text = (folder / NAME).read_text(encoding="utf-8")
        entry: dict[str, Any] = json.loads(text)
        return entry if text == render(entry) else None
    except (OSError, ValueError, AttributeError):
        return None


def clear(folder: Path) -> None:
    """Remove the columns, so that new ones are new files.

    Another process may have mapped the old files.
    """
    for file in [folder / NAME, *folder.glob("*.bin")]:
        file.unlink(missing_ok=True)
