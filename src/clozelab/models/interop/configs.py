"""Settings of an encoder as a config of transformers, and back; what has no word is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clozelab.encoder import Encoder, Relative, Transformer
from clozelab.errors import UserError
from clozelab.models.interop import typed
from clozelab.models.interop.heads import ROBERTAS
from clozelab.models.interop.names import GPTS

Config = dict[str, Any]

_BERT = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "hidden_size": "width",
    "intermediate_size": "inner",
    "max_position_embeddings": "positions",
    "type_vocab_size": "types",
    "hidden_act": "activation",
    "layer_norm_eps": "epsilon",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
_GPT = {
    "n_layer": "layers",
    "n_head": "heads",
    "n_embd": "width",
    "n_positions": "positions",
    "layer_norm_epsilon": "epsilon",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
}

# Their key for each of our settings.
KEYS: dict[str, dict[str, str]] = {
    "bert": _BERT,
    **dict.fromkeys(ROBERTAS, _BERT),
    "albert": {**_BERT, "embedding_size": "embedding", "num_hidden_groups": "groups"},
    "distilbert": {
        "n_layers": "layers",
        "n_heads": "heads",
        "dim": "width",
        "hidden_dim": "inner",
        "max_position_embeddings": "positions",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    "xlnet": {
        "n_layer": "layers",
        "n_head": "heads",
        "d_model": "width",
        "d_inner": "inner",
        "mem_len": "memory",
        "ff_activation": "activation",
        "layer_norm_eps": "epsilon",
        "dropout": "dropout",
    },
    "openai-gpt": {**_GPT, "afn": "activation"},
    "gpt2": {**_GPT, "activation_function": "activation", "n_inner": "inner"},
}

# Second names of keys, which transformers takes as well.
_ALSO: dict[str, dict[str, str]] = {
    "distilbert": {
        "dim": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
    },
    "xlnet": {
        "d_model": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
    },
    **{
        family: {
            "n_embd": "hidden_size",
            "n_positions": "max_position_embeddings",
            "n_head": "num_attention_heads",
            "n_layer": "num_hidden_layers",
        }
        for family in GPTS
    },
}

# What a config that leaves a key out means by it.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "bert": {"activation": "gelu", "epsilon": 1e-12, "types": 2},
    **{one: {"activation": "gelu", "epsilon": 1e-12, "types": 2} for one in ROBERTAS},
    "albert": {
        **{"activation": "gelu_new", "epsilon": 1e-12, "types": 2, "groups": 1},
        **{"dropout": 0.0, "attention_dropout": 0.0},
    },
    "distilbert": {"activation": "gelu"},
    "xlnet": {"activation": "gelu", "epsilon": 1e-12, "memory": 0},
    "openai-gpt": {"activation": "gelu", "epsilon": 1e-5},
    "gpt2": {"activation": "gelu_new", "epsilon": 1e-5, "inner": 0},
}
_RATES = {"dropout": 0.1, "attention_dropout": 0.1}
_FRACTIONS = ("epsilon", *_RATES)
_MOST_LAYERS = 4096  # far above any; layers that are shared have no tensors to be counted by

# Settings of ours that a family has in one way only.
_LAYERS = {"norm": "post", "embedding_norm": True, "sharing": "none"}
_CAUSAL = {"embedding_norm": False, "sharing": "none", "causal": True, "types": 0}
_FIXED: dict[str, dict[str, Any]] = {
    "bert": _LAYERS,
    "roberta": _LAYERS,
    "roberta-prelayernorm": {**_LAYERS, "norm": "pre"},
    "albert": {"norm": "post", "embedding_norm": True, "causal": False},
    "distilbert": {**_LAYERS, "epsilon": 1e-12, "types": 0, "causal": False},
    "openai-gpt": {**_CAUSAL, "norm": "post"},
    "gpt2": {**_CAUSAL, "norm": "pre"},
}
# And those of a head over the vocabulary, which knows no other.
_PREDICTING = {family: {"activation": "gelu"} for family in ROBERTAS}

# Keys of theirs that have to be so, if they are there at all.
_DEMANDS: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "use_task_id": False,
    "inner_group_num": 1,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "attn_type": "bi",
    "untie_r": True,
    "clamp_len": -1,
    "bi_data": False,
    "same_length": False,
}

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
_OURS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_ONNX = "train it so, or export to ONNX, which takes any encoder"


def to_config(encoder: Any, family: str, *, predicts: bool = True) -> Config:
    """The family's config of an encoder; refused where it has no word for a setting.

    `predicts` is whether a head over the vocabulary goes with it.
    """
    _refuse(encoder, family, predicts=predicts)
    config = {theirs: getattr(encoder, ours) for theirs, ours in KEYS[family].items()}
    activation = next(theirs for theirs, ours in KEYS[family].items() if ours == "activation")
    config[activation] = _ACTIVATIONS[encoder.activation]
    if family in ("bert", *ROBERTAS):
        config["is_decoder"] = encoder.causal
        if family in ROBERTAS:
            config["max_position_embeddings"] += encoder.position_offset
    elif family == "albert":
        config["num_hidden_groups"] = encoder.copies("attention")
        config["inner_group_num"] = 1
    elif family == "distilbert":
        config["sinusoidal_pos_embds"] = False
    elif family == "xlnet":
        config |= {"d_head": encoder.width // encoder.heads, "attn_type": "bi"}
    else:
        config["embd_pdrop"] = encoder.dropout
        if family == "openai-gpt":
            config[activation] = "gelu" if encoder.activation == "gelu_tanh" else "relu"
    return config


def _refuse(encoder: Any, family: str, *, predicts: bool) -> None:
    """Say which setting the family cannot have."""
    fixed = _FIXED.get(family, {}) | (_PREDICTING.get(family, {}) if predicts else {})
    for setting, value in fixed.items():
        if getattr(encoder, setting) != value:
            raise UserError(
                f"encoder.{setting} = {getattr(encoder, setting)!r}: a {family} model of"
                f" transformers has {value!r}; {_ONNX}"
            )
    if encoder.embedding != encoder.width and family != "albert":
        raise UserError(
            f"encoder.embedding = {encoder.embedding}: a {family} model of transformers has the"
            f" width, {encoder.width}; {_ONNX}"
        )
    if family == "albert" and encoder.sharing in ("attention", "ffn"):
        raise UserError(
            f"encoder.sharing = {encoder.sharing!r}: transformers has no class that shares half a"
            ' layer; train with "all" or "none", or export to ONNX, which takes any encoder'
        )
    if family == "albert" and not _groups_alike(encoder.layers, encoder.copies("ffn")):
        raise UserError(
            f"encoder.groups = {encoder.groups}: transformers gives {encoder.layers} layers to"
            f" these groups in another way; {_ONNX}"
        )
    if family == "openai-gpt":
        if encoder.activation == "gelu":
            raise UserError(
                "encoder.activation = 'gelu': an openai-gpt model of transformers has"
                f" 'gelu_tanh' or 'relu'; {_ONNX}"
            )
        if encoder.inner != 4 * encoder.width:
            raise UserError(
                f"encoder.inner = {encoder.inner}: an openai-gpt model of transformers has"
                f" 4 × width = {4 * encoder.width}; {_ONNX}"
            )


def _groups_alike(layers: int, groups: int) -> bool:
    """Whether transformers' division, in floats, puts layers into groups as ours does."""
    return all(int(i / (layers / groups)) == i * groups // layers for i in range(layers))


def from_config(config: Mapping[str, Any], family: str) -> Encoder:
    """The encoder that a config of that family describes."""
    for key, value in _DEMANDS.items():
        if config.get(key) not in (None, value):
            raise typed.wrong(key, config[key], f"is not available here, only {value!r}")
    settings = _settings(config, family)
    if family == "xlnet":
        settings["attention_dropout"] = settings["dropout"]
        if typed.whole(config, "d_head", least=1) not in (None, _head_width(settings)):
            raise typed.wrong("d_head", config["d_head"], "must be d_model / n_head")
        return Relative(**settings)
    settings.setdefault("embedding", settings["width"])
    if family in ("bert", *ROBERTAS):
        settings["causal"] = typed.flag(config, "is_decoder")
    if family in ROBERTAS:
        settings["norm"] = "post" if family == "roberta" else "pre"
        if config.get("pad_token_id", 1) is None:
            raise UserError("config.json: pad_token_id, from which positions are counted, is unset")
        padding = typed.whole(config, "pad_token_id", 1, least=0) or 0
        settings["position_offset"] = padding + 1
        settings["positions"] -= padding + 1
    elif family == "albert":
        alone = settings["groups"] == settings["layers"]
        settings |= {"sharing": "none", "groups": 1} if alone else {"sharing": "all"}
        if not alone and not _groups_alike(settings["layers"], settings["groups"]):
            raise UserError(
                f"config.json: num_hidden_groups = {settings['groups']} must divide"
                f" num_hidden_layers = {settings['layers']}"
            )
    elif family == "distilbert":
        settings |= {"types": 0, "epsilon": 1e-12}
    elif family in GPTS:
        settings |= {"types": 0, "embedding_norm": False, "causal": True}
        settings["norm"] = "pre" if family == "gpt2" else "post"
        settings["inner"] = settings.get("inner") or 4 * settings["width"]
    return Transformer(**settings)


def _head_width(settings: Mapping[str, Any]) -> int:
    return int(settings["width"] // settings["heads"])


def _settings(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """The keys of a config as settings of ours."""
    settings: dict[str, Any] = {}
    usual = _RATES | _LEFT_OUT[family]
    for theirs, ours in KEYS[family].items():
        also = _ALSO.get(family, {}).get(theirs)
        key = also if also and config.get(theirs) is None else theirs
        if ours == "activation":
            settings[ours] = typed.word(config, key, usual[ours])
        elif ours in _FRACTIONS:
            settings[ours] = typed.number(config, key, usual[ours])
        else:
            least = 0 if ours in ("types", "memory") else 1
            settings[ours] = typed.whole(config, key, usual.get(ours), least=least)
        if settings[ours] is None:
            raise UserError(f"config.json: no {theirs}; a {family} config has one, so add it")
    if settings["layers"] > _MOST_LAYERS:
        raise UserError(
            f"config.json: {settings['layers']:,} layers; there are at most {_MOST_LAYERS:,} here"
        )
    activation = settings["activation"]
    if activation not in _OURS:
        raise UserError(
            f"config.json: the activation {activation!r} is not available here, only"
            f" {', '.join(_OURS)}; import another checkpoint"
        )
    settings["activation"] = _OURS[activation]
    if family == "openai-gpt" and activation == "gelu":
        settings["activation"] = "gelu_tanh"  # what transformers means by it in this class
    return settings
