"""Blanks in a text → the tokens that a model predicts there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders
from torch import Tensor

from clozelab.config import slots
from clozelab.contracts import Ids, Ints
from clozelab.errors import UserError
from clozelab.models.model import Model, refuse_nan
from clozelab.models.reader import in_order, packed
from clozelab.objectives import PARTS, language_models
from clozelab.text.vocabulary import ROLES
from clozelab.training.world import join

_SHOWN = 5  # guesses that are shown for a blank


@dataclass(frozen=True)
class TokenPrediction:
    """A token predicted for a blank."""

    token: str
    number: int
    probability: float


@dataclass(frozen=True, repr=False)
class Filled:
    """Each blank's guesses, the best first, and the text with the best put in."""

    blanks: tuple[tuple[TokenPrediction, ...], ...]
    parts: tuple[str, ...]  # the text, split before and after each filled blank
    left_only: bool  # blanks were predicted from the text to their left
    asked: tuple[TokenPrediction, ...] = ()  # for each blank the token of `about`

    @property
    def text(self) -> str:
        """The text with every blank's best put in."""
        return "".join(self.parts)

    def __repr__(self) -> str:
        lines = [self.text]
        for number, guesses in enumerate(self.blanks, 1):
            words = ", ".join(f"{each.token} {each.probability:.1%}" for each in guesses[:_SHOWN])
            lines.append(f"blank {number}: {words}{', …' if len(guesses) > _SHOWN else ''}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The text and the guesses for other programs."""
        blanks = [[asdict(guess) for guess in guesses] for guesses in self.blanks]
        return {"text": self.text, "blanks": blanks}


def fill(model: Model, text: str, *, top: int = 5, device: str | None = None) -> Filled:
    """Fill the blanks of a text, written [MASK], <mask> or as the tokenizer writes its own."""
    return fill_between(model, _split_at_blanks(model, text), top=top, device=device)


def fill_between(
    model: Model,
    around_blanks: list[str],
    *,
    top: int = 5,
    about: Sequence[int] = (),
    device: str | None = None,
) -> Filled:
    """Fill the blanks between the parts of a text; `about` has a token for each, to ask about."""
    if model.recipe.encoder.reads == "words":
        name = slots.use("encoder", model.recipe.encoder)
        raise UserError(
            f"{model.place}: encoder {name} reads whole words by their characters and cannot"
            " fill blanks; use clozelab embed"
        )
    heads = language_models(model.module.heads, *_PREDICTORS)
    if not heads:
        raise UserError(
            f"{model.place}: has no head that predicts tokens; pretrain one with --from"
        )
    if top < 1:
        raise UserError(f"--top {top}: must be at least 1")
    kind = str(PARTS[heads[0]].language_model)
    ids, at = _mask_blanks(model, around_blanks, masked=kind == "masked")
    limit = model.reader().limit
    if limit is not None and len(ids) > limit:
        raise UserError(
            f"the text has {len(ids):,} tokens, but {model.place} reads at most {limit:,};"
            " shorten it"
        )
    with join(device) as world:
        if model.device != world.device:
            model.module.to(world.device)
        with torch.inference_mode():
            logits = _PREDICTORS[kind](model, model.module.heads[heads[0]], ids, at=at).cpu()
    probabilities = logits.double().softmax(-1)  # NaN where a logit is infinite, too
    refuse_nan(model, probabilities)
    blanks = _guesses(model, probabilities, top)
    parts = _filled_parts(model.tokenizer, around_blanks, [guesses[0].number for guesses in blanks])
    asked = _probabilities_of(model, probabilities, about) if about else ()
    return Filled(tuple(blanks), tuple(parts), kind == "causal", asked)


def _split_at_blanks(model: Model, text: str) -> list[str]:
    """The parts of the text before, between and after the blanks."""
    mask = model.tokenizer.id_to_token(model.vocabulary.roles.get("mask", model.vocabulary.size))
    names = {*ROLES["mask"], *([mask] if mask else [])}
    parts = re.split("|".join(re.escape(name) for name in sorted(names)), text)
    if len(parts) == 1:
        raise UserError("the text has no blank; write [MASK] where a word is missing")
    return parts


def _mask_blanks(model: Model, parts: list[str], *, masked: bool) -> tuple[Ids, Ints]:
    """The token ids with one for each blank, and the positions of the blanks."""
    roles = model.vocabulary.roles
    mask = model.vocabulary.role("mask") if masked else roles.get("mask", roles.get("unk", 0))
    pieces = model.reader().pieces(parts)
    if masked and model.blank_reader is not None:
        text = (model.tokenizer.id_to_token(mask) or "").join(parts)
        joined = np.array(model.blank_reader.encode(text, add_special_tokens=False).ids, np.int32)
        at = np.flatnonzero(joined == mask)
        if len(at) == len(parts) - 1:  # a part may contain the mask token itself
            return joined, at
    ids: Ids = np.insert(pieces.columns["ids"], pieces.starts[1:-1], mask)
    return ids, pieces.starts[1:-1] + np.arange(len(parts) - 1)


def from_both(model: Model, head: Any, ids: Ids, *, at: Ints) -> Tensor:
    """[K, V] logits at the blanks, which are masked."""
    text, device = model.reader().around(ids), model.device
    encoded = model.module.encode(packed([text], device))
    predict = at + text.own.start - model.shift
    states = encoded.predicting[torch.from_numpy(predict).to(device)]
    logits: Tensor = head.logits(states, encoded.table)
    return logits


def _from_queries(model: Model, head: Any, ids: Ids, *, at: Ints) -> Tensor:
    """[K, V] logits of XLNet's query stream; blanks see the text, and nothing sees a blank."""
    text, device = model.reader().around(ids), model.device
    ranks = torch.full((len(text),), -1, device=device)  # the text comes before all blanks
    queries = torch.from_numpy(at).to(device)
    ranks[queries] = 0
    encoded = model.module.encode(in_order(packed([text], device), ranks, queries[None]))
    assert encoded.queries is not None
    logits: Tensor = head.logits(encoded.queries, encoded.table)
    return logits


def _from_left(model: Model, head: Any, ids: Ids, *, at: Ints) -> Tensor:
    """[K, V] logits from the text before each blank, earlier blanks filled with their best."""
    reader, rows = model.reader(), []
    prefix = reader.separator if model.recipe.encoder.causal else ids[:0]
    text = reader.around(np.concatenate([prefix, ids]))
    for position in (text.own.start + len(prefix) + at).tolist():
        if not position:
            raise UserError(
                f"the text starts with a blank, but {model.place} reads left to right; put a"
                " word before it"
            )
        before = {name: values[:position] for name, values in text.columns.items()}
        batch = packed([replace(text, columns=before)], model.device)._replace(causal=True)
        encoded = model.module.encode(batch)
        logits = head.logits(encoded.hidden_states[-1:], encoded.table)
        text.columns["ids"][position] = int(logits[0, : model.vocabulary.size].argmax())
        rows.append(logits)
    return torch.cat(rows)


# The language models whose heads can fill a blank, the best first.
_PREDICTORS = {"masked": from_both, "permutation": _from_queries, "causal": _from_left}


def _guesses(model: Model, probabilities: Tensor, top: int) -> list[tuple[TokenPrediction, ...]]:
    """The most probable tokens of each blank, without rows of the table that are no token."""
    tokens = probabilities[:, : model.vocabulary.size]
    best = tokens.topk(min(top, tokens.shape[1]))
    return [
        tuple(
            TokenPrediction(written(model.tokenizer, number)[0], number, chance)
            for number, chance in zip(numbers, values, strict=True)
        )
        for numbers, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _probabilities_of(
    model: Model, probabilities: Tensor, numbers: Sequence[int]
) -> tuple[TokenPrediction, ...]:
    """The probability of the given token in each blank."""
    chances = probabilities[torch.arange(len(numbers)), torch.tensor(numbers)].tolist()
    names = [written(model.tokenizer, number)[0] for number in numbers]
    return tuple(map(TokenPrediction, names, numbers, chances))


def _filled_parts(tokenizer: Tokenizer, parts: list[str], numbers: list[int]) -> Iterator[str]:
    """The parts and tokens of the filled text, without a space before a word's later pieces."""
    for part, number in zip(parts, numbers, strict=False):
        token, joins = written(tokenizer, number)
        yield part.rstrip() if joins else part
        yield token.removeprefix("##")
    yield parts[-1]


def written(tokenizer: Tokenizer, number: int) -> tuple[str, bool]:
    """A token as text, and whether it continues the word before it."""
    piece = tokenizer.id_to_token(number) or "?"
    if piece.startswith("##"):
        return piece, True
    spaced = isinstance(tokenizer.decoder, decoders.ByteLevel | decoders.Metaspace)
    word = piece
    if tokenizer.decoder is not None:
        word = tokenizer.decode([number], skip_special_tokens=False).strip()
    special = number in tokenizer.get_added_tokens_decoder()
    joins = spaced and not special and not piece.startswith(("Ġ", "▁"))
    return (word if word and "�" not in word else piece), joins
