"""Single sentences and rows of them (SimCSE), against the plainest program for each."""

from __future__ import annotations

import numpy as np
import pytest
from support import synthetic_documents
from support.block_contents import all_blocks, runs

from clozelab.blocks.single import SentenceRows, SingleSentences
from clozelab.contracts import Documents
from clozelab.keys import mix

KEY = 3


def documents() -> Documents:
    rng = np.random.default_rng(6)
    shape = [rng.integers(0, 12, rng.integers(0, 7)).tolist() for _ in range(60)]
    return synthetic_documents.placed(shape)


def visited(texts: Documents) -> list[list[list[int]]]:
    """Documents in the key's order as lists of sentences that are not empty."""
    order = np.argsort(mix(KEY, np.arange(len(texts))), kind="stable")
    bounds = texts.sentences.tolist()
    sentences = [
        [list(range(bounds[at], bounds[at + 1])) for at in range(*texts.documents[n : n + 2])]
        for n in order.tolist()
    ]
    return [list(filter(None, document)) for document in sentences]


@pytest.mark.parametrize("shortest", [1, 2, 4])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_blocks_are_those_of_a_loop(shortest: int, views: int) -> None:
    expected: list[list[int]] = []
    for document in visited(documents()):
        if views == 1:
            expected += [sentence for sentence in document if len(sentence) >= shortest]
        elif len(document) >= views and min(map(len, document[:views])) >= shortest:
            expected += document[:views]
    options = {"length": 10, "shortest": shortest}
    part = SingleSentences(**options) if views == 1 else SentenceRows(**options, views=views)
    blocks = runs(all_blocks(part.plan(documents(), KEY)))
    assert [block[0].tolist() for block in blocks] == [sentence[:8] for sentence in expected]


def test_a_short_positive_does_not_make_a_positive_of_the_negative() -> None:
    texts = synthetic_documents.placed([[5, 1, 6], [5, 4, 6]])
    blocks = runs(all_blocks(SentenceRows(shortest=2).plan(texts, KEY)))
    assert [block[0].tolist() for block in blocks] == [[*range(12, 17)], [*range(17, 21)]]
