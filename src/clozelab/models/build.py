"""A recipe's encoder and objectives as one module: what is compiled, wrapped and saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import Batch, Encoded, Input, Sums
from clozelab.keys import root
from clozelab.objectives import Distillation


class Model(nn.Module):
    """`forward(batch)` gives each objective's sums, and the memory for the batch after."""

    def __init__(self, encoder: nn.Module, heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)
        self.pooler: nn.Module | None = None  # of an imported model, where no head has it
        # Of an imported model: the head's bias where the decoder has another, which is added.
        self.idle_bias: nn.Parameter | None = None
        # In a tuple, so that the teacher's weights are none of the student's.
        self.teacher: tuple[Model, ...] = ()

    def forward(self, batch: Batch) -> tuple[dict[str, Sums], Tensor | None]:
        """The sums over one micro-batch."""
        encoded: Encoded = self.encoder(batch.input)
        sums = {
            name: head(encoded, batch.targets[name])
            for name, head in self.heads.items()
            if name != "distillation"
        }
        if self.teacher:
            sums["distillation"] = self._taught(encoded, batch)
        return sums, encoded.memory

    def _taught(self, encoded: Encoded, batch: Batch) -> Sums:
        (teacher,) = self.teacher
        with torch.no_grad():
            shown: Encoded = teacher.encoder(batch.input)
        predict: Any = self.heads["masked_lm"]
        teach: Any = teacher.heads["masked_lm"]
        head = self.heads["distillation"]
        sums: Sums = head(
            encoded,
            shown,
            batch.targets["distillation"],
            predict=predict.logits,
            teach=teach.logits,
        )
        return sums

    def encode(self, batch: Input, *, keep: bool = False) -> Encoded:
        """The encoder alone."""
        encoded: Encoded = self.encoder(batch, keep=keep)
        return encoded


def build(recipe: Recipe, vocabulary: int, *, seed: int, teacher: Model | None = None) -> Model:
    """The model with fresh weights, the same for the same seed whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(root(seed, "weights") >> 1)
        encoder: Any = recipe.encoder
        heads: dict[str, nn.Module] = {}
        for part in recipe.objectives:
            if isinstance(part, Distillation):
                shape: Any = teacher.encoder.shape if teacher else None
                width = shape.width if shape else None
                head: nn.Module = part.build(encoder, vocabulary, teacher_width=width)
            else:
                head = part.build(encoder, vocabulary)
            heads[slots.use("objectives", part)] = head
        model = Model(encoder.build(vocabulary), heads)
    if teacher is not None:
        model.teacher = (teacher.eval().requires_grad_(False),)
    return model
