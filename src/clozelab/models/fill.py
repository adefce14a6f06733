"""Blanks in a text → the tokens a model would put there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders
from torch import Tensor

from clozelab.config import slots
from clozelab.contracts import Ids, Input, Ints
from clozelab.errors import UserError
from clozelab.models.model import Model
from clozelab.models.reader import packed
from clozelab.objectives import PARTS, language_models
from clozelab.text.vocabulary import ROLES
from clozelab.training.world import join

_OTHER, _TARGET = 1, 2  # of Input.kinds


@dataclass(frozen=True)
class TokenPrediction:
    """What may stand in a blank."""

    token: str
    number: int
    probability: float


@dataclass(frozen=True)
class Filled:
    """Each blank's guesses, the best first, and the text with the best put in."""

    blanks: tuple[tuple[TokenPrediction, ...], ...]
    parts: tuple[str, ...]  # the text, cut before and after every blank's best
    left_only: bool  # a blank was guessed from what stands to its left
    asked: tuple[TokenPrediction, ...] = ()  # for each blank the token that was asked about

    @property
    def text(self) -> str:
        """The text with every blank's best put in."""
        return "".join(self.parts)

    def as_json(self) -> dict[str, Any]:
        """The text and the guesses for other programs."""
        blanks = [[asdict(guess) for guess in guesses] for guesses in self.blanks]
        return {"text": self.text, "blanks": blanks}


def fill(model: Model, text: str, *, top: int = 5, device: str | None = None) -> Filled:
    """Fill the blanks of a text, written [MASK], <mask> or as the tokenizer writes its own."""
    return fill_between(model, _cut(model, text), top=top, device=device)


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
            f"{model.place}: encoder {name} reads whole words by their characters and has no"
            " blanks; use clozelab embed"
        )
    heads = language_models(model.module.heads, *_WAYS)
    if not heads:
        raise UserError(
            f"{model.place}: has no head that predicts tokens; pretrain it with one by --from"
        )
    if top < 1:
        raise UserError(f"--top {top}: at least 1")
    kind = str(PARTS[heads[0]].language_model)
    ids, at = _tokens(model, around_blanks, masked=kind == "masked")
    most = model.reader().limit
    if most is not None and len(ids) > most:
        raise UserError(
            f"the text has {len(ids):,} tokens, and {model.place} reads {most:,} at a time;"
            f" shorten it to {most:,}"
        )
    with join(device) as world:
        if model.device != world.device:
            model.module.to(world.device)
        with torch.inference_mode():
            logits = _WAYS[kind](model, model.module.heads[heads[0]], ids, at=at).cpu()
    blanks = _guesses(model, logits, top)
    parts = _put(model.tokenizer, around_blanks, [guesses[0].number for guesses in blanks])
    chances = _chances_of(model, logits, about) if about else ()
    return Filled(tuple(blanks), tuple(parts), kind == "causal", chances)


def _cut(model: Model, text: str) -> list[str]:
    """What stands before, between and after the blanks."""
    own = model.tokenizer.id_to_token(model.vocabulary.roles.get("mask", model.vocabulary.size))
    names = {*ROLES["mask"], *([own] if own else [])}
    parts = re.split("|".join(re.escape(name) for name in sorted(names)), text)
    if len(parts) == 1:
        raise UserError("the text has no blank in it: write [MASK] where a word is missing")
    return parts


def _tokens(model: Model, parts: list[str], *, masked: bool) -> tuple[Ids, Ints]:
    """The text's tokens with one for each blank, and where the blanks are."""
    roles = model.vocabulary.roles
    mask = model.vocabulary.role("mask") if masked else roles.get("mask", roles.get("unk", 0))
    pieces = model.reader().pieces(parts)
    if masked and model.blank_reader is not None:
        text = (model.tokenizer.id_to_token(mask) or "").join(parts)
        whole = np.array(model.blank_reader.encode(text, add_special_tokens=False).ids, np.int32)
        at = np.flatnonzero(whole == mask)
        if len(at) == len(parts) - 1:  # a part may have the mask's name in it
            return whole, at
    ids: Ids = np.insert(pieces.columns["ids"], pieces.starts[1:-1], mask)
    return ids, pieces.starts[1:-1] + np.arange(len(parts) - 1)


def from_both(model: Model, head: Any, ids: Ids, *, at: Ints) -> Tensor:
    """[K, V] at the blanks, each seen as a mask."""
    text, device = model.reader().around(ids), model.device
    encoded = model.module.encode(packed([text], device))
    predict = at + text.own.start - model.shift
    states = encoded.predicting[torch.from_numpy(predict).to(device)]
    logits: Tensor = head.logits(states, encoded.table)
    return logits


def _from_queries(model: Model, head: Any, ids: Ids, *, at: Ints) -> Tensor:
    """[K, V] by XLNet's query stream: a blank sees all that is none, and nothing sees a blank."""
    text, device = model.reader().around(ids), model.device
    size = len(text)
    blank = torch.zeros(size, dtype=torch.bool, device=device)
    blank[torch.from_numpy(at).to(device)] = True
    batch: Input = packed([text], device)
    # The encoder lets each half of a block follow the one before; taken back from the second
    # half, all that is no blank comes first in the order, and all blanks after it together.
    later = (batch.position_ids >= (size + 1) // 2) * (size + 1)
    encoded = model.module.encode(
        batch._replace(
            order=torch.where(blank, 0, -1) - later,
            kinds=torch.where(blank, _TARGET, _OTHER),
            queries=torch.from_numpy(at[None]).to(device),
        )
    )
    assert encoded.queries is not None
    logits: Tensor = head.logits(encoded.queries, encoded.table)
    return logits


def _from_left(model: Model, head: Any, ids: Ids, *, at: Ints) -> Tensor:
    """[K, V] at each blank from what stands before it, earlier blanks filled with their best."""
    roles = model.vocabulary.roles
    start = [roles.get("eod", roles.get("sep"))]  # documents follow one another in training
    before = np.array([number for number in start if number is not None], dtype=ids.dtype)
    ids, rows = ids.copy(), []
    for position in at.tolist():
        left = np.concatenate([before, ids[:position]])[-(model.reader().limit or 0) :]
        if not len(left):
            raise UserError(
                f"nothing stands before the first blank, and {model.place} reads from the left;"
                " put a word before it"
            )
        encoded = model.module.encode(packed([model.reader().around(left)], model.device))
        logits = head.logits(encoded.hidden_states[-1:], encoded.table)
        ids[position] = int(logits[0, : model.vocabulary.size].argmax())
        rows.append(logits)
    return torch.cat(rows)


# The language models whose heads can fill a blank, the best first.
_WAYS = {"masked": from_both, "permutation": _from_queries, "causal": _from_left}


def _guesses(model: Model, logits: Tensor, top: int) -> list[tuple[TokenPrediction, ...]]:
    """The likeliest tokens of each blank; a row of the table without a token is never one."""
    chances = logits.double().softmax(-1)[:, : model.vocabulary.size]
    best = chances.topk(min(top, chances.shape[1]))
    return [
        tuple(
            TokenPrediction(written(model.tokenizer, number)[0], number, chance)
            for number, chance in zip(numbers, values, strict=True)
        )
        for numbers, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _chances_of(
    model: Model, logits: Tensor, numbers: Sequence[int]
) -> tuple[TokenPrediction, ...]:
    """How likely a token is in each blank."""
    rows = torch.arange(len(numbers))
    chances = logits.double().softmax(-1)[rows, torch.tensor(numbers)].tolist()
    names = [written(model.tokenizer, number)[0] for number in numbers]
    return tuple(map(TokenPrediction, names, numbers, chances))


def _put(tokenizer: Tokenizer, parts: list[str], numbers: list[int]) -> Iterator[str]:
    """The text with a token in every blank; a piece that goes on a word takes no space before."""
    for part, number in zip(parts, numbers, strict=False):
        token, joins = written(tokenizer, number)
        yield part.rstrip() if joins else part
        yield token.removeprefix("##")
    yield parts[-1]


def written(tokenizer: Tokenizer, number: int) -> tuple[str, bool]:
    """A token as a reader would write it, and whether it goes on the word before it."""
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
