"""Sentences tile their text, English and Chinese end where a reader ends them, and nothing in a
text can make the splitting slow or its pieces long."""

import pickle
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hypothesis_settings import max_examples

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.reading import sentences
from clozelab.text.reading.sentences import LONGEST, Splitter, lines, splitter

KINDS = ["nupunkt", "plain"]

# Each case: the sentences, "|" between them. Right means exactly these. The plain rule was written
# with them in sight, so its score flatters it; nupunkt was not.
ENGLISH = """\
Mr. Smith met Mrs. Jones at 5 p.m. on Friday.|They talked.
Dr. A. B. Carter wrote it.|Nobody read it.
The U.S. economy grew by 3.14 percent.|It then shrank.
He lives in the U.S. and she lives in the U.K. with him.
Use a knife, e.g. a paring knife, i.e. a small one.|Then stop.
"Is it you?" he asked.|"Yes," she said.
"Go away!" cried Anna.|He went.
He said, "I am here."|Then he left.
Wait... what do you mean?|Nothing.
It was over…|Nobody spoke.
See www.example.com or http://a.b/c.html?x=1.|It is there.
J. R. R. Tolkien was born in 1892.|He wrote books.
It costs $3.50.|That is cheap.
What?|No!|Really?
He shouted "Stop!" and ran.
I was there (you know it.)|You were not.
(He was late.)|We began without him.
Apple Inc. announced profits of $4.2 billion.|Shares rose.
See Fig. 3 for details.|The rest is in Sec. 4.
No. 5 is alive.|No. 6 is not.
She has a Ph.D. in physics.|Her brother does not.
He arrived on Jan. 5 and left.|She stayed.
The meeting is at 10 a.m.|Please be on time.
St. Paul's is in London.|It is old.
Gen. Lee and Col. Grant met.|They shook hands.
Smith et al. showed this.|We agree.
Did he go?|I don't know.|Ask him!
It was 1999.|He was 5.
He works for Foo Co. in Paris.|She does not.
"What is that?"|"A dog."
Version 2.0.1 is out.|Get it now.
They won 3-2.|Then they lost.
He paused . . . and then spoke.
The end.|A new start.
Washington, D.C. is hot in summer.|Boston is not.
Sen. Kelly vs. Gov. Brown was a close race.|Brown won.
"I won't," said Tom.|"Don't make me."
Oh, no!!!|That hurts?!|Yes.
I bought milk, eggs, bread, etc. at the shop.|Then I slept.
Martin Luther King Jr. spoke.|The crowd listened.
At 5 a.m. Mr. Hill woke.|He left at 6 p.m. Mrs. Hill stayed.
Ask Jane and co.|They should know.
We sold it to Pitt & Co. yesterday.|Pitt & Co. paid.
I never meant that....|She closed the door.
It was, well, how shall I say . . . odd.|I liked it.
She works at Yahoo! in the accounts office.
We make a good pair, you and I.|Did you see Albert I. Jones?
They moved to the E.U.|How about you?
He is with the U.S. Government in Virginia.
That is John Jr.'s book.|Give it back.
Turn to p. 55 and read ll. 3-9 aloud.|Then sit.
"This is great." she said, and "So it is." said he.
1. Wash the pan.|2. Dry it.
The gene (cf. Table S1) was lost.|E. coli kept it.
Well... I think so.|It is late.
'Tis late.|'Twas later then.
"""

CHINESE = """\
今天天气很好。|我们去公园吧！|你来吗？
他说：“你好。”|然后走了。
“你好！”，他说。
我不知道……|也许吧。
真的吗？！|当然。
第一；|第二；|第三。
（见下文。）|下一句。
圆周率是3.14。|它是无理数。
你好吗?|我很好!|再见
「行くの？」|彼女は聞いた。|はい。
他说:"走吧。"|她没动。
他走了。|"你去哪？"|她问。
我爱Python 3.11。|你呢？
我…。|他走了。
"""


def _cases(table: str) -> list[list[str]]:
    return [line.split("|") for line in table.splitlines()]


def _right(cut: Splitter, table: str) -> list[str]:
    """The cases that came out wrong."""
    wrong = []
    for case in _cases(table):
        joint = "" if table is CHINESE else " "
        text = joint.join(case)
        if [piece.strip() for piece in cut.split(text)] != case:
            wrong.append(text)
    return wrong


@pytest.mark.parametrize(("kind", "allowed"), [("nupunkt", 5), ("plain", 1)])
def test_english_sentences_end_where_a_reader_ends_them(kind: str, allowed: int) -> None:
    wrong = _right(splitter(kind), ENGLISH)
    assert len(_cases(ENGLISH)) == 56
    assert len(wrong) <= allowed, wrong


@pytest.mark.parametrize("kind", KINDS)
def test_chinese_and_japanese_sentences(kind: str) -> None:
    assert _right(splitter(kind), CHINESE) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_may_mix_english_and_chinese(kind: str) -> None:
    text = "我爱Python。 Mr. Smith went home. He said 你好！ Then he slept. 他睡了。"
    assert splitter(kind).split(text) == [
        "我爱Python。",
        " Mr. Smith went home.",
        " He said 你好！",
        " Then he slept.",
        " 他睡了。",
    ]


def test_western_dots_are_no_chinese_end() -> None:
    assert splitter("plain").split("Well…… maybe; or not") == ["Well…… maybe; or not"]


@pytest.mark.parametrize("kind", KINDS)
def test_white_space_is_the_front_of_the_sentence_after_it(kind: str) -> None:
    text = "  One here.  Two here.\t\n\n \nThree\nFour.  \n"
    assert splitter(kind).split(text) == [
        "  One here.",
        "  Two here.",
        "\t\n\n \nThree",
        "\nFour.  \n",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_newline_ends_a_line(kind: str) -> None:
    text = "a\u2028b\rc\x0bd\x85e\nf"
    assert splitter(kind).split(text) == ["a\u2028b\rc\x0bd\x85e", "\nf"]


@pytest.mark.parametrize("text", ["", " ", "\n\n", " \t\u3000\n"])
def test_a_blank_text_has_no_sentence(text: str) -> None:
    for kind in KINDS:
        assert splitter(kind).split(text) == []
    assert lines(text) == []


_MARKS = st.text(
    st.sampled_from(list("ab Z9.!?…。！？；”’」』)\"' \n\t\r\u2028,中文ñ\u0301\u200d🙂\x1c\xa0"))
)


@max_examples(400)
@given(st.one_of(st.text(), _MARKS))
def test_pieces_tile_any_text(text: str) -> None:
    for pieces in (splitter("nupunkt").split(text), splitter("plain").split(text), lines(text)):
        assert "".join(pieces) == text or (pieces == [] and not text.strip())
        assert all(piece.strip() for piece in pieces)
        assert not any("\n" in piece.strip() for piece in pieces)
        assert not any(piece.rstrip() != piece for piece in pieces[:-1])


@max_examples(60)
@given(_MARKS, st.integers(0, 3), st.integers(1, 12))
def test_pieces_tile_a_text_of_long_sentences(text: str, gap: int, times: int) -> None:
    long = (text + " " * gap) * times * 200
    for pieces in (splitter("plain").split(long), lines(long)):
        assert "".join(pieces) == long or not long.strip()
        assert all(0 < len(piece.strip()) <= LONGEST for piece in pieces)


def test_lines_are_sentences() -> None:
    assert lines("One. Two.\n\nThree\n") == ["One. Two.", "\n\nThree\n"]


def test_a_long_sentence_is_cut_at_white_space_and_counted() -> None:
    counts = Counts()
    text = "word " * 5_000
    pieces = splitter("plain").split(text, counts, place="a.txt:1")
    assert "".join(pieces) == text
    assert [len(piece.strip()) for piece in pieces] == [9_999, 9_999, 4_999]
    assert counts.numbers == {"sentences over 10,000 characters cut": 2}
    assert counts.places == {"sentences over 10,000 characters cut": "a.txt:1"}


def test_a_long_sentence_without_white_space_is_cut_between_characters() -> None:
    text = "x" + "e\u0301" * 20_000 + "👩‍👩‍👧" * 9_000
    pieces = lines(text)
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert all(9_900 < len(piece) <= LONGEST for piece in pieces[:-1])
    for piece in pieces:
        assert not unicodedata.combining(piece[0])
        assert "\u200d" not in (piece[0], piece[-1])


def test_white_space_alone_is_never_a_piece_however_long() -> None:
    text = "a" + " " * 50_000 + "b"
    assert [piece.strip() for piece in lines(text)] == ["a", "b"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "unit", ["!", "a.) ", '".', ". ", "? ", "a.b", "。", "“", "x ", "Mr. ", "\u3000a", "……", "?!("]
)
def test_no_text_takes_more_than_linear_time(kind: str, unit: str) -> None:
    text = unit * (300_000 // len(unit)) + "，"
    cut = splitter(kind)
    begun = time.perf_counter()
    pieces = cut.split(text)
    assert time.perf_counter() - begun < 40.0  # quadratic time would take minutes
    assert "".join(pieces) == text


def test_a_long_paragraph_reads_as_its_sentences() -> None:
    text = " ".join(f"Sentence number {n} is here, Mr. Smith." for n in range(10_000))
    assert len(text) > 2 * sentences._WINDOW
    assert len(splitter("nupunkt").split(text)) == 10_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_splitter_travels_to_another_process_and_repeats_itself(kind: str) -> None:
    cut = splitter(kind)
    text = "Mr. A. went.  He saw B. The end.\n今天。明天"
    assert (
        pickle.loads(pickle.dumps(cut)).split(text) == cut.split(text) == splitter(kind).split(text)
    )


def test_names_say_which_rule() -> None:
    assert splitter("plain").name == "plain 1"
    assert splitter("nupunkt").name.startswith("nupunkt ")
    assert splitter().name == splitter("nupunkt").name


def test_without_nupunkt_auto_is_plain_and_asking_for_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "nupunkt", None)
    assert splitter().name == "plain 1"
    with pytest.raises(UserError, match="pip install nupunkt"):
        splitter("nupunkt")
    with pytest.raises(UserError, match="auto, nupunkt, plain or none"):
        splitter("punkt")
