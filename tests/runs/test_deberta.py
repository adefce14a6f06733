"""A run of DeBERTa-v3 through every command: what is its table's, and what its generator's."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.corpora import write
from support.finetune_tasks import finetune_request, run_finetuning, sample_file
from support.pretrain_runs import (
    HERE,
    MACHINE,
    assert_detects,
    pretrain_job,
    run_pretraining,
    shrunk,
    store,
)
from torch import Tensor

import clozelab
from clozelab import cli
from clozelab.errors import UserError
from clozelab.models.fill import _mask_blanks
from clozelab.models.generator import generator_of
from clozelab.models.history import longest_block
from clozelab.models.load import load
from clozelab.pretraining.starting import continued
from clozelab.pretraining.trainer import PretrainTrainer

torch.set_num_threads(1)
TEXT = "The river was wide, and slow."
WORDS, DELTA = "encoder.embeddings.words.weight", "encoder.embeddings.delta"
SILENT: dict[str, Any] = {"progress": False}
LEARNING = ("encoder.layers=2", "optimiser.learning_rate=0.01")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("deberta") / "run"
    run_pretraining(pretrain_job("deberta", *LEARNING, "blocks.length=64", steps=8), place)
    return place


@pytest.fixture(scope="module")
def hf(run: Path) -> Path:
    clozelab.export(str(run), run.parent / "hf", **SILENT)
    return run.parent / "hf"


def weights(place: Path | str) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in load(str(place)).module.named_parameters()}


def test_generator_and_encoder_went_apart_from_one_table(run: Path) -> None:
    assert float(weights(run)[DELTA].abs().max()) > 1e-3
    assert not any(name.startswith(f"heads.generator.{WORDS}") for name in weights(run))


def test_what_is_exported_is_the_sum_and_the_generator_has_its_own(run: Path, hf: Path) -> None:
    model = load(str(run))
    ids = torch.from_numpy(model.reader().read([TEXT])[0].columns["ids"].astype(np.int64))[None]
    peer = transformers.AutoModel.from_pretrained(hf).eval()
    assert type(peer).__name__ == "DebertaV2Model"
    table = peer.embeddings.word_embeddings.weight
    assert torch.equal(table, weights(run)[WORDS] + weights(run)[DELTA])
    masked = transformers.AutoModelForMaskedLM.from_pretrained(hf, subfolder="generator").eval()
    assert torch.equal(masked.deberta.embeddings.word_embeddings.weight, weights(run)[WORDS])
    generator = generator_of(model)
    assert generator is not None
    with torch.no_grad():
        states, _ = model.encode([TEXT])
        assert (peer(ids).last_hidden_state - states).abs().max() < 1e-4
        read, _ = generator.encode([TEXT])
        head: Any = generator.module.heads["masked_lm"]
        logits = head.logits(read[0], generator.module.encoder.embeddings.words.weight)
        assert (masked(ids).logits[0] - logits).abs().max() < 1e-3


def test_blanks_and_scores_are_the_generator_s(run: Path, hf: Path) -> None:
    text = TEXT.replace("wide", "[MASK]")
    filled, alone = (clozelab.fill(str(each), text, **SILENT) for each in (run, hf / "generator"))
    guesses = [[guess.token for guess in each.blanks[0]] for each in (filled, alone)]
    assert guesses[0] == guesses[1]
    scores = [
        clozelab.score(str(place), text=[TEXT], **SILENT).texts[0].log_likelihood
        for place in (run, hf / "generator")
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_both_come_back_and_go_out_again(run: Path, hf: Path, tmp_path: Path) -> None:
    """But for the head that detects, for which there is no class."""
    clozelab.import_model(str(hf), tmp_path / "in", **SILENT)
    came, was = weights(tmp_path / "in"), weights(run)
    assert was.keys() - came.keys() == {n for n in was if n.startswith("heads.replaced_token.")}
    for name, value in came.items():
        torch.testing.assert_close(value, was[name], rtol=0, atol=1e-6, msg=name)
    part: Any = load(str(tmp_path / "in")).recipe.objectives[0]
    assert (part.share, part.depth, part.sharing) == (1.0, 0.5, "gradient_disentangled")
    vectors = [clozelab.embed(str(each), [TEXT], **SILENT).vectors for each in (run, hf)]
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
    clozelab.export(str(tmp_path / "in"), tmp_path / "out", **SILENT)
    for file in ("config.json", "generator/config.json", "generator/model.safetensors"):
        assert (hf / file).read_bytes() == (tmp_path / "out" / file).read_bytes(), file


def test_without_its_generator_it_is_an_encoder_alone(hf: Path, tmp_path: Path) -> None:
    shutil.copytree(hf, tmp_path / "hf", ignore=shutil.ignore_patterns("generator"))
    model = load(str(tmp_path / "hf"))
    assert [*model.module.heads] == [] and DELTA not in weights(tmp_path / "hf")
    whole, alone = (
        clozelab.embed(str(each), [TEXT], **SILENT).vectors for each in (hf, model.place)
    )
    assert np.abs(whole - alone).max() < 1e-5
    job = continued(shrunk("deberta", steps=2), model.place, data=[store("unigram")], seed=0)
    trainer = PretrainTrainer(job, MACHINE, HERE)
    assert trainer.notes()[-1] == "fresh weights for generator, replaced_token"
    start = dict(trainer.model.named_parameters())
    assert torch.equal(start[WORDS], weights(tmp_path / "hf")[WORDS]) and not start[DELTA].any()


def test_an_imported_generator_reads_texts_as_it_does_alone(hf: Path, tmp_path: Path) -> None:
    """Its mask leaves the space before it to be a token, as in many published tokenizers."""
    shutil.copytree(hf, tmp_path / "hf")
    for folder in (tmp_path / "hf", tmp_path / "hf" / "generator"):
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        tokenizer["normalizer"] = None  # which takes spaces from the ends of texts
        for token in tokenizer["added_tokens"]:
            token["lstrip"] = False
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    beside = generator_of(load(str(tmp_path / "hf")))
    alone = load(str(tmp_path / "hf" / "generator"))
    assert beside is not None
    read = [_mask_blanks(each, ["the river was ", " and"], masked=True) for each in (beside, alone)]
    assert read[0][0].tolist() == read[1][0].tolist()
    before = int(read[0][0][read[0][1][0] - 1])
    assert beside.tokenizer.id_to_token(before) == "▁"
    assert longest_block(beside) == longest_block(alone)


def test_a_generator_of_another_width_is_refused(hf: Path, tmp_path: Path) -> None:
    shutil.copytree(hf, tmp_path / "hf", ignore=shutil.ignore_patterns("generator"))
    settings = {"hidden_size": 16, "intermediate_size": 64, "num_attention_heads": 1}
    config = transformers.DebertaV2Config.from_pretrained(hf / "generator", **settings)
    transformers.DebertaV2ForMaskedLM(config).save_pretrained(tmp_path / "hf" / "generator")
    with pytest.raises(UserError, match="generator: embedding_size = 16, and the generator of an"):
        load(str(tmp_path / "hf"))


def test_a_run_goes_on_from_both_tables_and_another_recipe_from_their_sum(run: Path) -> None:
    recipe = shrunk("deberta", "encoder.layers=2", "objectives.0.sharing=none", steps=2)
    job = continued(recipe, str(run), data=[store("unigram")], seed=0)
    start = dict(PretrainTrainer(job, MACHINE, HERE).model.named_parameters())
    was = weights(run)
    assert start.keys() == was.keys() and all(torch.equal(start[name], was[name]) for name in was)
    recipe = shrunk("albert", "encoder.sharing=none", steps=2)
    job = continued(recipe, str(run), data=[store("unigram")], seed=0)
    start = dict(PretrainTrainer(job, MACHINE, HERE).model.named_parameters())
    assert torch.equal(start[WORDS], was[WORDS] + was[DELTA]) and DELTA not in start


def test_new_words_have_a_row_in_both_tables(run: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "new.jsonl", ["The plasmation and gastrology of plasmatics. " * 6] * 10)
    command = ["corpus", "build", file, "--out", str(tmp_path / "c"), "--workers", "1"]
    assert cli.main([*command, "--tokenizer-from", str(run), "--extend", "3"]) == 0
    recipe = shrunk("deberta", "encoder.layers=2", steps=1)
    job = continued(recipe, str(run), data=[str(tmp_path / "c")], seed=0)
    run_pretraining(job, tmp_path / "more")
    rows = [len(weights(tmp_path / "more")[name]) for name in (WORDS, DELTA)]
    assert rows[0] == rows[1] == len(weights(run)[WORDS]) + 3


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("classify", "ForSequenceClassification"), ("tag", "ForTokenClassification")],
)
def test_it_is_tuned_from_the_sum_and_goes_out_as_deberta(
    run: Path, tmp_path: Path, kind: str, ending: str
) -> None:
    file = sample_file({"classify": "definitions", "tag": "tags"}[kind], 24)
    run_finetuning(
        finetune_request(kind, file, "epochs=1", "learning_rate=1e-12", model=str(run)),
        tmp_path / "tuned",
    )
    table = weights(tmp_path / "tuned")[WORDS]
    was = weights(run)
    torch.testing.assert_close(table, was[WORDS] + was[DELTA], rtol=0, atol=1e-6)
    clozelab.export(str(tmp_path / "tuned"), tmp_path / "hf", **SILENT)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert config.architectures == [f"DebertaV2{ending}"]


def test_a_student_starts_from_the_teacher_s_sum_and_its_distances(tmp_path: Path) -> None:
    settings = ('objectives=[{use="masked_lm"}]', "corruption.mask=0.8")
    run_pretraining(pretrain_job("deberta", *LEARNING, *settings), tmp_path / "teacher")
    clozelab.distil(
        str(tmp_path / "teacher"), data=store("unigram"), out=tmp_path / "run",
        set=["schedule.steps=1", "schedule.warmup=0", "optimiser.learning_rate=1e-12"], **SILENT,
    )  # fmt: skip
    mine, theirs = weights(tmp_path / "run"), weights(tmp_path / "teacher")
    for name in (WORDS, "encoder.relative.weight", "encoder.relative_norm.weight"):
        torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_mask_decoder_is_trained_filled_tuned_and_becomes_a_graph(tmp_path: Path) -> None:
    settings = ('objectives=[{use="masked_lm"}]', "encoder.absolute_positions=decoder")
    run_pretraining(
        pretrain_job("deberta", *LEARNING, "corruption.mask=0.8", *settings), tmp_path / "run"
    )
    model = load(str(tmp_path / "run"))
    assert len(clozelab.fill(model, "The [MASK] was wide.", **SILENT).blanks) == 1
    assert math.isfinite(clozelab.score(model, text=[TEXT], **SILENT).texts[0].log_likelihood)
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "hf")]) == 2
    clozelab.export(model, tmp_path / "graph", onnx=True, **SILENT)
    assert (tmp_path / "graph" / "model.onnx").exists()
    run_finetuning(
        finetune_request("classify", sample_file("definitions", 24), model=model.place),
        tmp_path / "tuned",
    )
    clozelab.export(str(tmp_path / "tuned"), tmp_path / "out", **SILENT)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["DebertaV2ForSequenceClassification"]


@pytest.mark.slow
def test_it_learns_which_tokens_were_replaced_not_just_how_many() -> None:
    assert_detects("deberta", steps=340)
