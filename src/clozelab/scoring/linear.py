"""Linear probes: ridge regression in closed form, and logistic regression by a convex fit.

How strongly weights are penalised is chosen by cross-validation on the training part, over fixed
folds, by the loss that is minimised. Nothing is drawn: equal vectors and answers give equal probes.
All of it is in double precision, on the device of the encoder: probes of sentence pairs solve many
systems of a thousand unknowns, which would keep all cores busy that feed a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozelab.contracts import Ints
from clozelab.keys import mix, root

Doubles = NDArray[np.float64]
Fit = Literal["ridge", "logistic"]
# The loss of each penalty on held-out folds, and a function: penalty → weights on all rows.
Searched = tuple[Doubles, Callable[[float], Tensor]]

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # per example, for vectors of variance 1
FOLDS = 5
_ROUGH, _EXACT = 1e-4, 1e-8  # largest gradient entry in the search, and in the final fit
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class LinearProbe:
    """A linear map from vectors to outputs: one number, or a score for each class."""

    mean: Tensor  # [d] of the training vectors
    scale: Tensor  # [d] their standard deviation
    weights: Tensor  # [d + 1, k] over standardised vectors; the last row is the intercept
    penalty: float  # the chosen one
    loss: float  # the mean per example on held-out folds

    def outputs(self, vectors: NDArray[Any]) -> Doubles:
        """[n, k] the outputs of the probe for some vectors."""
        doubles = torch.from_numpy(vectors).to(self.mean)
        return np.asarray((_design(doubles, self.mean, self.scale) @ self.weights).cpu())


def fit(
    vectors: NDArray[Any],
    targets: Doubles,
    *,
    groups: Ints | None = None,
    by: Fit = "ridge",
    balanced: bool = False,
    penalties: Sequence[float] = PENALTIES,
    device: torch.device = _CPU,
) -> LinearProbe:
    """The probe of [n, d] vectors for [n, k] targets; rows of one group share their fold.

    Targets are numbers, or one-hot classes, which a logistic fit needs. With `balanced` all classes
    have the same total weight.
    """
    x = torch.from_numpy(vectors).to(device, torch.float64)
    y = torch.from_numpy(targets).to(device, torch.float64)
    mean, scale = x.mean(dim=0), x.std(dim=0, correction=0)
    constant = scale <= 1e-12 * mean.abs().max().clamp(min=1.0)
    scale = scale.masked_fill(constant, 1.0)
    design = _design(x, mean, scale)
    del x  # all training examples of a large task take gigabytes
    fold = folds(np.arange(len(vectors)) if groups is None else groups)
    if balanced:
        weights = _balancing_weights(y)
        if by == "ridge":
            design, y = design * weights.sqrt(), y * weights.sqrt()
        else:
            y = y * weights
    search = _ridge_search if by == "ridge" else _logistic_search
    losses, solve = search(design, y, torch.from_numpy(fold).to(device), penalties)
    best = int(losses.argmin())
    loss = float(losses[best]) / len(vectors)
    return LinearProbe(mean, scale, solve(penalties[best]), penalties[best], loss)


def folds(groups: Ints) -> Ints:
    """The fold of each row, which depends only on the number of its group."""
    names, inverse = np.unique(groups, return_inverse=True)
    fold = np.zeros(len(names), dtype=np.int64)
    fold[np.argsort(mix(root(0, "folds"), names), kind="stable")] = np.arange(len(names)) % FOLDS
    return np.asarray(fold[inverse])


def logistic(
    design: Tensor,
    targets: Tensor,
    *,
    penalty: float,
    start: Tensor | None = None,
    gradient: float = _EXACT,
) -> Tensor:
    """The weights of logistic regression, fitted until no gradient entry exceeds `gradient`.

    The targets of a row sum to its weight.
    """
    from scipy import optimize

    shape = design.shape[1], targets.shape[1]
    penalties = design.new_full((shape[0], 1), penalty)
    penalties[-1] = 0.0
    counts = targets.sum(dim=1, keepdim=True)

    def value(flat: Doubles) -> tuple[float, Doubles]:
        weights = torch.from_numpy(flat).to(design).view(shape)
        logs = torch.log_softmax(design @ weights, dim=1)
        residuals = logs.exp() * counts - targets
        derivative = design.T @ residuals / len(design) + penalties * weights
        entropy = -(targets * logs).sum() / len(design) + (penalties * weights**2).sum() / 2
        return float(entropy), derivative.flatten().cpu().numpy()

    first = design.new_zeros(shape) if start is None else start
    options = {"maxiter": 5000, "maxfun": 10000, "maxcor": 20, "gtol": gradient, "ftol": 0.0}
    minimize: Any = optimize.minimize
    begin = first.flatten().cpu().numpy()
    minimum = minimize(value, begin, jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(minimum.x).to(design).view(shape)


def _design(vectors: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Standardised vectors, and a column of ones for the intercept."""
    return torch.cat([(vectors - mean) / scale, vectors.new_ones(len(vectors), 1)], dim=1)


def _balancing_weights(targets: Tensor) -> Tensor:
    """[n, 1] weights with mean 1 that sum to the same for every class present."""
    sizes = targets.sum(dim=0)
    return targets @ (len(targets) / sizes.clamp(min=1) / (sizes > 0).sum())[:, None]


def _solve_ridge(gram: Tensor, products: Tensor, penalties: Sequence[float]) -> Tensor:
    """[p, d + 1, k] the solutions for some penalties, none on the intercept."""
    diagonal = gram.new_tensor(penalties)[:, None].expand(-1, len(gram)).clone()
    diagonal[:, -1] = 0.0
    factors = torch.linalg.cholesky(gram + torch.diag_embed(diagonal))
    return torch.cholesky_solve(products.expand(len(factors), -1, -1), factors)


def _ridge_search(
    design: Tensor, targets: Tensor, fold: Tensor, penalties: Sequence[float]
) -> Searched:
    """Search by squared error on held-out folds; each fold's products are computed once."""
    rows = [fold == number for number in range(int(fold.max()) + 1)]
    grams = [design[part].T @ design[part] for part in rows]
    products = [design[part].T @ targets[part] for part in rows]
    gram, product = sum(grams[1:], grams[0]), sum(products[1:], products[0])
    losses = np.zeros(len(penalties))
    for number, part in enumerate(rows):
        if part.all():
            continue
        x, y = design[part], targets[part]
        scaled = [penalty * (len(design) - len(x)) for penalty in penalties]
        weights = _solve_ridge(gram - grams[number], product - products[number], scaled)
        losses += ((x @ weights - y) ** 2).sum(dim=(1, 2)).cpu().numpy()
    return losses, lambda penalty: _solve_ridge(gram, product, [penalty * len(design)])[0]


def _logistic_search(
    design: Tensor, targets: Tensor, fold: Tensor, penalties: Sequence[float]
) -> Searched:
    """Search by cross-entropy on held-out folds, each fit starting from the next stronger one."""
    losses = np.zeros(len(penalties))
    for number in range(int(fold.max()) + 1):
        held_out = fold == number
        if held_out.all():
            continue
        weights: Tensor | None = None
        for at in np.argsort(penalties)[::-1]:
            weights = logistic(
                design[~held_out],
                targets[~held_out],
                penalty=penalties[at],
                start=weights,
                gradient=_ROUGH,
            )
            logs = torch.log_softmax(design[held_out] @ weights, dim=1)
            losses[at] -= float((targets[held_out] * logs).sum())
    return losses, lambda penalty: logistic(design, targets, penalty=penalty)
