"""Generation by unmasking: every position once, by a seed, after a prompt, as any command says."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.pretrain_runs import pretrain_job, run_pretraining, shrunk, store

import clozelab
from clozelab import cli
from clozelab.cli.views import models as views
from clozelab.models.generate import Generated, Sampling, generate
from clozelab.models.load import load
from clozelab.models.model import Model
from clozelab.pretraining.starting import fresh
from clozelab.runs.events import means
from clozelab.text.store import Corpus
from clozelab.training.loop import Step

torch.set_num_threads(1)
PROMPT = "The river was wide"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("diffusion") / "run"
    run_pretraining(pretrain_job("diffusion", "encoder.layers=2", variant="embedded"), place)
    return place


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return load(str(run))


def numbers(result: Generated) -> list[int]:
    return [token.number for token in result.tokens]


@pytest.mark.parametrize("remasking", ["confidence", "random"])
@pytest.mark.parametrize("steps", [1, 4, 7, 16])
def test_every_position_is_unmasked_once_in_even_steps(
    model: Model, remasking: Any, steps: int
) -> None:
    generated = model.generate(length=16, steps=steps, remasking=remasking)
    sizes = [len(step) for step in generated.steps]
    assert len(sizes) == steps and max(sizes) - min(sizes) <= 1
    assert [token.position for token in generated.tokens] == [*range(16)]
    assert {*numbers(generated)} <= {*model.vocabulary.ordinary.tolist()}


def test_a_seed_is_a_text_and_another_seed_another(model: Model) -> None:
    first, again, other = (model.generate(length=12, steps=4, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert numbers(first) != numbers(other)
    assert numbers(model.generate(length=12, steps=4, seed=3, remasking="random")) != numbers(first)


def test_a_text_goes_on_from_its_prompt(model: Model) -> None:
    generated = model.generate(prompt=PROMPT, length=8, steps=2)
    assert generated.prompt == PROMPT and generated.text.startswith(PROMPT)
    assert len(generated.text) > len(PROMPT)
    assert repr(generated) == f"Generated({generated.text!r}, tokens=8, steps=2)"
    # What is generated hangs on the prompt.
    alone = model.generate(length=8, steps=2)
    ours, theirs = ([token.probability for token in each.tokens] for each in (generated, alone))
    assert ours != theirs


def test_the_likeliest_token_is_what_fill_would_guess_and_the_surest_come_first(
    model: Model,
) -> None:
    generated = model.generate(prompt=PROMPT, length=6, steps=3, temperature=0)
    blanks = model.fill(PROMPT + "<mask>" * 6, top=1).blanks
    best = [blank[0] for blank in blanks]
    surest = sorted(range(6), key=lambda position: -best[position].probability)[:2]
    assert [token.position for token in generated.steps[0]] == sorted(surest)
    for token in generated.steps[0]:
        assert token.number == best[token.position].number
        assert token.probability == pytest.approx(best[token.position].probability, rel=1e-3)
    assert generated == model.generate(
        prompt=PROMPT, length=6, steps=3, top_k=1
    )  # and needs no draw
    assert generated == model.generate(prompt=PROMPT, length=6, steps=3, temperature=1e-300)


def test_samples_have_the_probabilities_of_the_softmax() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().repeat(20_000, 1)
    at = np.arange(20_000)
    for sampling, wanted in (
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(temperature=0.5), [0.6849, 0.2466, 0.0616, 0.0068]),
    ):
        tokens, probabilities = sampling.draw(logits, at, 0)
        shares = np.bincount(tokens, minlength=4) / len(at)
        assert shares == pytest.approx(wanted, abs=4 * 0.5 / len(at) ** 0.5)
        assert torch.allclose(probabilities, logits.double().exp()[at, tokens])


def test_the_command_shows_the_steps_the_text_or_json(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["generate", str(run), "--length", "6", "--steps", "3", "--seed", "2"]
    generated = clozelab.generate(str(run), length=6, steps=3, seed=2, progress=False)
    assert cli.main(command) == 0
    assert capsys.readouterr().out.rstrip("\n").splitlines() == generated.text.splitlines()
    assert cli.main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads(json.dumps(generated.as_json()))
    assert record["text"] == generated.text and len(record["steps"]) == 3
    monkeypatch.setattr(views.out, "_force_terminal", True)
    assert cli.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("_") for line in lines[:3]] == [4, 2, 0]


def test_a_line_for_each_step_has_masks_old_tokens_and_new_ones(model: Model) -> None:
    generated = model.generate(length=9, steps=3)
    for step in range(3):
        line = views._line(generated, step)
        new = [line.plain[span.start : span.end] for span in line.spans if "green" in span.style]
        assert new == [token.token.removeprefix("##") for token in _ordered(generated, step)]
        masked = [span for span in line.spans if span.style == "dim"]
        assert len(masked) == 9 - 3 * (step + 1)


def _ordered(generated: Generated, step: int) -> list[Any]:
    return sorted(generated.steps[step], key=lambda token: token.position)


@pytest.mark.parametrize("name", ["bert", "electra", "albert"])
def test_any_masked_language_model_generates(name: str, tmp_path: Path) -> None:
    run_pretraining(pretrain_job(name, "encoder.embedding_size=16", steps=1), tmp_path / "run")
    generated = clozelab.generate(str(tmp_path / "run"), length=5, prompt="a b", progress=False)
    assert len(generated.steps) == 5 and generated.text.startswith("a b")


def test_it_goes_out_as_roberta_which_says_the_same(
    run: Path, model: Model, tmp_path: Path
) -> None:
    clozelab.export(str(run), tmp_path / "hf", progress=False)
    assert isinstance(
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf"),
        transformers.RobertaForMaskedLM,
    )
    ours, theirs = (
        generate(each_model, length=8, steps=4)
        for each_model in (model, load(str(tmp_path / "hf")))
    )
    assert numbers(ours) == numbers(theirs)


@pytest.mark.slow
def test_it_learns_a_text_and_says_what_stands_in_it(tmp_path: Path) -> None:
    width = [
        "encoder.hidden_size=64",
        "encoder.intermediate_size=256",
        "encoder.embedding_size=64",
        "encoder.layers=2",
    ]
    recipe = shrunk("diffusion", *width, "optimiser.learning_rate=3e-3", steps=150, batch_size=16)
    few = store("byte_bpe", documents=3, variant="embedded")  # a text that it can learn by heart
    events = run_pretraining(fresh(recipe, data=[few], seed=0), tmp_path / "run")
    losses = [means(each.sums)["masked_lm"]["loss"] for each in events if isinstance(each, Step)]
    assert fmean(losses[-10:]) < 0.5 * fmean(losses[:5])  # of log V at first
    ids = Corpus.open(few).documents("train").ids
    pairs = {*pairwise(ids.tolist())}
    shares = np.bincount(ids) / len(ids)
    by_chance = sum(shares[first] * shares[second] for first, second in pairs)
    model = load(str(tmp_path / "run"))
    texts = [numbers(model.generate(length=28, seed=seed)) for seed in range(4)]
    assert fmean(pair in pairs for text in texts for pair in pairwise(text)) > 3 * by_chance
