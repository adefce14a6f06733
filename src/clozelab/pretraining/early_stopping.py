"""What only adaptations have: early stopping by held-out loss, and their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from torch import Tensor

from clozelab.text.store.corpus import Corpus, store_identity
from clozelab.training.checkpoint import Checkpoint

_PREFIX = "best."  # of the names of these weights in a checkpoint


@dataclass(frozen=True)
class Adaptation:
    """The settings of a run that adapts a model to other text.

    Both texts are measured from before the first step on. The weights with the lowest loss on the
    new text are kept, and the run ends when that loss stops falling.
    """

    general: Corpus | None  # text like that which the model learned from
    patience: int  # evaluations without improvement; 0: it never ends early
    request: Mapping[str, Any]  # what else was asked for, and is recorded

    def facts(self, objective: str) -> dict[str, Any]:
        """What machine.toml records, for a resume; the loss of `objective` is compared."""
        facts = {"patience": self.patience, **self.request, "objective": objective}
        if self.general is not None:
            identity = store_identity((self.general, 1.0))
            facts |= {"general": identity["path"], "general_fingerprint": identity["made"]}
        return facts


@dataclass(eq=False)
class EarlyStopping:
    """Ends a run after `patience` evaluations in a row without a lower loss.

    The weights with the lowest loss are kept, and the run ends with them.
    """

    objective: str  # whose held-out loss is compared
    patience: int  # 0: it never ends early
    _: KW_ONLY
    loss: float | None = None
    step: int = 0  # after which the loss was lowest
    waited: int = 0  # evaluations since then
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the run ends early, if the loss has stopped falling; otherwise empty."""
        if not 0 < self.patience <= self.waited:
            return ""
        return f"the loss was lowest after step {self.step:,} (patience {self.patience})"

    def see(self, step: int, loss: float, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Take the loss of an evaluation into account; keeps the weights if it is the lowest."""
        if self.loss is None or loss < self.loss:
            self.loss, self.step, self.waited, self.weights = loss, step, 0, weights()
        else:
            self.waited += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint records, besides the weights."""
        return {"loss": self.loss, "step": self.step, "waited": self.waited}

    def tensors(self) -> dict[str, Tensor]:
        """The kept weights under their names in a checkpoint."""
        return {f"{_PREFIX}{name}": value for name, value in self.weights.items()}

    def recall(self, checkpoint: Checkpoint) -> None:
        """Restore the state from a checkpoint."""
        for name, value in checkpoint.state().get("best", {}).items():
            setattr(self, name, value)
        self.weights = checkpoint.tensors_named(_PREFIX)
