"""Steps: every block once an epoch, the same whatever came before, shared out among processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.corpora import build, write
from support.pretrain_runs import HERE, shrunk, store
from support.texts import tokenizer

from clozelab.blocks import PARTS
from clozelab.config.recipe import Recipe
from clozelab.contracts import Batch, Targets
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.held_out import HeldOut
from clozelab.pretraining.source import BlockSource
from clozelab.pretraining.starting import _as_short_as
from clozelab.pretraining.steps import StepBlocks, Steps
from clozelab.text.store.corpus import open_stores
from clozelab.training.feed import Cursor
from clozelab.training.loop import Prepared

torch.set_num_threads(1)
PAIRED = ["segment_pair", "sentence_pair"]
FORMATS = {
    **{name: ("bert", "wordpiece") for name in PAIRED},
    **{name: ("roberta", "byte_bpe") for name in ("full_sentences", "doc_sentences")},
    **{name: ("simcse", "wordpiece") for name in ("single_sentences", "sentence_rows")},
    "sentence_order": ("albert", "unigram"),
    "causal": ("gpt", "char_bpe"),
    "words": ("elmo", "byte_bpe"),
    "stream_pair": ("xlnet", "unigram"),
}
Blocks = list[tuple[int, int, int]]  # store, epoch and number of each


def make_steps(recipe: Recipe, *kinds: str, seed: int = 0, **settings: Any) -> Steps:
    """Steps over stores of those kinds; a weight may follow a colon."""
    places = []
    for number, kind in enumerate(kinds):
        name, _, weight = kind.partition(":")
        places.append(f"{store(name, skip=30 * number)}:{weight or 1}")
    stores = open_stores(places)
    wanted = {"tokens": 64, "gpu": False, **settings}
    return Steps(fitted(recipe, stores[0][0]), stores, seed=seed, **wanted)


def picks(steps: Steps, first: int = 0, cursor: Cursor | None = None) -> list[tuple[Blocks, Any]]:
    """What each step is made of, and the place after it."""
    steps_picked: list[tuple[Blocks, Any]] = []

    def note(picked: StepBlocks, **rest: Any) -> None:
        columns = (picked.stores, picked.epochs, picked.numbers)
        steps_picked.append((list(zip(*(c.tolist() for c in columns), strict=True)), rest))

    steps.prepare = note  # type: ignore[method-assign, assignment]
    try:
        for job in steps.jobs(first, cursor or steps.start()):
            job()
    finally:
        del steps.prepare
    return steps_picked


def prepared(steps: Steps, first: int = 0, cursor: Cursor | None = None) -> list[Prepared]:
    return [job() for job in steps.jobs(first, cursor or steps.start())]


def flat(batches: Any) -> dict[str, list[Any]]:
    """The real tokens and targets of some batches."""
    flattened: dict[str, list[Any]] = {}
    for batch in batches:
        real = int(batch.input.real)
        for name in ("ids", "position_ids", "segments", "order", "kinds", "characters"):
            values = getattr(batch.input, name)
            if values is not None:
                flattened.setdefault(name, []).extend(values[:real].tolist())
        for name, columns in batch.targets.items():
            labelled = columns["labels"] != Targets.IGNORED
            flattened.setdefault(name, []).extend(columns["labels"][labelled].tolist())
    return flattened


def equal(a: Batch, b: Batch) -> bool:
    for mine, other in zip(a.input, b.input, strict=True):
        if isinstance(mine, torch.Tensor):
            if not torch.equal(mine, other):
                return False
        elif mine != other:
            return False
    return all(
        torch.equal(value, b.targets[name][key])
        for name, columns in a.targets.items()
        for key, value in columns.items()
    )


def test_every_format_is_tried_here() -> None:
    assert set(FORMATS) == set(PARTS)


@pytest.mark.parametrize("name", FORMATS)
def test_an_epoch_visits_every_block_once_and_steps_straddle_epochs(name: str) -> None:
    base, kind = FORMATS[name]
    recipe = shrunk(base, f"blocks.use={name}", steps=1, batch_size=6)
    rows = make_steps(recipe, kind).sources(0)[0].size
    epochs = 2.5
    steps = int(epochs * rows / 6)
    picked = picks(make_steps(shrunk(base, f"blocks.use={name}", steps=steps, batch_size=6), kind))
    visits = Counter((epoch, number) for blocks, _ in picked for _, epoch, number in blocks)
    assert max(visits.values()) == 1
    for epoch in (0, 1):
        size = len({number for at, number in visits if at == epoch})
        redrawn = recipe.corruption.redraw == "pairs_and_masks" and recipe.corruption.copies
        if not redrawn:
            assert size == rows
        numbers = sorted(number for at, number in visits if at == epoch)
        assert numbers == list(range(size))
    assert len(picked) == steps and all(len(blocks) == 6 for blocks, _ in picked)


def test_epochs_differ_in_order_and_seeds_in_everything() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        source = make_steps(shrunk("roberta"), "byte_bpe", seed=seed).sources(0)[0]
        return [int(number) for number in source.order(epoch)]

    first = order(0, 0)
    assert order(0, 0) == first != list(range(len(first)))
    assert order(0, 1) != first and order(1, 0) != first


@pytest.mark.parametrize("name", ["bert", "xlnet", "elmo", "spanbert"])
def test_going_on_from_any_step_gives_the_same_batches(name: str) -> None:
    kind = {"bert": "wordpiece", "spanbert": "wordpiece", "xlnet": "unigram", "elmo": "byte_bpe"}
    recipe = shrunk(name, steps=9, batch_size=6)
    whole = prepared(make_steps(recipe, kind[name]))
    assert len(whole) == 9
    for first in (1, 4, 8):
        after = whole[first - 1].after
        assert isinstance(after, Cursor)
        rest = prepared(make_steps(recipe, kind[name]), first, after)
        for mine, other in zip(rest, whole[first:], strict=True):
            assert replace(mine, batches=[], blank=None) == replace(other, batches=[], blank=None)
            assert len(mine.batches) == len(other.batches)
            assert all(equal(a, b) for a, b in zip(mine.batches, other.batches, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_processes_share_a_step_out_whole(name: str, size: int) -> None:
    recipe = shrunk(name, steps=3, batch_size=6)
    kind = "wordpiece" if name == "bert" else "unigram"
    whole = prepared(make_steps(recipe, kind))
    parts = [prepared(make_steps(recipe, kind, rank=rank, size=size)) for rank in range(size)]
    for number, step in enumerate(whole):
        mine = [part[number] for part in parts]
        together = flat(batch for part in mine for batch in part.batches)
        alone = flat(step.batches)
        assert together == alone
        assert sum(part.tokens for part in mine) == step.tokens
        for objective, count in step.counts.items():
            assert sum(part.counts[objective] for part in mine) == count
        assert {part.after for part in mine} == {step.after}


def test_a_process_without_a_block_has_a_blank_batch_to_join_in_with() -> None:
    steps = make_steps(shrunk("bert", steps=2, batch_size=1), "wordpiece", rank=0, size=2)
    for step in prepared(steps):
        assert not step.batches and step.tokens == 0 and set(step.counts.values()) == {0}
        assert int(step.blank.input.real) == 0  # type: ignore[arg-type]


def test_static_copies_come_again_and_dynamic_masks_do_not() -> None:
    def masks(copies: int) -> list[list[int]]:
        recipe = shrunk("roberta", f"corruption.copies={copies}")
        source = make_steps(recipe, "byte_bpe").sources(0)[0]
        numbers = np.arange(5)
        examples = [source.examples(epoch, numbers, progress=0.0) for epoch in range(4)]
        return [share.columns["ids"].tolist() for share in examples]

    static, dynamic = masks(2), masks(0)
    assert static[0] == static[2] != static[1] == static[3]
    assert len({str(epoch_masks) for epoch_masks in dynamic}) == 4


def test_pairs_are_drawn_anew_for_each_copy_only() -> None:
    recipe = shrunk("bert", "corruption.copies=2")
    source = make_steps(recipe, "wordpiece").sources(0)[0]
    ids = [source.plan(epoch).blocks(np.arange(8)).ids.tolist() for epoch in range(3)]
    assert ids[0] == ids[2] != ids[1]
    fixed = make_steps(shrunk("bert", "corruption.redraw=masks"), "wordpiece").sources(0)[0]
    assert fixed.plan(0) is fixed.plan(5)


def test_plans_are_not_made_again_while_steps_straddle_two_copies() -> None:
    recipe = shrunk("bert", "corruption.copies=3")
    source = make_steps(recipe, "wordpiece").sources(0)[0]
    made_for: list[int] = []
    inner = source.blocks

    class Counting:
        length, provides, needs = inner.length, inner.provides, inner.needs

        def plan(self, documents: Any, key: int) -> Any:
            made_for.append(key)
            return inner.plan(documents, key)

    source.blocks = Counting()
    for epoch in range(7):  # a step across two epochs asks for both, in either order
        source.plan(epoch), source.plan(epoch + 1), source.plan(epoch), source.plan(epoch + 1)
    assert len(made_for) == 8


def test_a_phase_begins_its_stores_anew_at_its_length() -> None:
    recipe = shrunk("bert", "schedule.phases=[[16, 0.5], [32, 0.5]]", steps=8)
    steps = make_steps(recipe, "wordpiece")
    picked = picks(steps)
    assert [rest["after"].phase for _, rest in picked] == [0] * 4 + [1] * 4
    sixteen, thirty_two = steps.sources(0)[0], steps.sources(1)[0]
    assert [n for _, _, n in picked[0][0]] == sixteen.order(0)[:4].tolist()
    assert [n for _, _, n in picked[4][0]] == thirty_two.order(0)[:4].tolist()
    whole = prepared(make_steps(recipe, "wordpiece"))
    longest = [max(int(b.input.cu_seqlens.diff().max()) for b in step.batches) for step in whole]
    assert max(longest[:4]) <= 16 < min(longest[4:])
    rest = prepared(make_steps(recipe, "wordpiece"), 3, whole[2].after)  # type: ignore[arg-type]
    assert [step.after for step in rest] == [step.after for step in whole[3:]]


def test_a_ramp_takes_fewer_blocks_first() -> None:
    recipe = shrunk("bert", "schedule.ramp=[[2, 0.25], [3, 0.25]]", steps=8)
    picked = picks(make_steps(recipe, "wordpiece"))
    assert [len(blocks) for blocks, _ in picked] == [2, 2, 3, 3, 4, 4, 4, 4]
    seen = [block for blocks, _ in picked for block in blocks]
    assert len(set(seen)) == len(seen)


def test_steps_filled_by_tokens_are_as_full_as_whole_blocks_allow() -> None:
    for blocks in ("doc_sentences", "full_sentences"):
        settings = (f"blocks.use={blocks}", "schedule.fill=tokens")
        whole = prepared(make_steps(shrunk("roberta", *settings, steps=12), "byte_bpe"))
        assert all(4 * 32 - 32 < step.tokens <= 4 * 32 for step in whole)
        after = whole[5].after
        assert isinstance(after, Cursor)
        rest = prepared(make_steps(shrunk("roberta", *settings, steps=12), "byte_bpe"), 6, after)
        assert [step.tokens for step in rest] == [step.tokens for step in whole[6:]]


def test_steps_of_words_are_filled_by_words_and_not_by_their_pieces() -> None:
    whole = prepared(make_steps(shrunk("elmo", "schedule.fill=tokens", steps=12), "byte_bpe"))
    assert all(4 * 32 - 32 < step.tokens <= 4 * 32 for step in whole)


@pytest.mark.parametrize("name", FORMATS)
def test_lengths_are_those_of_what_the_encoder_reads(name: str) -> None:
    recipe, kind = FORMATS[name]
    (source,) = make_steps(shrunk(recipe, f"blocks.use={name}"), kind).sources(0)
    numbers = source.order(0)[:16]
    read = np.diff(source.examples(0, numbers, progress=0.0).starts)
    assert source.lengths(0, numbers).tolist() == read.reshape(len(numbers), -1).sum(1).tolist()


def test_stores_are_mixed_by_their_blocks_times_their_weight() -> None:
    recipe = shrunk("roberta", steps=60, batch_size=16)
    steps = make_steps(recipe, "byte_bpe", "byte_bpe:0.5")
    picked = picks(steps)
    assert picked == picks(make_steps(recipe, "byte_bpe", "byte_bpe:0.5"))
    sources = steps.sources(0)
    sizes = [len(source.plan(0)) for source in sources]
    share = sizes[0] / (sizes[0] + 0.5 * sizes[1])
    drawn = np.array([store for blocks, _ in picked for store, _, _ in blocks])
    deviation = (share * (1 - share) / len(drawn)) ** 0.5
    assert abs((drawn == 0).mean() - share) < 4 * deviation
    visits = Counter(block for blocks, _ in picked for block in blocks)
    assert max(visits.values()) == 1
    for number, size in enumerate(sizes):
        first = [n for s, epoch, n in visits if s == number and epoch == 0]
        later = any(epoch > 0 for s, epoch, _ in visits if s == number)
        assert len(first) == size if later else len(first) <= size


@pytest.mark.parametrize(("tokens", "parts", "size"), [(4096, 1, 512), (200, 3, 200)])
def test_seeds_agree_on_the_constant_size_of_steps_filled_by_tokens(
    tokens: int, parts: int, size: int
) -> None:
    settings = ("blocks.use=doc_sentences", "schedule.fill=tokens")
    recipe = shrunk("roberta", *settings, steps=12, batch_size=16)  # 16 × 32 tokens
    shapes = set()
    for seed in range(3):
        steps = make_steps(recipe, "byte_bpe", seed=seed, tokens=tokens)
        steps.constant = True  # as on a GPU
        for step in prepared(steps):
            assert step.tokens > 15 * 32
            assert len(step.batches) == parts
            for batch in step.batches:
                shapes.add((len(batch.input.ids), len(batch.input.cu_seqlens)))
    assert len(shapes) == 1 and shapes.pop()[0] == size


def test_stores_with_the_same_text_hide_different_tokens() -> None:
    place = store("byte_bpe")
    stores = open_stores([place, place])
    steps = Steps(fitted(shrunk("roberta"), stores[0][0]), stores, seed=0, tokens=64, gpu=False)
    own, other = (s.examples(0, np.arange(6), progress=0.0) for s in steps.sources(0))
    assert own.columns["ids"].tolist() != other.columns["ids"].tolist()


@pytest.mark.parametrize("name", ["bert", "xlnet", "roberta"])
def test_evaluation_is_the_same_for_every_seed(name: str) -> None:
    kind = {"bert": "wordpiece", "xlnet": "unigram", "roberta": "byte_bpe"}[name]
    ((corpus, _),) = open_stores([store(kind)])
    recipe = fitted(shrunk(name), corpus)
    held_out = HeldOut(recipe, corpus, blocks=recipe.blocks, count=16)
    again = HeldOut(recipe, corpus, blocks=recipe.blocks, count=16)
    for mine, other in zip(held_out._feed(HERE, 64), again._feed(HERE, 64), strict=True):
        assert all(equal(a, b) for a, b in zip(mine.batches, other.batches, strict=True))
    train = BlockSource(recipe, corpus, blocks=recipe.blocks, split="train", seed=0)
    assert held_out.source.seed == 1_000_003 != train.seed  # in every process, for ever
    assert len(held_out.source.documents.ids) < len(train.documents.ids)


def test_a_stream_as_short_as_that_of_an_odd_length_reuses_the_larger_half() -> None:
    xlnet: Any = Recipe.read("xlnet")
    model = replace(xlnet, blocks=replace(xlnet.blocks, length=65, reuse=33))
    shorter: Any = _as_short_as(xlnet, model)
    assert (shorter.blocks.length, shorter.blocks.reuse) == (65, 33)


def test_rows_of_a_stream_follow_one_another_and_epochs_begin_fresh() -> None:
    recipe = shrunk("xlnet", steps=1)
    rows = 4
    source = make_steps(recipe, "unigram").sources(0)[0]
    steps = len(source.plan(0)) // rows
    assert len(source.plan(0)) == steps * rows
    picked = picks(make_steps(shrunk("xlnet", steps=2 * steps + 1), "unigram"))
    assert [rest["fresh"] for _, rest in picked] == [n % steps == 0 for n in range(2 * steps + 1)]
    for number, (blocks, _) in enumerate(picked):
        assert [n % rows for _, _, n in blocks] == list(range(rows))
        assert {n // rows for _, _, n in blocks} == {number % steps}
    first, second = (source.plan(0).blocks(np.arange(rows) + rows * step) for step in (3, 4))
    reuse = 16
    for row in range(rows):
        mine = first.ids[first.starts[row] : first.starts[row + 1]]
        after = second.ids[second.starts[row] : second.starts[row + 1]]
        # The next block begins where the text that memory keeps ends: A's first tokens.
        cut = int(np.flatnonzero(first.fixed[first.starts[row] + reuse : first.starts[row + 1]])[0])
        same = min(cut, reuse)
        assert mine[reuse : reuse + same].tolist() == after[:same].tolist()


@pytest.mark.parametrize("course", ["[[0.0, 2.0], [1.0, 1.0]]", "[[0.0, 1.0], [1.0, 2.0]]"])
def test_a_sample_has_the_most_targets_that_a_course_gives(course: str) -> None:
    steps = make_steps(shrunk("roberta", f"masking.course={course}", steps=8), "byte_bpe")
    sample = steps.sample(steps.sources(0))
    share = sample.counts()["masked_lm"] / sample.tokens
    assert share == pytest.approx(0.3, abs=0.02)
    counts = [job().counts["masked_lm"] for job in steps.jobs(0, steps.start())]
    rises = course.startswith("[[0.0, 1.0]")
    assert (counts[-1] > counts[0]) == rises and counts[0] != counts[-1]


def test_tokens_of_a_step_are_the_mean_of_what_is_left_of_the_run() -> None:
    phases = "schedule.phases=[[16, 0.5], [32, 0.5]]"
    steps = make_steps(shrunk("gpt", phases, steps=8, batch_size=4), "char_bpe")
    means = [steps.tokens_a_step(first) for first in (0.0, 0.25, 0.5, 0.75)]
    wanted = [(64 + 128) / 2, (64 + 2 * 128) / 3, 128, 128]
    assert means == pytest.approx(wanted, rel=0.01)  # the last block of a text is shorter


def test_tokens_of_a_step_are_those_of_the_stores_by_their_shares(tmp_path: Path) -> None:
    short = write(tmp_path / "short.jsonl", ["A cat sat there."] * 400)
    build(short, tmp_path / "short", tokenizer("byte_bpe", "small"), held_out=0.1)
    recipe = shrunk("roberta", "blocks.use=doc_sentences", steps=40, batch_size=16)
    for weight in (0.05, 1, 20):
        stores = open_stores([store("byte_bpe"), f"{tmp_path / 'short'}:{weight}"])
        steps = Steps(fitted(recipe, stores[0][0]), stores, seed=0, tokens=64, gpu=False)
        read = np.mean([step.tokens for step in prepared(steps)])
        assert steps.tokens_a_step() == pytest.approx(read, rel=0.03)
