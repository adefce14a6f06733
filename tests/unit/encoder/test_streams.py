"""XLNet's encoder: against a loop over pairs, and what may not leak."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.synthetic_documents import prose
from support.xlnet_batches import PLAIN, SPECIAL, TARGET, batch, memories, plain, sees, shape, slots
from torch import Tensor
from torch.nn import functional

from clozelab.blocks.stream import StreamPair
from clozelab.config.recipe import read
from clozelab.contracts import Blocks, Corrupted, Encoded, Hidden, Input, Targets
from clozelab.encoder.relative import Relative
from clozelab.encoder.streams import Streams
from clozelab.masking.permutation_targets import PermutationTargets
from clozelab.objectives.language_models import PermutationLm

V = 50


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def built(part: Relative | None = None, *, vocabulary: int = V, seed: int = 1) -> Streams:
    """In float64, with weights large enough for every term to matter."""
    torch.manual_seed(seed)
    model = (part or shape()).build(vocabulary).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def assert_same(a: Tensor | None, b: Tensor | None) -> None:
    assert a is not None and b is not None
    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


# --- against a loop over pairs


def wave(distance: int, width: int) -> Tensor:
    angles = [distance / 10000 ** (2 * k / width) for k in range(width // 2)]
    both = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(both, dtype=torch.float64)


def looped(model: Streams, inputs: Input, block: int) -> tuple[list[Tensor], Tensor]:
    """A block's states after each layer and its queries' last, one pair of places at a time."""
    a, b = int(inputs.cu_seqlens[block]), int(inputs.cu_seqlens[block + 1])
    length, heads = b - a, model.shape.heads
    rule = sees(inputs, block) if inputs.order is not None else torch.ones(length, length).bool()
    segments = inputs.segments[a:b].tolist()
    turned = inputs.reverse is not None and bool(inputs.reverse[block])
    query_positions = [] if inputs.queries is None else (inputs.queries[block] - a).tolist()
    past = 0 if inputs.memory is None else inputs.memory.shape[2]

    def stream(layer: int, rows: list[Tensor], at: list[int], h: list[Tensor], own: bool) -> list:
        part, ffn, out = model.attention[layer], model.ffn[layer], []
        old = [] if inputs.memory is None else list(inputs.memory[layer, block])
        for x, i in zip(rows, at, strict=True):
            q = (part.query.weight @ x).view(heads, -1)
            scores, values = [], []
            for j, y in enumerate(old + h, start=-past):
                if j >= 0 and not (rule[i, j] or (own and i == j)):
                    continue
                k = (part.key.weight @ y).view(heads, -1)
                r = wave(j - i if turned else i - j, len(x))
                r = (part.position.weight @ r).view(heads, -1)
                s = part.segments[int(segments[i] != (segments[j] if j >= 0 else 0))]
                content = ((q + part.content_bias) * k).sum(-1)
                position = ((q + part.position_bias) * r).sum(-1)
                segment = ((q + part.segment_bias) * s).sum(-1)
                scores.append((content + position + segment) / math.sqrt(q.shape[-1]))
                values.append((part.value.weight @ y).view(heads, -1))
            mixed = torch.zeros_like(q)
            if scores:
                weights = torch.stack(scores).softmax(0)
                mixed = (weights[..., None] * torch.stack(values)).sum(0)
            x = part.norm(x + part.output.weight @ mixed.flatten())
            inner = functional.gelu(ffn.inner(x), approximate="tanh")
            out.append(ffn.norm(x + ffn.output(inner)))
        return out

    h = list(model.embeddings.words(inputs.ids[a:b]))
    g = [model.embeddings.query for _ in query_positions]
    layers = [torch.stack(h)]
    for layer in range(model.shape.layers):
        g = stream(layer, g, query_positions, h, own=False)
        h = stream(layer, h, list(range(length)), h, own=True)
        layers.append(torch.stack(h))
    return layers, torch.stack(g) if g else torch.zeros(0)


@pytest.mark.parametrize("lengths", [[7, 7], [8, 5, 1, 6]])
@pytest.mark.parametrize("memory", [0, 3])
@torch.no_grad()
def test_it_equals_a_loop_over_pairs(lengths: list[int], memory: int) -> None:
    model = built()
    old = memories(2, len(lengths), memory, 8) if memory else None
    inputs = batch(lengths, remembered=old, seed=3)
    out = model(inputs, keep=True)
    assert out.queries is not None
    for block in range(len(lengths)):
        layers, queries = looped(model, inputs, block)
        inside = slice(int(inputs.cu_seqlens[block]), int(inputs.cu_seqlens[block + 1]))
        for mine, theirs in zip(out.layers, layers, strict=True):
            torch.testing.assert_close(mine[inside], theirs, rtol=0, atol=1e-9)
        torch.testing.assert_close(
            out.queries.view(len(lengths), -1, 8)[block], queries, rtol=0, atol=1e-9
        )
    assert_same(out.layers[-1], out.hidden_states)


@torch.no_grad()
def test_without_an_order_every_token_sees_its_block() -> None:
    model, inputs = built(), plain(batch([6, 4]))
    out = model(inputs)
    for block, inside in enumerate([slice(0, 6), slice(6, 10)]):
        layers, _ = looped(model, inputs, block)
        torch.testing.assert_close(out.hidden_states[inside], layers[-1], rtol=0, atol=1e-9)
    assert out.queries is None and out.memory is None and out.layers == ()


@torch.no_grad()
def test_only_whether_segments_differ_matters() -> None:
    model, inputs = built(), batch([8, 8])
    swapped = torch.tensor([1, 0, 2])[inputs.segments]
    a, b = model(inputs), model(inputs._replace(segments=swapped))
    assert_same(a.hidden_states, b.hidden_states)
    assert_same(a.queries, b.queries)
    same_segment = torch.zeros_like(inputs.segments)
    assert not torch.allclose(
        a.hidden_states, model(inputs._replace(segments=same_segment)).hidden_states
    )


# --- who sees whom


def influence(model: Streams, inputs: Input, outputs: Tensor) -> Tensor:
    """[rows, N] whether each token's embedding moves each of some outputs; by gradients."""
    assert inputs.ids.tolist() == list(range(len(inputs.ids)))  # so rows of the table are tokens
    torch.manual_seed(9)
    weights = torch.randn(outputs.shape[-1], dtype=torch.float64)
    rows = []
    for row in outputs:
        (gradient,) = torch.autograd.grad(
            row @ weights, model.embeddings.words.weight, retain_graph=True
        )
        rows.append((gradient[: len(inputs.ids)] != 0).any(-1))
    return torch.stack(rows)


def told_apart(lengths: list[int], seed: int) -> Input:
    inputs = batch(lengths, seed=seed)
    return inputs._replace(ids=torch.arange(len(inputs.ids)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layers", [1, 3])
def test_gradients_flow_exactly_where_the_order_allows(seed: int, layers: int) -> None:
    model, inputs = built(shape(layers=layers)), told_apart([9, 9, 6], seed)
    out = model(inputs)
    assert out.queries is not None and inputs.queries is not None
    content = influence(model, inputs, out.hidden_states)
    queries = influence(model, inputs, out.queries).view(3, -1, len(inputs.ids))
    for block in range(3):
        a, b = int(inputs.cu_seqlens[block]), int(inputs.cu_seqlens[block + 1])
        rule = sees(inputs, block)
        assert torch.equal(content[a:b, a:b], rule | torch.eye(b - a).bool())
        assert torch.equal(queries[block][:, a:b], rule[inputs.queries[block] - a])
        content[a:b, a:b] = False
        queries[block][:, a:b] = False
    assert not content.any() and not queries.any()  # and nowhere into another block


@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_altering_a_token_alters_what_sees_it_and_nothing_else(seed: int) -> None:
    model, inputs = built(shape(layers=2)), batch([8], seed=seed)
    old, rule = model(inputs), sees(inputs, 0)
    assert inputs.queries is not None and old.queries is not None
    for token in range(8):
        ids = inputs.ids.clone()
        ids[token] = (ids[token] + 7) % V
        new = model(inputs._replace(ids=ids))
        moved = ((new.hidden_states - old.hidden_states).abs() > 1e-11).any(-1)
        assert torch.equal(moved, rule[:, token] | (torch.arange(8) == token))
        queries_changed = ((new.queries - old.queries).abs() > 1e-11).any(-1)
        assert torch.equal(queries_changed, rule[inputs.queries[0], token])


def test_targets_of_a_half_see_each_other_once() -> None:
    model, inputs = built(), told_apart([12, 12], 2)
    kinds = torch.where(inputs.kinds == SPECIAL, PLAIN, inputs.kinds)
    inputs = inputs._replace(kinds=kinds, queries=slots(kinds, inputs.cu_seqlens))
    out = model(inputs)
    assert out.queries is not None and inputs.queries is not None
    queries = influence(model, inputs, out.queries)
    at = inputs.queries.flatten()
    counted = 0
    for first in (0, 6, 12, 18):
        inside = [n for n in range(first, first + 6) if kinds[n] == TARGET]
        pairs = sum(bool(queries[at == i][0][j]) for i in inside for j in inside)
        assert pairs == len(inside) * (len(inside) - 1) // 2
        counted += pairs
    assert counted > 6


@torch.no_grad()
def test_blocks_without_targets_are_read_in_both_directions() -> None:
    inputs = batch([8, 8])
    assert inputs.kinds is not None
    inputs = inputs._replace(kinds=torch.zeros_like(inputs.kinds), reverse=None, queries=None)
    model = built()
    halves = plain(inputs)._replace(cu_seqlens=torch.tensor([0, 4, 8, 12, 16]).int(), max_seqlen=4)
    halves = halves._replace(position_ids=halves.position_ids % 4)
    first = inputs.position_ids < 4
    assert_same(model(inputs).hidden_states[first], model(halves).hidden_states[first])
    single = built(shape(layers=1))
    assert_same(single(inputs).hidden_states[~first], single(plain(inputs)).hidden_states[~first])


def test_a_query_that_sees_nothing_still_has_a_gradient() -> None:
    model, inputs = built(), told_apart([6], 0)
    assert inputs.kinds is not None
    kinds = torch.full_like(inputs.kinds, TARGET)
    out = model(inputs._replace(kinds=kinds, queries=torch.arange(6)[None]))
    assert out.queries is not None
    moved = influence(model, inputs, out.queries)
    assert sorted(moved.sum(-1).tolist()) == [0, 1, 2, 3, 4, 5]
    out.queries.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# --- memory


@torch.no_grad()
def test_memory_is_what_each_layer_read_in_the_first_half() -> None:
    model = built(shape(memory=6))
    first = model(batch([8, 8], seed=0), keep=True)
    inputs = torch.stack(first.layers[:-1]).view(2, 2, 8, 8)[:, :, :4]
    assert_same(first.memory[:, :, 2:], inputs)
    assert not first.memory[:, :, :2].any()
    second = model(batch([8, 8], seed=1, remembered=first.memory), keep=True)
    assert_same(second.memory[:, :, :2], inputs[:, :, 2:])
    assert_same(second.memory[:, :, 2:], torch.stack(second.layers[:-1]).view(2, 2, 8, 8)[:, :, :4])
    assert built(shape(memory=0))(batch([8, 8])).memory is None


@torch.no_grad()
def test_blank_memory_is_not_seen() -> None:
    model, inputs = built(), batch([8, 8])
    none, blank = model(inputs), model(inputs._replace(memory=torch.zeros(2, 2, 6, 8).double()))
    assert_same(none.hidden_states, blank.hidden_states)
    assert_same(none.queries, blank.queries)
    assert_same(none.memory, blank.memory)
    some = memories(2, 2, 4, 8)
    short = model(inputs._replace(memory=some))
    padded = model(inputs._replace(memory=functional.pad(some, (0, 0, 2, 0))))
    assert_same(short.hidden_states, padded.hidden_states)
    assert_same(short.queries, padded.queries)
    assert_same(short.memory, padded.memory)
    assert not torch.allclose(short.hidden_states, none.hidden_states)


def test_no_gradient_flows_into_memory_or_out_of_it() -> None:
    old = memories(2, 2, 6, 8).requires_grad_()
    out = built()(batch([8, 8], remembered=old))
    (out.hidden_states.square().sum() + out.queries.square().sum()).backward()
    assert old.grad is None and not out.memory.requires_grad


@torch.no_grad()
def test_padding_is_not_remembered() -> None:
    model = built()
    out = model(batch([8, 3], seed=4))
    assert out.memory[:, 0, 2:].any(-1).all()
    assert out.memory[:, 1].any(-1).tolist() == [[False] * 2 + [True] * 3 + [False]] * 2


# --- layouts


@torch.no_grad()
def test_batch_mates_and_dummies_change_nothing() -> None:
    model = built()
    inputs = batch([9, 5, 7], seed=6)
    out = model(inputs)
    starts = inputs.cu_seqlens.tolist()
    for block in range(3):
        inside = slice(starts[block], starts[block + 1])
        alone = Input(
            inputs.ids[inside],
            inputs.position_ids[inside],
            inputs.segments[inside],
            torch.tensor([0, starts[block + 1] - starts[block]]).int(),
            max_seqlen=9,
            order=inputs.order[inside],
            kinds=inputs.kinds[inside],
            reverse=inputs.reverse[block : block + 1],
            queries=inputs.queries[block : block + 1] - starts[block],
        )
        lone = model(alone)
        assert_same(lone.hidden_states, out.hidden_states[inside])
        assert_same(lone.queries, out.queries.view(3, -1, 8)[block])
        tight = model(alone._replace(max_seqlen=starts[block + 1] - starts[block], dense=True))
        assert_same(tight.hidden_states, lone.hidden_states)
        assert_same(tight.queries, lone.queries)
    for filler in (0, 3):
        padded = model(_with_dummies(inputs, filler))
        assert_same(padded.hidden_states[:21], out.hidden_states)
        assert_same(padded.queries.view(5, -1, 8)[:3].flatten(0, 1), out.queries)


@pytest.mark.parametrize("left", [0, 3])
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(left: int) -> None:
    model, inputs = built(), plain(batch([6]))
    seen = torch.zeros(1, 9, dtype=torch.bool)
    seen[0, left : left + 6] = True
    for filler in (0, 7):
        ids, segments = torch.full((9,), filler), torch.full((9,), filler % 3)
        ids[seen[0]], segments[seen[0]] = inputs.ids, inputs.segments
        starts = torch.tensor([0, 9]).int()
        padded = Input(
            ids, torch.arange(9), segments, starts, max_seqlen=9, dense=True, attention_mask=seen
        )
        assert_same(model(padded).hidden_states[seen[0]], model(inputs).hidden_states)


def _with_dummies(inputs: Input, filler: int) -> Input:
    """A block of four dummies behind the real ones, then an empty block."""
    more = {
        name: torch.cat([getattr(inputs, name), torch.full((4,), filler % limit)])
        for name, limit in (("ids", V), ("segments", 3), ("order", 2), ("kinds", 3))
    }
    return inputs._replace(
        **more,
        position_ids=torch.cat([inputs.position_ids, torch.arange(4)]),
        cu_seqlens=torch.tensor([*inputs.cu_seqlens.tolist(), 25, 25]).int(),
        reverse=torch.cat([inputs.reverse, torch.tensor([False, True])]),
        queries=torch.cat([inputs.queries, torch.zeros(2, inputs.queries.shape[1]).long()]),
        real=torch.tensor(21),
    )


def test_recomputing_changes_no_gradient() -> None:
    inputs = batch([8, 8], remembered=memories(2, 2, 6, 8))
    gradients = []
    for recompute in (False, True):
        model = built().train()
        model.recompute = recompute
        model(inputs).queries.pow(3).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@torch.no_grad()
def test_activations_may_be_narrower_than_the_weights() -> None:
    model = built().float()
    inputs = batch([8, 8], remembered=memories(2, 2, 6, 8))
    whole = model(inputs)
    model.precision = torch.bfloat16
    half = model(inputs)
    for a, b in ((whole.hidden_states, half.hidden_states), (whole.queries, half.queries)):
        assert a.dtype == torch.float32 and b.dtype == torch.bfloat16
        torch.testing.assert_close(a, b.float(), rtol=0, atol=0.15)
    assert half.memory.dtype == torch.bfloat16


def test_dropout_falls_where_the_original_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, dropped = batch([8, 8]), []

    def record(x: Tensor, rate: float, training: bool) -> Tensor:
        dropped.append((tuple(x.shape), rate))
        return x

    monkeypatch.setattr(functional, "dropout", record)
    model = Relative(1, 2, 8, 12, memory=6, dropout=0.25, attention_dropout=0.5).build(V)
    model(inputs)
    word_shape, distances, slots = (16, 8), (2, 16, 8), inputs.queries.shape[1]
    once = [(word_shape, 0.25), (distances, 0.25)]
    for rows in (8, slots):
        weights, sums, inner = (2, 2, rows, 8), (2, rows, 8), (2, rows, 12)
        once += [(weights, 0.5), (sums, 0.25), (inner, 0.25), (sums, 0.25), (sums, 0.25)]
    once.append(((2, slots, 8), 0.25))
    assert sorted(dropped) == sorted(once)
    dropped.clear()
    model.eval()(inputs)
    assert not dropped


@torch.no_grad()
@pytest.mark.thorough
def test_it_compiles_whole() -> None:
    model = built()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    for inputs in (
        batch([8, 8]),
        batch([8, 8], remembered=memories(2, 2, 6, 8)),
        batch([8, 5, 6]),
        plain(batch([8, 5])),
    ):
        a, b = model(inputs, keep=True), compiled(inputs, keep=True)
        assert_same(a.hidden_states, b.hidden_states)
        assert (a.queries is None and b.queries is None) or torch.equal(a.queries, b.queries)


# --- parameters, loss and targets


@pytest.mark.parametrize(
    ("layers", "heads", "width", "inner", "vocabulary"), [(1, 1, 2, 3, 5), (3, 2, 12, 20, 31)]
)
def test_the_formula_counts_the_parameters(
    layers: int, heads: int, width: int, inner: int, vocabulary: int
) -> None:
    part = shape(layers=layers, heads=heads, width=width, inner=inner)
    _check_counts(part, part.build(vocabulary), vocabulary)


def _check_counts(part: Relative, model: Streams, vocabulary: int) -> None:
    counted: dict[str, int] = {}
    names = {"attention": "layers.attention", "ffn": "layers.ffn"}
    for name, parameter in model.named_parameters():
        first, second = name.split(".")[:2]
        key = names.get(first, f"{first}.{second}")
        counted[key] = counted.get(key, 0) + parameter.numel()
    assert counted == part.parameters(vocabulary)


def test_the_published_size_is_exact() -> None:
    part = read("xlnet", size="base").encoder
    with torch.device("meta"):
        model, head = part.build(32_000), PermutationLm().build(part, 32_000)
    _check_counts(part, model, 32_000)
    parameters = [*model.parameters(), *head.parameters()]
    assert sum(p.numel() for p in parameters) == 116_750_336


def test_every_parameter_gets_gradient_in_pretraining() -> None:
    inputs = batch([9, 9, 8], seed=2, remembered=memories(2, 3, 6, 8))
    model = built()
    head = PermutationLm().build(model.shape, V).double()
    head(model(inputs), {"labels": inputs.ids[inputs.queries.flatten()]})["loss"].backward()
    for name, parameter in [*model.named_parameters(), *head.named_parameters()]:
        assert parameter.grad is not None, name
        used = parameter.grad.flatten(1).any(-1) if name.endswith("segments") else parameter.grad
        assert used.all() if name.endswith("segments") else used.any(), name


def test_the_first_loss_is_that_of_a_uniform_guess() -> None:
    torch.manual_seed(0)
    part = shape(width=64, inner=128, heads=4)
    model, head = part.build(1000), PermutationLm().build(part, 1000)
    inputs = batch([64] * 8, vocabulary=1000)
    sums = head(model(inputs), {"labels": inputs.ids[inputs.queries.flatten()]})
    assert abs(sums["loss"].item() / sums["count"].item() - math.log(1000)) < 0.1
    start = model.embeddings.query.std().item()
    assert 0.01 < start < 0.03


def test_the_head_adds_the_table_and_a_bias_and_ignores_idle_slots() -> None:
    head = PermutationLm().build(shape(), 5).double()
    torch.nn.init.normal_(head.bias)
    table, queries = torch.randn(5, 8).double(), torch.randn(3, 8).double()
    encoded = Encoded(torch.zeros(0, 8), table, queries=queries)
    labels = torch.tensor([4, Targets.IGNORED, 0])
    sums = head(encoded, {"labels": labels})
    logits = queries @ table.T + head.bias
    expected = -logits.log_softmax(-1)[[0, 2], [4, 0]].sum()
    torch.testing.assert_close(sums["loss"], expected)
    assert sums["count"] == 2
    idle = head(encoded, {"labels": torch.full((3,), Targets.IGNORED)})
    assert idle["loss"] == 0 and idle["count"] == 0


@pytest.mark.parametrize("length", [16, 64, 100])
def test_targets_are_a_rectangle_of_all_that_is_hidden(length: int) -> None:
    documents = prose(40)
    plan = StreamPair(length=length, reuse=length // 2, rows=4).plan(documents, 1)
    blocks = plan.blocks(np.arange(min(12, len(plan))))
    hidden = PermutationTargets().hide(blocks, 3, vocabulary=documents.vocabulary)
    targets = PermutationLm().targets(blocks, hidden, _untouched(blocks, hidden))
    _check_targets(blocks, hidden, targets)
    slots = len(targets.columns["queries"]) // len(blocks)
    most = max(np.bincount(blocks.rows[hidden.positions]))
    assert most <= slots < most + 8 and (slots % 8 == 0 or slots == length)


def test_blocks_without_targets_have_one_idle_slot_each() -> None:
    plan = StreamPair(length=16, reuse=8, rows=4).plan(prose(20), 1)
    blocks = plan.blocks(np.arange(3))
    hidden = Hidden(np.zeros((0, 2), np.int64))
    targets = PermutationLm().targets(blocks, hidden, _untouched(blocks, hidden))
    assert targets.columns["queries"].tolist() == [0, 0, 0]
    assert targets.columns["labels"].tolist() == [Targets.IGNORED] * 3
    none = PermutationLm().targets(plan.blocks(np.arange(0)), hidden, _untouched(blocks, hidden))
    assert none.starts.tolist() == [0] and len(none.columns["queries"]) == 0


def test_a_block_has_no_more_slots_than_tokens() -> None:
    blocks = StreamPair(length=10, reuse=5, rows=2).plan(prose(20), 1).blocks(np.arange(2))
    hidden = Hidden(np.array([[0, 9], [10, 12]]))
    targets = PermutationLm().targets(blocks, hidden, _untouched(blocks, hidden))
    _check_targets(blocks, hidden, targets)
    assert targets.starts.tolist() == [0, 10, 20]


def _untouched(blocks: Blocks, hidden: Hidden) -> Corrupted:
    return Corrupted(blocks.ids, np.full(len(hidden.positions), Corrupted.SAME, np.uint8))


def _check_targets(blocks: Blocks, hidden: Hidden, targets: Targets) -> None:
    at, labels = targets.columns["queries"], targets.columns["labels"]
    assert len(set(np.diff(targets.starts))) == 1 and targets.starts[-1] == len(at) == len(labels)
    rows = np.repeat(np.arange(len(blocks)), np.diff(targets.starts))
    there = labels != Targets.IGNORED
    packed = blocks.starts[rows] + at
    assert packed[there].tolist() == hidden.positions.tolist()
    assert labels[there].tolist() == blocks.ids[hidden.positions].tolist()
    assert not at[~there].any()


@pytest.mark.thorough
def test_one_layer_is_compiled_for_all_and_for_training_only() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend  # two seconds of imports

    torch._dynamo.reset()
    model, counter = built(shape(layers=5)).train(), CompileCounterWithBackend("aot_eager")
    weights = list(model.parameters())

    def both(inputs: Input) -> list[Tensor]:
        out = model(inputs)
        assert out.queries is not None
        loss = (out.queries**2).sum() + (out.hidden_states**2).sum()
        return [
            out.queries,
            out.hidden_states,
            *torch.autograd.grad(loss, weights, allow_unused=True),
        ]

    plain = both(batch([12, 12]))
    model.compile(fullgraph=True, dynamic=False, backend=counter)
    torch.testing.assert_close(both(batch([12, 12])), plain, rtol=0, atol=1e-9)
    assert counter.frame_count == 2  # the first layer's queries are one vector, spread out
    model.eval()
    for length in (6, 8, 10):  # texts to be judged have as many shapes as they like
        model(batch([length, length]))
    assert counter.frame_count == 2
    torch._dynamo.reset()
