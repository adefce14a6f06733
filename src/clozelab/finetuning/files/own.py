"""A task of the user's own files or datasets; its labels are those of the training file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.found import Found, Split, purpose
from clozelab.finetuning.files.hub import hub, is_hub
from clozelab.finetuning.files.tables import Table
from clozelab.finetuning.kinds import KINDS, own_words


def own(
    word: str,
    *,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
) -> Found:
    """The user's files as a task, all read at once, so that what is wrong shows before training.

    `word` is a kind of task or another word for one. `labels` are those there are; without them,
    those of `train` are. A test file may lack them.
    """
    if word not in own_words():
        raise UserError(f"there is no kind of task {word!r}: say {', '.join(own_words())}")
    files = {"train": train, "dev": dev, "test": test}
    sources = {split: _source(name, split) for split, name in files.items() if name is not None}
    if not sources:
        raise UserError("no file is named: say --train FILE --dev FILE")
    name, meant = own_words()[word]
    kind = KINDS[name]
    asked = Asked(columns=columns or {}, labels=tuple(labels))
    settings = {**meant, **kind.file_settings(next(iter(sources.values())), asked)}
    held: dict[str, list[Any]] = {}
    splits: dict[str, Split] = {}
    counts = Counts()
    for split, source in sources.items():  # train first
        splits[split] = Split(source, purpose(asked, split))
        held[split] = kind.read(source, splits[split].asked, settings=settings, counts=counts)
        if split == "train" and not labels:
            asked = replace(asked, labels=kind.labels_of(held[split]))
    if kind.label_field and train is not None and len(asked.labels) < 2:
        raise UserError(
            f"{train}: has only the class {', '.join(asked.labels) or 'none'}; a classifier needs"
            " examples of two or more"
        )
    every = [example for examples in held.values() for example in examples]
    settings |= kind.derive(every, labels=asked.labels)
    layout = ": name its file by --train, --dev or --test"
    notes = kind.notes(settings)
    return Found("own", name, settings, splits, notes, layout=layout, counts=counts, held=held)


def _source(name: str | Path, split: str) -> Path | Table:
    return hub(str(name), split) if is_hub(str(name)) else Path(name)
