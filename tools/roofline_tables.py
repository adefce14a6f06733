"""Where the time of a step goes, as a table of docs/speed.md: made from the recorded rooflines.

    python tools/roofline_tables.py

benchmarks/results/roofline.json has a list of records of benchmarks/roofline.py; if a row was
measured several times, the last measurement is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marks import replaced

from clozelab.files import write_text

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGE = ROOT / "benchmarks/results/roofline.json", ROOT / "docs/speed.md"
OUTSIDE = ("waiting", "feed")  # no kernels


def table(rows: Mapping[str, Any]) -> Iterator[str]:
    """A column for each shape, a line for each group of kernels."""
    yield "| ms a step, ideal | " + " | ".join(rows) + " |"
    yield "|---|" + "--:|" * len(rows)
    groups = {group: None for row in rows.values() for group in row["groups"]}
    ordered = sorted(groups, key=lambda group: -sum(_gap(row, group) for row in rows.values()))
    for group in [*(g for g in ordered if g not in OUTSIDE), *OUTSIDE]:
        cells = (_cell(row["groups"].get(group)) for row in rows.values())
        yield f"| {group} | " + " | ".join(cells) + " |"
    yield "| all kernels | " + " | ".join(f"{_kernels(row):.1f}" for row in rows.values()) + " |"
    shares = (
        row["work"]["flops"] / (_kernels(row) / 1000) / row["peak_flops"] for row in rows.values()
    )
    yield "| their share of peak | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |"


def _gap(row: Mapping[str, Any], group: str) -> float:
    return float(row["groups"].get(group, {"gap": 0.0})["gap"])


def _kernels(row: Mapping[str, Any]) -> float:
    """Milliseconds of all kernels of a step."""
    return float(sum(cost["ms"] for name, cost in row["groups"].items() if name not in OUTSIDE))


def _cell(cost: Mapping[str, float] | None) -> str:
    if cost is None:
        return ""
    return f"{cost['ms']:.1f}, {cost['ideal']:.1f}" if cost["ideal"] else f"{cost['ms']:.1f}"


def page(text: str) -> str:
    """The page with the table made from the current records."""
    rows: dict[str, Any] = {}
    for record in json.loads(RECORDS.read_text(encoding="utf-8")):
        rows |= record["rows"]
    return replaced(text, "roofline", "\n".join(table(rows)))


def main() -> None:
    """Write the table into the page."""
    write_text(PAGE, page(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
