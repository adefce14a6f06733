"""Self-attention relations: a teacher's queries, keys and values as targets (MiniLMv2 §3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from clozelab.contracts import Blocks, Corrupted, Hidden, Targets
from clozelab.errors import UserError
from clozelab.objectives.objective import Weighted, Widths, every
from clozelab.ranges import NonNegativeFloat, PositiveInt, largest_divisor

if TYPE_CHECKING:
    from clozelab.objectives.heads.relating import Relating


@dataclass(frozen=True)
class Relations(Weighted):
    """The KL divergence of a student's relations between tokens from its teacher's (§3.1).

    Queries of all heads are concatenated and split into `heads` relation heads; the relation of a
    token is the softmax of its scaled products with the queries of its block; likewise for keys
    and values. The student's last layer is compared with one of the teacher's. Their widths, depths
    and attention heads may differ.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"projections"})
    reads: ClassVar[tuple[str, ...]] = ()  # it needs the last layer's projections, not its output
    needs_teacher: ClassVar[bool] = True
    own_size: ClassVar[bool] = True

    heads: PositiveInt = 64  # §4.1: 48 for a base teacher, 64 for a large one
    teacher_layer: int = -1  # from 0, or from the end; §4.1: of a large teacher not the last
    queries: NonNegativeFloat = 1.0  # the weight of each kind of relation
    keys: NonNegativeFloat = 1.0
    values: NonNegativeFloat = 1.0

    def parameters(self, encoder: Widths, vocabulary: int) -> dict[str, int]:
        """None: relations have no weights."""
        return {}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """Every token; the labels only mark real ones."""
        return every(blocks)

    def build(
        self, encoder: Widths, vocabulary: int, *, teacher_width: int | None = None
    ) -> Relating:
        """The head, which has no weights."""
        from clozelab.objectives.heads.relating import Relating

        return Relating(self)

    def check_encoder(self, encoder: Any) -> None:
        """Refuse a student whose hidden size the relation heads do not divide."""
        self._check_width(encoder.hidden_size, "encoder.hidden_size =")

    def check_teacher(self, encoder: Any) -> None:
        """Refuse a teacher of another width, without queries, keys and values, or that layer."""
        if "projections" not in encoder.provides or encoder.causal:
            raise UserError(
                "relations are between the queries, keys and values of tokens that see each other,"
                " which this teacher does not have; use a bidirectional transformer"
            )
        self._check_width(encoder.hidden_size, "the teacher's hidden size of")
        if not -encoder.layers <= self.teacher_layer < encoder.layers:
            raise UserError(
                f"teacher_layer = {self.teacher_layer}: the teacher has the layers 0 to"
                f" {encoder.layers - 1}, or -{encoder.layers} to -1 from its end"
            )

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """The operations of the student's relations, forward and backward; there are no logits."""
        return float(18 * encoder.hidden_size * length)

    def _check_width(self, width: int, whose: str) -> None:
        if width % self.heads:
            raise UserError(
                f"heads = {self.heads} relation heads do not divide {whose} {width}; use a divisor"
                f" of the hidden sizes of student and teacher, for instance"
                f" {largest_divisor(width, self.heads)}"
            )
