"""Keep a study's records under results/, thinned, and make its page and a picture from them.

    python tools/keep_study.py FOLDER results/NAME [--commit HASH]

Numbers, recipes and logs are kept: for each cell its settings, its held-out losses, a few of its
steps and its scores. The paths of corpus and tasks are replaced by the words that docs use for
them; the fingerprint of the corpus is kept. A commit that is given replaces that of the runs, which
have none if they ran in a copy of the tree without history and without CLOZELAB_COMMIT.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from keep_results import thin

from clozelab.cli import main as clozelab
from clozelab.reporting.study.curves import mean_and_band
from clozelab.studies.records import pack, read
from clozelab.studies.request import name_of
from clozelab.text.store.corpus import weighted

STEPS = 40  # steps that are kept of a cell's log, besides its evaluations


def keep(folder: Path, place: Path, commit: str | None = None) -> None:
    """Copy the study's own files, then its cells."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    corpora = names_of_corpora(plan["data"])
    place.mkdir(parents=True)
    shutil.copy(folder / "study.toml", place)
    shutil.copy(folder / "result.json", place)
    plan_text = json.dumps(plan, indent=1, ensure_ascii=False)
    plan_text = _renamed(plan_text.replace(f'"{plan["task_data"]}"', '"tasks"'), corpora)
    plan_text = plan_text.replace(f'"file {plan["task_data"]}/', '"file tasks/')
    (place / "plan.json").write_text(plan_text + "\n", encoding="utf-8")
    for done in json.loads((folder / "result.json").read_text(encoding="utf-8"))["cells"]:
        name = Path("cells", done["variant"], f"seed-{done['seed']}")
        cell(folder / name, place / name, corpora, commit)
    pack(place)
    (place / ".lock").unlink(missing_ok=True)


def names_of_corpora(data: Sequence[str]) -> dict[str, str]:
    """By path, the word for each corpus: its name in the study, or corpus, corpus-2, …"""
    named: dict[str, str] = {}
    for word in data:
        name = name_of(word)
        path, _ = weighted(word.removeprefix(f"{name}="))
        unnamed = "corpus" if "corpus" not in named.values() else f"corpus-{len(named) + 1}"
        named[path] = name or unnamed
    return named


def _renamed(text: str, corpora: Mapping[str, str]) -> str:
    """A text with the words for corpora in place of their paths."""
    for path in sorted(corpora, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(path, corpora[path])
    return text


def cell(run: Path, place: Path, corpora: Mapping[str, str], commit: str | None) -> None:
    """Copy the records of one variant with one seed; a cell that failed early has fewer."""
    place.mkdir(parents=True)
    for name in ("recipe.toml", "result.json", "measured.json", "like.txt"):
        if (run / name).exists():
            shutil.copy(run / name, place)
    if (run / "machine.toml").exists():
        machine = _renamed((run / "machine.toml").read_text(encoding="utf-8"), corpora)
        if commit is not None:
            stated = f'commit = "{commit}"'
            machine = re.sub('^"?commit"? = ".*"', stated, machine, flags=re.MULTILINE)
        machine = re.sub('"[^"]*/(cells/[^"]*)"', r'"\1"', machine)  # the path of its teacher
        (place / "machine.toml").write_text(machine, encoding="utf-8")
    if (run / "metrics.jsonl").exists():
        lines = "".join(json.dumps(entry) + "\n" for entry in thin(run / "metrics.jsonl", STEPS))
        (place / "metrics.jsonl").write_text(lines, encoding="utf-8")
    for scores in run.glob("tasks/*/result.json"):
        target = place / scores.relative_to(run)
        target.parent.mkdir(parents=True)
        shutil.copy(scores, target)


def draw(place: Path) -> None:
    """Draw held-out loss over tokens: for each variant the mean over seeds, and the range."""
    from matplotlib import pyplot
    from plotting import SERIES, save

    evidence = read(place)
    figure, axis = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for variant, colour in zip(evidence.variants, SERIES, strict=False):
        runs = [run for (name, _), run in evidence.runs.items() if name == variant.name]
        mean, band = mean_and_band([run.held_out["masked_lm"] for run in runs])
        label = f"{variant.name}: {variant.says}"
        axis.plot([x / 1e6 for x, _ in mean], [y for _, y in mean], color=colour, label=label)
        axis.fill_between(
            [x / 1e6 for x, _, _ in band],
            [low for _, low, _ in band],
            [high for _, _, high in band],
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
    axis.set_xlabel("million tokens")
    axis.set_ylabel("held-out loss, nats")
    figure.legend(fontsize=8, loc="outside lower left")
    save(figure, place / "loss.svg")


def main() -> None:
    """Keep the records, then write page.html, page.md and loss.svg."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit")
    arguments = parser.parse_args()
    keep(arguments.folder, arguments.out, arguments.commit)
    for page in ("page.html", "page.md"):
        clozelab(["report", str(arguments.out), "--out", str(arguments.out / page)])
    draw(arguments.out)


if __name__ == "__main__":
    main()
