"""DeBERTa-v2's config as settings of ours, and back: which distances there are, and who has them.

The third version is the same class. transformers has no mask decoder (DeBERTa §3.2) and no head
that detects replaced tokens: the published files hold both, and here, too, they are left aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from clozelab.models.interop import typed

_TERMS = {"both": ["c2p", "p2c"], "content_to_position": ["c2p"], "position_to_content": ["p2c"]}
_NORMS = {False: "none", True: "layer_norm"}
_HEAD = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}


def inward(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings; refused where ours has no such encoder."""
    if not typed.flag(config, "relative_attention"):
        raise typed.wrong("relative_attention", False, "must be true: without it, it is bert's")
    if (typed.whole(config, "conv_kernel_size", 0, least=0) or 0) > 0:
        raise typed.wrong("conv_kernel_size", config["conv_kernel_size"], "is not built here")
    width, heads = (
        typed.whole(config, "hidden_size") or 1,
        typed.whole(config, "num_attention_heads"),
    )
    for key, right in {
        "embedding_size": width,
        "attention_head_size": width // (heads or 1),
    }.items():
        if typed.whole(config, key, right) != right:
            raise typed.wrong(key, config[key], f"must be {right} here")
    shares = typed.flag(config, "share_att_key")
    return {
        "position_buckets": _counted(config, "position_buckets"),
        "relative_positions": _counted(config, "max_relative_positions"),
        "position_terms": _terms(config),
        "position_projections": "shared" if shares else "own",
        "position_norm": _norm(config),
        "absolute_positions": "input"
        if typed.flag(config, "position_biased_input", True)
        else "none",
    }


def outward(encoder: Any) -> dict[str, Any]:
    """What the config says of an encoder besides the keys that are one setting each."""
    return {
        "relative_attention": True,
        "position_buckets": encoder.position_buckets or -1,
        "max_relative_positions": encoder.relative_positions or -1,
        "pos_att_type": _TERMS[encoder.position_terms],
        "share_att_key": encoder.position_projections == "shared",
        "norm_rel_ebd": _NORMS[encoder.position_norm],
        "position_biased_input": encoder.absolute_positions == "input",
    }


def head_renamed(name: str, names: Iterable[str]) -> str:
    """The name of a tensor among others, that of a published head over the vocabulary as today's.

    Beside a head that detects, the one over the vocabulary is of no use: nothing trained it.
    """
    if any(each.startswith(("mask_predictions.", "cls.predictions.")) for each in names):
        return name
    for theirs, ours in _HEAD.items():
        name = re.sub(rf"^{re.escape(theirs)}", ours, name)
    return name


def _counted(config: Mapping[str, Any], key: str) -> int:
    """A number of positions, of which 0 and less mean that there is none."""
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        return 0
    return typed.whole(config, key, 0) or 0


def _terms(config: Mapping[str, Any]) -> str:
    """Which products there are: a list, or its words with bars between."""
    given = config.get("pos_att_type")
    words = (
        given.lower().split("|") if isinstance(given, str) else typed.words(config, "pos_att_type")
    )
    kinds = {word.strip() for word in words}
    for terms, theirs in _TERMS.items():
        if kinds == {*theirs}:
            return terms
    raise typed.wrong("pos_att_type", given, "must be c2p, p2c or both")


def _norm(config: Mapping[str, Any]) -> bool:
    """Whether the table of distances is normalised."""
    word = typed.word(config, "norm_rel_ebd", "none")
    for norm, theirs in _NORMS.items():
        if word == theirs:
            return norm
    raise typed.wrong("norm_rel_ebd", word, f"must be one of {', '.join(_NORMS.values())}")
