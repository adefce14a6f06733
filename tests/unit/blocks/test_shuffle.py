"""A shuffle by buckets on the disk, and windows of a plan: the same bytes whatever their sizes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import made

from clozelab.blocks import PARTS, shuffle, visits
from clozelab.contracts import Documents
from clozelab.keys import mix

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "segment_pair": [{}, {"compat": "google", "order": "sentences"}, {"single": "skip"}],
    "sentence_pair": [{}, {"last": "random", "negatives": "same_document"}],
    "full_sentences": [{}, {"order": "sentences"}],
    "doc_sentences": [{}, {"compat": "spanbert"}],
    "sentence_order": [{}, {"compat": "albert"}],
    "stream_pair": [{"reuse": 8, "rows": 4}],
}


@pytest.fixture(scope="module")
def uneven() -> Documents:
    """Empty documents and sentences, sentences of one token, and some longer than a block."""
    rng = np.random.default_rng(3)
    kinds = (2, 20, 90)
    shape = [rng.integers(0, kinds[n % 3], rng.integers(0, 25)).tolist() for n in range(150)]
    return made.documents(shape)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and buckets of a few hundred entries."""
    monkeypatch.setattr(visits, "_WINDOW", 37)
    monkeypatch.setattr(shuffle, "_BUCKET", 300)
    monkeypatch.setattr(shuffle, "_PIECE", 1024)


def joined(part: Any, documents: Documents, folder: Path | None) -> tuple[Any, Counter[str]]:
    """The columns of all stretches, and their counts."""
    stretches, counts = list(part.stretches(documents, 4, folder)), Counter[str]()
    for stretch in stretches:
        counts.update(stretch.counts)
    names = stretches[0].columns
    return {n: np.concatenate([s.columns[n] for s in stretches]) for n in names}, counts


@pytest.mark.parametrize("name", PARTS)
def test_windows_and_buckets_do_not_change_a_byte(
    name: str, uneven: Documents, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    parts = [PARTS[name](length=32, **settings) for settings in SETTINGS.get(name, [{}])]
    whole = [joined(part, uneven, None) for part in parts]
    request.getfixturevalue("few")
    for part, (columns, counts) in zip(parts, whole, strict=True):
        others, told = joined(part, uneven, tmp_path)
        assert told == counts
        for column, values in columns.items():
            assert values.dtype == others[column].dtype
            assert np.array_equal(values, others[column]), column
    assert not list(tmp_path.iterdir())  # scratch files have no names


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [1, 150, 5000])
def test_a_permutation_is_a_sort_by_keys(count: int, tmp_path: Path) -> None:
    pieces = list(shuffle.permutation(count, 9, tmp_path))
    assert (len(pieces) > 1) == (2 * count > 300)
    order = np.concatenate(pieces)
    assert np.array_equal(order, np.argsort(mix(9, np.arange(count)), kind="stable"))
