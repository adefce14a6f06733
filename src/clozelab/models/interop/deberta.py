"""DeBERTa-v2's config as our settings of relative positions, and back.

DeBERTa-v3 is the same class. transformers has neither the mask decoder (DeBERTa §3.2) nor the head
that detects replaced tokens: the published files hold both, and both are ignored here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from clozelab.models.interop import typed

_TERMS = {"both": ["c2p", "p2c"], "content_to_position": ["c2p"], "position_to_content": ["p2c"]}
_NORMS = {"none": False, "layer_norm": True}
_HEAD = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}


def inward(config: Mapping[str, Any], *, width: int, heads: int) -> dict[str, Any]:
    """The settings of an encoder that do not correspond to one key; others are refused."""
    if not typed.flag(config, "relative_attention"):
        raise typed.wrong("relative_attention", False, "must be true: without it, it is bert's")
    if _count_or_zero(config, "conv_kernel_size"):
        raise typed.wrong("conv_kernel_size", config["conv_kernel_size"], "is not built here")
    for key, right in {"embedding_size": width, "attention_head_size": width // heads}.items():
        if typed.whole(config, key, right) != right:
            raise typed.wrong(key, config[key], f"must be {right} here")
    positions = "input" if typed.flag(config, "position_biased_input", True) else "none"
    return {
        "position_buckets": _count_or_zero(config, "position_buckets"),
        "relative_positions": _count_or_zero(config, "max_relative_positions"),
        "position_terms": _terms(config),
        "position_projections": "shared" if typed.flag(config, "share_att_key") else "own",
        "position_norm": typed.choice(config, "norm_rel_ebd", _NORMS, default="none"),
        "absolute_positions": positions,
    }


def outward(encoder: Any) -> dict[str, Any]:
    """What the config says of an encoder besides the keys that are one setting each."""
    return {
        "relative_attention": True,
        "position_buckets": encoder.position_buckets or -1,
        "max_relative_positions": encoder.relative_positions or -1,
        "pos_att_type": _TERMS[encoder.position_terms],
        "share_att_key": encoder.position_projections == "shared",
        "norm_rel_ebd": "layer_norm" if encoder.position_norm else "none",
        "position_biased_input": encoder.absolute_positions == "input",
    }


def head_names(names: Collection[str]) -> dict[str, str]:
    """The published names of the head over the vocabulary, and today's names in transformers.

    Beside a detection head it is ignored, since it was not trained.
    """
    if any(name.startswith(("mask_predictions.", "cls.predictions.")) for name in names):
        return {}
    return {
        name: name.replace(theirs, ours, 1)
        for name in names
        for theirs, ours in _HEAD.items()
        if name.startswith(theirs)
    }


def _count_or_zero(config: Mapping[str, Any], key: str) -> int:
    """A whole number; 0 and less mean that the setting is off."""
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        return 0
    return typed.whole(config, key, 0) or 0


def _terms(config: Mapping[str, Any]) -> str:
    """The attention terms, from a list or from words separated by bars."""
    terms = config.get("pos_att_type")
    is_list = not isinstance(terms, str)
    words = typed.words(config, "pos_att_type") if is_list else str(terms).split("|")
    given = {word.strip().lower() for word in words}
    for kind, theirs in _TERMS.items():
        if given == {*theirs}:
            return kind
    raise typed.wrong("pos_att_type", terms, "must be c2p, p2c or both")
