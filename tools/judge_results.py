"""Judge the studies under results/ by the current rules, and write all files made from them.

    python tools/judge_results.py [--claims]

Writes the noise of each measure (src/clozelab/studies/noise.toml), every study's page.html and
page.md, the pictures of claims, what the doctor compares runs with, the pages of papers and costs,
and the tables between the marks of README.md, results/README.md (also of the studies without a
record, whose power is by the noise) and docs/results.md. With --claims, claims that the study files
of today have beyond a record's own are added to the record, as exploratory ones, where their
variants and measures were recorded.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median, variance

import holds
import keep_study
from marks import replaced

from clozelab.cli import main as clozelab
from clozelab.config import recipe as recipes
from clozelab.config.sizes import shape_name
from clozelab.files import write_text
from clozelab.nearest import listed
from clozelab.reporting.study.claims import SIGNS, difference_text, interval_text, p_text, signed
from clozelab.runs.directory import STUDY
from clozelab.studies import spec
from clozelab.studies.records import StudyRecord
from clozelab.studies.scores import is_loss, label, unit
from clozelab.studies.spec import Claim
from clozelab.studies.verdicts import Judgement, stuck

ROOT = Path(__file__).parents[1]
RESULTS, NOISE = ROOT / "results", ROOT / "src/clozelab/studies/noise.toml"
USUAL = "4x256"  # the size whose noise stands for sizes that no study has recorded
# Measures that no study has recorded yet: their noise, and where the number is from.
ELSEWHERE = {
    "cola.matthews": (0.94, "three tunings of one encoder of 6 × 512, results/h200-tasks"),
    "mrpc.accuracy": (1.36, "the same"),
    "mrpc.f1": (1.36, "as its accuracy"),
    "rte.accuracy": (1.37, "three tunings of one encoder of 6 × 512, results/h200-tasks"),
    "wnut17.f1": (1.45, "the same"),
    "conll2003.f1": (1.45, "as wnut17"),
    "squad2.f1": (4.0, "as squad1 at 4 × 256"),
    "qnli.accuracy": (1.1, "as mnli"),
    "race.accuracy": (1.1, "as mnli"),
    "cmrc2018.f1": (4.0, "as squad1 at 4 × 256"),
    "litbank.conll": (4.0, "as squad1 at 4 × 256"),
    "run.left_plateau": (40.0, "of a share of runs"),
    "run.finished": (40.0, "of a share of runs"),
}
# The number of items in sets that no recorded study uses.
ITEMS = {
    **{"cola": 1043, "mrpc": 408, "rte": 277, "qnli": 5463, "squad2": 11873},
    **{"pairs": 67000, "joint": 4096, "gain": 4096},
}


def add_claims(record: StudyRecord) -> None:
    """Add the claims of the current study file that the record lacks, as exploratory ones."""
    if record.folder.name not in spec.names():
        return
    known = {_key(old_claim) for old_claim in record.study.claims}
    variants = {variant.name for variant in record.variants}
    late = []
    for claim in spec.read(record.folder.name).claims:
        on = tuple(name for name in claim.on if record.scores(claim.better, name))
        sides = {claim.better, claim.than} <= {*variants, ""}
        late_claim = replace(claim, on=on, exploratory=True, seeds=None)
        if sides and on and _key(late_claim) not in known:
            late.append(late_claim)
    late_measures = {name for claim in late for name in claim.on if is_loss(name) or "run." in name}
    measures = tuple(dict.fromkeys((*record.study.measures, *sorted(late_measures))))
    study = replace(record.study, claims=(*record.study.claims, *late), measures=measures)
    write_text(record.folder / STUDY, spec.to_toml(study))


def _key(claim: Claim) -> tuple[object, ...]:
    return claim.better, claim.than, claim.on, claim.level, claim.ratio, claim.kind


def noise(records: list[StudyRecord]) -> dict[str, tuple[float, int]]:
    """The standard deviation over seeds of each measure, as the median over studies; their number.

    The median, since a study with variants that just leave the plateau is far noisier; for the same
    reason a study that has one variant twice (A/A) counts by the runs of this one. Shares of runs
    and losses under the masks of a study's own variants are left out.
    """
    deviations: dict[str, list[float]] = {}
    for record in records:
        twice = [(one.again, one.name) for one in record.study.variants if one.again]
        groups = twice or [(variant.name,) for variant in record.variants]
        whole = [names for names in groups if not any(stuck(record, name) for name in names)]
        for measure in record.measures():
            rows = [
                [score for name in names for score in record.scores(name, measure).values()]
                for names in whole
            ]
            rows = [row for row in rows if len(row) > 1]
            if rows and not measure.startswith(("run.", "under.")):
                squares = sum(variance(row) * (len(row) - 1) for row in rows)
                deviations.setdefault(measure, []).append(
                    math.sqrt(squares / sum(len(row) - 1 for row in rows))
                )
    return {name: (median(values), len(values)) for name, values in sorted(deviations.items())}


def write_noise(records: list[StudyRecord]) -> None:
    """Write the file of noise that plans of studies use."""
    by_size: dict[str, list[StudyRecord]] = {}
    for record in records:
        by_size.setdefault(shape_name(record.plan.get("size")), []).append(record)
    deviations = noise(by_size.pop(USUAL))
    lines = [
        "# The standard deviation over seeds of each measure, for the power that a plan states.",
        "# tools/judge_results.py makes it of the recorded studies (4 × 256 unless it says so).",
        "[noise]",
        *_deviations(deviations),
    ]
    for name, (value, where) in ELSEWHERE.items():
        if name not in deviations:
            lines.append(f'"{name}" = {value:g}  # {where}')
    by_size.pop("", None)  # each of these is at its recipe's own size
    for size, others in by_size.items():
        lines += ["", f"[noise_at.{size}]", *_deviations(noise(others))]
    sizes = {
        name: size for record in records for name, size in record.sizes.items() if "." not in name
    }
    sizes = {name: size for name, size in sizes.items() if name not in ("held_out", "pair")}
    lines += ["", "[items]  # of the sets that scores are over", *_sizes({**ITEMS, **sizes})]
    write_text(NOISE, "\n".join(lines) + "\n")


def _deviations(deviations: dict[str, tuple[float, int]]) -> Iterator[str]:
    for name, (value, count) in deviations.items():
        where = "one study" if count == 1 else f"the median of {count} studies"
        yield f'"{name}" = {value:.3g}  # {where}'


def _sizes(sizes: dict[str, float]) -> list[str]:
    return [f"{name} = {size:g}" for name, size in sorted(sizes.items())]


def claims_table(judged: list[tuple[str, Judgement]]) -> Iterator[str]:
    """The table of all claims with verdicts and advantages."""
    yield "| study | claim | verdict | advantage, 95 % interval | p |"
    yield "|---|---|---|---|--:|"
    before = ""
    for study, judgement in judged:
        name = "" if study == before else f"[{study}](../results/{study}/page.md)"
        before = study
        late = " (exploratory)" if judgement.claim.exploratory else ""
        advantages = [
            f"{interval_text(advantage.value, advantage.half, finding.unit)} {finding.unit}"
            for finding in judgement.decisive
            if (advantage := finding.advantage) is not None
        ]
        advantage_text = "; ".join(advantages) or judgement.decisive[0].why
        asked = judgement.claim.kind == "equal" and judgement.verdict != "refuted"
        equality = asked or judgement.verdict == "equal"
        p = p_text(judgement.p_equal if equality else judgement.p)
        verdict = signed(judgement)
        yield f"| {name} | {judgement.claim.judged}{late} | {verdict} | {advantage_text} | {p} |"


def same_twice(records: list[StudyRecord]) -> Iterator[str]:
    """The table of A/A pairs: cells of two studies with equal recipe, seed, text and commit."""
    yield "| the same cell twice | measure | differences by seed |"
    yield "|---|---|---|"
    cells = {
        (record.folder.name, name, seed): (record, run)
        for record in records
        for (name, seed), run in record.runs.items()
    }
    pairs: dict[tuple[str, str], list[float]] = {}
    for (cell, (first, a)), (other, (second, b)) in combinations(cells.items(), 2):
        alike = ("fingerprint", "commit", "seed")
        if cell[0] == other[0] or any(a.machine.get(x) != b.machine.get(x) for x in alike):
            continue
        if recipes.to_toml(a.recipe) != recipes.to_toml(b.recipe):
            continue
        name = f"{cell[0]} {cell[1]} − {other[0]} {other[1]}"
        for measure in first.measures():
            ours = first.scores(cell[1], measure).get(cell[2])
            theirs = second.scores(other[1], measure).get(other[2])
            if ours is not None and theirs is not None:
                pairs.setdefault((name, measure), []).append(ours - theirs)
    for (name, measure), gaps in pairs.items():
        differences = ", ".join(difference_text(gap, unit(measure), sign=True) for gap in gaps)
        yield f"| {name} | {label(measure)} | {differences} {unit(measure)} |"


def counts(judged: list[tuple[str, Judgement]]) -> str:
    """A sentence with the number of claims by verdict."""
    sentences = []
    for late in (False, True):
        verdicts = [
            judgement.verdict for _, judgement in judged if judgement.claim.exploratory == late
        ]
        tallies = [f"{verdicts.count(word)} {word}" for word in SIGNS if word in verdicts]
        if tallies:
            kind = "exploratory claims" if late else "claims stated before their runs"
            sentences.append(f"Of {len(verdicts)} {kind}: {listed(tallies, conjunction='and')}.")
    return " ".join(sentences)


def between(file: Path, mark: str, lines: list[str]) -> None:
    """Replace what stands between two marks of a page."""
    page = file.read_text(encoding="utf-8")
    write_text(file, replaced(page, mark, "\n".join(lines)))


def main() -> None:
    """All of it."""
    records = holds.studies()
    if "--claims" in sys.argv:
        for record in records:
            add_claims(record)
        records = holds.studies()
    write_noise(records)
    for record in records:
        for page in ("page.html", "page.md"):
            clozelab(["report", str(record.folder), "--out", str(record.folder / page)])
    judged = holds.claims(records)
    docs = ROOT / "docs/results.md"
    between(docs, "claims", [counts(judged), "", *claims_table(judged)])
    between(ROOT / "README.md", "holds", [*holds.table(judged)])
    between(RESULTS / "README.md", "the same twice", [*same_twice(records)])
    for record in records:
        if (record.folder / "loss.svg").exists():
            keep_study.draw(record.folder)
    for name in ("claims_picture", "open_studies", "recorded_runs", "paper_pages", "costs_page"):
        subprocess.run([sys.executable, str(ROOT / "tools" / f"{name}.py")], check=True)


if __name__ == "__main__":
    main()
