"""Predictions as the files that benchmarks take: GLUE's, SQuAD's, and simple ones for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.files import check_output, write_text
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.files.splits import TaskSplits


def check_submission(found: TaskSplits, split: str, *, folder: Path, overwrite: bool) -> None:
    """Refuse, before anything is predicted, a folder where the file must not be written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; name the folder of the submission")
    for name in (_name(found, split), *found.part.beside):
        if folder.is_dir():
            check_output(folder / name, overwrite=overwrite)


def write_submission(
    found: TaskSplits, split: str, *, predictions: Sequence[Any], folder: Path
) -> Path:
    """Write the predictions for a split, in the order of its examples; where they were written."""
    examples = found.read(split)
    if len(examples) != len(predictions):
        raise UserError(
            f"{found.name} {split} has {len(examples)} examples and there are {len(predictions)}"
            " predictions: predict the same split"
        )
    spelled = NAMED[found.name].spelled if found.name in NAMED else None
    files = found.part.submission(examples, predictions, spelled=spelled)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_text(folder / (name or _name(found, split)), text)
    return folder / _name(found, split)


def _name(found: TaskSplits, split: str) -> str:
    return found.submission.get(split, f"{split}.{found.part.suffix}")
