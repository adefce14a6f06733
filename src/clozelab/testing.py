"""Contract checks: what every part of clozelab promises, a part from outside promises too.

    from clozelab.testing import check_part

    def test_my_part():
        check_part(EveryNth)          # with its defaults
        check_part(EveryNth(n=3))     # or as it is set

Each check raises AssertionError with a sentence. clozelab's own contract tests call the same checks
on many more inputs.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from clozelab import registry
from clozelab.config.tables import build, plain
from clozelab.contracts import (
    Blocks,
    Corrupted,
    Documents,
    Encoded,
    Hidden,
    Input,
    Ints,
    Mark,
    Spelled,
    Spelling,
    Targets,
    Vocabulary,
)
from clozelab.errors import UserError
from clozelab.keys import fold, mix
from clozelab.packed import offsets, ranges

_SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4, "eod": 5}
_SIZE = 1000  # of the vocabulary
_SHAPES = ([5, 0, 9, 3, 21, 4], [1, 1, 2], [40, 2, 1, 1, 60, 7], list[int](), [3, 8, 12, 30, 2])


def check_part(part: Any, *, slot: str | None = None) -> None:
    """Hold a part to what the parts of its slot promise; `slot` where it is not registered."""
    registered: Any = type(part) if is_dataclass(part) and not isinstance(part, type) else part
    slot = slot or registry.slot_of(registered)
    name = getattr(registered, "__name__", repr(part))
    _hold(slot in registry.DUTIES, f"{name} is in no slot; register it, or give slot=")
    assert slot is not None
    registry.check(slot, registered.name if slot == "task" else "part", registered)
    if slot == "measure":
        return
    if isinstance(part, type):
        part = part()
    again = build(type(part), plain(part), place="check_part", key=name)
    _hold(again == part, "its fields do not come back equal from TOML")
    if slot in _CHECKS:
        _CHECKS[slot](part)


def check_masking(part: Any) -> None:
    """A masking strategy: see `Hidden`."""
    blocks = example_blocks()
    for key in range(20):
        check_hidden(part, blocks, key)
        check_alone(part, blocks, key, rows=[3, 0, 2])
    hidden = part.hide(take(blocks, []), 1, vocabulary=vocabulary())
    _hold(len(hidden.spans) == 0, "no blocks hide something")


def check_hidden(part: Any, blocks: Blocks, key: int) -> Hidden:
    """Spans are sorted, disjoint, inside a block, without specials; hiding changes no input."""
    arrays: tuple[Any, ...] = (blocks.ids, blocks.marks, blocks.fixed, blocks.starts)
    before = [array.copy() for array in arrays]
    hidden: Hidden = part.hide(blocks, key, vocabulary=vocabulary())
    spans = hidden.spans
    _hold(spans.shape == (len(spans), 2) and spans.dtype == np.int64, "spans are [·, 2], int64")
    _hold(bool((spans[:, 0] < spans[:, 1]).all()), "a span is empty")
    _hold(bool((spans[1:, 0] >= spans[:-1, 1]).all()), "spans are not sorted, or overlap")
    _hold(bool(((spans >= 0) & (spans <= len(blocks.ids))).all()), "a span is outside the blocks")
    inside = np.array_equal(blocks.rows[spans[:, 0]], blocks.rows[spans[:, 1] - 1])
    _hold(inside, "a span reaches over two blocks")
    if not getattr(part, "specials", False):
        _hold(not blocks.fixed[hidden.positions].any(), "a special is hidden")
    again = part.hide(blocks, key, vocabulary=vocabulary())
    _hold(np.array_equal(spans, again.spans), "the same key gives another choice")
    same = map(np.array_equal, before, arrays)
    _hold(all(same), "hiding alters the blocks")
    return hidden


def check_alone(part: Any, blocks: Blocks, key: int, *, rows: list[int]) -> None:
    """A block's choice does not depend on its batch-mates, nor on their order."""
    if getattr(part, "scope", "block") == "batch":
        return  # as in the published code of DistilBERT
    some = take(blocks, rows)
    together = part.hide(blocks, key, vocabulary=vocabulary())
    apart = part.hide(some, key, vocabulary=vocabulary())
    for place, row in enumerate(rows):
        same = np.array_equal(_spans(blocks, together.spans, row), _spans(some, apart.spans, place))
        _hold(same, "a block's choice depends on its batch-mates")
        if together.order is not None:
            mine = together.order[blocks.starts[row] : blocks.starts[row + 1]]
            theirs = apart.order[some.starts[place] : some.starts[place + 1]]
            _hold(np.array_equal(mine, theirs), "a block's order depends on its batch-mates")


def check_format(part: Any) -> None:
    """A format of blocks: see `Blocks`."""
    documents = example_documents()
    for key in range(5):
        plan, again = part.plan(documents, key), part.plan(documents, key)
        blocks, twice = (each.blocks(np.arange(len(each))) for each in (plan, again))
        check_blocks(part, blocks)
        check_gathering(plan, [len(plan) - 1, 0, len(plan) // 2])
        for name in ("ids", "starts", "marks", "segments"):
            same = np.array_equal(getattr(blocks, name), getattr(twice, name))
            _hold(same, "the same key gives another plan")
    _hold(len(plan.blocks(np.zeros(0, np.int64))) == 0, "no numbers give blocks")
    try:
        part.plan(example_documents(shapes=([0, 0], [])), 1)
    except UserError:
        return
    _hold(False, "a corpus without text is not refused with a UserError")


def check_blocks(part: Any, blocks: Blocks) -> None:
    """Arrays have the contract's shapes and types, and blocks are no longer than `length`."""
    _hold(len(blocks) > 0, "there are no blocks")
    sizes = {len(blocks.ids), len(blocks.marks), len(blocks.segments), len(blocks.fixed)}
    _hold(sizes == {int(blocks.starts[-1])} and blocks.starts[0] == 0, "arrays differ in length")
    types = {"ids": "int32", "starts": "int64", "marks": "uint8", "segments": "uint8"}
    types |= {"fixed": "bool", "numbers": "int64"}
    types |= {"labels": "int64"} if blocks.labels is not None else {}
    for name, wanted in types.items():
        kind = str(getattr(blocks, name).dtype)
        _hold(kind == wanted, f"{name} is {kind} instead of {wanted}")
    _hold(bool((blocks.marks[blocks.fixed] == Mark.ALL).all()), "a special begins every unit")
    if "words" in part.provides:
        _hold(blocks.words is not None, "it provides words, and its blocks have none")
    else:
        _hold(int(blocks.lengths.max()) <= part.length, "a block is longer than length")
    _hold(int(blocks.lengths.min()) > 0, "a block is empty")
    pairs = bool({"next", "order"} & part.provides)
    _hold((blocks.labels is not None) == pairs, "labels are there where a pair is provided")


def check_gathering(plan: Any, numbers: list[int]) -> None:
    """A block is the same alone and with others."""
    together = plan.blocks(np.array(numbers))
    _hold(np.array_equal(together.numbers, numbers), "numbers are not those asked for")
    for place, number in enumerate(numbers):
        alone = plan.blocks(np.array([number]))
        first, last = together.starts[place], together.starts[place + 1]
        same = np.array_equal(alone.ids, together.ids[first:last])
        _hold(same, "a block depends on those that it is gathered with")


def check_objective(part: Any) -> None:
    """An objective: targets are in their blocks, sums add up, parameters are counted right."""
    if "order_of_prediction" in part.needs or part.needs_teacher:
        return  # these need their own encoder, or a teacher
    if part.generates_input:
        check_generator(part)
        return
    import torch

    blocks = _with_labels_and_words(example_blocks())
    chosen = np.flatnonzero((blocks.positions % 5 == 3) & ~blocks.fixed)
    hidden = Hidden(np.stack([chosen, chosen + 1], axis=1))
    decisions = np.zeros(len(hidden.positions), np.uint8)
    corrupted = Corrupted(blocks.ids, decisions, partial(mix, _token_numbers(blocks), 0))
    targets: Targets = part.targets(blocks, hidden, corrupted)
    sizes = np.diff(blocks.words.starts) if "words" in part.needs else blocks.lengths  # type: ignore[union-attr]
    _hold(len(targets.starts) == len(blocks) + 1, "starts has one entry more than there are blocks")
    for name, values in targets.columns.items():
        _hold(len(values) == targets.starts[-1], f"column {name} is not as long as starts say")
        if name in Targets.POSITIONS:
            inside = (values >= 0) & (values < np.repeat(sizes, np.diff(targets.starts)))
            _hold(bool(inside.all()), f"column {name} points outside its block")
    widths = {"hidden_size": 8, "embedding_size": 8}  # of an encoder
    block = {"activation": "gelu", "epsilon": 1e-12, "bias": True, "normalisation": "layer"}
    shape = SimpleNamespace(**widths, **block, heads=2, dropout=0.0, max_positions=300)
    torch.manual_seed(0)
    head = part.build(shape, _SIZE).double()
    _check_parameters(head, part.parameters(shape, _SIZE))
    table = torch.randn(_SIZE, shape.embedding_size, dtype=torch.float64)
    width = shape.hidden_size * (2 if "words" in part.needs else 1)
    states = torch.randn(int(sizes.sum()), width, dtype=torch.float64)
    read = torch.from_numpy(blocks.ids.astype("i8"))
    read[hidden.positions[::2]] = _SPECIAL["unk"]  # half of the hidden tokens were replaced
    batch = _example_input(sizes.tolist())
    encoded = Encoded(states, table, ids=read, input=batch._replace(ids=read))
    columns = _batch_columns(targets, offsets(sizes))

    def sums(where: slice) -> dict[str, float]:
        some = {name: values[where] for name, values in columns.items()}
        torch.manual_seed(1)
        return {name: total.item() for name, total in head(encoded, some).items()}

    count = int(targets.starts[-1])
    whole, none = sums(slice(0, count)), sums(slice(0, 0))
    _hold({"loss", "count"} <= whole.keys(), "the head's sums have a loss and a count")
    _hold(whole["count"] > 0, "nothing is counted")
    _hold(all(value == 0 for value in none.values()), "no targets give something else than 0")
    if part.reads is not None:
        unread = torch.ones(len(states), dtype=torch.bool)
        for column in part.reads:
            unread[columns[column]] = False
        encoded = encoded._replace(hidden_states=states.masked_fill(unread[:, None], torch.nan))
        same = sums(slice(0, count)) == whole
        _hold(same, f"it reads states that reads = {part.reads} does not name")
    if part.targets_interact or part.contrasts or "words" in part.needs:
        return  # targets depend on each other
    first, second = sums(slice(0, count // 2)), sums(slice(count // 2, count))
    for name, value in whole.items():
        adds = abs(first[name] + second[name] - value) <= 1e-9 * max(1.0, abs(value))
        _hold(adds, f"{name} of two halves does not add up to {name} of the whole: it is no sum")


def check_generator(part: Any) -> None:
    """A generator writes only at its targets, and the same in any batch."""
    import torch

    from clozelab.encoder import Transformer

    encoder = Transformer(
        layers=1,
        heads=2,
        hidden_size=16,
        intermediate_size=32,
        embedding_size=8,
        positions=300,
    )
    torch.manual_seed(0)
    encoder_module = encoder.build(_SIZE).double().eval()
    module = part.build(encoder, _SIZE).double().eval()
    before = {*encoder_module.parameters()}
    module.share_with(encoder_module)
    all_parameters = {*encoder_module.parameters(), *module.parameters()}
    built = sum(weight.numel() for weight in all_parameters - before)
    counted = sum(part.parameters(encoder, _SIZE).values())
    _hold(built == counted, "parameters() miscounts what build() makes beside the encoder")
    blocks = example_blocks()
    chosen = np.flatnonzero((blocks.positions % 5 == 3) & ~blocks.fixed)
    results = []
    for rows in ([0, 1, 2, 3, 4, 5], [3, 1]):
        subset = take(blocks, rows)
        mine = np.flatnonzero(np.isin(_token_numbers(subset), _token_numbers(blocks)[chosen]))
        hidden = Hidden(np.stack([mine, mine + 1], axis=1))
        corrupted = Corrupted(
            subset.ids, np.zeros(len(mine), np.uint8), partial(mix, _token_numbers(subset), 0)
        )
        columns = _batch_columns(part.targets(subset, hidden, corrupted), subset.starts)
        ids = torch.from_numpy(subset.ids.astype("i8"))
        batch = _example_input(subset.lengths.tolist())._replace(ids=ids)
        with torch.no_grad():
            written, sums = module(batch, columns)
        _hold({"loss", "count"} <= sums.keys(), "the generator's sums have a loss and a count")
        others = np.setdiff1d(np.arange(len(subset.ids)), mine)
        _hold(bool((written.ids == ids)[others].all()), "it writes where nothing is hidden")
        _hold(written.ids.shape == ids.shape, "what it writes has another shape")
        results.append(written.ids.split(subset.lengths.tolist()))
    same = torch.equal(results[0][3], results[1][0]) and torch.equal(results[0][1], results[1][1])
    _hold(same, "what it writes depends on the other blocks of a batch")


def _batch_columns(targets: Targets, starts: Ints) -> dict[str, Any]:
    """The columns of targets in a micro-batch, with positions over all blocks."""
    import torch

    base = np.repeat(starts[:-1], np.diff(targets.starts))
    return {
        name: torch.from_numpy((values + base * (name in Targets.POSITIONS)).astype("i8"))
        for name, values in targets.columns.items()
    }


def _token_numbers(blocks: Blocks) -> Ints:
    """[N] a number for each token that does not depend on the batch."""
    places: Ints = blocks.numbers[blocks.rows] * 1000 + blocks.positions
    return places


def _check_parameters(module: Any, counts: dict[str, int]) -> None:
    built = sum(parameter.numel() for parameter in module.parameters())
    _hold(built == sum(counts.values()), "parameters() miscounts what build() makes")


def check_encoder(part: Any) -> None:
    """An encoder: parameters are counted right, and states do not depend on other blocks."""
    import torch

    torch.manual_seed(0)
    module = part.build(_SIZE).double().eval()
    _check_parameters(module, part.parameters(_SIZE))
    if part.reads == "words" or "two_streams" in part.provides:
        return  # they need inputs of their own format
    with torch.no_grad():
        pair = module(_example_input([7, 5])).hidden_states
        alone = module(_example_input([7])).hidden_states
    width = part.vector_width
    _hold(tuple(pair.shape) == (12, width), "states are [tokens, vector_width]")
    same = torch.allclose(pair[:7], alone, rtol=0, atol=1e-9)
    _hold(same, "a block's states depend on its batch-mates")


def check_optimiser(part: Any) -> None:
    """An optimiser: groups have their peak rate, and steps lower a loss."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.ModuleDict({"attention": torch.nn.Linear(8, 8)})
    optimisers = part.build(layer.named_parameters())
    _hold(bool(optimisers), "build gives no optimisers")
    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    owned = sorted(id(parameter) for group in groups for parameter in group["params"])
    every = sorted(id(parameter) for parameter in layer.parameters())
    _hold(owned == every, "each parameter belongs to one group, and all that train to some")
    for group in groups:
        _hold({"lr", "peak"} <= group.keys(), "a group has its lr and its peak")
    inputs = torch.randn(32, 8)
    losses = []
    for _ in range(10):
        loss = layer["attention"](inputs).square().mean()
        layer.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        losses.append(loss.item())
    _hold(losses[-1] < losses[0], "ten steps do not lower a quadratic loss")


def check_schedule(part: Any) -> None:
    """A schedule: factors are from 0 to 1, and batches are not empty."""
    for step in {0, part.warmup, part.steps // 2, part.steps - 1}:
        _hold(0 <= part.factor(step) <= 1, f"factor({step}) is not between 0 and 1")
        _hold(part.batch_size_at(step) >= 1, f"batch_size_at({step}) is less than 1")
        _hold(part.phase(step).last >= part.phase(step).first, f"phase({step}) has no steps")


def check_tokenizer(part: Any) -> None:
    """A tokenizer: it trains to at most its size, and tokenises its training text."""
    text = "the quick brown fox jumps over the lazy dog and the quick cat sees the lazy fox"
    small = part
    if getattr(part, "learns", True):  # else its size is fixed
        small = replace(part, vocabulary=min(part.vocabulary, 300 + len(part.specials)))
    tokenizer = small.train(iter([text] * 20))
    size = tokenizer.get_vocab_size()
    _hold(0 < size <= small.vocabulary, f"it has {size} ids instead of {small.vocabulary}")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    _hold(bool(ids), "it reads nothing in the text it was trained on")


_CHECKS = {
    "masking": check_masking,
    "blocks": check_format,
    "objectives": check_objective,
    "encoder": check_encoder,
    "optimiser": check_optimiser,
    "schedule": check_schedule,
    "tokenizer": check_tokenizer,
}


def vocabulary() -> Vocabulary:
    """A vocabulary with every role and descending counts."""
    counts = np.arange(_SIZE)[::-1].astype(np.int64) + 1
    special = np.arange(len(_SPECIAL), dtype=np.int32)
    return Vocabulary(_SIZE, _SPECIAL, special, counts)


def example_documents(*, shapes: tuple[list[int], ...] = _SHAPES, seed: int = 0) -> Documents:
    """Documents with sentences of these numbers of tokens, each several times."""
    rng = np.random.default_rng(seed)
    documents = [*shapes] * 8
    lengths = np.array([n for sentences in documents for n in sentences], dtype=np.int64)
    starts, total = offsets(lengths), int(lengths.sum())
    word = rng.random(total) >= 0.2
    marks = (word * Mark.WORD + word * (rng.random(total) >= 0.3) * Mark.PHRASE).astype(np.uint8)
    marks[starts[:-1][lengths > 0]] = Mark.ALL
    ids = rng.integers(len(_SPECIAL), _SIZE, total).astype(np.uint16)
    begins = np.flatnonzero(marks & Mark.WORD)
    known = np.unique(fold(ids, begins))[::2] if total else np.zeros(0, np.uint64)
    letters = np.arange(_SIZE, dtype=np.int64) % 7 + 1
    spelling = Spelling(
        letters=(np.arange(letters.sum()) % 256).astype(np.uint8),
        starts=offsets(letters),
        words=known,
        numbers=np.arange(3, 3 + len(known), dtype=np.int32),
    )
    bounds = offsets([len(sentences) for sentences in documents])
    return Documents(ids, marks, starts, bounds, vocabulary(), spelling)


def example_blocks(*, seed: int = 0) -> Blocks:
    """Blocks `[CLS] … [SEP]` of words of several pieces: long, short, and one of specials only."""
    rng = np.random.default_rng(seed)
    ids, marks, starts = list[int](), list[int](), [0]
    for words in (60, 12, 1, 35, 0, 5):
        sizes = rng.integers(1, 5, words)
        pieces = rng.integers(len(_SPECIAL), _SIZE, int(sizes.sum()))
        ids += [_SPECIAL["cls"], *pieces.tolist(), _SPECIAL["sep"]]
        for size in (1, *sizes, 1):
            marks += [Mark.ALL] + [0] * (int(size) - 1)
        starts.append(len(ids))
    packed = np.array(ids, dtype=np.int32)
    return Blocks(
        ids=packed,
        starts=np.array(starts, dtype=np.int64),
        marks=np.array(marks, dtype=np.uint8),
        segments=np.zeros(len(ids), dtype=np.uint8),
        fixed=packed < len(_SPECIAL),
        numbers=np.array([40, 7, 3, 99, 12, 0]),
    )


def take(blocks: Blocks, rows: list[int]) -> Blocks:
    """Some of the blocks, in that order."""
    chosen = np.array(rows, dtype=np.int64)
    at = ranges(blocks.starts[chosen], blocks.lengths[chosen])
    tokens = {name: getattr(blocks, name)[at] for name in ("ids", "marks", "segments", "fixed")}
    return Blocks(
        **tokens,
        starts=offsets(blocks.lengths[chosen]),
        numbers=blocks.numbers[chosen],
        reverse=None if blocks.reverse is None else blocks.reverse[chosen],
    )


def _with_labels_and_words(blocks: Blocks) -> Blocks:
    """The blocks with pair labels, views and whole words added."""
    begins = ((blocks.marks & Mark.WORD) != 0) | blocks.fixed
    sizes = np.bincount(blocks.rows[begins], minlength=len(blocks))
    numbers = (np.arange(int(sizes.sum())) % 40).astype(np.int32)
    words = Spelled(offsets(sizes), numbers, np.zeros((len(numbers), 5), np.uint16))
    alternating = np.arange(len(blocks)) % 2
    return replace(blocks, labels=alternating, views=alternating, words=words)


def _example_input(lengths: list[int]) -> Input:
    import torch

    places = torch.cat([torch.arange(length) for length in lengths])
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    ids = (places * 7 + 11) % _SIZE
    return Input(ids, places, torch.zeros_like(ids), starts, max(lengths))


def _spans(blocks: Blocks, spans: Ints, row: int) -> Ints:
    """The spans inside one block, counted from its beginning."""
    first, last = blocks.starts[row], blocks.starts[row + 1]
    inside: Ints = spans[(spans[:, 0] >= first) & (spans[:, 0] < last)] - first
    return inside


def _hold(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)
