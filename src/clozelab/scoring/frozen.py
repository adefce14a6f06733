"""Vectors of a frozen encoder: every layer of a text, or of a stretch of it, computed once."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozelab.contracts import Pooling
from clozelab.errors import UserError
from clozelab.models.model import Model
from clozelab.models.reader import Text, packed
from clozelab.scoring.probed import Excerpt

Floats = NDArray[np.float32]

_CELLS = 16_384  # tokens at a time; of an encoder that reads characters an eighth


class FrozenEncoder:
    """A model whose layers are read and never changed.

    A text is the mean of its tokens, or the vector that the encoder itself lets stand for it:
    [CLS], or the last token where each sees only those before it. By default it is what the model
    was trained for, else the mean of its own tokens. A stretch of a text is the mean
    of the tokens in it. What has no token is zero. Where `texts` are given, their tokens are found
    there, and those of other texts are added: for the next time, when the weights are others.
    """

    def __init__(
        self,
        loaded: Model,
        device: torch.device,
        *,
        pool: Pooling | None = None,
        texts: dict[str, Text] | None = None,
    ) -> None:
        self.loaded, self.device = loaded, device
        self.pool: Pooling = pool or loaded.pooling or "mean"
        self.layers: int = loaded.recipe.encoder.layers + 1  # the embedding is the first
        self.cut = 0  # texts longer than the model was trained on
        self._rows: dict[Excerpt, Floats] = {}
        self._keeps_texts = texts is not None
        self._texts: dict[str, Text] = {} if texts is None else texts
        if self.pool == "cls" and loaded.recipe.encoder.layout.summary is None:
            raise UserError(
                f"--pool cls: no token of {loaded.place} has read a whole text; use --pool mean"
            )

    def follow(self, wanted: Iterable[Excerpt]) -> Generator[tuple[int, int], None, None]:
        """Compute the excerpts that are not there yet, yielding how many texts are done."""
        missing: dict[str, list[Excerpt]] = {}
        for excerpt in dict.fromkeys(wanted):
            if excerpt not in self._rows:
                missing.setdefault(excerpt.text, []).append(excerpt)
        unread = [text for text in missing if text not in self._texts]
        read = self.loaded.reader().read(unread, most=self._most())
        self._texts |= dict(zip(unread, read, strict=True))
        self.cut += sum(text.cut for text in read)
        texts = [self._texts[text] for text in missing]
        excerpts = list(missing.values())
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        order = np.argsort(-lengths, kind="stable")  # neighbours alike in length leave little idle
        cells = _CELLS if self.loaded.recipe.encoder.reads == "tokens" else _CELLS // 8
        done = 0
        while done < len(order):
            some = order[done : done + max(1, cells // max(int(lengths[order[done]]), 1))]
            self._compute([texts[n] for n in some], [excerpts[n] for n in some])
            done += len(some)
            yield done, len(order)

    def layer(self, excerpts: Sequence[Excerpt], number: int) -> Floats:
        """[n, W] one layer of excerpts that were computed."""
        return np.stack([self._rows[excerpt][number] for excerpt in excerpts])

    def forget(self, needed: Collection[Excerpt] = ()) -> None:
        """Free the memory of all excerpts but those that are still needed."""
        if not self._keeps_texts:
            self._texts = {}
        self._rows = {excerpt: row for excerpt, row in self._rows.items() if excerpt in needed}

    def _most(self) -> int:
        """The most tokens of a text: as many as blocks of its pretraining have, less its marks."""
        reader = self.loaded.reader()
        length = self.loaded.recipe.blocks.length - reader.own_marks
        return length if reader.limit is None else min(reader.limit, length)

    @torch.inference_mode()
    def _compute(self, texts: list[Text], wanted: list[list[Excerpt]]) -> None:
        """The rows of some texts, pooled on the device."""
        places: list[NDArray[Any]] = []  # the tokens that each excerpt is the mean of
        start = 0
        for text, excerpts in zip(texts, wanted, strict=True):
            places += [start + self._tokens(text, excerpt) for excerpt in excerpts]
            start += len(text)
        every = [excerpt for excerpts in wanted for excerpt in excerpts]
        if not start:
            width = self.loaded.recipe.encoder.vector_width
            rows: Floats = np.zeros((len(every), self.layers, width), dtype=np.float32)
        else:
            real = [text for text in texts if len(text)]
            encoded = self.loaded.module.encode(packed(real, self.device), keep=True)
            pooled = _means(encoded.layers, places, self.device)
            rows = pooled.cpu().numpy()
        # Each its own copy, so that forgetting one frees it.
        self._rows |= {excerpt: row.copy() for excerpt, row in zip(every, rows, strict=True)}

    def _tokens(self, text: Text, excerpt: Excerpt) -> NDArray[Any]:
        """Which tokens of the text an excerpt is made of."""
        own = np.arange(len(text))[text.own]
        if excerpt.span is not None:
            first, stop = excerpt.span
            return own[(text.spans[:, 0] < stop) & (text.spans[:, 1] > first)]
        if self.pool != "cls":
            return own if self.pool == "mean" else np.arange(len(text))
        return own[-1:] if text.cls is None else np.array([text.cls])


def _means(layers: Sequence[Tensor], places: list[NDArray[Any]], device: torch.device) -> Tensor:
    """[n, layers, W] of each row the mean of some states; sums in a fixed order, on any device."""
    sizes = np.array([len(place) for place in places])
    index = np.zeros((len(places), max(int(sizes.max()), 1)), dtype=np.int64)
    inside = np.arange(index.shape[1]) < sizes[:, None]
    index[inside] = np.concatenate(places)
    at = torch.from_numpy(index).to(device)
    there = torch.from_numpy(inside).to(device).unsqueeze(-1).float()
    many = there.sum(dim=1).clamp(min=1)
    return torch.stack([(layer.float()[at] * there).sum(dim=1) / many for layer in layers], dim=1)
