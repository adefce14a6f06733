"""Tables of docs/adapt.md and docs/sentence-vectors.md, made from the recorded runs.

    python tools/adaptation_tables.py

The records are results/adaptation/adaptation.json, of benchmarks/adaptation.py, and
benchmarks/results/sentence_vectors.json, of benchmarks/sentence_vectors.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from marks import replaced

from clozelab.files import write_text

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {"wiki": "Wikipedia", "books": "novels"}
SETS = {
    **{f"sts{year}": f"STS{year}" for year in range(12, 17)},
    "stsb-cosine": "STS-B",
    "sick-cosine": "SICK",
}
VECTORS = {
    "cls": "`[CLS]`, as pretrained",
    "mean": "mean of the tokens, as pretrained",
    "simcse": "SimCSE, each sentence twice",
    "pairs": "SimCSE on pairs",
}


def adaptation(record: Mapping[str, Any]) -> Iterator[str]:
    """Three lines for each direction: before, plainly adapted, adapted with replay."""
    rows = record["rows"]
    measures = list(dict.fromkeys(other["name"] for row in rows for other in row["others"]))
    columns = ["new text", "general text", *(_short(name) for name in measures)]
    yield "| from, to | | " + " | ".join(columns) + " |"
    yield "|---|---|" + "--:|" * len(columns)
    share = f"{100 * record['asked']['replay']:.0f} % replay"
    kinds = {"plain": "adapted", "replay": f"with {share}"}
    kinds |= {"half rate": "at half the learning rate", "detour": "with a detour"}
    begun: set[str] = set()
    for row in rows:
        way = f"{TEXTS[row['from']]}, {TEXTS[row['to']]}"
        if way not in begun:
            begun.add(way)
            yield _line(way, "before", row, measures, when="before")
        yield _line("", kinds[row["kind"]], row, measures, when="after")


def _short(measure: str) -> str:
    """The name of a measure as a column; a probe is called one, a fine-tuned task is not."""
    name = measure.split(",")[0]
    probed = name.removeprefix("probe of ")
    title = {"blimp": "BLiMP", "sst2": "SST-2", "subj": "SUBJ", "mr": "MR"}.get(probed, probed)
    return title if probed == name or probed == "blimp" else f"{title}, probe"


def _line(way: str, how: str, row: Mapping[str, Any], measures: Sequence[str], *, when: str) -> str:
    step = 0 if when == "before" else row["best_step"]
    losses = [f"{dict(row['losses'][text])[step]:.2f}" for text in ("held_out", "general")]
    scores = {other["name"]: f"{other[when]:.1f}" for other in row["others"]}
    return (
        f"| {way} | {how} | " + " | ".join([*losses, *(scores.get(m, "") for m in measures)]) + " |"
    )


def vectors(record: Mapping[str, Any]) -> Iterator[str]:
    """A line for each kind of vectors: every set and their mean over seeds, and the gain."""
    yield "| vectors | " + " | ".join(SETS.values()) + " | mean | gain |"
    yield "|---|" + "--:|" * (len(SETS) + 2)
    seeds = record["seeds"]
    for kind, name in VECTORS.items():
        cells = [fmean(seed["sets"][kind][task] for seed in seeds) for task in SETS]
        cells.append(fmean(seed["means"][kind]["all"] for seed in seeds))
        gains = [seed["means"][kind]["all"] - seed["means"]["mean"]["all"] for seed in seeds]
        gain = f"{fmean(gains):+.1f} ± {stdev(gains):.1f}" if kind != "mean" else ""
        yield f"| {name} | " + " | ".join(f"{cell:.1f}" for cell in cells) + f" | {gain} |"


PAGES: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], Iterator[str]]]] = {
    "docs/adapt.md": ("adaptation", "results/adaptation/adaptation.json", adaptation),
    "docs/sentence-vectors.md": ("vectors", "benchmarks/results/sentence_vectors.json", vectors),
}


def page(path: str, text: str) -> str:
    """A page with the table made from its record."""
    name, record, table = PAGES[path]
    rows = table(json.loads((ROOT / record).read_text(encoding="utf-8")))
    return replaced(text, name, "\n".join(rows))


def main() -> None:
    """Write the tables into their pages."""
    for path in PAGES:
        write_text(ROOT / path, page(path, (ROOT / path).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
