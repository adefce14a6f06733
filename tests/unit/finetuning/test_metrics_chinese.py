"""CMRC 2018: cases worked by hand from the rules of its script."""

from __future__ import annotations

from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozelab.finetuning.metrics.chinese import CHINESE, cmrc, normalise, overlap, segments

TEXT = st.text(alphabet="北京大学，。a1 .", max_size=12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("《北京》、「大学」。", ["北", "京", "大", "学"]),
        ("1998年5月", ["1998", "年", "5", "月"]),
        ("NBA总决赛", ["nba", "总", "决", "赛"]),
        ("约3.5%的GDP", ["约", "3.5", "%", "的", "gdp"]),
        ("10,000人, 共5,人", ["10,000", "人", ",", "共", "5", ",", "人"]),
        ("New York市", ["new", "york", "市"]),
        ("HO(O)酸.", ["ho", "(", "o", ")", "酸", "."]),
        ("U.S.A.人", ["u.s.a", ".", "人"]),
        ("等...等", ["等", "...", "等"]),
        ("x-y：1+1=2", ["xy112"]),  # marks go first, and what they parted grows together
        ("1—2米", ["1", "—", "2", "米"]),
        ("…‘【】", ["…‘【】"]),  # marks that the script does not know
        ("傳統漢字", ["傳", "統", "漢", "字"]),
        ("，。", []),
    ],
)
def test_a_text_is_cut_into_characters_and_words(text: str, expected: list[str]) -> None:
    assert segments(text) == expected


def test_overlap_goes_by_the_longest_stretch_not_by_bags() -> None:
    # 北京大学 and 大学北京: the longest shared stretch is 2 of 4 and of 4.
    assert overlap("北京大学", "大学北京") == pytest.approx(0.5)
    # 在北京大学读书 holds 北京大学: 4 of 7 and of 4 → 2·4/11.
    assert overlap("北京大学", "在北京大学读书") == pytest.approx(8 / 11)
    # A gap breaks it: 北京 | 大学 of 4, of 5.
    assert overlap("北京大学", "北京的大学") == pytest.approx(4 / 9)
    assert overlap("1998年", "1999年") == pytest.approx(0.5)  # 年, of 2 and 2: a year is one word
    assert overlap("北京", "上海") == overlap("北京", "") == overlap("", "") == 0


def test_marks_and_case_do_not_matter_to_an_exact_match_but_others_do() -> None:
    exact = CHINESE.exact
    assert exact("《红楼梦》", "红楼梦。") == exact("NBA", "nba ") == exact("，", "") == 1
    assert exact("红楼梦", "红楼") == exact("a,b", "ab") == exact("2.5", "25") == 0
    assert normalise(" “A·B” ") == "ab"


def test_scores_by_hand() -> None:
    gold = [["北京大学", "北大"], ["1998年", "1998年"]]
    # 北大。 is exact; 在1998年: 2 segments of 3 and of 2 → 4/5.
    scores = cmrc(gold, ["北大。", "在1998年"])
    assert scores == pytest.approx({"exact": 50, "f1": 90, "average": 70})
    assert cmrc(gold, ["北大", "1998年"]) == {"exact": 100, "f1": 100, "average": 100}
    assert cmrc([], []) == {"exact": 0, "f1": 0, "average": 0}


@given(TEXT, TEXT)
def test_the_longest_stretch_is_the_one_that_a_search_finds(gold: str, predicted: str) -> None:
    own, other = segments(gold), segments(predicted)
    matcher = SequenceMatcher(None, own, other, autojunk=False)
    longest = matcher.find_longest_match().size
    expected = 2 * longest / (len(own) + len(other)) if longest else 0
    assert overlap(gold, predicted) == pytest.approx(expected) == overlap(predicted, gold)
    if own:
        assert CHINESE.exact(gold, predicted) <= overlap(gold, predicted)
