"""The objectives that a recipe may list, each with its head: hidden states → sums and counts."""

from collections.abc import Iterable

from clozelab.objectives.contrastive import Contrastive
from clozelab.objectives.distillation import Distillation
from clozelab.objectives.language_models import BidirectionalLm, CausalLm, MaskedLm, PermutationLm
from clozelab.objectives.relations import Relations
from clozelab.objectives.replaced import AllTokensLm, Generator, ReplacedToken
from clozelab.objectives.retromae import RetroMae
from clozelab.objectives.sentence_pair import NextSentence, SentenceOrder
from clozelab.objectives.spans import SpanBoundary, SpanJoint

Objective = (
    MaskedLm
    | NextSentence
    | SentenceOrder
    | SpanBoundary
    | SpanJoint
    | PermutationLm
    | CausalLm
    | BidirectionalLm
    | Distillation
    | Relations
    | Generator
    | ReplacedToken
    | AllTokensLm
    | Contrastive
    | RetroMae
)

PARTS: dict[str, type[Objective]] = {
    "masked_lm": MaskedLm,
    "next_sentence": NextSentence,
    "sentence_order": SentenceOrder,
    "span_boundary": SpanBoundary,
    "span_joint": SpanJoint,
    "permutation_lm": PermutationLm,
    "causal_lm": CausalLm,
    "bidirectional_lm": BidirectionalLm,
    "distillation": Distillation,
    "relations": Relations,
    "generator": Generator,
    "replaced_token": ReplacedToken,
    "all_tokens_lm": AllTokensLm,
    "contrastive": Contrastive,
    "retromae": RetroMae,
}

# The objectives that classify a pair of texts.
PAIRS = tuple(name for name, part in PARTS.items() if part.needs & {"next", "order"})


def language_models(names: Iterable[str], *kinds: str) -> list[str]:
    """The names of language models of these kinds among `names`, in the order of the kinds."""
    trained = {name: PARTS[name].language_model for name in names if name in PARTS}
    return [name for kind in kinds for name in trained if trained[name] == kind]


__all__ = [
    "PAIRS",
    "PARTS",
    "BidirectionalLm",
    "CausalLm",
    "Distillation",
    "Generator",
    "MaskedLm",
    "NextSentence",
    "Objective",
    "language_models",
]
