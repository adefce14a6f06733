"""Write src/clozelab/data/recorded.json: what recorded runs reached, for `clozelab doctor`.

    python tools/recorded_runs.py

Of each variant of a study, and of single runs, the first seed's held-out masked-LM loss over the
tokens seen, where the loss of frequencies and copying alone is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clozelab.runs.diagnostics import copying_loss
from clozelab.runs.directory import STUDY, Run
from clozelab.runs.record import RunRecord, read_run
from clozelab.studies import records

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src" / "clozelab" / "data" / "recorded.json"
OBJECTIVE = "masked_lm"
ENTROPIES = {"h200-tasks/encoder": 7.28}  # of texts, as results/README.md has them


def rows() -> Iterator[dict[str, Any]]:
    """A row for each run."""
    for folder in sorted((ROOT / "results").iterdir()):
        if not (folder / STUDY).exists():
            continue
        study = records.read(folder)
        for variant in study.variants:
            seeds = [seed for name, seed in study.runs if name == variant.name]
            level = study.plateau(variant.name)
            if seeds and level:
                run = study.runs[variant.name, min(seeds)]
                yield from row(f"{folder.name} {variant.name}", run, level)
    for name, entropy in ENTROPIES.items():
        run = read_run(Run.open(ROOT / "results" / name), name)
        yield from row(name, run, copying_loss(entropy, run.recipe.corruption))


def row(name: str, run: RunRecord, level: float) -> Iterator[dict[str, Any]]:
    """What is kept of a run, if it is a masked language model with a curve."""
    points = [[round(tokens), round(loss, 3)] for tokens, loss in run.held_out.get(OBJECTIVE, [])]
    if len(points) > 1 and points[0][0]:
        encoder = run.recipe.encoder
        size = {"layers": encoder.layers, "hidden_size": encoder.hidden_size}
        yield {"name": name, **size, "level": round(level, 3), "points": points}


def main() -> None:
    """Write the file, a line for each run."""
    lines = ",\n".join(json.dumps(each) for each in rows())
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
