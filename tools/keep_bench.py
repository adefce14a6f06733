"""Merge rows of `clozelab bench --out FILE` into a record, replacing rows that measure the same.

    python tools/keep_bench.py bench.json … benchmarks/results/gpu.json

Each row keeps the commit and the corpora of the record it comes from.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

SAME = ("recipe", "size", "length", "sequences")


def what(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row measures: the model, its steps, its blocks, and whether our kernels were on."""
    blocks = tomllib.loads(row["recipe"])["blocks"]["use"]
    return (*(row["what"][name] for name in SAME), blocks, row.get("kernels", True))


def main() -> None:
    """Merge the records, and print which rows were replaced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="+", help="new ones, and the kept one last")
    *new, record_file = parser.parse_args().records
    kept = json.loads(record_file.read_text(encoding="utf-8"))
    for file in new:
        record = json.loads(file.read_text(encoding="utf-8"))
        for row in record["rows"]:
            row |= {"commit": record["machine"]["commit"], "data": record["data"]}
            places = [at for at, old_row in enumerate(kept["rows"]) if what(old_row) == what(row)]
            at = places[0] if places else len(kept["rows"])
            kept["rows"][at : at + bool(places)] = [row]
            print(f"{what(row)}: {'measured again' if places else 'new'}")
    record_file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
