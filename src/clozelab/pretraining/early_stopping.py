"""What an adaptation has that other runs have not: early stopping, by held-out loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from torch import Tensor

from clozelab.text.store.corpus import Corpus, store_identity
from clozelab.training.checkpoint import Checkpoint

_PREFIX = "best."  # of the tensors of a checkpoint that are these weights


@dataclass(frozen=True)
class Adaptation:
    """What a run has that adapts a model to other text.

    Both texts are measured from before the first step. The weights with the lowest loss of the new
    text are kept, and the run ends when it stops falling.
    """

    general: Corpus | None  # text like that which the model learned from
    patience: int  # evaluations without improvement; 0: it never ends early
    request: Mapping[str, Any]  # what else was asked for, and is recorded

    def facts(self, objective: str) -> dict[str, Any]:
        """What machine.toml says of it, by which it is resumed; the objective is compared."""
        facts = {"patience": self.patience, **self.request, "objective": objective}
        if self.general is not None:
            known = store_identity((self.general, 1.0))
            facts |= {"general": known["path"], "general_fingerprint": known["made"]}
        return facts


@dataclass(eq=False)
class EarlyStopping:
    """Ends a run when `patience` evaluations in a row brought no lower loss.

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
    def exhausted(self) -> bool:
        """Whether the loss has stopped falling."""
        return 0 < self.patience <= self.waited

    def see(self, step: int, loss: float, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Take an evaluation into account."""
        if self.loss is None or loss < self.loss:
            self.loss, self.step, self.waited, self.weights = loss, step, 0, weights()
        else:
            self.waited += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint says of them, beside the weights."""
        return {"loss": self.loss, "step": self.step, "waited": self.waited}

    def tensors(self) -> dict[str, Tensor]:
        """The weights, as a checkpoint has them beside the last ones."""
        return {f"{_PREFIX}{name}": value for name, value in self.weights.items()}

    def recall(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        for name, value in checkpoint.state().get("best", {}).items():
            setattr(self, name, value)
        saved = checkpoint.tensors().items()
        self.weights = {n.removeprefix(_PREFIX): t for n, t in saved if n.startswith(_PREFIX)}
