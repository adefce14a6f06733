"""A shuffle by buckets on the disk, and windows of a plan: the same bytes whatever their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import synthetic_documents

from clozelab.blocks import PARTS, block_table, planned, sentences, shuffle, visits
from clozelab.blocks.planned import Make, PiecesInMemory, PlanPieces
from clozelab.contracts import Documents, PlanStretch
from clozelab.keys import mix
from clozelab.text.store.pieces import SharedPieces

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
    return synthetic_documents.documents(shape)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and buckets of a few hundred entries."""
    monkeypatch.setattr(visits, "_WINDOW", 37)
    monkeypatch.setattr(visits, "_PART", 2)
    monkeypatch.setattr(shuffle, "_PORTIONS", 4)
    monkeypatch.setattr(shuffle, "_BUCKET", 300)
    monkeypatch.setattr(shuffle, "_PIECE", 1024)


def joined(part: Any, documents: Documents, pieces: PlanPieces) -> PlanStretch:
    """The columns of all stretches, and their counts."""
    return planned.joined(part.stretches(documents, 4, pieces))


def assert_same(first: PlanStretch, other: PlanStretch) -> None:
    assert first.counts == other.counts and first.columns.keys() == other.columns.keys()
    for name, values in first.columns.items():
        assert values.dtype == other.columns[name].dtype
        assert np.array_equal(values, other.columns[name]), name


@pytest.mark.parametrize("name", PARTS)
def test_windows_and_buckets_do_not_change_a_byte(
    name: str, uneven: Documents, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    parts = [PARTS[name](length=32, **settings) for settings in SETTINGS.get(name, [{}])]
    whole = [joined(part, uneven, PiecesInMemory()) for part in parts]
    request.getfixturevalue("few")
    for number, (part, plain) in enumerate(zip(parts, whole, strict=True)):
        assert_same(joined(part, uneven, pieces_in(tmp_path / str(number))), plain)


class Backwards(PiecesInMemory):
    """Makes the last piece of a stage first, as a process may that others are ahead of."""

    def all_pieces(self, stage: str, count: int, make: Make) -> Iterable[PlanStretch]:
        for number in reversed(range(count)):
            self.piece(stage, number, make)
        return super().all_pieces(stage, count, make)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("far", [0, 1 << 18])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_knows_where_its_blocks_begin(
    name: str, far: int, uneven: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_table, "_FAR", far)
    monkeypatch.setattr(sentences, "_LEAD", min(far, 150))
    for settings in SETTINGS.get(name, [{}]):
        part = PARTS[name](length=32, **settings)
        assert_same(joined(part, uneven, Backwards()), joined(part, uneven, PiecesInMemory()))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("writers", [1, 2, 3])
@pytest.mark.parametrize("name", PARTS)
def test_any_number_of_writers_makes_the_same_plan(
    name: str, writers: int, uneven: Documents, tmp_path: Path
) -> None:
    part = PARTS[name](length=32, **SETTINGS.get(name, [{}])[0])
    pieces_in(tmp_path)
    with ThreadPoolExecutor(writers) as pool:
        tasks = [pool.submit(joined, part, uneven, SharedPieces(tmp_path)) for _ in range(writers)]
        plans = [task.result() for task in tasks]
    plain = joined(part, uneven, PiecesInMemory())
    for plan in plans:
        assert_same(plan, plain)


def pieces_in(folder: Path) -> SharedPieces:
    pieces = SharedPieces(folder)
    pieces.check()
    return pieces


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("count", [1, 150, 5000])
def test_a_permutation_is_a_sort_by_keys(count: int, tmp_path: Path) -> None:
    numbers = list(shuffle.permutation(count, 9, pieces_in(tmp_path)))
    assert (len(numbers) > 1) == (2 * count > 300)
    order = np.concatenate(numbers)
    assert np.array_equal(order, np.argsort(mix(9, np.arange(count)), kind="stable"))


def test_units_are_dealt_a_few_parts_at_a_time_and_never_cut() -> None:
    counts = np.array([3, 0, 4, 9, 2, 2, 2, 1])
    units = shuffle.UnitTable(len(counts), bounds=np.append(0, np.cumsum(counts)))
    assert units.cut(6) == [0, 2, 3, 4, 7, 8]
    assert shuffle.UnitTable(8).cut(3) == [0, 3, 6, 8]
