"""Whether fast training learns the same: loss curves of each recipe in plain fp32 and by default.

    python benchmarks/curves.py --data CORPUS --out FILE.json electra modernbert …

"plain" is single precision without the compiler, our kernels and CUDA graphs; "fast" is whatever
suits the device. Both have the same weights, order and masks, and no dropout. Several run at once,
so their speed means nothing. A student's teacher is a fast bert. The record is appended to the list
in FILE.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import fields
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from clozelab import Run
from clozelab.config import recipe as recipes
from clozelab.runs.directory import machine_facts

WAYS = {
    "plain": ["--precision", "fp32", "--no-compile", "--no-kernels", "--no-graphs"],
    "fast": [],
    # Steps between the two, to find which one differs:
    "half": ["--no-compile", "--no-kernels", "--no-graphs"],
    "compiled": ["--no-kernels", "--no-graphs"],
    "kernels": ["--no-graphs"],
}
WINDOW = 10  # steps whose mean is a point of a curve
LAST = 10  # points whose mean is printed


def train_and_read_curves(
    name: str, way: str, seed: int, *, work: Path, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """The losses of one run by objective, a point for each window of steps."""
    recipe = recipes.read(name, size=arguments.size)
    place = work / f"{name}-{way}-{seed}"
    start = (
        ["distil", str(work / "teacher"), "--recipe", name]
        if needs_teacher(name)
        else ["pretrain", name]
    )
    known = {setting.name for setting in fields(recipe.encoder)}
    quiet = [f"encoder.{key}=0.0" for key in ("dropout", "attention_dropout") if key in known]
    run(
        *[*start, "--out", str(place), "--seed", str(seed), *WAYS[way]],
        *[word for change in quiet for word in ("--set", change)],
        arguments=arguments,
    )
    return {
        key.removesuffix(".loss"): [
            fmean(loss for _, loss in curve[at : at + WINDOW])
            for at in range(0, len(curve), WINDOW)
        ]
        for key, curve in Run.open(place).curves().items()
        if key.endswith(".loss")
    }


def needs_teacher(name: str) -> bool:
    """Whether a recipe is a student's."""
    return any(part.needs_teacher for part in recipes.read(name).objectives)


def run(*options: str, arguments: argparse.Namespace) -> None:
    """Train one model without checkpoints and evaluations."""
    command = [sys.executable, "-m", "clozelab", *options, "--data", arguments.data]
    command += ["--size", arguments.size, "--budget", f"{arguments.steps}steps", "--no-progress"]
    command += ["--save-every", "0", "--evaluate-every", "0"]
    command += [word for change in arguments.set for word in ("--set", change)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-3000:]}")


def main() -> None:
    """Train them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["plain", "fast"])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, for all")
    arguments = parser.parse_args()
    records = (
        json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else []
    )
    record: dict[str, Any] = {
        "size": arguments.size,
        "steps": arguments.steps,
        "set": arguments.set,
    }
    record |= {"machine": machine_facts(), "curves": {}}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        work = Path(folder)
        if any(needs_teacher(name) for name in arguments.recipes):
            run("pretrain", "bert", "--out", str(work / "teacher"), arguments=arguments)
        train = partial(train_and_read_curves, work=work, arguments=arguments)
        cells = product(arguments.recipes, range(arguments.seeds), arguments.ways)
        runs = {pool.submit(train, name, way, seed): (name, seed, way) for name, seed, way in cells}
        failed = []
        for learning in as_completed(runs):  # a stop loses only what still runs
            name, seed, way = runs[learning]
            try:
                curves = learning.result()
            except RuntimeError as problem:  # the others go on
                failed.append(f"{name}, seed {seed}, {way}: {problem}")
                continue
            record["curves"].setdefault(name, {}).setdefault(seed, {})[way] = curves
            arguments.out.write_text(
                json.dumps([*records, record], indent=1) + "\n", encoding="utf-8"
            )
            ends = ", ".join(f"{key} {fmean(curve[-LAST:]):.4f}" for key, curve in curves.items())
            print(f"{name}, seed {seed}, {way}: {ends}", flush=True)
        if failed:
            raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
