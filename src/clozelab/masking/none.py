"""No masking: for objectives that predict every token from one side (GPT, ELMo)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clozelab.contracts import Blocks, Hidden, Vocabulary


@dataclass(frozen=True)
class NoMasking:
    """Hide nothing."""

    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    def hide(self, blocks: Blocks, key: int, *, vocabulary: Vocabulary) -> Hidden:
        """Choose nothing; see `Masking`."""
        return Hidden(np.empty((0, 2), dtype=np.int64))
