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
    planned: Iterable[str], outcomes: list[dict[str, Any]], *, seed: int, seconds: float
) -> dict[str, Any]:
    """Counts by kind, and every failure; `planned` has the kind of each case."""
    from clozelab.runs.directory import machine_facts

    counts, ran = Counter(planned), Counter(outcome["kind"] for outcome in outcomes)
    failures = [outcome for outcome in outcomes if outcome["fault"]]
    failed = Counter(outcome["kind"] for outcome in failures)
    return {
        "seed": seed,
        "seconds": round(seconds),
        "machine": machine_facts(),
        "kinds": {
            kind: {"planned": counts[kind], "cases": ran[kind], "failures": failed[kind]}
            for kind in counts
        },
        "failures": sorted(failures, key=lambda outcome: (outcome["kind"], outcome["name"])),
    }


def rows(campaign: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Fault, cases, of how many that were planned, failures; the sums last."""
    kinds = dict(campaign["kinds"])
    names = ("cases", "planned", "failures")
    kinds["all"] = {name: sum(kind[name] for kind in kinds.values()) for name in names}
    return [(kind, *(f"{row[name]:,}" for name in names)) for kind, row in kinds.items()]


def page(campaign: Mapping[str, Any], text: str) -> str:
    """The page's text with this campaign in it."""
    head, rest = text.split(BEGIN)
    commit = str(campaign["machine"].get("commit", "unknown"))
    lines = [
        f"Seed {campaign['seed']}, {campaign['machine']['cpus']} cores,"
        f" {campaign['seconds'] / 60:.0f} minutes,"
        f" commit `{commit[:12]}{'-dirty' * commit.endswith('-dirty')}`"
        f" ([record](../{FILE.relative_to(ROOT).as_posix()})):\n",
        "| fault | cases | of | failures |",
        "|---|--:|--:|--:|",
        *(f"| {' | '.join(row)} |" for row in rows(campaign)),
    ]
    return head + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.split(END)[1]
