"""The word that errors suggest."""

from __future__ import annotations

import pytest

from clozelab.nearest import nearest


def test_a_word_that_users_try_means_another() -> None:
    assert nearest("gpu", ["cpu", "cuda"]) == "cuda" and nearest("gpu", ["gpt"]) == "gpt"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("sts2", "sst2"), ("sst3", "sst2"), ("sts1", "sts12"), ("", None), ("x", None)],
)
def test_letters_in_the_wrong_order_are_the_likeliest_mistake(word: str, meant: str | None) -> None:
    assert nearest(word, ["sts12", "cola", "sst2"]) == meant
