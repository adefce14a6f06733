"""The results of the doctor: one for every check that could be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from clozelab.nearest import counted

Level = Literal["ill", "caution", "healthy"]
LEVELS: tuple[Level, ...] = ("ill", "caution", "healthy")


@dataclass(frozen=True)
class CheckResult:
    """What one check found."""

    level: Level
    title: str  # the finding in a few words
    evidence: str  # the numbers that show it
    cause: str = ""  # the most likely one; empty if healthy
    remedy: str = ""  # the one change to try
    check: str = ""  # the name of the check


def ill(title: str, evidence: str, *, cause: str, remedy: str) -> CheckResult:
    """Something is wrong."""
    return CheckResult("ill", title, evidence, cause, remedy)


def caution(title: str, evidence: str, *, cause: str, remedy: str) -> CheckResult:
    """Something is unusual, perhaps on purpose."""
    return CheckResult("caution", title, evidence, cause, remedy)


def healthy(title: str, evidence: str) -> CheckResult:
    """All is well."""
    return CheckResult("healthy", title, evidence)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The findings, the most serious first, and what could not be checked."""

    place: str
    kind: Literal["run", "folder", "corpus"]
    state: str  # how far it is, or how large
    findings: Sequence[CheckResult]
    losses: Mapping[str, float]  # the loss and levels to compare it with, in nats per token
    unknown: Sequence[str] = ()  # what could not be checked, and what would help

    @property
    def healthy(self) -> bool:
        """Whether no check found a problem."""
        return not self.of("ill")

    @property
    def verdict(self) -> str:
        """A summary in one line."""
        if not self.findings:
            return "nothing to check yet"
        problems = {"problem": len(self.of("ill")), "caution": len(self.of("caution"))}
        clauses = [counted(number, noun) for noun, number in problems.items() if number]
        clauses.append(f"{len(self.of('healthy'))} of {len(self.findings)} checks normal")
        return f"{'healthy' if self.healthy else 'ill'}: {', '.join(clauses)}"

    def of(self, level: Level) -> list[CheckResult]:
        """The findings of a level."""
        return [finding for finding in self.findings if finding.level == level]

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        facts = {name: getattr(self, name) for name in ("place", "kind", "state", "healthy")}
        return {
            **facts,
            "losses": dict(self.losses),
            "findings": [asdict(finding) for finding in self.findings],
            "unknown": list(self.unknown),
        }

    def __repr__(self) -> str:
        lines = [f"{self.place}: {self.verdict}"]
        lines += [f"{finding.level}: {finding.title}" for finding in self.findings]
        return "\n".join(lines)
