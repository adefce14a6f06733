"""The tables of a model, which have a row for each token, made anew for another vocabulary.

A row is that of a token that stays, or of a new one. What a new one begins with is a choice:

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

# What has a row for each id; ELMo's head counts words.
_TABLED = re.compile(
    r"(heads\.generator\.)?encoder\.embeddings\.(words\.weight|delta)"
    r"|heads\.(?!bidirectional_lm)\w+\.(head\.)?(bias|table)|idle_bias"
)
_SPREAD = 0.02  # of `random`: BERT's


class RowSource(NamedTuple):
    """The rows of an old table that a new row is made of, and their weights; none: it is drawn."""

    ids: Sequence[int]
    weights: Sequence[float]


def sources(
    old: Tokenizer, new: Tokenizer, *, initialisation: Initialisation, texts: Sequence[str] = ()
) -> list[RowSource]:
    """What each row of a table for the new tokenizer is made of; `texts` show how words are used.

    A word of which the old tokenizer knew no piece is drawn.
    """
    known, table = old.get_vocab(), new.get_vocab()
    names = [""] * describe(new).size
    for name, number in table.items():
        names[number] = name
    rows = [
        RowSource([known[name]], [1.0]) if name in known else RowSource([], []) for name in names
    ]
    fresh = [number for number, name in enumerate(names) if name and name not in known]
    if initialisation in ("mean", "focus"):
        unknown = describe(old).roles.get("unk")
        for number, ids in zip(fresh, pieces(old, [names[n] for n in fresh]), strict=True):
            ids = [each for each in ids if each != unknown]
            rows[number] = RowSource(ids, [1 / len(ids)] * len(ids) if ids else [])
    if initialisation == "focus":
        stay = [number for number, name in enumerate(names) if name in known]
        for number, (others, weights) in similar(new, fresh, stay, texts=texts).items():
            rows[number] = RowSource([rows[other].ids[0] for other in others], weights)
    return rows


def is_table(name: str) -> bool:
    """Whether a tensor of a model has a row for each token."""
    return _TABLED.fullmatch(name) is not None


def with_rows(
    weights: Mapping[str, Tensor],
    rows: Sequence[RowSource],
    *,
    initialisation: Initialisation,
    seed: int = 0,
) -> dict[str, Tensor]:
    """The weights with tables of these rows."""
    resized = dict(weights)
    for name, value in weights.items():
        if is_table(name):
            resized[name] = _table(
                value, rows, spread=initialisation, key=root(seed, f"row {name}")
            )
    return resized


def _table(old: Tensor, rows: Sequence[RowSource], *, spread: str, key: int) -> Tensor:
    """One table; rows that stay are the same bits."""
    single = torch.tensor([source.ids[0] if source.ids else 0 for source in rows])
    table = old[single].clone()
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
            table[drawn] = _like_rows(old, noise)
    return table


def _like_rows(table: Tensor, noise: Tensor) -> Tensor:
    """Draws of a standard normal distribution as draws with the rows' mean and covariance."""
    mean = table.mean(0)
    if table.dim() == 1:
        return mean + noise * table.std(correction=0)
    centred = (table - mean).double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(table))
    root_of = vectors * values.clamp_min(0).sqrt()
    drawn: Tensor = mean + (noise.double() @ root_of.T).to(table)
    return drawn
