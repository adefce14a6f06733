"""Two neighbouring words masked together: their joint likelihood, independent or by chain rule.

XLNet argues (arXiv:1906.08237 §2.1, A.5) that masked LM predicts hidden tokens as if they were
independent: log p(a) + log p(b), both hidden. The chain rule adds what one tells of the other:
log p(a) + log p(b | a), or in the other order. A masked model is asked for log p(b | a) with a
revealed; a permutation model by its own order of factorisation, in which both queries see the
whole context, and the second also the first word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from clozelab.contracts import Array, Documents, Ints, Mark
from clozelab.keys import mix, root
from clozelab.scoring.likelihood import Nats, TextScorer, computing, stretches
from clozelab.training.world import join

_TEXTS = 4096
_SHORTEST, _LONGEST = 6, 64  # tokens of a sentence
KINDS = ("masked", "permutation")  # of language models that see both sides of a hidden word


@dataclass(frozen=True)
class JointScores:
    """Log-likelihoods of pairs of words, in nats."""

    kind: str  # of language model
    alone: Nats  # [P, 2] of each word, the other one hidden, too
    given: Nats  # [P, 2] of each word, given the other

    @property
    def independent(self) -> Nats:
        """[P] of both, as if they were independent."""
        return np.asarray(self.alone.sum(1))

    @property
    def chain(self) -> Nats:
        """[P] of both by the chain rule, the mean of the two orders."""
        return np.asarray(self.alone.sum(1) + self.given.sum(1)) / 2

    @property
    def own(self) -> Nats:
        """[P] of both, as the model predicts them in training."""
        return self.independent if self.kind == "masked" else self.chain

    @property
    def gain(self) -> Nats:
        """[P] the gain of the chain rule: how much one word says of the other."""
        return self.chain - self.independent


def pick(documents: Documents, *, texts: int, longest: int) -> tuple[Ints, Ints]:
    """Sentences with two neighbouring words of one token: their indices, and the first word's.

    Which words and sentences are chosen depends on their indices alone.
    """
    starts = np.asarray(documents.sentences).astype(np.int64)
    known = ~np.isin(documents.ids, documents.vocabulary.special)
    begins = np.append((np.asarray(documents.marks) & Mark.WORD) > 0, True)
    begins[starts[:-1]] = True  # words end with their sentence
    single_token = known & begins[:-1] & begins[1:]  # words of one token
    (first,) = np.nonzero(single_token[:-1] & single_token[1:])
    sentence = np.searchsorted(starts, first, side="right") - 1
    length = np.diff(starts)[sentence]
    fits = (first + 1 < starts[sentence + 1]) & (length >= _SHORTEST) & (length <= longest)
    first, sentence = first[fits], sentence[fits]
    key = root(0, "joint")
    order = np.lexsort([mix(mix(key, sentence), first - starts[sentence]), sentence])
    numbers, first_of = np.unique(sentence[order], return_index=True)
    chosen = np.sort(np.argsort(mix(key, numbers), kind="stable")[:texts])
    return numbers[chosen], (first[order][first_of] - starts[numbers])[chosen]


def joint(
    text_scorer: TextScorer,
    documents: Documents,
    *,
    texts: int = _TEXTS,
    device: str | None = None,
) -> JointScores | None:
    """The likelihoods of two words masked together in sentences; None if no sentence has any."""
    assert text_scorer.kind in KINDS
    limit = text_scorer.reader.limit
    numbers, first = pick(documents, texts=texts, longest=min(_LONGEST, limit or _LONGEST))
    if not len(numbers):
        return None
    nats = np.empty((len(numbers), 2, 2))
    starts = np.asarray(documents.sentences).astype(np.int64)
    lengths = starts[numbers + 1] - starts[numbers]
    with join(device) as world, computing(text_scorer, world.device):
        for length in np.unique(lengths)[::-1]:
            for batch in stretches(text_scorer, np.flatnonzero(lengths == length), 4 * int(length)):
                ids = documents.ids[starts[numbers[batch], None] + np.arange(length)]
                nats[batch] = pair_nats(text_scorer, ids, first[batch])
    return JointScores(text_scorer.kind, nats[:, 0], nats[:, 1])


@torch.inference_mode()
def pair_nats(text_scorer: TextScorer, ids: Array, first: Ints) -> Nats:
    """[R, 2, 2] nats of two words of each row [R, n]: alone, then given the other."""
    return (_masked if text_scorer.kind == "masked" else _permuted)(text_scorer, ids, first)


def _masked(text_scorer: TextScorer, ids: Array, first: Ints) -> Nats:
    """[R, 2, 2] by copies of each row with both words masked, and with one of them."""
    columns, at = np.arange(ids.shape[1]), first[:, None] + np.array([0, 1, 0, 1])
    both = (columns >= first[:, None]) & (columns <= first[:, None] + 1)
    masked = columns == at[:, :, None]
    masked[:, :2] = both[:, None]
    copies = (np.repeat(ids, 4, axis=0), masked.reshape(-1, ids.shape[1]))
    encoded, states, labels = text_scorer.masked(*copies, at=at.reshape(-1))
    return text_scorer.nats(states, labels, encoded.table).reshape(-1, 2, 2)


def _permuted(text_scorer: TextScorer, ids: Array, first: Ints) -> Nats:
    """[R, 2, 2] by the two orders of factorisation of the words."""
    rows = np.arange(len(ids))
    ranks = np.full((len(ids), 2, ids.shape[1]), -1)  # the context comes before both
    for order in (0, 1):
        ranks[rows, order, first], ranks[rows, order, first + 1] = order, 1 - order
    at = np.repeat(first[:, None] + np.arange(2), 2, axis=0)
    nats = text_scorer.permuted(np.repeat(ids, 2, axis=0), ranks.reshape(-1, ids.shape[1]), at=at)
    words = nats.reshape(-1, 2, 2)  # [R, order, word]
    return np.stack([words[:, [0, 1], [0, 1]], words[:, [1, 0], [0, 1]]], axis=1)
