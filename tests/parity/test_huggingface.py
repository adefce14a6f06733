"""Weights to transformers and back: the same function in double precision, layer by layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from support.peer_models import (
    SHAPE,
    VOCABULARY,
    Model,
    agree,
    model_with_weights,
    ours,
    padded,
    random_model,
    shaken,
    sized_model,
    theirs,
)
from tokenizers import Tokenizer

from clozelab import data
from clozelab.contracts import Vocabulary
from clozelab.encoder import Encoder, Relative, Transformer
from clozelab.models.interop.exporting import Exported, to_transformers
from clozelab.models.interop.huggingface import read, write
from clozelab.models.interop.importing import from_transformers
from clozelab.models.interop.tokenizer import family_tokenizer
from clozelab.text.vocabulary import describe

torch.set_num_threads(1)

BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 14,
}
ELECTRA = {**BERT, "embedding_size": 8}
GPT = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 12}
XLNET = {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24}
DISTILBERT = {
    "vocab_size": VOCABULARY, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24,
    "max_position_embeddings": 12,
}  # fmt: skip
MODERNBERT = {
    **BERT, "num_hidden_layers": 5, "local_attention": 4, "pad_token_id": 1, "bos_token_id": 2,
    "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
}  # fmt: skip
ROBERTA = {**BERT, "type_vocab_size": 1, "pad_token_id": 1}
DEBERTA = {
    **BERT, "pad_token_id": 1, "relative_attention": True, "position_buckets": 4,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}  # fmt: skip
DEBERTA_OLD = DEBERTA | {"position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none"}

# The class, its config, the family and heads that come of it, and how many types.
CHECKPOINTS = {
    "bert": ("BertForPreTraining", BERT, "bert", {"masked_lm", "next_sentence"}, 2),
    "chinese wwm": ("BertForMaskedLM", BERT | {"hidden_act": "gelu_new"}, "bert", {"masked_lm"}, 2),
    "ernie": (
        "ErnieForPreTraining",
        BERT | {"hidden_act": "relu", "layer_norm_eps": 1e-5},
        "bert",
        {"masked_lm", "next_sentence"},
        2,
    ),
    "left to right": ("BertLMHeadModel", BERT | {"is_decoder": True}, "bert", {"causal_lm"}, 2),
    "bare bert": ("BertModel", BERT, "bert", set(), 2),
    "bare roberta": ("RobertaModel", ROBERTA, "roberta", set(), 1),
    "bare albert": ("AlbertModel", BERT | {"embedding_size": 8}, "albert", set(), 2),
    "bare distilbert": ("DistilBertModel", DISTILBERT, "distilbert", set(), 0),
    "bare xlnet": ("XLNetModel", XLNET, "xlnet", set(), 2),
    "roberta": ("RobertaForMaskedLM", ROBERTA, "roberta", {"masked_lm"}, 1),
    "bare roberta-prelayernorm": (
        "RobertaPreLayerNormModel",
        ROBERTA,
        "roberta-prelayernorm",
        set(),
        1,
    ),
    "roberta-prelayernorm": (
        "RobertaPreLayerNormForMaskedLM",
        ROBERTA | {"type_vocab_size": 2, "layer_norm_eps": 1e-5, "pad_token_id": 3},
        "roberta-prelayernorm",
        {"masked_lm"},
        2,
    ),
    "roberta-prelayernorm, left to right": (
        "RobertaPreLayerNormForCausalLM",
        ROBERTA | {"is_decoder": True},
        "roberta-prelayernorm",
        {"causal_lm"},
        1,
    ),
    "xlm-roberta": ("XLMRobertaForMaskedLM", ROBERTA, "roberta", {"masked_lm"}, 1),
    "camembert": ("CamembertForMaskedLM", ROBERTA, "roberta", {"masked_lm"}, 1),
    "albert": (
        "AlbertForPreTraining",
        BERT | {"embedding_size": 8},
        "albert",
        {"masked_lm", "sentence_order"},
        2,
    ),
    "albert in groups": (
        "AlbertForMaskedLM",
        BERT | {"embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2},
        "albert",
        {"masked_lm"},
        2,
    ),
    "electra": ("ElectraForPreTraining", ELECTRA, "electra", {"replaced_token"}, 2),
    "electra's generator": ("ElectraForMaskedLM", ELECTRA, "electra", {"masked_lm"}, 2),
    "electra at full width": (
        "ElectraForPreTraining",
        ELECTRA | {"embedding_size": 16, "hidden_act": "relu"},
        "electra",
        {"replaced_token"},
        2,
    ),
    "electra, left to right": (
        "ElectraForCausalLM",
        ELECTRA | {"is_decoder": True},
        "electra",
        {"causal_lm"},
        2,
    ),
    "bare electra": ("ElectraModel", ELECTRA, "electra", set(), 2),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT, "distilbert", {"masked_lm"}, 0),
    "xlnet": ("XLNetLMHeadModel", XLNET, "xlnet", {"permutation_lm"}, 2),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT, "openai-gpt", {"causal_lm"}, 0),
    "gpt2": ("GPT2LMHeadModel", GPT | {"n_inner": 24}, "gpt2", {"causal_lm"}, 0),
    "modernbert": ("ModernBertForMaskedLM", MODERNBERT, "modernbert", {"masked_lm"}, 0),
    "modernbert, other angles": (
        "ModernBertForMaskedLM",
        MODERNBERT
        | {"global_rope_theta": 50.0, "local_rope_theta": 7.0, "local_attention": 7}
        | {"global_attn_every_n_layers": 2, "hidden_activation": "silu"}
        | {"classifier_activation": "silu"},
        "modernbert",
        {"masked_lm"},
        0,
    ),
    **{
        f"modernbert, a window of {window}": (
            "ModernBertForMaskedLM",
            MODERNBERT | {"local_attention": window, "local_rope_theta": 7.0},
            "modernbert",
            {"masked_lm"},
            0,
        )
        for window in (16, 26, 128)
    },
    "modernbert with biases, without windows": (
        "ModernBertForMaskedLM",
        MODERNBERT
        | {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
        | {"classifier_bias": True, "global_attn_every_n_layers": 1, "norm_eps": 1e-6},
        "modernbert",
        {"masked_lm"},
        0,
    ),
    "bare modernbert": ("ModernBertModel", MODERNBERT, "modernbert", set(), 0),
    "deberta-v3": ("DebertaV2ForMaskedLM", DEBERTA, "deberta-v2", {"masked_lm"}, 0),
    "bare deberta-v3": ("DebertaV2Model", DEBERTA, "deberta-v2", set(), 0),
    "deberta's published head": (
        "DebertaV2ForMaskedLM",
        DEBERTA | {"legacy": False, "max_relative_positions": 7, "hidden_act": "relu"},
        "deberta-v2",
        {"masked_lm"},
        0,
    ),
    "deberta without buckets": (
        "DebertaV2ForMaskedLM",
        DEBERTA_OLD | {"max_relative_positions": 5},
        "deberta-v2",
        {"masked_lm"},
        0,
    ),
    "deberta with types and positions": (
        "DebertaV2ForMaskedLM",
        DEBERTA_OLD | {"type_vocab_size": 2, "position_biased_input": True},
        "deberta-v2",
        {"masked_lm"},
        2,
    ),
    "deberta, contents to positions": (
        "DebertaV2ForMaskedLM",
        DEBERTA | {"pos_att_type": ["c2p"], "position_buckets": 6},
        "deberta-v2",
        {"masked_lm"},
        0,
    ),
    "deberta, positions to contents": (
        "DebertaV2ForMaskedLM",
        DEBERTA_OLD | {"pos_att_type": ["p2c"], "position_buckets": 6},
        "deberta-v2",
        {"masked_lm"},
        0,
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_of_transformers_computes_the_same_here(name: str) -> None:
    kind, settings, family, heads, types = CHECKPOINTS[name]
    cls = getattr(transformers, kind)
    model = shaken(cls(cls.config_class(**settings)))
    imported = from_transformers(model.config.to_dict(), model.state_dict())
    assert imported.family == family
    assert set(imported.heads) == heads
    batch = padded(types, padding=settings.get("pad_token_id", 1))
    agree(
        ours(model_with_weights(imported.encoder, imported.heads, imported.weights), batch),
        theirs(model, batch),
    )


ROLES = {"cls": 2, "sep": 3, "pad": 1, "mask": 4, "unk": 0}
IDS = Vocabulary(VOCABULARY, ROLES, np.array(sorted(ROLES.values()), dtype=np.int32))
PAIR = ("masked_lm", "next_sentence")
ORDER = ("masked_lm", "sentence_order")
STREAMS = {key: value for key, value in SHAPE.items() if key not in ("embedding_size", "positions")}
MODERN = {
    **SHAPE, "layers": 4, "types": 0, "norm": "pre", "position_embedding": "rotary", "gated": True,
    "bias": False, "first_norm": False,
}  # fmt: skip
GPTS = {**SHAPE, "types": 0, "embedding_norm": False, "causal": True}
DISENTANGLED = {
    **SHAPE, "types": 0, "epsilon": 1e-7, "position_embedding": "disentangled",
    "position_buckets": 4, "position_norm": True,
}  # fmt: skip

# The encoder, its heads, and the class that comes of them.
MODELS: dict[str, tuple[Encoder, tuple[str, ...], str]] = {
    "bert": (Transformer(**SHAPE), PAIR, "BertForPreTraining"),
    "ernie": (
        Transformer(**SHAPE | {"positions": 13}, activation="relu", epsilon=1e-5),
        PAIR,
        "BertForPreTraining",
    ),
    "spanbert": (Transformer(**SHAPE), ("masked_lm",), "BertForMaskedLM"),
    "no head": (Transformer(**SHAPE), (), "BertModel"),
    "no types": (Transformer(**SHAPE, types=0, epsilon=1e-5), ("masked_lm",), "BertForMaskedLM"),
    "pair alone": (Transformer(**SHAPE), ("next_sentence",), "BertForNextSentencePrediction"),
    "left to right": (Transformer(**SHAPE, causal=True), ("causal_lm",), "BertLMHeadModel"),
    "roberta": (
        Transformer(**SHAPE, position_offset=2, types=0, epsilon=1e-5),
        ("masked_lm",),
        "RobertaForMaskedLM",
    ),
    "roberta counted otherwise": (
        Transformer(**SHAPE, position_offset=5, types=0),
        ("masked_lm",),
        "BertForMaskedLM",
    ),
    "swift": (
        Transformer(**SHAPE, norm="pre", position_offset=2, types=0, epsilon=1e-5),
        ("masked_lm",),
        "RobertaPreLayerNormForMaskedLM",
    ),
    "swift without a head": (
        Transformer(**SHAPE, norm="pre", position_offset=2, types=1),
        (),
        "RobertaPreLayerNormModel",
    ),
    "swift counted otherwise": (
        Transformer(**SHAPE, norm="pre", types=2),
        ("masked_lm",),
        "RobertaPreLayerNormForMaskedLM",
    ),
    "albert": (
        Transformer(**SHAPE | {"embedding_size": 8}, sharing="all", activation="gelu_tanh"),
        ORDER,
        "AlbertForPreTraining",
    ),
    "albert in groups": (
        Transformer(**SHAPE | {"embedding_size": 8, "layers": 4}, sharing="all", groups=2),
        ("masked_lm",),
        "AlbertForMaskedLM",
    ),
    "albert at full width": (Transformer(**SHAPE, sharing="all"), ORDER, "AlbertForPreTraining"),
    "albert unshared": (
        Transformer(**SHAPE | {"embedding_size": 8}, types=0),
        ("masked_lm",),
        "AlbertForMaskedLM",
    ),
    "electra": (
        Transformer(**SHAPE | {"embedding_size": 8}),
        ("replaced_token",),
        "ElectraForPreTraining",
    ),
    "electra at full width": (
        Transformer(**SHAPE, types=0, activation="gelu_tanh"),
        ("replaced_token",),
        "ElectraForPreTraining",
    ),
    "bert with order": (Transformer(**SHAPE), ORDER, "AlbertForPreTraining"),
    "distilbert": (Transformer(**SHAPE, types=0), ("masked_lm",), "DistilBertForMaskedLM"),
    "xlnet": (Relative(**STREAMS), ("permutation_lm",), "XLNetLMHeadModel"),
    "gpt": (
        Transformer(**GPTS | {"intermediate_size": 64}, activation="gelu_tanh", epsilon=1e-5),
        ("causal_lm",),
        "OpenAIGPTLMHeadModel",
    ),
    "gpt, normalised first": (Transformer(**GPTS, norm="pre"), ("causal_lm",), "GPT2LMHeadModel"),
    "modernbert": (
        Transformer(**MODERN, window=4, global_every=3, rope_theta=160.0, epsilon=1e-5),
        ("masked_lm",),
        "ModernBertForMaskedLM",
    ),
    "modernbert without windows": (Transformer(**MODERN), ("masked_lm",), "ModernBertForMaskedLM"),
    "modernbert with biases": (
        Transformer(**MODERN | {"bias": True}, window=6, global_every=2, output_init="zero"),
        ("masked_lm",),
        "ModernBertForMaskedLM",
    ),
    "modernbert with another activation": (
        Transformer(**MODERN, activation="silu"),
        ("masked_lm",),
        "ModernBertForMaskedLM",
    ),
    "modernbert without a head": (Transformer(**MODERN), (), "ModernBertModel"),
    "deberta": (Transformer(**DISENTANGLED), ("masked_lm",), "DebertaV2ForMaskedLM"),
    "deberta without a head": (Transformer(**DISENTANGLED), (), "DebertaV2Model"),
    "deberta, other distances": (
        Transformer(
            **DISENTANGLED | {"position_buckets": 0, "position_norm": False, "types": 2},
            relative_positions=4,
            position_projections="own",
            absolute_positions="input",
        ),
        ("masked_lm",),
        "DebertaV2ForMaskedLM",
    ),
    "deberta, contents to positions": (
        Transformer(**DISENTANGLED, position_terms="content_to_position"),
        ("masked_lm",),
        "DebertaV2ForMaskedLM",
    ),
    "deberta, positions to contents": (
        Transformer(
            **DISENTANGLED, position_terms="position_to_content", position_projections="own"
        ),
        ("masked_lm",),
        "DebertaV2ForMaskedLM",
    ),
}


def exported(name: str) -> tuple[Model, Exported]:
    encoder, heads, _ = MODELS[name]
    model = random_model(encoder, heads, transform=name == "left to right")
    return model, to_transformers(encoder, model.state_dict(), vocabulary=IDS, length=12)


def put(folder: Path, model: Exported, kind: str = "wordpiece") -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(data.tokenizer(kind)))
    write(folder, model, tokenizer=tokenizer, vocabulary=IDS, card="A card.")
    return tokenizer


@pytest.mark.parametrize("name", MODELS)
def test_what_we_export_computes_the_same_in_transformers(name: str, tmp_path: Path) -> None:
    encoder, _, kind = MODELS[name]
    model, there = exported(name)
    put(tmp_path / "hf", there)
    assert there.config["architectures"] == [kind]
    assert there.left == []
    cls = getattr(transformers, kind)
    loading = {"dtype": torch.float64, "output_loading_info": True}
    peer, report = cls.from_pretrained(tmp_path / "hf", **loading)
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    if name == "xlnet":  # transformers loads these in single precision whatever is asked for
        peer.double().load_state_dict(there.tensors, strict=False)
    missing = {key for key in report["missing_keys"] if "pooler" not in key}
    assert not missing
    batch = padded(getattr(encoder, "types", 2), padding=ROLES["pad"])
    wanted = ours(model, batch)
    if kind == "BertForNextSentencePrediction":
        with torch.no_grad():
            logits = peer(**batch).logits
        assert float((logits - wanted["next_sentence"]).abs().max()) < 1e-9
    else:
        agree(wanted, theirs(peer.eval(), batch))


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][1]])
def test_the_file_holds_what_transformers_itself_would_write(name: str, tmp_path: Path) -> None:
    _, there = exported(name)
    put(tmp_path / "hf", there)
    cls = getattr(transformers, there.config["architectures"][0])
    cls.from_pretrained(tmp_path / "hf").save_pretrained(tmp_path / "theirs")
    names = []
    for folder in ("hf", "theirs"):
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"}
            names.append({key: file.get_slice(key).get_shape() for key in file.keys()})  # noqa: SIM118
    assert names[0] == names[1]


@pytest.mark.parametrize("name", MODELS)
def test_what_we_export_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    encoder, heads, _ = MODELS[name]
    model, there = exported(name)
    put(tmp_path / "hf", there)
    back = read(str(tmp_path / "hf"))
    imported = from_transformers(back.config, back.tensors)
    assert set(imported.heads) == set(heads) and imported.left == []
    batch = padded(getattr(encoder, "types", 2))
    agree(
        ours(model, batch),
        ours(model_with_weights(imported.encoder, imported.heads, imported.weights), batch),
    )


@pytest.mark.parametrize("name", ["roberta", "swift"])
def test_weights_that_fit_as_they_are_come_back_bit_for_bit(name: str) -> None:
    encoder, _, _ = MODELS[name]
    model, there = exported(name)
    imported = from_transformers(there.config, there.tensors)
    assert imported.encoder == replace(encoder, types=1)  # a table of zeros, since theirs has one
    types = imported.weights.pop("encoder.embeddings.types.weight")
    assert not types.any()
    assert imported.weights.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(imported.weights[key], tensor), key


@pytest.mark.parametrize("name", ["bert", "albert", "roberta", "swift"])
def test_the_automatic_classes_find_their_way(name: str, tmp_path: Path) -> None:
    model, there = exported(name)
    put(tmp_path / "hf", there)
    batch = padded(2 if name in ("bert", "albert") else 0)
    states = ours(model, batch)["layer 3"]
    for kind in ("AutoModel", "AutoModelForMaskedLM", "AutoModelForPreTraining"):
        peer = getattr(transformers, kind).from_pretrained(tmp_path / "hf", dtype=torch.float64)
        assert float((theirs(peer, batch)["layer 3"] - states).abs().max()) < 1e-9, kind


# The recipe's tokenizer, a family's model, and what is around one text and around two.
DRESSED = {
    "bert": ("wordpiece", "[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]", "0 0 0", "0 0 0 1 1"),
    "ernie": ("chars", "[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]", "0 0 0", "0 0 0 1 1"),
    "albert": ("unigram", "[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]", "0 0 0", "0 0 0 1 1"),
    "distilbert": ("wordpiece", "[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]", "", ""),
    "roberta": ("byte_bpe", "<s> A </s>", "<s> A </s> </s> B </s>", "", ""),
    "swift": ("byte_bpe", "<s> A </s>", "<s> A </s> </s> B </s>", "", ""),
    "xlnet": ("unigram", "A [SEP] [CLS]", "A [SEP] B [SEP] [CLS]", "0 0 2", "0 0 1 1 2"),
    "gpt": ("char_bpe", "A", "A B", "", ""),
    "modernbert": ("byte_bpe", "<s> A </s>", "<s> A </s> B </s>", "", ""),
    "deberta": ("unigram", "[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]", "", ""),
}


@pytest.mark.parametrize("name", DRESSED)
def test_the_tokenizer_adds_the_family_s_marks_to_the_same_ids(name: str, tmp_path: Path) -> None:
    kind, *wanted = DRESSED[name]
    encoder, heads, _ = MODELS[name]
    tokenizer = Tokenizer.from_file(str(data.tokenizer(kind)))
    vocabulary = describe(tokenizer)
    model = sized_model(encoder, heads, vocabulary.size)
    there = to_transformers(encoder, model.state_dict(), vocabulary=vocabulary, length=12)
    folder = tmp_path / "hf"
    write(folder, there, tokenizer=tokenizer, vocabulary=vocabulary, card="")
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = {"A": "The river was wide, and slow.", "B": "Nobody crossed it 在冬天!"}
    plain = {
        key: tokenizer.encode(text, add_special_tokens=False).ids for key, text in texts.items()
    }
    for text_names, marks, types in zip(("A", "AB"), wanted[:2], wanted[2:], strict=True):
        out = peer(*(texts[key] for key in text_names))
        parts = [plain.get(mark) or [tokenizer.token_to_id(mark)] for mark in marks.split()]
        assert out["input_ids"] == [number for part in parts for number in part]
        if types:
            sizes = zip(types.split(), parts, strict=True)
            assert out["token_type_ids"] == [int(t) for t, part in sizes for _ in part]
        else:
            assert "token_type_ids" not in out
    assert peer.model_max_length == 12
    assert peer.padding_side == ("left" if name == "xlnet" else "right")
    assert peer.pad_token_id == vocabulary.role("pad") == there.config["pad_token_id"]
    if name != "gpt":
        assert peer.mask_token_id == vocabulary.role("mask")
        assert (peer.cls_token_id, peer.sep_token_id) == (
            vocabulary.role("cls"),
            vocabulary.role("sep"),
        )
    if name not in ("gpt", "xlnet"):
        fill = transformers.pipeline("fill-mask", str(folder))
        assert len(fill(f"It {fill.tokenizer.mask_token} so.", top_k=3)) == 3


@pytest.mark.parametrize("name", ["roberta", "albert"])
def test_a_mask_takes_the_space_before_it_as_a_word_would(name: str) -> None:
    tokenizer = Tokenizer.from_file(str(data.tokenizer(DRESSED[name][0])))
    vocabulary = describe(tokenizer)
    mask = vocabulary.role("mask")
    words = tokenizer.encode("the river", add_special_tokens=False).ids
    text = f"the river {tokenizer.id_to_token(mask)}"
    encoding = family_tokenizer(tokenizer, name, vocabulary).encode(text, add_special_tokens=False)
    assert encoding.ids == [*words, mask]
