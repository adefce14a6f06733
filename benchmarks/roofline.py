"""Where a step's time goes, and where it should: every kernel's time beside its group's ideal.

    PYTHONPATH=src python benchmarks/roofline.py --data CORPUS --out roofline.json

The ideal of a group is the larger of two times: its operations at the rate of a large matrix
product, and the bytes that it must read and write, each once, at the rate of a large copy. Both
rates are measured in the same run. What is only bookkeeping (copies, casts, waiting) should take no
time at all: "feed" is what steps take longer through the feed than from memory, "waiting" what they
take longer from memory than their kernels do. On a CPU, which is for trying the script, operators
stand for kernels.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from clozelab.benching.ours import Ours
from clozelab.benching.rows import BenchRequest, BenchRow, recipe_of, text
from clozelab.pretraining.job import PretrainJob
from clozelab.runs import machine as machines
from clozelab.runs.directory import machine_facts
from clozelab.runs.machine import Machine
from clozelab.training.loop import Prepared
from clozelab.training.world import join

ROWS = {
    "roberta base 512": BenchRow("roberta", "base"),
    "bert base 128": BenchRow("bert", "base", length=128),
    "bert large 512": BenchRow("bert", "large", length=512),
    "xlnet base 512": BenchRow("xlnet", "base", sequences=32),
    "swift 128": BenchRow("swift", sequences=512),
    "roberta mini 128": BenchRow("roberta", "mini", sequences=512),
    "modernbert base 1024": BenchRow("modernbert", "base", length=1024),
    "deberta base 512": BenchRow("deberta", "base"),
}
WARM, STEPS = 15, 10  # steps before anything is timed, and steps that are profiled
TURN = 2.0  # seconds of a timed turn
HALF, SINGLE = 2, 4  # bytes of a number
# The first pattern that fits a kernel's name decides; what fits none is listed as "the rest".
GROUPS = {
    "matrix products": r"gemm|nvjet|cutlass|cublas|xmma|splitk|aten::(b|add)?mm$",
    "attention, forward": r"^_(attention|relative)_forward|flash_fwd|fprop",
    "attention, backward": r"^_(attention|relative)_|flash_bwd|bprop|dgrad",
    "sums and norms": r"^_sums_",
    "activations": r"^_activation_",
    "rotation": r"^_rotation_",
    "cross-entropy": r"^_entropy_",
    "optimiser": r"multi_tensor|adam|lpnorm|foreach",
    "copies": r"memcpy|memset|copy_kernel|aten::(copy_|fill_|zero_)$",
}


@dataclass(frozen=True)
class Work:
    """What a step has to do."""

    tokens: int  # dummies included
    squares: int  # of the lengths of the blocks, summed up
    targets: int
    layers: int
    read: float  # the share of tokens whose last layer is computed behind attention
    width: int
    inner: int  # both halves of a gated one
    activated: int  # of these, what an activation leaves
    vocabulary: int
    parameters: int
    flops: float  # useful ones, of products and attention

    def ideal(self) -> dict[str, tuple[float, float]]:
        """Operations and bytes of each group; what is not named should not be there."""
        states = self.tokens * self.width * HALF * self.layers
        behind = self.tokens * HALF * (self.layers - 1 + self.read)  # attention, a number
        attention = 2 * self.squares * self.width * self.layers  # of one of its products
        logits = self.targets * self.vocabulary * HALF
        return {
            "matrix products": (self.flops - 6 * attention, 0),
            # Two products; queries, keys and values are read, what comes out is written.
            "attention, forward": (2 * attention, 4 * states),
            # Five products, since the probabilities are not kept.
            "attention, backward": (5 * attention, 8 * states),
            # Two of them a layer: two read, a sum or a norm written, and back with three and two.
            "sums and norms": (0, 2 * (3 + 5) * behind * self.width),
            # Read and written, and on the way back both read with a gradient written for each.
            "activations": (0, 3 * behind * (self.inner + self.activated)),
            "cross-entropy": (0, 2 * logits),
            # Parameters and two moments are read and written, the gradient is read.
            "optimiser": (0, 7 * SINGLE * self.parameters),
        }


def work(prepared: Iterable[Prepared], job: PretrainJob, began: Any) -> Work:
    """The mean over some steps."""
    steps = [*prepared]
    batches = [batch.input for step in steps for batch in step.batches]
    encoder: Any = job.recipe.encoder
    tokens = sum(batch.ids.numel() for batch in batches) // len(steps)
    counts = {name: sum(step.counts[name] for step in steps) for name in steps[0].counts}
    shares = {name: count / (tokens * len(steps)) for name, count in counts.items()}
    read = machines.share_read(job.recipe, shares)
    return Work(
        tokens=tokens,
        squares=sum(int(batch.cu_seqlens.diff().long().square().sum()) for batch in batches)
        // len(steps),
        targets=sum(sum(step.counts.values()) for step in steps) // len(steps),
        layers=encoder.layers,
        read=1.0 if read is None else read,
        width=encoder.hidden_size,
        inner=encoder.intermediate_size * (2 if getattr(encoder, "gated", False) else 1),
        activated=encoder.intermediate_size,
        vocabulary=job.recipe.tokenizer.vocabulary,
        parameters=began.parameters,
        flops=began.flops_a_token * sum(step.tokens for step in steps) / len(steps),
    )


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.zeros(2**28 if device.type == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    began = machines.now(device)
    for _ in range(10):
        target.copy_(source)
    return 10 * 2 * source.nbytes / (machines.now(device) - began)


def kernels(ours: Ours, device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds and launches a step of every kernel, over the steps of the last turn."""
    gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as seen:
        ours.again()
    steps = len(ours.prepared)
    costs: dict[str, dict[str, float]] = {}
    for event in seen.key_averages():
        spent = event.self_device_time_total if gpu else event.self_cpu_time_total
        if spent:
            costs[event.key] = {"ms": spent / 1000 / steps, "launches": event.count / steps}
    return dict(sorted(costs.items(), key=lambda item: -item[1]["ms"]))


def group_of(kernel: str) -> str:
    """Where a kernel belongs, by its name."""
    names = (name for name, fits in GROUPS.items() if re.search(fits, kernel, re.IGNORECASE))
    return next(names, "the rest")


def group_costs(
    spent: Mapping[str, Mapping[str, float]],
    step: float,
    memory: float,
    todo: Work,
    *,
    flops: float,
    rate: float,
) -> dict[str, dict[str, float]]:
    """Milliseconds a step of each group and its ideal, waiting included, the largest gap first.

    `step` is the time of a step through the feed, `memory` of one that was prepared before.
    """
    taken: dict[str, float] = defaultdict(float)
    for name, kernel in spent.items():
        taken[group_of(name)] += kernel["ms"]
    taken["waiting"] = max(0.0, memory - sum(taken.values()))
    taken["feed"] = max(0.0, step - memory)
    ideals = {
        name: 1000 * max(done / flops, moved / rate) for name, (done, moved) in todo.ideal().items()
    }
    table = {
        name: {"ms": ms, "ideal": ideals.get(name, 0.0), "gap": ms - ideals.get(name, 0.0)}
        for name, ms in taken.items()
    }
    return dict(sorted(table.items(), key=lambda item: -item[1]["gap"]))


def measure(name: str, job: PretrainJob, machine: Machine, rate: float) -> dict[str, Any]:
    """One row of the record."""
    with join(machine.device) as world:
        torch._dynamo.reset()
        ours = Ours(job, machine, world)
        ours.fed(WARM)
        pace = ours.again().seconds / WARM
        steps = max(STEPS, round(TURN / pace))
        step = 1000 * ours.fed(steps).seconds / steps
        memory = 1000 * ours.again().seconds / steps
        ours.prepared = ours.prepared[: STEPS + 1]
        began = ours.trainer.began(0)
        flops = began.peak or machines.product(world.device, began.precision)
        todo = work(ours.prepared, job, began)
        costs = kernels(ours, world.device)
    groups = group_costs(costs, step, memory, todo, flops=flops, rate=rate)
    print_table(name, step, groups)
    return {
        "step_ms": step,
        "from_memory_ms": memory,
        "useful_share": todo.flops / (step / 1000) / flops,
        "peak_flops": flops,
        "work": vars(todo),
        "groups": groups,
        "kernels": {kernel: {**cost, "group": group_of(kernel)} for kernel, cost in costs.items()},
    }


def print_table(name: str, step: float, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Print one row's table."""
    print(f"\n{name}: {step:.1f} ms a step\n\n| | ms | ideal | gap |\n|---|--:|--:|--:|")
    for group, cost in groups.items():
        print(f"| {group} | {cost['ms']:.2f} | {cost['ideal']:.2f} | {cost['gap']:.2f} |")
    print(flush=True)


def main() -> None:
    """Measure the rows asked for, and write after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="these rows, in this order")
    parser.add_argument("--data", required=True)
    parser.add_argument("--size", help="another for every row, to try the script")
    parser.add_argument("--sequences", type=int, help="likewise")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    with join(None) as world:
        device = world.device
    rate = bandwidth(device)
    record: dict[str, Any] = {
        "machine": {**machine_facts(), **machines.facts(device)},
        "bytes_a_second": rate,
        "rows": {},
    }
    chosen = dict.fromkeys(name for word in arguments.only for name in ROWS if word in name)
    for name in chosen:
        row = ROWS[name]
        if arguments.size:
            row = BenchRow(row.recipe, arguments.size, row.length, arguments.sequences)
        request = BenchRequest((row.recipe,), data=(arguments.data,), machine=machine)
        with text(request) as stores:
            recipe = recipe_of(row, request, stores[0][0], device=device.type)
            job = PretrainJob(recipe, stores)
            record["rows"][name] = measure(name, job, machine, rate)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
