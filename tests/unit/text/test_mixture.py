"""Mixtures: the share of each corpus, known before anything is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pretrain_runs import store

from clozelab.errors import UserError
from clozelab.text.store.corpus import Corpus, Store, open_stores
from clozelab.text.store.mixture import shares, tempered

KIND = "byte_bpe"


def stores(*sizes: tuple[int, float]) -> list[Store]:
    """Stores that say they have so many tokens, each with a weight."""
    corpus = Corpus.open(store(KIND))
    splits = corpus.manifest["splits"]
    opened: list[Store] = []
    for tokens, weight in sizes:
        train = {**splits["train"], "tokens": tokens}
        manifest = {**corpus.manifest, "splits": {**splits, "train": train}}
        opened.append((replace(corpus, manifest=manifest), weight))
    return opened


def test_a_share_is_size_times_weight() -> None:
    first, second = shares(stores((300, 1.0), (100, 3.0)))
    assert (first.share, second.share) == (0.5, 0.5)
    assert first.oversampling == pytest.approx(0.5 / 0.75)
    assert second.oversampling == pytest.approx(2)
    assert (first.epochs(1200), second.epochs(1200)) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("temperature", "weights"),
    [(1.0, (1, 2)), (2.0, (1, 2 * 10)), (1e9, (1, 2 * 100)), (0.5, (1, 2 / 100))],
)
def test_a_temperature_is_a_power_of_the_size(
    temperature: float, weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes_and_weights = stores((1_000_000, 1.0), (10_000, 2.0))
    monkeypatch.setattr("clozelab.text.store.mixture.open_stores", lambda places: sizes_and_weights)
    new_weights = [float(place.rpartition(":")[2]) for place in tempered(["a", "b:2"], temperature)]
    assert new_weights == pytest.approx(weights, rel=1e-5)


def test_tempered_places_open_with_the_weights_that_they_name() -> None:
    places = [store(KIND), f"{store(KIND, skip=30)}:0.3"]
    assert tempered(places, None) == places
    weights = [weight for _, weight in open_stores(tempered(places, 3.0))]
    assert max(weights) >= 1 and len(weights) == 2
    assert [float(f"{weight:g}") for weight in weights] == weights  # as a run records them
    with pytest.raises(UserError, match="--mix-temperature 0: must be above 0"):
        tempered(places, 0.0)
