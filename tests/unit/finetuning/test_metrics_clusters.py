"""Coreference scores: worked examples of the papers, the definitions, and best assignment."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clozelab.finetuning.metrics.classes import Tally
from clozelab.finetuning.metrics.clusters import b_cubed, ceaf, distinct, mentions, muc, scored

METRICS = (muc, b_cubed, ceaf, mentions)


def clusters(text: str) -> list[list[str]]:
    """Clusters of mentions that are letters: "ab cde"."""
    return [list(word) for word in text.split()]


def rates(tally: Tally) -> tuple[float, float]:
    return tally.recall, tally.precision


@st.composite
def partitions(draw: st.DrawFn) -> list[list[str]]:
    """Some of nine letters in up to four clusters."""
    groups = draw(st.lists(st.integers(0, 4), min_size=9, max_size=9))
    pairs = list(zip("abcdefghi", groups, strict=True))
    groups_of_letters = [
        [letter for letter, group in pairs if group == number] for number in range(4)
    ]
    return [cluster for cluster in groups_of_letters if cluster]  # group 4 is mentioned nowhere


def test_the_running_example_of_the_reference_implementation() -> None:
    key, response = clusters("abc defg"), clusters("ab cd fghi")
    # MUC. abc falls into ab|c: 3 - 2; defg into d|fg|e: 4 - 3; of 2 + 3 links. Precision: ab 1,
    # c|d 0, fg|h|i 1, of 1 + 1 + 3.
    assert rates(muc(key, response)) == pytest.approx((40, 40))
    # B³. Recall (2² + 1²)/3 + (1² + 2²)/4 = 35/12 of 7; precision 2²/2 + 2/2 + 2²/4 = 4 of 8.
    assert rates(b_cubed(key, response)) == pytest.approx((100 * 35 / 84, 50))
    # CEAF. abc~ab 4/5 and defg~fghi 4/8: 1.3 of 2 and of 3.
    assert rates(ceaf(key, response)) == pytest.approx((65, 130 / 3))
    # Mentions: a b c d f g of 7 and of 8.
    assert rates(mentions(key, response)) == pytest.approx((600 / 7, 75))
    scores = scored([key], [response])
    bcub = 2 * (35 / 84) * 0.5 / (35 / 84 + 0.5)
    assert scores["conll"] == pytest.approx(100 * (0.4 + bcub + 0.52) / 3)
    assert scores["ceaf_f1"] == pytest.approx(52)


@pytest.mark.parametrize(
    ("key", "response", "expected"),
    [
        ("abcd", "ab cd", (200 / 3, 100)),  # split once: 4 - 2 of 3 links
        ("ab cd", "abcd", (100, 200 / 3)),  # merged
        ("abcd", "ab", (100 / 3, 100)),  # c and d are parts by themselves: 4 - 3 of 3
        ("ab cde fghij", "ab cdefghij", (100, 700 / 8)),  # 1 + 2 + 4 links of 7, of 1 + 7
        ("abc", "abd", (50, 50)),
        ("abcd", "a b c d", (0, 0)),
        ("a b c", "abc", (0, 0)),  # clusters of one have no links to recall
    ],
)
def test_muc_counts_links(key: str, response: str, expected: tuple[float, float]) -> None:
    assert rates(muc(clusters(key), clusters(response))) == pytest.approx(expected)


def test_b_cubed_tells_apart_what_muc_does_not() -> None:
    key = clusters("12345 67 89ABC")
    # Both join two clusters: MUC finds 9 of 9 links and says 10.
    small, large = clusters("12345 6789ABC"), clusters("1234589ABC 67")
    for response in (small, large):
        assert rates(muc(key, response)) == pytest.approx((100, 90))
        assert b_cubed(key, response).recall == 100
    # Precision: 5 + (2² + 5²)/7 = 64/7 of 12; (5² + 5²)/10 + 2 = 7 of 12.
    assert b_cubed(key, small).precision == pytest.approx(100 * 64 / 84)
    assert b_cubed(key, large).precision == pytest.approx(100 * 7 / 12)


@pytest.mark.parametrize(
    ("response", "expected"),
    [  # key a, bc, def: the cases that the reference scorer is tested by
        ("a bc def", (100, 100)),
        ("a de", (60, 90)),  # 1 + 4/5 of 3 and of 2
        ("a bcx defy z", (88.571, 66.429)),  # 1 + 4/5 + 6/7 of 3 and of 4
        ("a bcx dy z", (73.333, 55)),  # 1 + 4/5 + 2/5
        ("a bcxB dy z", (68.889, 51.667)),  # 1 + 4/6 + 2/5
        ("a bcx dy Bz", (73.333, 55)),
        ("a bcxb dy z", (73.333, 55)),  # b twice in a cluster counts once
        ("a bcx dy bz", (73.333, 55)),  # and b in two clusters is in the first
        ("a bcx dy bbbbbbbbbbz", (73.333, 55)),
    ],
)
def test_ceaf_agrees_with_the_reference_scorer(
    response: str, expected: tuple[float, float]
) -> None:
    scores = scored([clusters("a bc def")], [clusters(response)])
    assert (scores["ceaf_recall"], scores["ceaf_precision"]) == pytest.approx(expected, abs=1e-3)


def test_clusters_of_one_count_as_given() -> None:
    key, response = clusters("ab c"), clusters("ab d e")
    # B³: recall 2 of 3, precision 2 of 4; CEAF: 1 of 2 and of 3. Nothing is dropped or added.
    assert rates(b_cubed(key, response)) == pytest.approx((200 / 3, 50))
    assert rates(ceaf(key, response)) == pytest.approx((50, 100 / 3))


def test_documents_add_up_before_they_are_divided() -> None:
    keys, responses = [clusters("abcd"), clusters("ab")], [clusters("abc"), clusters("ac")]
    # MUC recall: 2 of 3 links and 0 of 1, so 2 of 4 and not the mean of 2/3 and 0.
    scores = scored(keys, responses)
    assert scores["muc_recall"] == pytest.approx(50)
    assert scores["muc_precision"] == pytest.approx(200 / 3)  # 2 of 2 and 0 of 1
    # A letter in another document is another mention.
    assert scored([clusters("ab"), []], [[], clusters("ab")])["mentions_f1"] == 0


def test_perfect_is_a_hundred_and_nothing_is_nothing() -> None:
    key = clusters("abc de f")
    assert all(score == pytest.approx(100) for score in scored([key], [key]).values())
    for pair in ([[key], [[]]], [[[]], [key]], [[[]], [[]]], [[], []]):
        assert set(scored(*pair).values()) == {0}


def test_mentions_given_twice_stay_where_they_came_first() -> None:
    assert distinct([["a", "b", "a"], [], ["b"], ["c", "b"]]) == [["a", "b"], ["c"]]


@given(partitions(), partitions())
def test_scores_are_what_the_definitions_say(
    key: list[list[str]], response: list[list[str]]
) -> None:
    assert b_cubed(key, response).recalled == pytest.approx(b_cubed_by_mention(key, response))
    assert muc(key, response).recalled == muc_by_parts(key, response)
    assert ceaf(key, response).recalled == pytest.approx(ceaf_by_trying(key, response))


@given(partitions(), partitions(), st.randoms())
def test_order_does_not_matter_and_sides_swap_precision_for_recall(  # type: ignore[no-untyped-def]
    key: list[list[str]], response: list[list[str]], chance
) -> None:
    mixed = [chance.sample(cluster, len(cluster)) for cluster in chance.sample(key, len(key))]
    for metric in METRICS:
        tally = metric(key, response)
        assert rates(metric(mixed, response)) == pytest.approx(rates(tally))
        assert rates(metric(response, mixed)) == pytest.approx(rates(tally)[::-1])
        assert 0 <= tally.recall <= 100 + 1e-9 and 0 <= tally.precision <= 100 + 1e-9


@given(partitions(), partitions())
def test_no_other_pairing_of_clusters_is_worth_more(
    key: list[list[str]], response: list[list[str]]
) -> None:
    assume(max(len(key), len(response)) < 7)
    likeness = np.array(
        [[2 * len({*a} & {*b}) / (len(a) + len(b)) for b in response] for a in key]
    ).reshape(len(key), len(response))
    assert ceaf(key, response).recalled == pytest.approx(highest(likeness))


def highest(scores: np.ndarray) -> float:
    if scores.shape[0] > scores.shape[1]:
        return highest(scores.T)
    rows = range(len(scores))
    orders = permutations(range(scores.shape[1]), len(scores))
    return max(float(sum(scores[row, order[row]] for row in rows)) for order in orders)


def b_cubed_by_mention(key: list[list[str]], response: list[list[str]]) -> float:
    total = 0.0
    for mention in (mention for cluster in key for mention in cluster):
        mine = next(set(cluster) for cluster in key if mention in cluster)
        theirs = next((set(cluster) for cluster in response if mention in cluster), set())
        total += len(mine & theirs) / len(mine)
    return total


def muc_by_parts(key: list[list[str]], response: list[list[str]]) -> int:
    links = 0
    for cluster in key:
        parts = {
            next((n for n, other in enumerate(response) if mention in other), mention)
            for mention in cluster
        }
        links += len(cluster) - len(parts)
    return links


def ceaf_by_trying(key: list[list[str]], response: list[list[str]]) -> float:
    likeness = [
        [2 * len({*own} & {*other}) / (len(own) + len(other)) for other in response] for own in key
    ]
    return highest(np.array(likeness).reshape(len(key), len(response)))
