"""Probe a frozen model: how much of a task a linear map reads off each of its layers.

Features of a row of two excerpts u and v are u, v, |u - v| and u·v (InferSent, arXiv:1705.02364
§3.1). Similarity tasks have no fit: their score is the correlation of cosines with judgements.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.contracts import Ints
from clozelab.errors import UserError
from clozelab.models.embed import Layer, check_layer
from clozelab.nearest import remedy
from clozelab.scoring.frozen import FrozenEncoder
from clozelab.scoring.linear import Doubles, Fit, fit
from clozelab.scoring.probed import Excerpt, ProbeRows, ProbeTask

_PARTS = 50  # of the scored examples, for the jackknife


@dataclass(frozen=True)
class LayerScores:
    """The scores of one layer."""

    layer: int  # 0 is the embedding
    scores: dict[str, float]
    penalty: float | None = None  # of the fit, chosen by cross-validation
    loss: float | None = None  # of the fit, on held-out folds


@dataclass(frozen=True)
class ProbeResult:
    """The result of a task on one model."""

    task: str
    split: str
    metrics: tuple[str, ...]
    trained: int  # rows that the probe was fitted on; 0 by cosine
    scored: int  # examples that were scored
    layers: tuple[LayerScores, ...]
    layer: int  # the chosen one: of lowest loss in cross-validation; by cosine the last
    errors: dict[str, float]  # the standard error of its scores over the scored examples
    right: NDArray[np.bool_] | None = None  # which examples, if there is an accuracy

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the chosen layer."""
        return next(scored.scores for scored in self.layers if scored.layer == self.layer)

    def as_json(self) -> dict[str, Any]:
        """The JSON values of a record."""
        fields = {name: value for name, value in asdict(self).items() if name != "right"}
        return {**fields, "scores": self.scores}


@dataclass(frozen=True, repr=False)
class Probes:
    """The results of some tasks on one model."""

    model: str
    results: tuple[ProbeResult, ...]

    def __getitem__(self, task: str) -> ProbeResult:
        """One task's result."""
        results = {result.task: result for result in self.results}
        if task not in results:
            raise UserError(f"{task}: was not probed; {remedy(str(task), results)}")
        return results[task]

    def __repr__(self) -> str:
        return "\n".join(
            f"{result.task} {metric.replace('_', ' ')} {score:.2f} at layer {result.layer}"
            f" ({result.scored:,} examples)"
            for result in self.results
            for metric, score in result.scores.items()
        )

    def scores(self) -> dict[str, dict[str, float]]:
        """The scores of every task, at the chosen layer."""
        return {result.task: result.scores for result in self.results}


def layers_of(encoder: FrozenEncoder, layer: Layer) -> list[int]:
    """All layers, or one by its number, also from the end."""
    check_layer(encoder.loaded, layer)
    return list(range(encoder.layers)) if layer == "all" else [layer % encoder.layers]


def follow(
    task: ProbeTask,
    encoder: FrozenEncoder,
    *,
    layers: Sequence[int],
    by: Fit = "ridge",
    most: int = 16_384,
    needed: Collection[Excerpt] = (),
    errors: bool = True,
) -> Generator[tuple[int, int], None, ProbeResult]:
    """Probe a task, yielding how many texts are encoded; excerpts `needed` later are kept.

    The `errors` of scores take longer than the scores.
    """
    if by == "logistic" and task.kind.name == "regress" and not task.by_cosine:
        raise UserError(f"--fit logistic: needs classes, but {task.name} has numbers; use ridge")
    scored = task.scored_rows
    training = None if task.by_cosine else task.training_rows(most)
    if training is not None and len({*training.groups.tolist()}) < 2:
        raise UserError(f"{task.name}: a probe needs two training examples or more")
    rows = [scored] if training is None else [training, scored]
    yield from encoder.follow([excerpt for part in rows for excerpt in part.all()])
    layer_scores: list[LayerScores] = []
    outputs: list[Doubles] = []
    for layer in layers:
        if training is None:
            outputs.append(_cosines(encoder, scored, layer))
            layer_scores.append(LayerScores(layer, _scored(task, scored, outputs[-1])))
        else:
            vectors = _features(encoder, training, layer)
            # The majority class may have a high accuracy, but has no correlation.
            balanced = "matthews" in task.kind.metrics
            targets, groups = training.targets, training.groups
            probe = fit(
                vectors, targets, groups=groups, by=by, balanced=balanced, device=encoder.device
            )
            outputs.append(probe.outputs(_features(encoder, scored, layer)))
            scores = _scored(task, scored, outputs[-1])
            layer_scores.append(LayerScores(layer, scores, probe.penalty, probe.loss))
    encoder.forget(needed)
    best = len(layer_scores) - 1
    if training is not None:
        best = int(np.argmin([fitted.loss or 0.0 for fitted in layer_scores]))
    return ProbeResult(
        task=task.name,
        split=task.scored,
        metrics=tuple(layer_scores[0].scores),
        trained=0 if training is None else len(training.excerpts),
        scored=len(scored.examples),
        layers=tuple(layer_scores),
        layer=layer_scores[best].layer,
        errors=_errors(task, scored, outputs[best]) if errors else {},
        right=_right(scored, outputs[best]) if "accuracy" in layer_scores[0].scores else None,
    )


def _features(encoder: FrozenEncoder, rows: ProbeRows, layer: int) -> NDArray[Any]:
    """[n, d] the vectors of single excerpts, or the combined features of two."""
    columns = list(zip(*rows.excerpts, strict=True))
    first = encoder.layer(columns[0], layer)
    if len(columns) == 1:
        return first
    second = encoder.layer(columns[1], layer)
    return np.concatenate([first, second, np.abs(first - second), first * second], axis=1)


def _cosines(encoder: FrozenEncoder, rows: ProbeRows, layer: int) -> Doubles:
    """[n, 1] the cosine of each pair; 0 for a text without tokens."""
    first, second = (
        encoder.layer(column, layer).astype(np.float64)
        for column in zip(*rows.excerpts, strict=True)
    )
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.where(sizes > 0, sizes, 1.0)
    return np.asarray(cosines[:, None])


def _scored(task: ProbeTask, rows: ProbeRows, outputs: Doubles) -> dict[str, float]:
    return task.kind.score(task.predictions(rows, outputs), rows.examples)


def _right(rows: ProbeRows, outputs: Doubles) -> NDArray[np.bool_]:
    """[n] whether the best class of each example is the right one."""
    return np.asarray(outputs.argmax(axis=1) == rows.targets.argmax(axis=1))


def _errors(task: ProbeTask, rows: ProbeRows, outputs: Doubles) -> dict[str, float]:
    """Standard errors over the scored examples: the jackknife over parts of them."""
    predictions = task.predictions(rows, outputs)
    count = len(predictions)
    parts = min(_PARTS, count)
    if parts < 2:
        return {}
    part: Ints = np.arange(count) % parts
    without = []
    for number in range(parts):
        rest = np.flatnonzero(part != number).tolist()
        kept, examples = [predictions[n] for n in rest], [rows.examples[n] for n in rest]
        without.append(task.kind.score(kept, examples))
    values_of = {name: np.array([scores[name] for scores in without]) for name in without[0]}
    return {
        name: float(np.sqrt((parts - 1) / parts * ((values - values.mean()) ** 2).sum()))
        for name, values in values_of.items()
    }
