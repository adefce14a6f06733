"""Each kernel beside what it replaces, forward and backward, on one GPU in bf16.

Attention beside torch's dense kernel and its packed one; the end of a half, the activation and the
cross-entropy beside the compiled plain arithmetic. Milliseconds are of one layer, or of one loss,
at 65,536 tokens, RoBERTa-base.

    PYTHONPATH=src python benchmarks/kernels.py --out benchmarks/results/kernels.json [--sweep]
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from triton.testing import do_bench

from clozelab.encoder.attention import Layout, attend
from clozelab.kernels import activation, attention, entropy, sums
from clozelab.layers import drop
from clozelab.runs import machine as machines
from clozelab.runs.directory import machine_facts

TOKENS, WIDTH, HEADS, VOCABULARY = 65_536, 768, 12, 50_265
MIXED = [20 + (number * 97) % 109 for number in range(2000)]  # 20 to 128, as sentence pairs are
TILES = {
    "FORWARD": list(itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))),
    "QUERIES": list(itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2, 3))),
    "OTHERS": list(itertools.product((32, 64, 128), (64, 128), (4, 8), (1, 2, 3))),
}


def lengths_of(kind: str) -> list[int]:
    if kind != "mixed":
        return [int(kind)] * (TOKENS // int(kind))
    found = list(itertools.accumulate(MIXED))
    return MIXED[: sum(total <= TOKENS for total in found)]


def timed(run: Callable[[], Tensor], *given: Tensor) -> dict[str, float]:
    """Milliseconds of the way there, and of both ways."""
    by = torch.randn_like(run())

    def both() -> None:
        torch.autograd.grad(run(), given, by)

    return {"forward": float(do_bench(run)), "both": float(do_bench(both))}


def packed(kind: str) -> tuple[Tensor, Tensor, int]:
    """Queries, keys and values of blocks, where the blocks begin, and the longest."""
    lengths = lengths_of(kind)
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    shape = (sum(lengths), 3, HEADS, 64)
    qkv = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return qkv, starts, max(lengths)


def our_attention(kind: str, rate: float) -> dict[str, float]:
    qkv, starts, longest = packed(kind)
    seed = torch.tensor(7, device="cuda")
    settings = {"seed": seed, "max_seqlen": longest, "rate": rate, "causal": False}
    return timed(lambda: attention.attend(qkv, starts, **settings), qkv)


def their_attention(kind: str, rate: float, *, dense: bool) -> dict[str, float]:
    qkv, starts, longest = packed(kind)
    layout = Layout(starts, longest, dense, None, None, None)

    @torch.compile
    def run() -> Tensor:
        q, k, v = qkv.unbind(1)
        return attend(q, k, v, layout, dropout=rate, causal=False)

    return timed(run, qkv)


def the_attention(kind: str, rate: float) -> dict[str, Any]:
    found = {"ours": our_attention(kind, rate), "packed": their_attention(kind, rate, dense=False)}
    if kind != "mixed":
        found["dense"] = their_attention(kind, rate, dense=True)
    return found


def the_sum(rate: float) -> dict[str, Any]:
    x, h = (
        torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    )
    bias, weight, shift = (torch.randn(WIDTH, device="cuda", requires_grad=True) for _ in range(3))
    seed = torch.tensor(7, device="cuda")

    def ours() -> Tensor:
        return sums.add_norm(
            x, h, bias=bias, weight=weight, shift=shift, seed=seed, rate=rate, epsilon=1e-5
        )[1]

    @torch.compile
    def plain() -> Tensor:
        total = x + drop(h + bias.to(h.dtype), rate, True)
        return functional.layer_norm(total.float(), (WIDTH,), weight, shift, 1e-5).to(x.dtype)

    given = (x, h, bias, weight, shift)
    return {"ours": timed(ours, *given), "compiled": timed(plain, *given)}


def the_activation() -> dict[str, Any]:
    x = torch.randn(TOKENS, 4 * WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(4 * WIDTH, device="cuda", requires_grad=True)

    @torch.compile
    def plain() -> Tensor:
        return functional.gelu(x + bias.to(x.dtype))

    return {
        "ours": timed(lambda: activation.activate(x, bias, "gelu"), x, bias),
        "compiled": timed(plain, x, bias),
    }


def the_entropy() -> dict[str, Any]:
    """Of 15 % of the tokens; both ways read rows of a rounded length."""
    rows, columns = TOKENS * 15 // 100, -(-VOCABULARY // 64) * 64
    scores = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(VOCABULARY, (rows,), device="cuda")

    def ours() -> Tensor:
        return entropy.entropy(scores, labels, VOCABULARY)[0]

    @torch.compile
    def plain() -> Tensor:
        return functional.cross_entropy(scores[:, :VOCABULARY].float(), labels, reduction="none")

    return {"ours": timed(ours, scores), "compiled": timed(plain, scores)}


def sweep(kind: str, rate: float) -> dict[str, Any]:
    """The best tiles of each of the attention's kernels, the others as they are."""
    best: dict[str, Any] = {}
    for name, choices in TILES.items():
        table = getattr(attention, name)
        before, found = dict(table), []
        for choice in choices:
            table.update(zip(("BM", "BN", "num_warps", "num_stages"), choice, strict=True))
            try:
                spent = our_attention(kind, rate)
            except Exception as error:  # too much shared memory, most likely
                print(name, choice, type(error).__name__)
                continue
            found.append((spent["forward" if name == "FORWARD" else "both"], choice))
        table.update(before)
        best[name] = sorted(found)[:5]
        print(kind, rate, name, best[name], flush=True)
    return best


def table(found: dict[str, dict[str, Any]]) -> Sequence[str]:
    lines = ["| what | route | forward, ms | both ways, ms |", "|---|---|---|---|"]
    for what, routes in found.items():
        for route, spent in routes.items():
            lines.append(f"| {what} | {route} | {spent['forward']:.3f} | {spent['both']:.3f} |")
    return lines


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--out")
    words.add_argument("--sweep", action="store_true", help="try the attention's tiles")
    given = words.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for rate in (0.0, 0.1):
        for kind in ("512", "128", "mixed"):
            found[f"attention {kind}, dropout {rate}"] = the_attention(kind, rate)
        found[f"sum and norm, dropout {rate}"] = the_sum(rate)
    found["bias and gelu"] = the_activation()
    found["cross-entropy"] = the_entropy()
    print("\n".join(table(found)))
    record = {
        "what": {"tokens": TOKENS, "width": WIDTH, "heads": HEADS, "precision": "bf16"},
        "machine": {**machine_facts(), **machines.facts(torch.device("cuda", 0))},
        "milliseconds": found,
    }
    if given.sweep:
        record["tiles"] = {
            f"{kind}, dropout {rate}": sweep(kind, rate)
            for kind, rate in (("512", 0.1), ("512", 0.0), ("128", 0.1))
        }
    if given.out:
        Path(given.out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
