"""Micro-batches: nothing lost or doubled, constant shapes, and the same sums for every room."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.pretrain_runs import double_precision_trainer, pretrain_job

from clozelab.contracts import Batch, Targets
from clozelab.packed import offsets
from clozelab.training.packing import BatchShape, PackedExamples, batch_shape, concatenate

torch.set_num_threads(1)
LONGEST = 12


def share_of(blocks: list[tuple[int, int]]) -> PackedExamples:
    """Blocks of so many tokens and targets; ids and labels tell which they are."""
    lengths = [length for length, _ in blocks]
    counts = [min(count, length) for length, count in blocks]
    tokens = sum(lengths)
    places = np.concatenate([np.arange(length) for length in lengths])
    at = np.concatenate([np.arange(count) for count in counts])
    labels = np.arange(sum(counts))
    pair = {"at": np.zeros(len(blocks), np.int64), "labels": np.arange(len(blocks)) % 2}
    return PackedExamples(
        {
            "ids": np.arange(1, tokens + 1),
            "position_ids": places,
            "segments": np.zeros(tokens, int),
        },
        offsets(lengths),
        {
            "words": Targets(offsets(counts), {"at": at, "labels": labels, "left": at}),
            "pair": Targets(np.arange(len(blocks) + 1), pair),
        },
    )


def grouped(groups: list[list[tuple[int, int]]]) -> PackedExamples:
    """The same in groups of blocks; numbers to predict that are not whole, some read backwards."""
    examples = share_of([block for group in groups for block in group])
    blocks = np.arange(len(examples))
    value = Targets(np.arange(len(examples) + 1), {"at": blocks * 0, "labels": blocks / 7 - 0.3})
    targets = {**examples.targets, "value": value}
    sizes = [len(group) for group in groups]
    return replace(examples, targets=targets, reverse=blocks % 3 == 1, groups=offsets(sizes))


packs = st.lists(
    st.tuples(st.integers(1, LONGEST), st.integers(0, LONGEST)), min_size=1, max_size=20
).map(share_of)
groups = st.lists(
    st.lists(st.tuples(st.integers(1, LONGEST), st.integers(0, LONGEST)), min_size=1, max_size=4),
    min_size=1,
    max_size=9,
).map(grouped)
slots = {"words": st.integers(1, 30), "pair": st.integers(1, 8), "value": st.integers(1, 8)}
rooms = st.builds(
    BatchShape,
    tokens=st.integers(LONGEST, 60),
    blocks=st.integers(1, 12),
    slots=st.fixed_dictionaries(slots),
    max_seqlen=st.just(LONGEST),
    constant=st.booleans(),
)


def real(batch: Batch) -> int:
    assert batch.input.real is not None
    return int(batch.input.real)


def sizes(batch: Batch) -> dict[str, int]:
    counts = {"tokens": len(batch.input.ids), "blocks": len(batch.input.cu_seqlens) - 1}
    return counts | {name: len(columns["labels"]) for name, columns in batch.targets.items()}


@max_examples(200)
@given(packs, rooms)
def test_every_token_and_target_is_in_one_micro_batch_at_its_place(
    examples: PackedExamples, shape: BatchShape
) -> None:
    ids, labels, pairs, met = [], [], [], 0
    for batch in shape.batches(examples):
        inputs = batch.input
        ids += inputs.ids[: real(batch)].tolist()
        lengths = inputs.cu_seqlens.diff()
        assert int(inputs.cu_seqlens[-1]) == len(inputs.ids) and int(lengths.max()) <= LONGEST
        begins = torch.repeat_interleave(inputs.cu_seqlens[:-1], lengths)
        assert (inputs.position_ids == torch.arange(len(inputs.ids)) - begins).all()
        columns = batch.targets["words"]
        there = columns["labels"] != Targets.IGNORED
        labels += columns["labels"][there].tolist()
        assert torch.equal(columns["at"], columns["left"])
        # A target's place, counted over the micro-batch, is that of its own token.
        rows = np.repeat(np.arange(len(examples)), np.diff(examples.targets["words"].starts))
        wanted = examples.starts[rows] + examples.targets["words"].columns["at"] + 1
        mine = wanted[met : met + int(there.sum())]
        met += int(there.sum())
        assert inputs.ids[columns["at"][there]].tolist() == mine.tolist()
        labelled = batch.targets["pair"]["labels"] != Targets.IGNORED
        pairs += batch.targets["pair"]["labels"][labelled].tolist()
        assert (inputs.ids[real(batch) :] == 0).all()
    assert ids == list(range(1, examples.tokens + 1))
    assert labels == list(range(examples.counts()["words"]))
    assert pairs == [number % 2 for number in range(len(examples))]


@max_examples(200)
@given(packs, rooms)
def test_no_micro_batch_of_several_blocks_overflows_its_room(
    examples: PackedExamples, shape: BatchShape
) -> None:
    for part, batch in zip(shape.divide(examples), shape.batches(examples), strict=True):
        counts = sizes(batch)
        if part.stop - part.start > 1:
            assert counts["tokens"] <= shape.tokens and counts["blocks"] <= shape.blocks
            most = {name: shape.slots[name] for name in examples.targets}
            if shape.constant:
                limits = {"tokens": shape.tokens, "blocks": shape.blocks}
                assert counts == {**limits, **most}
            for name, target in examples.targets.items():
                # Where there is nothing to predict each block has an idle slot.
                none = target.starts[part.stop] == target.starts[part.start]
                assert counts[name] <= most[name] or (none and counts[name] == counts["blocks"])
        if not shape.constant:
            assert real(batch) == counts["tokens"]


@max_examples(100)
@given(packs, rooms)
def test_dense_is_said_of_full_blocks_and_of_nothing_else(
    examples: PackedExamples, shape: BatchShape
) -> None:
    for batch in shape.batches(examples):
        lengths = batch.input.cu_seqlens.diff()
        full = bool((lengths == LONGEST).all()) and real(batch) == len(batch.input.ids)
        assert batch.input.dense == full


@max_examples(100)
@given(packs, st.integers(LONGEST, 200), st.integers(1, 40))
def test_a_room_made_for_blocks_gives_them_constant_shapes(
    examples: PackedExamples, tokens: int, blocks: int
) -> None:
    shape = batch_shape(examples, tokens=tokens, blocks=blocks, max_seqlen=LONGEST, constant=True)
    shapes = [
        sizes(batch) for batch in [*shape.batches(examples), shape.collate(examples, slice(0, 0))]
    ]
    assert all(counts == shapes[0] for counts in shapes)
    assert LONGEST <= shape.tokens <= max(tokens, LONGEST)


def test_blocks_that_differ_in_their_rate_still_fit_into_one_micro_batch() -> None:
    rng = np.random.default_rng(0)

    def step() -> PackedExamples:
        return share_of([(128, int(count)) for count in rng.integers(1, 129, 32)])

    sample = concatenate([step() for _ in range(8)])
    shape = batch_shape(sample, tokens=32 * 128, blocks=32, max_seqlen=128, constant=True)
    assert shape.slots["words"] < 0.8 * 32 * 128
    assert sum(len(shape.divide(step())) > 1 for _ in range(200)) <= 3  # three standard deviations


def test_weights_are_what_targets_count_for_and_labels_what_is_predicted() -> None:
    examples = share_of([(6, 4), (10, 2)])
    words = examples.targets["words"]
    weights = np.repeat([6 / 4, 10 / 2], [4, 2])
    weighted = replace(words, columns={**words.columns, "weights": weights})
    examples = replace(examples, targets={**examples.targets, "words": weighted})
    assert examples.counts() == {"words": 16, "pair": 2}
    assert examples.shares() == {"words": 6 / 16, "pair": 2 / 16}


def test_a_blank_micro_batch_has_dummies_and_no_label() -> None:
    examples = share_of([(5, 2), (7, 3)])
    for constant in (True, False):
        shape = BatchShape(24, 6, {"words": 8, "pair": 4}, LONGEST, constant)
        blank = shape.collate(examples, slice(0, 0))
        assert real(blank) == 0 and len(blank.input.ids) > 0 and not blank.input.dense
        for columns in blank.targets.values():
            assert (columns["labels"] == Targets.IGNORED).all()


def test_shares_join_end_to_end_and_rows_of_one_size_stay_even() -> None:
    parts = [share_of([(5, 2), (7, 3)]), share_of([(4, 4)]), share_of([(12, 0)])]
    whole = concatenate(parts)
    assert len(whole) == 4 and whole.tokens == 28
    assert whole.starts.tolist() == [0, 5, 12, 16, 28]
    assert whole.targets["words"].starts.tolist() == [0, 2, 5, 9, 9]
    assert whole.counts() == {"words": 9, "pair": 4}
    even = concatenate([share_of([(5, 2), (7, 2)]), share_of([(8, 4)])])
    assert even.targets["words"].starts.tolist() == [0, 4, 8, 12]
    assert even.counts()["words"] == 8


def content(examples: PackedExamples) -> dict[str, list[float]]:
    """All of a share, by name."""
    contents = {name: values.tolist() for name, values in examples.columns.items()}
    for name, targets in examples.targets.items():
        contents[f"{name} starts"] = targets.starts.tolist()
        contents |= {f"{name} {column}": v.tolist() for column, v in targets.columns.items()}
    contents["reverse"] = [] if examples.reverse is None else examples.reverse.tolist()
    return {**contents, "starts": examples.starts.tolist(), "units": examples.units.tolist()}


@max_examples(100)
@given(groups, st.randoms(use_true_random=False))
def test_groups_picked_in_another_order_and_back_are_what_they_were(
    examples: PackedExamples, chance: Random
) -> None:
    order = list(range(len(examples.units) - 1))
    chance.shuffle(order)
    turned = examples.select(np.array(order))
    assert content(turned.select(np.argsort(order))) == content(examples)
    for place, number in enumerate(order):
        own, other = examples.select(np.array([number])), turned.select(np.array([place]))
        assert content(own) == content(other)
        first, stop = examples.units[number], examples.units[number + 1]
        assert len(own) == stop - first and own.units.tolist() == [0, stop - first]
        assert own.columns["ids"].tolist() == list(
            range(examples.starts[first] + 1, examples.starts[stop] + 1)
        )
    none = examples.select(np.zeros(0, dtype=np.int64))
    assert len(none) == none.tokens == 0 and none.units.tolist() == [0]


@max_examples(200)
@given(groups, rooms)
def test_no_group_is_divided_and_all_of_its_targets_are_in_its_micro_batch(
    examples: PackedExamples, shape: BatchShape
) -> None:
    assert examples.groups is not None
    edges = {*examples.groups.tolist()}
    parts = shape.divide(examples)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == len(examples)
    assert all(part.start in edges and part.stop in edges for part in parts)
    for part, batch in zip(parts, shape.batches(examples), strict=True):
        counts = sizes(batch)
        alone = sum(part.start <= edge < part.stop for edge in edges) == 1
        for name, targets in examples.targets.items():
            mine = slice(targets.starts[part.start], targets.starts[part.stop])
            there = batch.targets[name]["labels"] != Targets.IGNORED
            labels = targets.columns["labels"][mine]
            assert batch.targets[name]["labels"][there].tolist() == labels.tolist()
            assert bool(there[: len(labels)].all()), "behind them is nothing but filler"
            assert alone or counts[name] <= shape.slots[name]
        assert alone or (counts["tokens"] <= shape.tokens and counts["blocks"] <= shape.blocks)


@max_examples(100)
@given(groups, st.integers(LONGEST, 120), st.integers(1, 40))
@example(grouped([[(LONGEST, LONGEST)] * 4, *[[(LONGEST, 0)]] * 30]), LONGEST, 1)
@example(grouped([[(1, 0)] * 20, *[[(11, 0)]] * 30]), LONGEST, 1)
@example(grouped([[(11, 0)] * 8, *[[(3, 0)]] * 30]), LONGEST, 1)
def test_a_room_made_for_groups_holds_each_of_them_in_constant_shapes(
    examples: PackedExamples, tokens: int, blocks: int
) -> None:
    shape = batch_shape(examples, tokens=tokens, blocks=blocks, max_seqlen=LONGEST, constant=True)
    shapes = [
        sizes(batch) for batch in [*shape.batches(examples), shape.collate(examples, slice(0, 0))]
    ]
    assert all(counts == shapes[0] for counts in shapes)


@max_examples(100)
@given(groups, rooms)
def test_constant_shapes_have_the_content_of_free_ones_before_their_filler(
    examples: PackedExamples, shape: BatchShape
) -> None:
    full, free = (replace(shape, constant=constant) for constant in (True, False))
    assert full.divide(examples) == free.divide(examples)
    for part, own, other in zip(
        free.divide(examples), full.batches(examples), free.batches(examples), strict=True
    ):
        tokens, blocks = real(other), part.stop - part.start
        assert real(own) == tokens == len(other.input.ids)
        for name in ("ids", "position_ids", "segments"):
            mine, theirs = (getattr(batch.input, name) for batch in (own, other))
            assert torch.equal(mine[:tokens], theirs)
        assert torch.equal(own.input.cu_seqlens[: blocks + 1], other.input.cu_seqlens)
        assert own.input.reverse is not None and other.input.reverse is not None
        assert torch.equal(own.input.reverse[:blocks], other.input.reverse)
        for name, targets in examples.targets.items():
            count = int(targets.starts[part.stop] - targets.starts[part.start])
            for column, values in other.targets[name].items():
                filled = own.targets[name][column]
                assert filled.dtype == values.dtype
                assert torch.equal(filled[:count], values[:count])
                fill = Targets.IGNORED if column == "labels" else 0
                assert (filled[count:] == fill).all() and (values[count:] == fill).all()


def test_numbers_that_are_not_whole_stay_as_they_are() -> None:
    examples = grouped([[(5, 2)], [(7, 3), (3, 1)]])
    shape = BatchShape(24, 6, {"words": 8, "pair": 4, "value": 4}, LONGEST, constant=True)
    (batch,) = shape.batches(examples)
    assert batch.targets["value"]["labels"].dtype == torch.float64
    wanted = [*examples.targets["value"].columns["labels"].tolist(), Targets.IGNORED]
    assert batch.targets["value"]["labels"].tolist() == wanted
    assert examples.counts() == {"words": 6, "pair": 3, "value": 3}


def test_shares_that_join_keep_their_groups() -> None:
    first, second = grouped([[(5, 2), (7, 2)], [(3, 2)]]), grouped([[(4, 1), (6, 1), (2, 1)]])
    whole = concatenate([first, second])
    assert whole.groups is not None and whole.groups.tolist() == [0, 2, 3, 6]
    assert whole.targets["words"].starts.tolist() == [0, 2, 4, 6, 7, 8, 9]
    for numbers, part in (([0, 1], first), ([2], second)):
        assert content(whole.select(np.array(numbers))) == content(part)
    plain = replace(grouped([[(5, 2)], [(7, 2)]]), groups=None)
    alone = concatenate([first, plain])
    assert alone.groups is not None and alone.groups.tolist() == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["bert", "albert", "spanbert", "gpt", "distilbert", "elmo"])
def test_the_sums_are_the_same_for_every_room_and_with_dummies(name: str) -> None:
    setup = double_precision_trainer(pretrain_job(name, batch_size=7))
    source = setup.sources(0)[0]
    examples = source.examples(0, source.order(0)[:7], progress=0.0)
    setup.model.eval()
    results = []
    for tokens, constant in ((1024, False), (32, False), (96, True), (1024, True)):
        shape = batch_shape(examples, tokens=tokens, blocks=7, max_seqlen=32, constant=constant)
        total: dict[tuple[str, str], torch.Tensor] = {}
        for batch in shape.batches(examples):
            for objective, sums in setup.model(batch)[0].items():
                for what, value in sums.items():
                    before = total.get((objective, what), torch.zeros(()))
                    total[objective, what] = before + value.detach().double()
        results.append(total)
    for result in results[1:]:
        assert result.keys() == results[0].keys()
        for key in result:
            torch.testing.assert_close(result[key], results[0][key], rtol=1e-9, atol=1e-9)
