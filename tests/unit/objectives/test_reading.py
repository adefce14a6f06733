"""The last layer where states are read: the losses and gradients of all tokens, dropout too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.pretrain_runs import RECIPES, double_precision_trainer, pretrain_job
from torch import Tensor

from clozelab.contracts import Batch, Sums
from clozelab.models.build import PretrainingModel
from clozelab.objectives.heads import generator
from clozelab.objectives.heads.reading import reading

torch.set_num_threads(1)
# Of these recipes' states some are read; of the others all, or nearly all in a first step, or their
# encoder has no last layer for some.
SOME = {
    *("bert", "bert_cased", "bert_chinese", "bert_multilingual", "bert_whole_word", "albert"),
    *("roberta", "roberta_wwm", "swift", "modernbert", "mosaicbert", "neobert", "ernie", "dna"),
    *("spanbert", "minilm", "simcse", "gpt_bert", "diffusion"),
}
ALL = {"gpt", "causal_then_masked", "distilbert", "electra", "deberta", "retromae", "xlnet", "elmo"}


def stepped(
    model: PretrainingModel, batches: list[Batch]
) -> tuple[list[dict[str, Sums]], dict[str, Tensor], list[int]]:
    """The sums of some batches, the gradients of them all, and how many states were read."""
    encoder: Any = model.encoder
    rows: list[int] = []
    hook = encoder.register_forward_hook(lambda *a: rows.append(len(a[-1].hidden_states)))
    model.zero_grad()
    torch.manual_seed(7)
    losses = [model(batch)[0] for batch in batches]
    sum(each["loss"] for sums in losses for each in sums.values()).backward()
    hook.remove()
    return losses, {n: p.grad.clone() for n, p in model.named_parameters()}, rows


@pytest.mark.parametrize("name", [recipe for recipe in RECIPES if recipe not in ("xlnet", "elmo")])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_losses_and_gradients_are_those_of_all_tokens(
    name: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [f"encoder.{kind}={dropout}" for kind in ("dropout", "attention_dropout")]
    trainer = double_precision_trainer(pretrain_job(name, *rates, variant="embedded"))
    model = trainer.model.train()
    jobs = trainer.steps.jobs(0, trainer.steps.start())
    batches = next(iter(jobs))().batches
    some, gradients, rows = stepped(model, batches)
    model.reads = dict.fromkeys(model.reads)
    monkeypatch.setattr(generator, "reading", lambda *_: None)
    whole, whole_gradients, all_rows = stepped(model, batches)
    assert all_rows == [len(batch.input.ids) for batch in batches]
    assert (rows != all_rows) == (name in SOME)
    torch.testing.assert_close(some, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, whole_gradients, rtol=1e-9, atol=1e-12)


def test_every_recipe_is_of_one_kind() -> None:
    assert {*RECIPES} == SOME | ALL
    assert not SOME & ALL


def test_positions_are_counted_among_those_that_are_read() -> None:
    targets = {
        "masked_lm": {"at": torch.tensor([5, 9]), "labels": torch.tensor([1, 2])},
        "span_boundary": {"left": torch.tensor([4, 0, 0]), "right": torch.tensor([6, 8, 8])},
        "relations": {"at": torch.arange(40)},
    }
    reads = {"masked_lm": ("at",), "span_boundary": ("left", "right"), "relations": ()}
    read_positions = reading(targets, reads, 40)
    assert read_positions is not None
    assert read_positions.at.tolist() == [5, 9, 4, 0, 0, 6, 8, 8]
    for name, columns in targets.items():
        for column, values in columns.items():
            read = column in reads[name]
            mine = read_positions.targets[name][column]
            assert torch.equal(read_positions.at[mine] if read else mine, values)


def test_all_are_read_where_one_objective_may_read_any_or_as_many_are_asked_for() -> None:
    targets = {"masked_lm": {"at": torch.arange(20)}, "other": {"at": torch.arange(3)}}
    assert reading(targets, {"masked_lm": ("at",), "other": None}, 400) is None
    assert reading(targets, {"masked_lm": ("at",), "other": ("at",)}, 30) is None
    assert reading(targets, {"masked_lm": ("at",), "other": ("at",)}, 31) is not None


def test_where_nothing_is_read_some_rows_are_computed_for_their_gradients() -> None:
    read_positions = reading({"relations": {"at": torch.arange(99)}}, {"relations": ()}, 99)
    assert read_positions is not None and not read_positions.at.any()
    assert read_positions.targets["relations"]["at"].tolist() == [*range(99)]
