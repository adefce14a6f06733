"""What a campaign found: a table for the terminal and for the page that tells the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "benchmarks" / "results" / "faults.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- the last campaign -->\n", "<!-- end -->\n"


def record(
    planned: Iterable[str], found: list[dict[str, Any]], *, seed: int, seconds: float
) -> dict[str, Any]:
    """Counts by kind, and every failure; `planned` has the kind of each case."""
    from clozelab.records import machine_facts

    counts, ran = Counter(planned), Counter(one["kind"] for one in found)
    failures = [one for one in found if one["fault"]]
    failed = Counter(one["kind"] for one in failures)
    return {
        "seed": seed,
        "seconds": round(seconds),
        "machine": machine_facts(),
        "kinds": {
            kind: {"planned": counts[kind], "cases": ran[kind], "failures": failed[kind]}
            for kind in counts
        },
        "failures": sorted(failures, key=lambda one: (one["kind"], one["name"])),
    }


def rows(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Fault, cases, of how many that were planned, failures; the sums last."""
    kinds = dict(told["kinds"])
    names = ("cases", "planned", "failures")
    kinds["all"] = {name: sum(kind[name] for kind in kinds.values()) for name in names}
    return [(kind, *(f"{row[name]:,}" for name in names)) for kind, row in kinds.items()]


def page(told: Mapping[str, Any], text: str) -> str:
    """The page's text with this campaign in it."""
    head, rest = text.split(BEGIN)
    commit = str(told["machine"].get("commit", "unknown"))
    lines = [
        f"Seed {told['seed']}, {told['machine']['cpus']} cores, {told['seconds'] / 60:.0f} minutes,"
        f" commit `{commit[:12]}{'-dirty' * commit.endswith('-dirty')}`"
        f" ([record](../{FILE.relative_to(ROOT).as_posix()})):\n",
        "| fault | cases | of | failures |",
        "|---|--:|--:|--:|",
        *(f"| {' | '.join(row)} |" for row in rows(told)),
    ]
    return head + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.split(END)[1]
