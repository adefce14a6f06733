"""On the way out: which family of transformers fits a model, and the model made to fit it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from clozelab.contracts import UserError, Vocabulary
from clozelab.encoder import Encoder, Relative, Transformer
from clozelab.interop.names import GPTS, NAMES


def fitting(encoder: Encoder, heads: frozenset[str], vocabulary: Vocabulary) -> str:
    """The family that has this encoder and, of those, most of its heads."""
    if not isinstance(encoder, Transformer):
        return "xlnet"
    if encoder.causal and not encoder.embedding_norm:
        return "gpt2" if encoder.norm == "pre" else "openai-gpt"
    narrow = encoder.embedding != encoder.width
    if encoder.sharing != "none" or narrow or "sentence_order" in heads:
        return "albert"
    counted = encoder.position_offset == vocabulary.roles.get("pad", -1) + 1
    if encoder.position_offset and counted and encoder.activation == "gelu":
        return "roberta"
    plain = encoder.types == 0 and encoder.position_offset == 0 and not encoder.causal
    plain = plain and encoder.epsilon == 1e-12 and "next_sentence" not in heads
    return "distilbert" if plain else "bert"


def admit(encoder: Encoder, family: str, heads: frozenset[str]) -> None:
    """Refuse a family that is none, or not for this encoder or its head."""
    if family not in NAMES:
        raise UserError(f"family {family!r}: unknown; there are {', '.join(NAMES)}")
    if (family == "xlnet") != isinstance(encoder, Relative):
        raise UserError(f"family {family!r}: not for this encoder; leave it out")
    if family in GPTS and "causal_lm" in heads:
        raise UserError(
            f'objectives.causal_lm.head = "transform": a {family} model of transformers has'
            ' "plain"; train it so, or export to ONNX, which takes any encoder'
        )


def fitted(
    encoder: Transformer, weights: dict[str, Tensor], family: str, vocabulary: Vocabulary
) -> tuple[Transformer, dict[str, Tensor]]:
    """The same function in the shape that the family has."""
    inside = "encoder.embeddings"
    words = weights[f"{inside}.words.weight"]
    if family == "roberta":
        padding = vocabulary.role("pad")
        if encoder.position_offset != padding + 1:
            raise UserError(
                f"encoder.position_offset = {encoder.position_offset}: roberta counts positions"
                f" from the padding id, here {padding} + 1; leave the family out"
            )
    elif encoder.position_offset:
        rows = weights[f"{inside}.positions.weight"][encoder.position_offset :]
        weights = {**weights, f"{inside}.positions.weight": rows}
        encoder = replace(encoder, position_offset=0)
    if encoder.types == 0 and family in ("bert", "roberta", "albert"):
        weights = {**weights, f"{inside}.types.weight": words.new_zeros(1, encoder.embedding)}
        encoder = replace(encoder, types=1)
    if family == "albert" and encoder.embedding == encoder.width:
        weights = {
            **weights,
            f"{inside}.projection.weight": torch.eye(encoder.width).to(words),
            f"{inside}.projection.bias": words.new_zeros(encoder.width),
        }
    return encoder, weights


def marks(family: str, vocabulary: Vocabulary) -> dict[str, int | None]:
    """The ids that a config names."""
    roles = vocabulary.roles
    marks = {"pad_token_id": roles.get("pad")}
    if family in ("roberta", "albert"):
        marks |= {"bos_token_id": roles.get("cls"), "eos_token_id": roles.get("sep")}
    elif family in ("xlnet", *GPTS):
        marks |= {"bos_token_id": None, "eos_token_id": roles.get("eod", roles.get("sep"))}
    return marks
