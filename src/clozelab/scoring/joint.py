"""Two neighbouring words hidden together: how likely both are, as one or one after the other.

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
from clozelab.scoring.likelihood import Nats, Precision, TextScorer, computing, stretches
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
        """[P] of both, as if neither told of the other."""
        return np.asarray(self.alone.sum(1))

    @property
    def chain(self) -> Nats:
        """[P] of both by the chain rule, the mean of the two orders."""
        return np.asarray(self.alone.sum(1) + self.given.sum(1)) / 2

    @property
    def own(self) -> Nats:
        """[P] of both, as the model was trained to predict them."""
        return self.independent if self.kind == "masked" else self.chain

    @property
    def gain(self) -> Nats:
        """[P] what the chain rule adds: how much one word tells of the other."""
        return self.chain - self.independent


def pick(
    documents: Documents, *, texts: int = _TEXTS, longest: int = _LONGEST
) -> tuple[Ints, Ints]:
    """Sentences with two neighbouring words of one token each: their numbers, and the first word.

    The words, and sentences of more than are needed, are chosen by their numbers alone.
    """
    starts = np.asarray(documents.sentences).astype(np.int64)
    known = ~np.isin(documents.ids, documents.vocabulary.special)
    begins = np.append((np.asarray(documents.marks) & Mark.WORD) > 0, True)
    begins[starts[:-1]] = True  # a sentence ends a word
    whole = known & begins[:-1] & begins[1:]  # words of one token
    (first,) = np.nonzero(whole[:-1] & whole[1:])
    sentence = np.searchsorted(starts, first, side="right") - 1
    length = np.diff(starts)[sentence]
    fits = (first + 1 < starts[sentence + 1]) & (length >= _SHORTEST) & (length <= longest)
    first, sentence = first[fits], sentence[fits]
    key = root(0, "joint")
    order = np.lexsort([mix(mix(key, sentence), first - starts[sentence]), sentence])
    numbers, one = np.unique(sentence[order], return_index=True)
    some = np.sort(np.argsort(mix(key, numbers), kind="stable")[:texts])
    return numbers[some], (first[order][one] - starts[numbers])[some]


def joint(
    text_scorer: TextScorer,
    documents: Documents,
    *,
    texts: int = _TEXTS,
    device: str | None = None,
    precision: Precision | None = None,
) -> JointScores | None:
    """The likelihoods of two words hidden together in sentences; None where there are none."""
    assert text_scorer.kind in KINDS
    limit = text_scorer.reader.limit
    numbers, first = pick(documents, texts=texts, longest=min(_LONGEST, limit or _LONGEST))
    if not len(numbers):
        return None
    nats = np.empty((len(numbers), 2, 2))
    starts = np.asarray(documents.sentences).astype(np.int64)
    lengths = starts[numbers + 1] - starts[numbers]
    with join(device) as world, computing(text_scorer, world.device, precision):
        for length in np.unique(lengths)[::-1]:
            for some in stretches(text_scorer, np.flatnonzero(lengths == length), 4 * int(length)):
                ids = documents.ids[starts[numbers[some], None] + np.arange(length)]
                nats[some] = pair_nats(text_scorer, ids, first[some])
    return JointScores(text_scorer.kind, nats[:, 0], nats[:, 1])


@torch.inference_mode()
def pair_nats(text_scorer: TextScorer, ids: Array, first: Ints) -> Nats:
    """[R, 2, 2] alone, and given the other: of two words of each row [R, n], from `first` on."""
    return (_hidden if text_scorer.kind == "masked" else _ordered)(text_scorer, ids, first)


def _hidden(text_scorer: TextScorer, ids: Array, first: Ints) -> Nats:
    """[R, 2, 2] by copies with both words hidden, and with one of them."""
    columns, at = np.arange(ids.shape[1]), first[:, None] + np.array([0, 1, 0, 1])
    both = (columns >= first[:, None]) & (columns <= first[:, None] + 1)
    hide = columns == at[:, :, None]
    hide[:, :2] = both[:, None]
    copies = (np.repeat(ids, 4, axis=0), hide.reshape(-1, ids.shape[1]))
    encoded, states, labels = text_scorer.masked(*copies, at=at.reshape(-1))
    return text_scorer.nats(states, labels, encoded.table).reshape(-1, 2, 2)


def _ordered(text_scorer: TextScorer, ids: Array, first: Ints) -> Nats:
    """[R, 2, 2] by two orders of factorisation, in which either word comes first."""
    rows = np.arange(len(ids))
    ranks = np.full((len(ids), 2, ids.shape[1]), -1)  # the context comes before both
    for order in (0, 1):
        ranks[rows, order, first], ranks[rows, order, first + 1] = order, 1 - order
    at = np.repeat(first[:, None] + np.arange(2), 2, axis=0)
    nats = text_scorer.permuted(np.repeat(ids, 2, axis=0), ranks.reshape(-1, ids.shape[1]), at=at)
    words = nats.reshape(-1, 2, 2)  # [R, order, word]
    return np.stack([words[:, [0, 1], [0, 1]], words[:, [1, 0], [0, 1]]], axis=1)
