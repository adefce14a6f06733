"""Arrays into files by plain writes, so that a full disk is an error and not a crash."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np

from clozelab.contracts import Array, Ints
from clozelab.packed import ranges
from clozelab.text.store.manifest import ARRAYS
from clozelab.text.store.shards import Shard


def save_array(file: Path, array: Array) -> None:
    """Write a small array; np.save to a path does not say when it was the disk that was full."""
    whole = BytesIO()
    np.save(whole, array)
    file.write_bytes(whole.getvalue())


class Writer:
    """The arrays of a split, appended to; plain writes, since a full disk kills a mapped one."""

    def __init__(self, folder: Path, kind: type, *, totals: tuple[int, int, int]) -> None:
        tokens, sentences, documents = totals
        lengths = (tokens, tokens, sentences + 1, documents + 1)
        kinds = (kind, np.uint8, np.int64, np.int64)
        self._files: dict[str, BinaryIO] = {}
        self._kinds = {name: np.dtype(of) for name, of in zip(ARRAYS, kinds, strict=True)}
        for name, length in zip(ARRAYS, lengths, strict=True):
            self._files[name] = (folder / f"{name}.npy").open("wb")
            header = {"descr": self._kinds[name].str, "fortran_order": False, "shape": (length,)}
            np.lib.format.write_array_header_1_0(self._files[name], header)
        self._put("sentences", np.zeros(1))
        self._put("documents", np.zeros(1))
        self._tokens = self._sentences = 0

    def add(self, shard: Shard, begin: Ints, count: Ints) -> Array:
        """Append pieces of a shard, each of so many sentences from one on; returns their ids."""
        sentence = ranges(begin, count)
        size = shard.sentences[sentence + 1] - shard.sentences[sentence]
        token = ranges(shard.sentences[sentence], size)
        ids = shard.ids[token]
        self._put("ids", ids)
        self._put("marks", shard.marks[token])
        self._put("sentences", self._tokens + np.cumsum(size))
        self._put("documents", self._sentences + np.cumsum(count))
        self._tokens += len(ids)
        self._sentences += len(size)
        return ids

    def _put(self, name: str, values: Array) -> None:
        self._files[name].write(values.astype(self._kinds[name]).tobytes())

    def close(self) -> None:
        """Write everything to disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
