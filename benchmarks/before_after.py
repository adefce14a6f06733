"""Whether a change of the code changed its speed or memory: two trees take turns on one machine.

    python benchmarks/before_after.py BEFORE/src AFTER/src --out FILE.json -- roberta --size base …

Words behind -- are those of `clozelab bench`. Each turn is a process of its own, which reports the
median of its own turns of two seconds. The trees alternate: a machine that slows down slows both.
If they have no history, CLOZELAB_COMMIT is the commit of the second, --before-commit of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any


def measure(
    source: Path, options: list[str], commit: str | None
) -> tuple[dict[str, Any], dict[str, object]]:
    """What `bench` measured of one tree, and the machine with the tree's commit."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "bench.json"
        path = os.pathsep.join([str(source.resolve()), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "clozelab", "bench", *options, "--out", str(record)]
        environment = {**os.environ, "PYTHONPATH": path, "CLOZELAB_COMMIT": commit or ""}
        subprocess.run(command, check=True, env=environment)
        bench = json.loads(record.read_text(encoding="utf-8"))
        (row,) = bench["rows"]
        return row["clozelab"], bench["machine"]


def main() -> None:
    """Alternate, and compare medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--turns", type=int, default=3, help="of each tree")
    parser.add_argument("--before-commit", metavar="HASH")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("bench", nargs="+", help="words of clozelab bench, behind --")
    arguments = parser.parse_args()
    trees = {"before": arguments.before, "after": arguments.after}
    commits = {"before": arguments.before_commit, "after": os.environ.get("CLOZELAB_COMMIT")}
    rates: dict[str, list[float]] = {name: [] for name in trees}
    machines: dict[str, dict[str, object]] = {}
    memory: dict[str, float | None] = {}
    for _ in range(arguments.turns):
        for name, source in trees.items():
            measured, machines[name] = measure(source, arguments.bench, commits[name])
            rates[name].append(measured["tokens_a_second"])
            memory[name] = measured["peak_memory_gib"]
            print(f"{name}: {rates[name][-1]:,.0f} tokens/s, {memory[name]} GiB", flush=True)
            medians = {side: median(values) for side, values in rates.items() if values}
            record: dict[str, Any] = {
                "bench": arguments.bench,
                "machines": machines,
                "tokens_a_second": rates,
                "peak_memory_gib": memory,
            }
            record["medians"] = medians
            if len(medians) == len(trees):
                record["ratio"] = medians["after"] / medians["before"]
            arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"after / before: {record['ratio']:.4f}")


if __name__ == "__main__":
    main()
