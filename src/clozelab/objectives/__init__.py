"""Vectors → sums and counts: the objectives a recipe may list, each with the head it trains."""

from clozelab.objectives.bidirectional_lm import BidirectionalLm
from clozelab.objectives.causal_lm import CausalLm
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.masked_lm import MaskedLm
from clozelab.objectives.next_sentence import NextSentence
from clozelab.objectives.permutation_lm import PermutationLm
from clozelab.objectives.sentence_order import SentenceOrder
from clozelab.objectives.span_boundary import SpanBoundary

Objective = (
    MaskedLm
    | NextSentence
    | SentenceOrder
    | SpanBoundary
    | PermutationLm
    | CausalLm
    | BidirectionalLm
    | Distillation
)

PARTS: dict[str, type[Objective]] = {
    "masked_lm": MaskedLm,
    "next_sentence": NextSentence,
    "sentence_order": SentenceOrder,
    "span_boundary": SpanBoundary,
    "permutation_lm": PermutationLm,
    "causal_lm": CausalLm,
    "bidirectional_lm": BidirectionalLm,
    "distillation": Distillation,
}

__all__ = ["PARTS", "BidirectionalLm", "CausalLm", "Distillation", "Objective"]
