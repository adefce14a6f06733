"""Probes while a model is trained: points on its curve, without a change to its training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clozelab.models.model import Model
from clozelab.runs.events import drained
from clozelab.scoring.frozen import FrozenEncoder
from clozelab.scoring.probe import follow
from clozelab.scoring.probed import ProbeTask


class TrainingProbes:
    """Some tasks, read once; called with a model, the scores of each task at its best layer.

    Nothing is drawn, and no state of the training is touched.
    """

    def __init__(self, tasks: Sequence[ProbeTask], *, most: int) -> None:
        self.tasks, self.most = tasks, most
        self._encoder: FrozenEncoder | None = None

    def __call__(self, model: Model, device: torch.device) -> dict[str, dict[str, float]]:
        """The scores by task, each with the layer that they are of."""
        # The same model at another step: its texts are laid out already.
        if self._encoder is None or self._encoder.loaded.module is not model.module:
            self._encoder = FrozenEncoder(model, device, keep_texts=True)
        encoder = self._encoder
        scores: dict[str, dict[str, float]] = {}
        for task in self.tasks:
            work = follow(task, encoder, layers=range(encoder.layers), most=self.most)
            result = drained(work)
            scores[task.name] = {**result.scores, "layer": float(result.layer)}
        return scores
