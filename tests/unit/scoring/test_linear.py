"""Linear probes: the closed form, the convex fit, and what they find where something is planted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from clozelab.scoring.linear import PENALTIES, Doubles, Fit, _ridge_search, fit, folds, logistic


def planted(count: int = 400, width: int = 12, classes: int = 3) -> tuple[Doubles, Doubles]:
    """Vectors whose first numbers say the class."""
    draw = np.random.default_rng(0)
    labels = draw.integers(classes, size=count)
    vectors = draw.normal(size=(count, width))
    vectors[np.arange(count), labels] += 3.0
    return vectors, np.eye(classes)[labels]


def ridge(design: Tensor, targets: Tensor, *, penalty: float) -> Tensor:
    """The weights on all rows, none of which is held out."""
    one_fold = torch.zeros(len(design), dtype=torch.long)
    _, solve = _ridge_search(design, targets, one_fold, ())
    return solve(penalty)


def with_ones(vectors: Doubles) -> Doubles:
    return np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_ridge_is_least_squares_of_the_augmented_system(penalty: float) -> None:
    vectors, targets = planted()
    design = with_ones(vectors)
    rows = np.sqrt(penalty * len(design)) * np.eye(design.shape[1])[:-1]
    both = np.concatenate([design, rows]), np.concatenate([targets, np.zeros((len(rows), 3))])
    theirs = np.linalg.lstsq(*both, rcond=None)[0]
    ours = ridge(torch.from_numpy(design), torch.from_numpy(targets), penalty=penalty)
    np.testing.assert_allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("penalty", [1e-3, 1.0])
def test_logistic_is_at_the_optimum(penalty: float) -> None:
    vectors, targets = planted(count=200, width=5)
    design = with_ones(vectors)

    def value(flat: Doubles) -> float:
        weights = flat.reshape(design.shape[1], 3)
        logits = design @ weights
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return float(
            -(targets * logs).sum() / len(design) + penalty / 2 * (weights[:-1] ** 2).sum()
        )

    tensors = torch.from_numpy(design), torch.from_numpy(targets)
    ours = logistic(*tensors, penalty=penalty).flatten().numpy()
    steps = 1e-5 * np.eye(len(ours))
    slope = [(value(ours + step) - value(ours - step)) / 2e-5 for step in steps]
    assert np.abs(slope).max() < 1e-6
    theirs = minimize(value, np.zeros_like(ours), method="BFGS", options={"gtol": 1e-7})
    assert value(ours) <= theirs.fun + 1e-9


@pytest.mark.parametrize("by", ["ridge", "logistic"])
def test_a_planted_signal_is_found_and_shuffled_labels_are_not(by: Fit) -> None:
    vectors, targets = planted(count=900)
    probe = fit(vectors[:600], targets[:600], by=by)
    right = probe.outputs(vectors[600:]).argmax(1) == targets[600:].argmax(1)
    assert right.mean() > 0.9
    shuffled = targets[np.random.default_rng(1).permutation(900)]
    blind = fit(vectors[:600], shuffled[:600], by=by)
    right = blind.outputs(vectors[600:]).argmax(1) == shuffled[600:].argmax(1)
    assert abs(right.mean() - 1 / 3) < 0.08
    assert blind.loss > probe.loss and blind.penalty >= probe.penalty


@pytest.mark.parametrize("by", ["ridge", "logistic"])
def test_the_same_rows_give_the_same_bytes(by: Fit) -> None:
    vectors, targets = planted()
    first, second = (fit(vectors.copy(), targets.copy(), by=by) for _ in range(2))
    assert torch.equal(first.weights, second.weights)
    assert (first.penalty, first.loss) == (second.penalty, second.loss)


@pytest.mark.parametrize("by", ["ridge", "logistic"])
def test_balanced_classes_weigh_the_same(by: Fit) -> None:
    """As if the rows of the rare class were repeated."""
    draw = np.random.default_rng(2)
    rare, common = draw.normal(size=(30, 2)) + [1, 0], draw.normal(size=(270, 2))
    vectors = np.concatenate([rare, common])
    targets = np.repeat(np.eye(2), [30, 270], axis=0)
    plain = fit(vectors, targets, by=by).outputs(vectors).argmax(1)
    even = fit(vectors, targets, by=by, balanced=True).outputs(vectors).argmax(1)
    assert (plain == 0).mean() < 0.1 < 0.2 < (even == 0).mean()
    # Of balanced classes the mean output on the classes' own centres is even.
    assert (even[:30] == 0).mean() > 0.6


@pytest.mark.parametrize("by", ["ridge", "logistic"])
def test_the_loss_is_that_of_probes_of_the_other_folds(by: Fit) -> None:
    vectors, targets = planted(count=60)
    vectors = (vectors - vectors.mean(0)) / vectors.std(0)
    design, fold, total = with_ones(vectors), folds(np.arange(60)), 0.0
    for number in range(5):
        here = fold == number
        probe = {"ridge": ridge, "logistic": logistic}[by]
        others = torch.from_numpy(design[~here]), torch.from_numpy(targets[~here])
        out = design[here] @ probe(*others, penalty=1.0).numpy()
        logs = out - np.logaddexp.reduce(out, axis=1, keepdims=True)
        losses = (out - targets[here]) ** 2 if by == "ridge" else -targets[here] * logs
        total += float(losses.sum())
    loss = fit(vectors, targets, by=by, penalties=(1.0,)).loss
    assert loss == pytest.approx(total / 60, rel=1e-4)


def test_a_class_that_no_row_has_weighs_nothing() -> None:
    vectors, targets = planted()
    more = np.concatenate([targets, np.zeros((len(targets), 2))], axis=1)
    probes = [fit(vectors, some, balanced=True, penalties=(1.0,)) for some in (targets, more)]
    np.testing.assert_allclose(probes[1].weights[:, :3], probes[0].weights, atol=1e-12)
    assert not probes[1].weights[:, 3:].any()


def test_numbers_are_regressed_and_the_penalty_grows_with_the_noise() -> None:
    draw = np.random.default_rng(3)
    vectors = draw.normal(size=(300, 40))
    signal = vectors[:, :1] * 2 + 1
    clear = fit(vectors, signal + 0.01 * draw.normal(size=(300, 1)))
    noisy = fit(vectors, signal + 30 * draw.normal(size=(300, 1)))
    assert clear.penalty == PENALTIES[0] < noisy.penalty
    np.testing.assert_allclose(clear.outputs(vectors), signal, atol=0.1)


def test_folds_are_fixed_even_and_keep_groups_together() -> None:
    groups = np.repeat(np.arange(50), 3)
    fold = folds(groups)
    assert (fold == folds(groups)).all() and np.bincount(fold).tolist() == [30] * 5
    assert all(len(set(fold[groups == group])) == 1 for group in range(50))
    assert folds(np.arange(2)).max() == 1  # fewer rows than folds


def test_a_constant_direction_and_one_class_are_no_error() -> None:
    vectors, targets = planted()
    vectors[:, -1] = 7.0
    assert fit(vectors, targets).weights.isfinite().all()
    alone = np.ones((len(vectors), 1)) @ [[1.0, 0.0]]
    for by in ("ridge", "logistic"):
        assert (fit(vectors, alone, by=by).outputs(vectors).argmax(1) == 0).all()


def test_a_direction_that_is_constant_but_for_rounding_says_nothing() -> None:
    vectors, targets = planted()
    vectors[:, -1] = 0.3
    assert 0 < vectors.std(axis=0)[-1] < 1e-12
    probe, moved = fit(vectors, targets), vectors.copy()
    moved[:, -1] += 0.01
    np.testing.assert_allclose(probe.outputs(moved), probe.outputs(vectors), atol=1e-6)
