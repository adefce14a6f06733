"""The speed of recipes beside transformers' classes: compiled side by side, measured one by one.

    PYTHONPATH=src python benchmarks/recipe_speed.py --data CORPUS --out recipe-speed.json [ROW…]

Most of a row's minutes go into compiling, which several processes can do at once on many cores. So
every row is run twice: first all together for a few steps, whose times mean nothing and which fill
the compilers' caches, then alone. A row is `clozelab bench` with the options below.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_BASE = ("--size", "base")
_MASKS = ("--set", 'objectives=[{use="masked_lm"}]', "--set", "corruption.mask=0.8")
ROWS: dict[str, tuple[str, ...]] = {
    "electra": ("electra", *_BASE, "--length", "512"),  # has no peer that trains two encoders
    "electra, masks alone": ("electra", *_BASE, "--length", "512", *_MASKS),
    "deberta": ("deberta", *_BASE, "--length", "512", "--sequences", "32", *_MASKS),
    "deberta released_small": (
        *("deberta", "--size", "released_small", "--length", "512", "--sequences", "32"),
        *_MASKS,
    ),
    "diffusion": ("diffusion", *_BASE),
    "causal_then_masked": ("causal_then_masked", *_BASE),
    "gpt_bert": ("gpt_bert", *_BASE),
    "mosaicbert": ("mosaicbert", *_BASE),
    "neobert": ("neobert", *_BASE),
}
SHORT = 5  # steps of the first time


def bench(row: str, out: Path, arguments: argparse.Namespace, *more: str) -> dict[str, Any] | None:
    """One row; None if it failed, which is told."""
    command = [sys.executable, "-m", "clozelab", "bench", *ROWS[row], "--data", arguments.data]
    command += ["--against", "transformers", "--out", str(out), "--overwrite", *more]
    command += ["--size", arguments.size] if arguments.size else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{row}: failed\n{(done.stderr or done.stdout)[-1500:]}", flush=True)
        return None
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return record


def show(row: str, record: dict[str, Any]) -> None:
    """A line of what a row came to."""
    for one in record["rows"]:
        ours = one["clozelab"]
        ratios = [f"{peer['ratio']['speed']:.2f} × {name}" for name, peer in one["peers"].items()]
        speed = f"{ours['tokens_a_second'] / 1e3:,.0f} k tokens/s"
        share = f"{ours['useful_share']:.0%} of peak"
        first = f"first step {ours['first_step_seconds']:.1f} s"
        print(", ".join([f"{row}: {speed}", share, *ratios, first, *one["notes"]]), flush=True)


def main() -> None:
    """All rows together, then one by one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)} (all)")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=4, help="while it compiles (4)")
    parser.add_argument("--minutes", type=float, default=1e9, help="no row begins after so many")
    parser.add_argument("--size", help="another for every row, to try the script")
    arguments = parser.parse_args()
    began, rows = time.monotonic(), arguments.rows or list(ROWS)
    records = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        files = {row: Path(folder) / f"{number}.json" for number, row in enumerate(rows)}
        list(pool.map(lambda row: bench(row, files[row], arguments, "--steps", str(SHORT)), rows))
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
        for row in rows:
            if time.monotonic() > began + 60 * arguments.minutes:
                print(f"{row}: no time left")
            elif record := bench(row, files[row], arguments):
                show(row, record)
                records[row] = record
                arguments.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
