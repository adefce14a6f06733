"""Directories that sentence-transformers opens, with the vectors that the model has here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.pretrain_runs import pretrain_job, run_pretraining
from transformers import AutoModel, AutoTokenizer

import clozelab
from clozelab.cli import main
from clozelab.errors import UserError
from clozelab.models.embed import Neighbours

TEXTS = [
    "A small wild cat sat on the mat.",
    "The dog looked at the cat, and then it slept for a long time beside the fire.",
    "Bread",
    "",
    "words " * 90,  # more than the model reads
]


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    # Blocks as long as the encoder reads, since sentence-transformers reads no longer texts.
    overrides = ["encoder.positions=48", "blocks.length=48", "encoder.layers=2"]
    run_pretraining(pretrain_job("simcse", *overrides, steps=2), folder / "cls")
    run_pretraining(
        pretrain_job("simcse", *overrides, "objectives.0.pooling=mean_all", steps=2),
        folder / "mean_all",
    )
    run_pretraining(
        pretrain_job("simcse", *overrides, "objectives.0.pooling=mean", steps=1), folder / "mean"
    )
    run_pretraining(pretrain_job("roberta", *overrides, steps=1), folder / "roberta")
    run_pretraining(pretrain_job("retromae", *overrides, steps=2), folder / "retromae")
    return folder


@pytest.mark.slow  # the library takes long to import
@pytest.mark.parametrize(
    ("name", "pool"),
    [("cls", "cls"), ("mean_all", "mean_all"), ("roberta", "mean_all"), ("retromae", "cls")],
)
def test_its_vectors_are_those_of_embed(
    name: str, pool: str, models_dir: Path, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    options = ["--pool", pool] if name == "roberta" else []
    assert main(["export", str(models_dir / name), str(tmp_path / "out"), *options]) == 0
    model = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    mine = clozelab.embed(str(models_dir / name), TEXTS, pool=pool).vectors
    theirs = model.encode(TEXTS)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
    assert mine.std(axis=0).max() > 1e-3
    assert model.get_max_seq_length() == 48
    assert model.similarity_fn_name == "cosine"
    model.save(str(tmp_path / "saved"))  # with the names of the installed version
    assert clozelab.load(tmp_path / "saved").pooling == pool
    with pytest.raises(UserError, match="save it with save_pretrained, and give the folder"):
        clozelab.load(model)


def test_the_modules_are_written_for_models_of_sentence_vectors_alone(
    models_dir: Path, tmp_path: Path
) -> None:
    clozelab.export(models_dir / "cls", tmp_path / "cls")
    modules = json.loads((tmp_path / "cls" / "modules.json").read_text("utf-8"))
    assert [each["path"] for each in modules] == ["", "1_Pooling"]
    pooling = json.loads((tmp_path / "cls" / "1_Pooling" / "config.json").read_text("utf-8"))
    assert pooling["pooling_mode_cls_token"] and not pooling["pooling_mode_mean_tokens"]
    assert pooling["word_embedding_dimension"] == 32
    clozelab.export(models_dir / "retromae", tmp_path / "retromae")
    file = tmp_path / "retromae" / "1_Pooling" / "config.json"
    assert json.loads(file.read_text("utf-8")) == pooling
    with safe_open(tmp_path / "retromae" / "model.safetensors", "np") as tensors:
        assert {name.split(".")[0] for name in tensors.keys()} == {"bert", "cls"}  # noqa: SIM118
    # Opened or imported here, it has the same vectors.
    assert clozelab.load(tmp_path / "cls").pooling == "cls"
    imported = clozelab.import_model(tmp_path / "cls", tmp_path / "imported")
    assert imported.load().pooling == "cls"
    clozelab.export(models_dir / "roberta", tmp_path / "pooled", pool="mean_all")
    assert clozelab.load(tmp_path / "pooled").pooling == "mean_all"
    (tmp_path / "pooled" / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": 1}')
    assert clozelab.load(tmp_path / "pooled").pooling is None
    config = tmp_path / "pooled" / "1_Pooling" / "config.json"
    for mode, pooling in {'"mean"': "mean_all", '"cls"': "cls", '"max"': None}.items():
        config.write_text(f'{{"embedding_dimension": 32, "pooling_mode": {mode}}}')
        assert clozelab.load(tmp_path / "pooled").pooling == pooling
    config.write_text('{"pooling_mode": ["cls", "mean"]}')  # several one after another
    assert clozelab.load(tmp_path / "pooled").pooling is None
    for name in ("mean", "roberta"):  # which the library has no word for, and which has no vectors
        clozelab.export(models_dir / name, tmp_path / name)
        assert not (tmp_path / name / "modules.json").exists()


@pytest.mark.parametrize("file", ["sentence_bert_config.json", "sentence_roberta_config.json"])
@pytest.mark.parametrize("length", [2, 3, 20, 48])
def test_a_text_is_read_as_far_as_the_library_reads_it(
    models_dir: Path, tmp_path: Path, file: str, length: int
) -> None:
    clozelab.export(models_dir / "cls", tmp_path / "cls")
    (tmp_path / "cls" / "sentence_bert_config.json").unlink()
    (tmp_path / "cls" / file).write_text(json.dumps({"max_seq_length": length}))
    library = AutoModel.from_pretrained(tmp_path / "cls").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "cls")
    model = clozelab.import_model(tmp_path / "cls", tmp_path / "imported").load()
    for pool in ("cls", "mean_all"):
        wanted = []
        for text in TEXTS:  # as its Transformer and its Pooling compute them
            ids = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")
            with torch.no_grad():
                states = library(**ids).last_hidden_state[0]
            wanted.append((states[0] if pool == "cls" else states.mean(dim=0)).numpy())
        vectors = model.embed(TEXTS, pool=pool).vectors
        np.testing.assert_allclose(vectors, np.stack(wanted), rtol=0, atol=1e-6)
    states, present = model.encode(TEXTS)
    assert states.shape[1] == present.sum(dim=1).max() == length
    clozelab.export(tmp_path / "imported", tmp_path / "again")
    again = json.loads((tmp_path / "again" / "sentence_bert_config.json").read_text("utf-8"))
    assert again["max_seq_length"] == length


def test_modules_that_are_ignored_are_named(models_dir: Path, tmp_path: Path) -> None:
    clozelab.export(models_dir / "cls", tmp_path / "cls")
    assert not clozelab.load(tmp_path / "cls").notes
    file = tmp_path / "cls" / "modules.json"
    modules = json.loads(file.read_text("utf-8"))
    for kind in ("Normalize", "Dense", "LayerNorm"):
        modules.append({"path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"})
    file.write_text(json.dumps(modules))
    (note,) = clozelab.load(tmp_path / "cls").notes
    assert "which also applies Dense, LayerNorm" in note


def test_a_vector_that_the_library_cannot_take_is_refused(tmp_path: Path) -> None:
    run_pretraining(pretrain_job("gpt", steps=1), tmp_path / "gpt")
    with pytest.raises(UserError, match="use --pool mean_all"):
        clozelab.export(tmp_path / "gpt", tmp_path / "out", pool="cls")
    assert not (tmp_path / "out").exists()


def test_the_nearest_texts_are_found_by_cosine(
    models_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    lines = ["a loaf of dark bread", "", "the cat sat", "a wild cat", "the cat sat"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["embed", str(models_dir / "cls"), "--file", str(file), "--near", "the cat sat"]
    assert main([*command, "--top", "3"]) == 0
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    assert [row[1:] for row in rows[:2]] == [["3", "the cat sat"], ["5", "the cat sat"]]
    assert rows[0][0] == rows[1][0] == "1.0000" and len(rows) == 3
    every = clozelab.embed(models_dir / "cls", lines, near="the cat sat", top=9)
    vectors = clozelab.embed(models_dir / "cls", lines, pool="cls").vectors.astype(np.float64)
    query = vectors[2]
    for each in every:  # by a plain computation; the empty line is not there
        row = vectors[each.line - 1]
        cosine = row @ query / np.sqrt((row @ row) * (query @ query))
        assert each.cosine == pytest.approx(cosine, abs=1e-6)
    assert sorted(each.line for each in every) == [1, 3, 4, 5]
    assert isinstance(every, Neighbours) and every[0].line == 3 and every[-1] == list(every)[-1]
    cosines = [each.cosine for each in every]
    assert cosines == sorted(cosines, reverse=True)
    short = clozelab.embed(models_dir / "cls", lines, near="the cat sat", dimensions=4)
    assert short.vectors.vectors.shape == (5, 4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--out or --near is missing"),
        (["--near", " "], "--near: is empty"),
        (["--near", "a", "--words", "first"], "--near compares whole texts"),
        (["--near", "a", "--top", "0"], "--top 0: must be at least 1"),
        (["--near", "a", "--dimensions", "33"], "give 1 to 32"),
        (["--near", "a", "--file", "EMPTY"], "is empty; write one text per line"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(
    arguments: list[str],
    sentence: str,
    models_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "EMPTY").write_text("\n \n", encoding="utf-8")
    if "EMPTY" in arguments:
        arguments = [*arguments[:-1], str(tmp_path / "EMPTY")]
        assert main(["embed", str(models_dir / "cls"), *arguments]) == 2
    else:
        assert main(["embed", str(models_dir / "cls"), "a text", *arguments]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert sentence in message and "Traceback" not in message


def test_a_query_longer_than_the_model_is_cut_and_told(
    models_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(models_dir / "cls"), "a cat", "--near", "cat " * 100]) == 0
    assert "maximum length and was truncated" in " ".join(capsys.readouterr().err.split())


def test_a_model_of_sentence_vectors_is_probed_by_them(models_dir: Path) -> None:
    from clozelab.models.load import load
    from clozelab.scoring.frozen import FrozenEncoder

    for name, pool in {"cls": "cls", "mean_all": "mean_all", "roberta": "mean"}.items():
        model = load(str(models_dir / name))
        assert FrozenEncoder(model, model.device).pool == pool
