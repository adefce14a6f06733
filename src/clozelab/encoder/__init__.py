"""The encoders that a recipe may name: ids → hidden states; imported without torch."""

from clozelab.encoder.lstm import Lstm
from clozelab.encoder.relative import Relative
from clozelab.encoder.transformer import Transformer

Encoder = Transformer | Relative | Lstm

PARTS: dict[str, type[Encoder]] = {"transformer": Transformer, "relative": Relative, "lstm": Lstm}

__all__ = ["PARTS", "Encoder", "Lstm", "Relative", "Transformer"]
