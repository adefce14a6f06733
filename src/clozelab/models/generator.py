"""ELECTRA's generator (ELECTRA §2) as a separate model, which predicts tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clozelab.errors import UserError
from clozelab.models.build import DELTA, WORDS, PretrainingModel
from clozelab.models.interop.importing import Imported
from clozelab.models.model import Model
from clozelab.objectives import Generator, MaskedLm
from clozelab.objectives.replaced import Sharing

FOLDER = "generator"  # its subfolder beside the encoder's files, in transformers' format
_REMEDY = "give the generator of this encoder, or remove {} to continue without one"
_WORDS = WORDS.removeprefix("encoder.")
_TABLES = tuple(f"embeddings.{name}." for name in ("words", "positions", "types", "norm"))


class WithGenerator(NamedTuple):
    """A generator's part in a recipe, and its weights in a model."""

    part: Generator
    weights: dict[str, Tensor]


def generator_of(model: Model) -> Model | None:
    """The model's generator as a model with shared weights, or None."""
    module = model.module
    if not isinstance(module, PretrainingModel) or "generator" not in module.heads:
        return None
    generator: Any = module.heads["generator"]
    heads, reads = {"masked_lm": generator.head}, {"masked_lm": MaskedLm.reads}
    alone = PretrainingModel(generator.encoder, heads, reads).eval()
    recipe = replace(model.recipe, encoder=generator.encoder.shape, objectives=(MaskedLm(),))
    origin = model.origin and replace(model.origin, heads=("masked_lm",), bare=False)
    return replace(model, recipe=recipe, module=alone, origin=origin)


def encoder_predicts(model: Model) -> bool:
    """Whether the encoder predicts tokens: not if a generator does, or if it only detects."""
    heads = [*model.module.heads]
    return "generator" not in heads and heads != ["replaced_token"]


def predicting(model: Model) -> Model:
    """The model that predicts tokens: itself, or its generator."""
    if encoder_predicts(model):
        return model
    generator = generator_of(model)
    if generator is None:
        raise UserError(
            f"{model.place}: is a discriminator and predicts no tokens; name its generator"
            f" (ElectraForMaskedLM in transformers), or put that into {model.place}/{FOLDER}"
        )
    return generator


def joined(imported: Imported, other: Imported, place: str) -> WithGenerator:
    """The objective and weights of a generator that was imported beside an encoder.

    With disentangled attention they share the embedding table as in DeBERTa-v3 (§3.3): the
    difference of the encoder's table to the generator's is its delta.
    """
    mine, theirs = (_encoder_and_head(one.weights) for one in (imported, other))
    _check_generator(imported, other, place)
    encoder: Any = imported.encoder
    shared = {name for name in theirs["encoder"] if name.startswith(_TABLES)}
    same = all(
        name in mine["encoder"] and torch.equal(theirs["encoder"][name], mine["encoder"][name])
        for name in shared
    )
    disentangled = encoder.position_embedding == "disentangled"
    sharing: Sharing = "embeddings" if same else "none"
    if disentangled:
        sharing, shared = "gradient_disentangled", {_WORDS}
    share, depth = (
        getattr(other.encoder, size) / getattr(encoder, size) for size in ("hidden_size", "layers")
    )
    part = Generator(share=share, sharing=sharing, depth=depth)
    for name, expected in vars(part.shape(encoder)).items():
        found = getattr(other.encoder, name)
        if expected != found:
            raise UserError(
                f"{place}: {name} = {found}, and the generator of an encoder of hidden size"
                f" {encoder.hidden_size} has {expected} here; {_REMEDY.format(place)}"
            )
    own = theirs["encoder"].keys() - (set() if sharing == "none" else shared)
    weights: dict[str, Tensor] = {}
    if disentangled:
        table = theirs["encoder"][_WORDS]
        weights = {WORDS: table, DELTA: mine["encoder"][_WORDS] - table}
    weights |= {f"heads.generator.encoder.{name}": theirs["encoder"][name] for name in own}
    weights |= {f"heads.generator.head.{name}": value for name, value in theirs["head"].items()}
    return WithGenerator(part, weights)


def _check_generator(imported: Imported, other: Imported, place: str) -> None:
    """Refuse a model that cannot be the generator of an encoder."""
    words = [len(one.weights[WORDS]) for one in (imported, other)]
    faults = {
        "has no head over the vocabulary, as a class ForMaskedLM has": (
            "masked_lm" not in other.heads
        ),
        "its head has a table of its own": "heads.masked_lm.table" in other.weights,
        f"has {words[1]:,} tokens, but the encoder has {words[0]:,}": words[0] != words[1],
    }
    for size in ("hidden_size", "layers"):
        theirs, mine = getattr(other.encoder, size), getattr(imported.encoder, size)
        faults[f"{size} = {theirs} is more than the encoder's {mine}"] = theirs > mine
    for fault, is_fault in faults.items():
        if is_fault:
            raise UserError(f"{place}: {fault}; {_REMEDY.format(place)}")


def _encoder_and_head(weights: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of a model's encoder, and those of its head over the vocabulary."""
    parts = {"encoder": "encoder.", "head": "heads.masked_lm."}
    return {
        part: {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
        for part, start in parts.items()
    }
