"""Choosing a continuation: groups of blocks, scores that go with their texts, what is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.task_examples import CLS, SEP, FakeReader, Small, batch, rows

from clozelab.contracts import Targets
from clozelab.finetuning.examples import Choice, Picked
from clozelab.finetuning.kinds.choose import Choose

torch.set_num_threads(1)
READER = FakeReader()
letters = st.text("abcdefg ", min_size=1, max_size=40)


@max_examples(40)
@given(
    first=letters,
    seconds=st.lists(letters, min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
    right=st.integers(0, 1),
)
def test_permuting_choices_permutes_scores_and_keeps_the_loss(
    first: str, seconds: list[str], order: np.random.Generator, right: int
) -> None:
    kind = Choose(4)
    turned = list(range(len(seconds)))
    order.shuffle(turned)
    examples = [
        Choice("x", first, tuple(seconds), right),
        Choice("y", first, tuple(seconds[n] for n in turned), turned.index(right)),
    ]
    model, tokenized = Small(kind), kind.tokenize(examples, READER)
    micro_batch = batch(tokenized, kind.name, idle=2)
    (logits,) = model.logits(micro_batch)
    torch.testing.assert_close(logits[1, : len(turned)], logits[0, turned], rtol=0, atol=1e-12)
    plain, permuted = kind.decode(tokenized, rows(tokenized, model.predict(micro_batch)), examples)
    assert [plain.probabilities[n] for n in turned] == pytest.approx(list(permuted.probabilities))
    losses = [
        model(batch(kind.tokenize([example], READER), kind.name))["loss"].item()
        for example in examples
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_group_has_a_slot_for_every_choice_there_could_be() -> None:
    kind = Choose(4)
    examples = [
        Choice("x", "a", ("b", "c", "d", "e"), 2),
        Choice("y", "a", ("b", "c"), 1),
        Choice("z", "a", ("b",)),
    ]
    tokenized = kind.tokenize(examples, READER)
    assert tokenized.groups.tolist() == [0, 4, 6, 7]
    assert tokenized.owners.tolist() == [0, 1, 2]
    assert np.diff(tokenized.targets.starts).tolist() == [1, 1, 1, 1, 1, 3, 4]
    none = Targets.IGNORED
    assert tokenized.targets.columns["labels"].tolist() == [2, *[none] * 3, 1, *[none] * 7]
    assert tokenized.targets.columns["exists"].tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0]


def test_a_choice_that_is_not_there_has_no_share_and_no_gradient() -> None:
    kind = Choose(4)
    tokenized = kind.tokenize([Choice("x", "a b", ("c d", "e"), 1)], READER)
    model, micro_batch = Small(kind), batch(tokenized, kind.name, idle=5)
    (logits,) = model.logits(micro_batch)
    assert logits.shape == (2, 4) and torch.isfinite(logits).all()
    assert logits[0].softmax(0)[2:].tolist() == [0.0, 0.0]
    wanted = -logits[0, :2].log_softmax(0)[1]
    sums = model(micro_batch)
    assert sums["loss"].item() == pytest.approx(wanted.item(), rel=1e-12)
    assert sums["count"].item() == 1
    assert model.head.labelled(micro_batch.targets["choose"]).tolist() == [True, False]
    scores = model.predict(micro_batch).requires_grad_()
    assert scores.shape == (9, 1)
    (grad,) = torch.autograd.grad(model.head.loss((logits,), micro_batch.targets["choose"])["loss"],
                                  logits)  # fmt: skip
    assert grad[0, 2:].tolist() == [0.0, 0.0] and not grad[1].any()


def test_a_continuation_keeps_its_last_tokens_and_the_text_its_first() -> None:
    kind = Choose(2, limit=4)
    reader = FakeReader(length=12, piece=9)
    tokenized = kind.tokenize([Choice("x", "a b c d e f g h", ("p q r s t u", "v"), 0)], reader)
    known = {reader.pieces([letter]).columns["ids"][0]: letter for letter in "abcdefghpqrstuv"}
    known |= {CLS: "[", SEP: "|"}
    spelled = "".join(known[number] for number in tokenized.columns["ids"])
    assert [spelled[:12], spelled[12:]] == ["[abcde|rstu|", "[abcdefgh|v|"]
    assert tokenized.counts.numbers == {
        "texts truncated to the maximum length": 1,
        "choices truncated to fit": 1,
    }
    tight = Choose(2).tokenize([Choice("x", "a b", ("p q r s t u v a b c",), 0)], reader)
    assert "".join(known[number] for number in tight.columns["ids"]) == "[|qrstuvabc|"


def test_scores_count_the_right_choices() -> None:
    kind = Choose(3)
    truth = [0, 1, 2, None, 0]
    examples = [Choice(str(n), "a", ("b", "c", "d"), label) for n, label in enumerate(truth)]
    scores = kind.score([Picked(label, ()) for label in (0, 1, 1, 2, 0)], examples)
    assert (
        scores == {"accuracy": pytest.approx(75.0)} and kind.selects(scores) == scores["accuracy"]
    )
