"""Questions laid in windows over their passages: cards F2 and F3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples
from support.question_answering import CLS, FakeReader, ask

from clozelab.contracts import Targets
from clozelab.errors import UserError
from clozelab.finetuning.examples import Candidate, Question, Span
from clozelab.finetuning.examples import GoldAnswer as Gold
from clozelab.finetuning.kinds.answer import Answer
from clozelab.finetuning.kinds.windows import located, most_context, windows_over

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def test_chinese_is_scored_by_characters_with_and_without_impossible_questions() -> None:
    passage = "北京大学位于北京市海淀区。"
    answered = Question("a", "在哪里？", passage, (Gold("北京市海淀区", 6),))
    impossible = Question("b", "是谁？", passage, ())
    for examples in ([answered], [answered, impossible]):
        kind = Answer(**Answer.derive(examples, labels=()))
        assert kind.language == "chinese" and kind.impossible == (len(examples) == 2)
        predictions = [Span("海淀区", 1.0, None, ()), Span("", 0.0, None, ())][: len(examples)]
        scores = kind.score(predictions, examples)
        assert scores["HasAns_f1" if kind.impossible else "f1"] == pytest.approx(200 / 3)
    assert scores["NoAns_f1"] == 100
    # Half of the answer is right, so it is better given than withdrawn.
    spans = [Span("", 1.0, 2.0, (Candidate("海淀区", 1.0, 9),)), Span("", 0.0, 9.0, ())]
    tuned = kind.calibrated(spans, examples)
    assert tuned.threshold == 2
    assert kind.score(tuned.decided(spans), examples)["f1"] == pytest.approx(500 / 6)


def test_of_an_imported_model_the_questions_say_if_there_may_be_no_answer() -> None:
    answered, without = ask("a b", "b"), ask("a b")
    assert Answer().suited([answered, without], imported=True).impossible
    assert not Answer().suited([answered, answered], imported=True).impossible
    assert not Answer().suited([without._replace(answers=None)], imported=True).impossible
    assert not Answer().suited([without]).impossible
    assert not Answer(head="beam").suited([without], imported=True).impossible


def test_blocks_without_room_for_the_texts_are_refused() -> None:
    with pytest.raises(UserError, match="leaves no room for two texts beside 3 special tokens"):
        Answer().tokenize([ask("a b", "b")], FakeReader(length=4))


def counting(words: int) -> str:
    """A passage of that many tokens, all different."""
    return " ".join(LETTERS[i // 26] + LETTERS[i % 26] for i in range(words))


@max_examples(100)
@given(tokens=st.integers(0, 90), room=st.integers(1, 40), stride=st.integers(1, 50))
def test_windows_cover_every_token_and_each_has_most_context_in_one(
    tokens: int, room: int, stride: int
) -> None:
    cuts = windows_over(tokens, room, stride)
    assert [begin for begin, _ in cuts] == [i * min(stride, room) for i in range(len(cuts))]
    assert all(0 <= end - begin <= room for begin, end in cuts)
    assert set().union(*(range(*cut) for cut in cuts)) == set(range(tokens))
    assert [end for _, end in cuts].count(tokens) == 1 and cuts[-1][1] == tokens
    chosen = most_context(cuts)
    assert len(chosen) == tokens
    for token, window in enumerate(chosen.tolist()):
        scores = [
            min(token - begin, end - 1 - token) + 0.01 * (end - begin)
            if begin <= token < end
            else -1
            for begin, end in cuts
        ]
        assert scores[window] == pytest.approx(max(scores))
        assert not [s for s in scores[:window] if s > max(scores) - 1e-9]  # ties: the earlier


def test_a_window_known_by_hand() -> None:
    assert windows_over(10, 6, 2) == ((0, 6), (2, 8), (4, 10))
    assert most_context(windows_over(10, 6, 2)).tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert windows_over(0, 6, 2) == ((0, 0),)
    assert windows_over(6, 6, 2) == ((0, 6),)
    assert windows_over(9, 3, 8) == ((0, 3), (3, 6), (6, 9))


@max_examples(40)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    stride=st.integers(1, 20),
    first=st.booleans(),
)
def test_laid_tokens_are_the_passages_and_each_is_most_central_once(
    sizes: list[int], stride: int, first: bool
) -> None:
    reader = FakeReader(length=20, passage_first=first)
    examples = [ask(counting(size), id=str(i)) for i, size in enumerate(sizes)]
    tokenized = Answer(stride=stride).tokenize(examples, reader)
    rows = np.repeat(tokenized.owners, np.diff(tokenized.starts))
    facts = tokenized.token_facts
    for number, example in enumerate(examples):
        spans = reader.pieces([example.passage]).spans
        mine = (rows == number) & facts["passage"]
        assert set(facts["begin"][mine].tolist()) == set(spans[:, 0].tolist())
        central = mine & facts["most"]
        assert sorted(facts["begin"][central].tolist()) == spans[:, 0].tolist()
        assert sorted(facts["end"][central].tolist()) == spans[:, 1].tolist()
        assert (tokenized.owners == number).sum() >= 1
    assert not (facts["most"] & ~facts["passage"]).any()
    marks = tokenized.starts[:-1] + tokenized.targets.columns["at"]
    assert (tokenized.columns["ids"][marks] == CLS).all() and not facts["passage"][marks].any()
    assert tokenized.groups.tolist() == list(range(len(tokenized.starts)))


def test_the_answer_is_inside_a_window_or_the_mark_stands_for_it() -> None:
    reader = FakeReader(length=15)  # two of the question, three marks, ten of the passage
    passage = counting(18)
    tokenized = Answer(stride=4).tokenize([ask(passage, "am an ao")], reader)
    columns = {name: values.tolist() for name, values in tokenized.targets.columns.items()}
    assert tokenized.targets.starts.tolist() == [0, 1, 2, 3]
    assert columns["at"] == [0, 0, 0]
    assert columns["labels"] == [0, 0, 1]  # over 0 to 9, 4 to 13 and 8 to 17
    assert columns["left"] == [0, 0, 8] and columns["right"] == [0, 0, 10]
    assert not tokenized.counts.numbers


def test_with_beams_a_second_slot_says_where_the_passage_is() -> None:
    examples = [ask(counting(12), "ab"), ask(" ", id="blank")]
    tokenized = Answer(head="beam", stride=8, longest=2).tokenize(
        examples, FakeReader(length=15, passage_first=True)
    )
    columns = {name: values.tolist() for name, values in tokenized.targets.columns.items()}
    assert tokenized.owners.tolist() == [0, 0, 1]
    assert tokenized.targets.starts.tolist() == [0, 2, 4, 6]
    assert columns["at"] == [14, 14, 8, 8, 4, 4]
    assert columns["left"] == [1, 0, 8, 0, 4, 4]
    assert columns["right"] == [1, 9, 8, 3, 4, 4]
    ignored = Targets.IGNORED
    assert columns["labels"] == [1, ignored, 0, ignored, 0, ignored]


@max_examples(100)
@given(room=st.integers(1, 40), longest=st.integers(1, 30), first=st.integers(0, 80))
def test_however_short_blocks_are_an_answer_is_whole_in_a_window(
    room: int, longest: int, first: int
) -> None:
    passage = counting(90)
    size = min(longest, room // 2 + 1, 90 - first)
    begin, end = 3 * first, 3 * (first + size) - 1
    example = Question("q", "who ?", passage, (Gold(passage[begin:end], begin),))
    reader = FakeReader(length=max(room + 5, 7))
    tokenized = Answer(longest=longest).tokenize([example], reader)
    assert 1 in tokenized.targets.columns["labels"] and not tokenized.counts.numbers


def test_a_passage_is_tokenised_once_and_all_texts_in_two_calls() -> None:
    reader = FakeReader(length=64)
    examples = [ask(counting(5), "aa", id=str(i)) for i in range(9)] + [ask("other text", "text")]
    tokenized = Answer().tokenize(examples, reader)
    assert reader.calls == 2
    assert tokenized.owners.tolist() == list(range(10))


def test_a_long_question_is_cut_and_counted() -> None:
    passage, long = counting(30), counting(9)
    examples = [
        ask(passage, "ab", question=long, id="long"),
        ask(passage, "ab", question=counting(4), id="short"),
        ask(passage, "ab", question=long, id="again"),
    ]
    tokenized = Answer(question_limit=4).tokenize(examples, FakeReader(length=24))
    assert tokenized.counts.numbers == {"questions truncated to fit": 2}
    assert tokenized.counts.places == {"questions truncated to fit": "example long"}
    windows = [np.flatnonzero(tokenized.owners == owner)[0] for owner in range(3)]
    firsts = [tokenized.columns["ids"][tokenized.starts[window] :][:6] for window in windows]
    assert (firsts[0] == firsts[1]).all() and (firsts[0] == firsts[2]).all()
    half = Answer().tokenize(examples[:1], FakeReader(length=13))
    assert half.counts.numbers == {"questions truncated to fit": 1}
    assert (np.diff(half.starts) <= 13).all() and half.token_facts["passage"][
        : half.starts[1]
    ].sum() == 5


def test_blocks_without_room_are_refused() -> None:
    with pytest.raises(UserError, match="length = 4"):
        Answer().tokenize([ask("some text", "text")], FakeReader(length=4))


@pytest.mark.parametrize(
    ("passage", "start", "text", "tokens"),
    [
        ("abcdef gh", 0, "abcdef", (0, 1)),
        ("abcdef gh", 1, "b", (0, 0)),  # inside a token
        ("abcdef gh", 2, "cd", (0, 1)),  # across two
        ("abcdef gh", 5, "f g", (1, 2)),
        ("abcdef gh", 6, " ", None),  # between tokens
        ("abcdef gh", 8, "h", (2, 2)),
        ("abcdef gh", 0, "gh", None),  # not where it is said to be
        ("naïve 北京 é", 6, "北京", (2, 2)),
        ("𝔘nicode 🦜 bird", 8, "🦜", (3, 3)),
    ],
)
def test_an_answer_is_the_tokens_that_share_its_characters(
    passage: str, start: int, text: str, tokens: tuple[int, int] | None
) -> None:
    spans = FakeReader().pieces([passage]).spans
    assert located(Question("", "", passage, (Gold(text, start),)), spans) == tokens


def test_what_is_not_known_is_not_trained_on() -> None:
    passage = counting(30)
    examples = [
        Question("unknown", "who", passage, None),
        Question("lost", "who", passage, (Gold(" ", 2),)),
        Question("none", "who", passage, ()),
        Question("first counts", "who", passage, (Gold("aa", 0), Gold(" ", 2))),
        Question("long", "who", passage, (Gold(passage, 0),)),
    ]
    tokenized = Answer(impossible=True).tokenize(examples, FakeReader(length=24))
    labels = [
        set(tokenized.targets.columns["labels"][tokenized.owners == i].tolist()) for i in range(5)
    ]
    assert labels == [{Targets.IGNORED}, {Targets.IGNORED}, {0}, {0, 1}, {0}]
    assert tokenized.counts.numbers == {
        "answers that no token of the passage shows": 1,
        "answers that no window holds whole": 1,
    }
    assert list(tokenized.counts.places.values()) == ["example lost", "example long"]
    unknown = tokenized.targets.columns["labels"] != 1
    for side in ("left", "right"):
        assert (tokenized.targets.columns[side] == tokenized.targets.columns["at"])[unknown].all()


def test_nothing_to_lay_is_laid() -> None:
    tokenized = Answer().tokenize([], FakeReader())
    assert tokenized.starts.tolist() == [0] and len(tokenized.owners) == 0
    assert Answer().decode(tokenized, [], []) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [("stride", 0), ("best", 0), ("beams", 0), ("longest", 0), ("question_limit", 0),
     ("dropout", 1.0), ("head", "tail"), ("language", "klingon"), ("metrics", ("bleu",))],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(setting: str, value: object) -> None:
    with pytest.raises(UserError, match=setting):
        Answer(**{setting: value})  # type: ignore[arg-type]
