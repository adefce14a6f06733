"""A generator (ELECTRA §2) as a model of its own: the one that predicts tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clozelab.errors import UserError
from clozelab.models.build import PretrainingModel
from clozelab.models.interop.importing import Imported
from clozelab.models.model import Model
from clozelab.objectives import Generator, MaskedLm

FOLDER = "generator"  # beside the files of the encoder that it writes for, in transformers' form
_ENCODER, _HEAD = "heads.generator.encoder.", "heads.generator.head."
_TABLES = tuple(f"embeddings.{name}." for name in ("words", "positions", "types", "norm"))


class WithGenerator(NamedTuple):
    """A generator's part in a recipe, and its weights in a model."""

    part: Generator
    weights: dict[str, Tensor]


def generator_of(model: Model) -> Model | None:
    """The model's generator, which shares what it shares; None where there is none."""
    module = model.module
    if not isinstance(module, PretrainingModel) or "generator" not in module.heads:
        return None
    generator: Any = module.heads["generator"]
    alone = PretrainingModel(generator.encoder, {"masked_lm": generator.head}).eval()
    recipe = replace(model.recipe, encoder=generator.encoder.shape, objectives=(MaskedLm(),))
    return replace(model, recipe=recipe, module=alone, origin=None)


def predicting(model: Model) -> Model:
    """The model that is asked for tokens: its generator, where it has one, else itself."""
    generator = generator_of(model)
    if generator is None and [*model.module.heads] == ["replaced_token"]:
        raise UserError(
            f"{model.place}: tells replaced tokens and predicts none; its generator does, which"
            f" transformers has as ElectraForMaskedLM: name that, or put it into"
            f" {model.place}/{FOLDER}"
        )
    return generator or model


def joined(imported: Imported, other: Imported, place: str) -> WithGenerator:
    """The generator that came beside an encoder, as the model of both has it."""
    mine: Any = imported.encoder
    theirs: Any = other.encoder
    if "masked_lm" not in other.heads:
        raise UserError(f"{place}: has no head over the vocabulary; give ElectraForMaskedLM")
    if theirs.width > mine.width:
        raise UserError(
            f"{place}: width = {theirs.width} is more than the encoder's {mine.width}; give the"
            f" generator of this encoder, or remove {place} to go on without it"
        )
    words = "encoder.embeddings.words.weight"
    if len(imported.weights[words]) != len(other.weights[words]):
        raise UserError(
            f"{place}: has {len(other.weights[words]):,} words, and the encoder"
            f" {len(imported.weights[words]):,}; give the generator of this encoder, or remove"
            f" {place} to go on without it"
        )
    weights = {
        f"{_ENCODER if name.startswith('encoder.') else _HEAD}{_inside(name)}": value
        for name, value in other.weights.items()
    }
    shared = {name for name in weights if name.removeprefix(_ENCODER).startswith(_TABLES)}
    same = _same_tables(imported.weights, weights, shared)
    part = Generator(share=theirs.width / mine.width, sharing="embeddings" if same else "none")
    usual = part.shape(mine)
    for field in fields(usual):
        here, there = getattr(usual, field.name), getattr(theirs, field.name)
        if here != there:
            raise UserError(
                f"{place}: {field.name} = {there}, and the generator of an encoder of width"
                f" {mine.width} has {here} here; remove {place} to go on without it"
            )
    kept = {name: value for name, value in weights.items() if not (same and name in shared)}
    return WithGenerator(part, kept)


def _inside(name: str) -> str:
    """A tensor's name without that of the module of a model it is in."""
    return name.removeprefix("encoder.").removeprefix("heads.masked_lm.")


def _same_tables(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], names: set[str]) -> bool:
    pairs = ((mine.get(f"encoder.{name.removeprefix(_ENCODER)}"), theirs[name]) for name in names)
    return all(a is not None and torch.equal(a, b) for a, b in pairs)
