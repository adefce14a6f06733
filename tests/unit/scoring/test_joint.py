"""Two words hidden together, against a pass for every likelihood.

XLNet's are compared with transformers in tests/parity/test_xlnet.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.random_models import corpus, model

from clozelab.contracts import Documents, Ints, Mark
from clozelab.models.model import Model
from clozelab.models.reader import packed
from clozelab.scoring.joint import JointScores, joint, pair_nats, pick
from clozelab.scoring.likelihood import TextScorer, scorer

torch.set_num_threads(1)
HERE = torch.device("cpu")


def sentences(documents: Documents, number: int) -> Ints:
    first, stop = documents.sentences[number : number + 2]
    return np.asarray(documents.ids[first:stop]).astype(np.int64)


def scorer_and_documents(name: str, **options: bool) -> tuple[TextScorer, Documents]:
    return scorer(model(name, **options)), corpus(name).documents("held_out")


@torch.no_grad()
def hidden(loaded: Model, ids: Ints, hides: list[int], at: int) -> float:
    """The log-likelihood of a token where some are hidden, by a pass of its own."""
    seen = ids.copy()
    seen[hides] = loaded.vocabulary.role("mask")
    text = loaded.reader().around(seen)
    encoded = loaded.module.encode(packed([text], HERE))
    head = loaded.module.heads["masked_lm"]
    logits = head.logits(encoded.hidden_states[text.own.start + at][None], encoded.table)[0]
    return float(torch.log_softmax(logits, 0)[ids[at]])


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_masked_model_is_asked_with_both_hidden_and_with_one(name: str) -> None:
    scored, documents = scorer_and_documents(name)
    joint_scores = joint(scored, documents, texts=12, device="cpu")
    assert joint_scores is not None
    limit = scored.reader.limit
    numbers, first = pick(documents, texts=12, longest=min(64, limit or 64))
    for row, (number, a) in enumerate(zip(numbers.tolist(), first.tolist(), strict=True)):
        ids, b = sentences(documents, number), a + 1
        alone = [hidden(scored.model, ids, [a, b], at) for at in (a, b)]
        expected = [hidden(scored.model, ids, [at], at) for at in (a, b)]
        assert joint_scores.alone[row] == pytest.approx(alone, abs=1e-9)
        assert joint_scores.given[row] == pytest.approx(expected, abs=1e-9)
    assert joint_scores.own == pytest.approx(joint_scores.alone.sum(1))


@pytest.mark.thorough
def test_a_permutation_model_predicts_by_the_chain_and_hides_what_comes_later() -> None:
    scored, documents = scorer_and_documents("xlnet")
    joint_scores = joint(scored, documents, texts=8, device="cpu")
    assert joint_scores is not None and joint_scores.own == pytest.approx(joint_scores.chain)
    numbers, first = pick(documents, texts=8, longest=min(64, scored.reader.limit or 64))
    ids, a = sentences(documents, int(numbers[0]))[None], first[:1]
    with torch.inference_mode():
        before = pair_nats(scored, ids, a)[0]
        changed = ids.copy()
        changed[0, a[0] + 1] = ids[0, a[0] + 1] % 50 + 60  # another second word
        after = pair_nats(scored, changed, a)[0]
    assert joint_scores.alone[0] == pytest.approx(before[0]) and joint_scores.given[
        0
    ] == pytest.approx(before[1])
    assert before[0, 0] == pytest.approx(after[0, 0], abs=1e-12)  # the first alone never saw it
    assert abs(before[1, 0] - after[1, 0]) > 1e-9


def test_the_chain_and_the_gain_are_those_of_both_orders() -> None:
    scores = JointScores("masked", np.array([[-3.0, -2.0]]), np.array([[-1.0, -1.5]]))
    assert scores.independent == [-5.0] and scores.chain == [((-3 - 1.5) + (-2 - 1.0)) / 2]
    assert scores.gain == scores.chain - scores.independent


def test_words_are_whole_neighbours_in_one_sentence_and_always_the_same() -> None:
    documents = corpus("bert").documents("held_out")
    numbers, first = pick(documents, texts=50, longest=40)
    assert 10 < len(numbers) <= 50 and (np.diff(numbers) > 0).all()
    starts = documents.sentences[numbers].astype(np.int64) + first
    ends = documents.sentences[numbers + 1].astype(np.int64)
    assert (starts + 2 <= ends).all()
    words = np.append(np.asarray(documents.marks) & Mark.WORD > 0, True)
    inside = starts + 2 < ends
    assert words[starts].all() and words[starts + 1].all() and words[starts + 2][inside].all()
    assert not np.isin(documents.ids[starts], documents.vocabulary.special).any()
    again = pick(documents, texts=50, longest=40)
    assert (again[0] == numbers).all() and (again[1] == first).all()
    more, _ = pick(documents, texts=10**6, longest=40)
    assert {*numbers.tolist()} <= {*more.tolist()} and len({*first.tolist()}) > 3
    assert len(pick(documents, texts=50, longest=5)[0]) == 0
