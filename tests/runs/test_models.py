"""The commands on a trained model: export, import, fill, embed, and words for an old tokenizer."""

from __future__ import annotations

import errno
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.commands import refused, run_command
from support.corpora import texts, write
from support.pretrain_runs import HERE, MACHINE, pretrain_job, run_pretraining, store
from tokenizers import Tokenizer

import clozelab
from clozelab import cli, embed
from clozelab.errors import UserError
from clozelab.models import reader
from clozelab.models.build import build as build_model
from clozelab.models.exchange import export
from clozelab.models.fill import _filled_parts, fill
from clozelab.models.history import longest_block
from clozelab.models.load import load, tied
from clozelab.models.reader import packed
from clozelab.pretraining.starting import continued
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.remote.cache import FOLDER
from clozelab.runs.directory import Run
from clozelab.runs.options import SaveOptions
from clozelab.runs.saving import set_weights
from clozelab.text import encoding
from clozelab.text.store import Corpus

KINDS = {
    "bert": "wordpiece",
    "roberta": "byte_bpe",
    "swift": "byte_bpe",
    "spanbert": "wordpiece",
    "albert": "unigram",
    "xlnet": "unigram",
    "gpt": "char_bpe",
    "elmo": "wordpiece",
    "modernbert": "byte_bpe",
}
FAMILIES = ["bert", "roberta", "swift", "albert", "xlnet", "gpt", "modernbert"]
SMALL = ["encoder.layers=2", "encoder.hidden_size=32", "schedule.batch_size=8", "blocks.length=32"]
ATTENTIVE = ["encoder.heads=2", "encoder.intermediate_size=128"]
NARROW = ["encoder.embedding_size=32", "encoder.positions=32"]
SETTINGS = {
    "xlnet": [*ATTENTIVE, "blocks.reuse=16", "blocks.rows=8"],
    "elmo": ["encoder.cell_size=64"],
}
TEXT = "The first [MASK] of the <mask> was here."
LINES = ["A small text.", "", "Another, rather longer text about nothing at all!", "x"]


def pretrain(recipe: str, *arguments: str) -> None:
    settings = [*SMALL, *SETTINGS.get(recipe, [*ATTENTIVE, *NARROW])]
    changes = [word for setting in settings for word in ("--set", setting)]
    steps = "4steps" if recipe in SETTINGS else "10steps"
    started = ["pretrain", recipe, "--size", "tiny", "--budget", steps, *changes, *arguments]
    assert cli.main([*started, "--device", "cpu", "--evaluate-every", "0"]) == 0


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of each kind and a run of each recipe, tiny."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    file = write(folder / "a.jsonl", texts(60))
    for kind in sorted(set(KINDS.values())):
        command = ["corpus", "build", file, "--out", str(folder / kind), "--tokenizer", kind]
        command += ["--vocabulary", "1000", "--held-out", "0.1", "--workers", "1"]
        assert cli.main(command) == 0
    for recipe, kind in KINDS.items():
        pretrain(recipe, "--data", str(folder / kind), "--out", str(folder / recipe))
    for recipe in FAMILIES:
        assert cli.main(["export", str(folder / recipe), str(folder / f"hf-{recipe}")]) == 0
    return folder


# Export and import.


@pytest.mark.parametrize("recipe", ["bert", "roberta", "swift", "albert", "modernbert"])
def test_the_pipeline_of_transformers_fills_an_exported_model_in_the_same_way(
    runs_dir: Path, recipe: str
) -> None:
    model = load(str(runs_dir / recipe))
    folder = str(runs_dir / f"hf-{recipe}")
    pipe: Any = transformers.pipeline(
        "fill-mask",
        transformers.AutoModelForMaskedLM.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
    )
    for text in ("The first [MASK] of the world.", "It was [MASK]", "[MASK] is in the [MASK] now"):
        guessed = pipe(text.replace("[MASK]", pipe.tokenizer.mask_token), top_k=3)
        guessed = [guessed] if isinstance(guessed[0], dict) else guessed
        mine = fill(model, text, top=3)
        assert [[g.number for g in guesses] for guesses in mine.blanks] == [
            [peer_guess["token"] for peer_guess in blank] for blank in guessed
        ]
        for guesses, blank in zip(mine.blanks, guessed, strict=True):
            for guess, peer_guess in zip(guesses, blank, strict=True):
                assert guess.probability == pytest.approx(peer_guess["score"], rel=1e-4)


@pytest.mark.parametrize("recipe", FAMILIES)
def test_transformers_makes_the_same_states_of_an_exported_model(
    runs_dir: Path, recipe: str
) -> None:
    folder = str(runs_dir / f"hf-{recipe}")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        theirs = model(**tokenizer(LINES[2], return_tensors="pt"))[0][0].numpy()
    own_model = load(str(runs_dir / recipe))
    (text,) = own_model.reader().read([LINES[2]])
    mine = embed(own_model, [LINES[2]], words="none").vectors
    np.testing.assert_allclose(mine, theirs[text.own], atol=1e-5)


@pytest.mark.parametrize("recipe", FAMILIES)
def test_an_imported_export_is_the_same_model(
    runs_dir: Path, tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "run")
    _, output = run_command(capsys, "import", str(runs_dir / f"hf-{recipe}"), place)
    assert "at step 0" in output and "fresh" not in output
    first, second = load(str(runs_dir / recipe)), load(place)
    assert second.step == 0
    assert second.module.heads.keys() == first.module.heads.keys()
    before, after = (
        embed(each_model, LINES, layer="all", words="none") for each_model in (first, second)
    )
    np.testing.assert_allclose(before.vectors, after.vectors, atol=1e-6)
    np.testing.assert_array_equal(before.offsets, after.offsets)
    if recipe != "gpt":
        assert fill(first, TEXT).blanks[0][0].number == fill(second, TEXT).blanks[0][0].number
    assert "not empty" in refused(capsys, "import", str(runs_dir / f"hf-{recipe}"), place)


def test_the_card_tells_recipe_data_and_results(runs_dir: Path) -> None:
    card = (runs_dir / "hf-roberta" / "README.md").read_text(encoding="utf-8")
    assert "[masking]" in card and "| corpora | byte_bpe |" in card
    assert str(runs_dir) not in card.replace(str(runs_dir / "hf-roberta"), "")
    assert "times" not in card and "limited by" not in card
    result = Run.open(runs_dir / "roberta").result()
    assert result is not None
    loss = result["held_out"]["masked_lm"]["loss"]
    assert f"| held out masked lm loss | {loss:.4g} |" in card


def test_an_export_appears_whole_or_not_at_all(
    runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("clozelab.models.interop.huggingface.write_tensors", full)
        with pytest.raises(OSError, match="No space left"):
            export(str(runs_dir / "bert"), tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []
    export(str(runs_dir / "bert"), tmp_path / "hf")
    assert [file.name for file in tmp_path.iterdir()] == ["hf"]


def test_export_says_what_it_left_out(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, output = run_command(capsys, "export", str(runs_dir / "spanbert"), str(tmp_path / "hf"))
    assert "left out, because bert has no place for it: heads.span_boundary" in output
    assert "BertForMaskedLM" in output
    (checkpoint,) = (runs_dir / "spanbert" / "checkpoints").glob("*10")
    _, output = run_command(
        capsys, "export", str(checkpoint), str(tmp_path / "two"), "--family", "bert"
    )
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "two"))
    assert first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_an_export_says_how_long_the_blocks_of_training_were(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = str(tmp_path / "run"), tmp_path / "hf"
    pretrain("bert", "--data", str(runs_dir / "wordpiece"), "--out", run, "--set=blocks.length=16")
    _, output = run_command(capsys, "export", run, str(folder))
    assert "its 32 positions were trained on blocks of up to 16 tokens" in output
    assert transformers.AutoTokenizer.from_pretrained(folder).model_max_length == 16
    assert transformers.AutoConfig.from_pretrained(folder).max_position_embeddings == 32
    assert "| longest block | 16 tokens |" in (folder / "README.md").read_text(encoding="utf-8")
    assert longest_block(load(run)) == longest_block(load(str(folder))) == 16
    _, output = run_command(capsys, "export", str(runs_dir / "bert"), str(tmp_path / "whole"))
    assert "were trained on" not in output


def test_an_import_reads_texts_as_long_as_the_tokenizer_says(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder, imported = (str(tmp_path / name) for name in ("run", "hf", "imported"))
    pretrain("bert", "--data", str(runs_dir / "wordpiece"), "--out", run, "--set=blocks.length=16")
    clozelab.export(run, folder)
    clozelab.import_model(folder, imported)
    assert load(folder).recipe.blocks.length == load(imported).recipe.blocks.length == 16
    clozelab.export(imported, tmp_path / "again")
    file = tmp_path / "again" / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    assert settings["model_max_length"] == 16
    for other in (10**30, 10**6, 1, 16.5, None):  # none, more than its positions, nonsense
        file.write_text(json.dumps(settings | {"model_max_length": other}), encoding="utf-8")
        assert load(str(file.parent)).recipe.blocks.length == 32
    _, output = run_command(capsys, "score", imported, "--text", "the river " * 5)
    assert "the model's tokenizer says at most 16;" in output


def test_an_import_has_no_shorter_blocks_than_its_windows_allow(
    runs_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(runs_dir / "hf-modernbert", tmp_path / "hf")
    for name, key, value in (
        ("config.json", "local_attention", 64),
        ("tokenizer_config.json", "model_max_length", 16),
    ):
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(settings | {key: value}), encoding="utf-8")
    model = load(str(folder))
    assert model.recipe.blocks.length == 32 and longest_block(model) is None


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "gpt_bert",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("causal_then_masked", "diffusion", "minilm", "mosaicbert", "neobert")
        ),
    ],
)
def test_an_exported_graph_gives_the_same_states_and_guesses(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, folder = tmp_path / "run", tmp_path / "graph"
    # At such a learning rate no token attends to all others alike any longer.
    run_pretraining(pretrain_job(name, "optimiser.learning_rate=0.05"), place)
    _, output = run_command(capsys, "export", str(place), str(folder), "--onnx")
    outputs = ["last_hidden_state", *(["logits"] if name != "minilm" else [])]
    assert f"with the outputs {' and '.join(outputs)}" in output
    model, session = load(str(place)), onnxruntime.InferenceSession(folder / "model.onnx")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mask = model.vocabulary.role("mask")

    def graph_of(text: str) -> tuple[Any, list[Any]]:
        ids = np.array([tokenizer.encode(text).ids])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if len(session.get_inputs()) == 3:
            feeds["token_type_ids"] = np.zeros_like(ids)
        return ids[0], [output[0] for output in session.run(outputs, feeds)]

    mine = embed(model, [LINES[2]], words="none").vectors
    np.testing.assert_allclose(mine, graph_of(LINES[2])[1][0][1:-1], atol=1e-4)
    if len(outputs) == 2:
        text = f"The queen of the {tokenizer.id_to_token(mask)} was here."
        ids, (_, logits) = graph_of(text)
        (chances,) = torch.from_numpy(logits[ids == mask]).softmax(-1)
        for guess in fill(model, text).blanks[0]:
            assert guess.probability == pytest.approx(float(chances[guess.number]), rel=1e-3)


def test_a_hub_name_is_imported_like_a_directory(
    runs_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hub is a stand-in: the encoder alone, under a name."""
    folder = tmp_path / "fetched"
    shutil.copytree(runs_dir / "hf-roberta", folder)
    weights = load_file(folder / "model.safetensors")
    other_weights = {
        name: value for name, value in weights.items() if not name.startswith("lm_head")
    }
    other_weights["classifier.dense.weight"] = torch.zeros(2, 2)
    save_file(other_weights, folder / "model.safetensors", metadata={"format": "pt"})
    fetched: list[str] = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, allow_patterns: fetched.append(name) or str(folder),
    )
    _, output = run_command(capsys, "import", "someone/model", str(tmp_path / "run"))
    assert fetched == ["someone/model"]
    assert "an encoder without a prediction head" in output
    assert "ignored, because nothing here needs it: classifier.dense" in output
    assert Run.open(tmp_path / "run").machine()["from"] == "someone/model"
    command = ["pretrain", "--resume", str(tmp_path / "run"), "--data", str(runs_dir / "byte_bpe")]
    assert "start a new run with --from" in refused(capsys, *command)


def test_a_download_that_fails_is_answered_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no network\nAn error happened while\nlocating the files.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(UserError, match=r"the hub failed \(no network\); download it") as raised:
        clozelab.load("someone/model")
    assert "\n" not in str(raised.value)


# Fill.


def test_fill_tells_every_blank_and_the_text(
    runs_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, _ = run_command(capsys, "fill", str(runs_dir / "bert"), TEXT, "--top", "3")
    filled = fill(load(str(runs_dir / "bert")), TEXT, top=3)
    rows = output.splitlines()
    assert rows[0].split() == ["blank", "token", "probability"]
    assert rows[1].split() == [
        "1",
        filled.blanks[0][0].token,
        f"{filled.blanks[0][0].probability:.2%}",
    ]
    assert rows[4].split()[:2] == ["2", filled.blanks[1][0].token]
    assert rows[-1] == filled.text
    assert filled.text.startswith("The first") and filled.text.endswith(" was here.")
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT + "\n"))
    assert run_command(capsys, "fill", str(runs_dir / "bert"), "-", "--top", "3")[0] == output


def test_fill_as_json_has_the_same_guesses(
    runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, _ = run_command(capsys, "fill", str(runs_dir / "bert"), TEXT, "--top", "2", "--json")
    filled = fill(load(str(runs_dir / "bert")), TEXT, top=2)
    record = json.loads(output)
    assert record["text"] == filled.text
    tokens = [[guess["token"] for guess in guesses] for guesses in record["blanks"]]
    assert tokens == [[guess.token for guess in guesses] for guesses in filled.blanks]


@pytest.mark.parametrize(
    ("recipe", "token", "text"),
    [
        ("bert", "##s", "The firsts of it"),
        ("bert", "the", "The first the of it"),
        ("roberta", "s", "The firsts of it"),
        ("roberta", "Ġthe", "The first the of it"),
        ("albert", "▁the", "The first the of it"),
        ("albert", "s", "The firsts of it"),
        ("gpt", "the</w>", "The first the of it"),
    ],
)
def test_a_piece_that_goes_on_a_word_joins_it(
    runs_dir: Path, recipe: str, token: str, text: str
) -> None:
    tokenizer = load(str(runs_dir / recipe)).tokenizer
    number = tokenizer.token_to_id(token)
    assert "".join(_filled_parts(tokenizer, ["The first ", " of it"], [number])) == text


@pytest.mark.parametrize("recipe", ["bert", "roberta", "albert", "xlnet"])
def test_both_spellings_of_a_blank_are_one(runs_dir: Path, recipe: str) -> None:
    model = load(str(runs_dir / recipe))
    spelled = [
        fill(model, TEXT.replace("[MASK]", name).replace("<mask>", name))
        for name in ("[MASK]", "<mask>")
    ]
    assert spelled[0] == spelled[1]
    assert all(0 < g.probability < 1 for guesses in spelled[0].blanks for g in guesses)


def test_blanks_of_xlnet_see_all_the_rest_and_no_blank(runs_dir: Path) -> None:
    """As transformers has it: no token may see a blank, and each blank is a target."""
    own_model = load(str(runs_dir / "xlnet"))
    model = transformers.XLNetLMHeadModel.from_pretrained(runs_dir / "hf-xlnet").eval()
    text = "[MASK] first house of the old [MASK] was here, and the road to it was not [MASK] far."
    mine = fill(own_model, text, top=1000)
    mask = own_model.vocabulary.role("mask")
    plain = Tokenizer.from_file(str(runs_dir / "hf-xlnet" / "tokenizer.json"))
    ids = torch.tensor([plain.encode(text).ids])
    (at,) = torch.where(ids[0] == mask)
    assert len(at) == 3
    perm = torch.zeros(1, ids.shape[1], ids.shape[1])
    perm[:, :, at] = 1.0
    target = torch.zeros(1, 3, ids.shape[1])
    target[0, torch.arange(3), at] = 1.0
    types = torch.tensor([plain.encode(text).type_ids])
    with torch.inference_mode():
        logits = model(ids, perm_mask=perm, target_mapping=target, token_type_ids=types).logits[0]
    chances = logits.softmax(-1)
    for blank, guesses in zip(chances, mine.blanks, strict=True):
        for guess in guesses[::50]:
            assert guess.probability == pytest.approx(float(blank[guess.number]), rel=1e-4)


def test_a_causal_model_guesses_from_the_left(
    runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, output = run_command(capsys, "fill", str(runs_dir / "gpt"), TEXT)
    assert "reads left to right" in output
    model = load(str(runs_dir / "gpt"))
    it, there = fill(model, "The first [MASK] of it"), fill(model, "The first [MASK] was there")
    assert it.blanks == there.blanks and it.left_only
    assert fill(model, "[MASK] was first").blanks[0] != it.blanks[0]
    best = fill(model, "The first [MASK] of [MASK]")
    again = fill(model, "".join(best.parts[:3]) + "[MASK]")
    for first, second in zip(best.blanks[1], again.blanks[0], strict=True):
        assert first.number == second.number
        assert first.probability == pytest.approx(second.probability, rel=1e-5)


def test_a_model_makes_the_tables_of_its_tokenizer_once(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(str(runs_dir / "bert"))
    made_by: list[object] = []

    class Counted(encoding.CachedTokenizer):
        def __init__(self, *values: Any, **named: Any) -> None:
            made_by.append(values)
            super().__init__(*values, **named)

    monkeypatch.setattr(reader, "CachedTokenizer", Counted)
    for text in ("one", "two", "three"):
        embed(model, [text])
    assert len(made_by) == 1


# Embed.


@pytest.mark.parametrize("recipe", list(KINDS))
def test_a_texts_vectors_do_not_depend_on_its_batch_mates(runs_dir: Path, recipe: str) -> None:
    model = load(str(runs_dir / recipe))
    every = [line for line in LINES if line]
    together = embed(model, every, layer="all", words="none")
    for number, line in enumerate(every):
        alone = embed(model, [line], layer="all", words="none")
        mine = slice(together.starts[number], together.starts[number + 1])
        np.testing.assert_allclose(together.vectors[mine], alone.vectors, atol=1e-6, rtol=1e-6)
        np.testing.assert_array_equal(together.offsets[mine], alone.offsets)
    assert together.vectors.std() > 0


@pytest.mark.parametrize("recipe", list(KINDS))
def test_words_are_those_of_the_text_whatever_the_tokenizer(runs_dir: Path, recipe: str) -> None:
    model = load(str(runs_dir / recipe))
    embedded = embed(model, LINES, words="first")
    words = [
        LINES[text][first:stop]
        for text in range(len(LINES))
        for first, stop in embedded.offsets[embedded.starts[text] : embedded.starts[text + 1]]
    ]
    assert words == [
        *["A", "small", "text", "."],
        *["Another", ",", "rather", "longer", "text", "about", "nothing", "at", "all", "!"],
        "x",
    ]
    width = 64 if recipe == "elmo" else 32
    assert embedded.vectors.shape == (len(words), width) and embedded.vectors.dtype == np.float32


def test_elmo_reads_every_word_by_all_its_letters(runs_dir: Path) -> None:
    (text,) = load(str(runs_dir / "elmo")).reader().read([LINES[2]])
    rows = [row[1 : row.tolist().index(259)] for row in text.columns["characters"]]  # 259 ends one
    spelled = [bytes(row.tolist()).decode() for row in rows[text.own]]
    assert " ".join(spelled) == "another , rather longer text about nothing at all !"
    assert [row.tolist() for row in (rows[0], rows[-1])] == [[256], [257]]


def test_words_and_texts_are_made_of_their_tokens(runs_dir: Path) -> None:
    model = load(str(runs_dir / "roberta"))
    tokens = embed(model, LINES, words="none")
    first, mean = (embed(model, LINES, words=pooling) for pooling in ("first", "mean"))
    whole = embed(model, LINES, pool="mean")
    assert np.array_equal(first.offsets, mean.offsets)
    for text in range(len(LINES)):
        mine = slice(tokens.starts[text], tokens.starts[text + 1])
        rows = tokens.vectors[mine]
        wanted = rows.mean(axis=0) if len(rows) else np.zeros(32)
        np.testing.assert_allclose(whole.vectors[text], wanted, atol=1e-6)
        for row in range(first.starts[text], first.starts[text + 1]):
            low, high = first.offsets[row]
            inside = (tokens.offsets[mine, 0] >= low) & (tokens.offsets[mine, 1] <= high)
            np.testing.assert_allclose(first.vectors[row], rows[inside][0], atol=1e-6)
            np.testing.assert_allclose(mean.vectors[row], rows[inside].mean(axis=0), atol=1e-6)
    assert len(tokens.vectors) > len(first.vectors)


@pytest.mark.parametrize(("recipe", "place"), [("bert", 0), ("xlnet", -1)])
def test_the_vector_of_cls_is_taken_where_it_stands(
    runs_dir: Path, recipe: str, place: int
) -> None:
    model = load(str(runs_dir / recipe))
    with torch.inference_mode():
        text = packed(model.reader().read([LINES[0]]), torch.device("cpu"))
        states = model.module.encode(text).hidden_states
    assert int(text.ids[place]) == model.vocabulary.role("cls")
    assert int(text.segments[place]) == (2 if recipe == "xlnet" else 0)
    embedded = embed(model, [LINES[0]], pool="cls")
    np.testing.assert_allclose(embedded.vectors[0], states[place].numpy(), atol=1e-6)


@pytest.mark.parametrize("recipe", ["bert", "xlnet", "elmo"])
def test_layers_count_from_the_embedding_and_from_the_end(runs_dir: Path, recipe: str) -> None:
    model = load(str(runs_dir / recipe))
    every = embed(model, LINES, layer="all").vectors
    assert every.shape[1] == 3
    for layer in (0, 1, 2, -1, -2, -3):
        vectors = embed(model, LINES, layer=layer).vectors
        np.testing.assert_allclose(vectors, every[:, layer], atol=1e-6)
    assert not np.allclose(every[:, 0], every[:, 1])


def test_embed_writes_a_file_of_numpy(
    runs_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [*LINES, "word " * 100]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = tmp_path / "v.npz"
    command = ["embed", "--out", str(out), str(runs_dir / "bert")]
    _, output = run_command(
        capsys, *command, "--file", str(tmp_path / "lines.txt"), "--device", "cpu"
    )
    assert "maximum length: 1" in output
    with np.load(out) as arrays:
        old_arrays = dict(arrays)
    assert f"{len(old_arrays['vectors'])} × 32 numbers for 5 texts" in output
    assert old_arrays["texts"].tolist() == lines
    assert old_arrays["words"].tolist()[:4] == ["A", "small", "text", "."]
    wanted = embed(load(str(runs_dir / "bert")), lines)
    assert wanted.cut == 1
    for name in ("vectors", "starts", "offsets"):
        assert np.array_equal(old_arrays[name], getattr(wanted, name)), name
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    out.rename(tmp_path / "kept.npz")
    out.symlink_to(tmp_path / "kept.npz")
    run_command(capsys, *command, "-", "--pool", "mean", "--layer", "1", "--overwrite")
    assert out.is_symlink()
    with np.load(tmp_path / "kept.npz") as arrays:
        assert arrays["vectors"].shape == (5, 32)
        assert arrays["words"].tolist()[0] == LINES[0]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_file_that_is_given_as_a_text_is_pointed_out(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("One text.\nAnother text.\n", encoding="utf-8")
    _, output = run_command(capsys, "embed", str(runs_dir / "bert"), str(file), "--near", "text")
    assert f"to embed its lines, give --file {file}" in output.replace("\n", " ")


def test_every_checkpoint_of_a_run_goes_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "series"
    often = SaveOptions(save_every=1, keep=0, evaluate_every=0, evaluate_blocks=4)
    run_pretraining(pretrain_job("bert", steps=2), run, MACHINE, often)
    assert cli.main(["export", str(run), str(out), "--all"]) == 0
    assert "2 steps, each BertForPreTraining" in " ".join(capsys.readouterr().err.split())
    assert sorted(folder.name for folder in out.iterdir()) == ["step-00000001", "step-00000002"]
    for folder in out.iterdir():
        mine, theirs = load(str(run / "checkpoints" / folder.name)), load(str(folder))
        table_name = "encoder.embeddings.words.weight"
        assert torch.equal(
            mine.module.state_dict()[table_name], theirs.module.state_dict()[table_name]
        )
        assert f"# {folder.name}" in (folder / "README.md").read_text()


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("export nothing-here OUT", "nothing-here: does not exist"),
        ("export elmo OUT", "transformers has no such class"),
        ("export elmo OUT --onnx", "not a graph of ONNX"),
        ("export bert FULL", "already exists and is not empty"),
        ("export bert FULL --onnx", "already exists and is not empty"),
        ("export bert OUT --family brt", "family 'brt': unknown"),
        ("export bert OUT --onnx --family bert", "leave them out with --onnx"),
        ("export bert OUT --onnx --all", "leave out --onnx and URLs"),
        ("export bert FULL --all", "already exists and is not empty"),
        ("export hf-bert OUT --all", "is not a run"),
        ("import nothing-here OUT", "nothing-here: does not exist"),
        ("import bert OUT", "is already a run of clozelab"),
        ("import hf-bert FULL", "not empty"),
        ("fill nothing-here a[MASK]", "nothing-here: does not exist; give a run, a checkpoint, a"),
        ("fill RUNS a[MASK]", "is a folder of runs, not a model; name one of them, as in RUNS/"),
        ("fill CORPUS a[MASK]", "is a corpus, not a model; name a run"),
        ("export CORPUS OUT", "is a corpus, not a model; name a run"),
        ("fill bert no_blank", "has no blank; write [MASK]"),
        ("fill bert [MASK] --top 0", "--top 0: must be at least 1"),
        ("fill bert LONG", "reads at most 30"),
        ("fill xlnet LONG", "reads at most 30"),
        ("fill gpt LONG", "reads at most 32"),
        ("fill elmo [MASK]", "encoder lstm"),
        ("generate bert --length 31", "--length 31: "),
        ("generate bert --length 31", "reads at most 30 tokens; generate at most 30"),
        ("generate bert --length 30 --prompt word", "generate at most 29 after 1 of the prompt"),
        ("generate bert --length 0", "--length 0: must be at least 1"),
        ("generate bert --length 4 --steps 0", "--steps 0: must be from 1 to --length 4"),
        ("generate bert --length 4 --steps 5", "--steps 5: must be from 1 to --length 4"),
        ("generate bert --temperature=-1", "--temperature -1: must be 0 or more"),
        ("generate bert --temperature nan", "--temperature nan: must be 0 or more"),
        ("generate bert --top-k 0", "--top-k 0: must be at least 1"),
        ("generate bert --remasking best", "--remasking best: is unknown"),
        ("generate gpt --length 4", "has no masked language model to generate with"),
        ("generate xlnet --length 4", "has no masked language model to generate with"),
        ("generate elmo --length 4", "has no masked language model to generate with"),
        ("export bert hf:me/mine", "hf:me/mine: export writes a folder; name one, and upload"),
        ("embed bert text --out OUT.txt", "must end in .npz"),
        ("embed bert text --out OUT/deep/v.npz", "does not exist; make it first"),
        ("embed bert text --out OUT.npz --layer 3", "--layer 3: "),
        ("embed bert text --out OUT.npz --layer=-4", "from the end -1 to -3"),
        ("embed bert text --out OUT.npz --layer top", "a whole number, last or all"),
        ("embed bert text --out OUT.npz --pool cls --words mean", "leave --words out"),
        ("embed gpt text --out OUT.npz --pool cls", "use --pool mean"),
        ("embed elmo text --out OUT.npz --pool cls", "use --pool mean"),
        ("embed bert --out OUT.npz", "embed needs texts"),
        ("embed bert --out OUT.npz --file nowhere", "nowhere: does not exist"),
        ("embed bert --out OUT.npz --file FULL", "is a folder; name a file with text"),
        ("embed bert --out OUT.npz --file /dev/null", "/dev/null: is empty; write one text per"),
        ("embed bert text --out OUT.npz --file nowhere", "cannot be combined"),
        ("corpus build LONG --out OUT --extend 5", "name it with --tokenizer-from"),
        (
            "corpus build LONG --out OUT --extend 0 --tokenizer-from bert",
            "--extend takes at least 1",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, answer: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    places = {name: str(runs_dir / name) for name in (*KINDS, "hf-bert")}
    places |= {"FULL": str(tmp_path / "full"), "LONG": "word " * 40 + "[MASK]"}
    places |= {"CORPUS": store("wordpiece"), "RUNS": str(runs_dir)}
    split = [
        places.get(word, word.replace("OUT", str(tmp_path / "out"))) for word in arguments.split()
    ]
    assert answer.replace("RUNS", str(runs_dir)) in refused(capsys, *split)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def test_opening_a_model_draws_no_weights(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.init, "trunc_normal_")
    clozelab.load(str(runs_dir / "bert"))


def test_public_names_open_a_model(runs_dir: Path) -> None:
    assert clozelab.load(str(runs_dir / "bert")).step == 10
    assert clozelab.load(runs_dir / "bert").fill("the [MASK] was wide").blanks
    with pytest.raises(UserError, match="does not exist"):
        clozelab.load("nothing-here")


def test_states_of_odd_texts_are_an_answer_or_a_sentence(runs_dir: Path) -> None:
    model = clozelab.load(runs_dir / "gpt")
    states, mask = model.encode(["", ""])
    assert states.shape == (2, 0, 32) and mask.shape == (2, 0)
    assert model.encode(["", "a"])[1].sum() == len(model.encode("a")[1][0])
    with pytest.raises(UserError, match="encode needs texts; the list of texts is empty"):
        model.encode([])
    with pytest.raises(UserError, match="None is not a text; give a string"):
        model.encode([None])  # type: ignore[list-item]
    assert len(model.encode(text for text in ["a", "b"])[0]) == 2  # type: ignore[arg-type]
    for inputs in (None, Path("a"), {"text": "a"}):
        with pytest.raises(UserError, match="is not a text or a list of texts"):
            model.encode(inputs)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="predict takes a list of inputs, not "):
            model.predict(inputs)  # type: ignore[arg-type]


# A vocabulary for a new domain.


@pytest.mark.parametrize("recipe", ["bert", "roberta", "albert", "gpt", "spanbert"])
def test_a_model_goes_on_with_words_of_a_new_domain(
    runs_dir: Path, tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [f"{text} The plasmation of gastrology was a plasmation." for text in texts(60)]
    file = write(tmp_path / "new.jsonl", documents)
    run, corpus, more = str(runs_dir / recipe), str(tmp_path / "corpus"), str(tmp_path / "more")
    build = ["corpus", "build", file, "--out", corpus, "--workers", "1", "--held-out", "0.1"]
    run_command(capsys, *build, "--tokenizer-from", run, "--extend", "40")
    old, store = load(run), Corpus.open(corpus)
    assert old.vocabulary.size < store.vocabulary.size <= old.vocabulary.size + 40
    spelled = store.tokenizer.get_vocab().keys() - old.tokenizer.get_vocab().keys()
    assert any("plasmation" in name for name in spelled)
    task = continued(old.recipe, run, data=[corpus], seed=0)
    assert task.start is not None
    table = "encoder.embeddings.words.weight"
    before = dict(old.module.named_parameters())[table]
    for known, value in old.module.named_parameters():
        assert torch.equal(task.start[known][: len(value)], value), known
    name = next(name for name in spelled if "plasmation" in name)
    number = store.tokenizer.token_to_id(name)
    ids = [n for n in old.tokenizer.encode("the plasmation", add_special_tokens=False).ids]
    ids = ids[len(old.tokenizer.encode("the", add_special_tokens=False).ids) :]
    torch.testing.assert_close(task.start[table][number], before[ids].mean(0))
    head = "causal_lm" if recipe == "gpt" else "masked_lm"
    apart = replace(old.recipe, objectives=tied(old.recipe.objectives, {head: False}))
    start = continued(apart, run, data=[corpus], seed=0).start
    assert start is not None and torch.equal(start[f"heads.{head}.table"], start[table])
    command = ["pretrain", recipe, "--data", corpus, "--from", run, "--out", more]
    command += ["--budget", "2steps", "--set", "schedule.batch_size=8", "--device", "cpu"]
    run_command(capsys, *command, "--set", "blocks.length=32", "--set", "schedule.phases=[]")
    new = load(more)
    assert len(dict(new.module.named_parameters())[table]) == store.vocabulary.size
    grown = build_model(task.recipe, task.recipe.tokenizer.vocabulary, seed=0)
    weights = {name: value.detach() for name, value in grown.named_parameters()}
    set_weights(grown, {**weights, **{n: w for n, w in task.start.items() if n in weights}})
    known = ["of the house", "a word that it knew"]
    vectors = [
        embed(each_model, known).vectors for each_model in (old, replace(old, module=grown.eval()))
    ]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6, err_msg="it forgot what it knew")
    folder, again = str(tmp_path / "hf"), str(tmp_path / "again")
    run_command(capsys, "export", more, folder)
    run_command(capsys, "import", folder, again)
    embeddings = [
        embed(each_model, ["of plasmation"], words="none") for each_model in (new, load(again))
    ]
    np.testing.assert_allclose(embeddings[0].vectors, embeddings[1].vectors, atol=1e-6)
    assert [*embeddings[0].offsets[-1]] == [3, 13]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ids = theirs("of plasmation", add_special_tokens=False)["input_ids"]
    assert ids[-1] == number and len(ids) == len(embeddings[0].vectors)


def test_rows_to_spare_are_taken_first(runs_dir: Path, tmp_path: Path) -> None:
    """A table of transformers may be longer than its tokenizer."""
    folder = tmp_path / "hf"
    model = transformers.AutoModelForMaskedLM.from_pretrained(runs_dir / "hf-roberta")
    size = model.config.vocab_size
    model.resize_token_embeddings(size + 2)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(runs_dir / "hf-roberta").save_pretrained(folder)
    file = write(tmp_path / "new.jsonl", ["The plasmation and gastrology of plasmatics. " * 6] * 10)
    command = ["corpus", "build", file, "--out", str(tmp_path / "c"), "--workers", "1"]
    assert cli.main([*command, "--tokenizer-from", str(folder), "--extend", "3"]) == 0
    assert Corpus.open(tmp_path / "c").vocabulary.size == size + 3
    own_model = load(str(folder))
    task = continued(own_model.recipe, str(folder), data=[str(tmp_path / "c")], seed=0)
    assert task.start is not None
    assert len(task.start["encoder.embeddings.words.weight"]) == size + 3
    assert len(task.start["heads.masked_lm.bias"]) == size + 3
    assert task.recipe.tokenizer.vocabulary == size + 3
    other = ["--out", str(tmp_path / "d"), "--tokenizer", "byte_bpe", "--vocabulary", "500"]
    assert cli.main([*command[:3], *other, "--workers", "1"]) == 0
    with pytest.raises(UserError, match="its tokenizer is not that of"):
        continued(own_model.recipe, str(folder), data=[str(tmp_path / "d")], seed=0)


def test_the_words_of_another_corpus_have_a_softmax_of_their_own(tmp_path: Path) -> None:
    elmo_job = pretrain_job("elmo", steps=1)
    run_pretraining(elmo_job, tmp_path / "run")
    head = "heads.bidirectional_lm.bias"
    for documents, begins in ((60, True), (40, False)):
        data = [store("byte_bpe", documents=documents)]
        job = continued(elmo_job.recipe, str(tmp_path / "run"), data=data, seed=0)
        assert job.start is not None and (head in job.start) == begins
        assert any("softmax over words" in note for note in job.notes) != begins
        PretrainTrainer(job, MACHINE, HERE)  # which the weights fit


def test_of_a_folder_of_runs_a_model_is_named_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    folder = tmp_path / "all"
    for name in ("a/plan.json", "a/study.toml", "b/recipe.toml", "c/recipe.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}", encoding="utf-8")
    for place in (str(folder), folder.as_uri()):
        with pytest.raises(UserError, match=f"^{place}: is a folder of runs.* as in {place}/b$"):
            load(place)
