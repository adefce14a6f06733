"""Likelihoods of texts, each compared with a plain loop over the same model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.peer_models import shaken
from support.random_models import TEXTS, corpus, model

from clozelab.contracts import Ints
from clozelab.masking.token import NoMasking
from clozelab.models.build import build
from clozelab.models.fill import fill
from clozelab.models.model import Model
from clozelab.models.reader import Text, packed
from clozelab.objectives import CausalLm, NextSentence
from clozelab.scoring import likelihood
from clozelab.scoring.likelihood import Likelihoods, likelihoods

torch.set_num_threads(1)
HERE = torch.device("cpu")
MASKED = ["bert", "roberta", "albert", "modernbert", "mosaicbert", "neobert", "diffusion"]


def of_text(scores: Likelihoods, number: int) -> list[float]:
    return scores.nats[scores.pieces.text(number)].tolist()


def ids_of(scores: Likelihoods, number: int) -> Ints:
    return np.asarray(scores.pieces.columns["ids"][scores.pieces.text(number)])


@torch.no_grad()
def hidden_one_by_one(loaded: Model, ids: Ints, hides: Callable[[int], Sequence[int]]) -> Any:
    """The pseudo-log-likelihood by its definition: a pass for every token."""
    nats, head = [], loaded.module.heads["masked_lm"]
    for at, number in enumerate(ids.tolist()):
        seen = ids.copy()
        for hidden in hides(at):
            seen[hidden] = loaded.vocabulary.role("mask")
        text = loaded.reader().around(seen)
        encoded = loaded.module.encode(packed([text], HERE))
        logits = head.logits(encoded.hidden_states[text.own.start + at][None], encoded.table)[0]
        nats.append(float(torch.log_softmax(logits, 0)[number]))
    return nats


@pytest.mark.parametrize("name", MASKED)
def test_each_token_is_hidden_alone(name: str) -> None:
    loaded = model(name)
    scores = likelihoods(loaded, TEXTS, method="original", device="cpu")
    for number in range(len(TEXTS)):
        looped = hidden_one_by_one(loaded, ids_of(scores, number), lambda at: [at])
        assert of_text(scores, number) == pytest.approx(looped, abs=1e-9)
        assert scores.sums[number] == pytest.approx(sum(looped), abs=1e-9)


@pytest.mark.parametrize("name", [*MASKED, "causal_then_masked", "gpt_bert"])
def test_a_blank_is_filled_with_the_probability_that_its_token_is_scored_with(name: str) -> None:
    loaded = model(name)
    scores = likelihoods(loaded, ["The queen was here."], method="original", device="cpu")
    (blank,) = fill(loaded, "The [MASK] was here.", top=10**6, device="cpu").blanks
    queen = ids_of(scores, 0)[1]
    (probability,) = (guess.probability for guess in blank if guess.number == queen)
    assert math.log(probability) == pytest.approx(of_text(scores, 0)[1], abs=1e-9)


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_a_last_blank_is_filled_as_it_is_scored_from_the_left(name: str) -> None:
    """BERT reads some blocks causally here, and has no other language model."""
    loaded = model(name)
    if name == "bert":
        recipe = replace(
            loaded.recipe,
            masking=NoMasking(),
            objectives=(CausalLm(head="transform"), NextSentence()),
            schedule=replace(loaded.recipe.schedule, causal=((0.5, 1.0),)),
        )
        module: Any = shaken(build(recipe, recipe.tokenizer.vocabulary, seed=0))
        loaded = Model("a causal BERT", recipe, loaded.tokenizer, module)
    scores = likelihoods(loaded, ["The queen was here"], device="cpu")
    filled = fill(loaded, "The queen was [MASK]", top=10**6, device="cpu")
    assert scores.method == "causal" and filled.left_only
    here = ids_of(scores, 0)[-1]
    (probability,) = (guess.probability for guess in filled.blanks[0] if guess.number == here)
    assert math.log(probability) == pytest.approx(of_text(scores, 0)[-1], abs=1e-9)


def test_a_model_computes_as_before_after_it_was_scored_in_half_precision() -> None:
    loaded, precision = model("bert"), torch.get_float32_matmul_precision()
    exact = likelihoods(loaded, TEXTS, device="cpu").sums
    half = likelihoods(loaded, TEXTS, device="cpu", precision="bf16").sums
    assert half == pytest.approx(exact, rel=0.05) and not np.array_equal(half, exact)
    assert loaded.module.encoder.precision is None
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_the_rest_of_a_word_is_hidden_with_its_pieces(name: str) -> None:
    loaded = model(name)
    scores = likelihoods(loaded, TEXTS, device="cpu")
    assert scores.method == "within_word_l2r"
    split = 0
    for number in range(len(TEXTS)):
        words = scores.pieces.words[scores.pieces.text(number)].tolist()
        split += len(words) - len(set(words))

        def rest(at: int, words: list[int] = words) -> list[int]:
            return [j for j in range(at, len(words)) if words[j] == words[at]]

        looped = hidden_one_by_one(loaded, ids_of(scores, number), rest)
        assert of_text(scores, number) == pytest.approx(looped, abs=1e-9)
    assert split > 5  # or the two methods would be one
    alone = likelihoods(loaded, TEXTS, method="original", device="cpu")
    assert not np.allclose(alone.sums, scores.sums)


@torch.no_grad()
def test_a_causal_model_has_the_sum_of_its_log_softmax() -> None:
    loaded = model("gpt")
    scores = likelihoods(loaded, TEXTS, device="cpu")
    start = loaded.vocabulary.role("eod")
    for number in range(len(TEXTS)):
        ids = ids_of(scores, number)
        read = packed([loaded.reader().around(np.concatenate([[start], ids]))], HERE)
        encoded = loaded.module.encode(read)
        logits = loaded.module.heads["causal_lm"].logits(encoded.hidden_states, encoded.table)
        nats = torch.log_softmax(logits[:-1], 1)[torch.arange(len(ids)), torch.from_numpy(ids)]
        assert of_text(scores, number) == pytest.approx(nats.tolist(), abs=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("words", [10**6, 50])
def test_elmo_reads_from_both_ends(words: int) -> None:
    """What stands before a word is encoded alone, and so is what stands behind it.

    Words that the softmax has no row for are all unknown, which is its first.
    """
    few = (f"objectives.0.words={words}", "objectives.0.samples=50")
    loaded, spelling = model("elmo", *few), corpus("elmo").spelling
    scores = likelihoods(loaded, TEXTS, spelling=spelling, device="cpu")
    assert scores.method == "two_directions"
    text_scorer = likelihood.scorer(loaded, spelling=spelling)
    head = loaded.module.heads["bidirectional_lm"]
    for number in range(len(TEXTS)):
        row = text_scorer.reader.with_special_tokens(scores.pieces.part(scores.pieces.text(number)))
        numbers = np.array(row.columns["ids"], dtype=np.int64)
        numbers[numbers >= len(head.bias)] = 0  # type: ignore[arg-type]
        nats = []
        for at in range(row.first.start, row.first.stop):
            before = {name: values[:at] for name, values in row.columns.items()}
            behind = {name: values[at + 1 :] for name, values in row.columns.items()}
            left = loaded.module.encode(alone(before)).hidden_states[-1].chunk(2)[0]
            right = loaded.module.encode(alone(behind)).hidden_states[0].chunk(2)[1]
            both = [
                torch.log_softmax(head.logits(x[None])[0], 0)[numbers[at]] for x in (left, right)
            ]
            nats.append(float(sum(both)) / 2)
        assert of_text(scores, number) == pytest.approx(nats, abs=1e-9)
    ids = np.asarray(scores.pieces.columns["ids"], dtype=np.int64)
    assert (ids > 2).sum() > 10  # words that the corpus has
    assert (ids >= words).any() == (words == 50)


def alone(columns: dict[str, Any]) -> Any:
    size = len(columns["ids"])
    text = Text(columns, slice(0, size), None, np.ones(size, bool), np.zeros((size, 2), np.int64))
    return packed([text], HERE)


def test_xlnet_predicts_in_the_natural_order() -> None:
    """A token's likelihood hangs on nothing behind it but the length and the marks."""
    loaded = model("xlnet")
    scores = likelihoods(loaded, TEXTS, device="cpu")
    assert scores.method == "permutation"
    text_scorer = likelihood.scorer(loaded)
    ids = ids_of(scores, 1)
    for at in (0, 3, len(ids) - 1):
        changed = ids.copy()
        changed[at:] = np.roll(ids, 1)[at:]
        changed[at] = ids[at]
        pieces = scores.pieces._replace(
            columns={"ids": changed}, starts=np.array([0, len(ids)]), words=np.arange(len(ids))
        )
        (_, again) = (
            pieces,
            likelihood.drained(likelihood.follow(text_scorer, pieces, device="cpu")),
        )
        assert again.nats[: at + 1] == pytest.approx(of_text(scores, 1)[: at + 1], abs=1e-9)
        if at < len(ids) - 2:
            assert not np.allclose(again.nats[at + 1 :], of_text(scores, 1)[at + 1 :])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bert", "gpt", "xlnet", "elmo"])
def test_texts_do_not_depend_on_one_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, among others, and in small batches."""
    loaded = model(name)
    spelling = corpus(name).spelling if name == "elmo" else None
    together = likelihoods(loaded, TEXTS * 2, spelling=spelling, device="cpu")
    monkeypatch.setattr(likelihood, "_CPU_TOKENS", 40)
    monkeypatch.setitem(likelihood._LOGITS, "cpu", 1)
    for number, text in enumerate(TEXTS):
        (alone,) = likelihoods(loaded, [text], spelling=spelling, device="cpu").sums
        assert alone == pytest.approx(together.sums[number], abs=1e-9)
        assert alone == pytest.approx(together.sums[number + len(TEXTS)], abs=1e-9)
