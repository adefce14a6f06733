"""The masking strategies that a recipe may name (blocks → masked positions), and corruption."""

from clozelab.masking.corruption import Corruption
from clozelab.masking.knowledge import Knowledge
from clozelab.masking.permutation_targets import PermutationTargets
from clozelab.masking.token import NoMasking, Rarity, Token, UniformRate
from clozelab.masking.words import Ngram, SpanMasking, WholeWord

PARTS: dict[str, type] = {
    "token": Token,
    "whole_word": WholeWord,
    "ngram": Ngram,
    "span": SpanMasking,
    "knowledge": Knowledge,
    "partial": PermutationTargets,
    "rarity": Rarity,
    "uniform_rate": UniformRate,
    "nothing": NoMasking,
}

__all__ = ["PARTS", "Corruption"]
