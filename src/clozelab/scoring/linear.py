"""Linear probes: ridge regression in closed form, and logistic regression by a convex fit.

How strongly weights are penalised is chosen by cross-validation on the training part, over fixed
folds, by the loss that is minimised. Nothing is drawn: equal vectors and answers give equal probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clozelab.contracts import Ints
from clozelab.keys import mix, root

Doubles = NDArray[np.float64]
Fit = Literal["ridge", "logistic"]
# The loss of each penalty on held-out folds, and a function: penalty → weights on all rows.
Searched = tuple[Doubles, Callable[[float], Doubles]]

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # per example, for vectors of variance 1
FOLDS = 5
_ROUGH, _EXACT = 1e-4, 1e-8  # largest gradient entry in the search, and in the final fit


@dataclass(frozen=True)
class LinearProbe:
    """A linear map from vectors to outputs: one number, or a score for each class."""

    mean: Doubles  # [d] of the training vectors
    scale: Doubles  # [d] their standard deviation
    weights: Doubles  # [d + 1, k] over standardised vectors; the last row is the intercept
    penalty: float  # the chosen one
    loss: float  # the mean per example on held-out folds

    def outputs(self, vectors: NDArray[Any]) -> Doubles:
        """[n, k] the outputs of the probe for some vectors."""
        return np.asarray(_design(vectors, self.mean, self.scale) @ self.weights)


def fit(
    vectors: NDArray[Any],
    targets: Doubles,
    *,
    groups: Ints | None = None,
    by: Fit = "ridge",
    balanced: bool = False,
    penalties: Sequence[float] = PENALTIES,
) -> LinearProbe:
    """The probe of [n, d] vectors for [n, k] targets; rows of one group share their fold.

    Targets are numbers, or one-hot classes, which a logistic fit needs. With `balanced` all classes
    have the same total weight.
    """
    doubles = np.asarray(vectors, dtype=np.float64)
    mean, scale = doubles.mean(axis=0), doubles.std(axis=0)
    scale = np.where(scale > 1e-12 * np.abs(mean).max(initial=1.0), scale, 1.0)
    design = _design(doubles, mean, scale)
    fold = folds(np.arange(len(doubles)) if groups is None else groups)
    weights = _balancing_weights(targets) if balanced else np.ones((len(doubles), 1))
    if by == "ridge":
        design, targets = design * np.sqrt(weights), targets * np.sqrt(weights)
    else:
        targets = targets * weights
    search = _ridge_search if by == "ridge" else _logistic_search
    losses, solve = search(design, targets, fold, penalties)
    best = int(losses.argmin())
    solution, loss = solve(penalties[best]), float(losses[best]) / len(doubles)
    return LinearProbe(mean, scale, solution, penalties[best], loss)


def folds(groups: Ints) -> Ints:
    """The fold of each row, which depends only on the number of its group."""
    names, inverse = np.unique(groups, return_inverse=True)
    fold = np.zeros(len(names), dtype=np.int64)
    fold[np.argsort(mix(root(0, "folds"), names), kind="stable")] = np.arange(len(names)) % FOLDS
    return np.asarray(fold[inverse])


def ridge(design: Doubles, targets: Doubles, *, penalty: float) -> Doubles:
    """The weights of ridge regression, with a penalty per example on all but the intercept."""
    return _solve_ridge(design.T @ design, design.T @ targets, penalty * len(design))


def logistic(
    design: Doubles,
    targets: Doubles,
    *,
    penalty: float,
    start: Doubles | None = None,
    gradient: float = _EXACT,
) -> Doubles:
    """The weights of logistic regression, fitted until no gradient entry exceeds `gradient`.

    The targets of a row sum to its weight.
    """
    from scipy import optimize

    shape = design.shape[1], targets.shape[1]
    penalties = np.full((shape[0], 1), penalty)
    penalties[-1] = 0.0
    counts = targets.sum(axis=1, keepdims=True)

    def value(flat: Doubles) -> tuple[float, Doubles]:
        weights = flat.reshape(shape)
        probabilities, entropy = _softmax_and_entropy(design @ weights, targets)
        residuals = probabilities * counts - targets
        derivative = design.T @ residuals / len(design) + penalties * weights
        return entropy / len(design) + float((penalties * weights**2).sum()) / 2, derivative.ravel()

    first = np.zeros(shape) if start is None else start
    options = {"maxiter": 5000, "maxfun": 10000, "maxcor": 20, "gtol": gradient, "ftol": 0.0}
    minimize: Any = optimize.minimize
    minimum = minimize(value, first.ravel(), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(minimum.x.reshape(shape))


def _design(vectors: NDArray[Any], mean: Doubles, scale: Doubles) -> Doubles:
    """Standardised vectors, and a column of ones for the intercept."""
    design = np.ones((len(vectors), len(mean) + 1))
    np.divide(np.subtract(vectors, mean), scale, out=design[:, :-1])
    return design


def _balancing_weights(targets: Doubles) -> Doubles:
    """[n, 1] weights with mean 1 that sum to the same for every class present."""
    sizes = targets.sum(axis=0)
    return np.asarray(targets @ (len(targets) / np.maximum(sizes, 1) / (sizes > 0).sum())[:, None])


def _solve_ridge(gram: Doubles, products: Doubles, penalty: float) -> Doubles:
    from scipy import linalg

    penalties = np.full(len(gram), penalty)
    penalties[-1] = 0.0
    cholesky: Any = linalg
    factor = cholesky.cho_factor(gram + np.diag(penalties), overwrite_a=True)
    return np.asarray(cholesky.cho_solve(factor, products))


def _ridge_search(
    design: Doubles, targets: Doubles, fold: Ints, penalties: Sequence[float]
) -> Searched:
    """Search by squared error on held-out folds; each fold's products are computed once."""
    parts = [(design[fold == n], targets[fold == n]) for n in range(int(fold.max()) + 1)]
    grams = [x.T @ x for x, _ in parts]
    products = [x.T @ y for x, y in parts]
    gram, product = np.sum(grams, axis=0), np.sum(products, axis=0)
    losses = np.zeros(len(penalties))
    for number, (x, y) in enumerate(parts):
        if len(x) == len(design):
            continue
        others = gram - grams[number], product - products[number]
        for at, penalty in enumerate(penalties):
            weights = _solve_ridge(*others, penalty * (len(design) - len(x)))
            losses[at] += ((x @ weights - y) ** 2).sum()
    return losses, lambda penalty: _solve_ridge(gram, product, penalty * len(design))


def _logistic_search(
    design: Doubles, targets: Doubles, fold: Ints, penalties: Sequence[float]
) -> Searched:
    """Search by cross-entropy on held-out folds, each fit starting from the next stronger one."""
    losses = np.zeros(len(penalties))
    for number in range(int(fold.max()) + 1):
        held_out = fold == number
        if held_out.all():
            continue
        weights: Doubles | None = None
        for at in np.argsort(penalties)[::-1]:
            weights = logistic(
                design[~held_out],
                targets[~held_out],
                penalty=penalties[at],
                start=weights,
                gradient=_ROUGH,
            )
            losses[at] += _softmax_and_entropy(design[held_out] @ weights, targets[held_out])[1]
    return losses, lambda penalty: logistic(design, targets, penalty=penalty)


def _softmax_and_entropy(logits: Doubles, targets: Doubles) -> tuple[Doubles, float]:
    """Softmax of each row, and the sum of the cross-entropies."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.exp(logs), float(-(targets * logs).sum())
