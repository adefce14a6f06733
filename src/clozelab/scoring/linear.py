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
# The loss of each penalty on folds left out, and the weights for a penalty on all rows.
Searched = tuple[Doubles, Callable[[float], Doubles]]

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # for each example, over vectors of variance 1
FOLDS = 5
_ROUGH, _EXACT = 1e-4, 1e-8  # largest entry of a gradient: to choose a penalty by, and at the end


@dataclass(frozen=True)
class LinearProbe:
    """A linear map from vectors to outputs: one number, or a score for each class."""

    mean: Doubles  # [d] of the training vectors
    scale: Doubles  # [d] their standard deviation
    weights: Doubles  # [d + 1, k] over standardised vectors; the last row is the intercept
    penalty: float  # the chosen one
    loss: float  # of each example on average, on folds that were left out

    def outputs(self, vectors: NDArray[Any]) -> Doubles:
        """[n, k] what the probe says of some vectors."""
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

    Targets are numbers, or 1 at the class of each row, which alone a logistic fit takes. Classes
    that are `balanced` weigh the same, however many rows each has.
    """
    wide = np.asarray(vectors, dtype=np.float64)
    mean, scale = wide.mean(axis=0), wide.std(axis=0)
    scale = np.where(scale > 1e-12 * np.abs(mean).max(initial=1.0), scale, 1.0)
    design = _design(wide, mean, scale)
    fold = folds(np.arange(len(wide)) if groups is None else groups)
    weights = _balance(targets) if balanced else np.ones((len(wide), 1))
    if by == "ridge":
        design, targets = design * np.sqrt(weights), targets * np.sqrt(weights)
    else:
        targets = targets * weights
    search = _ridge_search if by == "ridge" else _logistic_search
    losses, solve = search(design, targets, fold, penalties)
    best = int(losses.argmin())
    solution, loss = solve(penalties[best]), float(losses[best]) / len(wide)
    return LinearProbe(mean, scale, solution, penalties[best], loss)


def folds(groups: Ints) -> Ints:
    """The fold of each row: that of its group, which depends on the group's number alone."""
    names, inverse = np.unique(groups, return_inverse=True)
    fold = np.zeros(len(names), dtype=np.int64)
    fold[np.argsort(mix(root(0, "folds"), names), kind="stable")] = np.arange(len(names)) % FOLDS
    return np.asarray(fold[inverse])


def ridge(design: Doubles, targets: Doubles, *, penalty: float) -> Doubles:
    """The weights of least squares, the penalty for each example on all but the intercept."""
    return _solved(design.T @ design, design.T @ targets, penalty * len(design))


def logistic(
    design: Doubles,
    targets: Doubles,
    *,
    penalty: float,
    start: Doubles | None = None,
    gradient: float = _EXACT,
) -> Doubles:
    """The weights of least cross-entropy, fitted until no entry of the gradient is larger.

    The targets of a row add up to its weight.
    """
    from scipy import optimize

    shape = design.shape[1], targets.shape[1]
    penalties = np.full((shape[0], 1), penalty)
    penalties[-1] = 0.0
    counts = targets.sum(axis=1, keepdims=True)

    def value(flat: Doubles) -> tuple[float, Doubles]:
        weights = flat.reshape(shape)
        likely, entropy = _likelihoods(design @ weights, targets)
        apart = likely * counts - targets
        slope = design.T @ apart / len(design) + penalties * weights
        return entropy / len(design) + float((penalties * weights**2).sum()) / 2, slope.ravel()

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


def _balance(targets: Doubles) -> Doubles:
    """[n, 1] weights of 1 on average, that add up to the same for every class there is."""
    sizes = targets.sum(axis=0)
    return np.asarray(targets @ (len(targets) / np.maximum(sizes, 1) / (sizes > 0).sum())[:, None])


def _solved(gram: Doubles, products: Doubles, penalty: float) -> Doubles:
    from scipy import linalg

    penalties = np.full(len(gram), penalty)
    penalties[-1] = 0.0
    cholesky: Any = linalg
    factor = cholesky.cho_factor(gram + np.diag(penalties), overwrite_a=True)
    return np.asarray(cholesky.cho_solve(factor, products))


def _ridge_search(
    design: Doubles, targets: Doubles, fold: Ints, penalties: Sequence[float]
) -> Searched:
    """The squared errors on folds left out; each fold's products are computed once."""
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
            weights = _solved(*others, penalty * (len(design) - len(x)))
            losses[at] += ((x @ weights - y) ** 2).sum()
    return losses, lambda penalty: _solved(gram, product, penalty * len(design))


def _logistic_search(
    design: Doubles, targets: Doubles, fold: Ints, penalties: Sequence[float]
) -> Searched:
    """The cross-entropies on folds left out; a weaker penalty starts from a stronger one's fit."""
    losses = np.zeros(len(penalties))
    for number in range(int(fold.max()) + 1):
        here = fold == number
        if here.all():
            continue
        weights: Doubles | None = None
        for at in np.argsort(penalties)[::-1]:
            weights = logistic(
                design[~here],
                targets[~here],
                penalty=penalties[at],
                start=weights,
                gradient=_ROUGH,
            )
            losses[at] += _likelihoods(design[here] @ weights, targets[here])[1]
    return losses, lambda penalty: logistic(design, targets, penalty=penalty)


def _likelihoods(logits: Doubles, targets: Doubles) -> tuple[Doubles, float]:
    """Softmax of each row, and the sum of the cross-entropies."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.exp(logs), float(-(targets * logs).sum())
