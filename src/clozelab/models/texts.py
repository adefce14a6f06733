"""A text as a trained model reads it: its tokens, with the marks of its kind around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from clozelab.contracts import Array, Bools, Input, Ints
from clozelab.models.load import Loaded
from clozelab.models.reader import TaskReader
from clozelab.packed import offsets


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


def limit(loaded: Loaded) -> int | None:
    """The most tokens of its own a text may have; a recurrent encoder reads any number.

    Attention without a table of positions does, too, but its memory grows with the square: what it
    was trained on will do.
    """
    encoder = loaded.recipe.encoder
    if encoder.recurrent:
        return None
    layout, length = encoder.layout, encoder.max_positions or loaded.recipe.blocks.length
    return length - (len(layout.before) + len(layout.after) if layout.in_pretraining else 0)


def around(loaded: Loaded, ids: Array) -> Text:
    """Some tokens with the marks around them that the model knows from its training."""
    size = len(ids)
    return _laid(_reader(loaded), {"ids": ids}, np.ones(size, bool), np.zeros((size, 2), np.int64))


def read(loaded: Loaded, texts: Sequence[str], *, most: int | None = None) -> list[Text]:
    """Texts as the model reads them, each cut where the model's positions end, or to `most`."""
    reader, most = _reader(loaded), limit(loaded) if most is None else most
    pieces = reader.pieces(texts)
    laid = []
    for number in range(len(texts)):
        every = pieces.text(number)
        here = every if most is None else slice(every.start, min(every.stop, every.start + most))
        part = pieces.part(here)
        text = _laid(reader, part, pieces.begins[here], pieces.spans[here])
        laid.append(replace(text, cut=here.stop < every.stop))
    return laid


def _reader(loaded: Loaded) -> TaskReader:
    return loaded.reader(loaded.recipe.blocks.length)


def _laid(reader: TaskReader, part: dict[str, Array], begins: Bools, spans: Ints) -> Text:
    """A text with the marks of a task around it, but for those that pretraining never showed."""
    layout = reader.recipe.encoder.layout
    if not layout.in_pretraining:
        nothing = np.zeros(len(spans), dtype=np.int64)
        return Text({**part, "segments": nothing}, slice(0, len(spans)), None, begins, spans)
    row = reader.lay(part)
    mark = None if layout.summary is None else row.mark
    return Text(row.columns, row.first, mark, begins, spans)


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
