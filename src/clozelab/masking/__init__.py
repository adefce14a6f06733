"""Block → what is hidden: one file per strategy, and the corruption that follows."""

from clozelab.masking.corruption import Corruption
from clozelab.masking.knowledge import Knowledge
from clozelab.masking.ngram import Ngram
from clozelab.masking.nothing import Nothing
from clozelab.masking.partial import Partial
from clozelab.masking.rarity import Rarity
from clozelab.masking.span import Span
from clozelab.masking.token import Token
from clozelab.masking.whole_word import WholeWord

PARTS: dict[str, type] = {
    "token": Token,
    "whole_word": WholeWord,
    "ngram": Ngram,
    "span": Span,
    "knowledge": Knowledge,
    "partial": Partial,
    "rarity": Rarity,
    "nothing": Nothing,
}

__all__ = ["PARTS", "Corruption"]
