"""Micro-batches: nothing lost or doubled, constant shapes, and the same sums for every room."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import doubled, task

from clozelab.contracts import Batch, Targets
from clozelab.packed import offsets
from clozelab.training.packing import Room, Share, joined, room_for

torch.set_num_threads(1)
LONGEST = 12


def share_of(blocks: list[tuple[int, int]]) -> Share:
    """Blocks of so many tokens and targets; ids and labels tell which they are."""
    lengths = [length for length, _ in blocks]
    counts = [min(count, length) for length, count in blocks]
    tokens = sum(lengths)
    places = np.concatenate([np.arange(length) for length in lengths])
    at = np.concatenate([np.arange(count) for count in counts])
    labels = np.arange(sum(counts))
    pair = {"at": np.zeros(len(blocks), np.int64), "labels": np.arange(len(blocks)) % 2}
    return Share(
        {"ids": np.arange(1, tokens + 1), "places": places, "segments": np.zeros(tokens, int)},
        offsets(lengths),
        {
            "words": Targets(offsets(counts), {"at": at, "labels": labels, "left": at}),
            "pair": Targets(np.arange(len(blocks) + 1), pair),
        },
    )


shares = st.lists(
    st.tuples(st.integers(1, LONGEST), st.integers(0, LONGEST)), min_size=1, max_size=20
).map(share_of)
rooms = st.builds(
    Room,
    tokens=st.integers(LONGEST, 60),
    blocks=st.integers(1, 12),
    slots=st.fixed_dictionaries({"words": st.integers(1, 30), "pair": st.integers(1, 8)}),
    longest=st.just(LONGEST),
    constant=st.booleans(),
)


def real(batch: Batch) -> int:
    assert batch.input.real is not None
    return int(batch.input.real)


def sizes(batch: Batch) -> dict[str, int]:
    found = {"tokens": len(batch.input.ids), "blocks": len(batch.input.starts) - 1}
    return found | {name: len(columns["labels"]) for name, columns in batch.targets.items()}


@settings(max_examples=200, deadline=None)
@given(shares, rooms)
def test_every_token_and_target_is_in_one_micro_batch_at_its_place(
    share: Share, room: Room
) -> None:
    ids, labels, pairs, met = [], [], [], 0
    for batch in room.batches(share):
        given = batch.input
        ids += given.ids[: real(batch)].tolist()
        lengths = given.starts.diff()
        assert int(given.starts[-1]) == len(given.ids) and int(lengths.max()) <= LONGEST
        begins = torch.repeat_interleave(given.starts[:-1], lengths)
        assert (given.places == torch.arange(len(given.ids)) - begins).all()
        columns = batch.targets["words"]
        there = columns["labels"] != Targets.IGNORED
        labels += columns["labels"][there].tolist()
        assert torch.equal(columns["at"], columns["left"])
        # A target's place, counted over the micro-batch, is that of its own token.
        rows = np.repeat(np.arange(len(share)), np.diff(share.targets["words"].starts))
        wanted = share.starts[rows] + share.targets["words"].columns["at"] + 1
        mine = wanted[met : met + int(there.sum())]
        met += int(there.sum())
        assert given.ids[columns["at"][there]].tolist() == mine.tolist()
        kept = batch.targets["pair"]["labels"] != Targets.IGNORED
        pairs += batch.targets["pair"]["labels"][kept].tolist()
        assert (given.ids[real(batch) :] == 0).all()
    assert ids == list(range(1, share.tokens + 1))
    assert labels == list(range(share.counts()["words"]))
    assert pairs == [number % 2 for number in range(len(share))]


@settings(max_examples=200, deadline=None)
@given(shares, rooms)
def test_no_micro_batch_of_several_blocks_overflows_its_room(share: Share, room: Room) -> None:
    for part, batch in zip(room.divide(share), room.batches(share), strict=True):
        found = sizes(batch)
        if part.stop - part.start > 1:
            assert found["tokens"] <= room.tokens and found["blocks"] <= room.blocks
            assert all(found[name] <= most for name, most in room.slots.items())
            if room.constant:
                limits = {"tokens": room.tokens, "blocks": room.blocks}
                assert found == {**limits, **room.slots}
        if not room.constant:
            assert real(batch) == found["tokens"]


@settings(max_examples=100, deadline=None)
@given(shares, rooms)
def test_dense_is_said_of_full_blocks_and_of_nothing_else(share: Share, room: Room) -> None:
    for batch in room.batches(share):
        lengths = batch.input.starts.diff()
        full = bool((lengths == LONGEST).all()) and real(batch) == len(batch.input.ids)
        assert batch.input.dense == full


@settings(max_examples=100, deadline=None)
@given(shares, st.integers(LONGEST, 200), st.integers(1, 40))
def test_a_room_made_for_blocks_gives_them_constant_shapes(
    share: Share, tokens: int, blocks: int
) -> None:
    room = room_for(share, tokens=tokens, blocks=blocks, longest=LONGEST, constant=True)
    found = [sizes(batch) for batch in [*room.batches(share), room.lay(share, slice(0, 0))]]
    assert all(one == found[0] for one in found)
    assert LONGEST <= room.tokens <= max(tokens, LONGEST)


def test_a_blank_micro_batch_has_dummies_and_no_label() -> None:
    share = share_of([(5, 2), (7, 3)])
    for constant in (True, False):
        room = Room(24, 6, {"words": 8, "pair": 4}, LONGEST, constant)
        blank = room.lay(share, slice(0, 0))
        assert real(blank) == 0 and len(blank.input.ids) > 0 and not blank.input.dense
        for columns in blank.targets.values():
            assert (columns["labels"] == Targets.IGNORED).all()


def test_shares_join_end_to_end_and_rows_of_one_size_stay_even() -> None:
    parts = [share_of([(5, 2), (7, 3)]), share_of([(4, 4)]), share_of([(12, 0)])]
    whole = joined(parts)
    assert len(whole) == 4 and whole.tokens == 28
    assert whole.starts.tolist() == [0, 5, 12, 16, 28]
    assert whole.targets["words"].starts.tolist() == [0, 2, 5, 9, 9]
    assert whole.counts() == {"words": 9, "pair": 4}
    even = joined([share_of([(5, 2), (7, 2)]), share_of([(8, 4)])])
    assert even.targets["words"].starts.tolist() == [0, 4, 8, 12]
    assert even.counts()["words"] == 8


@pytest.mark.parametrize("name", ["bert", "albert", "spanbert", "gpt", "distilbert", "elmo"])
def test_the_sums_are_the_same_for_every_room_and_with_dummies(name: str) -> None:
    setup = doubled(task(name, sequences=7))
    source = setup.sources(0)[0]
    share = source.share(0, source.order(0)[:7], progress=0.0)
    setup.model.eval()
    found = []
    for tokens, constant in ((1024, False), (32, False), (96, True), (1024, True)):
        room = room_for(share, tokens=tokens, blocks=7, longest=32, constant=constant)
        total: dict[tuple[str, str], torch.Tensor] = {}
        for batch in room.batches(share):
            for objective, sums in setup.model(batch)[0].items():
                for what, value in sums.items():
                    before = total.get((objective, what), torch.zeros(()))
                    total[objective, what] = before + value.detach().double()
        found.append(total)
    for one in found[1:]:
        assert one.keys() == found[0].keys()
        for key in one:
            torch.testing.assert_close(one[key], found[0][key], rtol=1e-9, atol=1e-9)
