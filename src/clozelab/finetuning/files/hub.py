"""A dataset of the Hugging Face hub as a table, if `datasets` is installed."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clozelab.errors import UserError
from clozelab.finetuning.files.tables import PACKINGS, Record, Table, existing
from clozelab.remote.access import is_url

_HUB = re.compile(r"hf:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<subset>[\w.-]+))?(?::(?P<split>.+))?")
_OWNER_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_FILES = (".tsv", ".csv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".conll", *PACKINGS)
_SPLITS = {"dev": "validation"}  # our split: the hub's name


def is_hub(name: str) -> bool:
    """Whether a name is a dataset: hf:…, or owner/name if no such file can exist."""
    path = Path(name)
    if is_url(name):
        return False
    if name.startswith("hf:"):
        return True
    bare = _OWNER_NAME.fullmatch(name) is not None and path.suffix.lower() not in _FILES
    return bare and not path.parent.exists() and existing(path) is None


def hub(name: str, split: str) -> Table:
    """The rows of a dataset, hf:owner/name/subset:split, with classes by name."""
    name = name if name.startswith("hf:") else f"hf:{name}"
    match = _HUB.fullmatch(name)
    if match is None:
        raise UserError(
            f"{name} is not a dataset; write hf:owner/name or hf:owner/name/subset:split"
        )
    package = find_spec("datasets")
    if package is None or package.origin is None:  # a folder of that name is no package
        raise UserError(
            f"{name} is read from the Hugging Face hub, which needs another package; pip"
            " install clozelab[datasets]"
        )
    part = match["split"] or _SPLITS.get(split, split)
    try:
        data = import_module("datasets").load_dataset(match["name"], match["subset"], split=part)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name} has no split {part} that can be read ({reason}): check its name, or say"
            f" {name.split(':')[0]}:{match['name']}:SPLIT"
        ) from None
    classes = {column: _classes(feature) for column, feature in data.features.items()}
    rows = [
        Record(f"{name}:{number}", {key: _class_name(row[key], classes[key]) for key in row})
        for number, row in enumerate(data, 1)
    ]
    if not rows:
        raise UserError(f"{name} has an empty split {part}; name another")
    return Table(name, tuple(data.features), rows)


def _classes(feature: Any) -> list[str] | None:
    """The names of the classes of a column or of its lists."""
    inner = getattr(feature, "feature", None)
    names = getattr(feature, "names", None) or getattr(inner, "names", None)
    return list(names) if names else None


def _class_name(value: Any, classes: list[str] | None) -> Any:
    if classes is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_class_name(item, classes) for item in value]
    return None if value is None or value < 0 else classes[value]  # -1: not known
