"""From scores to answers: the best legal stretch, as text of the passage (cards F2, F3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.hypothesis_settings import max_examples
from support.question_answering import FakeReader, ask, drawn, one_hot

from clozelab.errors import UserError
from clozelab.finetuning.examples import GoldAnswer as Gold
from clozelab.finetuning.examples import Question, Span, TokenizedExamples
from clozelab.finetuning.kinds.answer import Answer

WORDS = st.text(alphabet="abcdefg北京é🦜.,", min_size=1, max_size=6)
GAPS = st.sampled_from([" ", "  ", "\n", "\u00a0", " \t"])
PASSAGES = st.lists(st.tuples(WORDS, GAPS), max_size=40).map(
    lambda parts: "".join(word + gap for word, gap in parts)
)


def rivals(
    tokenized: TokenizedExamples, outputs: list[NDArray], passage: str, kind: Answer
) -> dict[str, float]:
    """Every text that may be the answer with its best score, by trying all pairs."""
    best: dict[str, float] = {}
    for window, scores in enumerate(outputs):
        at = tokenized.starts[window] + np.arange(len(scores))
        in_passage, most = tokenized.token_facts["passage"][at], tokenized.token_facts["most"][at]
        starts = sorted(np.flatnonzero(most), key=lambda i: (-scores[i, 0], i))[: kind.best]
        ends = sorted(np.flatnonzero(in_passage), key=lambda i: (-scores[i, 1], i))[: kind.best]
        for first in starts:
            for last in ends:
                if first <= last < first + kind.longest:
                    begin, end = (
                        tokenized.token_facts["begin"][at[first]],
                        tokenized.token_facts["end"][at[last]],
                    )
                    text = passage[begin:end].strip()
                    score = scores[first, 0] + scores[last, 1]
                    best[text] = max(best.get(text, -np.inf), score)
    return best


@max_examples(80)
@given(
    passage=PASSAGES,
    stride=st.integers(1, 12),
    first=st.booleans(),
    best=st.integers(1, 8),
    longest=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_decoding_equals_trying_all_pairs(
    passage: str, stride: int, first: bool, best: int, longest: int, seed: int
) -> None:
    kind = Answer(stride=stride, best=best, longest=longest, impossible=True, threshold=1e9)
    examples = [ask(passage)]
    tokenized = kind.tokenize(examples, FakeReader(length=14, passage_first=first))
    outputs = drawn(tokenized, seed)
    (span,) = kind.decode(tokenized, outputs, examples)
    expected = rivals(tokenized, outputs, passage, kind)
    assume(expected)
    ranked = sorted(expected, key=lambda text: -expected[text])[:best]
    assert [candidate.text for candidate in span.best] == ranked
    assert span.text == ranked[0] and span.score == pytest.approx(expected[ranked[0]])
    weights = np.exp([expected[text] for text in ranked])
    chances = [candidate.probability for candidate in span.best]
    np.testing.assert_allclose(chances, weights / weights.sum(), rtol=1e-12)
    for candidate in span.best:
        assert passage.startswith(candidate.text, candidate.start) and candidate.text
    mark = tokenized.targets.columns["at"]
    nulls = [scores[mark[window]].sum() for window, scores in enumerate(outputs)]
    assert span.null == pytest.approx(min(nulls) - span.score)


@max_examples(80)
@given(
    passage=PASSAGES,
    stride=st.integers(1, 7),
    first=st.booleans(),
    best=st.integers(1, 20),
    data=st.data(),
)
def test_what_is_laid_is_what_is_read(
    passage: str, stride: int, first: bool, best: int, data: st.DataObject
) -> None:
    reader = FakeReader(length=16, passage_first=first)
    spans = reader.pieces([passage]).spans
    assume(len(spans))
    token = data.draw(st.integers(0, len(spans) - 1))
    last = data.draw(st.integers(token, min(token + 3, len(spans) - 1)))
    begin, end = int(spans[token, 0]), int(spans[last, 1])
    example = Question("q", "who ?", passage, (Gold(passage[begin:end], begin),))
    kind = Answer(stride=stride, longest=4, best=best)
    tokenized = kind.tokenize([example], reader)
    assert not tokenized.counts.numbers  # strides of 7 in windows of 11 hold any 4 tokens whole
    # What begins where another window has more context is not read here, and not whole there.
    columns = tokenized.targets.columns
    central = tokenized.token_facts["most"][tokenized.starts[:-1] + columns["left"]]
    assume((central & (columns["labels"] == 1)).any())
    (span,) = kind.decode(tokenized, one_hot(tokenized), [example])
    assert span.text == passage[begin:end].strip()
    assert span.best[0].start == begin


@max_examples(60)
@given(
    passage=PASSAGES.filter(str.strip),
    head=st.sampled_from(["span", "beam"]),
    longest=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_where_there_is_always_an_answer_it_is_never_empty(
    passage: str, head: str, longest: int, seed: int
) -> None:
    kind = Answer(head=head, best=1, beams=1, longest=longest, stride=3)  # type: ignore[arg-type]
    tokenized = kind.tokenize([ask(passage)], FakeReader(length=14))
    outputs = drawn(tokenized, seed)
    if head == "beam":  # rows that point anywhere, the mark and no token among it
        rng = np.random.default_rng(seed)
        outputs = [np.array([[-1.0, rng.integers(16), -1, rng.integers(16), 3]]) for _ in outputs]
    (span,) = kind.decode(tokenized, outputs, [ask(passage)])
    assert span.text and span.text in passage and span.null is None
    assert span.text == span.text.strip()


def test_for_want_of_a_legal_pair_the_best_token_is_the_answer() -> None:
    kind = Answer(best=1)
    examples = [ask("aa bb cc dd")]
    tokenized = kind.tokenize(examples, FakeReader())
    scores = np.zeros((9, 2))
    scores[7, 0] = 5  # the best start lies after the best end, at 4
    scores[4, 1] = 4
    scores[5, :] = 3
    (span,) = kind.decode(tokenized, [scores], examples)
    assert [c.text for c in span.best] == ["bb"] and span.score == 6


@pytest.mark.parametrize("head", ["span", "beam"])
@pytest.mark.parametrize("impossible", [True, False])
def test_a_passage_without_a_token_has_no_answer(head: str, impossible: bool) -> None:
    kind = Answer(head=head, impossible=impossible, beams=2)  # type: ignore[arg-type]
    examples = [Question("blank", "who ?", " \n", ())]
    tokenized = kind.tokenize(examples, FakeReader())
    row = np.zeros((2, 13))
    outputs = drawn(tokenized, 0) if head == "span" else [row]
    (span,) = kind.decode(tokenized, outputs, examples)
    assert span.text == "" and span.best == ()
    assert kind.calibrated([span], examples).threshold is not None


def test_blank_tokens_are_no_answers_and_blanks_around_are_left_out() -> None:
    reader = FakeReader(pattern=r"\s?\w+|\s")  # as byte-level tokenizers cut
    kind = Answer(longest=2)
    examples = [ask("one two \n", question="q")]
    tokenized = kind.tokenize(examples, reader)
    assert tokenized.token_facts["passage"].sum() == 4
    scores = np.zeros((len(tokenized.columns["ids"]), 2))
    scores[5:7] = 9  # the blanks
    scores[4] = 1
    (span,) = kind.decode(tokenized, [scores], examples)
    assert span.text == "two" and span.best[0].start == 4
    assert [c.text for c in span.best] == ["two", "one two", "one"]


def test_a_repeated_text_is_one_candidate() -> None:
    examples = [ask("ab ab ab")]
    kind = Answer(longest=1)
    tokenized = kind.tokenize(examples, FakeReader())
    scores = np.zeros((8, 2))
    scores[5] = 1
    (span,) = kind.decode(tokenized, [scores], examples)
    assert [(c.text, c.start) for c in span.best] == [("ab", 3)]
    assert span.best[0].probability == 1


def spans_of(kind: Answer, examples: list[Question], seed: int = 0) -> list[Span]:
    tokenized = kind.tokenize(examples, FakeReader())
    return kind.decode(tokenized, drawn(tokenized, seed), examples)


def some(count: int) -> list[Question]:
    rng = np.random.default_rng(1)
    outputs = []
    for number in range(count):
        words = ["".join(rng.choice(list("abcde"), 2)) for _ in range(rng.integers(1, 30))]
        gold = () if number % 3 == 0 else (str(rng.choice(words)), words[0])
        outputs.append(ask(" ".join(words), *gold, id=str(number)))
    return outputs


def test_the_higher_the_threshold_the_fewer_are_withdrawn() -> None:
    kind, examples = Answer(impossible=True), some(40)
    spans = spans_of(kind, examples)
    empty = []
    for threshold in np.linspace(-12, 4, 30):
        stricter = replace(kind, threshold=float(threshold))
        again = stricter.decided(spans)
        assert again == spans_of(stricter, examples)
        empty.append(sum(not span.text for span in again))
    assert empty == sorted(empty, reverse=True)
    assert empty[0] == 40 and empty[-1] == 0


def test_exact_match_is_at_most_f1_and_both_kinds_of_questions_are_told_apart() -> None:
    examples = some(60)
    for impossible in (True, False):
        kind = Answer(impossible=impossible, threshold=-5)
        for seed in range(3):
            scores = kind.score(spans_of(kind, examples, seed), examples)
            assert 0 <= scores["exact"] <= scores["f1"] <= 100
            assert kind.selects(scores) == scores["f1"]
            assert ("NoAns_f1" in scores) == impossible


def test_the_tuned_threshold_is_the_best_of_all() -> None:
    kind, examples = Answer(impossible=True), some(40)
    tokenized = kind.tokenize(examples, FakeReader())
    right = one_hot(tokenized)
    noisy = [a + 3 * b for a, b in zip(right, drawn(tokenized, 3), strict=True)]
    spans = kind.decode(tokenized, noisy, examples)
    tuned = kind.calibrated(spans, examples)
    best = tuned.score(tuned.decided(spans), examples)["f1"]
    tried = [*(span.null for span in spans), -1e9, 1e9]
    reached = []
    for threshold in tried:
        assert threshold is not None
        other = replace(kind, threshold=threshold)
        reached.append(other.score(other.decided(spans), examples)["f1"])
    assert best == pytest.approx(max(reached)) and best > min(reached)
    assert replace(tuned, threshold=0.0) == kind
    plain = Answer()
    assert plain.calibrated(spans, examples) is plain


def test_perfect_predictions_score_a_hundred_in_both_languages() -> None:
    english = [ask("ab cd ef", "cd"), ask("xy", "xy")]
    chinese = [ask("北京是首都", "北京"), ask("上海很大", "大")]
    for language, examples in (("english", english), ("chinese", chinese)):
        kind = Answer(language=language)  # type: ignore[arg-type]
        tokenized = kind.tokenize(
            examples, FakeReader(pattern=r"\w" if language == "chinese" else r"\w+")
        )
        scores = kind.score(kind.decode(tokenized, one_hot(tokenized), examples), examples)
        assert scores["exact"] == scores["f1"] == 100
    with pytest.raises(UserError, match="label"):
        Answer().score([], [])


def test_beams_are_read_as_the_head_lays_them() -> None:
    kind = Answer(head="beam", beams=2, impossible=True, threshold=0.5)
    examples = [ask("aa bb cc dd", "bb")]
    tokenized = kind.tokenize(examples, FakeReader())
    # [CLS] who ? [SEP] aa bb cc dd [SEP]: the passage is 4 to 7
    row = [-0.1, -2.0, 5, 0, -0.3, -0.2, -0.5, -0.6, 6, 8, 5, 7, 0.25]
    (span,) = kind.decode(tokenized, [np.array([row, [0.0] * 13])], examples)
    assert [c.text for c in span.best] == ["bb cc"]  # 0 and 8 are marks
    assert span.score == pytest.approx(-0.4) and span.null == 0.25 and span.text == "bb cc"
    assert replace(kind, threshold=0.2).decided([span])[0].text == ""


def test_of_several_windows_the_surest_of_an_answer_gives_the_null_score() -> None:
    kind = Answer(head="beam", beams=1, impossible=True, stride=4)
    examples = [ask(" ".join("abcdefghij"), "j")]
    tokenized = kind.tokenize(examples, FakeReader(length=13))
    assert len(tokenized.owners) == 2
    rows = [np.array([[-1.0, 4, -1.0, 4, 2.0]]), np.array([[-0.5, 9, -0.7, 9, -3.0]])]
    (span,) = kind.decode(tokenized, rows, examples)
    assert span.null == -3.0
    assert [(c.text, c.start) for c in span.best] == [("j", 18), ("a", 0)]
    rows[1][0, [1, 3]] = 4  # "e", which has more context in the first window
    (span,) = kind.decode(tokenized, rows, examples)
    assert [c.text for c in span.best] == ["a"]
