"""The recipe of an adaptation, early stopping, and how many passes a budget is."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretrain_runs import RECIPES, STORES, pretrain_job, run_pretraining, store

from clozelab.config.recipe import read
from clozelab.errors import UserError
from clozelab.pretraining.adaptation import adaptation as adaptation_job
from clozelab.pretraining.adaptation import adapted
from clozelab.pretraining.early_stopping import EarlyStopping
from clozelab.pretraining.passes import passes_note
from clozelab.text.store.corpus import open_stores
from clozelab.text.store.mixture import shares
from clozelab.training.budget import Budget, parse

MANY = 10**9  # blocks


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "minilm"])
def test_every_recipe_has_one_to_adapt_by(name: str) -> None:
    own = read(name)
    own = replace(own, objectives=tuple(p for p in own.objectives if not p.needs_teacher))
    adaptation: Any = adapted(own, blocks=MANY)
    assert adaptation.encoder == own.encoder and adaptation.tokenizer == own.tokenizer
    assert adaptation.schedule.decay == "linear" and not (
        adaptation.schedule.phases or adaptation.schedule.ramp
    )
    assert adaptation.schedule.batch_size * adaptation.blocks.length <= 131_072
    smaller = sqrt(adaptation.schedule.batch_size / own.schedule.batch_size)
    rate = own.optimiser.learning_rate * smaller
    assert adaptation.optimiser.learning_rate == pytest.approx(rate, rel=5e-3)


@pytest.mark.parametrize("blocks", [950, 1_030, 1_999])
def test_rows_that_belong_together_stay_so(blocks: int) -> None:
    """A stream's rows and their reverse, and the rows of a group that are contrasted."""
    stream: Any = adapted(read("xlnet"), blocks=blocks)
    assert stream.blocks.rows == stream.schedule.batch_size and stream.blocks.rows % 2 == 0
    contrasts = read("simcse", overrides=["objectives.0.in_batch=4"])
    assert adapted(contrasts, blocks=blocks).schedule.batch_size % 4 == 0


def test_a_recipe_goes_on_as_it_ended() -> None:
    """Masks, directions and objectives are those of the last steps."""
    modern: Any = adapted(read("modernbert"), blocks=MANY)
    assert modern.masking.mask_rate == 0.15 and modern.schedule.batch_size == 16
    both: Any = read("gpt_bert")
    adaptation: Any = adapted(both, blocks=MANY)
    assert adaptation.masking == replace(both.masking.stage(1.0), mask_rate=0.15)
    course = ["masking.course=[[0.0, 1.0], [1.0, 0.4]]"]
    falling: Any = adapted(read("bert", overrides=course), blocks=MANY)
    assert falling.masking.mask_rate == pytest.approx(0.4 * 0.15) and not falling.masking.course
    share = both.schedule.causal_share(both.schedule.total)
    assert 0 < share < 1 and adaptation.schedule.causal == ((share, 1.0),)
    ends_masked: Any = adapted(read("causal_then_masked"), blocks=MANY)
    assert not ends_masked.schedule.causal
    assert [part.language_model for part in ends_masked.objectives] == ["masked"]
    swift: Any = adapted(read("swift", overrides=["schedule.average=0.2"]), blocks=1600)
    assert not swift.schedule.average  # it ends with the weights of the lowest loss
    factor = sqrt(16 / read("swift").schedule.batch_size)
    own: Any = read("swift").optimiser
    rate = own.matrix_learning_rate * factor
    assert swift.optimiser.matrix_learning_rate == pytest.approx(rate, rel=5e-3)


@pytest.mark.parametrize(("blocks", "batch"), [(MANY, 256), (5_000, 50), (300, 8), (1, 8)])
def test_a_small_text_has_small_steps(blocks: int, batch: int) -> None:
    assert adapted(read("roberta"), blocks=blocks).schedule.batch_size == batch


def test_a_detour_is_causal_first_and_its_rate_falls_behind_it() -> None:
    adaptation: Any = adapted(read("roberta"), blocks=MANY, detour=0.6)
    schedule = adaptation.schedule.fitted(100)
    assert [schedule.causal_share(step) for step in (0, 59, 60, 99)] == [1, 1, 0, 0]
    assert schedule.factor(59) == 1 and schedule.factor(80) < 0.5
    assert [part.language_model for part in adaptation.objectives] == ["masked", "causal"]
    with pytest.raises(UserError, match="--detour 1: must be a share of the steps"):
        adapted(read("roberta"), blocks=MANY, detour=1.0)
    with pytest.raises(UserError, match="--detour: does not work with xlnet, because"):
        adapted(read("xlnet"), blocks=MANY, detour=0.5)


def test_one_text_in_order_is_adapted_to_without_replay(tmp_path: Path) -> None:
    run_pretraining(pretrain_job("xlnet", steps=1), tmp_path)
    with pytest.raises(UserError, match=r"--replay .*: xlnet reads one text in order; leave it"):
        adaptation_job(str(tmp_path), store("unigram"), replay=store("unigram", documents=30))


def test_patience_counts_evaluations_without_improvement() -> None:
    stopping = EarlyStopping("masked_lm", 2)
    for step, loss in enumerate([3.0, 2.0, 2.0]):
        stopping.see(step, loss, lambda step=step: {"w": torch.tensor(step)})  # type: ignore[misc]
        assert not stopping.reason
    stopping.see(3, 1.5, lambda: {"w": torch.tensor(3)})
    assert (stopping.step, stopping.waited) == (3, 0)
    for step in (4, 5):
        assert not stopping.reason
        stopping.see(step, 1.6, dict)
    assert stopping.reason and stopping.step == 3 and stopping.weights == {"w": torch.tensor(3)}
    never = EarlyStopping("masked_lm", 0, loss=1.0, waited=99)
    assert not never.reason


def test_a_budget_of_many_passes_names_one_that_would_do() -> None:
    stores = open_stores([store(STORES["bert"])])
    tokens = shares(stores)[0].tokens
    assert passes_note(stores, 4 * tokens, budget=None) == f"passes over {stores[0][0].name}: 4"
    note = passes_note(stores, 40 * tokens, budget=None)
    assert "passes" in note and f"--budget {4 * tokens / 1e3:.2g}ktok" in note
    note = passes_note(stores, 40 * tokens, budget=Budget("seconds", 1200))
    assert "--budget 2m would do" in note
    assert "--budget 6s would do" in passes_note(stores, 40 * tokens, budget=Budget("seconds", 60))


@pytest.mark.parametrize("seconds", [3.0, 59.9, 600.0, 5969.0, 5971.0, 5999.0, 123_456.0])
def test_a_budget_that_would_do_can_be_given(seconds: float) -> None:
    stores = open_stores([store(STORES["bert"])])
    tokens = shares(stores)[0].tokens
    note = passes_note(stores, 40 * tokens, budget=Budget("seconds", 10 * seconds))
    budget = parse(note.split("--budget ")[1].split()[0])
    assert budget.kind == "seconds" and budget.amount == pytest.approx(seconds, rel=0.05)
    many = passes_note(stores, 99.6 * tokens, budget=None)
    assert many.startswith(f"passes over {stores[0][0].name}: 100; ")
