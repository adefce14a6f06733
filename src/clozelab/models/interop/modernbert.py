"""ModernBERT's config in keys that each mean one setting of ours, and back.

The published configs say how often a layer sees everything, and two bases of angles; those that
transformers writes today list the kind of every layer, with a table of angles for each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clozelab.models.interop import typed

_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def inward(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the published keys, and `bias`; refused where ours has no such encoder."""
    known = {**config, **_thetas(config), "bias": _bias(config)}
    types = typed.words(config, "layer_types")
    if types:
        known["global_attn_every_n_layers"] = _every(types)
    if known.get("global_attn_every_n_layers") == 1:
        known["local_attention"] = 0
    window = typed.whole(known, "local_attention", 128, least=0) or 0
    # Half is on either side, which transformers rounds; wider than this it sees no more.
    most = typed.whole(known, "max_position_embeddings", least=1)
    half = window // 2 if most is None else min(window // 2, most)
    known["local_attention"] = 2 * half
    activation = typed.word(config, "hidden_activation", "gelu")
    head = typed.word(config, "classifier_activation", "gelu")
    if head != activation:
        raise typed.wrong(
            "classifier_activation", head, f"must be hidden_activation = {activation!r} here"
        )
    return known


def outward(encoder: Any) -> dict[str, Any]:
    """What the config says of an encoder besides the keys that are one setting each."""
    return {
        **dict.fromkeys(_BIASES, encoder.bias),
        "local_attention": encoder.window or 128,  # whatever, where every layer sees all
        "mlp_dropout": encoder.dropout,
    }


def _bias(config: Mapping[str, Any]) -> bool:
    """Whether there are biases: in all places or in none, but for the decoder's."""
    flags = {key: typed.flag(config, key) for key in _BIASES}
    if len({*flags.values()}) > 1:
        odd = next(key for key in _BIASES if flags[key] != flags[_BIASES[0]])
        raise typed.wrong(odd, flags[odd], f"must be {_BIASES[0]} = {flags[_BIASES[0]]} here")
    return flags[_BIASES[0]]


def _every(types: tuple[str, ...]) -> int:
    """Of how many layers the first sees everything."""
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
    """The bases of the angles, which are not stretched."""
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
