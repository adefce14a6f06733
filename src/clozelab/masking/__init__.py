"""Block → what is hidden: one file per strategy, and the corruption that follows."""

from clozelab.masking.corruption import Corruption
from clozelab.masking.knowledge import Knowledge
from clozelab.masking.ngram import Ngram
from clozelab.masking.none import NoMasking
from clozelab.masking.permutation_targets import PermutationTargets
from clozelab.masking.rarity import Rarity
from clozelab.masking.span import SpanMasking
from clozelab.masking.token import Token
from clozelab.masking.whole_word import WholeWord

PARTS: dict[str, type] = {
    "token": Token,
    "whole_word": WholeWord,
    "ngram": Ngram,
    "span": SpanMasking,
    "knowledge": Knowledge,
    "partial": PermutationTargets,
    "rarity": Rarity,
    "nothing": NoMasking,
}

__all__ = ["PARTS", "Corruption"]
