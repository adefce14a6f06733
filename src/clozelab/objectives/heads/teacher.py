"""Learning from a teacher (DistilBERT §2-3): its distributions, states and initial layers.

The caller runs the teacher, in evaluation mode, on the student's input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozelab.contracts import Encoded, Sums, Targets
from clozelab.errors import UserError
from clozelab.layers import Linear, initialise
from clozelab.objectives.heads.chunks import add_up
from clozelab.objectives.heads.vocabulary import wide

if TYPE_CHECKING:
    from clozelab.objectives.distillation import Distillation

Predict = Callable[[Tensor, Tensor | None], Tensor]  # states [K, W] and a table → logits [K, V]


class Teaching(nn.Module):
    """The KL divergence from a teacher's distributions and the cosine distance of last states.

    States of another width than the teacher's (`teacher_width`) are compared after a projection.
    """

    def __init__(self, part: Distillation, width: int, teacher_width: int | None) -> None:
        super().__init__()
        # Differs from DistilBERT §2: its student is as wide as its teacher.
        theirs = teacher_width or width
        self.projection = Linear(width, theirs) if theirs != width else None
        self.temperature, self.soft, self.cosine = part.temperature, part.soft, part.cosine
        initialise(self, width)

    def forward(
        self,
        student: Encoded,
        teacher: Encoded,
        targets: dict[str, Tensor],
        *,
        predict: Predict,
        teach: Predict,
    ) -> Sums:
        """The weighted loss at the targets, their number, and both of its terms.

        `predict` and `teach` compute the logits of the student's and the teacher's masked_lm.
        """
        labels_K = targets["labels"]
        student_KW = student.predicting.index_select(0, targets["at"])
        teacher_KW = teacher.predicting.index_select(0, targets["at"]).detach()

        def divergence(mine_KW: Tensor, theirs_KW: Tensor, labels_K: Tensor) -> tuple[Tensor]:
            with torch.no_grad():
                target_KV = self._log_probabilities(teach(theirs_KW, teacher.table))
            log_p_KV = self._log_probabilities(predict(mine_KW, student.table))
            kl_KV = functional.kl_div(log_p_KV, target_KV, reduction="none", log_target=True)
            return (self.temperature**2 * _masked_sum(kl_KV.sum(dim=1), labels_K),)

        soft = cosine = wide(student_KW).new_zeros(())
        if self.soft:
            assert student.table is not None, "distributions are over the tokens of a table"
            rows = (student_KW, teacher_KW, labels_K)
            (soft,) = add_up(divergence, rows, vocabulary=len(student.table))
        if self.cosine:
            near_KW = student_KW if self.projection is None else self.projection(student_KW)
            cosine_K = functional.cosine_similarity(wide(near_KW), wide(teacher_KW))
            cosine = _masked_sum(1 - cosine_K, labels_K)
        loss = self.soft * soft + self.cosine * cosine
        count = (labels_K != Targets.IGNORED).sum()
        return {"loss": loss, "count": count, "soft": soft, "cosine": cosine}

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        return functional.log_softmax(wide(logits) / self.temperature, dim=1)


def _masked_sum(values_K: Tensor, labels_K: Tensor) -> Tensor:
    """The sum over the targets with a label."""
    return values_K.where(labels_K != Targets.IGNORED, 0.0).sum()


_EQUAL_SETTINGS = (
    *("hidden_size", "heads", "intermediate_size", "embedding_size", "norm", "embedding_norm"),
    "position_offset",
    *("position_embedding", "gated", "bias", "normalisation", "qk_norm"),
    *("position_rows", "position_terms", "position_projections", "position_norm"),
)


def start_from(
    teacher_state: dict[str, Tensor],
    student_state: dict[str, Tensor],
    *,
    choice: tuple[int, ...],
    teacher: Any,
    student: Any,
) -> dict[str, Tensor]:
    """The student's weights with embeddings, masked_lm head and chosen layers of the teacher.

    `choice` gives a teacher layer for every layer of the student. A student without types gets the
    teacher's type 0 added to every position, or to every token if there is no position table: that
    shifts all logits of a tied head equally, which changes no distribution. Heads that the teacher
    lacks stay the student's.
    """
    assert len(choice) == student.layers, "one teacher layer for each of the student's"
    _check(teacher_state, student_state, teacher, student)
    # Differs from DistilBERT's code: it drops the types, which were added to every token.
    folds_types = teacher.types and not student.types
    tables = [f"encoder.embeddings.{name}.weight" for name in ("positions", "words")]
    folded = next((name for name in tables if name in student_state), None)
    state = {}
    for name, old in student_state.items():
        source = _source_name(name, choice, teacher, student)
        if source is None or source not in teacher_state:
            state[name] = old
        elif name in tables:
            rows = teacher_state[source]
            adds = folds_types and name == folded
            shift = teacher_state["encoder.embeddings.types.weight"][0] if adds else 0
            state[name] = (rows + shift)[: len(old)].to(old, copy=True)
        elif name == "encoder.embeddings.types.weight":
            rows = teacher_state[source][: len(old)].to(old)
            state[name] = torch.cat([rows, old[len(rows) :]])
        else:
            state[name] = teacher_state[source].to(old, copy=True)
    return state


def _source_name(name: str, choice: tuple[int, ...], teacher: Any, student: Any) -> str | None:
    """The teacher's parameter that initialises the student's `name`; None if there is none."""
    prefixes = ("encoder.embeddings.", "encoder.norm.", "encoder.relative", "heads.masked_lm.")
    if name.startswith(prefixes):
        return name
    for half in ("attention", "ffn"):
        if name.startswith(f"encoder.{half}."):
            copy, rest = name.removeprefix(f"encoder.{half}.").split(".", 1)
            # A copy that several layers share is initialised as the first of them.
            layer = -(-int(copy) * student.layers // student.copies(half))
            teacher_copy = choice[layer] * teacher.copies(half) // teacher.layers
            return f"encoder.{half}.{teacher_copy}.{rest}"
    return None


def _check(
    teacher_state: dict[str, Tensor], student_state: dict[str, Tensor], teacher: Any, student: Any
) -> None:
    """Refuse a student that the teacher's weights do not fit."""
    if type(student) is not type(teacher) or not student.block_settings:
        raise UserError(
            "distillation: only a transformer can start from the layers of another"
            ' transformer; set start = "random"'
        )
    pairs = {name: (getattr(student, name), getattr(teacher, name)) for name in _EQUAL_SETTINGS}
    words = "encoder.embeddings.words.weight"
    pairs["vocabulary"] = (len(student_state[words]), len(teacher_state[words]))
    unequal = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if unequal:
        name, (mine, theirs) = next(iter(unequal.items()))
        fix = "make them equal"
        if unequal.keys() <= {field.name for field in fields(student)}:
            each = (f"--set encoder.{name}={pair[1]}" for name, pair in unequal.items())
            fix = f"give {' '.join(each)}"
        raise UserError(
            f"distillation: the student's {name} is {mine} and the teacher's {theirs}, so it"
            f' cannot start from the teacher; {fix}, or set start = "random" in its objective'
        )
    if student.positions > teacher.positions:
        raise UserError(
            f"distillation: the student has {student.positions} positions and the teacher only"
            f' {teacher.positions}; give the student fewer, or set start = "random"'
        )
