"""Each kernel computes what the plain arithmetic does, forward and backward, and drops fairly."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.corpora import ENVIRONMENT
from support.processes import run_process
from support.triton_interpreter import (
    DEVICE,
    activation,
    attention,
    distances,
    entropy,
    relative,
    rotation,
    sums,
)
from support.triton_interpreter import dropout as dropout_kernels
from torch import Tensor
from torch.nn import functional

torch.set_num_threads(1)
SEED = torch.tensor(123456789123456789, device=DEVICE)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "silu": functional.silu,
}


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan() -> Iterator[None]:
    """So that what a kernel reads before it wrote it, or never writes, shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE).requires_grad_()


def cu_seqlens_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)


def wide(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def assert_same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Within single precision's rounding."""
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=2e-5, atol=2e-5)


def dropout_factors(
    rows: int, columns: int, dropout: float, *, mask_id: int = 0, tiled: bool = False
) -> Tensor:
    """[rows, columns] 0 or 1 / (1 − dropout), computed apart from the kernels.

    In attention, which computes a mask in tiles, indices are hashed in two parts.
    """
    if not dropout:
        return torch.ones(rows, columns, dtype=torch.float64, device=DEVICE)
    seed, most = int(SEED), 2**32

    def hash32(x: int) -> int:
        for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
            x = ((x ^ (x >> shift)) * factor) % most
        return x ^ (x >> 15)

    def keys(base: int, count: int) -> NDArray[np.uint64]:
        def key(i: int) -> int:
            if not tiled:
                return hash32((base + i) % most)
            return hash32((base + i % 32) % most) ^ hash32((base + 32 + i // 32) % most)

        return np.array([key(i) for i in range(count)], dtype=np.uint64)

    by_row = keys(hash32((seed % most) ^ mask_id), rows)
    by_column = keys(most - 1 - hash32(((seed >> 32) + mask_id) % most), columns)
    drawn = (by_row[:, None] ^ by_column[None, :]) * np.uint64(0x9E3779B1) % np.uint64(most)
    survives = torch.from_numpy(drawn >= round(dropout * most))
    return survives.double().to(DEVICE) / (1 - dropout)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "width"), [(37, 24), (1, 64), (5, 96)])
@pytest.mark.parametrize("both", [True, False])
def test_the_end_of_a_half_is_a_sum_and_its_norm(
    rows: int, width: int, dropout: float, both: bool
) -> None:
    x, h = numbers(rows, width), numbers(rows, width, seed=1)
    vectors = [numbers(width, seed=seed) for seed in (2, 3, 4)]
    bias, weight, norm_bias = vectors
    total, normal = sums.add_norm(
        x,
        h,
        bias=bias,
        norm_weight=weight,
        norm_bias=norm_bias,
        seed=SEED,
        dropout=dropout,
        eps=1e-5,
    )
    X, H, B, W, S = wide(x, h, *vectors)  # noqa: N806
    plain = X + (H + B) * dropout_factors(rows, width, dropout)
    normed = functional.layer_norm(plain, (width,), W, S, 1e-5)
    assert_same([total, normal], [plain, normed])
    first, second = numbers(rows, width, seed=5).detach(), numbers(rows, width, seed=6).detach()
    ((normal * first).sum() + both * (total * second).sum()).backward()
    ((normed * first).sum() + both * (plain * second).sum()).backward()
    assert_same(
        [tensor.grad for tensor in (x, h, *vectors)], [tensor.grad for tensor in (X, H, B, W, S)]
    )


def test_what_is_dropped_of_some_rows_goes_by_their_numbers() -> None:
    at = torch.tensor([30, 2, 2, 0, 17], device=DEVICE)
    x, h = numbers(37, 24), numbers(37, 24, seed=1)
    vectors = {
        name: numbers(24, seed=seed)
        for seed, name in enumerate(("bias", "norm_weight", "norm_bias"))
    }
    settings = {"seed": SEED, "dropout": 0.3, "eps": 1e-5}
    whole = [tensor[at] for tensor in sums.add_norm(x, h, **vectors, **settings)]
    some = sums.add_norm(x[at], h[at], **vectors, **settings, row_ids=at)
    torch.testing.assert_close([*some], whole)
    tensors, gradients = [x, h, *vectors.values()], []
    for total, normal in (whole, some):
        loss = (normal * numbers(5, 24, seed=5) + total * numbers(5, 24, seed=6)).sum()
        gradients.append(torch.autograd.grad(loss, tensors, retain_graph=True))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-5)


def test_rows_shared_by_few_programs_are_all_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(sums, "TILE_ELEMENTS", 64)
    test_the_end_of_a_half_is_a_sum_and_its_norm(37, 24, 0.3, True)
    test_a_norm_may_lack_its_bias_and_its_mean_and_the_sum_its_bias(False, False, False, 0.3)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    ("biased", "centred", "has_norm_bias"),
    [(False, True, False), (False, False, False), (True, False, False), (False, True, True)],
)
def test_a_norm_may_lack_its_bias_and_its_mean_and_the_sum_its_bias(
    biased: bool, centred: bool, has_norm_bias: bool, dropout: float
) -> None:
    rows, width = 37, 24
    # Far from zero, so that a mean that is not taken away shows.
    x, h, weight = numbers(rows, width), numbers(rows, width, seed=1), numbers(width, seed=2)
    with torch.no_grad():
        x += 2.0
    bias = numbers(width, seed=3) if biased else None
    norm_bias = numbers(width, seed=4) if has_norm_bias else None
    tensors = [tensor for tensor in (x, h, weight, bias, norm_bias) if tensor is not None]
    total, normal = sums.add_norm(
        x,
        h,
        bias=bias,
        norm_weight=weight,
        norm_bias=norm_bias,
        seed=SEED,
        dropout=dropout,
        eps=1e-5,
        centred=centred,
    )
    X, H, W, *B = wide(*tensors)  # noqa: N806
    plain = X + (H + B[0] if biased else H) * dropout_factors(rows, width, dropout)
    norm = functional.layer_norm if centred else functional.rms_norm
    normed = norm(plain, (width,), W, eps=1e-5) + (B[-1] if has_norm_bias else 0)
    assert_same([total, normal], [plain, normed])
    first, second = numbers(rows, width, seed=5).detach(), numbers(rows, width, seed=6).detach()
    ((normal * first).sum() + (total * second).sum()).backward()
    ((normed * first).sum() + (plain * second).sum()).backward()
    assert_same([tensor.grad for tensor in tensors], [tensor.grad for tensor in (X, H, W, *B)])


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("rows", "width", "biased", "dropout"),
    [
        *((70, 200, True, 0.0), (70, 200, False, 0.3), (3, 12, True, 0.3)),
        pytest.param(2500, 8, True, 0.0, marks=pytest.mark.slow),
    ],
)
def test_the_product_of_an_activation_has_its_bias_its_gate_and_its_dropout(
    kind: str, rows: int, width: int, biased: bool, dropout: float, gated: bool
) -> None:
    x = numbers(rows, width * (1 + gated))
    bias = numbers(x.shape[1], seed=1) if biased else None
    weight = numbers(5, width, seed=2)
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    X, W, *B = wide(*tensors)  # noqa: N806
    first, *second = (X + B[0] if B else X).chunk(1 + gated, dim=1)
    hidden = ACTIVATIONS[kind](first) * (second[0] if second else 1)
    theirs = (hidden * dropout_factors(rows, width, dropout)) @ W.T
    settings = {"seed": SEED, "gated": gated, "dropout": dropout}
    ours = activation.activated_product(x, bias, weight, kind, **settings)
    assert_same([ours], [theirs])
    by = numbers(rows, 5, seed=3).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    for tensor, own in zip(tensors, (X, W, *B), strict=True):
        torch.testing.assert_close(tensor.grad, own.grad.float(), rtol=1e-4, atol=1e-4)


def test_an_activation_is_computed_again_and_not_kept() -> None:
    x, bias, weight = numbers(70, 200), numbers(200, seed=1), numbers(5, 200, seed=2)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        activation.activated_product(x, bias, weight, "gelu", seed=SEED)
    assert {tensor.data_ptr() for tensor in kept if tensor.numel() > 1} == {
        tensor.data_ptr() for tensor in (x, bias, weight)
    }


@pytest.mark.parametrize(
    ("rows", "size", "columns"), [(37, 300, 320), (1, 64, 64), (9, 5000, 5056)]
)
def test_entropy_and_its_gradients(rows: int, size: int, columns: int) -> None:
    logits = numbers(rows, columns)
    labels = torch.arange(rows, device=DEVICE) * 7 % size
    labels[1::5] = -100
    (L,) = wide(logits)  # noqa: N806
    ours, best = entropy.cross_entropy(logits, labels, size)
    theirs = functional.cross_entropy(L[:, :size], labels, ignore_index=-100, reduction="none")
    assert_same([ours], [theirs])
    assert torch.equal(best, L[:, :size].argmax(-1))
    by = numbers(rows, seed=2).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    assert_same([logits.grad], [L.grad])


def test_the_first_of_equal_scores_is_the_best() -> None:
    logits = torch.zeros(2, 9000, device=DEVICE)
    logits[0, 5] = logits[0, 5000] = 1.0
    logits[1, 8500] = 1.0
    labels = torch.tensor([5, 8500], device=DEVICE)
    _, best = entropy.cross_entropy(logits, labels, 9000)
    assert best.tolist() == [5, 8500]


def plain_scores(
    q: Tensor, k: Tensor, distances: tuple[Tensor, Tensor | None, Tensor | None] | None
) -> Tensor:
    """The scores of a block, of up to three terms, a vector of the table to each pair of tokens."""
    terms = [q @ k.transpose(1, 2)]
    if distances is not None:
        rows, *heads = distances
        places = torch.arange(q.shape[1], device=DEVICE)
        row = rows[len(rows) // 2 + places[:, None] - places]
        query, key = (None if each is None else each[row] for each in heads)
        if key is not None:
            terms.append(torch.einsum("hid,ijhd->hij", q, key))
        if query is not None:
            terms.append(torch.einsum("hjd,ijhd->hij", k, query))
    return sum(terms[1:], terms[0]) / (len(terms) * q.shape[2]) ** 0.5


def plain_attention(
    qkv: Tensor,
    lengths: Sequence[int],
    dropout: float,
    causal: bool,
    window: int = 0,
    distances: tuple[Tensor, Tensor | None, Tensor | None] | None = None,
) -> Tensor:
    """Attention block by block, written out."""
    _, _, heads, width = qkv.shape
    outs, first = [], 0
    for number, length in enumerate(lengths):
        q, k, v = qkv[first : first + length].permute(1, 2, 0, 3)
        scores = plain_scores(q, k, distances)
        if causal:
            ahead = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)
            scores = scores.masked_fill(ahead, -torch.inf)
        if window:
            places = torch.arange(length, device=DEVICE)
            far = (places - places[:, None]).abs() > window // 2
            scores = scores.masked_fill(far, -torch.inf)
        masks = [
            dropout_factors(length, length, dropout, mask_id=number * heads + h, tiled=True)
            for h in range(heads)
        ]
        p = scores.softmax(-1) * torch.stack(masks)
        outs.append((p @ v).transpose(0, 1).flatten(1))
        first += length
    return torch.cat(outs)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(40, 0, 7, 33), (130, 1, 0, 64)])
def test_attention_stays_inside_its_block(
    lengths: tuple[int, ...], causal: bool, dropout: float
) -> None:
    qkv = numbers(sum(lengths), 3, 2, 16)
    (QKV,) = wide(qkv)  # noqa: N806
    ours = attention.attend(
        qkv,
        cu_seqlens_of(lengths),
        seed=SEED,
        max_seqlen=max(lengths),
        dropout=dropout,
        causal=causal,
    )
    theirs = plain_attention(QKV, lengths, dropout, causal)
    assert_same([ours], [theirs])
    by = numbers(*ours.shape, seed=1).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    assert_same([qkv.grad], [QKV.grad])


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("lengths", "window"),
    [
        ((40, 0, 7, 33), 6),
        ((300, 1, 0, 64), 6),
        pytest.param((300, 65), 128, marks=pytest.mark.slow),
        ((129, 3), 64),
        pytest.param((200,), 1000, marks=pytest.mark.slow),
    ],
)
def test_attention_sees_no_further_than_its_window(
    lengths: tuple[int, ...], window: int, causal: bool, dropout: float
) -> None:
    qkv = numbers(sum(lengths), 3, 2, 16)
    (QKV,) = wide(qkv)  # noqa: N806
    ours = attention.attend(
        qkv,
        cu_seqlens_of(lengths),
        seed=SEED,
        max_seqlen=max(lengths),
        dropout=dropout,
        causal=causal,
        window=window,
    )
    theirs = plain_attention(QKV, lengths, dropout, causal, window)
    assert_same([ours], [theirs])
    by = numbers(*ours.shape, seed=1).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    assert_same([qkv.grad], [QKV.grad])


@pytest.mark.parametrize(
    ("lengths", "window", "pays"),
    [
        ((150, 0, 131), 0, True),
        ((130, 70), 6, True),
        ((200, 3, 0, 5), 0, False),
        ((64, 33), 0, False),
    ],
)
def test_the_bias_of_queries_keys_and_values_has_its_gradient_from_the_attention(
    lengths: tuple[int, ...], window: int, pays: bool
) -> None:
    product, bias = numbers(sum(lengths), 3, 2, 16), numbers(96, seed=2)
    PRODUCT, BIAS = wide(product, bias)  # noqa: N806
    assert attention.sums_bias_gradient(sum(lengths), len(lengths), max(lengths)) == pays
    ours = attention.attend(
        product + bias.detach().view(3, 2, 16),
        cu_seqlens_of(lengths),
        bias=bias,
        seed=SEED,
        max_seqlen=max(lengths),
        dropout=0.2,
        causal=False,
        window=window,
    )
    theirs = plain_attention(PRODUCT + BIAS.view(3, 2, 16), lengths, 0.2, False, window)
    by = numbers(*ours.shape, seed=1).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    assert_same([product.grad, bias.grad], [PRODUCT.grad, BIAS.grad])


def test_tiles_that_no_row_sees_are_not_read() -> None:
    """What is there may be anything: it is not even multiplied by zero."""
    qkv = numbers(600, 3, 1, 16)
    with torch.no_grad():
        qkv[300:] = torch.nan
    ours = attention.attend(
        qkv, cu_seqlens_of([600]), seed=SEED, max_seqlen=600, dropout=0.0, causal=False, window=8
    )
    (QKV,) = wide(qkv[:300])  # noqa: N806
    theirs = plain_attention(QKV, [300], 0.0, False, 8)
    assert_same([ours[:192]], [theirs[:192]])


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of elements rotated, as complex numbers."""
    first, second = x.chunk(2, dim=-1)
    out = torch.complex(first, second) * torch.complex(cos, sin)[:, None]
    return torch.cat([out.real, out.imag], dim=-1)


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize(
    ("heads", "width"), [(2, 16), (3, 32), pytest.param(5, 16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("lengths", [(40, 0, 7, 33), (130, 1)])
def test_queries_and_keys_are_rotated_and_their_gradients_back(
    lengths: tuple[int, ...], heads: int, width: int, window: int
) -> None:
    tokens = sum(lengths)
    qkv, angles = numbers(tokens, 3, heads, width), numbers(tokens, width // 2, seed=3).detach()
    (QKV,) = wide(qkv)  # noqa: N806
    ours = attention.attend(
        qkv,
        cu_seqlens_of(lengths),
        seed=SEED,
        max_seqlen=max(lengths),
        dropout=0.1,
        causal=False,
        window=window,
        rotation=(angles.cos()[:, None], angles.sin()[:, None]),
    )
    cos, sin = angles.double().cos(), angles.double().sin()
    q, k, v = QKV.unbind(1)
    both = torch.stack([rotated(q, cos, sin), rotated(k, cos, sin), v], dim=1)
    theirs = plain_attention(both, lengths, 0.1, False, window)
    assert_same([ours], [theirs])
    by = numbers(*ours.shape, seed=1).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    assert_same([qkv.grad], [QKV.grad])


def buckets(positions: int, near: int, shared: Sequence[int]) -> Tensor:
    """The row of every distance: one each up to `near`, then one for so many, and so on."""
    steps = [*range(near + 1)]
    for row, length in enumerate(shared, near + 1):
        steps += [row] * length
    steps = (steps + [steps[-1]] * positions)[:positions]
    signed = [-row for row in steps[:0:-1]] + steps
    return torch.tensor(signed, device=DEVICE) + steps[-1]


ALONE, RUNS, FEW = (1,) * 140, (2, 5, 20, 9, 33), (140,)  # distances that share a row


@pytest.mark.parametrize(
    ("lengths", "terms", "shared", "causal", "window", "dropout"),
    [
        ((40, 0, 7), "both", RUNS, False, 0, 0.2),
        ((40, 7), "content_to_position", FEW, False, 0, 0.0),
        ((35, 1), "position_to_content", RUNS, True, 0, 0.2),
        ((35,), "both", ALONE, False, 0, 0.0),
        ((66, 1), "both", RUNS, False, 6, 0.0),
        pytest.param((130, 65), "both", RUNS, False, 0, 0.2, marks=pytest.mark.slow),
        pytest.param((130, 65), "both", FEW, True, 64, 0.0, marks=pytest.mark.slow),
        pytest.param((130, 65), "both", ALONE, False, 64, 0.0, marks=pytest.mark.slow),
    ],
)
def test_distances_add_to_scores_and_have_gradients(
    lengths: tuple[int, ...],
    terms: str,
    shared: tuple[int, ...],
    causal: bool,
    window: int,
    dropout: float,
) -> None:
    qkv, rows = numbers(sum(lengths), 3, 2, 16), buckets(max(lengths), 3, shared)
    table = int(rows.max()) + 1
    query = None if terms == "content_to_position" else numbers(table, 2, 16, seed=2)
    key = None if terms == "position_to_content" else numbers(table, 2, 16, seed=3)
    tensors = [each for each in (qkv, query, key) if each is not None]
    ours = attention.attend(
        qkv,
        cu_seqlens_of(lengths),
        seed=SEED,
        max_seqlen=max(lengths),
        dropout=dropout,
        causal=causal,
        window=window,
        distances=(rows, query, key),
    )
    again = wide(*tensors)
    heads = iter(again[1:])
    exact = (rows, None if query is None else next(heads), None if key is None else next(heads))
    theirs = plain_attention(again[0], lengths, dropout, causal, window, exact)
    assert_same([ours], [theirs])
    by = numbers(*ours.shape, seed=1).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    assert_same([each.grad for each in tensors], [each.grad for each in again])


@pytest.mark.parametrize(
    ("queries", "keys", "width", "dropout"),
    [(70, 129, 32, 0.3), (1, 65, 16, 0.0), (65, 3, 16, 0.5)],
)
def test_the_attention_of_streams_is_that_of_its_three_terms(
    queries: int, keys: int, width: int, dropout: float
) -> None:
    draw = torch.Generator().manual_seed(1)

    def integers(low: int, high: int, size: int) -> Tensor:
        drawn = torch.randint(low, high, (2, size), generator=draw, dtype=torch.int32)
        return drawn.to(DEVICE)

    ranks = [integers(-3, 4, queries), integers(0, queries + 1, queries), integers(0, 2, queries)]
    ranks += [integers(-2, 6, keys), integers(0, 2, keys)]
    query_rank, shift, query_segment, key_rank, key_segment = ranks
    query_rank[0, 0] = -5  # this one sees nothing
    tensors = [numbers(2, size, 2, width, seed=size) for size in (queries, keys, keys)]
    tensors += [numbers(2, 2, queries, keys + queries), numbers(2, 2, queries, seed=5)]
    ours = relative.attend(*tensors, ranks=ranks, seed=SEED, dropout=dropout)

    Q, K, V, P, S = wide(*tensors)  # noqa: N806
    columns = shift.long()[:, None, :, None] + torch.arange(keys, device=DEVICE)
    same = query_segment[:, None, :, None] == key_segment[:, None, None, :]
    scores = torch.einsum("brhd,bkhd->bhrk", Q, K) + torch.where(same, S[..., None], 0.0)
    scores = (scores + P.gather(3, columns.expand(-1, 2, -1, -1))) / width**0.5
    hidden = query_rank[:, None, :, None] <= key_rank[:, None, None, :]
    weights = scores.masked_fill(hidden, -1e300).softmax(-1).masked_fill(hidden, 0.0)
    masks = [dropout_factors(queries, keys, dropout, mask_id=n, tiled=True) for n in range(4)]
    weights = weights * torch.stack(masks).view_as(weights)
    theirs = torch.einsum("bhrk,bkhd->brhd", weights, V)
    assert_same([ours], [theirs])
    by = numbers(*ours.shape, seed=7).detach()
    (ours * by).sum().backward()
    (theirs * by).sum().backward()
    assert_same([tensor.grad for tensor in tensors], [tensor.grad for tensor in (Q, K, V, P, S)])


@pytest.mark.parametrize(("queries", "keys"), [(130, 200), (64, 64), (200, 3)])
def test_distances_to_no_key_have_a_gradient_of_zero(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int
) -> None:
    """In rows as XLNet's content stream has them, each a column further left than the one above."""
    fresh = torch.full_like
    monkeypatch.setattr(torch, "empty_like", lambda x, **like: fresh(x, 77, **like))
    shift = torch.arange(queries, 0, -1, dtype=torch.int32).expand(2, -1).to(DEVICE)
    seen, same = torch.zeros_like(shift), torch.zeros(2, keys, dtype=torch.int32, device=DEVICE)
    tensors = [numbers(2, size, 2, 16, seed=size) for size in (queries, keys, keys)]
    scores = numbers(2, 2, queries, queries + keys + 3)
    segments = numbers(2, 2, queries, seed=5)
    ranks = [seen + 1, shift, seen, same, same]
    relative.attend(
        *tensors, scores, segments, ranks=ranks, seed=SEED, dropout=0.0
    ).sum().backward()
    columns = torch.arange(scores.shape[3], device=DEVICE)
    used = (columns >= shift[:, :, None]) & (columns < shift[:, :, None] + keys)
    assert scores.grad is not None
    assert torch.equal(scores.grad != 0, used[:, None].expand_as(scores))


def test_what_is_rotated_back_in_place_is_what_it_was() -> None:
    x, angles = numbers(70, 3, 3, 16).detach(), numbers(70, 8, seed=1).detach()
    around, cos, sin = x.clone(), angles.cos(), angles.sin()
    rotation.apply_rotary(around, around, cos, sin)
    assert torch.equal(around[:, 2], x[:, 2]) and not torch.allclose(around[:, :2], x[:, :2])
    rotation.apply_rotary(around, around, cos, sin, inverse=True)
    torch.testing.assert_close(around, x)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_that_no_program_can_hold_are_taken_in_parts(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    monkeypatch.setattr(attention, "SHORT_SEQLEN", 0)
    test_attention_stays_inside_its_block((40, 0, 7, 33), causal, 0.2)
    test_attention_stays_inside_its_block((130, 1, 0, 64), causal, 0.2)
    test_attention_sees_no_further_than_its_window((40, 0, 7, 33), 6, causal, 0.2)
    test_attention_sees_no_further_than_its_window((300, 1, 0, 64), 6, causal, 0.2)


@pytest.mark.parametrize("short", [0, 128])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_scores_that_are_all_far_below_zero_have_gradients(
    monkeypatch: pytest.MonkeyPatch, short: int, dropout: float
) -> None:
    """To a softmax they are like any others, and what lies past a block's end still counts not."""
    monkeypatch.setattr(attention, "SHORT_SEQLEN", short)
    qkv = numbers(40, 3, 2, 16)
    with torch.no_grad():
        qkv[:, 0, :, 0], qkv[:, 1, :, 0] = 20.0, -20.0
    (QKV,) = wide(qkv)  # noqa: N806
    cu_seqlens = torch.tensor([0, 40], dtype=torch.int32, device=DEVICE)
    ours = attention.attend(
        qkv, cu_seqlens, seed=SEED, max_seqlen=40, dropout=dropout, causal=False
    )
    theirs = plain_attention(QKV, [40], dropout, False)
    ours.sum().backward()
    theirs.sum().backward()
    torch.testing.assert_close(qkv.grad.double(), QKV.grad, rtol=2e-4, atol=2e-4)


def test_padding_blocks_and_a_longer_max_seqlen_change_nothing() -> None:
    qkv, lengths = numbers(90, 3, 1, 16), (60, 30)
    cu_seqlens = torch.tensor([0, 60, 90, 90, 90], dtype=torch.int32, device=DEVICE)
    for max_seqlen in (60, 64, 128, 300):
        ours = attention.attend(
            qkv, cu_seqlens, seed=SEED, max_seqlen=max_seqlen, dropout=0.1, causal=False
        )
        assert_same([ours], [plain_attention(qkv.double(), lengths, 0.1, False)])


@pytest.mark.parametrize("tiled", [False, True])
def test_masks_drop_their_rate_evenly_and_corners_are_not_tied(tiled: bool) -> None:
    dropout, size = 0.25, 512
    mask = dropout_factors(size, size, dropout, tiled=tiled) > 0
    assert abs(float((~mask).double().mean()) - dropout) < 4 * (dropout / size**2) ** 0.5
    for way in (0, 1):  # no row or column is dropped much more than another
        shares = (~mask).double().mean(way)
        assert float((shares - dropout).abs().max()) < 5 * (dropout * (1 - dropout) / size) ** 0.5
    signs = mask.double() * 2 - 1
    corners = signs[:-1, :-1] * signs[1:, :-1] * signs[:-1, 1:] * signs[1:, 1:]
    expected = (1 - 2 * dropout) ** 4
    assert abs(float(corners.mean()) - expected) < 0.02
    # Four elements of a row whose columns share the halves of their indices.
    shared = signs[:, :-33] * signs[:, 1:-32] * signs[:, 32:-1] * signs[:, 33:]
    assert abs(float(shared.mean()) - expected) < 0.02
    assert dropout_kernels.drop_threshold(dropout) == 2**30
    assert dropout_kernels.inverse_keep_prob(dropout) == pytest.approx(4 / 3)


def test_a_seed_a_head_and_a_row_each_make_another_mask() -> None:
    qkv = torch.zeros(64, 3, 2, 16, device=DEVICE)
    qkv[:, 2] = torch.eye(64, 16, device=DEVICE)[:, None]
    cu_seqlens = torch.tensor([0, 32, 64], dtype=torch.int32, device=DEVICE)

    def out(seed: int) -> Tensor:
        states: Tensor = attention.attend(
            qkv,
            cu_seqlens,
            seed=torch.tensor(seed, device=DEVICE),
            max_seqlen=32,
            dropout=0.5,
            causal=False,
        )
        return states

    assert torch.equal(out(7), out(7)) and not torch.equal(out(7), out(8))
    assert not torch.equal(out(7), out(7 + 2**32))  # every bit of a seed counts
    heads = out(7).view(64, 2, 16)
    assert not torch.equal(heads[:, 0], heads[:, 1])


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_the_compiler_is_told_the_truth_about_each_operator(dropout: float) -> None:
    x, h = numbers(6, 16), numbers(6, 16, seed=1)
    vectors = [numbers(16, seed=seed) for seed in (2, 3, 4)]
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for bias, weight, norm_bias in (vectors, (None, vectors[1], None)):
        for centred in (True, False):
            rows = None if centred else torch.tensor([9, 2, 2, 0, 7, 1], device=DEVICE)
            arguments = (x, h, bias, weight, norm_bias, SEED, rows, dropout, 1e-5, centred)
            torch.library.opcheck(sums._add_norm, arguments, test_utils=tests)
        for gated in (False, True):
            arguments = (x, bias, numbers(5, 16 // (1 + gated)), SEED, 0, gated, dropout)
            torch.library.opcheck(activation._activated_product, arguments, test_utils=tests)
    labels = torch.tensor([3, 0, -100, 9, 1, 2], device=DEVICE)
    torch.library.opcheck(entropy._entropy, (x, labels, 12), test_utils=tests)
    for max_seqlen in (8, 200):
        qkv, cu_seqlens = (
            numbers(8, 3, 1, 16),
            torch.tensor([0, 5, 8], dtype=torch.int32, device=DEVICE),
        )
        angles = numbers(8, 8).detach()
        codes = distances.offset_codes(buckets(max_seqlen, 2, (3, max_seqlen)))
        tables = [None if max_seqlen > 8 else numbers(8, 1, 16), numbers(8, 1, 16, seed=1)]
        for bias, *further in (
            (None, None, None, None, None, None),
            (numbers(48, seed=4), None, None, None, None, None),
            (None, angles.cos(), angles.sin(), None, None, None),
            (None, None, None, codes, *tables),
        ):
            arguments = (qkv, bias, cu_seqlens, *further, SEED, max_seqlen, dropout, False, 4)
            torch.library.opcheck(attention._attend, arguments, test_utils=tests)


def transposed(*shape: int, seed: int = 0) -> Tensor:
    """Numbers whose first two dimensions are swapped in memory."""
    values = numbers(shape[1], shape[0], *shape[2:], seed=seed).detach().transpose(0, 1)
    return values.requires_grad_()


def test_the_compiler_knows_the_strides_of_results_whatever_those_of_the_inputs() -> None:
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    x, bias, weight = transposed(6, 16), numbers(16, seed=1), transposed(5, 16, seed=2)
    labels = torch.tensor([[3, 0, -100, 9, 1, 2]] * 2, device=DEVICE).T.contiguous()[:, 0]
    cu_seqlens = cu_seqlens_of([5, 1])
    qkv = transposed(6, 3, 1, 16)
    ranks = relative_ranks(2, 5, 7)
    streams = [transposed(2, length, 2, 16) for length in (5, 7, 7)]
    streams += [transposed(2, 2, 5, 12), transposed(2, 2, 5)]
    operators = {
        activation._activated_product: (x, bias, weight, SEED, 0, False, 0.1),
        sums._add_norm: (x, x, bias, numbers(16), None, SEED, None, 0.1, 1e-5, True),
        entropy._entropy: (x, labels, 12),
        attention._attend: (qkv, numbers(48), cu_seqlens, *[None] * 5, SEED, 8, 0.1, False, 4),
        relative._relative: (*streams, *ranks, SEED, 0.1),
    }
    for operator, arguments in operators.items():
        torch.library.opcheck(operator, arguments, test_utils=tests)
    with torch.no_grad():
        out, lse, rotated = attention._attend(*operators[attention._attend])
        streams_out = relative._relative(*operators[relative._relative])
        tests = ("test_schema", "test_faketensor")
        backward = {
            activation._activate_backward: (transposed(6, 16), x, bias, SEED, 0, False, 0.1),
            entropy._entropy_backward: (numbers(6), x, labels, numbers(6), 12),
            attention._attend_backward: (
                *(transposed(6, 16), qkv, out, lse, rotated),
                *operators[attention._attend][2:],
                True,
            ),
            relative._relative_backward: (
                transposed(2, 5, 2, 16),
                *streams_out,
                *operators[relative._relative],
            ),
        }
        for operator, arguments in backward.items():
            torch.library.opcheck(operator, arguments, test_utils=tests)


def relative_ranks(blocks: int, queries: int, keys: int) -> list[Tensor]:
    """Ranks, distances and segments of XLNet's attention in which every query sees every key."""
    ones = torch.ones(blocks, queries, dtype=torch.int32, device=DEVICE)
    zeros = torch.zeros(blocks, keys, dtype=torch.int32, device=DEVICE)
    return [ones, ones, ones, zeros, zeros]


def test_a_batch_may_have_more_heads_than_a_dimension_of_a_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a CUDA grid the second and third dimension are at most 65,535."""
    grids: list[tuple[int, ...]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid)
            return lambda *_, **__: None

    for name in ("forward", "backward_delta", "backward_dkdv", "backward_dq"):
        monkeypatch.setattr(relative, f"_relative_{name}_kernel", Kernel())
    blocks = 40_000
    heads = [torch.zeros(blocks, 1, 2, 16, device=DEVICE, requires_grad=True) for _ in range(3)]
    scores = [torch.zeros(blocks, 2, 1, 2, device=DEVICE), torch.zeros(blocks, 2, 1, device=DEVICE)]
    ranks = relative_ranks(blocks, 1, 1)
    relative.attend(*heads, *scores, ranks=ranks, seed=SEED, dropout=0.0).sum().backward()
    assert grids == [(1, 2, blocks)] * 4


def test_no_rows_have_gradients_of_zero() -> None:
    x, vector, weight = numbers(0, 16), numbers(16), numbers(5, 16)
    settings = {"seed": SEED, "dropout": 0.1}
    product = activation.activated_product(x, vector, weight, "gelu", **settings)
    norm = {"bias": vector, "norm_weight": vector, "norm_bias": None, "eps": 1e-5}
    _, normed = sums.add_norm(x, x, **norm, **settings)
    (product.sum() + normed.sum()).backward()
    assert x.grad.shape == (0, 16)
    assert not torch.stack([vector.grad, *weight.grad]).any()


def test_labels_may_be_every_other_element_of_a_tensor() -> None:
    logits, labels = numbers(3, 64), torch.tensor([5, 9, -100, 8, 63, 7], device=DEVICE)[::2]
    losses, _ = entropy.cross_entropy(logits, labels, 64)
    theirs = functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")
    torch.testing.assert_close(losses, theirs)
    (grad,) = torch.autograd.grad(losses.sum(), logits)
    torch.testing.assert_close(grad, torch.autograd.grad(theirs.sum(), logits)[0])


@pytest.mark.parametrize("adds_distances", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(adds_distances: bool) -> None:
    script = """
import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from clozelab.kernels import activation, attention, entropy, relative, rotation, sums


def made(kernel, types, known, **options):
    types = iter(types.split())
    signature = {n: "constexpr" if n in known else next(types) for n in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=known)
    found = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert "ptx" in found.asm
    return found.asm["ptx"]


h, f = "*bf16", "*fp32"
for width in (256, 768, 2048):
    block_n, block_m, warps = sums._tile_shape(width)
    for whole in (True, False):
        known = {"N_COLS": width, "BLOCK_N": block_n, "BLOCK_M": block_m, "HAS_DROPOUT": True}
        known |= {"HAS_BIAS": whole, "CENTRED": whole, "HAS_NORM_BIAS": whole}
        known["HAS_ROW_IDS"] = not whole
        types = f"{h} {h} {f} {f} {f} *i64 *i64 {h} {h} {f} {f} i32 fp32 i32 fp32"
        made(sums._sums_forward_kernel, types, known, num_warps=warps)
        known |= {"N_PROGRAMS": sums.MAX_PROGRAMS, "HAS_D_Y": True}
        types = f"{h} {h} {h} {f} *i64 *i64 {f} {f} {h} {h} {f} i32 i32 fp32"
        made(sums._sums_backward_kernel, types, known, num_warps=warps)


def plain(kernel, types, settings, **more):
    sizes = {name: settings[name] for name in settings if name.isupper()}
    options = {name: settings[name] for name in settings if not name.isupper()}
    return made(kernel, types, sizes | more, **options)


for gated, biased in ((False, True), (True, False), (True, True)):
    for kind in range(len(activation.KINDS)):
        more = {"N_COLS": 1152, "KIND": kind, "GATED": gated, "HAS_BIAS": biased}
        more["HAS_DROPOUT"] = not gated
        types = f"{h} {f} *i64 {h} i32 i32 i32 fp32"
        plain(activation._activation_forward_kernel, types, activation.FORWARD, **more)
        types = f"{h} {h} {f} *i64 {h} {h} {f} i32 i32 i32 fp32"
        plain(activation._activation_backward_kernel, types, activation.BACKWARD, **more)
for inverse in (False, True):
    more = {"IN_STRIDE": 2304, "OUT_STRIDE": 2304 if inverse else 1536, "N_PAIRS": 768}
    more |= {"HALF_DIM": 32, "INVERSE": inverse}
    plain(rotation._rotation_kernel, f"{h} {h} {f} {f} i32 i32", rotation.TILES, **more)
plain(entropy._entropy_forward_kernel, f"{h} *i64 {f} {f} *i64 i32 i32", entropy.FORWARD)
plain(entropy._entropy_backward_kernel, f"{f} {h} *i64 {f} {h} i32 i32 i32 i32", entropy.BACKWARD)
known = {"HEADS": 12, "HEAD_DIM": 64, "HAS_DROPOUT": True}


def tiled(kernel, types, settings, **more):
    # The fast way to multiply.
    assert "wgmma" in plain(kernel, types, settings, **known, **more)


for window, parts in ((0, 3), (128, 2)):
    shape = {"QK_PARTS": parts, **attention._window_sizes(window, False)}
    types = f"{h} {h} {h} {h} {f} {h} *i32 *i64 i32 i32 fp32 fp32 i32 fp32"
    block = {"BLOCK_MN": 128, **attention.BACKWARD_BLOCK}
    tiled(attention._attention_backward_block_kernel, types, block, **shape)
    places = "i32 *i32 *i64 i32 i32 i32 fp32"
    rest = f"{h} {f} {places} fp32 i32 fp32"
    forward = f"{h} {h} {h} {f} {places} i32 fp32"
    dq, dkdv = f"{h} {h} {h} {h} {f} {f} {rest}", f"{h} {h} {h} {f} {f} {rest}"
    attends = {
        attention._attention_forward_kernel: (forward, attention.FORWARD),
        attention._attention_backward_dq_kernel: (dq, attention.BACKWARD_DQ),
        attention._attention_backward_dkdv_kernel: (dkdv, attention.BACKWARD_DKDV),
    }
    for kernel, (types, settings) in attends.items():
        tables = [name for name in kernel.arg_names if "c2p" in name or "p2c" in name]
        tiled(kernel, types, settings, **shape, **dict.fromkeys(tables))
        if "distances" in sys.argv:
            given = " ".join("*i32" if "codes" in name else h for name in tables)
            tiled(kernel, types.replace(places, f"{given} {places}"), settings, **shape)
places = " ".join(["*i32"] * 5 + ["*i64"])
sizes = "i32 i32 i32 fp32"
five = " ".join([h] * 5)
forward = f"{five} {places} {h} {f} {sizes} i32 fp32"
tiled(relative._relative_forward_kernel, forward, relative.FORWARD)
places = " ".join(["*i32"] * 4 + ["*i64"])
dkdv = f"{h} {five} {places} {f} {f} *i32 {h} {h} {h} {sizes} fp32 i32 fp32"
tiled(relative._relative_backward_dkdv_kernel, dkdv, relative.BACKWARD_DKDV)
del known["HAS_DROPOUT"]
dq = f"{h} *i32 *i32 *i32 {h} {h} {h} i32 i32 i32"
tiled(relative._relative_backward_dq_kernel, dq, relative.BACKWARD_DQ)
delta = f"{h} {h} *i32 {f} *i32 {h} i32 i32 i32 fp32"
plain(relative._relative_backward_delta_kernel, delta, relative.BACKWARD_DELTA, **known)
print("all")
"""
    done = run_process(
        [sys.executable, "-c", script, *["distances"] * adds_distances],
        env={**ENVIRONMENT, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "all", done.stderr[-2000:]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_benchmark_finds_every_kernel_right() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "kernel_times.py"
    done = run_process(
        [sys.executable, str(script), "--check"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("relative error") == 18
