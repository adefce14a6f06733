"""Texts → vectors of any layer, for tokens, words or whole texts, and nearest neighbours."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from clozelab.contracts import Ints, Pooling
from clozelab.errors import UserError
from clozelab.files import replacing
from clozelab.models.model import Model, encoder_output, refuse_nan
from clozelab.models.reader import Text, batches
from clozelab.nearest import counted
from clozelab.packed import offsets
from clozelab.training.world import join

Floats = NDArray[np.float32]
Layer = int | Literal["all"]
Words = Literal["first", "mean", "none"]
Pool = Pooling | Literal["none"]

_BATCH_TOKENS = 8192
_MOST_LETTERS = 1 << 26  # numpy pads strings to the longest; arrays larger than this are not saved


@dataclass(frozen=True)
class Vectors:
    """The vectors of some texts, their rows one after another."""

    vectors: Floats  # [rows, W]; of all layers [rows, layers, W]
    starts: Ints  # [texts + 1] offsets of the rows of each text
    offsets: Ints  # [rows, 2] the characters of its text that each row stands for
    cut: int  # texts that were truncated
    longest: int  # tokens of the longest text, with special tokens

    def __repr__(self) -> str:
        shape = " × ".join(f"{size:,}" for size in self.vectors.shape)
        return f"Vectors({shape}, of {counted(len(self.starts) - 1, 'text')})"


@dataclass(frozen=True)
class Neighbour:
    """A text that is near to another."""

    line: int  # its number among the texts, from 1
    text: str
    cosine: float


@dataclass(frozen=True, repr=False)
class Neighbours:
    """The texts nearest to a query by the cosine of their vectors, the nearest first."""

    query: str
    neighbours: tuple[Neighbour, ...]
    vectors: Vectors  # of all texts that were compared, a row each

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self.neighbours)

    def __getitem__(self, number: int) -> Neighbour:
        return self.neighbours[number]

    def __len__(self) -> int:
        return len(self.neighbours)

    def __repr__(self) -> str:
        return "\n".join(f"{each.cosine:.4f}  line {each.line:,}: {each.text}" for each in self)


def nearest(
    query: str, texts: Sequence[str], *, embedded: Vectors, near: Floats, top: int
) -> Neighbours:
    """The texts whose vectors have the largest cosines with the query's; of equal ones the first.

    A text without a token has no direction and is left out.
    """
    rows = embedded.vectors.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    norm = float(np.linalg.norm(near.astype(np.float64)))
    kept = np.flatnonzero((norms > 0) & [bool(text.strip()) for text in texts])
    cosines = rows[kept] @ near.astype(np.float64) / np.maximum(norms[kept] * norm, 1e-300)
    best = np.argsort(-cosines, kind="stable")[:top]
    neighbours = (
        Neighbour(int(kept[index]) + 1, texts[kept[index]], float(cosines[index])) for index in best
    )
    return Neighbours(query, tuple(neighbours), embedded)


def follow(
    model: Model,
    texts: Sequence[str],
    *,
    layer: Layer = -1,
    words: Words = "mean",
    pool: Pool = "none",
    dimensions: int | None = None,
    device: str | None = None,
) -> Generator[int, None, Vectors]:
    """The vectors of some texts, which do not depend on one another; yields how many are done.

    Layer 0 is the embedding's output, -1 the last. Rows are tokens (`words = "none"`), words by
    their first piece or the mean of their pieces, or whole texts, by the vector of their [CLS] or
    the mean of their own tokens, or of all; `pool` goes before `words`. An empty text has no rows;
    pooled, its mean is zero. ELMo reads words, so to it tokens are words. Of each vector the first
    `dimensions` are kept, which are a vector by themselves where a model was trained so.
    """
    check_layer(model, layer)
    rows = model.read(texts)
    if pool == "cls" and any(text.cls is None for text in rows):
        raise UserError(f"{model.place}: its texts have no [CLS]; use --pool mean")
    parts: dict[int, tuple[Floats, Ints]] = {}
    with join(device) as world:
        model.module.to(world.device)
        for batch in batches(rows, tokens=_BATCH_TOKENS):
            states = _encode(model, [rows[index] for index in batch], layer)
            for index, states_of in zip(batch.tolist(), states, strict=True):
                parts[index] = _pool(rows[index], states_of, words, pool)
            yield len(parts)
    vectors, spans = zip(*(parts[index] for index in range(len(rows))), strict=True)
    return Vectors(
        vectors=np.concatenate(vectors)[..., :dimensions],
        starts=offsets([len(vectors_of) for vectors_of in vectors]),
        offsets=np.concatenate(spans),
        cut=sum(text.cut for text in rows),
        longest=max(map(len, rows)),
    )


def save(file: Path, embedded: Vectors, texts: Sequence[str]) -> list[str]:
    """Write vectors, starts, offsets, texts and words; the names of arrays too large to write."""
    text_of = np.repeat(np.arange(len(texts)), np.diff(embedded.starts)).tolist()
    spans = zip(text_of, embedded.offsets.tolist(), strict=True)
    words = [texts[number][first:stop] for number, (first, stop) in spans]
    arrays = {name: getattr(embedded, name) for name in ("vectors", "starts", "offsets")}
    strings = {"texts": _string_array(texts), "words": _string_array(words)}
    arrays |= {name: array for name, array in strings.items() if array is not None}
    with replacing(file) as stream:
        np.savez(stream, **arrays)
    return [name for name, array in strings.items() if array is None]


def check_dimensions(model: Model, dimensions: int | None) -> None:
    """Refuse more dimensions than a vector has."""
    width = model.recipe.encoder.vector_width
    if dimensions is not None and not 1 <= dimensions <= width:
        raise UserError(
            f"--dimensions {dimensions}: the vectors of {model.place} have {width}; give 1 to"
            f" {width}"
        )


def check_layer(model: Model, layer: Layer) -> None:
    """Refuse a layer that the model does not have."""
    top = model.recipe.encoder.layers
    if layer != "all" and not -top - 1 <= layer <= top:
        raise UserError(
            f"--layer {layer}: {model.place} has layers 0 (the embedding) to {top}, or from the"
            f" end -1 to {-top - 1}"
        )


@torch.inference_mode()
def _encode(model: Model, texts: list[Text], layer: Layer) -> list[Floats]:
    """[tokens, W] or [tokens, layers, W] of each text."""
    encoded = encoder_output(model, texts, keep=layer != -1)
    if layer == "all":
        states = torch.stack(encoded.layers, dim=1)
    else:
        states = encoded.hidden_states if layer == -1 else encoded.layers[layer]
    states = states.float().cpu()
    refuse_nan(model, states)
    array: Floats = states.numpy()
    return np.split(array, np.cumsum([len(text) for text in texts])[:-1])


def _pool(text: Text, states: Floats, words: Words, pool: Pool) -> tuple[Floats, Ints]:
    """The vectors of a text, and the characters that each stands for."""
    own = states[text.own]
    if pool != "none":
        full_span = np.array([[text.spans[0, 0], text.spans[-1, 1]] if len(own) else [0, 0]])
        pooled = states[text.pooled(pool)]
        return pooled.sum(axis=0, keepdims=True) / max(len(pooled), 1), full_span
    if words == "none" or not len(own):
        return own, text.spans
    first = np.flatnonzero(text.begins)
    sizes = np.diff(np.append(first, len(own)))
    spans = np.stack([text.spans[first, 0], text.spans[first + sizes - 1, 1]], axis=1)
    if words == "first":
        return own[first], spans
    sums = np.add.reduceat(own, first, axis=0)
    return np.divide(sums, sizes.reshape(-1, *[1] * (sums.ndim - 1)), dtype=np.float32), spans


def _string_array(values: Sequence[str]) -> NDArray[np.str_] | None:
    longest = max(map(len, values), default=0)
    return None if longest * len(values) > _MOST_LETTERS else np.array(values, dtype=np.str_)
