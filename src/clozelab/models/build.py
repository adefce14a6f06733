"""A recipe's encoder and objectives as one module: what is compiled, wrapped and saved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import Batch, Encoded, Input, Sums
from clozelab.keys import root
from clozelab.objectives import PARTS, language_models
from clozelab.objectives.heads.reading import Reads, StatesRead, reading

WORDS = "encoder.embeddings.words.weight"  # the embedding table of tokens
DELTA = "encoder.embeddings.delta"  # what the encoder adds to the embedding table of its generator


class PretrainingModel(nn.Module):
    """`forward(batch)` gives each objective's sums, and the memory for the next batch.

    `reads` says at which positions each objective reads hidden states; by default at all.
    """

    def __init__(
        self, encoder: nn.Module, heads: dict[str, nn.Module], reads: Reads | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)
        self.reads = {name: (reads or {}).get(name) for name in heads}
        # The objectives that distil a teacher, each with the head whose logits it compares, if any.
        self.taught: dict[str, str | None] = {}
        for name in heads:
            if PARTS[name].needs_teacher:
                compared = PARTS[name].compares
                self.taught[name] = language_models(heads, compared)[0] if compared else None
        # Options by which they ask student and teacher for more than hidden states.
        asks: list[Any] = [head.asks for head in heads.values() if hasattr(head, "asks")]
        self.asked: tuple[dict[str, Any], dict[str, Any]] = asks[0] if asks else ({}, {})
        # The objectives whose modules generate the input of the encoder.
        self.writers = tuple(name for name in heads if PARTS[name].generates_input)
        self.pooler: nn.Module | None = None  # of an imported model, if no head uses it
        # Of an imported model: the bias of the head, if its decoder adds another one instead.
        self.idle_bias: nn.Parameter | None = None
        # In a tuple, so that the teacher is not registered as a submodule of the student.
        self.teacher: tuple[PretrainingModel, ...] = ()

    def forward(self, batch: Batch) -> tuple[dict[str, Sums], Tensor | None]:
        """The objectives' sums over one micro-batch, and the encoder's memory."""
        sums: dict[str, Sums] = {}
        for name in self.writers:
            inputs, sums[name] = self.heads[name](batch.input, batch.targets[name])
            batch = batch._replace(input=inputs)
        options, teacher_options = self.asked if self.teacher else ({}, {})
        ids = batch.input.ids
        read = self._states_read(batch)
        if read is not None:
            batch, ids = batch._replace(targets=read.targets), ids.index_select(0, read.at)
            options, teacher_options = (
                {**options, "at": read.at},
                {**teacher_options, "at": read.at},
            )
        encoded: Encoded = self.encoder(batch.input, **options)
        encoded = encoded._replace(ids=ids, input=batch.input)
        for name, head in self.heads.items():
            if name not in self.taught and name not in self.writers:
                sums[name] = head(encoded, batch.targets[name])
        if self.teacher:
            sums |= self._distillation_sums(encoded, batch, teacher_options)
        return sums, encoded.memory

    def _states_read(self, batch: Batch) -> StatesRead | None:
        """The tokens whose states are read, or None if an encoder always computes all states."""
        encoders: list[Any] = [self.encoder, *(teacher.encoder for teacher in self.teacher)]
        if any("chosen_tokens" not in encoder.shape.provides for encoder in encoders):
            return None
        excluded = {*self.writers, *(() if self.teacher else self.taught)}
        reads = {name: self.reads[name] for name in self.heads if name not in excluded}
        return reading(batch.targets, reads, len(batch.input.ids))

    def _distillation_sums(
        self, encoded: Encoded, batch: Batch, options: Mapping[str, Any]
    ) -> dict[str, Sums]:
        """The sums of the objectives that compare the model with its teacher."""
        (teacher,) = self.teacher
        with torch.no_grad():
            teacher_encoded: Encoded = teacher.encoder(batch.input, **options)
        sums = {}
        for name, head in self.taught.items():
            logits: dict[str, Any] = {}
            if head is not None:
                predict, teach = self.heads[head], teacher.heads[head]
                logits = {"predict": predict.logits, "teach": teach.logits}
            sums[name] = self.heads[name](encoded, teacher_encoded, batch.targets[name], **logits)
        return sums

    def keep_heads(self, names: Collection[str]) -> None:
        """Drop the heads that are not named."""
        encoder: Any = self.encoder
        for name in {*self.heads} - {*names}:
            if name in self.writers:
                encoder.leave_generator()
            del self.heads[name]
        self.writers = tuple(name for name in self.writers if name in names)

    def encode(self, batch: Input, *, keep: bool = False) -> Encoded:
        """Run the encoder without the heads."""
        encoded: Encoded = self.encoder(batch, keep=keep)
        return encoded


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter by name, with the encoder's embedding table as it uses it.

    Beside a generator that is the sum of the generator's table and a delta (DeBERTa-v3 §3.3).
    """
    weights = {name: value.detach() for name, value in module.named_parameters()}
    delta = weights.pop(DELTA, None)
    return weights if delta is None else {**weights, WORDS: weights[WORDS] + delta}


def build(
    recipe: Recipe, vocabulary: int, *, seed: int, teacher: PretrainingModel | None = None
) -> PretrainingModel:
    """The model with newly initialised weights, which depend only on the recipe and the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(root(seed, "weights") >> 1)
        encoder: Any = recipe.encoder
        parts: tuple[Any, ...] = recipe.objectives
        shape: Any = teacher.encoder.shape if teacher else None
        taught = {"teacher_width": shape.hidden_size if shape else None}
        heads: dict[str, nn.Module] = {}
        for part in sorted(parts, key=lambda part: part.head_of is not None):
            name, options = slots.use("objectives", part), taught if part.needs_teacher else {}
            if part.head_of is not None:
                heads[name] = heads[part.head_of]  # saved once, under that name
            else:
                heads[name] = part.build(encoder, vocabulary, **options)
        reads = {slots.use("objectives", part): part.reads for part in parts}
        model = PretrainingModel(encoder.build(vocabulary), heads, reads)
    for name in model.writers:
        writer: Any = model.heads[name]
        writer.share_with(model.encoder)
    if teacher is not None:
        model.teacher = (teacher.eval().requires_grad_(False),)
    return model
