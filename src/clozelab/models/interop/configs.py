"""Settings of an encoder as a config of transformers, and back; others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from clozelab.encoder import Encoder, Relative, Transformer
from clozelab.encoder.transformer import DISENTANGLED
from clozelab.errors import UserError
from clozelab.models.interop import deberta, modernbert, typed
from clozelab.models.interop.families import Family

Config = dict[str, Any]

_DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.1}
_MOST_LAYERS = 4096  # a sanity limit, since tensors do not count shared layers

# Their keys that must have these values, if they are set.
_REQUIRED_VALUES: dict[str, Any] = {
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
    "decoder_bias": True,
}
_NUMBERS = ("epsilon", "rope_theta", "local_rope_theta", *_DROPOUTS)

# Settings that do not correspond to one key, by family.
_WITHOUT_KEYS = {"modernbert": ("bias",), "deberta-v2": DISENTANGLED}

# Their activations and ours; the first of several is the one that is written.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


def to_config(encoder: Any, family: Family, *, predicts: bool = True) -> Config:
    """The family's config of an encoder; a setting that it cannot express is refused.

    `predicts` is whether the model has a head over the vocabulary.
    """
    _check_settings(encoder, family, predicts=predicts)
    settings = {setting: getattr(encoder, setting) for setting in family.keys}
    activations = {ours: theirs for theirs, ours in reversed(_activations(family).items())}
    settings["activation"] = activations[encoder.activation]
    if family.is_roberta:
        settings["positions"] += encoder.position_offset
    elif family.name == "albert":
        settings["groups"] = encoder.copies("attention")
    config = {family.keys[setting][0]: value for setting, value in settings.items()}
    if family.name == "xlnet":
        config["d_head"] = encoder.hidden_size // encoder.heads
    elif family.is_gpt:
        config["embd_pdrop"] = encoder.dropout
    elif family.name == "modernbert":
        config |= modernbert.outward(encoder)
        config["classifier_activation"] = config["hidden_activation"]  # of every head
    elif family.name == "deberta-v2":
        config |= deberta.outward(encoder)
    elif "causal" not in family.fixed:
        config["is_decoder"] = encoder.causal
    return config | family.constants


def _activations(family: Family) -> dict[str, str]:
    # What transformers means by "gelu" in this class.
    return _ACTIVATIONS | ({"gelu": "gelu_tanh"} if family.name == "openai-gpt" else {})


def _check_settings(encoder: Any, family: Family, *, predicts: bool) -> None:
    """Refuse a setting that the family cannot have."""
    albert, openai_gpt = family.name == "albert", family.name == "openai-gpt"
    # Newer settings that a family has no key for must have their defaults, which are BERT's; the
    # initialisation does not matter.
    expressible = {*family.keys, "output_init", *_WITHOUT_KEYS.get(family.name, ())}
    later = {new.name: new.default for new in fields(encoder) if "later" in new.metadata}
    defaults = {setting: value for setting, value in later.items() if setting not in expressible}
    faults = [
        (setting, getattr(encoder, setting) != value, repr(value))
        for setting, value in (defaults | family.required(predicts=predicts)).items()
    ]
    has_embedding_size = "embedding_size" in family.keys
    shares_half = albert and encoder.sharing in ("attention", "ffn")
    uneven_groups = albert and not _groups_alike(encoder.layers, encoder.copies("ffn"))
    width = encoder.hidden_size
    wide = 4 * width
    decodes = predicts and getattr(encoder, "absolute_positions", "") == "decoder"
    faults += [
        ("embedding_size", not has_embedding_size and encoder.embedding_size != width, f"{width}"),
        ("sharing", shares_half, '"all" or "none"'),
        ("groups", uneven_groups, f"groups that divide {encoder.layers} layers"),
        (
            "activation",
            openai_gpt and encoder.activation in ("gelu", "relu2"),
            "'gelu_tanh', 'relu' or 'silu'",
        ),
        ("intermediate_size", openai_gpt and encoder.intermediate_size != wide, f"{wide}"),
        ("absolute_positions", decodes, "no mask decoder, only 'none' or 'input'"),
    ]
    for setting, wrong, right in faults:
        if wrong:
            raise UserError(
                f"encoder.{setting} = {getattr(encoder, setting)!r}: {family.name} of transformers"
                f" has {right}; train it so, or export to ONNX, which takes any encoder"
            )


def _groups_alike(layers: int, groups: int) -> bool:
    """Whether transformers' float division groups the layers as ours does."""
    return all(int(i / (layers / groups)) == i * groups // layers for i in range(layers))


def from_config(config: Mapping[str, Any], family: Family) -> Encoder:
    """The encoder that a config of that family describes."""
    for key, value in _REQUIRED_VALUES.items():
        if config.get(key) not in (None, value):
            raise typed.wrong(key, config[key], f"is not available here, only {value!r}")
    modern = family.name == "modernbert"
    config = modernbert.inward(config) if modern else config
    settings = _settings(config, family) | family.fixed
    width = settings["hidden_size"]
    if family.name == "xlnet":
        settings["attention_dropout"] = settings["dropout"]
        if typed.whole(config, "d_head", least=1) not in (None, width // settings["heads"]):
            raise typed.wrong("d_head", config["d_head"], "must be d_model / n_head")
        return Relative(**settings)
    settings = {"embedding_size": width, "causal": typed.flag(config, "is_decoder"), **settings}
    # A GPT may leave it out.
    settings["intermediate_size"] = settings.get("intermediate_size") or 4 * width
    if family.is_roberta:
        if config.get("pad_token_id", 1) is None:
            raise UserError("config.json: pad_token_id, from which positions are counted, is unset")
        settings["position_offset"] = (typed.whole(config, "pad_token_id", 1, least=0) or 0) + 1
        settings["positions"] -= settings["position_offset"]
    elif family.name == "albert":
        layers, groups = settings["layers"], settings["groups"]
        settings |= {"sharing": "none", "groups": 1} if groups == layers else {"sharing": "all"}
        if groups != layers and not _groups_alike(layers, groups):
            raise UserError(
                f"config.json: num_hidden_groups = {groups} must divide"
                f" num_hidden_layers = {layers}"
            )
    elif modern:
        settings["bias"] = config["bias"]
    elif family.name == "deberta-v2":
        settings |= deberta.inward(config, width=width, heads=settings["heads"])
    return Transformer(**settings)


def _settings(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The settings that the keys of a config stand for."""
    settings: dict[str, Any] = {}
    defaults = _DROPOUTS | family.defaults
    for setting, names in family.keys.items():
        key = next((name for name in names if config.get(name) is not None), names[0])
        if setting == "activation":
            settings[setting] = typed.word(config, key, defaults[setting])
        elif setting in _NUMBERS:
            settings[setting] = typed.number(config, key, defaults[setting])
        else:
            least = 0 if setting in ("types", "memory", "window") else 1
            settings[setting] = typed.whole(config, key, defaults.get(setting), least=least)
        if settings[setting] is None:
            raise UserError(
                f"config.json: {names[0]} is missing; add it, as every config of"
                f" {family.name} has it"
            )
    if settings["layers"] > _MOST_LAYERS:
        raise UserError(
            f"config.json: {settings['layers']:,} layers; there are at most {_MOST_LAYERS:,} here"
        )
    activation, known = settings["activation"], _activations(family)
    if activation not in known:
        raise UserError(
            f"config.json: the activation {activation!r} is not available here, only"
            f" {', '.join(known)}; import another checkpoint"
        )
    return settings | {"activation": known[activation]}
