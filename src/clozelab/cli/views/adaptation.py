"""An adaptation as something to look at: before and after."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from clozelab.api.watching import speaks
from clozelab.cli.views import Values, table
from clozelab.runs.adaptation import read_adaptation
from clozelab.runs.directory import Run


def adapted(run: Run, values: Values) -> Iterator[RenderableType]:
    """Losses, probes and tasks before and after."""
    record = read_adaptation(run) if speaks() else None
    if record is not None:
        rows = [row.written() for row in record.rows()]
        yield table("", right=("before", "after", "change"), rows=rows)
