"""A module with parts from outside, and a registry that forgets them after each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clozelab import registry

MODULE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import clozelab
from clozelab.contracts import Blocks, Hidden, Vocabulary


@clozelab.register("masking", "each_nth")
@dataclass(frozen=True)
class EachNth:
    """Hide every n-th token."""

    provides: ClassVar[frozenset[str]] = frozenset({"targets"})
    needs: ClassVar[frozenset[str]] = frozenset()

    n: int = 7

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        chosen = np.flatnonzero((blocks.positions % self.n == 0) & ~blocks.fixed)
        return Hidden(np.stack([chosen, chosen + 1], axis=1))


@clozelab.register("measure", "layers")
def layers(model, corpus):
    """How deep a model is."""
    return 10.0 * model.recipe.encoder.layers
'''
NAME = "made_for_tests"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a test registers is gone after it; its module can be imported."""
    outside = {slot: dict(parts) for slot, parts in registry._outside.items()}
    tables = {slot: dict(parts) for slot, parts in registry._tables.items()}
    monkeypatch.delenv(registry.IMPORTS, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    registry.load_given.cache_clear()
    yield
    os.environ.pop(registry.IMPORTS, None)
    sys.modules.pop(NAME, None)
    registry._outside.update(outside)
    registry.load_given.cache_clear()
    registry._failures.clear()
    for slot, parts in tables.items():
        registry._tables[slot].clear()
        registry._tables[slot].update(parts)
