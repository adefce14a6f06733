"""The board of runs: how far each is, and its last losses. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.runs.directory import Run


def board(folders: Sequence[Path]) -> dict[str, Any]:
    """What there is to tell of some folders, as JSON has it."""
    return {"runs": [_row(folder) for folder in folders]}


def _row(folder: Path) -> dict[str, Any]:
    run = Run(folder)
    try:
        losses = {name: points[-1] for name, points in run.losses().items()}
        return {"name": str(folder), "done": run.result() is not None, "losses": losses}
    except (OSError, UserError) as error:
        return {"name": str(folder), "error": str(error)}
