"""Run all checks on a case."""

from __future__ import annotations

from dataclasses import replace

from clozelab.diagnosis.case import Case
from clozelab.diagnosis.checks import CHECKS
from clozelab.diagnosis.result import LEVELS, Diagnosis


def examine(case: Case) -> Diagnosis:
    """The findings of every check, the most serious first."""
    results = [(name, check(case)) for name, check in CHECKS.items()]
    findings = [replace(result, check=name) for name, result in results if result is not None]
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return Diagnosis(case.place, case.kind, case.state, findings, case.losses, case.unknown)
