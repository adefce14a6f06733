"""A pretraining job: a recipe on corpora, with a seed, a budget and the weights to begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.models.build import PretrainingModel
from clozelab.models.model import Model
from clozelab.pretraining.early_stopping import Adaptation
from clozelab.pretraining.source import rows_of_a_group
from clozelab.ranges import largest_divisor
from clozelab.remote.access import shown
from clozelab.runs.diagnostics import followed_objective
from clozelab.text.store.corpus import Store, store_identity
from clozelab.text.store.manifest import NOT_STATED
from clozelab.training.budget import Budget


@dataclass(frozen=True)
class PretrainJob:
    """What to pretrain, on which corpora and from which weights."""

    recipe: Recipe  # fitted to the stores
    stores: Sequence[Store]
    seed: int = 0
    budget: Budget | None = None
    start: Mapping[str, Tensor] | None = None  # weights to begin with, by name; others are fresh
    teacher: PretrainingModel | None = None
    origin: str | None = None  # where the weights or the teacher came from
    notes: tuple[str, ...] = ()
    # Probes the model's layers during training: (model, device) → scores by task and metric.
    probe: Callable[[Model, torch.device], dict[str, dict[str, float]]] | None = None
    probe_constants: Mapping[str, float] = field(default_factory=dict)  # of answers always the same
    adaptation: Adaptation | None = None

    def check(self, *, processes: int) -> None:
        """Refuse a step that so many processes cannot share."""
        sequences = self.recipe.schedule.batch_size
        group = rows_of_a_group(self.recipe, sequences)
        if group > 1 and sequences // group < processes:
            most = largest_divisor(sequences, sequences // processes)
            smaller = f"give the objective in_batch = {most}, or " if most > 1 else ""
            raise UserError(
                f"{self.recipe.name}: {processes} processes share a step by groups of texts that"
                f" are told apart, and schedule.batch_size = {sequences} is {sequences // group} of"
                f" {group}; {smaller}use fewer"
            )
        if "stream" not in self.recipe.blocks.provides:
            return
        if len(self.stores) > 1:
            raise UserError(
                f"--data: {self.recipe.name} reads one text in order, but {len(self.stores)}"
                " corpora are given; build one corpus from all the texts"
            )
        if sequences % processes:
            raise UserError(
                f"schedule.batch_size = {sequences} cannot be split over {processes} processes;"
                f" use a multiple of {processes}"
            )

    def identity(self) -> list[dict[str, Any]]:
        """The identity of the stores, by which a resume checks that they are the same."""
        return [store_identity(store) for store in self.stores]

    def facts(self) -> dict[str, Any]:
        """The facts of the job that are not in its recipe, for machine.toml."""
        origin, budget, adapts = self.origin, self.budget, self.adaptation
        if origin is not None:  # a hub name is no path
            origin = str(Path(origin).resolve()) if Path(origin).exists() else shown(origin)
        stores, licenses = self.identity(), [corpus.license for corpus, _ in self.stores]
        return {
            "seed": self.seed,
            "budget_seconds": budget.amount if budget and budget.kind == "seconds" else None,
            "data": [f"{store['path']}:{store['weight']:g}" for store in stores],
            "fingerprint": [store["made"] for store in stores],
            "license": [one or NOT_STATED for one in licenses] if any(licenses) else None,
            "from": None if self.teacher else origin,
            "teacher": origin if self.teacher else None,
            "adaptation": adapts.facts(followed_objective(self.recipe)) if adapts else None,
        }
