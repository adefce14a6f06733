"""Small labelled files for tests, and what is said of those that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clozelab.errors import UserError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        read()
    return str(caught.value)
