"""Folders of other libraries as they are found: odd, broken, hostile; each ends in a sentence."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.commands import refused
from tokenizers import Tokenizer, models, pre_tokenizers

from clozelab import cli
from clozelab.errors import UserError
from clozelab.models import exchange
from clozelab.models.load import load

torch.set_num_threads(1)

NAMES = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "xlnet": ["<unk>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
    "gpt2": ["<unk>", "<|endoftext|>"],
}
WORDS = ["the", "a", "river", "was", "wide", "and", "slow", "nobody", "crossed", "it", "in", "."]
WORDS += ["good", "bad", "film"]
SIZE = 25
SMALL = {
    "vocab_size": SIZE, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 40,
}  # fmt: skip
ALBERT = {**SMALL, "embedding_size": 8, "num_hidden_groups": 1}
XLNET = {"vocab_size": SIZE, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 24}
GPT = {"vocab_size": SIZE, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40}
MARKS = {
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForPreTraining", SMALL),
    "bert tuned": ("BertForSequenceClassification", {**SMALL, "num_labels": 3}),
    "roberta": ("RobertaForMaskedLM", {**SMALL, "type_vocab_size": 1, "pad_token_id": 1}),
    "albert": ("AlbertForPreTraining", ALBERT),
    "xlnet": ("XLNetForQuestionAnswering", XLNET),
    "xlnet tuned": ("XLNetForSequenceClassification", XLNET),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "modernbert": ("ModernBertForMaskedLM", {**SMALL, "local_attention": 8, **MARKS}),
}


def tokenizer(family: str) -> Tokenizer:
    names = [*NAMES.get(family, NAMES["bert"]), *WORDS]
    table = {name: number for number, name in enumerate(names)}
    word_level = Tokenizer(models.WordLevel(table, unk_token=names[1]))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    return word_level


def saved(folder: Path, kind: str, settings: dict[str, Any]) -> Path:
    cls = getattr(transformers, kind)
    torch.manual_seed(0)
    cls(cls.config_class(**settings)).save_pretrained(folder)
    tokenizer(cls.config_class.model_type).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("foreign")
    for name, (kind, settings) in MODELS.items():
        saved(folder / name, kind, settings)
    return folder


def copied(checkpoints: Path, name: str, place: Path) -> Path:
    return Path(shutil.copytree(checkpoints / name, place))


def config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    settings = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    file.write_text(
        json.dumps({k: v for k, v in settings.items() if v is not ...}), encoding="utf-8"
    )


# Configs.

ODD: list[Any] = [
    *(5, -1, 0, 10**12, 2**31, 2**63, 10**30, 1.5, 16.0, -0.1, 1e308, float("nan"), float("inf")),
    *(None, True, False, "768", "", "gelu", "x" * 5000, "ü\x00", [], [5], [[]], {}, {"a": {}}),
    *({"0": "a"}, {"0": 5, "1": None}, ["BertModel"], [None], "regression", "last"),
]
KEYS = (
    *("architectures", "id2label", "num_labels", "problem_type", "clozelab", "pad_token_id"),
    *("is_decoder", "summary_type", "summary_activation", "start_n_top", "model_type", "n_inner"),
    *("classifier_dropout", "mem_len", "tie_word_embeddings", "n_token", "position_embedding_type"),
)


@pytest.mark.parametrize("name", MODELS)
def test_a_changed_config_is_read_or_refused(checkpoints: Path, tmp_path: Path, name: str) -> None:
    """Sixty changes, by seed: no error but the user's, and no memory beyond what the file fills."""
    folder = copied(checkpoints, name, tmp_path / "in")
    load(str(folder))
    file = folder / "config.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    draw = random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusals = 0
    for _ in range(60):
        settings = dict(whole)
        for key in draw.sample([*whole, *KEYS], draw.choice([1, 1, 2])):
            settings[key] = draw.choice(ODD)
            if draw.random() < 0.1:
                del settings[key]
        file.write_text(json.dumps(settings), encoding="utf-8")
        try:
            load(str(folder))
        except UserError as error:
            refusals += 1
            if str(folder) not in str(error):
                raise AssertionError(f"the folder is not named: {error}") from error
    assert refusals > 10
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, "kilobytes"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"architectures": 5}, "architectures = 5 must be a list of words"),
        ({"hidden_size": "16"}, "hidden_size = '16' must be a whole number"),
        ({"hidden_size": 16.0}, "hidden_size = 16.0 must be a whole number"),
        ({"num_hidden_layers": [1]}, "num_hidden_layers = [1] must be a whole number"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1 must be"),
        ({"vocab_size": 10**12}, "vocab_size = 1000000000000 must be"),
        ({"vocab_size": 10**7}, "bert.embeddings.word_embeddings.weight"),
        ({"intermediate_size": 10**7}, "layer.0.intermediate.dense.weight"),
        ({"model_type": "electra"}, "embedding_size is missing; add it"),
        ({"model_type": "deberta"}, "model_type 'deberta' is unknown here"),
        ({"model_type": "deberta-v2"}, "relative_attention = False must be true"),
        ({"hidden_size": ...}, "hidden_size is missing"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_the_folder(
    checkpoints: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    problem: str,
) -> None:
    folder = copied(checkpoints, "bert", tmp_path / "in")
    config(folder, **changes)
    message = refused(capsys, "import", str(folder), str(tmp_path / "run"))
    assert problem in message and str(folder) in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"[]", b"5", b"{", b"\xff\xfe{}", b"[" * 100_000, b""])
def test_a_config_that_is_no_object_is_named(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    folder = copied(checkpoints, "bert", tmp_path / "in")
    (folder / "config.json").write_bytes(content)
    assert f"{folder}/config.json: not " in refused(capsys, "fill", str(folder), "a [MASK]")


# Weights.


def test_damaged_weights_are_read_or_refused(checkpoints: Path, tmp_path: Path) -> None:
    folder = copied(checkpoints, "bert", tmp_path / "in")
    file = folder / "model.safetensors"
    whole, draw = file.read_bytes(), random.Random(0)
    header = int.from_bytes(whole[:8], "little")
    refusals = 0
    for trial in range(120):
        content = bytearray(whole)
        if trial % 4:
            content[draw.randrange(8 + header)] ^= 1 << draw.randrange(8)
        else:
            del content[draw.randrange(len(content)) :]
        file.write_bytes(content)
        try:
            load(str(folder))
        except UserError as error:
            refusals += str(folder) in str(error)
    assert refusals > 100


class Trap:
    """What a hostile pickle would do: make a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.file),))


@pytest.mark.parametrize("old", [False, True])
def test_a_pickle_is_read_for_its_weights_and_never_run(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: bool
) -> None:
    folder = copied(checkpoints, "bert", tmp_path / "in")
    weights = load_file(folder / "model.safetensors")
    wanted = load(str(folder)).module.state_dict()
    (folder / "model.safetensors").unlink()
    pickle = folder / "pytorch_model.bin"
    torch.save(weights, pickle, _use_new_zipfile_serialization=not old)
    state_dict = load(str(folder)).module.state_dict()
    assert all(torch.equal(state_dict[name], wanted[name]) for name in wanted)
    trap = tmp_path / "trapped"
    torch.save({**weights, "x": Trap(trap)}, pickle, _use_new_zipfile_serialization=not old)
    message = refused(capsys, "import", str(folder), str(tmp_path / "run"))
    assert "cannot be read as weights alone" in message and str(pickle) in message
    assert not trap.exists()
    pickle.write_bytes(pickle.read_bytes()[:500])
    assert "cannot be read as weights alone" in refused(capsys, "fill", str(folder), "a [MASK]")


# Heads.


def test_heads_that_nobody_needs_are_named_and_left(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(checkpoints, "bert", tmp_path / "in")
    weights = load_file(folder / "model.safetensors")
    more = {"ranker.dense.weight": torch.zeros(2, 2), "ranker.dense.bias": torch.zeros(2)}
    save_file({**weights, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    assert cli.main(["import", str(folder), str(tmp_path / "run")]) == 0
    assert "nothing here needs it: ranker.dense" in " ".join(capsys.readouterr().err.split())


def test_num_labels_beside_a_stale_map(checkpoints: Path, tmp_path: Path) -> None:
    folder = copied(checkpoints, "bert tuned", tmp_path / "in")
    config(folder, num_labels=3, id2label={"0": "no", "1": "yes"})
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    model = load(str(folder))
    assert model.task is not None
    labels: Any = model.task.kind
    assert list(labels.labels) == [*peer.config.id2label.values()]
    assert any("id2label does not name 3 labels" in note for note in model.notes)


def test_a_config_without_a_model_type_is_its_class_s(checkpoints: Path, tmp_path: Path) -> None:
    folder = copied(checkpoints, "roberta", tmp_path / "in")
    config(folder, model_type=...)
    exchange.import_model(str(folder), tmp_path / "run")
    exchange.export(str(tmp_path / "run"), tmp_path / "out")
    record = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert record["model_type"] == "roberta" and record["architectures"] == ["RobertaForMaskedLM"]


# Commands.


def bare(folder: Path, **settings: Any) -> Path:
    return saved(folder, "BertModel", {**SMALL, **settings})


def tune(model: Path, out: Path) -> None:
    rows = [f"the {'good' if n % 2 else 'bad'} film\t{'yes' if n % 2 else 'no'}" for n in range(8)]
    for name in ("train", "dev"):
        (out.parent / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    command = ["finetune", str(model), "classify", "--train", str(out.parent / "train.tsv")]
    command += ["--dev", str(out.parent / "dev.tsv"), "--out", str(out), "--device", "cpu"]
    assert (
        cli.main(
            [*command, "--set", "epochs=1", "--set", "batch_size=4", "--set", "learning_rate=1e-9"]
        )
        == 0
    )


@pytest.mark.parametrize("imported", [True, False])
def test_fine_tuning_begins_with_the_pooler_that_came(tmp_path: Path, imported: bool) -> None:
    place = bare(tmp_path / "in")
    weights = load_file(place / "model.safetensors")
    if imported:
        exchange.import_model(str(place), tmp_path / "run")
        place = tmp_path / "run"
    tune(place, tmp_path / "tuned")
    state_dict = load(str(tmp_path / "tuned")).module.state_dict()
    for part in ("weight", "bias"):
        mine, theirs = state_dict[f"heads.classify.dense.{part}"], weights[f"pooler.dense.{part}"]
        assert torch.allclose(mine, theirs, atol=1e-6) and theirs.numel()


def test_a_tuned_encoder_alone_is_a_class_of_its_family(tmp_path: Path) -> None:
    settings = {"vocab_size": SIZE, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
    place = saved(tmp_path / "in", "DistilBertModel", {**settings, "max_position_embeddings": 40})
    tune(place, tmp_path / "tuned")
    exchange.export(str(tmp_path / "tuned"), tmp_path / "out")
    record = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert record["architectures"] == ["DistilBertForSequenceClassification"]


def test_pretraining_goes_on_from_an_encoder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = bare(tmp_path / "in")
    text = tmp_path / "text.txt"
    lines = ["the river was wide and slow .", "nobody crossed it in a good film .", ""]
    text.write_text("\n".join(lines * 60))
    command = ["corpus", "build", str(text), "--out", str(tmp_path / "corpus"), "--workers", "1"]
    assert cli.main([*command, "--tokenizer-from", str(place)]) == 0
    command = ["pretrain", "bert", "--data", str(tmp_path / "corpus"), "--from", str(place)]
    command += ["--out", str(tmp_path / "run"), "--budget", "2steps", "--device", "cpu"]
    command += ["--set", "schedule.batch_size=4", "--set", "blocks.length=24"]
    assert (
        cli.main([*command, "--set", "schedule.phases=[]", "--set", "optimiser.learning_rate=1e-9"])
        == 0
    )
    state_dict = load(str(tmp_path / "run")).module.state_dict()
    weights = load_file(place / "model.safetensors")
    for mine, theirs in {
        "heads.next_sentence.pooler.weight": "pooler.dense.weight",
        "encoder.embeddings.words.weight": "embeddings.word_embeddings.weight",
    }.items():
        assert torch.allclose(state_dict[mine], weights[theirs], atol=1e-6)
    assert "has no head that predicts tokens" in refused(capsys, "fill", str(place), "a [MASK] .")
    command = ["evaluate", str(place), "--data", str(tmp_path / "corpus")]
    assert "is an encoder without a head" in refused(capsys, *command)


def test_a_small_vocabulary_is_imported_filled_and_exported(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RoBERTa's with 25 words: byte BPE is trained with 261 and more, but this one exists."""
    assert cli.main(["import", str(checkpoints / "roberta"), str(tmp_path / "run")]) == 0
    for place in (checkpoints / "roberta", tmp_path / "run"):
        capsys.readouterr()
        assert cli.main(["fill", str(place), "the <mask> was wide"]) == 0
        assert "probability" in capsys.readouterr().out
    tune(tmp_path / "run", tmp_path / "tuned")


def test_the_tokenizer_that_came_is_recorded(checkpoints: Path, tmp_path: Path) -> None:
    folder = copied(checkpoints, "roberta", tmp_path / "in")
    (folder / "tokenizer.json").unlink()
    pieces = [*NAMES["bert"], *WORDS, "##s", "The"]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    exchange.import_model(str(folder), tmp_path / "run")
    recipe_text = (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    table = recipe_text.partition("[tokenizer]")[2].partition("\n[")[0]
    assert 'use = "wordpiece"' in table and "cased = true" in table
    assert f"vocabulary = {SIZE}" in table and '"[MASK]"' in table


def test_words_beyond_the_model_s_table_are_left_aside(checkpoints: Path, tmp_path: Path) -> None:
    folder = copied(checkpoints, "bert", tmp_path / "in")
    made_with = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made_with.add_tokens([f"new{number}" for number in range(9)])
    made_with.save(str(folder / "tokenizer.json"))
    model = load(str(folder))
    assert (
        model.vocabulary.size
        == SIZE
        == len(model.module.state_dict()["encoder.embeddings.words.weight"])
    )
    (note,) = [note for note in model.notes if "no embedding" in note]
    assert "new8" in note and "new0" not in note
    table = {f"w{number}": number for number in range(40)}
    Tokenizer(models.WordLevel({**table, "[UNK]": 40}, "[UNK]")).save(
        str(folder / "tokenizer.json")
    )
    with pytest.raises(
        UserError, match=r"in: the tokenizer has ids up to 40, but the model has 25"
    ):
        load(str(folder))


# Places.


def test_export_and_import_touch_nothing_that_is_there(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(checkpoints / "bert")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for command in ("import", "export"):
        for place in ("pipe", "mine", "file"):
            assert str(tmp_path / place) in refused(capsys, command, model, str(tmp_path / place))
        (tmp_path / command).symlink_to(tmp_path / f"{command} target")
        assert cli.main([command, model, str(tmp_path / command)]) == 0
        assert (tmp_path / command).is_symlink() and (tmp_path / f"{command} target").is_dir()
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "file").read_text() == "mine"
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["file"]
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_what_is_exported_can_be_read_by_others(checkpoints: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        exchange.export(str(checkpoints / "bert"), tmp_path / "out")
        exchange.import_model(str(checkpoints / "bert"), tmp_path / "run")
    finally:
        os.umask(before)
    written = [*(tmp_path / "out").rglob("*"), *(tmp_path / "run" / "checkpoints").rglob("*")]
    modes = {file.name: file.stat().st_mode & 0o777 for file in written if file.is_file()}
    assert "model.safetensors" in modes and set(modes.values()) == {0o644}, modes


@pytest.mark.parametrize("command", ["export", "import"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A limit on a file's size stands for the disk: the weights are over it, the texts are not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))
    try:
        message = refused(capsys, command, str(checkpoints / "bert"), str(tmp_path / "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (
        "File too large" in message
        and f"{tmp_path / 'out'}/" in message
        and "/.out." not in message
    )
    assert not [*tmp_path.iterdir()]


def test_the_missing_onnx_extra_names_the_place_that_was_given(
    checkpoints: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clozelab.models.interop.onnx.find_spec", lambda name: None)
    message = refused(
        capsys, "export", str(checkpoints / "bert"), str(tmp_path / "graph"), "--onnx"
    )
    assert f"{tmp_path / 'graph'}: ONNX needs onnx" in message
    assert not [*tmp_path.iterdir()]
