"""Several stores that are read together, each with its weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clozelab.errors import UserError
from clozelab.text.store.corpus import Corpus

Store = tuple[Corpus, float]


def open_stores(places: Sequence[str]) -> list[Store]:
    """The stores behind `DIR` or `DIR:WEIGHT`, all with one tokenizer."""
    stores = []
    for place in places:
        path, sign, number = place.rpartition(":")
        weight = 1.0
        if sign and not Path(place).exists():
            try:
                weight = float(number)
            except ValueError:
                raise UserError(
                    f"--data {place}: {number} is no weight; write DIR or DIR:0.5"
                ) from None
            if not 0 < weight < float("inf"):
                raise UserError(f"--data {place}: a weight must be above 0")
            place = path
        stores.append((Corpus.open(place), weight))
    if not stores:
        raise UserError("no corpus to train on: give one by --data DIR")
    first = stores[0][0]
    for corpus, _ in stores[1:]:
        if corpus.tokenizer.to_str() != first.tokenizer.to_str():
            raise UserError(
                f"{corpus.path}: its tokenizer is not that of {first.path}; build it again with"
                f" --tokenizer-from {first.path}"
            )
    return stores
