"""Resize the tables of a model, which have a row per token, to another vocabulary.

Rows of tokens that stay are copied. How the rows of new tokens are initialised is a choice:

mean      the mean of the pieces that it was read as (FVT, arXiv:2402.09977)
focus     tokens that are used like it in the text, weighted by sparsemax (FOCUS, arXiv:2305.14481)
normal    drawn from the normal distribution of all rows, with their mean and covariance
random    drawn from a normal distribution around 0 with a deviation of 0.02
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from clozelab.keys import root
from clozelab.models.uses import similar
from clozelab.text.extension import pieces
from clozelab.text.vocabulary import describe

Initialisation = Literal["mean", "focus", "normal", "random"]

# Tensors with a row for each id; those of ELMo's head have a row for each word.
_TABLE_NAMES = re.compile(
    r"(heads\.generator\.)?encoder\.embeddings\.(words\.weight|delta)"
    r"|heads\.(?!bidirectional_lm)\w+\.(head\.)?(bias|table)|idle_bias"
)
_SPREAD = 0.02  # the standard deviation of `random`, as BERT's


class RowSource(NamedTuple):
    """The rows of the old table whose weighted sum is a new row; if empty, it is drawn."""

    ids: Sequence[int]
    weights: Sequence[float]


def sources(
    old: Tokenizer, new: Tokenizer, *, initialisation: Initialisation, texts: Sequence[str] = ()
) -> list[RowSource]:
    """The source of each row of a table for the new tokenizer; `focus` needs `texts`.

    The row of a word without a known piece in the old tokenizer is drawn.
    """
    known, new_vocabulary = old.get_vocab(), new.get_vocab()
    names = [""] * describe(new).size
    for name, number in new_vocabulary.items():
        names[number] = name
    rows = [
        RowSource([known[name]], [1.0]) if name in known else RowSource([], []) for name in names
    ]
    new_ids = [number for number, name in enumerate(names) if name and name not in known]
    if initialisation in ("mean", "focus"):
        unknown = describe(old).roles.get("unk")
        for number, ids in zip(new_ids, pieces(old, [names[n] for n in new_ids]), strict=True):
            ids = [piece for piece in ids if piece != unknown]
            rows[number] = RowSource(ids, [1 / len(ids)] * len(ids) if ids else [])
    if initialisation == "focus":
        kept_ids = [number for number, name in enumerate(names) if name in known]
        for number, (others, weights) in similar(new, new_ids, kept_ids, texts=texts).items():
            rows[number] = RowSource([rows[other].ids[0] for other in others], weights)
    return rows


def is_table(name: str) -> bool:
    """Whether a tensor of a model has a row for each token."""
    return _TABLE_NAMES.fullmatch(name) is not None


def with_rows(
    weights: Mapping[str, Tensor],
    rows: Sequence[RowSource],
    *,
    initialisation: Initialisation,
    seed: int = 0,
) -> dict[str, Tensor]:
    """The weights with all tables resized to these rows."""
    resized = dict(weights)
    for name, value in weights.items():
        if is_table(name):
            resized[name] = _resized(
                value, rows, spread=initialisation, key=root(seed, f"row {name}")
            )
    return resized


def _resized(old: Tensor, rows: Sequence[RowSource], *, spread: str, key: int) -> Tensor:
    """One resized table; the rows of tokens that stay are copied exactly."""
    first_ids = torch.tensor([source.ids[0] if source.ids else 0 for source in rows])
    table = old[first_ids].clone()
    drawn = [number for number, source in enumerate(rows) if not source.ids]
    for number, source in enumerate(rows):
        if len(source.ids) > 1:
            weights = torch.tensor(source.weights).to(old)
            table[number] = torch.tensordot(weights, old[list(source.ids)], dims=1)
    if drawn:
        generator = torch.Generator().manual_seed(key >> 1)
        noise = torch.randn(len(drawn), *old.shape[1:], generator=generator).to(old)
        if spread == "random":
            table[drawn] = noise * (_SPREAD if old.dim() > 1 else 0.0)
        else:
            table[drawn] = _with_covariance(old, noise)
    return table


def _with_covariance(table: Tensor, noise: Tensor) -> Tensor:
    """Standard normal draws transformed to the mean and covariance of the rows."""
    mean = table.mean(0)
    if table.dim() == 1:
        return mean + noise * table.std(correction=0)
    centred = (table - mean).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(table))
    square_root = vectors * values.clamp_min(0).sqrt()
    drawn: Tensor = mean + (noise.double() @ square_root.T).to(table)
    return drawn
