"""Mixtures of corpora: how often each corpus is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clozelab.errors import UserError
from clozelab.text.store.corpus import Store, open_stores


@dataclass(frozen=True)
class MixtureShare:
    """One corpus of a mixture."""

    path: str
    tokens: int  # of its training text
    weight: float
    share: float  # of the tokens of a step
    oversampling: float  # that share, divided by its share of all tokens

    def epochs(self, tokens: float) -> float:
        """How many epochs of it a run of so many tokens reads."""
        return tokens * self.share / max(self.tokens, 1)


def shares(stores: Sequence[Store]) -> list[MixtureShare]:
    """The mixture of some stores: shares in proportion to size times weight."""
    tokens = [_tokens(store) for store in stores]
    weighted = [count * weight for count, (_, weight) in zip(tokens, stores, strict=True)]
    return [
        MixtureShare(
            path=corpus.name,
            tokens=count,
            weight=weight,
            share=size / sum(weighted),
            oversampling=size / sum(weighted) / (count / sum(tokens)),
        )
        for (corpus, weight), count, size in zip(stores, tokens, weighted, strict=True)
    ]


def tempered(places: Sequence[str], temperature: float | None) -> list[str]:
    """`DIR:WEIGHT` of each corpus, with weights that make its share its size to the power of 1 / T.

    Above a temperature of 1 small corpora are read more often, and at infinity all equally (XLM-R's
    α is 1 / T). Given weights are multiplied in; that of the largest corpus does not change.
    """
    if temperature is None:
        return list(places)
    if not temperature > 0:
        raise UserError(f"--mix-temperature {temperature:g}: must be above 0; 1 leaves the weights")
    stores = open_stores(places)
    largest = max(map(_tokens, stores))
    powers = [(_tokens(store) / largest) ** (1 / temperature - 1) for store in stores]
    # Six digits, as a run records them, so that a resumed run has the same weights.
    return [
        f"{corpus.place}:{weight * power:.6g}"
        for (corpus, weight), power in zip(stores, powers, strict=True)
    ]


def _tokens(store: Store) -> int:
    return max(1, int(store[0].manifest["splits"]["train"]["tokens"]))
