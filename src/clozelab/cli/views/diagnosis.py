"""What the doctor says, in a terminal: the worst first, what is normal in a line each."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clozelab.cli.views import Values
from clozelab.diagnosis.result import CheckResult, Diagnosis

_SIGNS = {"ill": ("✗", "bold red"), "caution": ("!", "bold yellow"), "healthy": ("✓", "green")}


def diagnosis(result: Diagnosis, values: Values) -> Iterator[RenderableType]:
    """All of it."""
    colour = "green" if result.healthy else "red"
    yield Text.assemble((result.place, "bold"), f"  {result.state}")
    yield Text(result.verdict, style=f"bold {colour}")
    for finding in [*result.of("ill"), *result.of("caution")]:
        yield Text()
        yield _wrong(finding)
    normal = result.of("healthy")
    if normal:
        yield Text()
        yield _normal(normal)
    if result.unknown:
        yield Text()
        for line in result.unknown:
            yield Text(f"? not checked: {line}", style="dim")


def _wrong(finding: CheckResult) -> RenderableType:
    sign, style = _SIGNS[finding.level]
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("evidence", finding.evidence)
    rows.add_row("likely cause", finding.cause)
    rows.add_row("try", Text(finding.remedy, style="bold"))
    title = Text.assemble(
        (f"{sign} ", style), (finding.title, style), (f"  {finding.check}", "dim")
    )
    return Group(title, Padding(rows, (0, 0, 0, 2)))


def _normal(findings: list[CheckResult]) -> Table:
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_column(overflow="fold", style="dim")
    sign, style = _SIGNS["healthy"]
    for finding in findings:
        rows.add_row(Text(sign, style=style), finding.title, finding.evidence)
    return rows
