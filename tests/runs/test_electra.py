"""A run of ELECTRA through every command: asked, tuned, measured, sent out and taken in again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from support.corpora import write
from support.finetune_tasks import finetune_request, run_finetuning, sample_file
from support.pretrain_runs import (
    MACHINE,
    QUIET,
    assert_detects,
    pretrain_job,
    run_pretraining,
    shrunk,
    store,
)

import clozelab
from clozelab import cli
from clozelab.config import recipe as recipes
from clozelab.contracts import Input
from clozelab.errors import UserError
from clozelab.models.generator import generator_of
from clozelab.models.load import load
from clozelab.pretraining.pretrain import pretrain, resume
from clozelab.pretraining.starting import continued, fresh, resumed
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.session import SaveOptions
from clozelab.studies import spec as studies
from clozelab.training.loop import Step
from clozelab.training.world import World

torch.set_num_threads(1)
TEXT = "The river was wide, and slow."
HERE = World(0, 1, torch.device("cpu"))
SILENT: dict[str, Any] = {"progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("electra") / "run"
    run_pretraining(
        pretrain_job(
            "electra", "encoder.embedding_size=16", "encoder.layers=2", "blocks.length=64"
        ),
        place,
    )
    return place


@pytest.fixture(scope="module")
def hf(run: Path) -> Path:
    clozelab.export(str(run), run.parent / "hf", **SILENT)
    return run.parent / "hf"


def weights(place: Path | str) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in load(str(place)).module.named_parameters()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_blanks_are_filled_and_texts_scored_by_the_generator(
    run: Path, hf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TEXT.replace("wide", "[MASK]")
    assert cli.main(["fill", str(run), text]) == 0
    assert "its generator is used instead" in capsys.readouterr().err
    filled = clozelab.fill(str(run), text, **SILENT)
    alone = clozelab.fill(str(hf / "generator"), text, **SILENT)
    guesses = [[guess.token for guess in each.blanks[0]] for each in (filled, alone)]
    assert guesses[0] == guesses[1]
    scores = [
        clozelab.score(str(place), text=[TEXT], **SILENT).texts[0].log_likelihood
        for place in (run, hf / "generator")
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_vectors_are_the_encoder_s_and_probes_read_them(run: Path) -> None:
    model = load(str(run))
    assert (
        clozelab.embed(model, [TEXT], **SILENT).vectors.shape[1] == model.recipe.encoder.hidden_size
    )
    before = clozelab.embed(model, [TEXT], **SILENT).vectors
    clozelab.fill(model, "A [MASK].", **SILENT)  # by modules that both share
    assert np.array_equal(clozelab.embed(model, [TEXT], **SILENT).vectors, before)


def test_transformers_says_the_same_of_both(run: Path, hf: Path) -> None:
    model = load(str(run))
    row = model.reader().with_special_tokens(model.reader().pieces([TEXT]).part(slice(0, 9)))
    ids = torch.from_numpy(row.columns["ids"].astype(np.int64))[None]
    with torch.no_grad():
        theirs = transformers.AutoModelForPreTraining.from_pretrained(hf).eval()(ids).logits[0]
        vocabulary = transformers.AutoModelForMaskedLM.from_pretrained(hf, subfolder="generator")
        logits = vocabulary.eval()(ids).logits[0]
        generator = generator_of(model)
        assert generator is not None
        starts = torch.tensor([0, ids.shape[1]], dtype=torch.int32)
        places = torch.arange(ids.shape[1])
        batch = Input(ids[0], places, torch.zeros_like(places), starts, len(places))
        pairs = {"replaced_token": (model, theirs[:, None]), "masked_lm": (generator, logits)}
        for head, (own_logits, wanted) in pairs.items():
            read, own = own_logits.module.encode(batch), own_logits.module.heads[head]
            assert (own.logits(read.hidden_states, read.table) - wanted).abs().max() < 1e-4


def test_both_come_back_as_they_went(run: Path, hf: Path, tmp_path: Path) -> None:
    assert same(weights(hf), weights(run))
    clozelab.import_model(str(hf), tmp_path / "in", **SILENT)
    clozelab.export(str(tmp_path / "in"), tmp_path / "out", **SILENT)
    for file in ("model.safetensors", "config.json", "generator/model.safetensors"):
        assert (hf / file).read_bytes() == (tmp_path / "out" / file).read_bytes(), file


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        ("encoder.activation=relu", ("ElectraForPreTraining", "AlbertForMaskedLM")),
        ("encoder.norm=pre", ("RobertaPreLayerNormModel", "RobertaPreLayerNormForMaskedLM")),
    ],
)
def test_what_electra_s_classes_cannot_have_goes_out_as_another(
    tmp_path: Path, setting: str, kinds: tuple[str, str]
) -> None:
    share = "objectives.0.share=1.0" if "pre" in setting else "objectives.0.share=0.5"
    run_pretraining(pretrain_job("electra", setting, share, steps=1), tmp_path / "run")
    clozelab.export(str(tmp_path / "run"), tmp_path / "hf", **SILENT)
    for place, kind in zip((tmp_path / "hf", tmp_path / "hf" / "generator"), kinds, strict=True):
        assert json.loads((place / "config.json").read_text())["architectures"] == [kind]


def test_without_its_generator_it_detects_and_predicts_nothing(hf: Path, tmp_path: Path) -> None:
    shutil.copytree(hf, tmp_path / "hf", ignore=shutil.ignore_patterns("generator"))
    model = load(str(tmp_path / "hf"))
    assert [*model.module.heads] == ["replaced_token"]
    with pytest.raises(UserError, match="predicts no tokens; name its generator"):
        clozelab.fill(model, "A [MASK].", **SILENT)
    with pytest.raises(UserError, match="is a discriminator"):
        clozelab.score(model, text=[TEXT], **SILENT)
    clozelab.export(model, tmp_path / "out", **SILENT)
    assert not (tmp_path / "out" / "generator").exists()


def beside(hf: Path, folder: Path, **settings: Any) -> Path:
    """The encoder with another generator beside it, of weights at random."""
    shutil.copytree(hf, folder)
    config = transformers.ElectraConfig.from_pretrained(folder / "generator", **settings)
    model = transformers.ElectraForMaskedLM(config)
    shutil.rmtree(folder / "generator")
    model.save_pretrained(folder / "generator")
    return folder


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"hidden_size": 64},
            r"hf: generator: hidden_size = 64 is more than the encoder's 32; give the",
        ),
        ({"num_hidden_layers": 3}, r"generator: layers = 3 is more than the encoder's 2; give the"),
        (
            {"intermediate_size": 8},
            r"generator: intermediate_size = 8, and .* of hidden size 32 has 32 here; give",
        ),
        ({"num_attention_heads": 2}, r"generator: heads = 2, and .* of hidden size 32 has 1 here"),
        ({"tie_word_embeddings": False}, r"generator: its head has a table of its own; give the"),
        ({"vocab_size": 99}, r"generator: has 99 tokens, but the encoder "),
    ],
)
def test_a_generator_that_the_encoder_cannot_have_is_refused(
    hf: Path, tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        load(str(beside(hf, tmp_path / "hf", **settings)))


def test_options_of_a_generator_that_are_not_built_are_named(hf: Path, tmp_path: Path) -> None:
    shutil.copytree(hf, tmp_path / "hf")
    file = tmp_path / "hf" / "generator" / "config.json"
    changed = {**json.loads(file.read_text()), "position_embedding_type": "relative_key"}
    file.write_text(json.dumps(changed))
    with pytest.raises(UserError, match=r"generator: config.json: position_embedding_type = 'rel"):
        load(str(tmp_path / "hf"))


def test_a_generator_with_tables_of_its_own_keeps_them(hf: Path, tmp_path: Path) -> None:
    folder = beside(hf, tmp_path / "hf", num_hidden_layers=1)
    part: Any = load(str(folder)).recipe.objectives[0]
    assert (part.sharing, part.share, part.depth) == ("none", 0.25, 0.5)
    clozelab.import_model(str(folder), tmp_path / "in", **SILENT)
    clozelab.export(str(tmp_path / "in"), tmp_path / "out", **SILENT)
    theirs, back = (load_file(place / "generator" / "model.safetensors")
                    for place in (folder, tmp_path / "out"))  # fmt: skip
    assert same(theirs, back)


def test_a_run_goes_on_from_both_whatever_the_recipe_s_share(hf: Path, tmp_path: Path) -> None:
    recipe = shrunk("electra", "objectives.0.share=0.5", "schedule.steps=2")
    job = continued(recipe, str(hf), data=[store("wordpiece")], seed=0)
    part: Any = job.recipe.objectives[0]
    assert part.share == 0.25
    trainer = PretrainTrainer(job, MACHINE, HERE)
    assert same({n: p.detach() for n, p in trainer.model.named_parameters()}, weights(hf))
    assert trainer.notes() == []
    list(pretrain(job, tmp_path / "run", machine=MACHINE, saving=QUIET))
    again = resumed(tmp_path / "run", recipe=recipe, data=[store("wordpiece")])
    assert again.recipe.objectives == job.recipe.objectives


def test_a_run_goes_on_from_the_encoder_alone_and_from_bert(hf: Path, tmp_path: Path) -> None:
    shutil.copytree(hf, tmp_path / "hf", ignore=shutil.ignore_patterns("generator"))
    run_pretraining(pretrain_job("bert"), tmp_path / "bert")
    for place, fresh_heads in ((tmp_path / "hf", "generator"),
                               (tmp_path / "bert", "generator, replaced_token")):  # fmt: skip
        job = continued(shrunk("electra"), str(place), data=[store("wordpiece")], seed=0)
        trainer = PretrainTrainer(job, MACHINE, HERE)
        assert trainer.notes()[-1] == f"fresh weights for {fresh_heads}"
        shared = trainer.model.heads["generator"].encoder.embeddings.words.weight
        assert shared is trainer.model.encoder.embeddings.words.weight


@pytest.mark.parametrize("sharing", ["embeddings", "none"])
def test_new_words_have_a_row_in_every_table(sharing: str, tmp_path: Path) -> None:
    run_pretraining(pretrain_job("electra", f"objectives.0.sharing={sharing}"), tmp_path / "run")
    file = write(tmp_path / "new.jsonl", ["The plasmation and gastrology of plasmatics. " * 6] * 10)
    command = ["corpus", "build", file, "--out", str(tmp_path / "c"), "--workers", "1"]
    assert cli.main([*command, "--tokenizer-from", str(tmp_path / "run"), "--extend", "3"]) == 0
    recipe = shrunk("electra", f"objectives.0.sharing={sharing}", steps=1)
    job = continued(recipe, str(tmp_path / "run"), data=[str(tmp_path / "c")], seed=0)
    run_pretraining(job, tmp_path / "more")
    assert load(str(tmp_path / "more")).step == 1


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_it_is_tuned_and_goes_out_as_electra(run: Path, tmp_path: Path, kind: str) -> None:
    file = sample_file({"classify": "definitions", "tag": "tags"}[kind], 24)
    run_finetuning(finetune_request(kind, file, model=str(run)), tmp_path / "tuned")
    model = load(str(tmp_path / "tuned"))
    assert not any(
        name.startswith("heads.generator") for name, _ in model.module.named_parameters()
    )
    clozelab.export(model, tmp_path / "hf", **SILENT)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    ending = {"classify": "SequenceClassification", "tag": "TokenClassification"}[kind]
    assert config.architectures == [f"ElectraFor{ending}"]


def test_held_out_losses_are_the_same_every_time_and_under_other_masks(run: Path) -> None:
    first, second = (
        clozelab.evaluate(str(run), data=store("wordpiece"), blocks=16, **SILENT) for _ in range(2)
    )
    assert first == second and {*first} == {"generator", "replaced_token"}
    assert 0 <= first["replaced_token"]["accuracy_replaced"] <= 1
    other = clozelab.evaluate(
        str(run), data=store("wordpiece"), blocks=16, masks="spanbert", **SILENT
    )
    assert other["generator"]["loss"] != first["generator"]["loss"]


@pytest.mark.slow
def test_it_learns_which_tokens_were_replaced_not_just_how_many() -> None:
    assert_detects("electra", steps=150)


def test_the_ablations_of_the_paper_run_and_resume(tmp_path: Path) -> None:
    for variant in studies.read("masked-or-replaced").variants:
        recipe, place = shrunk("electra", steps=2).override(variant.set), tmp_path / variant.name
        for event in pretrain(
            fresh(recipe, data=[store("wordpiece")], seed=0),
            place,
            machine=MACHINE,
            saving=SaveOptions(save_every=1, evaluate_every=0, evaluate_blocks=8),
        ):
            if isinstance(event, Step) and event.number == 1:
                break
        list(resume(resumed(place), place, machine=MACHINE, saving=QUIET))
        run_pretraining(fresh(recipe, data=[store("wordpiece")], seed=0), tmp_path / "straight")
        assert same(weights(place), weights(tmp_path / "straight"))
        shutil.rmtree(tmp_path / "straight")


def test_the_published_sizes_have_the_parameters_of_transformers() -> None:
    released = {
        "released_small": (128, 256, 12, 4, 1024, 64, 1),
        "base": (768, 768, 12, 12, 3072, 256, 4),
        "large": (1024, 1024, 24, 16, 4096, 256, 4),
    }
    for size, (narrow, width, layers, heads, inner, small, few) in released.items():
        recipe = recipes.read("electra", size=size)
        counts = recipe.parameters()
        shape: Any = recipe.objectives[0].shape(recipe.encoder)  # type: ignore[union-attr]
        assert (shape.hidden_size, shape.heads, shape.layers) == (small, few, layers)
        common = {"embedding_size": narrow, "num_hidden_layers": layers}
        both = (
            ("ElectraForPreTraining", {"hidden_size": width, "num_attention_heads": heads,
             "intermediate_size": inner}, ("encoder.", "replaced_token.")),
            ("ElectraForMaskedLM", {"hidden_size": small, "num_attention_heads": few,
             "intermediate_size": 4 * small}, ("generator.", "encoder.embeddings.")),
        )  # fmt: skip
        for cls, settings, names in both:
            config = transformers.ElectraConfig(**common, **settings)
            with torch.device("meta"):
                model = getattr(transformers, cls)(config)
            own = {n: c for n, c in counts.items() if n.startswith(names)}
            if cls == "ElectraForMaskedLM":  # the encoder's way to full width is not shared
                own.pop("encoder.embeddings.projection", None)
            assert model.num_parameters() == sum(own.values()), (size, cls)
