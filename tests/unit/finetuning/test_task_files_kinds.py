"""Files of questions, choices and documents → examples, in each layout they are published in."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from support.labelled_files import jsonl, refusal, write

from clozelab.contracts import Counts
from clozelab.finetuning.examples import Choice, Document, GoldAnswer, Mention, Question
from clozelab.finetuning.files.choices import choices, joined
from clozelab.finetuning.files.columns import ReadOptions
from clozelab.finetuning.files.documents import documents, gap
from clozelab.finetuning.files.questions import NOT_FOUND, RELOCATED, SKIPPED, questions

# --- questions ---------------------------------------------------------------------------------

PASSAGE = "  The cat sat. The cat slept."


def squad(*asks: dict[str, object]) -> str:
    paragraph = {"context": PASSAGE, "qas": list(asks)}
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]})


def asking(number: int, *answers: tuple[str, int], **more: object) -> dict[str, object]:
    gold = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": f"q{number}", "question": " Who? ", "answers": gold, **more}


def test_squads_questions_keep_the_passage_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", squad(asking(1, ("cat", 6), ("The cat", 2))))
    assert questions(path) == [
        Question("q1", "Who?", PASSAGE, (GoldAnswer("cat", 6), GoldAnswer("The cat", 2)))
    ]


def test_a_question_may_have_no_answer_or_an_unknown_one(tmp_path: Path) -> None:
    asks = [
        asking(
            1,
            ("cat", 6),
            is_impossible=True,
            plausible_answers=[{"text": "cat", "answer_start": 6}],
        ),
        asking(2, ("cat", 6), is_impossible=False),
        asking(3),
    ]
    path = write(tmp_path / "a.json", squad(*asks))
    assert [example.answers for example in questions(path)] == [(), (GoldAnswer("cat", 6),), ()]
    path = write(tmp_path / "b.json", squad({"id": 1, "question": "Who?"}))
    assert questions(path, ReadOptions(labelled=False)) == [Question("1", "Who?", PASSAGE, None)]
    assert "question 1 has no answers" in refusal(lambda: questions(path))


def test_an_answer_elsewhere_is_found_nearest_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", squad(asking(1, ("cat", 15)), asking(2, ("cat slept.", -10))))
    counts = Counts()
    first, second = questions(path, counts=counts)
    assert first.answers == (GoldAnswer("cat", PASSAGE.rindex("cat")),)
    assert second.answers == (GoldAnswer("cat slept.", PASSAGE.index("cat slept.")),)
    assert counts.numbers == {RELOCATED: 2} and counts.places[RELOCATED].endswith("question q1")


def test_an_answer_not_found_counts_for_scoring_but_is_not_trained_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.json", squad(asking(1, ("dog", 6), ("cat", 6)), asking(2, ("ox", 1)))
    )
    counts = Counts()
    first, second = questions(path, counts=counts)
    assert first.answers == (GoldAnswer("cat", 6), GoldAnswer("dog", len(PASSAGE)))
    assert second.answers == (GoldAnswer("ox", len(PASSAGE)),)
    assert counts.numbers == {NOT_FOUND: 2}
    counts = Counts()
    assert questions(path, ReadOptions(training=True), counts=counts) == [
        Question("q1", "Who?", PASSAGE, (GoldAnswer("cat", 6),))
    ]
    assert counts.numbers == {NOT_FOUND: 2, SKIPPED: 1}
    assert counts.places[SKIPPED] == f"{path}: question q2"


@pytest.mark.parametrize(
    ("answers", "more"),
    [
        ([{"text": "cat", "answer_start": 6}], {}),
        ({"text": ["cat"], "answer_start": [6]}, {}),
        ({"text": "cat", "answer_start": 6}, {}),
        ({"text": "cat"}, {}),
        (["cat"], {}),
        ("cat", {}),
        ("cat", {"answer_start": 6}),
    ],
)
def test_rows_hold_answers_in_several_ways(
    tmp_path: Path, answers: object, more: dict[str, object]
) -> None:
    row = {"id": "x", "question": "Who?", "context": PASSAGE, "answers": answers, **more}
    counts = Counts()
    path = write(tmp_path / "a.jsonl", jsonl(row))
    assert questions(path, counts=counts) == [
        Question("x", "Who?", PASSAGE, (GoldAnswer("cat", 6),))
    ]
    assert not counts.numbers


def test_questions_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    twice = write(tmp_path / "a.json", squad(asking(1, ("cat", 6)), asking(1, ("cat", 6))))
    assert "repeats the id 'q1'" in refusal(lambda: questions(twice))
    odd = write(tmp_path / "b.json", json.dumps({"data": [{"paragraphs": [{"qas": []}]}]}))
    assert "not in SQuAD's layout ('context')" in refusal(lambda: questions(odd))
    broken = write(tmp_path / "c.json", squad(asking(1)).replace("]", "]\n", 1)[:-3])
    assert f"{broken}:2 is not JSON" in refusal(lambda: questions(broken))
    row = {"question": "Who?", "context": PASSAGE, "answers": [{"word": "cat"}]}
    rows = write(tmp_path / "d.jsonl", jsonl(row))
    assert f"{rows}:1 has answers that cannot be read" in refusal(lambda: questions(rows))
    assert "is empty" in refusal(lambda: questions(write(tmp_path / "e.json", "")))
    none = write(tmp_path / "f.json", squad())
    assert "has no question" in refusal(lambda: questions(none))
    missing = write(tmp_path / "g.jsonl", jsonl({"question": "Who?", "text": PASSAGE}))
    assert "--columns passage=" in refusal(lambda: questions(missing))


# --- choices -----------------------------------------------------------------------------------


def test_swags_csv_joins_the_second_sentence_and_the_ending(tmp_path: Path) -> None:
    head = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,label\n"
    row = '0,v,1,"A. He","He sat, then.",He,gold,runs.,"says ""no"".",sleeps.,2\n'
    path = write(tmp_path / "train.csv", head + row)
    seconds = ("He runs.", 'He says "no".', "He sleeps.")
    assert choices(path) == [Choice("0", "He sat, then.", seconds, 2)]


@pytest.mark.parametrize(
    ("context", "first", "seconds"),
    [
        ({"ctx": "He sat. He"}, "He sat. He", ("ran.", "slept.")),
        (
            {"ctx": "He sat. He", "ctx_a": "He sat.", "ctx_b": "He"},
            "He sat.",
            ("He ran.", "He slept."),
        ),
    ],
)
def test_hellaswags_lines_are_read(
    tmp_path: Path, context: dict[str, str], first: str, seconds: tuple[str, ...]
) -> None:
    row = {"ind": 4, **context, "endings": ["ran.", "slept."], "label": "1"}
    path = write(tmp_path / "a.jsonl", jsonl(row))
    assert choices(path) == [Choice("4", first, seconds, 1)]


ARTICLE = {
    "article": "Long ago.",
    "questions": ["It was _ .", "When?"],
    "options": [["now", "long ago"], ["ago", "now"]],
    "answers": ["B", "A"],
}
ASKED = (("It was now .", "It was long ago ."), ("When? ago", "When? now"))


def test_race_is_read_from_lines_and_from_folders_alike(tmp_path: Path) -> None:
    rows = [{"id": f"{level}1.txt", "level": level, **ARTICLE} for level in ("high", "middle")]
    path = write(tmp_path / "train.jsonl", jsonl(*rows))
    for level, number in (("high", 10), ("high", 9), ("middle", 2)):
        file = tmp_path / "train" / level / f"{number}.txt"
        write(file, json.dumps({**ARTICLE, "id": f"{level}{number}.txt"}))
    wanted = [
        Choice(f"high1.txt-{number}", "Long ago.", seconds, 1 - number)
        for number, seconds in enumerate(ASKED)
    ]
    assert choices(path)[:2] == wanted
    assert [example.id for example in choices(tmp_path / "train")] == [
        f"{name}.txt-{number}" for name in ("high9", "high10", "middle2") for number in (0, 1)
    ]
    assert [example.id[:6] for example in choices(path, ReadOptions(level="middle"))] == [
        "middle"
    ] * 2
    assert len(choices(tmp_path / "train", ReadOptions(level="high"))) == 4
    assert choices(tmp_path / "train")[0][1:] == wanted[0][1:]


def test_races_answers_are_letters_even_if_an_option_is_a_letter(tmp_path: Path) -> None:
    asked = {"questions": ["Which blood type is _ ?"], "options": [["B", "A", "AB", "O"]]}
    for letter, label in zip("ABCD", range(4), strict=True):
        path = write(tmp_path / f"{letter}.jsonl", jsonl({**ARTICLE, **asked, "answers": [letter]}))
        assert [example.label for example in choices(path)] == [label]


def test_letters_count_as_letters_unless_all_of_a_file_are_texts(tmp_path: Path) -> None:
    blood = {"article": "x", "question": "Which?", "options": ["B", "A", "AB"], "answer": "A"}
    other = {**blood, "options": ["no", "so", "if"], "answer": "C"}
    path = write(tmp_path / "a.jsonl", jsonl(blood, other))
    assert [example.label for example in choices(path)] == [0, 2]
    path = write(tmp_path / "b.jsonl", jsonl(blood, {**blood, "answer": "B"}))
    assert [example.label for example in choices(path)] == [1, 0]


def test_races_articles_must_be_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl(ARTICLE, {**ARTICLE, "answers": ["A"]}))
    assert f"{path}:2 needs as many answers as questions" in refusal(lambda: choices(path))
    path = write(tmp_path / "b.jsonl", jsonl({**ARTICLE, "answers": ["A", "E"]}))
    assert f"{path}:1 gives 'E' as the right answer" in refusal(lambda: choices(path))
    (tmp_path / "none").mkdir()
    assert "has no article" in refusal(lambda: choices(tmp_path / "none"))
    file = write(tmp_path / "dev" / "high" / "1.txt", '{"article": "x",\n "questions": [')
    assert f"{file}:2 is not JSON" in refusal(lambda: choices(tmp_path / "dev"))
    bare = write(tmp_path / "c.jsonl", jsonl({**ARTICLE, "answers": None}))
    assert [example.label for example in choices(bare, ReadOptions(labelled=False))] == [None, None]


def test_a_run_of_underscores_is_one_blank() -> None:
    assert joined("It is ____ and _.", r"\1 x") == r"It is \1 x and \1 x."
    assert joined("Why?", "so") == "Why? so"


@pytest.mark.parametrize(
    ("answer", "label"), [(1, 1), ("B", 1), ("b", 1), ("so", 1), ("1", 1), ("0", 2), (1.0, 1)]
)
def test_a_choice_is_named_by_number_letter_or_text(
    tmp_path: Path, answer: object, label: int
) -> None:
    row = {"question": "Why?", "choices": ["no", "so", "0"], "answer": answer}
    path = write(tmp_path / "a.jsonl", jsonl(row))
    assert choices(path) == [Choice("0", "Why?", ("no", "so", "0"), label)]


def test_a_label_column_counts_before_it_spells(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "question,choice0,choice1,label\nWhich?,1,0,0\n")
    assert choices(path)[0].label == 0


def test_choices_come_as_lists_records_or_lists_by_name(tmp_path: Path) -> None:
    ways = [
        ["x", "y"],
        {"text": ["x", "y"], "label": ["A", "B"]},
        [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}],
    ]
    for way in ways:
        row = {"context": "It rains.", "question": "Why?", "choices": way, "answerKey": "B"}
        path = write(tmp_path / "a.jsonl", jsonl(row))
        assert choices(path) == [Choice("0", "It rains.", ("Why? x", "Why? y"), 1)]


@pytest.mark.parametrize(("answer", "label"), [("1", 0), ("2", 1), (3, 2)])
def test_a_choice_is_named_as_its_file_names_it(tmp_path: Path, answer: object, label: int) -> None:
    named = {"text": ["Mars", "Moon", "Sun"], "label": ["1", "2", "3"]}
    row = {"question": "What shines?", "choices": named, "answerKey": answer}
    assert choices(write(tmp_path / "a.jsonl", jsonl(row)))[0].label == label


def test_numbered_columns_come_by_their_numbers(tmp_path: Path) -> None:
    head = "question,choice10,choice2,choice1,label\n"
    path = write(tmp_path / "a.csv", head + "Which?,ten,two,one,0\n")
    assert choices(path)[0].seconds == ("one", "two", "ten")


@pytest.mark.parametrize("bad", [{"options": [["x", 1]]}, {"options": ["xy"]}, {"questions": [1]}])
def test_an_article_without_texts_is_refused(tmp_path: Path, bad: dict[str, object]) -> None:
    article = {"article": "It.", "questions": ["Why?"], "options": [["x", "y"]], "answers": ["A"]}
    path = write(tmp_path / "a.jsonl", jsonl({**article, **bad}))
    assert "no two texts as its options" in refusal(lambda: choices(path))


def test_choices_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    row = {"question": "Why?", "choices": ["no", "so"], "answer": 1}
    for bad, sentence in (
        ({"answer": 2}, "gives 2 as the right answer, which is none of its 2 choices"),
        ({"answer": None}, "does not say which choice is right"),
        ({"choices": ["no"]}, "has fewer than two choices"),
    ):
        path = write(tmp_path / "a.jsonl", jsonl(row, {**row, **bad}))
        assert f"{path}:2 {sentence}" in refusal(partial(choices, path))
    path = write(tmp_path / "b.jsonl", jsonl({"question": "Why?", "answer": 1}))
    assert "column for the choices" in refusal(lambda: choices(path))
    path = write(tmp_path / "c.jsonl", jsonl({"choices": ["no", "so"], "answer": 1}))
    assert "column for the first" in refusal(lambda: choices(path))


# --- documents ---------------------------------------------------------------------------------


def coref(*rows: str, begin: str = "#begin document (nw/a); part 001") -> str:
    lines = []
    for number, row in enumerate(rows):
        word, *bracket = row.split(" ")
        cells = ["nw/a", "1", str(number), word, "_", *(bracket or ["-"])]
        lines.append("\t".join(cells) if row else "")
    return "\n".join([begin, *lines, "#end document", ""])


def test_brackets_become_mentions(tmp_path: Path) -> None:
    rows = (
        "The (4",
        "cat (0)|4)",
        "",
        "saw (3",
        "it (0)|(3",
        "there 3)",
        "in 3)",
        "it (0)",
        "it (0)",
        "it (0)",
        "",
    )
    path = write(tmp_path / "a.conll", coref(*rows) + coref("x (1)", begin="#begin document (b)"))
    first, second = documents(path)
    assert first.sentences == (("The", "cat"), ("saw", "it", "there", "in", "it", "it", "it"))
    assert first.id == "nw/a_1" and second.id == "b_0"
    assert first.clusters == (
        (Mention(0, 1),),
        (Mention(1, 1), *(Mention(at, at) for at in (3, 6, 7, 8))),
        (Mention(2, 5), Mention(3, 4)),
    )
    assert second.clusters == ((Mention(0, 0),),)


def test_an_empty_last_column_and_columns_apart_by_spaces_load_right(tmp_path: Path) -> None:
    tabs = write(tmp_path / "a.conll", "#begin document (a); part 0\na\t0\t0\tHe\t_\t\n")
    assert documents(tabs) == [Document("a_0", (("He",),), ())]
    spaces = write(tmp_path / "b.conll", "#begin document (a); part 0\na   0  0  He  PRP  (2)\n")
    assert documents(spaces)[0].clusters == ((Mention(0, 0),),)


def test_brackets_that_do_not_match_are_refused_with_their_line(tmp_path: Path) -> None:
    for rows, sentence in (
        (("a -", "b 7)"), ":3 closes 7), which is not open"),
        (("a -", "b (7", "c -"), ":3 opens (7, which nothing closes"),
        (("a -", "b seven"), ":3 has 'seven' in its last column"),
    ):
        path = write(tmp_path / "a.conll", coref(*rows))
        assert f"{path}{sentence}" in refusal(partial(documents, path))
    path = write(tmp_path / "b.conll", "#begin document (a); part 0\na\t0\tHe\n")
    assert f"{path}:2 has 3 columns where at least 5" in refusal(lambda: documents(path))
    assert "is empty" in refusal(lambda: documents(write(tmp_path / "c.conll", "\n")))


def test_documents_of_json_lines_are_read_and_their_mentions_checked(tmp_path: Path) -> None:
    record = {"id": "d", "sentences": [["He", "ran"], ["He"]], "clusters": [[[2, 2], [0, 0]]]}
    path = write(tmp_path / "a.jsonl", jsonl(record))
    assert documents(path) == [
        Document("d", (("He", "ran"), ("He",)), ((Mention(0, 0), Mention(2, 2)),))
    ]
    for clusters in ([[[2, 3]]], [[[1, 0]]], [[2, 2]], [[["a", "b"]]]):
        path = write(tmp_path / "b.jsonl", jsonl(record, {**record, "clusters": clusters}))
        message = refusal(partial(documents, path))
        assert f"{path}:2 has the mention" in message and "of 3 words" in message
    path = write(tmp_path / "c.jsonl", jsonl({"sentences": [["He"]]}))
    assert "column for the clusters" in refusal(lambda: documents(path))
    assert documents(path, ReadOptions(labelled=False))[0].clusters is None
    path = write(tmp_path / "d.jsonl", jsonl({**record, "sentences": ["He ran"]}))
    assert f"{path}:1 needs a list of lists" in refusal(lambda: documents(path))


# --- GAP ---------------------------------------------------------------------------------------

HEAD = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
TEXT = "Dr. Ann Lee's sister didn't see M*ra J. Smith. She said \"no\". Later, Ann left."


def row(a: str = "TRUE", b: str = "FALSE", at: int | None = None) -> str:
    places = [("She", "She", ""), ("Ann Lee", "Ann Lee", a), ("M*ra J. Smith", "M*ra", b)]
    cells = ["t-1", TEXT]
    for name, start, truth in places:
        cells += [name, str(TEXT.index(start) if at is None else at), *([truth] if truth else [])]
    return "\t".join([*cells, "url"]) + "\n"


def test_gaps_texts_become_words_and_mentions(tmp_path: Path) -> None:
    (document,) = gap(write(tmp_path / "a.tsv", HEAD + row()))
    pronoun = document.pronoun
    assert pronoun is not None
    words = [word for sentence in document.sentences for word in sentence]
    assert len(document.sentences) == 3
    assert words[:9] == ["Dr", ".", "Ann", "Lee", "'s", "sister", "did", "n't", "see"]

    def words_of(mention: Mention) -> list[str]:
        return words[mention.first : mention.last + 1]

    assert words_of(pronoun.mention) == ["She"] and pronoun.word == "She"
    assert words_of(pronoun.a) == ["Ann", "Lee"]
    assert words_of(pronoun.b) == ["M*ra", "J", ".", "Smith"]
    assert (pronoun.is_a, pronoun.is_b) == (True, False)
    assert document.clusters == ((pronoun.a, pronoun.mention),)


def test_gaps_pronoun_may_stand_for_neither_name_or_nobody_says(tmp_path: Path) -> None:
    (document,) = gap(write(tmp_path / "a.tsv", HEAD + row("FALSE", "FALSE")))
    pronoun = document.pronoun
    assert pronoun is not None
    assert document.clusters == () and pronoun.is_a is False
    bare = (HEAD + row()).replace("A-coref\t", "").replace("B-coref\t", "")
    bare = bare.replace("\tTRUE", "").replace("\tFALSE", "")
    (document,) = gap(write(tmp_path / "b.tsv", bare))
    pronoun = document.pronoun
    assert pronoun is not None
    assert document.clusters is None and pronoun.is_a is None and pronoun.is_b is None


def test_gaps_words_end_where_a_mention_does(tmp_path: Path) -> None:
    text = "Annie saw Bob. She left."
    cells = ["t", text, "She", "15", "Ann", "0", "TRUE", "Bob", "10", "FALSE", "url"]
    (document,) = gap(write(tmp_path / "a.tsv", HEAD + "\t".join(cells) + "\n"))
    pronoun = document.pronoun
    assert pronoun is not None
    assert document.sentences[0][:2] == ("Ann", "ie") and pronoun.a == Mention(0, 0)


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", HEAD + row() + row(at=1))
    assert f"{path}:3 has no 'She' at character 1" in refusal(lambda: gap(path))
    path = write(tmp_path / "b.tsv", HEAD + row("PERHAPS"))
    assert f"{path}:2 has 'perhaps' as A-coref" in refusal(lambda: gap(path))
    path = write(tmp_path / "c.tsv", "ID\tText\n1\tx\n")
    assert "has no column Pronoun" in refusal(lambda: gap(path))


@pytest.mark.parametrize("column", ["abc", "-1", "1.5"])
def test_a_column_of_a_conll_file_goes_by_number(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "a.conll", "d\t0\t0\tAnna\t(0)\n")
    message = refusal(lambda: documents(path, ReadOptions(columns={"sentences": column})))
    assert (
        f"--columns sentences={column} is not a column of {path}; columns are numbered" in message
    )
    assert documents(path, ReadOptions(columns={"sentences": "2"}))[0].sentences == (("0",),)
    message = refusal(lambda: documents(path, ReadOptions(columns={"sentence": "2"})))
    assert "has no role 'sentence'; did you mean sentences?" in message
