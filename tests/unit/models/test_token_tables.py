"""Rows of a table for another vocabulary: kept bit for bit, made of others, or drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.random_models import model
from support.texts import copy

from clozelab.errors import UserError
from clozelab.models.model import Origin
from clozelab.models.tables import RowSource, is_table, sources, with_rows
from clozelab.models.uses import sparsemax
from clozelab.models.vocabulary import _with_tokenizer, figures
from clozelab.text.extension import extended

WORDS = "encoder.embeddings.words.weight"


def extended_tables(
    rows: list[RowSource], initialisation: Any, **tables: torch.Tensor
) -> dict[str, Any]:
    return with_rows(tables, rows, initialisation=initialisation, seed=3)


def test_special_tokens_that_get_other_ids_keep_their_rows() -> None:
    old = copy("unigram")
    old.add_special_tokens(["<extra>"])
    new = extended(old, ["▁plasmation"])
    rows = sources(old, new, initialisation="mean")
    assert new.token_to_id("<extra>") == old.token_to_id("<extra>") + 1
    assert rows[new.token_to_id("<extra>")] == ([old.token_to_id("<extra>")], [1.0])
    pieces = [token.id for token in old.model.tokenize("▁plasmation")]
    assert rows[new.token_to_id("▁plasmation")].ids == pieces


def test_a_row_that_is_drawn_is_like_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.tensor([[2.0, 0.0], [1.8, 0.3]])
    table = torch.randn(4000, 2, generator=generator) @ mixing.T + torch.tensor([5.0, -1.0])
    bias = torch.randn(4000, generator=generator) * 3 + 7
    new_tables = extended_tables(
        [RowSource([], [])] * 20_000, "normal", **{WORDS: table, "heads.masked_lm.bias": bias}
    )
    drawn = new_tables[WORDS]
    torch.testing.assert_close(drawn.mean(0), table.mean(0), rtol=0, atol=0.06)
    torch.testing.assert_close(drawn.T.cov(), table.T.cov(), rtol=0.06, atol=0)
    assert new_tables["heads.masked_lm.bias"].std() == pytest.approx(3, rel=0.05)
    plain = extended_tables(
        [RowSource([], [])] * 20_000, "random", **{WORDS: table, "heads.masked_lm.bias": bias}
    )
    assert plain[WORDS].std() == pytest.approx(0.02, rel=0.05)
    assert not plain["heads.masked_lm.bias"].any()


def test_draws_are_the_same_for_a_seed_and_differ_between_seeds_and_tables() -> None:
    table = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    rows = [RowSource([1], [1.0]), RowSource([], []), RowSource([2, 3], [0.25, 0.75])]
    both = {WORDS: table, "heads.masked_lm.table": table, "encoder.ffn.0.norm.bias": table}
    first, second = (extended_tables(rows, "normal", **both) for _ in range(2))
    assert torch.equal(first[WORDS], second[WORDS])
    other = with_rows(both, rows, initialisation="normal", seed=4)
    assert not torch.equal(first[WORDS][1], other[WORDS][1])
    assert not torch.equal(first[WORDS][1], first["heads.masked_lm.table"][1])
    assert torch.equal(first[WORDS][0], table[1])
    torch.testing.assert_close(first[WORDS][2], 0.25 * table[2] + 0.75 * table[3])
    assert first["encoder.ffn.0.norm.bias"] is table


def test_words_begin_as_those_that_are_used_alike() -> None:
    old = copy("wordpiece")
    new = extended(old, ["plasmation"])
    draw = np.random.default_rng(0)
    some = {"a": ["old", "wide", "slow", "cold", "deep"], "b": ["said", "they", "that", "went"]}
    lines = []
    for _ in range(400):
        near = draw.choice(some["a"], 3)
        lines.append(f"{near[0]} {draw.choice(['river', 'plasmation'])} {near[1]} {near[2]}")
        near = draw.choice(some["b"], 3)
        lines.append(f"{near[0]} {draw.choice(['man', 'people'])} {near[1]} {near[2]}")
    rows = sources(old, new, initialisation="focus", texts=lines)
    ids, weights = rows[new.token_to_id("plasmation")]
    best = old.id_to_token(ids[int(np.argmax(weights))])
    assert best == "river" and sum(weights) == pytest.approx(1)
    rare = sources(old, new, initialisation="focus", texts=["nothing of it"])
    mean = sources(old, new, initialisation="mean")
    assert rare == mean


def test_the_padding_that_positions_are_counted_from_keeps_its_id() -> None:
    loaded = model("roberta")  # whose positions begin behind it
    rows = [RowSource([number], [1.0]) for number in (1, 0, *range(2, loaded.vocabulary.size))]
    with pytest.raises(UserError, match="counted from the padding id, 1, which would change"):
        _with_tokenizer(loaded, loaded.tokenizer, rows)


def test_a_model_has_the_bytes_of_the_weights_that_it_came_with() -> None:
    loaded = model("bert")
    half = replace(loaded, origin=Origin("bert", (), True, "bfloat16", "bert"))
    sizes = figures([loaded, half])
    assert [size.bytes / size.parameters for size in sizes] == [4, 2]


def test_sparsemax_is_the_nearest_point_of_the_simplex() -> None:
    assert sparsemax(np.array([0.1, 2.0, 0.3])).tolist() == [0, 1, 0]
    some = sparsemax(np.array([0.5, 0.4, -1.0]))
    assert some == pytest.approx([0.55, 0.45, 0])


@pytest.mark.parametrize(
    ("name", "has_rows"),
    [
        (WORDS, True),
        ("encoder.embeddings.delta", True),
        ("heads.generator.encoder.embeddings.words.weight", True),
        ("heads.generator.head.bias", True),
        ("heads.masked_lm.bias", True),
        ("heads.masked_lm.table", True),
        ("idle_bias", True),
        ("heads.masked_lm.dense.bias", False),
        ("heads.next_sentence.classifier.bias", False),
        ("heads.bidirectional_lm.bias", False),
        ("encoder.embeddings.positions.weight", False),
        ("pooler.bias", False),
    ],
)
def test_which_tensors_have_a_row_for_each_token(name: str, has_rows: bool) -> None:
    assert is_table(name) is has_rows
