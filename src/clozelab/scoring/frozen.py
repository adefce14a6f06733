"""Vectors of a frozen encoder: every layer of a text or of a span of it, computed once."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozelab.contracts import Pooling
from clozelab.errors import UserError
from clozelab.models.history import longest_block
from clozelab.models.model import Model, encoder_output, refuse_nan
from clozelab.models.reader import Text, batches
from clozelab.scoring.probed import Excerpt
from clozelab.training.memory import FORWARD_TOKENS

Floats = NDArray[np.float32]


class FrozenEncoder:
    """A model whose layers are read and never changed.

    A text is pooled to the mean of its tokens, or to the encoder's own summary: [CLS], or the last
    token of a causal encoder. By default it is the pooling of the model's training, else the mean
    without special tokens. A span of a text is the mean of its tokens; without tokens the vector is
    zero. `texts` is a cache of tokenised texts, which is kept for later steps of the same model.
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
        self.cut = 0  # texts that were truncated
        self._rows: dict[Excerpt, Floats] = {}
        self._keeps_texts = texts is not None
        self._texts: dict[str, Text] = {} if texts is None else texts
        if self.pool == "cls" and loaded.recipe.encoder.layout.summary is None:
            raise UserError(
                f"--pool cls: no token of {loaded.place} sees a whole text; use --pool mean"
            )

    def follow(self, wanted: Iterable[Excerpt]) -> Generator[tuple[int, int], None, None]:
        """Compute the missing excerpts, yielding how many texts are done and how many there are."""
        missing: dict[str, list[Excerpt]] = {}
        for excerpt in dict.fromkeys(wanted):
            if excerpt not in self._rows:
                missing.setdefault(excerpt.text, []).append(excerpt)
        unread = [text for text in missing if text not in self._texts]
        read = self.loaded.reader().read(unread, most=self._max_tokens())
        self._texts |= dict(zip(unread, read, strict=True))
        self.cut += sum(text.cut for text in read)
        texts = [self._texts[text] for text in missing]
        excerpts = list(missing.values())
        done = 0
        for batch in batches(texts, tokens=FORWARD_TOKENS):
            self._compute([texts[n] for n in batch], [excerpts[n] for n in batch])
            done += len(batch)
            yield done, len(texts)

    def layer(self, excerpts: Sequence[Excerpt], number: int) -> Floats:
        """[n, W] one layer of computed excerpts."""
        return np.stack([self._rows[excerpt][number] for excerpt in excerpts])

    def forget(self, needed: Collection[Excerpt] = ()) -> None:
        """Free the memory of all excerpts but those that are still needed."""
        if not self._keeps_texts:
            self._texts = {}
        self._rows = {excerpt: row for excerpt, row in self._rows.items() if excerpt in needed}

    def _max_tokens(self) -> int:
        """The most tokens of a text: the longest block of its training, less special tokens."""
        reader = self.loaded.reader()
        block = longest_block(self.loaded) or self.loaded.recipe.blocks.length
        most = self.loaded.text_length or block
        length = max(min(block, most) - reader.own_special_tokens, 0)
        return length if reader.limit is None else min(reader.limit, length)

    @torch.inference_mode()
    def _compute(self, texts: list[Text], wanted: list[list[Excerpt]]) -> None:
        """Compute the vectors of some texts, pooled on the device."""
        positions: list[NDArray[Any]] = []  # the positions of each excerpt's tokens
        start = 0
        for text, excerpts in zip(texts, wanted, strict=True):
            positions += [start + self._positions(text, excerpt) for excerpt in excerpts]
            start += len(text)
        wanted_rows = [excerpt for excerpts in wanted for excerpt in excerpts]
        if not start:
            width = self.loaded.recipe.encoder.vector_width
            rows: Floats = np.zeros((len(wanted_rows), self.layers, width), dtype=np.float32)
        else:
            encoded = encoder_output(self.loaded, texts, keep=True)
            pooled = _means(encoded.layers, positions, self.device).cpu()
            refuse_nan(self.loaded, pooled)
            rows = pooled.numpy()
        # Copies, so that each can be freed.
        self._rows |= {excerpt: row.copy() for excerpt, row in zip(wanted_rows, rows, strict=True)}

    def _positions(self, text: Text, excerpt: Excerpt) -> NDArray[Any]:
        """The positions of the tokens that an excerpt is pooled from."""
        own = np.arange(len(text))[text.own]
        if excerpt.span is not None:
            first, stop = excerpt.span
            return own[(text.spans[:, 0] < stop) & (text.spans[:, 1] > first)]
        return np.arange(len(text))[text.pooled(self.pool)]


def _means(layers: Sequence[Tensor], positions: list[NDArray[Any]], device: torch.device) -> Tensor:
    """[n, layers, W] the mean of each excerpt's states, summed in a fixed order on any device."""
    sizes = np.array([len(at_excerpt) for at_excerpt in positions])
    index = np.zeros((len(positions), max(int(sizes.max()), 1)), dtype=np.int64)
    inside = np.arange(index.shape[1]) < sizes[:, None]
    index[inside] = np.concatenate(positions)
    at = torch.from_numpy(index).to(device)
    mask = torch.from_numpy(inside).to(device).unsqueeze(-1).float()
    counts = mask.sum(dim=1).clamp(min=1)
    return torch.stack([(layer.float()[at] * mask).sum(dim=1) / counts for layer in layers], dim=1)
