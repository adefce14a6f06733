"""Where the time before training goes: a first step without any cache, then one with it.

    PYTHONPATH=src python benchmarks/first_step.py --data CORPUS --out first-step.json ROW…

Each row is measured in processes of its own, with an empty folder for the caches of the compilers
and then once more with what the first left there. "first step" is what `clozelab bench` calls so,
from building the model to the end of its first step; the phases below it are counted by torch and
Triton themselves, and overlap where one calls another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

# The name that is shown → torch's name for the phase.
PHASES = {
    "Dynamo": "bytecode_tracing",
    "AOTAutograd": "aot_trace_joint_graph",
    "Inductor": "compile_fx_inner",
    "of which codegen": "GraphLowering.codegen",
    "of which waiting for kernels": "async_compile.wait",
    "loading from the cache": "AOTAutogradCache.inductor_load",
}


def measure(row: str, data: str, device: str | None) -> dict[str, Any]:
    """The first and the second step of a row, in this process."""
    began = time.perf_counter()
    import torch
    import triton
    from roofline import ROWS
    from torch._dynamo.utils import compilation_time_metrics

    from clozelab.benching.ours import Ours
    from clozelab.benching.rows import BenchRequest, recipe_of, text
    from clozelab.pretraining.job import PretrainJob
    from clozelab.runs.directory import machine_facts
    from clozelab.runs.machine import Machine, facts
    from clozelab.training.world import join

    marks = {"imports": time.perf_counter() - began}
    kernels: dict[str, float] = defaultdict(float)  # by their names: seconds, in this process

    def compiled(*, src: Any, times: Any, **_: Any) -> None:
        kernels[src.name] += times.total / 1e6

    triton.knobs.compilation.listener = compiled
    request = BenchRequest(data=(data,), machine=Machine(device=device))
    with join(device) as world, text(request) as stores:
        recipe = recipe_of(ROWS[row], request, stores[0][0], device=world.device.type)
        began = time.perf_counter()
        ours = Ours(PretrainJob(recipe, stores), request.machine, world)
        marks["building"] = time.perf_counter() - began
        ours.fed(0)
        _wait(torch)
        marks["first step"] = time.perf_counter() - began
        began = time.perf_counter()
        ours.fed(0)
        _wait(torch)
        marks["second step"] = time.perf_counter() - began
    phases = {name: sum(compilation_time_metrics.get(key, [])) for name, key in PHASES.items()}
    return {
        "seconds": marks,
        "phases": phases,
        "kernels": dict(sorted(kernels.items(), key=lambda one: -one[1])),
        "machine": {**machine_facts(), **facts(world.device)},
    }


def _wait(torch: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def apart(row: str, arguments: argparse.Namespace, caches: Path) -> dict[str, Any]:
    """Measure a row in a process of its own, with the compilers' caches in a folder."""
    places = {"TORCHINDUCTOR_CACHE_DIR": caches / "inductor", "TRITON_CACHE_DIR": caches / "triton"}
    command = [sys.executable, __file__, row, "--data", arguments.data, "--here"]
    command += ["--device", arguments.device] if arguments.device else []
    environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def show(row: str, name: str, measured: dict[str, Any]) -> None:
    """Print a measurement."""
    seconds = ", ".join(f"{what} {value:.1f} s" for what, value in measured["seconds"].items())
    print(f"{row}, {name}: {seconds}")
    print("  " + ", ".join(f"{what} {value:.1f}" for what, value in measured["phases"].items()))
    kernels = measured["kernels"]
    longest = ", ".join(f"{kernel} {value:.1f}" for kernel, value in kernels.items() if value > 0.1)
    print(f"  Triton, in this process {sum(kernels.values()):.1f}: {longest}")


def main() -> None:
    """Measure every row twice."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="+", help="of benchmarks/roofline.py")
    parser.add_argument("--data", required=True)
    parser.add_argument("--device")
    parser.add_argument("--out")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:  # the process of one row, which is timed from its imports on
        print(json.dumps(measure(arguments.rows[0], arguments.data, arguments.device)))
        return
    records = {}
    for row in arguments.rows:
        with tempfile.TemporaryDirectory() as caches:
            records[row] = {
                name: apart(row, arguments, Path(caches)) for name in ("cold", "from the cache")
            }
        for name, measured in records[row].items():
            show(row, name, measured)
        if arguments.out:  # now, so that a stop loses one row
            Path(arguments.out).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
