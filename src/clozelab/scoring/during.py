"""Probes while a model is trained: points on its curve, without a change to its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from clozelab.errors import UserError
from clozelab.models.model import Model
from clozelab.nearest import remedy
from clozelab.runs.events import drained
from clozelab.scoring.frozen import FrozenEncoder
from clozelab.scoring.likelihood import scorer
from clozelab.scoring.pairs import NAMED_PAIRS, PairFiles, find_pairs
from clozelab.scoring.probe import follow
from clozelab.scoring.probed import ProbeTask, known, tasks_of


class TrainingProbes:
    """Tasks and minimal pairs by which a model is probed during its training.

    Nothing is drawn at random, and the state of the training is not changed.
    """

    def __init__(
        self, tasks: Sequence[ProbeTask], pairs: Sequence[PairFiles] = (), *, most: int
    ) -> None:
        self.tasks, self.pairs, self.most = tasks, pairs, most
        self._encoder: FrozenEncoder | None = None

    def constants(self) -> dict[str, float]:
        """The score of a constant answer, by task and metric."""
        scores = {f"{pairs.name} accuracy": 50.0 for pairs in self.pairs}
        for task in self.tasks:
            constant = task.kind.constant(task.scored_rows.examples)
            scores |= {f"{task.name} {metric}": score for metric, score in constant.items()}
        return scores

    def __call__(self, model: Model, device: torch.device) -> dict[str, dict[str, float]]:
        """The scores by task; those of a probe with the layer that was chosen."""
        # The same model at a later step keeps its tokenised texts.
        if self._encoder is None or self._encoder.loaded.module is not model.module:
            self._encoder = FrozenEncoder(model, device, texts={})
        encoder = self._encoder
        scores: dict[str, dict[str, float]] = {}
        for pairs in self.pairs:
            # A model trained in half precision has kernels for that precision only.
            trained: Any = model.module.encoder
            half: Literal["bf16"] | None = None if trained.precision is None else "bf16"
            text_scorer = scorer(model)
            work = pairs.follow(text_scorer, most=self.most, device=device.type, precision=half)
            scores[pairs.name] = {"accuracy": drained(work).all.accuracy}
        for task in self.tasks:
            probed = drained(follow(task, encoder, layers=range(encoder.layers), most=self.most))
            scores[task.name] = {**probed.scores, "layer": float(probed.layer)}
        return scores


def training_probes(words: Sequence[str], *, root: str | None, most: int) -> TrainingProbes:
    """The probes of these tasks and sets of minimal pairs, whose files are checked."""
    names = [*known(), *NAMED_PAIRS]
    for word in words:
        if word not in names:
            raise UserError(f"{word}: is not a task to probe; {remedy(word, names)}")
    pairs = [find_pairs(word, root=root, columns={}) for word in words if word in NAMED_PAIRS]
    tasks = tasks_of([word for word in words if word not in NAMED_PAIRS], root=root)
    for task in tasks:
        task.check()
    return TrainingProbes(tasks, pairs, most=most)
