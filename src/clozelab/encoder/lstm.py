"""The encoder of ELMo (§3.1): words from characters, then LSTMs in both directions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clozelab.contracts import EncoderPart, TextLayout
from clozelab.errors import UserError
from clozelab.ranges import BelowOne, Checked, NonNegativeInt, PositiveInt, above

if TYPE_CHECKING:
    from clozelab.encoder.characters import CharacterLstm


@dataclass(frozen=True)
class Lstm(Checked, EncoderPart):
    """A character CNN with highway layers, then `layers` bidirectional LSTM layers, with residuals.

    `hidden_size` is the output of each direction, `cell_size` the cells of an LSTM before the
    projection. `filters` lists (characters wide, how many); `alphabet` is the number of character
    ids, `character_width` the size of their embeddings; `clip` bounds cells and projections.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"two_directions"})
    needs: ClassVar[frozenset[str]] = frozenset({"words"})
    reads: ClassVar[Literal["tokens", "words"]] = "words"
    recurrent: ClassVar[bool] = True
    layout: ClassVar[TextLayout] = TextLayout(summary=None)  # no token has read all both ways

    layers: PositiveInt
    hidden_size: PositiveInt
    cell_size: PositiveInt
    filters: tuple[tuple[int, int], ...]
    highways: NonNegativeInt = 2
    alphabet: PositiveInt = 261  # the bytes; block, word and padding marks
    character_width: PositiveInt = 16
    dropout: BelowOne = 0.1
    clip: Annotated[float, above(0, "must be above 0, for instance 3")] = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.filters or min(min(pair) for pair in self.filters) < 1:
            raise UserError("filters: give pairs (characters wide, how many), each at least 1")

    @property
    def embedding_size(self) -> int:
        """The hidden size: words have no narrower embedding."""
        return self.hidden_size

    @property
    def vector_width(self) -> int:
        """The width of both directions concatenated."""
        return 2 * self.hidden_size

    def resized(self, layers: int, hidden_size: int) -> Lstm:
        """The same encoder at another size: cells and filters keep their ratio to it."""

        def scaled(count: int) -> int:
            return max(1, count * hidden_size // self.hidden_size)

        return replace(
            self,
            layers=layers,
            hidden_size=hidden_size,
            cell_size=scaled(self.cell_size),
            filters=tuple((wide, scaled(count)) for wide, count in self.filters),
        )

    def build(self, vocabulary: int) -> CharacterLstm:
        """The encoder with fresh weights, which do not depend on the vocabulary."""
        from clozelab.encoder.characters import CharacterLstm

        return CharacterLstm(self)

    def training_flops(self, length: float, *, read: float = 1.0) -> float:
        """The operations of the LSTMs, per word."""
        layer = 2 * (8 * self.cell_size * self.hidden_size + self.cell_size * self.hidden_size)
        return float(6 * self.layers * layer)

    def parameters(self, vocabulary: int) -> dict[str, int]:
        """How many parameters each module has, whatever the vocabulary."""
        channels = sum(count for _, count in self.filters)
        weights = sum(wide * count for wide, count in self.filters) * self.character_width
        gates = 4 * self.cell_size * (2 * self.hidden_size + 1)
        counts = {
            "characters.embedding": self.alphabet * self.character_width,
            "characters.filters": weights + channels,
            "characters.highways": self.highways * 2 * (channels * channels + channels),
            "characters.projection": channels * self.hidden_size + self.hidden_size,
            "layers.forward": self.layers * (gates + self.cell_size * self.hidden_size),
            "layers.backward": self.layers * (gates + self.cell_size * self.hidden_size),
        }
        return {part: count for part, count in counts.items() if count}
