"""Tokens that are used alike in a text, to initialise new tokens by known ones (FOCUS, §3).

FOCUS (arXiv:2305.14481) makes a new row of the rows of known tokens, by how similar they are in
static vectors of the text, weighted by sparsemax (arXiv:1602.02068).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from clozelab.contracts import Bools, Counts, Ints
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.vocabulary import describe

Floats = NDArray[np.float64]

# Not tuned: the first two are word2vec's defaults.
_WINDOW = 5  # tokens on either side that count as context
_RARE = 5  # tokens with fewer occurrences have no vector
_DIMENSIONS = 64  # of a token's vector
_TINY = 1e-12


def similar(
    tokenizer: Tokenizer, fresh: Sequence[int], known: Sequence[int], *, texts: Sequence[str]
) -> dict[int, tuple[list[int], list[float]]]:
    """For new tokens, the known ones that are used like them in the texts, and their weights."""
    vectors, often = _context_vectors(tokenizer, texts)
    special = {*describe(tokenizer).special.tolist()}
    others = np.array([n for n in known if often[n] and n not in special], np.int64)
    rows = [n for n in fresh if often[n]]
    if not len(others) or not rows:
        return {}
    neighbours = {}
    for number, cosines in zip(rows, vectors[rows] @ vectors[others].T, strict=True):
        weights = sparsemax(cosines)
        nonzero = np.flatnonzero(weights)
        neighbours[number] = (others[nonzero].tolist(), weights[nonzero].tolist())
    return neighbours


# Differs from FOCUS, whose vectors are fastText's: these are of counts, and need no training.
def _context_vectors(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Floats, Bools]:
    """[V, D] vectors of length 1 for tokens, and [V] which tokens occur often enough for one.

    They are the singular vectors of the positive pointwise mutual information with the context.
    """
    from scipy import sparse  # imported late: not needed to load a model
    from scipy.sparse.linalg import svds

    size = describe(tokenizer).size
    tokenised = CachedTokenizer(tokenizer, segment=False, counts=Counts()).encode(list(texts))
    ids, text_of = tokenised.ids, np.repeat(np.arange(len(texts)), np.diff(tokenised.starts))
    counts = np.bincount(ids, minlength=size)
    matrix_of: Any = sparse.csr_matrix
    pairs = matrix_of((size, size))
    for step in range(1, _WINDOW + 1):
        same_text = text_of[step:] == text_of[:-step]
        pair: tuple[Ints, Ints] = (ids[:-step][same_text], ids[step:][same_text])
        pairs = pairs + matrix_of((np.ones(len(pair[0])), pair), shape=(size, size))
    pairs = (pairs + pairs.T).tocoo()
    margin = np.asarray(pairs.sum(axis=1)).ravel()
    expected = margin[pairs.row] * margin[pairs.col] / max(margin.sum(), 1)
    information = np.maximum(np.log(pairs.data / np.maximum(expected, _TINY)), 0)
    matrix = matrix_of((information, (pairs.row, pairs.col)), shape=(size, size))
    often = counts >= _RARE
    depth = min(_DIMENSIONS, int(often.sum()) - 1)
    if depth < 1 or not matrix.nnz:
        return np.zeros((size, 1)), np.zeros(size, bool)
    left, values, _ = svds(matrix, k=min(depth, size - 1), random_state=0)
    vectors = left * np.sqrt(values)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY), often


def sparsemax(scores: Floats) -> Floats:
    """The nearest point of the simplex: weights that sum to one, most of them zero."""
    ordered = np.sort(scores)[::-1]
    sums = np.cumsum(ordered)
    support = np.flatnonzero(1 + np.arange(1, len(scores) + 1) * ordered > sums)[-1] + 1
    weights: Floats = np.maximum(scores - (sums[support - 1] - 1) / support, 0)
    return weights
