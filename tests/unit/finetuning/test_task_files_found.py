"""Tasks by name and tasks of one's own files: where splits lie, their labels, what is sent in."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from support.labelled_files import jsonl, refusal, write

from clozelab.finetuning.examples import (
    Class,
    Clusters,
    Mention,
    Number,
    Picked,
    Sentences,
    Span,
    Tags,
)
from clozelab.finetuning.files import hub as hubs
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.files.questions import NOT_FOUND, SKIPPED
from clozelab.finetuning.files.splits import find, own, write_submission
from clozelab.finetuning.kinds import KINDS, Tag

NLI = "index\tsentence1\tsentence2\tgold_label\n0\tx\ty\tneutral\n"


# --- tasks by name -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_every_named_task_makes_its_kind_of_task(name: str) -> None:
    named = NAMED[name]
    assert named.name == name and named.title and named.folders
    assert KINDS[named.kind](**named.settings).name == named.kind  # type: ignore[arg-type]
    assert set(named.submission) <= set(named.splits)


@pytest.mark.parametrize("inside", ["CoLA", "glue/CoLA", "glue_data/CoLA", "cola"])
def test_glues_folders_are_found_and_cola_has_no_header(tmp_path: Path, inside: str) -> None:
    folder = tmp_path / inside
    write(folder / "train.tsv", 'gj04\t1\t\tHe said "so.\ngj04\t0\t*\tHim so.\n')
    write(folder / "dev.tsv.xz", lzma.compress(b"gj04\t1\t\tYes.\n"))
    write(folder / "test.tsv", "index\tsentence\n0\tNo.\n")
    splits = find("cola", tmp_path)
    assert splits.read("train") == [
        Sentences("0", 'He said "so.', None, "1"),
        Sentences("1", "Him so.", None, "0"),
    ]
    assert splits.read("dev") == [Sentences("0", "Yes.", None, "1")]
    assert splits.read("test") == [Sentences("0", "No.", None, None)]
    assert splits.kind == "classify" and splits.settings["metrics"] == ("matthews",)
    assert not splits.notes and not splits.counts.numbers


def test_the_folder_itself_may_be_named(tmp_path: Path) -> None:
    write(tmp_path / "SST-2" / "dev.tsv", "sentence\tlabel\nfine \t1\n")
    assert find("sst2", tmp_path / "SST-2").read("dev") == [Sentences("0", "fine", None, "1")]


def test_mnli_has_two_sets_of_dev_and_of_test(tmp_path: Path) -> None:
    head = "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n"
    for split in ("train", "dev_matched", "dev_mismatched"):
        write(tmp_path / "MNLI" / f"{split}.tsv", f"{head}0\t1\tx\t{split}\tneutral\tentailment\n")
    write(tmp_path / "MNLI" / "test_mismatched.tsv", "index\tsentence1\tsentence2\n5\tx\ty\n")
    splits = find("mnli", tmp_path)
    assert set(splits.splits) == {"train", "dev", "dev_mismatched", "test_mismatched"}
    assert splits.read("dev")[0][2:] == ("dev_matched", "entailment")
    assert splits.read("dev_mismatched")[0][2:] == ("dev_mismatched", "entailment")
    assert splits.read("test_mismatched") == [Sentences("5", "x", "y", None)]


def test_a_subset_is_found_and_called_one_but_the_whole_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "mnli_subset" / "train.tsv", NLI)
    write(tmp_path / "mnli_subset" / "dev_matched.tsv", NLI)
    assert find("mnli", tmp_path).notes == ("mnli_subset is a subset of mnli",)
    write(tmp_path / "glue" / "MNLI" / "train.tsv", NLI)
    write(tmp_path / "glue" / "MNLI" / "dev_matched.tsv", NLI)
    assert find("mnli", tmp_path).notes == ()


def test_a_label_that_the_task_does_not_have_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "RTE" / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tx\ty\tno\n")
    message = refusal(lambda: find("rte", tmp_path).read("dev"))
    assert f"{path}:2 has the label 'no', which is none of entailment, not_entailment" in message


def test_qqps_broken_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = "1\t2\t3\tWhy?\tHow?\t0\n4\t5\t6\tWhere\nis it?\tHere?\t1\n"
    write(tmp_path / "QQP" / "train.tsv", head + rows)
    splits = find("qqp", tmp_path)
    assert splits.read("train") == [Sentences("1", "Why?", "How?", "0")]
    assert sum(splits.counts.numbers.values()) == 2
    splits.read("train")
    assert sum(splits.counts.numbers.values()) == 2, "read once, counted once"


def test_missing_data_is_refused_with_the_layout_and_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refusal(lambda: find("squad2", tmp_path))
    assert (
        f"{tmp_path} has no data for squad2; give --task-data DIR or set CLOZELAB_DATA" in message
    )
    assert "DIR/squad/\n    train-v2.0.json\n    dev-v2.0.json" in message
    monkeypatch.delenv("CLOZELAB_DATA", raising=False)
    assert "give --task-data DIR or set CLOZELAB_DATA" in refusal(lambda: find("squad2", None))
    write(tmp_path / "WNLI" / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tx\ty\t1\n")
    monkeypatch.setenv("CLOZELAB_DATA", str(tmp_path))
    assert len(find("wnli", None).read("dev")) == 1
    assert "did you mean squad2?" in refusal(lambda: find("squad", None))


def test_a_split_that_is_not_there_is_refused_only_when_asked_for(tmp_path: Path) -> None:
    paragraph = {
        "context": "他在家。",
        "qas": [{"id": "1", "question": "在哪？", "answers": [{"text": "家", "answer_start": 2}]}],
    }
    write(tmp_path / "drcd" / "DRCD_dev.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    splits = find("drcd", tmp_path)
    assert len(splits.read("dev")) == 1 and splits.settings == {"language": "chinese"}
    message = refusal(lambda: splits.read("train"))
    assert "drcd has no train split here, only dev" in message and "DRCD_training.json" in message


def test_squads_train_skips_what_cannot_be_found_and_its_dev_does_not(tmp_path: Path) -> None:
    asks = [
        {"id": str(n), "question": "?", "answers": [{"text": text, "answer_start": 0}]}
        for n, text in enumerate(["here", "gone"])
    ]
    content = json.dumps({"data": [{"paragraphs": [{"context": "here", "qas": asks}]}]})
    for split in ("train", "dev"):
        write(tmp_path / "squad" / f"{split}-v1.1.json", content)
    splits = find("squad1", tmp_path)
    assert len(splits.read("train")) == 1 and len(splits.read("dev")) == 2
    assert splits.counts.numbers == {NOT_FOUND: 2, SKIPPED: 1}


def test_race_is_split_by_school(tmp_path: Path) -> None:
    article = {"article": "x", "questions": ["?"], "options": [["a", "b"]], "answers": ["B"]}
    for level in ("middle", "high"):
        file = tmp_path / "RACE" / "dev" / level / "7.txt"
        write(file, json.dumps({**article, "id": f"{level}7.txt"}))
    assert [example.id for example in find("race_high", tmp_path).read("dev")] == ["high7.txt-0"]
    assert [example.id for example in find("race_middle", tmp_path).read("dev")] == [
        "middle7.txt-0"
    ]
    assert len(find("race", tmp_path).read("dev")) == 2


def test_every_tenth_document_of_litbank_is_dev(tmp_path: Path) -> None:
    texts = [
        f"#begin document (d{n:02}); part 0\nd\t0\t0\tHe\t_\t(0)\n#end document\n"
        for n in range(20)
    ]
    write(tmp_path / "litbank" / "coref.conll.xz", lzma.compress("".join(texts).encode()))
    splits = find("litbank", tmp_path)
    assert [example.id for example in splits.read("dev")] == ["d09_0", "d19_0"]
    assert len(splits.read("train")) == 18
    assert "every tenth document is dev" in splits.notes[0]
    for number, content in enumerate(texts):
        write(tmp_path / "other" / "litbank" / "coref" / "conll" / f"{number:02}.conll", content)
    apart = find("litbank", tmp_path / "other")
    assert apart.read("dev") == splits.read("dev") and apart.read("train") == splits.read("train")


def test_the_years_of_sts_are_tasks_of_their_own(tmp_path: Path) -> None:
    head = "year\tfile\tscore\tsentence1\tsentence2\n"
    rows = "2012\tMSRpar\t4.5\ta\tb\n2013\tFNWN\t0\tc\td\n2012\tMSRpar\t2\te\tf\n"
    file = write(tmp_path / "sts" / "sts12-16.test.tsv", head + rows)
    wanted = [Sentences("MSRpar 0", "a", "b", 4.5), Sentences("MSRpar 1", "e", "f", 2.0)]
    assert find("sts12", tmp_path).read("test") == wanted
    write(file, head + rows.replace("4.5", "?"))
    assert f"{file}:2 has '?' instead of a number" in refusal(
        lambda: find("sts12", tmp_path).read("test")
    )
    write(file, head.replace("score", "scores") + rows)
    assert "has no column for the label" in refusal(lambda: find("sts12", tmp_path).read("test"))


def test_gap_says_what_is_asked_of_each_text(tmp_path: Path) -> None:
    head = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    row = "v-1\tAnn saw Bea. She left.\tShe\t13\tAnn\t0\tTRUE\tBea\t8\tFALSE\tu\n"
    write(tmp_path / "gap" / "gap-validation.tsv", head + row)
    splits = find("gap", tmp_path)
    question = splits.read("dev")[0]
    assert question.id == "v-1"
    assert question.pronoun.mention == Mention(4, 4)


def test_chinese_columns_go_by_number_and_clues_json_by_name(tmp_path: Path) -> None:
    write(tmp_path / "tnews" / "train.tsv", "标题\tnews_edu\n")
    write(
        tmp_path / "tnews" / "dev.json",
        jsonl({"label": "108", "label_desc": "news_edu", "sentence": "标题"}),
    )
    write(tmp_path / "afqmc" / "test.txt", "一\t二\n")
    write(
        tmp_path / "afqmc" / "dev.json", jsonl({"sentence1": "一", "sentence2": "二", "label": "1"})
    )
    tnews, afqmc = find("tnews", tmp_path), find("afqmc", tmp_path)
    assert tnews.read("train")[0][1:] == tnews.read("dev")[0][1:] == ("标题", None, "news_edu")
    assert afqmc.read("test")[0][1:] == ("一", "二", None)
    assert afqmc.read("dev")[0][1:] == ("一", "二", "1")


def test_ocnli_takes_its_largest_file_and_skips_what_nobody_agreed_on(tmp_path: Path) -> None:
    pair = {"sentence1": "x", "sentence2": "y", "label": "neutral", "id": 3}
    content = jsonl(pair, {**pair, "label": "-"})
    write(tmp_path / "ocnli" / "train.3k.json", content)
    splits = find("ocnli", tmp_path)
    assert len(splits.read("train")) == 1 and sum(splits.counts.numbers.values()) == 1
    assert "3,000 pairs" in splits.notes[0]
    write(tmp_path / "ocnli" / "train.50k.json", content)
    assert find("ocnli", tmp_path).notes == ()


# --- one's own files ---------------------------------------------------------------------------


def table(path: Path, *labels: str) -> Path:
    return write(
        path, "text\tlabel\n" + "".join(f"x{n}\t{label}\n" for n, label in enumerate(labels))
    )


def test_labels_are_those_of_the_training_file_in_order(tmp_path: Path) -> None:
    train = table(tmp_path / "a.tsv", "sad", "glad", "sad")
    splits = own("classify", train=train, dev=table(tmp_path / "b.tsv", "glad"))
    assert splits.settings == {"labels": ("glad", "sad"), "pair": False}
    assert len(splits.read("train")) == 3 and len(splits.read("dev")) == 1
    numbers = own("classify", train=table(tmp_path / "c.tsv", "10", "9", "-1"))
    assert numbers.settings["labels"] == ("-1", "9", "10")
    # Equal as numbers: the order of a set, which differs between processes, must not decide.
    alike = own("classify", train=table(tmp_path / "d.tsv", "1", "01", "001", "0001", "00001"))
    assert alike.settings["labels"] == ("00001", "0001", "001", "01", "1")


def test_a_label_of_dev_that_train_has_not_is_refused_with_its_line(tmp_path: Path) -> None:
    train, dev = table(tmp_path / "a.tsv", "sad", "glad"), table(tmp_path / "b.tsv", "sad", "odd")
    message = refusal(lambda: own("classify", train=train, dev=dev))
    assert f"{dev}:3 has the label 'odd', which is none of glad, sad" in message


def test_labels_may_be_given_where_nothing_is_trained(tmp_path: Path) -> None:
    dev = table(tmp_path / "b.tsv", "sad")
    splits = own("classify", dev=dev, labels=("glad", "sad"))
    assert splits.settings["labels"] == ("glad", "sad")
    assert "none of x, y" in refusal(lambda: own("classify", dev=dev, labels=("x", "y")))


def test_an_empty_dev_set_is_refused(tmp_path: Path) -> None:
    train, dev = table(tmp_path / "a.tsv", "sad"), write(tmp_path / "b.tsv", "")
    assert f"{dev} is empty" in refusal(lambda: own("classify", train=train, dev=dev))


def test_a_test_set_may_lack_labels(tmp_path: Path) -> None:
    test = write(tmp_path / "t.tsv", "text\nx\n\n")
    splits = own("classify", train=table(tmp_path / "a.tsv", "0", "1"), test=test)
    assert splits.read("test") == [Sentences("0", "x", None, None)]


def test_pairs_and_numbers_are_told_by_their_columns(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.tsv", "premise\thypothesis\tlabel\nx\ty\t0.5\nx\tz\t1.5\n")
    assert own("pairs", train=pairs).settings == {"labels": ("0.5", "1.5"), "pair": True}
    assert own("pairs", train=pairs).kind == "classify"
    splits = own("regress", train=pairs)
    assert splits.settings == {"pair": True} and splits.read("train")[0][2:] == ("y", 0.5)
    single = own("regress", train=write(tmp_path / "b.tsv", "text\tscore\nx\t2\n"))
    assert single.settings == {"pair": False} and single.read("train")[0][2:] == (None, 2.0)
    bare = write(tmp_path / "c.tsv", "x\ty\t3\n")
    columns = {"first": "0", "second": "1", "label": "2"}
    assert own("regress", train=bare, columns=columns).settings == {"pair": True}


def test_one_class_alone_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.tsv", "text\tlabel\nx\tgood\ny\tgood\n")
    assert "has only the class good" in refusal(lambda: own("classify", train=train))


def test_tags_are_collected_with_the_outside_one_first(tmp_path: Path) -> None:
    train = write(tmp_path / "a.conll", "x B-LOC\ny A-x\nz O\n")
    assert own("tag", train=train).settings["tags"] == ("O", "A-x", "B-LOC")
    dev = write(tmp_path / "b.conll", "x O\ny I-LOC\n")
    assert f"{dev}:2 has the tag 'I-LOC'" in refusal(lambda: own("tag", train=train, dev=dev))


def test_tags_that_name_no_entities_are_scored_by_accuracy(tmp_path: Path) -> None:
    speech = write(tmp_path / "speech.conll", "Cats\tNNS\nsleep\tVBP\n!\tO\n\nDogs\tNNS\n")
    splits = own("tag", train=speech)
    assert splits.settings == {"tags": ("O", "NNS", "VBP"), "metrics": ("accuracy",)}
    assert splits.notes == ("tags such as NNS name no entities; models are compared by accuracy",)
    assert Tag(**splits.settings).metrics == ("accuracy",)  # type: ignore[arg-type]
    people = write(tmp_path / "people.conll", "Anna\tB-PER\nsleeps\tO\n")
    assert own("tag", train=people).settings == {"tags": ("O", "B-PER")}
    assert own("tag", train=people).notes == ()


def test_the_other_kinds_settings_come_from_the_examples(tmp_path: Path) -> None:
    row = {"question": "Why?", "choices": ["a", "b"], "answer": 0}
    train = write(tmp_path / "a.jsonl", jsonl(row))
    dev = write(tmp_path / "b.jsonl", jsonl({**row, "choices": ["a", "b", "c"]}))
    assert own("choose", train=train, dev=dev).settings == {"choices": 3}
    english = {"question": "Who?", "context": "A cat.", "answers": "cat"}
    asks = write(tmp_path / "c.jsonl", jsonl(english, {**english, "answers": []}))
    assert own("answer", train=asks).settings == {"impossible": True, "language": "english"}
    chinese = {"question": "谁？", "context": "一只猫在家里睡觉。", "answers": "猫"}
    asks = write(tmp_path / "d.jsonl", jsonl(chinese))
    assert own("answer", train=asks).settings == {"impossible": False, "language": "chinese"}
    clusters = {"sentences": [["He"]], "clusters": [[[0, 0]]]}
    path = write(tmp_path / "e.jsonl", jsonl(clusters))
    assert own("coreference", train=path).settings == {}


def test_what_is_no_kind_of_task_is_refused(tmp_path: Path) -> None:
    assert "kind of task 'join' is unknown; use classify, " in refusal(
        lambda: own("join", train="x")
    )
    assert "did you mean classify?" in refusal(lambda: own("clasify", train="x"))
    assert "did you mean classify?" in refusal(lambda: find("clasify", None))
    assert "did you mean sst2?" in refusal(lambda: find("sts2", None))
    assert "no file is named" in refusal(lambda: own("classify"))
    assert "does not exist" in refusal(lambda: own("classify", train=tmp_path / "x.tsv"))


# --- datasets ----------------------------------------------------------------------------------


class Data(list[dict[str, object]]):
    features: ClassVar = {
        "sentence": SimpleNamespace(),
        "label": SimpleNamespace(names=["bad", "good"]),
        "words": SimpleNamespace(feature=SimpleNamespace()),
        "ner_tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B-x"])),
    }


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, str]]:
    """A module in the place of `datasets`; what it was asked for."""
    requests: list[tuple[str, str | None, str]] = []

    def load_dataset(name: str, subset: str | None, *, split: str) -> Data:
        requests.append((name, subset, split))
        if split not in ("train", "validation", "test"):
            raise ValueError(f"Unknown split {split!r}.\nMore.")
        number = -1 if split == "test" else 1
        row = {"sentence": "x", "label": number, "words": ["a", "b"], "ner_tags": [0, 1]}
        return Data([row, {**row, "label": min(number, 0)}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr(hubs, "find_spec", lambda name: SimpleNamespace(origin="here"))
    return requests


def test_a_dataset_is_read_by_its_name_and_its_classes_by_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = stand_in(monkeypatch)
    splits = own("classify", train="hf:some/thing/part", dev="some/thing", test="hf:thing:test")
    assert splits.settings["labels"] == ("bad", "good")
    assert splits.read("train")[0] == Sentences("0", "x", None, "good")
    assert [example.label for example in splits.read("test")] == [None, None]  # type: ignore[union-attr]
    assert requests == [
        ("some/thing", "part", "train"),
        ("some/thing", None, "validation"),
        ("thing", None, "test"),
    ]
    assert own("tag", train="hf:thing").settings == {"tags": ("O", "B-x")}


def test_a_dataset_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    message = refusal(lambda: own("classify", train="hf:some/thing:odd"))
    assert "hf:some/thing:odd has no split odd that can be read (Unknown split 'odd'.)" in message
    assert "say hf:some/thing:SPLIT" in message
    assert "is not a dataset" in refusal(lambda: own("classify", train="hf:a b"))


def test_without_datasets_the_package_to_install_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hubs, "find_spec", lambda name: None)
    assert "pip install clozelab[datasets]" in refusal(lambda: own("classify", train="hf:thing"))
    folder = SimpleNamespace(origin=None)
    monkeypatch.setattr(hubs, "find_spec", lambda name: folder)
    assert "pip install clozelab[datasets]" in refusal(lambda: own("classify", train="hf:thing"))
    monkeypatch.chdir(tmp_path)
    assert hubs.is_hub("some/thing")
    assert not hubs.is_hub("some/train.tsv")
    write(tmp_path / "some" / "other", "x")
    assert not hubs.is_hub("some/thing"), "a folder that is there means files"


# --- what is sent in ---------------------------------------------------------------------------


def predicted_class(label: str) -> Class:
    return Class(label, {label: 1.0})


def test_glues_files_have_their_names_header_and_spellings(tmp_path: Path) -> None:
    write(tmp_path / "QNLI" / "test.tsv", "index\tquestion\tsentence\n7\tWhy?\tSo.\n9\tHow?\tSo.\n")
    splits = find("qnli", tmp_path)
    predictions = [predicted_class("not_entailment"), predicted_class("entailment")]
    path = write_submission(splits, "test", predictions=predictions, folder=tmp_path / "out")
    assert path == tmp_path / "out" / "QNLI.tsv"
    assert path.read_text() == "index\tprediction\n7\tnot_entailment\n9\tentailment\n"
    assert "2 examples but there are 1" in refusal(
        lambda: write_submission(splits, "test", predictions=predictions[:1], folder=tmp_path)
    )


def test_glues_file_names_are_the_official_ones() -> None:
    sent = [name for task in NAMED.values() for name in task.submission.values()]
    assert set(sent) >= {
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv"),
        *("MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv", "predictions.json"),
    }


def test_stsbs_numbers_stay_on_its_scale(tmp_path: Path) -> None:
    write(tmp_path / "STS-B" / "test.tsv", "index\tsentence1\tsentence2\n0\tx\ty\n1\tx\ty\n")
    splits = find("stsb", tmp_path)
    numbers = [Number(5.2), Number(1.23456)]
    path = write_submission(splits, "test", predictions=numbers, folder=tmp_path)
    assert path.read_text() == "index\tprediction\n0\t5.000\n1\t1.235\n"


def test_answers_are_sent_as_texts_by_id(tmp_path: Path) -> None:
    row = {"id": "q", "question": "?", "context": "家", "answers": "家"}
    splits = own("answer", dev=write(tmp_path / "a.jsonl", jsonl(row)))
    spans = [Span("家", 1.0, None, ())]
    path = write_submission(splits, "dev", predictions=spans, folder=tmp_path / "o")
    assert json.loads(path.read_text(encoding="utf-8")) == {"q": "家"}
    assert not (tmp_path / "o" / "null_odds.json").exists()
    spans = [Span("", 1.0, 2.5, ())]
    write_submission(splits, "dev", predictions=spans, folder=tmp_path / "o")
    assert json.loads((tmp_path / "o" / "null_odds.json").read_text()) == {"q": 2.5}


def test_choices_are_sent_as_letters_or_numbers(tmp_path: Path) -> None:
    article = {"id": "high1.txt", "article": "x", "questions": ["?"], "options": [["a", "b"]]}
    write(tmp_path / "race" / "test.jsonl", jsonl(article))
    picked = [Picked(1, (0.1, 0.9))]
    path = write_submission(find("race", tmp_path), "test", predictions=picked, folder=tmp_path)
    assert path.read_text() == "index\tprediction\nhigh1.txt-0\tB\n"
    row = {"ind": 3, "ctx": "x", "endings": ["a", "b"]}
    write(tmp_path / "hellaswag" / "test.jsonl", jsonl(row))
    splits = find("hellaswag", tmp_path)
    path = write_submission(splits, "test", predictions=picked, folder=tmp_path)
    assert path.read_text() == "index\tprediction\n3\t1\n"


def test_tags_and_clusters_are_written_as_they_are_read(tmp_path: Path) -> None:
    splits = own("tag", train=write(tmp_path / "a.conll", "x O\ny B-x\n\nz O\n"))
    tags = [Tags(("B-x", "O"), (1.0, 1.0)), Tags(("O",), (1.0,))]
    path = write_submission(splits, "train", predictions=tags, folder=tmp_path)
    assert [example.tags for example in own("tag", train=path).read("train")] == [
        ("B-x", "O"),
        ("O",),
    ]  # type: ignore[union-attr]
    record = {"id": "d", "sentences": [["He", "ran"]], "clusters": []}
    splits = own("coreference", dev=write(tmp_path / "b.jsonl", jsonl(record)))
    clusters = ((Mention(0, 0), Mention(1, 1)),)
    path = write_submission(splits, "dev", predictions=[Clusters(clusters)], folder=tmp_path)
    assert own("coreference", dev=path).read("dev")[0].clusters == clusters  # type: ignore[union-attr]
