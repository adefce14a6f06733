"""Runs that are causal first, or in part, through every command: asked, tuned and sent out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.finetune_tasks import finetune_request, run_finetuning, sample_file
from support.pretrain_runs import MACHINE, pretrain_job, run_pretraining, shrunk, steps_of, store
from support.small_studies import STATIC, read_study

import clozelab
from clozelab import cli
from clozelab.contracts import Input
from clozelab.errors import UserError
from clozelab.models.load import load
from clozelab.models.model import Model
from clozelab.pretraining.fitting import fitted
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.starting import continued, fresh, taught
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.diagnostics import unigram_entropy
from clozelab.runs.directory import Run
from clozelab.runs.events import drained, means
from clozelab.runs.record import read_run
from clozelab.scoring.likelihood import likelihoods
from clozelab.studies import spec as studies
from clozelab.studies.request import make_request
from clozelab.studies.timing import pace
from clozelab.text.store.corpus import open_stores
from clozelab.training.loop import follow_measure
from clozelab.training.world import World

torch.set_num_threads(1)
HERE = World(0, 1, torch.device("cpu"))
SILENT: dict[str, Any] = {"progress": False}
TEXT = "The queen of the country was here, all of it."
BLANK = "The queen of the<mask> was here."
NAMES = ("causal_then_masked", "gpt_bert")
Runs = Callable[[str], Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("directions")
    for name in NAMES:
        run_pretraining(
            pretrain_job(name, "encoder.layers=2", "schedule.causal=[[0.5, 0.6]]", steps=6),
            folder / name,
        )
    return lambda name: folder / name


def logits(model: Model, ids: list[int], *, causal: bool = False) -> torch.Tensor:
    """[N, V] of the shared head at every token of a row."""
    size = len(ids)
    places = torch.arange(size)
    starts = torch.tensor([0, size], dtype=torch.int32)
    batch = Input(torch.tensor(ids), places, torch.zeros_like(places), starts, size, causal=causal)
    with torch.no_grad():
        read = model.module.encode(batch)
        values: torch.Tensor = model.module.heads["masked_lm"].logits(
            read.hidden_states, read.table
        )
    return values.double().log_softmax(-1)


def row(model: Model, text: str) -> list[int]:
    """The ids of a text between its marks, blanks included."""
    reader = model.reader()
    pieces = reader.pieces(text.split("<mask>"))
    parts = np.insert(pieces.columns["ids"], pieces.starts[1:-1], model.vocabulary.role("mask"))
    ids: list[int] = reader.around(parts).columns["ids"].tolist()
    return ids


@pytest.mark.parametrize(("name", "shift"), [("causal_then_masked", 0), ("gpt_bert", 1)])
def test_a_blank_is_filled_from_where_training_predicted_it(
    run: Runs, name: str, shift: int
) -> None:
    model = load(str(run(name)))
    ids = row(model, BLANK)
    at = ids.index(model.vocabulary.role("mask"))
    best = clozelab.fill(model, BLANK, **SILENT).blanks[0][0]
    wanted = logits(model, ids)[at - shift]
    assert best.number == int(wanted.argmax())
    assert best.probability == pytest.approx(float(wanted.exp().max()), rel=1e-4)
    generated = clozelab.generate(model, prompt="The queen", length=1, temperature=0.0, **SILENT)
    masked = row(model, "The queen<mask>")
    ordinary = torch.from_numpy(model.vocabulary.ordinary.astype(np.int64))
    guess = logits(model, masked)[len(masked) - 2 - shift][ordinary].argmax()
    assert generated.tokens[0].number == int(ordinary[guess])


@pytest.mark.parametrize(("name", "shift"), [("causal_then_masked", 0), ("gpt_bert", 1)])
def test_a_text_is_scored_as_masked_unless_causal_is_asked_for(
    run: Runs, name: str, shift: int
) -> None:
    model = load(str(run(name)))
    ids, mask = row(model, TEXT), model.vocabulary.role("mask")
    pseudo = []
    for at in range(1, len(ids) - 1):
        hidden = [mask if place == at else number for place, number in enumerate(ids)]
        pseudo.append(float(logits(model, hidden)[at - shift, ids[at]]))
    likelihood = likelihoods(model, [TEXT], method="original")
    assert likelihood.method == "original" and likelihood.nats == pytest.approx(pseudo, rel=1e-4)
    assert likelihoods(model, [TEXT]).method == "within_word_l2r"
    # The text behind what opens a block, from the left; what closes a block is never read.
    exact = logits(model, ids[:-1], causal=True)
    wanted = [float(exact[at - 1, ids[at]]) for at in range(1, len(ids) - 1)]
    causal = likelihoods(model, [TEXT], method="causal")
    assert causal.method == "causal" and causal.nats == pytest.approx(wanted, rel=1e-4)
    more = likelihoods(model, [f"{TEXT} And more."], method="causal").nats
    assert more[: len(wanted)] == pytest.approx(wanted, rel=1e-4)


def test_models_without_a_causal_head_are_not_asked_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_pretraining(pretrain_job("roberta", steps=1), tmp_path / "roberta")
    command = ["score", str(tmp_path / "roberta"), "--text", TEXT, "--method", "causal"]
    assert cli.main(command) == 2
    output = capsys.readouterr().err
    assert "--method causal: needs a model trained with causal_lm" in output
    run_pretraining(pretrain_job("gpt", steps=1), tmp_path / "gpt")
    usual, causal = (
        clozelab.score(str(tmp_path / "gpt"), text=[TEXT], method=method, **SILENT)
        for method in (None, "causal")
    )
    assert usual.texts == causal.texts and causal.method == "causal"


@pytest.mark.parametrize("name", NAMES)
def test_vectors_see_both_sides(run: Runs, name: str) -> None:
    model = load(str(run(name)))
    first, second = (
        clozelab.embed(model, [text], words="mean", **SILENT) for text in (TEXT, TEXT[:-4])
    )
    assert not np.allclose(first.vectors[0], second.vectors[0])  # of the first word


def test_what_ends_as_masked_goes_out_as_roberta_which_says_the_same(
    run: Runs, tmp_path: Path
) -> None:
    place = run("causal_then_masked")
    clozelab.export(str(place), tmp_path / "hf", **SILENT)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    assert type(theirs).__name__ == "RobertaForMaskedLM"
    model = load(str(place))
    ids = row(model, TEXT)
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    assert (logits(model, ids) - wanted).abs().max() < 1e-4
    back = load(str(tmp_path / "hf"))
    assert {*back.module.heads} == {"masked_lm"} and not back.recipe.encoder.causal
    assert (logits(back, ids) - logits(model, ids)).abs().max() < 1e-5


def test_what_predicts_one_place_earlier_has_no_class(
    run: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(run("gpt_bert"))
    assert cli.main(["export", place, str(tmp_path / "hf")]) == 2
    assert "masked_lm.shift = 1 predicts a masked token from the previous position" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_it_is_tuned_and_goes_out_as_roberta(
    run: Runs, tmp_path: Path, name: str, kind: str
) -> None:
    file = sample_file({"classify": "definitions", "tag": "tags"}[kind], 24)
    run_finetuning(finetune_request(kind, file, model=str(run(name))), tmp_path / "tuned")
    clozelab.export(str(tmp_path / "tuned"), tmp_path / "hf", **SILENT)
    ending = {"classify": "SequenceClassification", "tag": "TokenClassification"}[kind]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == [f"RobertaFor{ending}"]
    with pytest.raises(UserError, match="has no causal language model to train along with"):
        run_finetuning(
            finetune_request(kind, file, "lm_weight=0.5", model=str(run(name))), tmp_path / "both"
        )


@pytest.mark.parametrize("name", NAMES)
def test_held_out_losses_are_of_both_and_the_same_every_time(run: Runs, name: str) -> None:
    data, place = store("byte_bpe"), str(run(name))
    first, second = (clozelab.evaluate(place, data=data, blocks=32, **SILENT) for _ in range(2))
    assert first == second and {*first} == {"masked_lm", "causal_lm"}
    result = Run.open(run(name)).result()
    assert result is not None and {*result["held_out"]} == {"masked_lm", "causal_lm"}
    other = clozelab.evaluate(place, data=data, blocks=32, masks="spanbert", **SILENT)
    assert other["causal_lm"] == first["causal_lm"]
    assert other["masked_lm"]["loss"] != first["masked_lm"]["loss"]


def test_the_log_has_no_loss_of_what_a_step_did_not_predict(tmp_path: Path) -> None:
    run_pretraining(pretrain_job("causal_then_masked", steps=4), tmp_path / "run")
    lines = Run.open(tmp_path / "run").events("step")
    objectives = [{"causal_lm", "masked_lm"} & {*line} for line in lines]
    assert objectives == [{"causal_lm"}, {"causal_lm"}, {"masked_lm"}, {"masked_lm"}]


def test_a_run_is_judged_by_the_masked_loss_that_it_ends_with(run: Runs) -> None:
    """A causal loss far below the plateau says nothing of a masked one that is still on it."""
    record = read_run(Run.open(run("causal_then_masked")), "run")
    low = {**record.last, "causal_lm": {"loss": 0.5}}
    assert replace(record, last=low).reached == record.reached
    assert record.reached == pytest.approx(record.last["masked_lm"]["loss"], rel=0.1)


def test_a_run_goes_on_from_another_recipe_with_its_head(run: Runs, tmp_path: Path) -> None:
    """A causal detour of a masked model (arXiv:2605.12438), and back."""
    run_pretraining(pretrain_job("roberta", "encoder.layers=2", steps=2), tmp_path / "roberta")
    detour = shrunk("causal_then_masked", "schedule.causal=[[1.0, 0.5]]", steps=2)
    data = [store("byte_bpe")]
    job = continued(detour, str(tmp_path / "roberta"), data=data, seed=0)
    trainer = PretrainTrainer(job, MACHINE, HERE)
    assert trainer.notes() == []  # no weight is fresh
    run_pretraining(job, tmp_path / "detour")
    back = continued(shrunk("roberta", steps=1), str(tmp_path / "detour"), data=data, seed=0)
    assert PretrainTrainer(back, MACHINE, HERE).notes() == []


def test_a_causal_model_goes_on_as_a_masked_one(tmp_path: Path) -> None:
    left = ["encoder.causal=true", "masking.use=nothing", "schedule.causal=[]"]
    alone = 'objectives=[{use="causal_lm", head="transform"}]'
    run_pretraining(pretrain_job("causal_then_masked", *left, alone, steps=1), tmp_path / "causal")
    options = [
        "--data",
        store("byte_bpe"),
        "--from",
        str(tmp_path / "causal"),
        "--budget",
        "1steps",
    ]
    options += ["--device", "cpu", "--out"]
    assert cli.main(["pretrain", "roberta", *options, str(tmp_path / "no")]) == 2
    both = ["--set", "encoder.causal=false"]
    assert cli.main(["pretrain", "roberta", *options, str(tmp_path / "masked"), *both]) == 0
    assert not load(str(tmp_path / "masked")).recipe.encoder.causal
    clozelab.fill(str(tmp_path / "masked"), BLANK, **SILENT)


def test_a_teacher_that_predicts_one_place_earlier_is_refused(run: Runs) -> None:
    recipe, data = shrunk("distilbert"), [store("byte_bpe")]
    with pytest.raises(UserError, match="predicts masked tokens from the previous position"):
        taught(recipe, str(run("gpt_bert")), data=data, seed=0)
    assert taught(recipe, str(run("causal_then_masked")), data=data, seed=0).teacher is not None


@pytest.mark.slow
def test_both_directions_are_learned_and_each_at_its_own_place() -> None:
    """A text by heart; what was trained one place earlier knows little at the token itself."""
    wide = [
        "encoder.hidden_size=64",
        "encoder.intermediate_size=256",
        "encoder.embedding_size=64",
        "encoder.layers=2",
    ]
    course = ["masking.course=[]", "schedule.causal=[[0.5, 1.0]]", "objectives.1.weight=1.0"]
    rate = "optimiser.learning_rate=3e-3"
    recipe = shrunk("gpt_bert", *wide, *course, rate, steps=200, batch_size=16)
    few = store("byte_bpe", documents=3, variant="embedded")
    trainer = PretrainTrainer(fresh(recipe, data=[few], seed=0), MACHINE, HERE)
    last = [means(step.sums) for step in steps_of(trainer)[-10:]]
    vocabulary = trainer.job.stores[0][0].vocabulary
    entropy = unigram_entropy(vocabulary.counts[vocabulary.ordinary])  # type: ignore[index]
    losses = {
        name: fmean(entry[name]["loss"] for entry in last if name in entry)
        for name in ("masked_lm", "causal_lm")
    }
    assert losses["masked_lm"] < 0.7 * entropy and losses["causal_lm"] < 0.7 * entropy
    usual, moved = (
        masked_loss(trainer, recipe.override([f"objectives.0.shift={shift}"]), few)
        for shift in (1, 0)
    )
    assert moved > usual + 1


def masked_loss(trainer: PretrainTrainer, recipe: Any, data: str) -> float:
    """The masked loss over the text as a recipe asks for it."""
    other = PretrainTrainer(fresh(recipe, data=[data], seed=0), MACHINE, HERE)
    other.model.load_state_dict(trainer.model.state_dict())
    step = next(iter(other.steps.jobs(0, other.steps.start())))()
    return means(drained(follow_measure(other.model, [step], HERE)))["masked_lm"]["loss"]


def test_the_shares_of_the_study_train(tmp_path: Path) -> None:
    for variant in studies.read("causal-then-masked").variants:
        recipe = shrunk("causal_then_masked", steps=4).override(variant.set)
        run_pretraining(fresh(recipe, data=[store("byte_bpe")], seed=0), tmp_path / variant.name)
        lines = Run.open(tmp_path / variant.name).events("step")
        count = sum("causal_lm" in line for line in lines)
        assert count / len(lines) == int(variant.name) / 100


@pytest.mark.parametrize("name", [*NAMES, "roberta"])
def test_a_study_counts_the_operations_that_a_run_does(tmp_path: Path, name: str) -> None:
    """Causal blocks have more predictions than masked ones."""
    study, data = read_study(tmp_path, STATIC, recipe=name), store("wordpiece")
    request, stores = make_request(study, [data]), open_stores([data])
    recipe = fitted(request.recipe("static"), stores[0][0])
    trainer = PretrainTrainer(PretrainJob(recipe, stores), MACHINE, HERE)
    assert pace(request, "static").flops_a_token == pytest.approx(trainer.began(0).flops_a_token)
