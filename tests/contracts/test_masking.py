"""What every masking strategy promises, whatever the blocks (cards P3, P5, P6, P8)."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.masked_blocks import (
    STRAY,
    flags,
    groups,
    hide,
    make_blocks,
    per_block,
    ragged,
    with_units,
)

from clozelab.contracts import Blocks, Masking
from clozelab.keys import key
from clozelab.masking import PARTS
from clozelab.masking.knowledge import LEVELS, Knowledge
from clozelab.masking.permutation_targets import PermutationTargets
from clozelab.masking.token import NoMasking, Rarity, Token, UniformRate
from clozelab.masking.words import Ngram, SpanMasking, WholeWord
from clozelab.testing import check_alone, check_hidden


@dataclass(frozen=True)
class Example:
    """A part, the most it may hide in a block of (length, content), and what it is excused from."""

    part: Masking
    most: Callable[[int, int], int]
    # [B] how far a block may miss its budget, either way
    slack: Callable[[Masking, Blocks, int], np.ndarray] = lambda part, blocks, draw: np.zeros(
        len(blocks), dtype=int
    )
    some: bool = True  # hides at least one token wherever it may
    alone: bool = True  # a block's choice does not hang on its batch-mates
    specials: bool = False  # may hide specials


def bert(length: int, content: int) -> int:
    return max(1, round(0.15 * length))


def content15(length: int, content: int) -> int:
    return max(1, round(0.15 * content))


def half(length: int, content: int) -> int:
    return max(1, round(0.5 * length))


def fairseq(length: int, content: int) -> int:
    return max(1, floor(0.15 * length) + 1)


def capped(length: int, content: int) -> int:
    return min(20, bert(length, content))


def whole_content(length: int, content: int) -> int:
    return content


def a_unit(part: Masking, blocks: Blocks, draw: int) -> np.ndarray:
    """Less than the longest unit of the level that each block is hidden at."""
    assert isinstance(part, Knowledge)
    bits = [LEVELS[level] for level in part.levels]
    units = [groups(blocks, bit) for bit in bits]
    longest = [
        max((len(unit) for unit in units[level][row]), default=1) if bits[level] else 1
        for row, level in enumerate(part.picked(blocks, draw))
    ]
    return np.array(longest, dtype=int) - 1


EXAMPLES: dict[str, list[Example]] = {
    "token": [
        Example(Token(), bert),
        Example(Token(over="content", cap=20), lambda n, c: min(20, content15(n, c))),
        Example(Token(mask_rate=0.9), lambda n, c: max(1, round(0.9 * n))),
        Example(Token(count="floor"), fairseq),
        Example(Token(count="floor", specials=True), fairseq, specials=True),
        Example(Token(count="bernoulli"), whole_content, some=False),
    ],
    "whole_word": [
        Example(WholeWord(), bert),
        Example(WholeWord(over="content"), content15),
        Example(WholeWord(cap=20), capped),
        Example(WholeWord(mask_rate=0.5, words="segmenter"), half),
        Example(WholeWord(compat="google"), bert),
    ],
    "ngram": [
        Example(Ngram(), bert),
        Example(Ngram(longest=6, favour="long", mask_rate=0.5), half),
        Example(Ngram(compat="albert", over="content"), content15),
        Example(Ngram(longest=1, cap=20), capped),
    ],
    "span": [
        Example(SpanMasking(), lambda n, c: ceil(0.15 * c)),
        Example(SpanMasking(ends="whole"), lambda n, c: ceil(0.15 * c)),
        Example(SpanMasking(mask_rate=0.7, p=0.5, longest=3), lambda n, c: ceil(0.7 * c)),
        Example(SpanMasking(mask_rate=0.7, ends="whole", longest=1), lambda n, c: ceil(0.7 * c)),
    ],
    "knowledge": [
        Example(Knowledge(), bert, a_unit),
        Example(Knowledge(levels={"entity": 1.0}, cap=20), capped, a_unit),
        Example(Knowledge(levels={"word": 1.0, "phrase": 2.0}, over="content"), content15, a_unit),
        Example(Knowledge(pick="epoch"), bert, a_unit),
        Example(Knowledge(stages=(0.2, 0.3, 0.5)).stage(0.4), bert, a_unit),
        Example(Knowledge(choose="bernoulli"), whole_content, some=False),
    ],
    "partial": [  # choices that fall on specials are dropped, so that none may be left
        Example(PermutationTargets(), lambda n, c: int(0.1667 * n), some=False),
        Example(PermutationTargets(unit="piece"), lambda n, c: int(0.1667 * n), some=False),
        Example(
            PermutationTargets(mask_rate=0.5, longest=2, context=2), lambda n, c: n // 2, some=False
        ),
    ],
    "rarity": [
        Example(Rarity(), lambda n, c: ceil(0.15 * n)),
        Example(Rarity(mask_rate=0.5, smoothing=0.0), lambda n, c: ceil(0.5 * n)),
        Example(Rarity(scope="batch"), whole_content, some=False, alone=False),
    ],
    "uniform_rate": [Example(UniformRate(), whole_content)],
    "nothing": [Example(NoMasking(), lambda n, c: 0, some=False)],
}
PINNED = {
    "token": "799401960d72caf8",
    "whole_word": "bbd91b47a3d0a7aa",
    "ngram": "68aaed870f32a1ee",
    "span": "805395f855097b00",
    "knowledge": "12a73e3d03a0f0ea",
    "partial": "22b3d7c323e93037",
    "rarity": "50cd93cd01bcd2a6",
    "uniform_rate": "a11445897ae2180b",
    "nothing": "e4a6a0577479b2b4",
}
ALL = [
    pytest.param(example, id=f"{name}-{number}")
    for name, examples in EXAMPLES.items()
    for number, example in enumerate(examples)
]


def test_every_part_has_an_example_of_its_own_type() -> None:
    assert set(EXAMPLES) == set(PARTS)
    for name, examples in EXAMPLES.items():
        assert examples
        assert {type(example.part) for example in examples} == {PARTS[name]}


@pytest.mark.parametrize("example", ALL)
@max_examples(25)
@given(blocks=ragged(), draw=st.integers(0, 2**64 - 1))
def test_spans_are_sorted_disjoint_inside_one_block_and_the_same_again(
    example: Example, blocks: Blocks, draw: int
) -> None:
    check_hidden(example.part, blocks, draw)


@pytest.mark.parametrize("example", ALL)
@max_examples(25)
@given(blocks=ragged(), draw=st.integers(0, 2**64 - 1))
def test_hides_something_never_a_special_and_never_over_the_budget(
    example: Example, blocks: Blocks, draw: int
) -> None:
    chosen = flags(blocks, hide(example.part, blocks, draw))
    if not example.specials:
        assert not (chosen & blocks.fixed).any()
    counts = per_block(blocks, chosen)
    contents = per_block(blocks, ~blocks.fixed)
    slacks = example.slack(example.part, blocks, draw)
    for length, content, count, slack in zip(blocks.lengths, contents, counts, slacks, strict=True):
        most = example.most(int(length), int(content))
        assert count <= most + slack
        assert count >= (content > 0) * (most > slack) * example.some


@pytest.mark.parametrize("example", [e for e in ALL if e.values[0].alone])
@max_examples(25)
@given(blocks=ragged(), draw=st.integers(0, 2**64 - 1), data=st.data())
def test_a_block_keeps_its_choice_alone_in_any_order_and_among_any_mates(
    example: Example, blocks: Blocks, draw: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(blocks))))
    rows = list(order[: data.draw(st.integers(1, len(blocks)))])
    check_alone(example.part, blocks, draw, rows=rows)


@pytest.mark.parametrize("example", [e for e in ALL if "nothing" not in str(e.id)])
def test_keys_and_block_numbers_of_long_blocks_give_different_choices(example: Example) -> None:
    twins = with_units(make_blocks([[1, 2, 1] * 25] * 12))
    seen, whole = set(), 0
    for copy in range(10):
        hidden = hide(example.part, twins, key(0, "mask", copy))
        counts = per_block(twins, flags(twins, hidden))
        for row in range(len(twins)):
            if counts[row] == 100:  # all there is: one choice, whatever the key
                whole += 1
            else:
                seen.add(_spans(twins, hidden.spans, row).tobytes())
    assert len(seen) == 10 * len(twins) - whole
    assert whole < 5


@pytest.mark.parametrize("name", list(PARTS))
def test_choices_never_change_between_versions(name: str) -> None:
    """Every run's masks change where this changes: then say so in the CHANGELOG."""
    digest = blake2b(digest_size=8)
    for example in EXAMPLES[name]:
        hidden = hide(example.part, _pinned(), 7)
        digest.update(hidden.spans.astype("<i8").tobytes())
        if hidden.order is not None:
            digest.update(hidden.order.astype("<i8").tobytes())
    assert digest.hexdigest() == PINNED[name]


@pytest.mark.parametrize("example", ALL)
def test_no_blocks_hide_nothing(example: Example) -> None:
    assert len(hide(example.part, make_blocks([])).spans) == 0


def _spans(blocks: Blocks, spans: np.ndarray, row: int) -> np.ndarray:
    """The spans inside one block, counted from its beginning."""
    first, last = blocks.starts[row], blocks.starts[row + 1]
    return spans[(spans[:, 0] >= first) & (spans[:, 0] < last)] - first


def _pinned() -> Blocks:
    prose = [1, 2, 1, 3, 1, 1, 4, 1] * 12
    return with_units(
        make_blocks([prose, [60], [STRAY, 2, 0, STRAY, 1, 1], [], [1], [*prose, 0, 30, 1]])
    )
