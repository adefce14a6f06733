"""Each kernel beside what it replaces, forward and backward, on one GPU in bf16.

First its values and gradients are compared with plain arithmetic in single precision, over fewer
tokens; then it is timed beside that arithmetic compiled in bf16, where attention takes torch's
packed kernel, and for full blocks its dense one; with DeBERTa's distances, its dense one with a
mask. Milliseconds are of one layer, or of one loss, at 65,536 tokens: BERT's block of RoBERTa-base,
ModernBERT-base's, and the attention of DeBERTa-v3-base; XLNet-base's content stream has 16,384.

    PYTHONPATH=src python benchmarks/kernel_times.py --out benchmarks/results/kernels.json
    PYTHONPATH=src python benchmarks/kernel_times.py --only modern --sweep
    PYTHONPATH=src python benchmarks/kernel_times.py --only distances --sweep
    PYTHONPATH=src python benchmarks/kernel_times.py --only streams --sweep
    TRITON_INTERPRET=1 PYTHONPATH=src python benchmarks/kernel_times.py

Without a GPU, as in the last line, Triton's interpreter runs the kernels at a small size, and
nothing is timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from triton.testing import do_bench

from clozelab.contracts import Input
from clozelab.encoder.attention import PositionHeads, Scope, attend, lay_out
from clozelab.encoder.positions import Rotation, rotate, rotation, rows_of_distances
from clozelab.kernels import activation, attention, entropy, relative, sums
from clozelab.layers import activate as activated
from clozelab.layers import drop
from clozelab.runs import machine as machines
from clozelab.runs.directory import machine_facts

GPU = torch.cuda.is_available()
DEVICE, HALF = torch.device("cuda" if GPU else "cpu"), torch.bfloat16 if GPU else torch.float32
TOKENS, CHECKED = 65_536, 8_192 if GPU else 256
# Sizes of base models; the intermediate size is ModernBERT's.
WIDTH, HEADS, INNER, VOCABULARY = (768, 12, 1152, 50_265) if GPU else (32, 2, 24, 300)
BUCKETS = 256 if GPU else 8  # of DeBERTa-v3's distances
NARROW = 8  # the columns of a product of which only the input counts
MIXED = [20 + (number * 97) % 109 for number in range(2000)]  # 20 to 128, as sentence pairs are
WRONG = 2e-2 if GPU else 1e-4  # a relative error that is more than rounding
TILES = {
    "FORWARD": list(itertools.product((64,), (32, 64, 128), (4, 8), (2, 3, 4))),
    "BACKWARD_DQ": list(itertools.product((64,), (32, 64, 128), (4, 8), (1, 2, 3))),
    "BACKWARD_DKDV": list(itertools.product((32, 64), (64, 128), (4, 8), (1, 2, 3))),
}

Run = Callable[..., tuple[Tensor, ...]]  # a function of an entry's tensors


class Entry(NamedTuple):
    """A kernel at some number of tokens: the tensors that have gradients, and functions of them."""

    tensors: tuple[Tensor, ...]
    ours: Run
    plain: Run  # the reference of the check, also timed compiled
    others: Mapping[str, Run] = {}  # further routes that are timed
    drops: bool = False  # whether it has dropout, so that outputs cannot be compared
    tiled: ModuleType = attention  # the module whose tiles are swept


def random_tensor(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """A random tensor that requires a gradient."""
    return torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_()


def vector(width: int) -> Tensor:
    """A random vector, as of a norm's weights or a bias."""
    return random_tensor(width, dtype=torch.float32)


def blocks_of(kind: str, tokens: int) -> Input:
    """Packed blocks of one length, or of mixed ones."""
    lengths = [int(kind)] * (tokens // int(kind)) if kind != "mixed" else MIXED
    ends = [0, *itertools.accumulate(lengths)]
    cu_seqlens = torch.tensor([end for end in ends if end <= tokens], dtype=torch.int32)
    lengths = cu_seqlens.diff().tolist()
    position_ids = torch.cat([torch.arange(length) for length in lengths]).to(DEVICE)
    ids = torch.zeros_like(position_ids)
    return Input(ids, position_ids, ids, cu_seqlens.to(DEVICE), max(lengths), kind != "mixed")


def attention_entry(
    tokens: int, *, kind: str, dropout: float = 0.0, window: int = 0, rotary: bool = False
) -> Entry:
    """Attention of packed blocks, from the product of queries, keys and values."""
    length = kind if kind == "mixed" else str(min(int(kind), tokens))
    batch = blocks_of(length, tokens)
    # The dense kernel is a route of its own.
    packed = batch._replace(dense=False)
    count = len(batch.ids)
    qkv = random_tensor(count, 3, HEADS, WIDTH // HEADS)
    by = rotation(batch.position_ids, WIDTH // HEADS, 10_000.0, torch.float32) if rotary else None
    seed = torch.tensor(7, device=DEVICE)

    def ours(qkv: Tensor, by: Rotation | None = by) -> tuple[Tensor, ...]:
        settings = {
            "seed": seed,
            "max_seqlen": batch.max_seqlen,
            "dropout": dropout,
            "causal": False,
        }
        return (attention.attend(qkv, batch.cu_seqlens, window=window, rotation=by, **settings),)

    def rotated(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.unbind(1)
        return (q, k, v) if by is None else (rotate(q, by), rotate(k, by), v)

    def plain(qkv: Tensor, inputs: Input = packed) -> tuple[Tensor, ...]:
        layout = lay_out(inputs, qkv.dtype, head_size=qkv.shape[-1])
        return (attend(*rotated(qkv), layout, scope=Scope(window), dropout=dropout),)

    others: dict[str, Run] = {}
    if batch.dense and not window:
        others["dense"] = torch.compile(lambda qkv: plain(qkv, batch))
    if rotary:
        compiled = torch.compile(lambda qkv: torch.stack(rotated(qkv), dim=1))
        others["ours, rotated by the compiler"] = lambda qkv: ours(compiled(qkv), None)
    return Entry((qkv,), ours, plain, others, dropout > 0)


def distance_attention_entry(tokens: int, *, length: int, dropout: float = 0.0) -> Entry:
    """DeBERTa's attention of full blocks, from the queries and keys of contents and distances."""
    tokens = tokens if GPU else 64  # the interpreter is slow
    length = min(length, tokens)
    batch = blocks_of(str(length), tokens)
    rows = rows_of_distances(length, span=BUCKETS, reach=length, buckets=True).to(DEVICE)
    qkv = random_tensor(len(batch.ids), 3, HEADS, WIDTH // HEADS)
    tables = [random_tensor(2 * BUCKETS, HEADS, WIDTH // HEADS) for _ in ("queries", "keys")]
    seed = torch.tensor(7, device=DEVICE)

    def ours(qkv: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
        settings = {"seed": seed, "max_seqlen": length, "dropout": dropout, "causal": False}
        heads = (rows, query, key)
        return (attention.attend(qkv, batch.cu_seqlens, distances=heads, **settings),)

    def plain(qkv: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
        layout = lay_out(batch, qkv.dtype, head_size=qkv.shape[-1], adds=True)
        heads = PositionHeads(rows, query, key)
        return (attend(*qkv.unbind(1), layout, scope=Scope(), dropout=dropout, distances=heads),)

    return Entry((qkv, *tables), ours, plain, {"eager": plain}, dropout > 0)


def rank_attention_entry(tokens: int, *, dropout: float = 0.0) -> Entry:
    """XLNet's content stream: blocks of 512 behind a memory of 384, in an order of their own."""
    rows, memory = (512, 384) if GPU else (24, 10)
    blocks = max(1, tokens // 4 // rows)
    columns = memory + rows
    q, k, v = (
        random_tensor(blocks, size, HEADS, WIDTH // HEADS) for size in (rows, columns, columns)
    )
    pos_scores = random_tensor(blocks, HEADS, rows, columns + rows)
    segment_scores = random_tensor(blocks, HEADS, rows)
    rank = torch.rand(blocks, rows).argsort(1)
    shift = rows - torch.arange(rows).expand(blocks, rows)
    key_rank = torch.cat([torch.full((blocks, memory), -1), rank], 1)
    segment = (torch.arange(columns) > columns // 2).long().expand(blocks, columns)
    integers = (rank + 1, shift, segment[:, memory:], key_rank, segment)
    ranks = [x.to(DEVICE, torch.int32).contiguous() for x in integers]
    seed = torch.tensor(7, device=DEVICE)

    def ours(*tensors: Tensor) -> tuple[Tensor, ...]:
        return (relative.attend(*tensors, ranks=ranks, seed=seed, dropout=dropout),)

    def plain(*tensors: Tensor) -> tuple[Tensor, ...]:
        q, k, v, pos_scores, segment_scores = tensors
        query_rank, shift, query_segment, key_rank, key_segment = (x.long()[:, None] for x in ranks)
        numbers = torch.arange(columns, device=DEVICE)
        cells = (shift[..., None] + numbers).expand(-1, HEADS, -1, -1)
        scores = torch.einsum("brha,bkha->bhrk", q, k) + pos_scores.gather(3, cells)
        same_segment = query_segment[..., None] == key_segment[..., None, :]
        scores = scores + same_segment * segment_scores[..., None]
        visible = query_rank[..., None] > key_rank[..., None, :]
        scores = (scores * (WIDTH // HEADS) ** -0.5).masked_fill(~visible, float("-inf"))
        weights = functional.dropout(scores.float().softmax(-1), dropout).to(v.dtype)
        return (torch.einsum("bhrk,bkha->brha", weights, v),)

    tensors = (q, k, v, pos_scores, segment_scores)
    return Entry(tensors, ours, plain, drops=dropout > 0, tiled=relative)


def add_norm_entry(
    tokens: int, *, dropout: float = 0.0, bias: bool = True, centred: bool = True
) -> Entry:
    """Residual sum and norm at the end of a half layer; without biases, the sum is returned too."""
    x, h, weight = random_tensor(tokens, WIDTH), random_tensor(tokens, WIDTH), vector(WIDTH)
    more = (vector(WIDTH), vector(WIDTH)) if bias else ()
    seed = torch.tensor(7, device=DEVICE)

    def ours(x: Tensor, h: Tensor, weight: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        b, norm_bias = more or (None, None)
        vectors = {"bias": b, "norm_weight": weight, "norm_bias": norm_bias}
        both = sums.add_norm(x, h, **vectors, seed=seed, dropout=dropout, eps=1e-5, centred=centred)
        return both[bias:]

    def plain(x: Tensor, h: Tensor, weight: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        b, norm_bias = more or (None, None)
        y = x + drop(h if b is None else h + b.to(h.dtype), dropout, True)
        if centred:
            normed = functional.layer_norm(y.float(), (WIDTH,), weight, norm_bias, 1e-5)
        else:
            normed = functional.rms_norm(y.float(), (WIDTH,), weight, 1e-5)
        return (y, normed.to(x.dtype))[bias:]

    return Entry((x, h, weight, *more), ours, plain, drops=dropout > 0)


def activation_entry(tokens: int, *, kind: str, width: int, gated: bool = False) -> Entry:
    """The activation of a feed-forward layer, with its bias or gated without one; and its product.

    The product is narrow, so that little of the time is its own.
    """
    x, weight = random_tensor(tokens, width * (1 + gated)), random_tensor(NARROW, width)
    seed = torch.tensor(1, device=DEVICE)

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        arguments = {"seed": seed, "gated": gated}
        return (activation.activated_product(x, bias, weight, kind, **arguments),)

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        x = x if bias is None else x + bias.to(x.dtype)
        first, *second = x.chunk(1 + gated, dim=1)
        hidden = activated(first, kind)
        return (functional.linear(hidden * second[0] if second else hidden, weight),)

    return Entry((x, weight) if gated else (x, weight, vector(width)), ours, plain)


def cross_entropy_entry(tokens: int) -> Entry:
    """The cross-entropy of 15 % of the tokens; both routes read rows padded to a round length."""
    rows, columns = tokens * 15 // 100, -(-VOCABULARY // 64) * 64
    labels = torch.randint(VOCABULARY, (rows,), device=DEVICE)

    def ours(logits: Tensor) -> tuple[Tensor, ...]:
        return entropy.cross_entropy(logits, labels, VOCABULARY)[:1]

    def plain(logits: Tensor) -> tuple[Tensor, ...]:
        exact = logits[:, :VOCABULARY].float()
        return (functional.cross_entropy(exact, labels, reduction="none"),)

    return Entry((random_tensor(rows, columns),), ours, plain)


def entries(only: str | None) -> Iterator[tuple[str, Callable[[int], Entry]]]:
    """Every entry by its name, as a function of the number of tokens."""
    entries: dict[str, Callable[[int], Entry]] = {}
    for dropout in (0.0, 0.1):
        for kind in ("512", "128", "mixed"):
            entries[f"attention {kind}, dropout {dropout}"] = partial(
                attention_entry, kind=kind, dropout=dropout
            )
        entries[f"sum and norm, dropout {dropout}"] = partial(add_norm_entry, dropout=dropout)
    entries["bias and gelu"] = partial(activation_entry, kind="gelu", width=4 * WIDTH)
    entries["cross-entropy"] = cross_entropy_entry
    for kind in ("1024", "8192"):
        block = partial(attention_entry, kind=kind, rotary=True)
        entries[f"modern: attention {kind}, window 128"] = partial(block, window=128)
        entries[f"modern: attention {kind}"] = block
    for length, dropout in itertools.product((512, 2048), (0.0, 0.1)):
        entry = partial(distance_attention_entry, length=length, dropout=dropout)
        entries[f"distances: attention {length}, dropout {dropout}"] = entry
        entries[f"two streams: attention 512, dropout {dropout}"] = partial(
            rank_attention_entry, dropout=dropout
        )
    entries["modern: sum and layer norm, no biases"] = partial(add_norm_entry, bias=False)
    entries["modern: sum and RMS norm"] = partial(add_norm_entry, bias=False, centred=False)
    for kind in ("gelu", "silu", "relu2"):
        entries[f"modern: {kind} gate"] = partial(
            activation_entry, kind=kind, width=INNER, gated=True
        )
    yield from ((name, entry) for name, entry in entries.items() if only is None or only in name)


def error(entry: Entry) -> float:
    """The largest relative error of the kernel's values and gradients."""
    wide = [tensor.detach().float().requires_grad_() for tensor in entry.tensors]
    ours, plain = entry.ours(*entry.tensors), entry.plain(*wide)
    by = [torch.randn_like(tensor) for tensor in plain]
    rounded = [grad.to(own.dtype) for grad, own in zip(by, ours, strict=True)]
    pairs = [*zip(ours, plain, strict=True)]
    gradients = torch.autograd.grad(ours, entry.tensors, rounded)
    pairs += zip(gradients, torch.autograd.grad(plain, wide, by), strict=True)
    with torch.no_grad():
        return max(float((a.float() - b).norm() / b.norm()) for a, b in pairs)


def time_route(run: Run, tensors: tuple[Tensor, ...]) -> dict[str, float]:
    """Milliseconds of the forward pass, and of forward and backward."""
    by = [torch.randn_like(tensor) for tensor in run(*tensors)]

    def both() -> None:
        torch.autograd.grad(run(*tensors), tensors, by)

    return {"forward": float(do_bench(lambda: run(*tensors))), "both": float(do_bench(both))}


def times(entry: Entry, peers: bool) -> dict[str, dict[str, float]]:
    """Milliseconds of every route, or of our kernels alone."""
    torch._dynamo.reset()  # entries share code, and recompilations of it are limited
    routes = {"ours": entry.ours}
    if peers:
        routes |= {"compiled": torch.compile(entry.plain), **entry.others}
    return {name: time_route(run, entry.tensors) for name, run in routes.items()}


def sweep(make: Callable[[int], Entry]) -> dict[str, Any]:
    """The best tiles of each attention kernel, with the defaults of the others."""
    best: dict[str, Any] = {}
    entry = make(TOKENS)
    for name, choices in TILES.items():
        table = getattr(entry.tiled, name)
        before, ranking = dict(table), []
        for choice in choices:
            table.update(
                zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"), choice, strict=True)
            )
            try:
                spent = time_route(entry.ours, entry.tensors)
            except Exception as problem:  # too much shared memory, most likely
                print(name, choice, type(problem).__name__)
                continue
            ranking.append((spent["forward" if name == "FORWARD" else "both"], choice))
        table.update(before)
        best[name] = sorted(ranking)[:5]
        print(name, best[name], flush=True)
    return best


def write(out: str | None, record: dict[str, Any]) -> None:
    """Write what is measured so far, if a file is named."""
    if out:
        Path(out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--only", help="entries whose name has this word")
    parser.add_argument("--check", action="store_true", help="compare values, and time nothing")
    parser.add_argument("--ours", action="store_true", help="time our kernels alone")
    parser.add_argument("--sweep", action="store_true", help="try the attention's tiles")
    arguments = parser.parse_args()
    errors: dict[str, float] = {}
    milliseconds: dict[str, dict[str, Any]] = {}
    record: dict[str, Any] = {
        "what": {"tokens": TOKENS, "width": WIDTH, "heads": HEADS, "precision": "bf16"},
        "machine": {**machine_facts(), **machines.facts(DEVICE)},
        "relative_errors": errors,
        "milliseconds": milliseconds,
    }
    for name, make in entries(arguments.only):
        entry = make(CHECKED)
        if not entry.drops:
            errors[name] = error(entry)
            print(f"{name}: relative error {errors[name]:.1e}", flush=True)
        if GPU and not arguments.check:
            milliseconds[name] = times(make(TOKENS), not arguments.ours)
            for route, spent in milliseconds[name].items():
                print(f"| {name} | {route} | {spent['forward']:.3f} | {spent['both']:.3f} |")
        write(arguments.out, record)  # now, so that a stop loses one entry
    if GPU and arguments.sweep:
        record["tiles"] = {
            name: sweep(make) for name, make in entries(arguments.only) if "attention" in name
        }
        write(arguments.out, record)
    wrong = [name for name, size in errors.items() if not size < WRONG]
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
