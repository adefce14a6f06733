"""Keep a study's records under results/, thinned, and make its page from them.

    python tools/keep_study.py FOLDER results/NAME --commit HASH

What is kept is numbers, recipes and logs: of each cell its settings, its held-out losses, a few of
its steps and its scores. Where the corpus and the tasks lay is no one else's business: it is
replaced by the words that docs use for them, and the fingerprint of the corpus stays.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from keep_results import thin

from clozelab.cli import main as clozelab

STEPS = 40  # lines of a cell's log, beside its evaluations


def keep(folder: Path, place: Path, commit: str) -> None:
    """The study's own files, then cell by cell."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    (corpus,) = plan["data"]
    place.mkdir(parents=True)
    shutil.copy(folder / "study.toml", place)
    shutil.copy(folder / "result.json", place)
    told = json.dumps(plan, indent=1, ensure_ascii=False)
    told = told.replace(f'"{plan["task_data"]}"', '"tasks"').replace(corpus, "corpus")
    (place / "plan.json").write_text(told + "\n", encoding="utf-8")
    for done in json.loads((folder / "result.json").read_text(encoding="utf-8"))["cells"]:
        name = Path("cells", done["variant"], f"seed-{done['seed']}")
        cell(folder / name, place / name, corpus, commit)


def cell(run: Path, place: Path, corpus: str, commit: str) -> None:
    """One variant with one seed."""
    place.mkdir(parents=True)
    for name in ("recipe.toml", "result.json", "measured.json", "like.txt"):
        if (run / name).exists():
            shutil.copy(run / name, place)
    machine = (run / "machine.toml").read_text(encoding="utf-8").replace(corpus, "corpus")
    machine = re.sub('"commit" = ".*"', f'"commit" = "{commit}"', machine)
    (place / "machine.toml").write_text(machine, encoding="utf-8")
    lines = "".join(json.dumps(entry) + "\n" for entry in thin(run / "metrics.jsonl", STEPS))
    (place / "metrics.jsonl").write_text(lines, encoding="utf-8")
    for scores in run.glob("tasks/*/result.json"):
        kept = place / scores.relative_to(run)
        kept.parent.mkdir(parents=True)
        shutil.copy(scores, kept)


def main() -> None:
    """Keep them, then write page.html and page.md."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("folder", type=Path)
    words.add_argument("out", type=Path)
    words.add_argument("--commit", required=True)
    given = words.parse_args()
    keep(given.folder, given.out, given.commit)
    for page in ("page.html", "page.md"):
        clozelab(["report", str(given.out), "--out", str(given.out / page)])


if __name__ == "__main__":
    main()
