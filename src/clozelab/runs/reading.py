"""A text as a trained model reads it: its tokens, with the marks of its kind around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from clozelab.blocks.words import spell
from clozelab.contracts import Array, Blocks, Bools, Counts, Input, Ints, Mark, Spelling
from clozelab.encoder import Lstm, Relative, Transformer
from clozelab.packed import offsets
from clozelab.runs.load import Loaded
from clozelab.text.encoding import Encoder
from clozelab.text.spelling import letters


@dataclass(frozen=True)
class Text:
    """One text, as the encoder is to have it."""

    columns: dict[str, Array]  # "ids", "segments" and what else `Input` names, a row a token
    own: slice  # which of them are the text's and not marks
    cls: int | None  # where [CLS] stands, if it does
    begins: Bools  # [own] which begin a word
    spans: Ints  # [own, 2] the characters each covers
    cut: bool = False  # it was longer than the model reads

    def __len__(self) -> int:
        return len(self.columns["ids"])


def limit(given: Loaded) -> int | None:
    """The most tokens of its own a text may have; an encoder without positions reads any number.

    XLNet's has none either, but its memory grows with the square: what it was trained on will do.
    """
    encoder, marks = given.recipe.encoder, 2
    if isinstance(encoder, Transformer):
        return encoder.positions - (0 if encoder.causal else marks)
    return given.recipe.blocks.length - marks if isinstance(encoder, Relative) else None


def around(given: Loaded, ids: Array) -> Text:
    """Some tokens with the marks around them that the model knows from its training."""
    encoder, role = given.recipe.encoder, given.vocabulary.role
    size = len(ids)
    own, cls = slice(0, size), None
    segments = np.zeros(size + 2, dtype=np.int64)
    if isinstance(encoder, Transformer) and encoder.causal:
        segments = segments[:size]
    elif isinstance(encoder, Relative):
        ids = np.concatenate([ids, [role("sep"), role("cls")]])
        segments[-1], cls = 2, size + 1
    else:
        ids = np.concatenate([[role("cls")], ids, [role("sep")]])
        own, cls = slice(1, 1 + size), 0
    columns: dict[str, Array] = {"ids": ids, "segments": segments}
    return Text(columns, own, cls, np.ones(size, bool), np.zeros((size, 2), np.int64))


def read(given: Loaded, texts: Sequence[str]) -> list[Text]:
    """Texts as the model reads them, each cut where the model's positions end."""
    encoder = Encoder(given.tokenizer, segment=False, counts=Counts())
    encoded = encoder.encode(list(texts), characters=True)
    assert encoded.firsts is not None
    assert encoded.stops is not None
    spans = np.stack([encoded.firsts, encoded.stops], axis=1)
    begins = (encoded.marks & Mark.WORD) != 0
    most, found = limit(given), []
    spelling = _spelling(given) if isinstance(given.recipe.encoder, Lstm) else None
    for first, stop in zip(encoded.starts[:-1].tolist(), encoded.starts[1:].tolist(), strict=True):
        here = slice(first, stop if most is None else min(stop, first + most))
        laid = around(given, encoded.ids[here])
        text = Text(
            laid.columns, laid.own, laid.cls, begins[here], spans[here], cut=here.stop < stop
        )
        found.append(text if spelling is None else _spelled(given, text, spelling))
    return found


def packed(texts: Sequence[Text], device: torch.device) -> Input:
    """Several texts, one after another."""
    starts = offsets([len(text) for text in texts])
    columns: dict[str, Any] = {
        name: _tensor(np.concatenate([text.columns[name] for text in texts]), device)
        for name in texts[0].columns
    }
    places = np.concatenate([np.arange(len(text)) for text in texts])
    return Input(
        **columns,
        places=_tensor(places, device),
        starts=_tensor(starts, device).int(),
        longest=max(len(text) for text in texts),
    )


def _tensor(values: Array, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)


def _spelling(given: Loaded) -> Spelling:
    """What the ids spell; the numbers of words are for training alone."""
    return Spelling(*letters(given.tokenizer), np.zeros(0, np.uint64), np.zeros(0, np.int32))


def _spelled(given: Loaded, text: Text, spelling: Spelling) -> Text:
    """The text in words by their characters."""
    fixed = np.ones(len(text), dtype=bool)
    fixed[text.own] = False
    marks = np.full(len(text), Mark.ALL, dtype=np.uint8)
    marks[text.own] = np.where(text.begins, Mark.ALL, 0)
    blocks = Blocks(
        ids=text.columns["ids"].astype(np.int32),
        starts=np.array([0, len(text)]),
        marks=marks,
        segments=np.zeros(len(text), dtype=np.uint8),
        fixed=fixed,
        numbers=np.zeros(1, dtype=np.int64),
    )
    form: Any = given.recipe.blocks
    words = spell(blocks, spelling, length=form.characters)
    first = np.flatnonzero(text.begins)
    last = np.append(first, len(text.begins))[1:] - 1
    columns: dict[str, Array] = {
        "ids": words.ids,
        "segments": np.zeros(len(words.ids), dtype=np.int64),
        "characters": words.characters,
    }
    spans = np.stack([text.spans[first, 0], text.spans[last, 1]], axis=1)
    return Text(columns, slice(1, 1 + len(first)), None, np.ones(len(first), bool), spans, text.cut)
