"""A model with words added to its vocabulary, or without the pieces that a text does not use.

Tokenizer and tables change together: every tensor with a row for each token, of the encoder, its
generator and the heads. Nothing else of the model changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from clozelab.config import slots
from clozelab.errors import UserError
from clozelab.models.generator import encoder_predicts
from clozelab.models.load import shell
from clozelab.models.model import Model
from clozelab.models.reader import packed
from clozelab.models.tables import Initialisation, Source, is_table, sources, with_rows
from clozelab.objectives import language_models
from clozelab.runs.saving import set_weights
from clozelab.text.extension import Candidate, extended
from clozelab.text.trimming import trimmed
from clozelab.text.usage import Tokenization, Usage, read
from clozelab.text.vocabulary import describe

_TIMED_LINES, _TIMED_TOKENS = 16, 128  # of a forward pass that is timed, and of a line of it
_PASSES = 3  # of which the fastest counts
_PREDICTED = 7  # one token in so many meets the vocabulary, as in pretraining


@dataclass(frozen=True)
class VocabularyFigures:
    """The size of a model, and what it makes of a text."""

    tokens: int  # in the vocabulary
    parameters: int
    in_tables: int  # of these, in tables with a row for each token
    bytes: int  # of all parameters
    text: Tokenization | None = None  # how it reads the sample of a text
    words_per_second: float | None = None  # that it reads on this machine's processor


def check_pieces(model: Model) -> None:
    """Refuse a model that does not read pieces of a vocabulary."""
    if model.recipe.encoder.reads == "words":
        name = slots.use("encoder", model.recipe.encoder)
        raise UserError(
            f"{model.place}: encoder {name} reads words by their characters, whatever the"
            " vocabulary; use it as it is"
        )


def with_words(
    model: Model,
    candidates: Sequence[Candidate],
    usage: Usage,
    *,
    words: int,
    initialisation: Initialisation,
    seed: int,
) -> Model:
    """The model with rows for the best of some words."""
    if not candidates:
        raise UserError(
            "there is nothing to add: the tokenizer takes no word apart that occurs often enough;"
            " give more text, or a smaller --least"
        )
    if words > len(candidates):
        raise UserError(
            f"--words {words:,}: the text has {len(candidates):,} words that would save tokens;"
            " give that many or fewer, more text, or a smaller --least"
        )
    tokenizer = extended(model.tokenizer, [each.word for each in candidates[:words]])
    rows = sources(model.tokenizer, tokenizer, initialisation=initialisation, texts=usage.sample)
    return _remade(model, tokenizer, rows, initialisation=initialisation, seed=seed)


def without_unused(model: Model, usage: Usage, *, least: int = 1, size: int | None = None) -> Model:
    """The model without the pieces that a text does not use."""
    # Positions are counted from the padding's id, which must then not change.
    offset = getattr(model.recipe.encoder, "position_offset", 0)
    tokenizer = trimmed(
        model.tokenizer, usage.counts, unknown=usage.unknown, least=least, size=size, first=offset
    )
    rows = sources(model.tokenizer, tokenizer, initialisation="mean")
    _check_same(model.tokenizer, tokenizer, rows, usage.sample)
    return _remade(model, tokenizer, rows)


def figures(model: Model, texts: Sequence[str] = ()) -> VocabularyFigures:
    """The size of a model, and how it reads some lines."""
    parameters = dict(model.module.named_parameters())
    sizes = {name: value.numel() for name, value in parameters.items()}
    width = getattr(torch, model.origin.dtype).itemsize if model.origin else 4
    rows = len(parameters["encoder.embeddings.words.weight"])
    total = sum(sizes.values())
    tables = sum(size for name, size in sizes.items() if is_table(name))
    found = VocabularyFigures(rows, total, tables, total * width)
    if not texts:
        return found
    return replace(
        found, text=read(model.tokenizer, list(texts)), words_per_second=_speed(model, texts)
    )


def _remade(
    model: Model,
    tokenizer: Tokenizer,
    rows: Sequence[Source],
    *,
    initialisation: Initialisation = "mean",
    seed: int = 0,
) -> Model:
    """The model with another tokenizer, and tables of such rows."""
    old = {name: value.detach() for name, value in model.module.named_parameters()}
    weights = with_rows(old, rows, initialisation=initialisation, seed=seed)
    recipe = model.recipe.reading(tokenizer, vocabulary=len(rows))
    module = shell(recipe, model.task, model.origin, weights)
    with torch.no_grad():
        set_weights(module, weights)
    return replace(model, recipe=recipe, tokenizer=tokenizer, module=module.eval())


def _check_same(
    old: Tokenizer, new: Tokenizer, rows: Sequence[Source], texts: Sequence[str]
) -> None:
    """Refuse a tokenizer that reads lines otherwise which have none of the removed pieces.

    That would be a fault here, or a tokenizer with settings that nobody knew of.
    """
    number = np.full(describe(old).size, -1)
    number[[source.ids[0] for source in rows]] = np.arange(len(rows))
    unknown = describe(old).roles.get("unk", -1)
    for text in texts:
        ids = old.encode(text, add_special_tokens=False).ids
        stays = unknown not in ids and min(number[ids], default=0) >= 0
        if stays and number[ids].tolist() != new.encode(text, add_special_tokens=False).ids:
            raise UserError(
                f"the tokenizer cannot be trimmed: without the other pieces it reads {text[:60]!r}"
                " otherwise; use it as it is"
            )


@torch.inference_mode()
def _speed(model: Model, texts: Sequence[str]) -> float:
    """Words a second through the encoder, and the head over the vocabulary if it has one."""
    rows = model.reader().read(list(texts[:_TIMED_LINES]), most=_TIMED_TOKENS)
    batch, words = packed(rows, model.device), sum(int(row.begins.sum()) for row in rows)
    heads: list[Any] = []
    if encoder_predicts(model):
        names = language_models(model.module.heads, "masked", "causal")
        heads = [model.module.heads[name] for name in names[:1]]
    seconds = []
    for _ in range(_PASSES):
        begin = time.perf_counter()
        encoded = model.module.encode(batch)
        for head in heads:
            head.logits(encoded.predicting[::_PREDICTED], encoded.table)
        seconds.append(time.perf_counter() - begin)
    return words / min(seconds)
