"""For export: which family of transformers fits a model, and how the model is adapted to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clozelab.config import slots
from clozelab.contracts import Vocabulary
from clozelab.encoder import Encoder, Transformer
from clozelab.errors import UserError
from clozelab.models.interop.families import FAMILIES, SUMMARISED, Family
from clozelab.models.interop.heads import (
    TaskHead,
    architecture,
    head_shapes,
    summary_is_blind,
    unlike,
)

# The families of transformers that can hold an encoder, by its registered name.
_FAMILIES = {
    "transformer": tuple(name for name in FAMILIES if name != "xlnet"),
    "relative": ("xlnet",),
}
_BY_POSITIONS = {"rotary": "modernbert", "disentangled": "deberta-v2"}
_ONNX = "or export to ONNX, which takes any encoder"


def family_for(
    encoder: Any, heads: frozenset[str], vocabulary: Vocabulary, *, task: TaskHead | None = None
) -> str:
    """The family that has this encoder and most of its heads; BERT's if none has."""
    families = _families(encoder)
    if len(families) < 2:
        return families[0] if families else "bert"
    if encoder.position_embedding in _BY_POSITIONS:
        return _BY_POSITIONS[encoder.position_embedding]
    if encoder.causal and not encoder.embedding_norm:
        return "gpt2" if encoder.norm == "pre" else "openai-gpt"
    detects, electra = "replaced_token" in heads, FAMILIES["electra"]
    if task is not None and task.kind in SUMMARISED:
        detects = task.summary.activation == electra.summary.activation
    if detects and suits(encoder, electra):
        return "electra"
    narrow = encoder.embedding_size != encoder.hidden_size
    if encoder.sharing != "none" or narrow or "sentence_order" in heads:
        return "albert"
    if encoder.norm == "pre":
        return "roberta-prelayernorm"
    counted = encoder.position_offset == vocabulary.roles.get("pad", -1) + 1
    if encoder.position_offset and counted and encoder.activation == "gelu":
        return "roberta"
    plain = encoder.types == 0 and encoder.position_offset == 0 and not encoder.causal
    plain = plain and encoder.epsilon == 1e-12 and "next_sentence" not in heads
    if task is not None and task.kind in SUMMARISED:
        plain = plain and task.summary.activation == FAMILIES["distilbert"].summary.activation
    return "distilbert" if plain else "bert"


def suits(encoder: Any, family: Family, *, predicts: bool = False) -> bool:
    """Whether an encoder has the settings that a family requires."""
    required = family.required(predicts=predicts)
    return all(getattr(encoder, name) == value for name, value in required.items())


def _families(encoder: object) -> tuple[str, ...]:
    return _FAMILIES.get(slots.use("encoder", encoder), ())


def check_family(
    encoder: Encoder, family: str, *, transforms: bool = False, task: TaskHead | None = None
) -> None:
    """Refuse a family that is unknown, or does not fit this encoder or its head.

    `transforms` is whether a causal head has more than a table.
    """
    families = _families(encoder)
    if not families:
        name = slots.use("encoder", encoder)
        raise UserError(f"encoder {name}: transformers has no such class; use `clozelab embed`")
    if family not in FAMILIES:
        raise UserError(f"family {family!r}: unknown; there are {', '.join(FAMILIES)}")
    if family not in families:
        raise UserError(f"family {family!r}: not for this encoder; leave it out")
    if task is not None:
        _check_head(encoder, FAMILIES[family], task)
    elif FAMILIES[family].is_gpt and transforms:
        raise UserError(
            f'objectives.causal_lm.head = "transform": a {family} model of transformers has'
            f' "plain"; train it so, {_ONNX}'
        )


def _check_head(encoder: Any, family: Family, task: TaskHead) -> None:
    """Refuse a head that the family's class for the task cannot have."""
    theirs = f"{family.name} class of transformers"
    if architecture(family, task) is None:
        beam = ' with head = "beam"' if task.is_beam else ""
        raise UserError(
            f"task {task.kind}{beam}: no {theirs} has such a head; use the run as it is (`clozelab"
            " predict`), or export what it was fine-tuned from"
        )
    if task.vectors != "last":
        raise UserError(
            f'task on "{task.vectors}" vectors: a {theirs} has its head on the last layer; use the'
            " run as it is (`clozelab predict`)"
        )
    for setting in unlike(encoder, task):
        raise UserError(
            f"encoder.{setting} = {getattr(encoder, setting)}: the head has {task.needs[setting]},"
            f" and in transformers they are one; {_ONNX.removeprefix('or ')}"
        )
    if task.transform != family.task_transform:
        raise UserError(
            f"task.transform = {task.transform}: a {theirs} has {family.task_transform}; fine-tune"
            f" with that, {_ONNX}"
        )
    names = task.labels
    if task.kind in ("classify", "tag") and not (len(names) > 1 and len(set(names)) == len(names)):
        raise UserError(
            f"task {task.kind}: {len(names)} labels with {len(set(names))} names; a model is"
            " exported with two or more, no name twice"
        )
    if task.kind in SUMMARISED:
        _check_summary(encoder, family, task)


def _check_summary(encoder: Encoder, family: Family, task: TaskHead) -> None:
    """Refuse a summary that the family's class for the task cannot have."""
    theirs, has = f"a {family.name} class of transformers", family.summary_of(task.kind)
    if summary_is_blind(encoder, family, task.kind):
        raise UserError(
            f"encoder.causal = True: {theirs} takes the first token's vector, which has seen"
            f" nothing; {_ONNX.removeprefix('or ')}"
        )
    if task.pool != "mark" and not family.pooling_key:
        raise UserError(
            f"task.pool = {task.pool!r}: {theirs} takes one token's vector; fine-tune with"
            f" 'mark', {_ONNX}"
        )
    if family.name != "xlnet" and task.summary.activation != has.activation:
        raise UserError(
            f"task.summary = {task.summary.activation!r}: {theirs} has {has.activation!r};"
            f" fine-tune with that, {_ONNX}"
        )
    if task.summary.bias and not has.bias:
        raise UserError(
            f"task.bias = True: {theirs} has none; fine-tune with bias = false, {_ONNX}"
        )


def completed(
    task: TaskHead, weights: Mapping[str, Tensor], family: Family, *, width: int
) -> tuple[TaskHead, dict[str, Tensor]]:
    """The head with the weights that its class has besides, as zeros: a bias or an answer class."""
    summary = task.summary._replace(bias=family.summary_of(task.kind).bias)
    full_task = task._replace(summary=summary, impossible=task.head == "beam")
    added = head_shapes(full_task, width).items() - head_shapes(task, width).items()
    any_weight = next(iter(weights.values()), torch.empty(0))
    return full_task, {**{name: any_weight.new_zeros(shape) for name, shape in added}, **weights}


def adapted(
    encoder: Transformer, weights: dict[str, Tensor], family: Family, vocabulary: Vocabulary
) -> tuple[Transformer, dict[str, Tensor]]:
    """The same function with the tensors that the family has."""
    prefix = "encoder.embeddings"
    words = weights[f"{prefix}.words.weight"]
    added: dict[str, Tensor] = {}
    offset = vocabulary.role("pad") + 1 if family.is_roberta else 0
    if family.name == "roberta" and encoder.position_offset != offset:
        raise UserError(
            f"encoder.position_offset = {encoder.position_offset}: roberta counts positions"
            f" from the padding id, here {offset - 1} + 1; leave the family out"
        )
    positions = weights.get(f"{prefix}.positions.weight")
    if positions is not None and encoder.position_offset != offset:
        # Rows before the first position are never read.
        unread = positions.new_zeros(offset, positions.shape[1])
        added["positions.weight"] = torch.cat([unread, positions[encoder.position_offset :]])
        encoder = replace(encoder, position_offset=offset)
    if encoder.types == 0 and "types" in family.keys and family.defaults["types"]:
        added["types.weight"] = words.new_zeros(1, encoder.embedding_size)
        encoder = replace(encoder, types=1)
    if family.name == "albert" and encoder.embedding_size == encoder.hidden_size:
        added["projection.weight"] = torch.eye(encoder.hidden_size).to(words)
        added["projection.bias"] = words.new_zeros(encoder.hidden_size)
    weights = {**weights, **{f"{prefix}.{name}": each for name, each in added.items()}}
    predicts = any(name.startswith("heads.masked_lm.") for name in weights)
    if encoder.absolute_positions == "decoder" and not predicts:  # only that head reads them
        del weights[f"{prefix}.positions.weight"]
        encoder = replace(encoder, absolute_positions="none")
    return encoder, weights


def special_ids(family: Family, vocabulary: Vocabulary) -> dict[str, int | None]:
    """The ids that a config names."""
    roles = {"eod": vocabulary.roles.get("sep"), **vocabulary.roles}
    ends = zip(("bos_token_id", "eos_token_id"), map(roles.get, family.ends), strict=False)
    ids = {"pad_token_id": roles.get("pad"), **dict(ends)}
    if family.name == "modernbert":
        ids |= {"cls_token_id": roles.get("cls"), "sep_token_id": roles.get("sep")}
    return ids
