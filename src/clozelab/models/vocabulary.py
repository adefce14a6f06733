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
from clozelab.contracts import Input
from clozelab.errors import UserError
from clozelab.models.build import WORDS
from clozelab.models.generator import encoder_predicts
from clozelab.models.load import shell
from clozelab.models.model import Model
from clozelab.models.reader import packed
from clozelab.models.tables import Initialisation, RowSource, is_table, sources, with_rows
from clozelab.objectives import language_models
from clozelab.runs.saving import set_weights
from clozelab.text.extension import NewWord, extended
from clozelab.text.trimming import trimmed
from clozelab.text.usage import Tokenization, Usage, read
from clozelab.text.vocabulary import describe

_TIMED_LINES, _TIMED_TOKENS = 16, 128  # of a timed forward pass, and of one of its lines
_PASSES, _LEAST_PASSES = 8, 3  # at most and at least; the fastest counts
_SECONDS = 2.0  # after which no more passes are made
_PREDICTED = 7  # one token in so many is predicted, as in pretraining


@dataclass(frozen=True)
class VocabularyFigures:
    """The size of a model, and how it tokenises a sample of text."""

    tokens: int  # in the vocabulary
    parameters: int
    in_tables: int  # of these, in tables with a row for each token
    bytes: int  # of all parameters
    text: Tokenization | None = None  # how it tokenises the sample
    words_per_second: float | None = None  # that it reads on this machine's processor


def check_pieces(model: Model) -> None:
    """Refuse a model that does not read pieces of a vocabulary."""
    if model.recipe.encoder.reads == "words":
        name = slots.use("encoder", model.recipe.encoder)
        raise UserError(
            f"{model.place}: encoder {name} reads words by their characters, so its"
            " vocabulary cannot be changed; use it unchanged"
        )


def with_words(
    model: Model,
    candidates: Sequence[NewWord],
    usage: Usage,
    *,
    words: int,
    initialisation: Initialisation,
    seed: int,
) -> Model:
    """The model with the best `words` of the candidates added to its vocabulary."""
    if not candidates:
        raise UserError(
            "there is nothing to add: the tokenizer splits no word that occurs often"
            " enough; give more text, or a smaller --least"
        )
    if words > len(candidates):
        raise UserError(
            f"--words {words:,}: the text has {len(candidates):,} words that would save tokens;"
            " give that many or fewer, more text, or a smaller --least"
        )
    tokenizer = extended(model.tokenizer, [candidate.word for candidate in candidates[:words]])
    rows = sources(model.tokenizer, tokenizer, initialisation=initialisation, texts=usage.sample)
    return _with_tokenizer(model, tokenizer, rows, initialisation=initialisation, seed=seed)


def without_unused(model: Model, usage: Usage, *, least: int = 1, size: int | None = None) -> Model:
    """The model without the pieces that a text does not use."""
    # Some encoders count positions from the padding's id, which must not change.
    offset = getattr(model.recipe.encoder, "position_offset", 0)
    tokenizer = trimmed(
        model.tokenizer, usage.counts, unknown=usage.unknown, least=least, size=size, first=offset
    )
    rows = sources(model.tokenizer, tokenizer, initialisation="mean")
    _check_trimmed(model.tokenizer, tokenizer, rows, usage.sample)
    return _with_tokenizer(model, tokenizer, rows)


def figures(models: Sequence[Model], texts: Sequence[str] = ()) -> list[VocabularyFigures]:
    """The sizes of some models, and how they tokenise some lines."""
    sizes = [_size(model) for model in models]
    if not texts:
        return sizes
    speeds = _speeds(models, texts[:_TIMED_LINES])
    return [
        replace(size, text=read(model.tokenizer, list(texts)), words_per_second=speed)
        for model, size, speed in zip(models, sizes, speeds, strict=True)
    ]


def _size(model: Model) -> VocabularyFigures:
    parameters = dict(model.module.named_parameters())
    sizes = {name: value.numel() for name, value in parameters.items()}
    width = getattr(torch, model.origin.dtype).itemsize if model.origin else 4
    total = sum(sizes.values())
    tables = sum(size for name, size in sizes.items() if is_table(name))
    return VocabularyFigures(len(parameters[WORDS]), total, tables, total * width)


def _with_tokenizer(
    model: Model,
    tokenizer: Tokenizer,
    rows: Sequence[RowSource],
    *,
    initialisation: Initialisation = "mean",
    seed: int = 0,
) -> Model:
    """The model with another tokenizer, and tables of these rows."""
    offset = getattr(model.recipe.encoder, "position_offset", 0)
    if offset and list(rows[offset - 1].ids) != [offset - 1]:
        raise UserError(
            f"{model.place}: its positions are counted from the padding id, {offset - 1},"
            " which would change with the vocabulary; use it unchanged"
        )
    old = {name: value.detach() for name, value in model.module.named_parameters()}
    weights = with_rows(old, rows, initialisation=initialisation, seed=seed)
    recipe = model.recipe.reading(tokenizer, vocabulary=len(rows))
    origin = model.origin
    if origin is not None:
        pad_ids = (number for number, source in enumerate(rows) if [*source.ids] == [origin.pad])
        origin = replace(origin, pad=next(pad_ids, None))
    module = shell(recipe, model.task, origin, weights)
    with torch.no_grad():
        set_weights(module, weights)
    return replace(model, recipe=recipe, tokenizer=tokenizer, module=module.eval(), origin=origin)


def _check_trimmed(
    old: Tokenizer, new: Tokenizer, rows: Sequence[RowSource], texts: Sequence[str]
) -> None:
    """Refuse a trimmed tokenizer that changes lines without removed pieces.

    That would be a bug here, or a tokenizer with unknown settings.
    """
    new_id = np.full(describe(old).size, -1)
    new_id[[source.ids[0] for source in rows]] = np.arange(len(rows))
    unknown = describe(old).roles.get("unk", -1)
    for text in texts:
        ids = old.encode(text, add_special_tokens=False).ids
        unaffected = unknown not in ids and min(new_id[ids], default=0) >= 0
        if unaffected and new_id[ids].tolist() != new.encode(text, add_special_tokens=False).ids:
            raise UserError(
                "the tokenizer cannot be trimmed: without the other pieces it tokenises"
                f" {text[:60]!r} differently; use it unchanged"
            )


@torch.inference_mode()
def _speeds(models: Sequence[Model], texts: Sequence[str]) -> list[float]:
    """Words per second of each encoder, with its head over the vocabulary if it has one.

    Models take turns, so that other load on the machine slows them all.
    """
    rows_of = [model.reader().read(list(texts), most=_TIMED_TOKENS) for model in models]
    batches = [packed(rows, model.device) for rows, model in zip(rows_of, models, strict=True)]
    seconds: list[list[float]] = [[] for _ in models]
    for number in range(_PASSES):
        if number >= _LEAST_PASSES and sum(map(sum, seconds)) > _SECONDS:
            break
        for model, batch, times in zip(models, batches, seconds, strict=True):
            begin = time.perf_counter()
            _forward(model, batch)
            times.append(time.perf_counter() - begin)
    words = [sum(int(row.begins.sum()) for row in rows) for rows in rows_of]
    return [number / min(times) for number, times in zip(words, seconds, strict=True)]


def _forward(model: Model, batch: Input) -> None:
    """Compute hidden states, and logits of as many tokens as pretraining predicts."""
    encoded = model.module.encode(batch)
    heads: Any = model.module.heads
    names = language_models(heads, "masked", "causal") if encoder_predicts(model) else []
    for name in names[:1]:
        heads[name].logits(encoded.predicting[::_PREDICTED], encoded.table)
