"""ModernBERT's config with one key per setting of ours, and back.

The published configs give the interval of layers with global attention, and two rope thetas; those
that transformers writes today list the type of every layer, with rope parameters for each type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clozelab.models.interop import typed

_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def inward(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the published keys and `bias`; encoders unlike ours are refused."""
    published = {**config, **_thetas(config), "bias": _bias(config)}
    types = typed.words(config, "layer_types")
    if types:
        published["global_attn_every_n_layers"] = _global_interval(types)
    if published.get("global_attn_every_n_layers") == 1:
        published["local_attention"] = 0
    window = typed.whole(published, "local_attention", 128, least=0) or 0
    # Half of the window is on either side, rounded down, and at most all positions.
    most = typed.whole(published, "max_position_embeddings", least=1)
    half = window // 2 if most is None else min(window // 2, most)
    published["local_attention"] = 2 * half
    activation = typed.word(config, "hidden_activation", "gelu")
    head = typed.word(config, "classifier_activation", "gelu")
    if head != activation:
        raise typed.wrong(
            "classifier_activation", head, f"must be hidden_activation = {activation!r} here"
        )
    return published


def outward(encoder: Any) -> dict[str, Any]:
    """What the config says of an encoder besides the keys that are one setting each."""
    return {
        **dict.fromkeys(_BIASES, encoder.bias),
        "local_attention": encoder.window or 128,  # unused if attention is global in every layer
        "mlp_dropout": encoder.dropout,
    }


def _bias(config: Mapping[str, Any]) -> bool:
    """Whether there are biases, apart from the decoder's; all keys must agree."""
    flags = {key: typed.flag(config, key) for key in _BIASES}
    if len({*flags.values()}) > 1:
        odd = next(key for key in _BIASES if flags[key] != flags[_BIASES[0]])
        raise typed.wrong(odd, flags[odd], f"must be {_BIASES[0]} = {flags[_BIASES[0]]} here")
    return flags[_BIASES[0]]


def _global_interval(types: tuple[str, ...]) -> int:
    """The interval of layers with global attention."""
    for every in range(1, len(types) + 1):
        pattern = [
            "sliding_attention" if n % every else "full_attention" for n in range(len(types))
        ]
        if [*types] == pattern:
            return every
    raise typed.wrong(
        "layer_types",
        list(types),
        "must be full_attention in the first of every n layers and sliding_attention in the rest",
    )


def _thetas(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope thetas; scaled ropes are refused."""
    if config.get("rope_scaling") is not None:
        raise typed.wrong("rope_scaling", config["rope_scaling"], "is not available here")
    tables, thetas = typed.table(config, "rope_parameters"), {}
    for kind, key in _THETAS.items():
        table = typed.table(tables, kind)
        if typed.word(table, "rope_type", "default") != "default":
            raise typed.wrong(f"rope_parameters.{kind}", table["rope_type"], "must be 'default'")
        if table.get("rope_theta") is not None:
            thetas[key] = table["rope_theta"]
    return thetas
