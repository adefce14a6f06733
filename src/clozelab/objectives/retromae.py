"""An auto-encoder: a text from little more than its [CLS] vector (RetroMAE, arXiv:2205.12035)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clozelab.contracts import Blocks, Corrupted, Hidden, Pooling, Targets
from clozelab.errors import UserError
from clozelab.objectives.objective import Weighted, head_parameters
from clozelab.packed import offsets
from clozelab.ranges import Share

if TYPE_CHECKING:
    from clozelab.objectives.heads.retromae import RetroMaeDecoder


@dataclass(frozen=True)
class RetroMae(Weighted):
    """Predicts every token of a block by a decoder layer that reads little but its [CLS] vector.

    The encoder reads a block with a moderate mask rate; the recipe gives its masking and the
    objective there (a separate masked_lm; §3.1). In the decoder (§3.3, enhanced decoding) the query
    of each token is the vector plus the token's position; it attends to the vector and to other
    tokens that are sampled for each query.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"token_vectors"})
    targets_interact: ClassVar[bool] = True  # a target attends to the labels of others

    mask_rate: Share = 0.5  # of the other tokens, for each query; §4.1

    @property
    def pooling(self) -> Pooling:
        """How the vector is computed that a text is reconstructed from."""
        return "cls"

    def parameters(self, encoder: Any, vocabulary: int) -> dict[str, int]:
        """Trainable parameters of the decoder and its head, by part."""
        width, narrow, bias = encoder.hidden_size, encoder.embedding_size, int(encoder.bias)
        norm = width * (2 if bias and encoder.normalisation == "layer" else 1)
        counts = {
            "positions": encoder.max_positions * width,
            "projection": 0 if narrow == width else narrow * width + bias * width,
            "attention": 4 * (width + bias) * width,
            "ffn": 2 * 4 * width * width + bias * 5 * width,
            "norms": 3 * norm,
        }
        head = {f"head.{name}": n for name, n in head_parameters(encoder, vocabulary).items()}
        return {part: count for part, count in {**counts, **head}.items() if count}

    def targets(self, blocks: Blocks, hidden: Hidden, corrupted: Corrupted) -> Targets:
        """Every token that is not special, and the draw of its attention mask."""
        assert corrupted.keys is not None, "what is seen is drawn by the keys of a corruption"
        at = np.flatnonzero(~blocks.fixed)
        columns = {
            "at": blocks.positions[at],
            "labels": blocks.ids[at].astype(np.int64),
            "draws": (corrupted.keys[at] >> np.uint64(32)).astype(np.int64),
        }
        return Targets(offsets(np.bincount(blocks.rows[at], minlength=len(blocks))), columns)

    def build(self, encoder: Any, vocabulary: int) -> RetroMaeDecoder:
        """The decoder with fresh weights."""
        from clozelab.objectives.heads.retromae import RetroMaeDecoder

        return RetroMaeDecoder(self, encoder, vocabulary)

    def check_encoder(self, encoder: Any) -> None:
        """Refuse an encoder without a first token whose vector has read the whole text."""
        if encoder.layout.summary != "first" or encoder.max_positions is None:
            raise UserError(
                "reconstructs a text from the vector of its first token, which this encoder does"
                " not give it; use encoder transformer with causal = false"
            )

    def training_flops(
        self, encoder: Any, vocabulary: int, *, length: float, predicted: float
    ) -> float:
        """The operations of its layer, for every token, and of its head."""
        head = super().training_flops(encoder, vocabulary, length=length, predicted=predicted)
        return float(6 * 12 * encoder.hidden_size**2 + 12 * encoder.hidden_size * length + head)
