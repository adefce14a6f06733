"""Masked diffusion: the weighted loss is the any-order bound, worked out by hand on a toy."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from support.masked_blocks import make_blocks
from support.objective_cases import complete
from support.pretrain_runs import HERE, MACHINE, double_precision_trainer, pretrain_job, shrunk
from torch import Tensor

from clozelab.contracts import Blocks, Corrupted, Encoded, Hidden
from clozelab.masking.token import UniformRate
from clozelab.objectives.heads.vocabulary import classification_sums
from clozelab.objectives.language_models import MaskedLm
from clozelab.runs.events import drained, means
from clozelab.training.loop import follow_measure

torch.set_num_threads(1)
DIFFUSION = MaskedLm(weighting="inverse_rate")
TOKENS = 4


def toy(seen: tuple[int, ...]) -> Tensor:
    """[tokens, 2] made-up log-probabilities of the right and a wrong token, given what is seen."""
    generator = torch.Generator().manual_seed(sum(2**position for position in seen))
    return torch.randn(TOKENS, 2, dtype=torch.float64, generator=generator).log_softmax(-1)


def sums(part: MaskedLm, block: Blocks, hidden: tuple[int, ...]) -> dict[str, float]:
    """Those of the toy where these tokens of a block are hidden."""
    at = np.flatnonzero(~block.fixed)[list(hidden)]
    masks = Corrupted(block.ids, np.zeros(len(at), np.uint8))
    columns = part.targets(block, Hidden(np.stack([at, at + 1], axis=1)), masks).columns
    weights = torch.from_numpy(columns["weights"]) if "weights" in columns else None
    seen = tuple(sorted({*range(TOKENS)} - {*hidden}))
    labels = torch.zeros(len(at), dtype=torch.long)
    loss_sums = classification_sums(toy(seen)[list(hidden)], labels, None, weights)
    return {name: value.item() for name, value in loss_sums.items()}


def orders() -> list[float]:
    """The negative log-likelihood of the toy's text in every order of its tokens."""
    return [
        -sum(float(toy(tuple(sorted(order[:k])))[order[k], 0]) for k in range(TOKENS))
        for order in permutations(range(TOKENS))
    ]


def expected(part: MaskedLm) -> float:
    """The mean loss of a token over all that `UniformRate` may hide, by its probability."""
    block, total, count = make_blocks([[1] * TOKENS]), 0.0, 0.0
    for size in range(1, TOKENS + 1):
        choices = list(combinations(range(TOKENS), size))
        for hidden in choices:
            loss_sums, chance = sums(part, block, hidden), 1 / (TOKENS * len(choices))
            total, count = total + chance * loss_sums["loss"], count + chance * loss_sums["count"]
    return total / count


def test_the_mean_over_masks_is_the_mean_over_orders_and_bounds_the_likelihood() -> None:
    every = np.array(orders())
    assert expected(DIFFUSION) == pytest.approx(every.mean() / TOKENS, rel=1e-12)
    likelihood = -math.log(np.exp(-every).mean())  # of the model that draws an order first
    assert expected(DIFFUSION) > likelihood / TOKENS
    assert abs(expected(MaskedLm()) - every.mean() / TOKENS) > 0.01  # without weights it is not


def test_weights_are_inverse_rates_and_sum_to_the_tokens_of_their_block() -> None:
    case = complete(make_blocks([[1] * 12, [2, 1, 0, 1], [1] * 30]), UniformRate())
    targets = case.targets(DIFFUSION)
    weights = targets.columns["weights"]
    for row, tokens in enumerate([12, 4, 30]):
        mine = weights[targets.starts[row] : targets.starts[row + 1]]
        assert mine == pytest.approx([tokens / len(mine)] * len(mine))
    assert {*targets.columns} - {*case.targets(MaskedLm()).columns} == {"weights"}


def test_a_head_weighs_losses_and_hits_alike() -> None:
    torch.manual_seed(0)
    shape, states = shrunk("diffusion").encoder, torch.randn(6, 32, dtype=torch.float64)
    head = DIFFUSION.build(shape, 50).double()  # type: ignore[arg-type]
    table = torch.randn(50, 32, dtype=torch.float64)
    columns = {"at": torch.arange(6), "labels": torch.tensor([3, 9, 9, 4, 0, -100])}
    weights = torch.tensor([2.0, 2.0, 1.0, 7.0, 0.5, 0.0], dtype=torch.float64)
    loss_sums = head(Encoded(states, table), {**columns, "weights": weights})
    logits = head.logits(states, table)
    losses = -logits[:5].log_softmax(-1).gather(1, columns["labels"][:5, None])[:, 0]
    assert loss_sums["loss"].item() == pytest.approx((losses * weights[:5]).sum().item(), rel=1e-12)
    assert loss_sums["count"] == 12.5
    best = {**columns, "labels": logits.argmax(-1)}
    assert head(Encoded(states, table), {**best, "weights": weights})["correct"] == 12.5


def test_the_loss_of_a_step_is_per_token_of_its_blocks_not_per_hidden_token() -> None:
    trainer = double_precision_trainer(pretrain_job("diffusion", batch_size=16))
    prepared = next(iter(trainer.steps.jobs(0, trainer.steps.start())))()
    loss_sums = drained(follow_measure(trainer.model, [prepared], HERE))["masked_lm"]
    targets = sum(int((b.targets["masked_lm"]["labels"] >= 0).sum()) for b in prepared.batches)
    assert loss_sums["count"] == pytest.approx(prepared.counts["masked_lm"])
    assert targets < loss_sums["count"] <= prepared.tokens - 2 * 16  # all but the special tokens
    assert (
        means({"masked_lm": loss_sums})["masked_lm"]["loss"]
        == loss_sums["loss"] / loss_sums["count"]
    )


def test_roberta_s_weights_and_records_are_those_of_diffusion() -> None:
    """One head under one name: checkpoints go from one recipe to the other, and old ones stay."""
    assert "weighting" not in shrunk("roberta").tables()["objectives"][0]
    first, second = (
        double_precision_trainer(pretrain_job(name), replace(MACHINE)).model.state_dict()
        for name in ("roberta", "diffusion")
    )
    assert first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )
