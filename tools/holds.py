"""The recorded claims; README's table of some: results/holds.toml, checked by their verdicts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clozelab.reporting.study.claims import difference_text
from clozelab.runs.directory import STUDY
from clozelab.studies.records import StudyRecord, read
from clozelab.studies.verdicts import Finding, Judgement, judge

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Row:
    """A claim of a paper, and the answer that README gives."""

    paper: str
    label: str  # in the picture
    study: str
    claim: list[str]  # better, than, what it is decided on
    verdict: str
    answer: str


def studies() -> list[StudyRecord]:
    """All recorded studies, by name."""
    return [read(file.parent) for file in sorted(RESULTS.glob(f"*/{STUDY}"))]


def claims(studies: list[StudyRecord]) -> list[tuple[str, Judgement]]:
    """The judged claims of every study."""
    return [(study.folder.name, judged) for study in studies for judged in judge(study)]


def rows(judged: list[tuple[str, Judgement]]) -> list[tuple[Row, Judgement]]:
    """Each row with its judgement; a verdict other than the row's is refused."""
    judgements = []
    for entry in tomllib.loads((RESULTS / "holds.toml").read_text(encoding="utf-8"))["rows"]:
        row = Row(**entry)
        (judgement,) = [
            candidate
            for study, candidate in judged
            if study == row.study
            and not candidate.claim.exploratory
            and [candidate.claim.better, candidate.claim.than, *candidate.claim.on] == row.claim
        ]
        if judgement.verdict != row.verdict:
            raise SystemExit(
                f"holds.toml tells of {row.label!r} as {row.verdict}: {judgement.verdict} now"
            )
        judgements.append((row, judgement))
    return judgements


def table(judged: list[tuple[str, Judgement]]) -> Iterator[str]:
    """The lines of README's table."""
    yield "| the papers say | here | by how much | runs |"
    yield "|---|---|---|--:|"
    for row, judgement in rows(judged):
        finding = decisive(judgement)
        assert finding.advantage is not None
        size = difference_text(abs(finding.advantage.value), finding.unit)
        error = difference_text(finding.advantage.half, finding.unit)
        runs = f"[{finding.advantage.seeds}](results/{row.study}/page.md)"
        yield f"| {row.paper} | {row.answer} | {size} ± {error} {finding.unit} | {runs} |"


def decisive(judgement: Judgement) -> Finding:
    """The only finding that decides a claim."""
    (finding,) = judgement.decisive
    return finding
