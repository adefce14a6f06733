"""Distillation: a teacher's distribution and its states as targets (DistilBERT §2-3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.errors import UserError
from clozelab.objectives.objective import Weighted, Widths, chosen, every
from clozelab.ranges import NonNegativeFloat, above

if TYPE_CHECKING:
    from clozelab.objectives.heads.teacher import Teaching


@dataclass(frozen=True)
class Distillation(Weighted):
    """`soft` × KL divergence at `temperature` (× its square) + `cosine` × distance of last states.

    `over` says at which tokens both are compared. `start` says what the student's layers are
    initialised with: teacher layers spread evenly (12 → 6 gives 0 2 4 7 9 11), those listed in
    `layers`, or "random" weights. The loss on masked tokens is that of a separate `masked_lm`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"targets", "token_vectors"})
    reads: ClassVar[tuple[str, ...]] = ("at",)
    needs_teacher: ClassVar[bool] = True
    compares: ClassVar[Literal["masked"]] = "masked"

    teacher: str = "bert"
    temperature: Annotated[float, above(0, "must be above 0, for instance 2")] = 2.0
    soft: NonNegativeFloat = 5.0
    cosine: NonNegativeFloat = 1.0
    over: Literal["tokens", "targets"] = "tokens"
    start: Literal["spread", "listed", "random"] = "spread"
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.start == "listed") != bool(self.layers):
            raise UserError('layers: list them with start = "listed", and only then')
        if list(self.layers) != sorted(set(self.layers)) or min(self.layers, default=0) < 0:
            raise UserError(f"layers = {list(self.layers)}: list teacher layers from 0, ascending")

    @property
    def also_trains(self) -> str | None:
        """The masked-LM head, whose distribution is compared with the teacher's."""
        return "masked_lm" if self.soft else None

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the head: none for a student as wide as its teacher."""
        return {}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """The tokens at which both are compared; the labels only mark real tokens."""
        return every(blocks) if self.over == "tokens" else chosen(blocks, hidden)

    def build(
        self, encoder: Widths, vocabulary: int, *, teacher_width: int | None = None
    ) -> Teaching:
        """The head; for a teacher of another width it has a projection with fresh weights."""
        from clozelab.objectives.heads.teacher import Teaching

        return Teaching(self, encoder.hidden_size, teacher_width)

    def layer_choice(self, teacher_layers: int, student_layers: int) -> tuple[int, ...]:
        """The teacher layer that initialises each layer of the student; none if "random"."""
        if self.start == "random":
            return ()
        if student_layers > teacher_layers:
            raise UserError(
                f"distillation: a student of {student_layers} layers cannot start from a teacher"
                f' of {teacher_layers}; give it at most as many, or set start = "random"'
            )
        if self.start == "spread":
            spacing = (teacher_layers - 1) / max(1, student_layers - 1)
            return tuple(round(number * spacing) for number in range(student_layers))
        if len(self.layers) != student_layers or self.layers[-1] >= teacher_layers:
            raise UserError(
                f"distillation: layers = {list(self.layers)} must be {student_layers} of the"
                f" teacher's 0 to {teacher_layers - 1}"
            )
        return self.layers
