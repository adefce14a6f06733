"""Near-duplicate documents: MinHash signatures of their n-grams of words, cut into bands, of which
near-duplicates share at least one (Leskovec et al., Mining of Massive Datasets, chapter 3).
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from clozelab.contracts import Ints, Keys
from clozelab.errors import UserError
from clozelab.keys import fold
from clozelab.packed import offsets
from clozelab.text.overlap import ngrams

HASHES = 128  # per signature; the share of equal ones estimates a similarity of 0.8 to ± 0.035
_SHINGLE = 5  # words in an n-gram, as in arXiv:2107.06499
_SEED = 0
_RECALL = 0.99  # the share of pairs at the threshold that must share a band

Signatures = NDArray[np.uint32]


def check() -> None:
    """Refuse where the package that computes signatures is not installed."""
    package = find_spec("rensa")
    if package is None or package.origin is None:  # a folder of that name is no package
        raise UserError("--near-duplicates needs another package; pip install clozelab[dedup]")


def algorithm() -> str:
    """What signatures depend on besides the text, for cache keys."""
    from rensa import RMinHash

    return f"rensa {RMinHash.ALGORITHM_VERSION}, {HASHES} hashes of {_SHINGLE} words"


def signatures(words: Keys, sizes: Ints, *, digests: Keys) -> Signatures:
    """[documents, HASHES] the signatures of packed documents of `sizes` words.

    A document that is too short for an n-gram has its digest as its only one.
    """
    from rensa import RMinHash

    document = np.repeat(np.arange(len(sizes)), sizes)
    keys = ngrams(words, _SHINGLE)
    keys = keys[document[: len(keys)] == document[_SHINGLE - 1 :]]
    counts = np.maximum(sizes - _SHINGLE + 1, 0)
    short = np.flatnonzero(counts == 0)
    keys = np.insert(keys, offsets(counts)[short], digests[short])
    starts = offsets(np.maximum(counts, 1)).astype(np.uint64)
    rows = RMinHash.digest_matrix_from_flat_token_hashes(keys, starts, HASHES, _SEED).to_rows()
    return np.array(rows, dtype=np.uint32).reshape(-1, HASHES)


def rows_of_bands(threshold: float) -> int:
    """The most hashes per band with which pairs at the threshold still share one (_RECALL)."""
    for rows in range(HASHES, 1, -1):
        if 1 - (1 - threshold**rows) ** (HASHES // rows) >= _RECALL:
            return rows
    return 1


def bands(signatures: Signatures, threshold: float) -> Keys:
    """[documents, bands] the keys of the bands; documents that share one are compared."""
    rows = rows_of_bands(threshold)
    count = HASHES // rows
    values = signatures[:, : count * rows].reshape(-1)
    return fold(values, np.arange(0, len(values), rows)).reshape(-1, count)


def similarities(first: Signatures, second: Signatures) -> NDArray[np.float64]:
    """The estimated Jaccard similarity of each pair of documents."""
    return np.asarray((first == second).mean(axis=1))
