"""The word that errors suggest."""

from __future__ import annotations

import pytest

from clozelab.nearest import counted, nearest


def test_a_word_that_users_try_means_another() -> None:
    assert nearest("gpu", ["cpu", "cuda"]) == "cuda" and nearest("gpu", ["gpt"]) == "gpt"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("sts2", "sst2"), ("sst3", "sst2"), ("sts1", "sts12"), ("", None), ("x", None)],
)
def test_letters_in_the_wrong_order_are_the_likeliest_mistake(word: str, meant: str | None) -> None:
    assert nearest(word, ["sts12", "cola", "sst2"]) == meant


@pytest.mark.parametrize(
    ("word", "meant"),
    [("--voc", "--vocabulary"), ("--out-of", "--out"), ("--v", None)],
)
def test_a_word_that_was_begun_is_the_one_that_was_meant(word: str, meant: str | None) -> None:
    assert nearest(word, ["--on", "--out", "--vocabulary-size", "--vocabulary"]) == meant


def test_one_thing_is_no_plural() -> None:
    counts = [counted(number, "step") for number in (0, 1, 2, 1000)]
    assert counts == ["0 steps", "1 step", "2 steps", "1,000 steps"]
