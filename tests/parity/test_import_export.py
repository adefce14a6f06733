"""Checkpoints of transformers in and out again: the same class, every tensor bit for bit."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.peer_models import shaken, theirs
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers
from torch import nn

import clozelab
from clozelab import cli
from clozelab.config.recipe import read
from clozelab.errors import UserError
from clozelab.models.exchange import export, import_model
from clozelab.models.fill import _mask_blanks
from clozelab.models.interop.onnx import EncoderGraph
from clozelab.models.load import load
from clozelab.models.model import Origin
from clozelab.pretraining.starting import continued

torch.set_num_threads(1)

SPECIALS = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "xlnet": ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"],
    "gpt": ["<unk>", "<|endoftext|>"],
}
WORDS = ["the", "a", "river", "was", "wide", "and", "slow", "nobody", "crossed", "it", "in", "."]
SIZE = 25
BERT = {
    "vocab_size": SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
ROBERTA = {**BERT, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ALBERT = {**BERT, "embedding_size": 8, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
DEBERTA = {
    **BERT, "pad_token_id": 0, "relative_attention": True, "position_buckets": 8,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": SIZE, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
XLNET = {
    "vocab_size": SIZE, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "pad_token_id": 5,
}  # fmt: skip
GPT = {"vocab_size": SIZE, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
GPT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}

TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
# The stem of a family's classes, its config, whose specials it has, and its classes.
FAMILIES: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "bert": (
        "Bert", BERT, "bert", ("Model", "ForPreTraining", "ForMaskedLM",
        "ForNextSentencePrediction", *(f"For{task}" for task in TASKS)),
    ),
    "roberta": (
        "Roberta", ROBERTA, "roberta", ("Model", "ForMaskedLM", *(f"For{task}" for task in TASKS)),
    ),
    "roberta-prelayernorm": (
        "RobertaPreLayerNorm", ROBERTA, "roberta",
        ("Model", "ForMaskedLM", *(f"For{task}" for task in TASKS)),
    ),
    "albert": (
        "Albert", ALBERT, "bert",
        ("Model", "ForPreTraining", "ForMaskedLM", *(f"For{task}" for task in TASKS)),
    ),
    "electra": (
        "Electra", ALBERT, "bert",
        ("Model", "ForPreTraining", "ForMaskedLM", *(f"For{task}" for task in TASKS)),
    ),
    "deberta-v2": (
        "DebertaV2", DEBERTA, "bert", ("Model", "ForMaskedLM", *(f"For{task}" for task in TASKS)),
    ),
    "distilbert": (
        "DistilBert", DISTILBERT, "bert",
        ("Model", "ForMaskedLM", *(f"For{task}" for task in TASKS)),
    ),
    "xlnet": (
        "XLNet", XLNET, "xlnet",
        ("Model", "LMHeadModel", *(f"For{task}" for task in TASKS), "ForQuestionAnsweringSimple"),
    ),
    "openai-gpt": ("OpenAIGPT", GPT, "gpt", ("Model", "LMHeadModel", "ForSequenceClassification")),
    "gpt2": (
        "GPT2", GPT, "gpt",
        ("Model", "LMHeadModel", *(f"For{task}" for task in TASKS[:3])),
    ),
}  # fmt: skip
EVERY = [(family, kind) for family, (*_, kinds) in FAMILIES.items() for kind in kinds]
MORE = [
    ("bert", "LMHeadModel"),
    ("roberta", "ForCausalLM"),
    ("electra", "ForCausalLM"),
    ("roberta-prelayernorm", "ForCausalLM"),
]


def tokenizer(specials: str, size: int = SIZE) -> Tokenizer:
    names = [*SPECIALS[specials], *WORDS]
    names += [f"w{number}" for number in range(size - len(names))]
    table = {name: number for number, name in enumerate(names[:size])}
    word_level = Tokenizer(models.WordLevel(table, unk_token=SPECIALS[specials][1]))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    return word_level


def saved(folder: Path, family: str, kind: str, **settings: Any) -> nn.Module:
    """A checkpoint as transformers saves it, every weight at random."""
    stem, config, specials, _ = FAMILIES[family]
    cls = getattr(transformers, f"{stem}{kind}")
    model = shaken(cls(cls.config_class(**{**config, **settings}))).float()
    model.save_pretrained(folder)
    tokenizer(specials).save(str(folder / "tokenizer.json"))
    return model


def back(folder: Path) -> Path:
    """In as a run, and out again."""
    import_model(str(folder), folder.with_name("run"))
    export(str(folder.with_name("run")), folder.with_name("out"))
    return folder.with_name("out")


def batch(family: str, kind: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (2, 3, 7) if "MultipleChoice" in kind else (3, 7)
    if "Sequence" in kind and "gpt" in family:
        shape = (1, 7)
    ids = torch.randint(9, SIZE, shape, generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def outputs(model: nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        result = model.double().eval()(**inputs)
    return [value for value in result.values() if isinstance(value, torch.Tensor)]


def same_bits(model: nn.Module, peer: nn.Module) -> None:
    first, second = model.state_dict(), peer.state_dict()
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]), name


@pytest.mark.parametrize(("family", "kind"), EVERY)
def test_a_checkpoint_goes_out_as_the_class_it_came_in(
    tmp_path: Path, family: str, kind: str
) -> None:
    model = saved(tmp_path / "in", family, kind)
    peer, report = type(model).from_pretrained(back(tmp_path / "in"), output_loading_info=True)
    assert peer.config.architectures == [type(model).__name__]
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    same_bits(model, peer)
    before, after = (
        load_file(tmp_path / "in/model.safetensors"),
        load_file(tmp_path / "out/model.safetensors"),
    )
    assert before.keys() == after.keys()
    for first, second in zip(
        *(outputs(m, batch(family, kind)) for m in (model, peer)), strict=True
    ):
        assert float((first - second).abs().max()) < 1e-9


@pytest.mark.parametrize(("family", "kind"), MORE)
def test_a_model_that_reads_from_the_left_comes_back(
    tmp_path: Path, family: str, kind: str
) -> None:
    model = saved(tmp_path / "in", family, kind, is_decoder=True)
    peer = type(model).from_pretrained(back(tmp_path / "in"))
    assert peer.config.architectures == [type(model).__name__] and peer.config.is_decoder
    same_bits(model, peer)


@pytest.mark.parametrize("family", ["bert", "roberta", "roberta-prelayernorm", "albert"])
def test_an_encoder_without_a_pooler_goes_out_without(tmp_path: Path, family: str) -> None:
    stem, config, specials, _ = FAMILIES[family]
    cls = getattr(transformers, f"{stem}Model")
    model = shaken(cls(cls.config_class(**config), add_pooling_layer=False)).float()
    model.save_pretrained(tmp_path / "in")
    tokenizer(specials).save(str(tmp_path / "in" / "tokenizer.json"))
    files = load_file(back(tmp_path / "in") / "model.safetensors")
    assert not any("pooler" in name for name in files)
    peer = cls.from_pretrained(tmp_path / "out", add_pooling_layer=False)
    same_bits(model, peer)
    assert load(str(tmp_path / "run")).module.pooler is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_goes_out_as_it_came(tmp_path: Path, dtype: str) -> None:
    model = saved(tmp_path / "in", "bert", "Model")
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path / "in")
    same_bits(model, transformers.AutoModel.from_pretrained(back(tmp_path / "in"), dtype="auto"))


def test_several_precisions_go_out_in_one_that_has_them_all(tmp_path: Path) -> None:
    saved(tmp_path / "in", "bert", "Model")
    file = tmp_path / "in" / "model.safetensors"
    mixed = {n: t if "LayerNorm" in n else t.bfloat16() for n, t in load_file(file).items()}
    save_file(mixed, file, metadata={"format": "pt"})
    out = load_file(back(tmp_path / "in") / "model.safetensors")
    assert {t.dtype for t in out.values()} == {torch.float32}
    assert all(torch.equal(out[name], tensor.float()) for name, tensor in mixed.items())


@pytest.mark.parametrize("kind", ["Model", "ForPreTraining"])
@pytest.mark.parametrize("settings", [{"embedding_size": 32}, {"num_hidden_groups": 2}])
def test_albert_comes_back_at_any_size_and_in_any_groups(
    tmp_path: Path, kind: str, settings: dict[str, int]
) -> None:
    cls = getattr(transformers, f"Albert{kind}")
    model = shaken(cls(cls.config_class(**{**ALBERT, **settings}))).float()
    model.save_pretrained(tmp_path / "in")
    tokenizer("bert").save(str(tmp_path / "in" / "tokenizer.json"))
    same_bits(model, cls.from_pretrained(back(tmp_path / "in")))


@pytest.mark.parametrize("family", ["openai-gpt", "gpt2"])
def test_a_second_head_is_left_and_the_first_comes_back(tmp_path: Path, family: str) -> None:
    model = saved(tmp_path / "in", family, "DoubleHeadsModel")
    out = back(tmp_path / "in")
    peer = getattr(transformers, f"{FAMILIES[family][0]}LMHeadModel").from_pretrained(out)
    assert peer.config.architectures == [type(peer).__name__]
    same_bits(model.transformer, peer.transformer)
    assert any("multiple_choice_head" in note for note in load(str(tmp_path / "in")).notes)


def test_the_published_form_of_gpt2_is_no_encoder_alone(tmp_path: Path) -> None:
    """Its file has the names of an encoder alone, with old buffers, and the class of a model."""
    model = saved(tmp_path / "in", "gpt2", "LMHeadModel")
    file = tmp_path / "in" / "model.safetensors"
    old = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    old |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 40, 40) for layer in range(2)}
    save_file(old, file, metadata={"format": "pt"})
    peer = transformers.GPT2LMHeadModel.from_pretrained(back(tmp_path / "in"))
    assert peer.config.architectures == ["GPT2LMHeadModel"]
    same_bits(model, peer)
    assert load(str(tmp_path / "in")).notes == ()


# Heads over the vocabulary with a table of their own.

UNTIED: list[tuple[str, str, dict[str, Any]]] = [
    *(("bert", kind, {}) for kind in ("ForPreTraining", "ForMaskedLM")),
    *((family, kind, {"is_decoder": True}) for family, kind in MORE),
    ("roberta", "ForMaskedLM", {}),
    ("roberta-prelayernorm", "ForMaskedLM", {}),
    *(("albert", kind, {}) for kind in ("ForPreTraining", "ForMaskedLM")),
    ("distilbert", "ForMaskedLM", {}),
    *((family, "LMHeadModel", {}) for family in ("xlnet", "openai-gpt", "gpt2")),
]
HEADS = ("masked_lm", "causal_lm", "permutation_lm")


def same_files(folder_a: Path, folder_b: Path) -> None:
    first, second = (load_file(folder / "model.safetensors") for folder in (folder_a, folder_b))
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(("family", "kind", "settings"), UNTIED)
def test_a_decoder_of_its_own_comes_in_and_goes_out(
    tmp_path: Path, family: str, kind: str, settings: dict[str, Any]
) -> None:
    model = saved(tmp_path / "in", family, kind, tie_word_embeddings=False, **settings)
    out = back(tmp_path / "in")
    peer, report = type(model).from_pretrained(out, output_loading_info=True)
    assert peer.config.architectures == [type(model).__name__]
    assert peer.config.tie_word_embeddings is False
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    same_bits(model, peer)
    same_files(tmp_path / "in", out)
    imported = load(str(tmp_path / "run"))
    assert imported.notes == () and not imported.recipe.objectives[0].tied
    ours = imported.module.double()
    (head,) = [ours.heads[name] for name in HEADS if name in ours.heads]
    ids = batch(family, kind)
    with torch.no_grad():
        _, logits = EncoderGraph(ours.encoder, head)(**ids)
    wanted = theirs(model.double().eval(), ids)["words"]
    assert float((logits.flatten(0, 1) - wanted).abs().max()) < 1e-9


@pytest.mark.parametrize("tied", [True, False])
def test_the_decoder_s_bias_is_the_one_that_is_added(tmp_path: Path, tied: bool) -> None:
    """A file may have two, whatever the config says: the head's then lies idle, and comes back."""
    model = saved(tmp_path / "in", "bert", "ForMaskedLM", tie_word_embeddings=tied)
    file = tmp_path / "in" / "model.safetensors"
    tensors = load_file(file) | {"cls.predictions.bias": torch.arange(SIZE) * 1.0}
    tensors |= {"cls.predictions.decoder.bias": torch.arange(SIZE) * -1.0}
    save_file(tensors, file, metadata={"format": "pt"})
    same_files(tmp_path / "in", back(tmp_path / "in"))
    model = type(model).from_pretrained(tmp_path / "in").double().eval()
    assert model.cls.predictions.decoder.bias[3] == -3
    ours, ids = load(str(tmp_path / "run")).module.double(), batch("bert", "ForMaskedLM")
    with torch.no_grad():
        _, logits = EncoderGraph(ours.encoder, ours.heads["masked_lm"])(**ids)
    assert float((logits.flatten(0, 1) - theirs(model, ids)["words"]).abs().max()) < 1e-9


def corpus(folder: Path) -> str:
    """A corpus by a checkpoint's tokenizer, beside it."""
    text, out = folder.with_name("text.txt"), str(folder.with_name("corpus"))
    text.write_text("the river was wide and slow .\nnobody crossed it in a .\n\n" * 60)
    command = ["corpus", "build", str(text), "--out", out, "--workers", "1"]
    assert cli.main([*command, "--tokenizer-from", str(folder)]) == 0
    return out


def test_an_untied_model_fills_and_trains_on_untied(tmp_path: Path) -> None:
    saved(tmp_path / "in", "bert", "ForPreTraining", tie_word_embeddings=False)
    place, run = str(tmp_path / "in"), str(tmp_path / "more")
    assert cli.main(["fill", place, "the [MASK] was wide"]) == 0
    command = ["pretrain", "bert", "--data", corpus(tmp_path / "in"), "--out", run]
    command += ["--device", "cpu", "--budget", "2steps", "--from", place]
    changes = ["--set", "schedule.batch_size=4", "--set", "blocks.length=24"]
    changes += ["--set", "schedule.phases=[]", "--set", "optimiser.learning_rate=1e-4"]
    assert cli.main([*command, *changes]) == 0
    assert "tied = false" in (tmp_path / "more" / "recipe.toml").read_text(encoding="utf-8")
    before, after = load(place).module.state_dict(), load(run).module.state_dict()
    table, words_table = "heads.masked_lm.table", "encoder.embeddings.words.weight"
    for name in (table, words_table):
        assert not torch.equal(before[name], after[name])
        assert torch.allclose(before[name], after[name], atol=1e-2)
    assert not torch.allclose(after[table], after[words_table], atol=1e-2)
    assert cli.main(["pretrain", "bert", "--resume", run, *changes]) == 0  # it is the same recipe
    export(run, tmp_path / "out")
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert torch.equal(peer.cls.predictions.decoder.weight, after[table])


def test_a_tied_model_may_be_untied_from_here_on(tmp_path: Path) -> None:
    """The head begins with the table that it had."""
    saved(tmp_path / "in", "bert", "ForPreTraining")
    recipe = read("bert", overrides=["objectives.0.tied=false"])
    data = [corpus(tmp_path / "in")]
    task = continued(recipe, str(tmp_path / "in"), data=data, seed=0)
    assert task.start is not None and not task.recipe.objectives[0].tied
    words_table = task.start["encoder.embeddings.words.weight"]
    assert torch.equal(task.start["heads.masked_lm.table"], words_table)


# Relatives: a family under another name.

RELATIVES = {
    "xlm-roberta": ("XLMRoberta", ROBERTA, "roberta", ("Model", "ForMaskedLM", "ForCausalLM")),
    "camembert": ("Camembert", ROBERTA, "roberta", ("Model", "ForMaskedLM", "ForCausalLM")),
    "ernie": (
        "Ernie", BERT, "bert", ("Model", "ForPreTraining", "ForMaskedLM",
        "ForNextSentencePrediction", "ForCausalLM"),
    ),
}  # fmt: skip
KINDS = [
    (name, kind)
    for name, (*_, kinds) in RELATIVES.items()
    for kind in (*kinds, *(f"For{task}" for task in TASKS))
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_relative_goes_out_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    stem, config, specials, _ = RELATIVES[name]
    monkeypatch.setitem(FAMILIES, name, (stem, config, specials, ()))
    causal = {"is_decoder": True} if "Causal" in kind else {}
    model = saved(tmp_path / "in", name, kind, **causal)
    out = back(tmp_path / "in")
    exported_config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert exported_config["model_type"] == name and exported_config["architectures"] == [
        type(model).__name__
    ]
    peer, report = type(model).from_pretrained(out, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    same_bits(model, peer)
    same_files(tmp_path / "in", out)
    if kind == "ForMaskedLM":
        assert type(transformers.AutoModelForMaskedLM.from_pretrained(out)) is type(model)
        export(str(tmp_path / "run"), tmp_path / "plain", family=FAMILIES[specials][0].lower())
        exported_config = json.loads(
            (tmp_path / "plain" / "config.json").read_text(encoding="utf-8")
        )
        assert exported_config["model_type"] == specials  # a family that is asked for


def test_an_origin_of_old_is_its_family_s() -> None:
    text = '{"family": "roberta", "heads": ["masked_lm"], "bare": false, "dtype": "float32"}'
    assert Origin.parse(text, "here").model_type == "roberta"


MODERNBERT = {
    **BERT, "local_attention": 4, "pad_token_id": 4, "bos_token_id": 1, "eos_token_id": 2,
    "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
# Specials by their numbers: the opening mark is the second, the closing one the third.
MARKED = {
    "others are there": "<unk> <s> </s> <mask> <pad> <cls> <sep>",
    "none is spelled so": "<unk> <bos> <eos> <MASK> <PAD>",
}


def marked(folder: Path, names: list[str], file: str) -> nn.Module:
    """A ModernBERT whose file, or its template alone, says which marks stand around a text."""
    words = [*names, *WORDS]
    table = {word: at for at, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(table, unk_token=names[0]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(names)
    made.post_processor = processors.TemplateProcessing(
        single=f"{names[1]} $A {names[2]}",
        pair=f"{names[1]} $A {names[2]} $B {names[2]}",
        special_tokens=[(names[1], 1), (names[2], 2)],
    )
    config = transformers.ModernBertConfig(**{**MODERNBERT, "vocab_size": len(words)})
    model = shaken(transformers.ModernBertForMaskedLM(config)).eval()
    model.save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    roles = dict(zip(("unk", "cls", "sep", "mask", "pad"), names, strict=False))
    tokens: dict[str, Any] = {f"{role}_token": name for role, name in roles.items()}
    tokens["cls_token"] = {"content": names[1], "lstrip": False}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    texts = {"tokenizer_config.json": kind, "special_tokens_map.json": {}}
    texts[file] |= tokens
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return model


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("specials", MARKED)
def test_a_tokenizer_s_own_marks_stand_around_a_text(
    tmp_path: Path, specials: str, file: str
) -> None:
    names = MARKED[specials].split()
    model = marked(tmp_path / "in", names, file)
    import_model(str(tmp_path / "in"), tmp_path / "run")
    export(str(tmp_path / "run"), tmp_path / "out")
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = [1, len(names), len(names) + 2, 2]
    inputs = torch.tensor([[1, 3, *text[1:]]])
    with torch.inference_mode():
        wanted = model(input_ids=inputs).logits[0, 1].softmax(-1).max()
    for place in ("in", "run", "out"):
        ours = load(str(tmp_path / place))
        assert ours.reader().read(["the river"])[0].columns["ids"].tolist() == text
        filled = ours.fill(f"{names[3]} the river")
        assert filled.blanks[0][0].probability == pytest.approx(float(wanted), rel=1e-4)
    assert peer("the river").input_ids == text
    assert (peer.cls_token, peer.sep_token, peer.mask_token) == (*names[1:3], names[3])


def test_a_template_alone_says_which_marks_stand_around_a_text(tmp_path: Path) -> None:
    for folder, specials in MARKED.items():
        names = specials.split()
        marked(tmp_path / folder, names, "tokenizer_config.json")
        (tmp_path / folder / "tokenizer_config.json").unlink()
        roles = load(str(tmp_path / folder)).vocabulary.roles
        assert (roles["cls"], roles["sep"]) == (1, 2)


def test_a_token_that_is_none_is_named(tmp_path: Path) -> None:
    marked(tmp_path, MARKED["others are there"].split(), "tokenizer_config.json")
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": 3}', encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer_config\.json: cls_token must be the name of"):
        load(str(tmp_path))


@pytest.mark.parametrize("texts", ["nobody crossed it", ("the river", "was wide")])
def test_a_gpt2_that_was_tuned_elsewhere_reads_texts_without_marks(
    tmp_path: Path, texts: str | tuple[str, str]
) -> None:
    kind = "ForSequenceClassification"
    peer: Any = saved(tmp_path / "in", "gpt2", kind, pad_token_id=7).eval()
    import_model(str(tmp_path / "in"), tmp_path / "run")
    export(str(tmp_path / "run"), tmp_path / "out")
    parts = (texts,) if isinstance(texts, str) else texts
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").pad_token_id == 7
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = [number for part in parts for number in tokenizer("gpt").encode(part).ids]
    assert read(*parts).input_ids == ids
    with torch.inference_mode():
        wanted = peer(input_ids=torch.tensor([ids])).logits[0].softmax(-1).tolist()
    for place in ("in", "run", "out"):
        (said,) = load(str(tmp_path / place)).predict([texts])
        assert list(said.probabilities.values()) == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(UserError, match="a text has no tokens, and the model adds no special"):
        load(str(tmp_path / "in")).predict([""])


TEXTS = ["I like small cats.", "They live in a big house; she lives in small houses."] * 9
BLANKS = ["I like small {}.", "{} like cats, and {}", "like{}ly", "a big  {}  house", "<s> {}, I"]


@pytest.mark.parametrize("lstrip", [True, False])
@pytest.mark.parametrize("scheme", ["first", "always"])
def test_what_stands_around_a_blank_is_read_as_transformers_reads_it(
    tmp_path: Path, scheme: str, lstrip: bool
) -> None:
    names = SPECIALS["roberta"]
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=names, unk_token="<unk>")
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens([AddedToken("<mask>", lstrip=lstrip, special=True)])
    config = transformers.RobertaConfig(**{**ROBERTA, "vocab_size": made.get_vocab_size()})
    shaken(transformers.RobertaForMaskedLM(config)).save_pretrained(tmp_path)
    made.save(str(tmp_path / "tokenizer.json"))
    ours = load(str(tmp_path))
    for text in BLANKS:
        ids, at = _mask_blanks(ours, text.split("{}"), masked=True)
        wanted = made.encode(text.format(*["<mask>"] * 2), add_special_tokens=False).ids
        if text.startswith("<s>"):  # the name of a special is text here
            assert 0 not in ids and 4 in ids
        else:
            assert ids.tolist() == wanted
        assert (ids[at] == 4).all() and len(at) == text.count("{}")


def _pair_template(kind: str, known: Tokenizer, cls: str, sep: str) -> Any:
    """A post-processor for pairs of texts, as files have them."""
    ends = (sep, known.token_to_id(sep)), (cls, known.token_to_id(cls))
    made: dict[str, Any] = {
        "bert": lambda: processors.BertProcessing(*ends),
        "roberta": lambda: processors.RobertaProcessing(*ends),
        "one": lambda: processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=[*ends]
        ),
        "two": lambda: processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} {sep} $B:1 {sep}:1",
            special_tokens=[*ends],
        ),
        "nested": lambda: processors.Sequence(
            [processors.ByteLevel(trim_offsets=False), _pair_template("one", known, cls, sep)]
        ),
        # A template of another kind leaves it to the family; so does none.
        "odd": lambda: processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=f"$B {sep} $A", special_tokens=[*ends]
        ),
        "none": lambda: None,
    }
    return made[kind]()


@pytest.mark.parametrize(
    ("family", "specials", "tokenizer_class", "template"),
    [
        *(("roberta", "bert", "BertTokenizer", kind) for kind in ("one", "bert")),  # KLUE's
        *(
            (family, specials, "PreTrainedTokenizerFast", kind)
            for family, specials in (("roberta", "roberta"), ("roberta", "bert"), ("bert", "bert"))
            for kind in ("one", "two", "bert", "roberta", "nested")
        ),
    ],
)
def test_two_texts_stand_as_the_tokenizer_of_transformers_lays_them(
    tmp_path: Path, family: str, specials: str, tokenizer_class: str, template: str
) -> None:
    model = saved(tmp_path / "in", family, "ForSequenceClassification", pad_token_id=1)
    known = tokenizer(specials)
    cls, sep = ("[CLS]", "[SEP]") if specials == "bert" else ("<s>", "</s>")
    known.post_processor = _pair_template(template, known, cls, sep)
    known.save(str(tmp_path / "in" / "tokenizer.json"))
    settings = {"tokenizer_class": tokenizer_class, "cls_token": cls, "sep_token": sep}
    (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "in")
    ids = theirs("the river", "was wide")["input_ids"]
    second = len(ids) - 1 - ids[::-1][1:].index(known.token_to_id(sep))
    types = [int(family == "bert" and position >= second) for position in range(len(ids))]
    with torch.no_grad():
        out = model.eval()(torch.tensor([ids]), token_type_ids=torch.tensor([types]))
    (found,) = load(str(tmp_path / "in")).predict([("the river", "was wide")])
    wanted = out.logits.softmax(-1)[0].tolist()
    assert [*found.probabilities.values()] == pytest.approx(wanted, abs=1e-6)
    again = transformers.AutoTokenizer.from_pretrained(back(tmp_path / "in"))
    assert again("the river", "was wide")["input_ids"] == ids


@pytest.mark.parametrize("template", ["odd", "none"])
def test_an_unusual_template_for_pairs_leaves_them_to_the_family(
    tmp_path: Path, template: str
) -> None:
    saved(tmp_path / "in", "roberta", "ForSequenceClassification", pad_token_id=1)
    known = tokenizer("roberta")
    known.post_processor = _pair_template(template, known, "<s>", "</s>")
    known.save(str(tmp_path / "in" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load(str(tmp_path / "in")).reader().num_special_tokens(2) == 4


def test_an_imported_model_may_answer_nothing_where_questions_have_no_answer(
    tmp_path: Path,
) -> None:
    model: Any = saved(tmp_path / "in", "bert", "ForQuestionAnswering").eval()
    with torch.no_grad():  # so that some are answered, and some are not
        model.qa_outputs.weight.normal_(generator=torch.Generator().manual_seed(0))
    model.save_pretrained(tmp_path / "in")
    table = tokenizer("bert").get_vocab()
    rows: list[dict[str, Any]] = []
    right: dict[str, list[bool]] = {"HasAns_exact": [], "NoAns_exact": []}
    for question, first, second in permutations(WORDS[2:7], 3):
        names = ["[CLS]", question, "[SEP]", first, second, "[SEP]"]
        ids = torch.tensor([[table[name] for name in names]])
        with torch.no_grad():
            out = model(ids, token_type_ids=torch.tensor([[0, 0, 0, 1, 1, 1]]))
        start, end = out.start_logits[0], out.end_logits[0]
        spans = {first: (3, 3), second: (4, 4), f"{first} {second}": (3, 4)}
        scores = {text: float(start[i] + end[j]) for text, (i, j) in spans.items()}
        null = float(start[0] + end[0]) > max(scores.values())
        golds = [*spans] if len(rows) % 3 else []
        right["HasAns_exact" if golds else "NoAns_exact"].append(null != bool(golds))
        rows.append({"question": question, "context": f"{first} {second}", "answers": golds})
    assert all(any(each) for each in right.values())
    file = tmp_path / "dev.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = clozelab.evaluate(str(tmp_path / "in"), str(file))["dev"]
    for name, each in right.items():
        assert found[name] == pytest.approx(100 * sum(each) / len(each))
