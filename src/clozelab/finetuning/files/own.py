"""A task of the user's own files or datasets; its labels are those of the training file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.finetuning.examples import Choice, Example, Question, Sentences, Tagged
from clozelab.finetuning.files.columns import Asked
from clozelab.finetuning.files.found import Found, Split, examples, purpose
from clozelab.finetuning.files.hub import hub, is_hub
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.files.sentences import has_pair
from clozelab.finetuning.files.tables import Table
from clozelab.finetuning.kinds import OWN
from clozelab.finetuning.metrics.chinese import HAN
from clozelab.finetuning.metrics.schemes import is_entity


def own(
    kind: str,
    *,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
) -> Found:
    """The user's files as a task, all read at once, so that what is wrong shows before training.

    `labels` are those there are; without them, those of `train` are. A test file may lack them.
    """
    if kind not in OWN:
        raise UserError(f"there is no kind of task {kind!r}: say {', '.join(OWN)}")
    named = {"train": train, "dev": dev, "test": test}
    sources = {split: _source(name, split) for split, name in named.items() if name is not None}
    if not sources:
        raise UserError("no file is named: say --train FILE --dev FILE")
    asked = Asked(columns=columns or {}, labels=tuple(labels))
    pair = kind == "pairs"
    if kind == "regress":
        pair = has_pair(next(iter(sources.values())), asked)
    kind = "classify" if kind == "pairs" else kind
    held: dict[str, list[Example]] = {}
    splits: dict[str, Split] = {}
    counts = Counts()
    for split, source in sources.items():  # train first
        splits[split] = Split(source, purpose(asked, split))
        held[split] = examples(source, kind, splits[split].asked, pair=pair, counts=counts)
        if split == "train" and not labels and kind in ("classify", "tag"):
            asked = replace(asked, labels=_labels(held[split]))
    if kind == "classify" and train is not None and len(asked.labels) < 2:
        raise UserError(
            f"{train}: has only the class {', '.join(asked.labels) or 'none'}; a classifier needs"
            " examples of two or more"
        )
    settings = _settings(kind, held, labels=asked.labels, pair=pair)
    layout = ": name its file by --train, --dev or --test"
    notes = _notes(settings)
    return Found("own", kind, settings, splits, notes, layout=layout, counts=counts, held=held)


def _source(name: str | Path, split: str) -> Path | Table:
    return hub(str(name), split) if is_hub(str(name)) else Path(name)


def _labels(train: Iterable[Example]) -> tuple[str, ...]:
    """Every label, in order; whole numbers by size, and "O", which tags no name, first."""
    found: set[str] = set()
    for example in train:
        if isinstance(example, Sentences) and example.label is not None:
            found.add(str(example.label))
        elif isinstance(example, Tagged):
            found.update(example.tags or ())
    if all(label.removeprefix("-").isdecimal() for label in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found, key=lambda label: (label != "O", label)))


def _settings(
    kind: str, held: Mapping[str, list[Example]], *, labels: tuple[str, ...], pair: bool
) -> dict[str, Setting]:
    every = [example for examples in held.values() for example in examples]
    if kind == "classify":
        return {"labels": labels, "pair": pair}
    if kind == "regress":
        return {"pair": pair}
    if kind == "tag":
        plain = any(not is_entity(tag) for tag in labels)
        return {"tags": labels, **({"metrics": ("accuracy",)} if plain else {})}
    if kind == "choose":
        return {"choices": max(len(one.seconds) for one in every if isinstance(one, Choice))}
    if kind == "answer":
        asked = [one for one in every if isinstance(one, Question)]
        impossible = any(one.answers == () for one in asked)
        chinese = not impossible and _is_chinese("".join(one.passage for one in asked[:100]))
        return {"impossible": impossible, "language": "chinese" if chinese else "english"}
    return {}


def _notes(settings: Mapping[str, Setting]) -> tuple[str, ...]:
    """What was decided by the look of the examples."""
    tags = settings.get("tags")
    if "metrics" not in settings or not isinstance(tags, tuple):
        return ()
    odd = next(tag for tag in tags if not is_entity(tag))
    return (f"tags such as {odd} name no entities: accuracy is what counts",)


def _is_chinese(text: str) -> bool:
    """Whether words have no spaces between them, so that scores go by characters."""
    return len(re.findall(f"[{HAN}]", text)) * 3 > len(text)
