"""`clozelab.testing.check_part`: every part of clozelab keeps it, and planted faults do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from clozelab import registry
from clozelab.blocks.sentences import FullSentences
from clozelab.config import slots
from clozelab.contracts import Blocks, Documents, Hidden, Plan, Vocabulary
from clozelab.finetuning.kinds import KINDS
from clozelab.masking.token import Token
from clozelab.objectives.language_models import MaskedLm
from clozelab.objectives.spans import SpanBoundary
from clozelab.testing import check_part, example_blocks
from clozelab.training.optimiser import Adamw, Optimiser

# What a part cannot be without.
NEEDED: dict[str, dict[str, Any]] = {
    "transformer": {
        "layers": 1,
        "heads": 2,
        "hidden_size": 8,
        "intermediate_size": 16,
        "embedding_size": 8,
    },
    "relative": {"layers": 1, "heads": 2, "hidden_size": 8, "intermediate_size": 16},
    "lstm": {"layers": 1, "hidden_size": 8, "cell_size": 16, "filters": ((1, 4), (2, 4))},
    **{name: {"learning_rate": 1e-3} for name in ("adamw", "bert_adam", "lamb", "muon")},
    "steps": {"steps": 20, "warmup": 4, "batch_size": 8},
    "stream_pair": {"length": 24, "reuse": 10, "rows": 4},
    "bidirectional_lm": {"words": 50, "samples": 50},
    "classify": {"labels": ("no", "yes")},
    "tag": {"tags": ("O", "B")},
}
ALL = [(slot, name) for slot, table in slots.SLOTS.items() for name in table]


@pytest.mark.parametrize(("slot", "name"), ALL, ids=[f"{slot}-{name}" for slot, name in ALL])
def test_every_part_of_clozelab_is_one(slot: str, name: str) -> None:
    check_part(slots.SLOTS[slot][name](**NEEDED.get(name, {})))


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_task_is_one(name: str) -> None:
    check_part(KINDS[name](**NEEDED.get(name, {})))


@dataclass(frozen=True)
class Restless(Token):
    """Its choice depends on its batch-mates."""

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose tokens."""
        return super().hide(blocks, key + len(blocks), vocabulary=vocabulary)


@dataclass(frozen=True)
class Greedy(Token):
    """It hides specials."""

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose everything."""
        at = np.arange(len(blocks.ids))
        return Hidden(np.stack([at, at + 1], axis=1))


@dataclass(frozen=True)
class Long(FullSentences):
    """Its blocks are longer than it says."""

    def plan(self, documents: Documents, key: int) -> Plan:  # type: ignore[override]
        """Plan a pass."""
        return FullSentences(self.length + 9).plan(documents, key)


@dataclass(frozen=True)
class Miscounted(MaskedLm):
    """It has more parameters than it says."""

    def parameters(self, encoder: Any, vocabulary: int) -> dict[str, int]:
        """Too few."""
        return {"bias": 1}


@dataclass(frozen=True)
class OneSided(SpanBoundary):
    """It reads both neighbours of a span and speaks of one."""

    reads: ClassVar[tuple[str, ...]] = ("left",)


@dataclass(frozen=True)
class Upwards(Adamw):
    """It climbs."""

    def build(self, parameters: Any, *, scale: Any = None) -> list[Any]:
        """With a step in the wrong direction."""
        (built,) = super().build(parameters, scale=scale)
        built.param_groups[0]["maximize"] = True
        built.param_groups[1]["maximize"] = True
        return [built]


class Unfrozen:
    """No dataclass."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    build = Optimiser.build


@pytest.mark.parametrize(
    ("slot", "part", "sentence"),
    [
        ("masking", Restless, "depends on its batch-mates"),
        ("masking", Greedy(), "a special is hidden"),
        ("blocks", Long(20), "longer than length"),
        ("objectives", Miscounted, "miscounts"),
        ("objectives", OneSided, "reads states that"),
        ("optimiser", Upwards(1e-2), "quadratic"),
    ],
)
def test_planted_faults_are_found(slot: str, part: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_part(part, slot=slot)


def test_what_is_no_part_is_refused() -> None:
    with pytest.raises(AssertionError, match="is in no slot; register it"):
        check_part(Restless)
    with pytest.raises(ValueError, match="frozen dataclass"):
        check_part(Unfrozen, slot="optimiser")


def test_a_measure_is_a_function_and_is_found_where_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(*_: Any) -> float:
        return 1.0

    monkeypatch.setitem(registry._outside, "measure", {"mine": (measure, __name__)})
    check_part(measure)
    with pytest.raises(AssertionError, match="3 is in no slot"):
        check_part(3)
    with pytest.raises(ValueError, match="has no __call__"):
        check_part(3, slot="measure")


def test_the_examples_are_what_they_say() -> None:
    blocks = example_blocks()
    assert len(blocks) == 6 and (blocks.lengths == 2).sum() == 1
    assert replace(blocks).numbers.tolist() == [40, 7, 3, 99, 12, 0]
