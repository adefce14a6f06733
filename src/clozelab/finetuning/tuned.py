"""An encoder with the head of a task, as fine-tuning trains it.

The encoder is trained with the head, or frozen and only its layers are read (BERT §5.3, ELMo §3.2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.config.recipe import Recipe
from clozelab.contracts import Batch, Encoded, Input, Sums
from clozelab.errors import UserError
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.heads.features import Mix, Recurrent
from clozelab.finetuning.heads.head import softened
from clozelab.finetuning.kinds import TaskKind
from clozelab.keys import root


class Tuned(nn.Module):
    """`forward(batch)` gives the sums of the task and of GPT's auxiliary language model."""

    def __init__(self, encoder: nn.Module, task: str, heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.task = task
        self.heads = nn.ModuleDict(heads)
        self.pooler: nn.Module | None = None  # of an imported model, if the head does not use it
        self.features = nn.ModuleDict()  # layers between a frozen encoder and the head
        self.frozen = False
        # In a tuple, so that the teacher is not registered as a submodule of the student.
        self.teacher: tuple[Tuned, ...] = ()
        self.softness = (0.5, 2.0)  # the weight of the true labels, and the temperature

    @property
    def head(self) -> Any:
        """The head of the task."""
        return self.heads[self.task]

    def forward(self, batch: Batch) -> tuple[dict[str, Sums], None]:
        """The sums over one micro-batch, by head."""
        encoded, targets = self.vectors(batch.input), batch.targets[self.task]
        logits = self.head.logits(encoded, batch.input, targets)
        sums: Sums = self.head.loss(logits, targets)
        if self.teacher and self.training:
            sums = self._distillation_sums(logits, sums, batch)
        others = (name for name in batch.targets if name != self.task)
        by_head = {name: self.heads[name](encoded, batch.targets[name]) for name in others}
        return {self.task: sums, **by_head}, None

    def encode(self, inputs: Input, *, keep: bool = False) -> Encoded:
        """Run the encoder without the head."""
        encoded: Encoded = self.encoder(inputs, keep=keep)
        return encoded

    def vectors(self, inputs: Input) -> Encoded:
        """The vectors that the head reads."""
        mixes = "mix" in self.features
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            encoded = self.encode(inputs, keep=mixes)
        if mixes:
            encoded = self.features["mix"](encoded)
        if "recurrent" in self.features:
            encoded = self.features["recurrent"](encoded, inputs)
        return encoded

    def predict(self, batch: Batch) -> Tensor:
        """The head's rows for one batch."""
        encoded = self.vectors(batch.input)
        rows: Tensor = self.head.predict(encoded, batch.input, batch.targets[self.task])
        return rows

    def train(self, mode: bool = True) -> Tuned:
        """Set the mode; a frozen encoder never uses dropout."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def _distillation_sums(self, logits: tuple[Tensor, ...], sums: Sums, batch: Batch) -> Sums:
        """The weighted sum of the loss on the labels and the divergence from the teacher."""
        (teacher,), (share, temperature) = self.teacher, self.softness
        targets = batch.targets[self.task]
        with torch.no_grad():
            answers = teacher.head.logits(teacher.vectors(batch.input), batch.input, targets)
        soft = softened(logits, answers, self.head.labelled(targets), temperature=temperature)
        return {**sums, "loss": share * sums["loss"] + (1 - share) * soft, "soft": soft}


def build(recipe: Recipe, kind: TaskKind, tuning: FinetuneConfig, *, seed: int) -> Tuned:
    """The model with newly initialised weights, which depend only on its settings and the seed."""
    encoder: Any = recipe.encoder
    size = recipe.tokenizer.vocabulary
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(root(seed, "weights") >> 1)
        body = _with_dropout(encoder, tuning).build(size)
        features, width = _features(encoder, tuning)
        model = Tuned(body, kind.name, {kind.name: kind.build(width)})
        if tuning.lm_weight:
            model.heads["causal_lm"] = language_model(recipe, tuning).build(encoder, size)
    for name in encoder.pretraining_parameters:
        body.get_parameter(name).requires_grad_(False)
    model.features.update(features)
    model.frozen = tuning.features != "tuned"
    if model.frozen:
        model.encoder.requires_grad_(False)
    return model


def _with_dropout(encoder: Any, tuning: FinetuneConfig) -> Any:
    """The encoder with the dropout rates of the fine-tuning."""
    rates = {"dropout": tuning.dropout, "attention_dropout": tuning.attention_dropout}
    changed = {n: rate for n, rate in rates.items() if rate is not None and hasattr(encoder, n)}
    return replace(encoder, **changed)


def _features(encoder: Any, tuning: FinetuneConfig) -> tuple[dict[str, nn.Module], int]:
    """The layers between encoder and head, and the width of their vectors."""
    width = encoder.vector_width
    modules: dict[str, nn.Module] = {}
    if tuning.features != "tuned":
        mix = Mix(tuning.features, layers=encoder.layers, width=width)
        modules["mix"], width = mix, mix.width
    if tuning.reader == "bilstm":
        recurrent = Recurrent(width, tuning.hidden)
        modules["recurrent"], width = recurrent, recurrent.width
    return modules, width


def language_model(recipe: Recipe, tuning: FinetuneConfig) -> Any:
    """The auxiliary language model objective beside the task; refused if there is none."""
    for part in recipe.objectives:
        if part.language_model == "causal" and recipe.encoder.causal:
            return part
    raise UserError(
        f"lm_weight = {tuning.lm_weight}: {recipe.name} has no causal language model to"
        " train along with the task; use --set lm_weight=0, or another --protocol"
    )
