"""The block of a transformer by its fields, against a loop over tokens and heads; bad fields."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, cos, exp, log, sin, sqrt
from typing import Any

import pytest
import torch
from support.peer_models import VOCABULARY, shaken
from torch import Tensor

from clozelab.contracts import Input
from clozelab.encoder import attention
from clozelab.encoder.positions import alibi_slopes
from clozelab.encoder.stack import Stack, _distinct
from clozelab.encoder.transformer import Transformer
from clozelab.errors import UserError

torch.set_num_threads(1)
SHAPE: dict[str, Any] = {
    "layers": 3, "heads": 2, "hidden_size": 16, "intermediate_size": 12, "embedding_size": 16,
    "positions": 40,
}  # fmt: skip
PRE: dict[str, Any] = {**SHAPE, "types": 0, "norm": "pre"}
WINDOW: dict[str, Any] = {"window": 4, "global_every": 2}
CASES: dict[str, dict[str, Any]] = {
    "bert": SHAPE,
    "rotary": {**SHAPE, "position_embedding": "rotary"},
    "rotary, two bases": {
        **SHAPE, **WINDOW, "position_embedding": "rotary", "rope_theta": 90.0,
        "local_rope_theta": 7.0,
    },
    "alibi": {**SHAPE, "position_embedding": "alibi", "types": 0},
    "alibi, windows, causal": {**PRE, **WINDOW, "position_embedding": "alibi", "causal": True},
    "alibi, causal": {**PRE, "position_embedding": "alibi", "causal": True, "heads": 4},
    "windows": {**SHAPE, **WINDOW},
    "windows, causal": {**PRE, **WINDOW, "causal": True},
    "windows of shared layers": {**SHAPE, **WINDOW, "sharing": "all"},
    "gated": {**SHAPE, "gated": True},
    "swiglu": {**PRE, "gated": True, "activation": "silu", "bias": False, "normalisation": "rms"},
    "relu2": {**PRE, "activation": "relu2", "normalisation": "rms"},
    "no biases": {**SHAPE, "bias": False, "embedding_size": 8},
    "no first norm": {**PRE, "first_norm": False},
    "qk-norm": {**PRE, "qk_norm": True, "position_embedding": "rotary", "normalisation": "rms"},
    "value residual": {**PRE, "value_residual": 0.3, "bias": False},
    "modernbert": {
        **PRE, **WINDOW, "position_embedding": "rotary", "rope_theta": 160.0, "gated": True,
        "bias": False, "first_norm": False,
    },
}  # fmt: skip
DISENTANGLED: dict[str, Any] = {**SHAPE, "position_embedding": "disentangled"}
CASES |= {
    "deberta": {**DISENTANGLED, "types": 0, "position_buckets": 8, "position_norm": True},
    "deberta, own projections": {
        **DISENTANGLED, "position_projections": "own", "relative_positions": 5,
    },
    "deberta, contents to positions": {
        **DISENTANGLED, "position_buckets": 4, "position_terms": "content_to_position",
        "absolute_positions": "input",
    },
    "deberta, positions to contents": {
        **DISENTANGLED, "position_terms": "position_to_content", "position_projections": "own",
        "bias": False,
    },
    "deberta, windows, causal": {
        **PRE, **WINDOW, "position_embedding": "disentangled", "causal": True,
    },
    "deberta, shared layers": {**DISENTANGLED, "sharing": "all", "embedding_size": 8},
}  # fmt: skip
LENGTHS = [9, 1, 5, 13]


def built(case: str, *, dropout: float = 0.1) -> Stack:
    dropouts = {"dropout": dropout, "attention_dropout": dropout}
    stack = shaken(Transformer(**CASES[case], **dropouts).build(VOCABULARY))
    assert isinstance(stack, Stack)
    return stack


def batch(lengths: list[int], *, seed: int = 1, idle: int = 0) -> Input:
    """Blocks of those lengths; `idle` are tokens of a dummy behind them, and one empty block."""
    every = [*lengths, *([idle, 0] if idle else [])]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (sum(lengths),), generator=generator)
    return Input(
        ids=torch.cat([ids, torch.zeros(idle, dtype=torch.long)]),
        position_ids=torch.cat([torch.arange(length) for length in every]),
        segments=torch.cat([torch.arange(length) % 2 for length in every]),
        cu_seqlens=torch.tensor([0, *every]).cumsum(0).int(),
        max_seqlen=max(every),
        dense=len({*every}) == 1,
    )


def normal(shape: Transformer, module: Any, x: Tensor) -> Tensor:
    if module is None:
        return x
    if shape.normalisation == "rms":
        return module.weight * x / (x.square().mean() + shape.epsilon).sqrt()
    shift = 0 if module.bias is None else module.bias
    centred = x - x.mean()
    return module.weight * centred / (centred.square().mean() + shape.epsilon).sqrt() + shift


def product(module: Any, x: Tensor) -> Tensor:
    return module.weight @ x + (0 if module.bias is None else module.bias)


def activated(name: str, x: Tensor) -> Tensor:
    if name == "silu":
        return x / (1 + (-x).exp())
    if name == "relu2":
        return x.clamp(min=0) ** 2
    return x * (1 + torch.erf(x / sqrt(2))) / 2


def turned(vector: Tensor, position: int, theta: float) -> Tensor:
    half, out = len(vector) // 2, vector.clone()
    for pair in range(half):
        angle = position / theta ** (2 * pair / len(vector))
        first, second = vector[pair], vector[pair + half]
        out[pair] = first * cos(angle) - second * sin(angle)
        out[pair + half] = first * sin(angle) + second * cos(angle)
    return out


def bucket(shape: Transformer, distance: int) -> int:
    """The row of the table of distances, of which the middle one is of no distance."""
    span, far = shape.position_buckets or shape.reach, abs(distance)
    if shape.position_buckets and far > span // 2:
        near = span // 2
        far = near + ceil(log(far / near) / log((shape.reach - 1) / near) * (near - 1))
    return min(max(span + (far if distance > 0 else -far), 0), 2 * span - 1)


def by_distance(stack: Stack, number: int) -> list[dict[str, Tensor]]:
    """The queries and keys of every row of the table of distances."""
    shape, (attention, _) = stack.shape, stack.halves(number)
    if stack.relative is None:
        return []
    rows = []
    for row in stack.relative.weight:
        x = normal(shape, stack.relative_norm, row)
        if shape.position_projections == "shared":
            query, key, _ = product(attention.qkv, x).chunk(3)
        else:
            query, key = (
                x if module is None else product(module, x)
                for module in (attention.position_query, attention.position_key)
            )
        rows.append({"query": query.view(shape.heads, -1), "key": key.view(shape.heads, -1)})
    return rows


def attended(
    stack: Stack, number: int, xs: list[Tensor], first: list[Tensor] | None
) -> tuple[list[Tensor], list[Tensor]]:
    """One attention over one block, token by token and head by head; and its values."""
    shape, (attention, _) = stack.shape, stack.halves(number)
    window = shape.window if number % shape.global_every else 0
    theta = shape.local_rope_theta if window else shape.rope_theta
    size, queries, keys, values = shape.hidden_size // shape.heads, [], [], []
    for position, x in enumerate(xs):
        q, k, v = (part.view(shape.heads, size) for part in product(attention.qkv, x).chunk(3))
        if shape.qk_norm:
            q = torch.stack([normal(shape, attention.query_norm, row) for row in q])
            k = torch.stack([normal(shape, attention.key_norm, row) for row in k])
        if shape.position_embedding == "rotary":
            q, k = (torch.stack([turned(row, position, theta) for row in y]) for y in (q, k))
        if first is not None:
            v = (1 - shape.value_residual) * v + shape.value_residual * first[position]
        queries.append(q), keys.append(k), values.append(v)
    distances = by_distance(stack, number)

    def score(i: int, j: int, head: int) -> float:
        terms = [queries[i][head] @ keys[j][head]]
        if distances:
            row = distances[bucket(shape, i - j)]
            if shape.position_terms != "position_to_content":
                terms.append(queries[i][head] @ row["key"][head])
            if shape.position_terms != "content_to_position":
                terms.append(keys[j][head] @ row["query"][head])
        return float(sum(terms)) / sqrt(size * len(terms))

    slopes = alibi_slopes(shape.heads) if shape.position_embedding == "alibi" else [0.0] * 99
    out = []
    for i in range(len(xs)):
        seen = [
            j
            for j in range(len(xs))
            if (not window or abs(i - j) <= window / 2) and (not shape.causal or j <= i)
        ]
        heads = []
        for head in range(shape.heads):
            scores = [score(i, j, head) - slopes[head] * abs(i - j) for j in seen]
            weights = [exp(score - max(scores)) for score in scores]
            shares = zip(weights, seen, strict=True)
            heads.append(sum(w / sum(weights) * values[j][head] for w, j in shares))
        out.append(product(attention.output, torch.cat(heads)))
    return out, values


@torch.no_grad()
def by_hand(stack: Stack, packed: Input) -> Tensor:
    """The states of every token, one block at a time."""
    shape, table, states = stack.shape, stack.embeddings, []
    for begin, end in zip(
        packed.cu_seqlens[:-1].tolist(), packed.cu_seqlens[1:].tolist(), strict=True
    ):
        xs, first = [], None
        for token in range(begin, end):
            x = table.words.weight[packed.ids[token]]
            x = x + (0 if table.positions is None else table.positions.weight[token - begin])
            x = x + (0 if table.types is None else table.types.weight[packed.segments[token]])
            x = normal(shape, table.norm, x)
            xs.append(x if table.projection is None else product(table.projection, x))
        for number in range(shape.layers):
            attention, ffn = stack.halves(number)
            pre = shape.norm == "pre"
            inputs = [normal(shape, attention.norm, x) for x in xs] if pre else xs
            sums, values = attended(stack, number, inputs, first)
            first = values if shape.value_residual and number == 0 else first
            xs = [x + y for x, y in zip(xs, sums, strict=True)]
            xs = xs if pre else [normal(shape, attention.norm, x) for x in xs]
            for at, x in enumerate(xs):
                inner = product(ffn.inner, normal(shape, ffn.norm, x) if pre else x)
                if shape.gated:
                    inner, gate = inner.chunk(2)
                    inner = activated(shape.activation, inner) * gate
                else:
                    inner = activated(shape.activation, inner)
                xs[at] = x + product(ffn.output, inner)
                xs[at] = xs[at] if pre else normal(shape, ffn.norm, xs[at])
        states += [normal(shape, stack.norm, x) for x in xs]
    return torch.stack(states)


@pytest.mark.parametrize("lengths", [LENGTHS, [11, 11]], ids=["packed", "dense"])
@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_a_loop(case: str, lengths: list[int]) -> None:
    stack, inputs = built(case), batch(lengths)
    states = stack(inputs).hidden_states.detach()
    assert float((states - by_hand(stack, inputs)).abs().max()) < 1e-10


@pytest.mark.parametrize("case", CASES)
def test_dummies_and_batch_mates_change_nothing_and_no_gradient_is_nan(case: str) -> None:
    stack, inputs = built(case), batch(LENGTHS)
    plain = stack(inputs).hidden_states
    filled = stack(batch(LENGTHS, idle=20))
    real = filled.hidden_states[: sum(LENGTHS)]
    torch.testing.assert_close(real, plain, rtol=1e-12, atol=1e-12)
    real.square().sum().backward()
    for name, parameter in stack.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_no_query_is_without_a_key(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels differ in what they make of a softmax over nothing, of padding too."""
    kernel = attention.functional.scaled_dot_product_attention

    def watched(*values: Any, attn_mask: Tensor, **more: Any) -> Tensor:
        seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask.isfinite()
        assert seen.any(-1).all()
        return kernel(*values, attn_mask=attn_mask, **more)

    monkeypatch.setattr(attention.functional, "scaled_dot_product_attention", watched)
    built(case)(batch([1, 30], idle=20))


@pytest.mark.parametrize("lengths", [LENGTHS, [7, 7, 7]], ids=["packed", "dense"])
@pytest.mark.parametrize("case", [case for case in CASES if not CASES[case].get("causal")])
def test_a_batch_may_be_read_causally_by_an_encoder_that_is_not(
    case: str, lengths: list[int]
) -> None:
    both, inputs = built(case, dropout=0.0), batch(lengths)
    causal = replace(both.shape, causal=True).build(VOCABULARY).double()
    causal.load_state_dict(both.state_dict())
    states = both(inputs._replace(causal=True)).hidden_states
    assert torch.equal(states, causal(inputs).hidden_states)
    assert not torch.allclose(states, both(inputs).hidden_states)


@pytest.mark.parametrize("case", [case for case in CASES if not CASES[case].get("causal")])
@torch.no_grad()
def test_the_last_layer_at_some_tokens_is_that_of_all(case: str) -> None:
    stack, inputs = built(case), batch([11, 11, 11])
    at = torch.tensor([0, 11 + 10, 22 + 4])
    some = stack.states_at(inputs, at).hidden_states
    torch.testing.assert_close(some, stack(inputs).hidden_states[at], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("case", [*(c for c in CASES if not CASES[c].get("causal")), "decoder"])
@torch.no_grad()
def test_copies_of_a_text_are_read_like_texts_of_their_own(case: str, layers: int) -> None:
    fields = {**DISENTANGLED, "absolute_positions": "decoder"} if case == "decoder" else CASES[case]
    stack = shaken(Transformer(**{**fields, "layers": layers}).build(VOCABULARY))
    inputs = batch([7] * 7)
    at = torch.arange(7) * 8  # a token of each copy, which is another there
    ids, other = inputs.ids[:7].repeat(7), inputs.ids[7:14]
    copies = inputs._replace(
        ids=ids.index_copy(0, at, other), segments=inputs.segments[:7].repeat(7)
    )
    assert len(_distinct(copies)[0].ids) <= 14
    some, every = stack.states_at(copies, at), stack(copies)
    torch.testing.assert_close(some.predicting, every.predicting[at], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("dropout", "recompute"), [(0.0, False), (0.3, False), (0.3, True)])
@pytest.mark.parametrize(("lengths", "idle"), [(LENGTHS, 0), (LENGTHS, 6), ([7, 7, 7], 0)])
@pytest.mark.parametrize("case", [*CASES, "decoder"])
def test_chosen_tokens_have_the_states_and_the_gradients_that_they_have_among_all(
    case: str, lengths: list[int], idle: int, dropout: float, recompute: bool
) -> None:
    fields = {**DISENTANGLED, "absolute_positions": "decoder"} if case == "decoder" else CASES[case]
    rates = {"dropout": dropout, "attention_dropout": dropout}
    stack = shaken(Transformer(**fields, **rates).build(VOCABULARY)).train()
    stack.recompute, inputs = recompute, batch(lengths, idle=idle)
    at = torch.tensor([8, 0, 3, 3, 17, 10])  # not in order, and one twice
    results = []
    for chosen in (None, at):
        stack.zero_grad()
        torch.manual_seed(4)
        encoded = stack(inputs, at=chosen, project=-1)
        states = encoded.predicting if chosen is not None else encoded.predicting[at]
        assert states.shape == (6, 16) and encoded.projections is not None
        weights = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)
        ((weights * states).sum() + encoded.projections.qkv.square().mean()).backward()
        results.append([states.detach(), *(p.grad for p in stack.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


def flash(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, _: Tensor, *rest: Any, **windows: Any
) -> tuple[Tensor]:
    """What torch's packed operator promises, block by block."""
    causal, (left, right) = rest[3], windows.values()
    out = torch.empty_like(q)
    for begin, end in pairwise(first.tolist()):
        at = torch.arange(end - begin)
        ahead = at - at[:, None]
        hidden = (ahead > 0) if causal else torch.zeros_like(ahead, dtype=torch.bool)
        hidden |= (-ahead > left) if left is not None else False
        hidden |= (ahead > right) if right is not None else False
        block = slice(begin, end)
        scores = torch.einsum("ihd,jhd->hij", q[block], k[block]) / sqrt(q.shape[-1])
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[block] = torch.einsum("hij,jhd->ihd", weights, v[block])
    return (out,)


@pytest.mark.parametrize("causal", [False, True], ids=["as it is", "read causally"])
@pytest.mark.parametrize("lengths", [LENGTHS, [11, 11]], ids=["packed", "dense"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_packed_operator_is_told_the_same(
    case: str, lengths: list[int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, inputs = built(case), batch(lengths)._replace(causal=causal)
    plain, called = stack(inputs).hidden_states, []

    def counted(*values: Any, **windows: Any) -> tuple[Tensor]:
        called.append(windows["window_size_left"])
        return flash(*values, **windows)

    monkeypatch.setattr(attention, "packs", lambda *_: True)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", counted)
    torch.testing.assert_close(stack(inputs).hidden_states, plain, rtol=1e-10, atol=1e-10)
    shape = stack.shape
    windows = [shape.window_of(number) // 2 or None for number in range(shape.layers)]
    if shape.position_embedding in ("alibi", "disentangled"):  # which the operator has not
        assert called == []
    else:
        assert called == [side for side in windows if side or not inputs.dense]


@pytest.mark.parametrize("case", CASES)
def test_the_formula_counts_what_is_built(case: str) -> None:
    shape = Transformer(**CASES[case])
    counts: dict[str, int] = {}
    for name, parameter in shape.build(VOCABULARY).named_parameters():
        name_parts = name.split(".")
        part = (
            ".".join(name_parts[:2]) if name_parts[0] == "embeddings" else f"layers.{name_parts[0]}"
        )
        part = name_parts[0] if name_parts[0] in ("norm", "relative", "relative_norm") else part
        counts[part] = counts.get(part, 0) + parameter.numel()
    assert counts == shape.parameters(VOCABULARY)


@pytest.mark.parametrize(
    ("case", "way"),
    [
        *((case, "recompute") for case in ("modernbert", "value residual", "alibi", "deberta")),
        pytest.param("modernbert", "compile", marks=pytest.mark.thorough),
        *(
            pytest.param(case, "compile", marks=pytest.mark.slow)
            for case in ("value residual", "alibi", "deberta")
        ),
    ],
)
def test_recomputing_and_compiling_change_no_gradient(case: str, way: str) -> None:
    grads = []
    for now in ("plain", way):
        stack = built(case, dropout=0.0).train()
        stack.recompute = now == "recompute"
        run: Any = stack
        if now == "compile":
            run = torch.compile(stack, backend="aot_eager", fullgraph=True)
        run(batch(LENGTHS)).hidden_states.square().sum().backward()
        grads.append([parameter.grad for parameter in stack.parameters()])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("case", "relative"),
    [("rotary", True), ("bert", False), ("deberta", True)]
    + [("deberta, contents to positions", False)],  # whose input has positions, too
)
@torch.no_grad()
def test_rotations_know_distances_alone(case: str, relative: bool) -> None:
    stack, dense = built(case), batch([11, 11])
    shifted = dense._replace(position_ids=dense.position_ids + 3)
    gap = stack(dense).hidden_states - stack(shifted).hidden_states
    assert (float(gap.abs().max()) < 1e-9) == relative


def test_outputs_begin_as_they_are_told() -> None:
    torch.manual_seed(0)
    shape = Transformer(**SHAPE)
    started = {}
    for start in ("normal", "scaled", "zero"):
        torch.manual_seed(0)
        started[start] = replace(shape, output_init=start).build(VOCABULARY)  # type: ignore[arg-type]
    for half in ("attention", "ffn"):
        weights = {s: getattr(m, half)[1].output.weight for s, m in started.items()}
        torch.testing.assert_close(weights["scaled"], weights["normal"] / sqrt(6))
        assert not weights["zero"].any()
    first, second = started["normal"], started["zero"]
    assert torch.equal(first.attention[1].qkv.weight, second.attention[1].qkv.weight)


def test_the_slopes_of_alibi() -> None:
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    twelve = alibi_slopes(12)
    assert twelve[:8] == alibi_slopes(8) and twelve[8:] == alibi_slopes(16)[::2][:4]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"heads": 3}, "heads = 3: must divide hidden_size = 16"),
        ({"window": 82, "global_every": 3}, "window = 82: must be even.*most positions = 40"),
        ({"window": 5, "global_every": 3}, "window = 5: must be even"),
        ({"window": 8}, "window = 8: goes with global_every above 1, and that is 1; set both"),
        ({"global_every": 3}, "window = 0: goes with global_every"),
        (
            {"hidden_size": 18, "heads": 6, "position_embedding": "rotary"},
            "heads = 6: give each head 3 elements of hidden_size = 18, which rotary positions",
        ),
        ({"position_embedding": "alibi", "position_offset": 2}, "position_offset = 2: has no eff"),
        ({"first_norm": False}, 'first_norm = false: .* set norm = "pre"'),
        ({"first_norm": False, "norm": "pre", "sharing": "all"}, "share no attention"),
        ({"position_embedding": "sines"}, "position_embedding = sines: must be one of learned"),
        ({"value_residual": 1.0}, "value_residual = 1.0: must be at least 0 and below 1"),
        (
            {"position_buckets": 8},
            'position_buckets = 8: has no effect with position_embedding = "l',
        ),
        (
            {"position_embedding": "rotary", "position_norm": True},
            "position_norm = True: has no ef",
        ),
        ({"absolute_positions": "input"}, 'leave it out, or set "disentangled"'),
        (
            {"position_embedding": "disentangled", "position_buckets": 7},
            "position_buckets = 7: must be even, and half of it at most 38, since 39 is the lar",
        ),
        (
            {**DISENTANGLED, "position_buckets": 8, "relative_positions": 5},
            "position_buckets = 8: must be even, and half of it at most 3",
        ),
        ({**DISENTANGLED, "position_offset": 2}, "position_offset = 2: has no effect"),
        (
            {**DISENTANGLED, "absolute_positions": "decoder", "embedding_size": 8},
            "embedding_size = 8: a mask decoder adds positions to states of hidden_size = 16; make",
        ),
    ],
)
def test_a_bad_field_is_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Transformer(**{**SHAPE, **fields})


@pytest.mark.parametrize(
    ("fields", "length"), [({"relative_positions": 1}, 5), ({"positions": 1}, 1)]
)
def test_without_buckets_two_rows_may_serve_all_distances(
    fields: dict[str, int], length: int
) -> None:
    stack = shaken(Transformer(**{**DISENTANGLED, **fields}).build(VOCABULARY)).eval()
    packed = batch([length, 1])
    torch.testing.assert_close(stack(packed).hidden_states, by_hand(stack, packed))


@pytest.mark.parametrize(("positions", "buckets"), [(20, 20), (40, 8), (30, 40), (40, 0)])
def test_short_blocks_see_the_rows_that_the_whole_table_has(positions: int, buckets: int) -> None:
    shape = {**DISENTANGLED, "positions": positions, "position_buckets": buckets}
    stack = shaken(Transformer(**shape, dropout=0.0, attention_dropout=0.0).build(VOCABULARY))
    for length in range(2, positions + 1):
        short = stack(batch([length])).hidden_states
        stack.near, kept = -1, stack.near
        torch.testing.assert_close(short, stack(batch([length])).hidden_states)
        stack.near = kept
    assert (stack.near < positions - 1) == (buckets in (20, 40))
