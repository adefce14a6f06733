"""Do 8-bit products pay? A linear layer's three products in bf16 and in fp8, casts included.

    PYTHONPATH=src python benchmarks/fp8_products.py --out fp8.json

Each product is timed alone, as a step has it: the output (x · Wᵀ), the gradient of the input
(dy · W) and that of the weight (dyᵀ · x). In fp8 every operand has one scale, by the largest number
in it; activations and weights are e4m3, gradients e5m2. Both operands must lie along the sum, so
what comes the other way round is transposed as it is cast. Casts are compiled. Two products share
the cast of a tensor, so "with casts" is of the whole layer. Errors are relative to the product in
single precision, by the norm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozelab.runs import machine as machines
from clozelab.runs.directory import machine_facts

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
TOKENS = 32_768 if GPU else 64
SHAPES = {  # outputs × inputs
    "base, qkv": (2304, 768),
    "base, attention output": (768, 768),
    "base, inner": (3072, 768),
    "base, output": (768, 3072),
    "large, qkv": (3072, 1024),
    "large, attention output": (1024, 1024),
    "large, inner": (4096, 1024),
    "large, output": (1024, 4096),
}
NUMBERS, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2

Scaled = tuple[Tensor, Tensor]  # 8-bit numbers, and the scale to multiply them by


def cast(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The tensor in 8 bits, its transpose, and their scale."""
    largest = x.abs().amax().float().clamp(min=1e-12)
    scale = largest / torch.finfo(dtype).max
    numbers = (x.float() / scale).to(dtype)
    return numbers, numbers.t().contiguous(), scale


def product(a: Scaled, b: Scaled) -> Tensor:
    """a · bᵀ in bf16; both are contiguous along the dimension that is summed over."""
    out: Tensor = torch._scaled_mm(
        a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16
    )
    return out


def milliseconds(run: Callable[[], Any]) -> float | None:
    """The median time; None without a GPU."""
    if not GPU:
        run()
        return None
    from triton.testing import do_bench

    return float(do_bench(run, return_mode="median"))


def error(output: Tensor, true: Tensor) -> float:
    """The relative error, by the norm."""
    return float((output.float() - true).norm() / true.norm())


def measure(outputs: int, inputs: int) -> dict[str, Any]:
    """Time and error of all products of one layer."""
    generator = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int, scale: float) -> Tensor:
        numbers = torch.randn(*shape, device=DEVICE, generator=generator)
        return (numbers * scale).to(torch.bfloat16)

    x, w = random(TOKENS, inputs, scale=1.0), random(outputs, inputs, scale=0.02)
    dy = random(TOKENS, outputs, scale=1e-4)
    casting = torch.compile(cast) if GPU else cast
    (x8, x8_t, sx), (w8, w8_t, sw) = casting(x, NUMBERS), casting(w, NUMBERS)
    dy8, dy8_t, sdy = casting(dy, GRADIENTS)
    single = [tensor.float() for tensor in (x, w, dy)]
    pairs: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor], Tensor]] = {
        "output": (
            lambda: x @ w.t(),
            lambda: product((x8, sx), (w8, sw)),
            single[0] @ single[1].t(),
        ),
        "gradient of the input": (
            lambda: dy @ w,
            lambda: product((dy8, sdy), (w8_t, sw)),
            single[2] @ single[1],
        ),
        "gradient of the weight": (
            lambda: dy.t() @ x,
            lambda: product((dy8_t, sdy), (x8_t, sx)),
            single[2].t() @ single[0],
        ),
    }
    products = {
        name: {
            "bf16": milliseconds(half),
            "fp8": milliseconds(eighth),
            "error bf16": error(half(), true),
            "error fp8": error(eighth(), true),
        }
        for name, (half, eighth, true) in pairs.items()
    }
    operands = {"x": (x, NUMBERS), "weight": (w, NUMBERS), "dy": (dy, GRADIENTS)}
    casts = {
        name: milliseconds(partial(casting, tensor, dtype))
        for name, (tensor, dtype) in operands.items()
    }
    record: dict[str, Any] = {"products": products, "casts": casts}
    if GPU:
        half = sum(float(one["bf16"] or 0) for one in products.values())
        eighth = sum(float(one["fp8"] or 0) for one in products.values())
        both = eighth + sum(float(one or 0) for one in casts.values())
        record["sums"] = {"bf16": half, "fp8": eighth, "fp8 with casts": both, "ratio": half / both}
    return record


def main() -> None:
    """Every shape."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    records = {}
    for name, (outputs, inputs) in SHAPES.items():
        records[name] = record = measure(outputs, inputs)
        errors = [f"{one['error fp8']:.3f}" for one in record["products"].values()]
        times = ", ".join(f"{k} {v:.3f}" for k, v in record.get("sums", {}).items())
        print(f"{name}: {times or 'nothing timed'}; errors {', '.join(errors)}", flush=True)
    facts = {**machine_facts(), **machines.facts(DEVICE), "tokens": TOKENS}
    if arguments.out:
        text = json.dumps({"machine": facts, "layers": records}, indent=1)
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
