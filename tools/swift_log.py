"""Write the tables of docs/swift.md: what was tried, by the records of its studies.

    python tools/swift_log.py [--check]

A study that was not run has dashes; one in results/unfinished has the results of its cells so far,
and is marked as unfinished.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from marks import replaced

from clozelab.reporting.study.claims import interval_text
from clozelab.studies import records, spec
from clozelab.studies.records import StudyRecord
from clozelab.studies.scores import unit
from clozelab.studies.verdicts import advantage

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "swift.md"
# By study: the variant to compare with, and the measures of its table.
STUDIES = {
    "swift-choices": ("swift", ("under.fifteen", "pairs.blimp")),
    "swift-objective": ("masked", ("mnli.accuracy", "sst2.accuracy", "pairs.blimp")),
}
NAMES = {
    **{"under.fifteen": "loss", "pairs.blimp": "BLiMP"},
    **{"mnli.accuracy": "MNLI", "sst2.accuracy": "SST-2"},
}
KEPT = 0.01  # the p-value below which a gain counts
ROTARY = "time to a loss of a GPT 45 → 31.4 min, with a tuned rate"
BLOCK = "22.3 → 15.2 min with larger tables"  # the step of squared relu, QK-norm and zeros
# What others found, by variant.
ELSEWHERE = {
    "fifteen": "40 % > 15 % in large encoders, less in small (2202.08005)",
    "falling": "+0.46 GLUE, up to 1.89 × faster (2305.15096)",
    "rotary": f"{ROTARY} (modded-nanogpt)",
    **dict.fromkeys(("qk-norm", "relu2", "zero"), f"one of three: {BLOCK} (modded-nanogpt)"),
    "geglu": "in cramming's final block (2212.14034)",
    "no-bias": "in cramming's final block (2212.14034)",
    "values": "10.8 → 8.2 min with shortcuts (modded-nanogpt)",
    "modern": f"{ROTARY}; the rest {BLOCK} (modded-nanogpt)",
    "stable": "one run gives all budgets (ModernBERT, Ettin)",
    "ramp": "in cramming's schedule (2212.14034); −0.01 nats here at 2 × 128",
    "short-first": "BERT's 90 % at 128",
    "causal-first": "better than masks alone after tuning (2507.00994)",
    "higher": "7.8 → 7.2 min, with shortcuts (modded-nanogpt)",
    "polar-express": "2.483 → 2.476 min (modded-nanogpt)",
    "by-neuron": "training 11 % more efficient, at 1.1 billion parameters (2510.05491);"
    " 2.358 → 2.345 min (modded-nanogpt)",
    "average": "less training time, also with a decaying learning rate (2502.06761)",
    "smaller-steps": "0.16 nats here at 2 × 128, 8 sequences in place of 32",
    "replaced": "GLUE 79.9 against 75.1 at equal compute (2003.10555)",
    "less-text": "data the largest gain but size (2502.19587, fig. 1)",
}


def find_record(name: str, results: Path) -> tuple[StudyRecord | None, str]:
    """The record of a study, and how much of it is done."""
    for folder, state in ((results / name, ""), (results / "unfinished" / name, "unfinished")):
        if (folder / "result.json").exists():
            record = records.read(folder)
            cells = f"{len(record.done)} of {len(record.planned)} cells"
            return record, f"{cells}, {state}" if state else cells
    return None, "not run yet"


def table(name: str, results: Path) -> str:
    """A row per variant: results elsewhere, advantage over the base, and whether it is kept."""
    base, measures = STUDIES[name]
    record, state = find_record(name, results)
    study = spec.read(name) if record is None else record.study
    head = [
        "variant",
        "change",
        "elsewhere",
        *(NAMES[measure] for measure in measures),
        "p",
        "kept",
    ]
    lines = [head, ["---"] * 3 + ["--:"] * (len(measures) + 1) + ["---"]]
    for variant in study.variants:
        cells = [variant.name, variant.says, ELSEWHERE.get(variant.name, "–")]
        if variant.name == base:
            lines.append([*cells, *(_level(record, base, measure) for measure in measures), "", ""])
            continue
        gains = [
            None if record is None else advantage(record, variant.name, base, measure)
            for measure in measures
        ]
        for gain, measure in zip(gains, measures, strict=True):
            cells.append(
                "–" if gain is None else interval_text(gain.value, gain.half, unit(measure))
            )
        first = gains[0]
        if first is None:
            lines.append([*cells, "–", "–"])
            continue
        p = first.p()
        wins = p < KEPT and first.value > 0 and not variant.again
        lines.append([*cells, f"{p:.3f}" if p >= 0.001 else "< .001", "yes" if wins else "no"])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"`{name}`: {state}.\n\n{rows}"


def _level(record: StudyRecord | None, variant: str, measure: str) -> str:
    values = [] if record is None else [*record.scores(variant, measure).values()]
    return f"{sum(values) / len(values):.2f}" if values else "–"


def page(text: str, results: Path) -> str:
    """The page with its tables."""
    for name in STUDIES:
        text = replaced(text, name, table(name, results))
    return text


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    arguments = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = page(before, arguments.results)
    if arguments.check:
        if before != after:
            print(f"{PAGE}: is not up to date; run python tools/swift_log.py", file=sys.stderr)
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
