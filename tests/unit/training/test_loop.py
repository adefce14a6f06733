"""The loop: where losses begin, splits that change nothing, clipping, rates, lost numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.pretrain_runs import (
    HERE,
    MACHINE,
    RECIPES,
    assert_close,
    double_precision_trainer,
    pretrain_job,
    steps_of,
)
from torch import Tensor, nn
from torch.nn import Module

from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.events import drained, means
from clozelab.training.loop import (
    DivergedError,
    Prepared,
    TrainState,
    _Gradients,
    _Sums,
    _update,
    follow_measure,
    train,
)
from clozelab.training.optimiser import Muon
from clozelab.training.timing import StepTimer

torch.set_num_threads(1)
SPLIT = [
    *("bert", "albert", "spanbert", "xlnet", "gpt", "elmo"),
    *("distilbert", "minilm", "electra", "deberta", "diffusion"),
    *("causal_then_masked", "gpt_bert"),
]
TWO_CLASSES = {"next_sentence", "sentence_order", "replaced_token"}


def weights(trainer: PretrainTrainer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


@pytest.mark.parametrize("name", RECIPES)
def test_losses_begin_at_chance(name: str) -> None:
    trainer = PretrainTrainer(pretrain_job(name, batch_size=16), MACHINE, HERE)
    job = next(iter(trainer.steps.jobs(0, trainer.steps.start())))
    losses = means(drained(follow_measure(trainer.model, [job()], HERE)))
    for objective, metrics in losses.items():
        if objective in TWO_CLASSES:
            assert metrics["loss"] == pytest.approx(math.log(2), abs=0.1)
        elif objective == "bidirectional_lm":
            words = len(trainer.model.heads["bidirectional_lm"].bias)  # type: ignore[arg-type]
            assert metrics["loss"] == pytest.approx(math.log(words), abs=0.3)
        elif objective == "contrastive":  # without dropout a twin is the same, and beats the rest
            assert 0 < metrics["loss"] < math.log(16)
        elif objective not in ("distillation", "relations"):
            size = trainer.recipe.tokenizer.vocabulary
            assert size > (50 if name == "dna" else 500)
            assert metrics["loss"] == pytest.approx(math.log(size), abs=0.3)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name not in ("bert", "xlnet", "elmo")))
        for name in SPLIT
    ],
)
def test_no_split_of_a_step_changes_its_losses_or_what_is_learned(name: str) -> None:
    results = []
    more = ["objectives.0.samples=32768"] if name == "elmo" else []
    more += ["schedule.causal=[[0.5, 1.0]]"] if name == "gpt_bert" else []
    for micro in (4, 2, 1):
        whole_job = pretrain_job(name, *more, steps=3)
        trainer = double_precision_trainer(whole_job, replace(MACHINE, micro_batch=micro))
        jobs = [job() for job in trainer.steps.jobs(0, trainer.steps.start())]
        assert max(len(prepared.batches) for prepared in jobs) >= {4: 1, 2: 2, 1: 3}[micro]
        steps = list(train(trainer.train_state, jobs, HERE))
        results.append((steps, weights(trainer)))
    for steps, after in results[1:]:
        for mine, other in zip(steps, results[0][0], strict=True):
            assert mine.norm == pytest.approx(other.norm, rel=1e-9)
            for objective, sums in other.sums.items():
                assert mine.sums[objective] == pytest.approx(sums, rel=1e-9, abs=1e-9)
        assert_close(after, results[0][1])


def gradient(trainer: PretrainTrainer) -> dict[str, Tensor]:
    """The gradients of the first step, caught before the optimisers use them."""
    grads_by_name: dict[str, Tensor] = {}
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}

    def note(optimiser: torch.optim.Optimizer, *_: object) -> None:
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    grads_by_name[names[parameter]] = parameter.grad.clone()

    hooks = [optimiser.register_step_pre_hook(note) for optimiser in trainer.train_state.optimisers]
    steps_of(trainer)
    for hook in hooks:
        hook.remove()
    return grads_by_name


def test_an_objective_of_weight_nothing_teaches_nothing_and_is_still_measured() -> None:
    both = double_precision_trainer(
        pretrain_job("bert", "objectives.1.weight=0", "optimiser.clip=0", steps=1)
    )
    job = pretrain_job("bert", "optimiser.clip=0", steps=1)
    first = replace(job.recipe, objectives=job.recipe.objectives[:1])
    alone = double_precision_trainer(replace(job, recipe=first))
    alone.model.load_state_dict(
        {k: v for k, v in both.model.state_dict().items() if k in alone.model.state_dict()}
    )
    mine, other = gradient(both), gradient(alone)
    more = set(mine) - set(other)
    assert more and all("next_sentence" in name and not mine[name].any() for name in more)
    assert_close({name: mine[name] for name in other}, other)
    trained = gradient(double_precision_trainer(pretrain_job("bert", "optimiser.clip=0", steps=1)))
    assert any(not torch.equal(trained[name], other[name]) for name in other)
    unweighted = double_precision_trainer(pretrain_job("bert", "objectives.1.weight=0", steps=1))
    assert means(steps_of(unweighted)[0].sums)["next_sentence"]["loss"] > 0


def test_gradients_are_clipped_to_the_asked_norm_and_the_norm_before_is_told() -> None:
    norms = {}
    for clip in (0.0, 0.01):
        trainer = double_precision_trainer(pretrain_job("bert", f"optimiser.clip={clip}", steps=1))
        grads = gradient(trainer)
        norms[clip] = sum(float((grad**2).sum()) for grad in grads.values()) ** 0.5
        norm = steps_of(
            double_precision_trainer(pretrain_job("bert", f"optimiser.clip={clip}", steps=1))
        )[0].norm
        assert norm > 0.1
        if not clip:
            assert norms[clip] == pytest.approx(norm, rel=1e-9)
    assert norms[0.01] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_rates_are_the_peak_times_the_factor_of_the_step(optimiser: str) -> None:
    settings = (f"optimiser.use={optimiser}", "optimiser.learning_rate=0.01", "schedule.warmup=2")
    trainer = PretrainTrainer(pretrain_job("bert", *settings, steps=6), MACHINE, HERE)
    schedule = trainer.recipe.schedule
    assert [step.learning_rate for step in steps_of(trainer)] == pytest.approx(
        [0.01 * schedule.factor(step) for step in range(6)]
    )


def test_a_run_ends_with_the_mean_of_its_last_weights() -> None:
    after = {}
    for average in (0.0, 0.5):
        job = pretrain_job("bert", f"schedule.average={average}", steps=6)
        trainer = double_precision_trainer(job)
        jobs = trainer.jobs(0, trainer.steps.start())
        stepping = train(trainer.train_state, (job() for job in jobs), HERE)
        after[average] = [weights(trainer) for _ in stepping]
    plain, averaged = after[0.0], after[0.5]
    for step in range(5):  # the mean changes nothing while the run goes on
        assert_close(averaged[step], plain[step], 1e-12)
    means = {name: sum(late[name] for late in plain[3:]) / 3 for name in plain[0]}
    assert_close(averaged[5], means, 1e-12)
    assert max(float((means[name] - plain[5][name]).abs().max()) for name in means) > 1e-5


@pytest.mark.parametrize("objective", ["masked_lm", "next_sentence"])
def test_a_loss_that_is_no_number_names_its_step_and_objective(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = PretrainTrainer(pretrain_job("bert", steps=5), MACHINE, HERE)
    head = trainer.model.heads[objective]
    calls = []

    def broken(*batch: object) -> dict[str, Tensor]:
        calls.append(1)
        sums = type(head).forward(head, *batch)
        return sums if len(calls) < 3 else {**sums, "loss": sums["loss"] * math.nan}

    monkeypatch.setattr(head, "forward", broken)
    jobs = (job() for job in trainer.steps.jobs(0, trainer.steps.start()))
    steps = train(trainer.train_state, jobs, HERE)
    assert [next(steps).number, next(steps).number] == [1, 2]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    with pytest.raises(DivergedError, match=rf"step 3: the loss of {objective} is nan"):
        next(steps)


def test_gradients_that_are_no_numbers_are_never_told_of_as_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = PretrainTrainer(pretrain_job("bert", steps=2), MACHINE, HERE)
    parameter = next(trainer.model.parameters())
    parameter.register_hook(lambda gradient: gradient * math.inf)
    jobs = (job() for job in trainer.steps.jobs(0, trainer.steps.start()))
    with pytest.raises(DivergedError, match=r"step 1: the gradient's norm is (nan|inf)"):
        next(train(trainer.train_state, jobs, HERE))


def test_dropout_draws_anew_each_step_and_the_same_again() -> None:
    def losses(seed: int) -> list[float]:
        job = pretrain_job("bert", "encoder.dropout=0.5", steps=3, seed=seed)
        torch.manual_seed(99)
        torch.rand(seed + 1)
        return [
            step.sums["masked_lm"]["loss"] for step in steps_of(PretrainTrainer(job, MACHINE, HERE))
        ]

    assert losses(0) == losses(0) != losses(1)


def test_each_micro_batch_of_each_process_has_dropout_of_its_own() -> None:
    job = pretrain_job("bert", "encoder.dropout=0.5", steps=1)
    trainer = PretrainTrainer(job, MACHINE, HERE)
    (prepared,) = [job() for job in trainer.steps.jobs(0, trainer.steps.start())]
    twice = replace(prepared, batches=[*prepared.batches[:1]] * 2, factor=0.0)
    losses: list[float] = []
    trainer.model.register_forward_hook(
        lambda model, batch, result: losses.append(result[0]["masked_lm"]["loss"].item())
    )
    for rank in (0, 1):
        assert list(train(trainer.train_state, [twice], replace(HERE, rank=rank)))
    assert len(losses) == len({*losses}) == 4


def test_a_fresh_step_remembers_nothing_and_others_remember_the_rows_before() -> None:
    trainer = double_precision_trainer(pretrain_job("xlnet", steps=2))
    jobs = trainer.steps.jobs(0, trainer.steps.start())
    first, second = (replace(job(), factor=0.0) for job in jobs)
    assert first.fresh and not second.fresh

    def loss(steps: list[Prepared]) -> float:
        *_, last = train(trainer.train_state, steps, HERE)
        return last.sums["permutation_lm"]["loss"]

    remembered = loss([first, second])
    assert trainer.train_state.memory is not None
    cut = loss([first, replace(second, fresh=True)])
    assert cut != remembered
    assert loss([replace(second, fresh=True)]) == cut  # whatever the memory held
    assert loss([first, second]) == remembered


def test_sums_that_a_replayed_graph_overwrites_are_added_up_all_the_same() -> None:
    """Every batch of a CUDA graph leaves its sums in the same memory."""
    trainer = PretrainTrainer(
        pretrain_job("diffusion", steps=1), replace(MACHINE, micro_batch=1), HERE
    )
    (job,) = [job() for job in trainer.steps.jobs(0, trainer.steps.start())]
    assert len(job.batches) > 1
    left: dict[tuple[str, str], Tensor] = {}

    def overwriting(model: Module, batch: object, result: Any) -> Any:
        sums, after = result
        for name, values in sums.items():
            for what, value in values.items():
                left[name, what] = left.get((name, what), value.clone()).copy_(value)
                values[what] = left[name, what]
        return sums, after

    wanted = drained(follow_measure(trainer.model, [job], HERE))
    trainer.model.register_forward_hook(overwriting)
    assert drained(follow_measure(trainer.model, [job], HERE)) == wanted


@pytest.mark.parametrize("lost", [math.inf, math.nan])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("where", ["encoder.ffn.weight", "words.weight"])
def test_a_step_that_overflows_is_skipped_by_all_optimisers(
    lost: float, clip: float, where: str
) -> None:
    model = Module()
    model.encoder, model.words = Module(), nn.Embedding(10, 8)
    model.encoder.ffn = nn.Linear(8, 8)
    optimisers = Muon(learning_rate=1e-3).build(model.named_parameters())
    assert len(optimisers) == 2
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    state = TrainState(model, optimisers, clip, 0, scaler=scaler)
    prepared = Prepared(0, [], blank=None, counts={}, tokens=1, factor=1.0)
    for overflows in (True, False):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, scaler.get_scale())
        if overflows:
            model.get_parameter(where).grad[0, 0] = lost  # type: ignore[index]
        before = {name: value.clone() for name, value in model.state_dict().items()}
        sums = _Gradients(_Sums([], torch.zeros(0, dtype=torch.float64)), 1, None)
        _update(state, prepared, sums, StepTimer(torch.device("cpu"), 0.0)).read(0.0)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]) == overflows, name
    assert scaler.get_scale() == 2.0**15
