"""The commands on tasks: what they put out, and the sentence that every mistake is met with."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.text import Text
from support.commands import output_of, run_command
from support.finetune_tasks import SHORT, STILL, base_model, sample_file
from support.labelled_files import jsonl, write
from support.processes import run_process

import clozelab
from clozelab import cli
from clozelab.api.predicting import PassageAnswer, Predictions
from clozelab.cli.console import out
from clozelab.cli.views import models as views
from clozelab.files import sha256
from clozelab.finetuning.examples import (
    Candidate,
    Choice,
    Class,
    Clusters,
    Document,
    Mention,
    Number,
    Picked,
    Sentences,
    Span,
    Tagged,
    Tags,
)
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.kinds import KINDS

HEART = ("batch_size=8", "learning_rate=2e-3", "length=64", "epochs=50")
NLI = ("contradiction", "entailment", "neutral")
TEXTS = ["a small furry animal", "a machine for printing books", "a bird that cannot fly"]


def tune(task: str, out: Path, *arguments: str, settings: tuple[str, ...] = SHORT) -> str:
    """Fine-tune by the command; the folder."""
    changes = [word for setting in settings for word in ("--set", setting)]
    command = [
        "finetune",
        base_model(),
        task,
        "--out",
        str(out),
        "--device",
        "cpu",
        *arguments,
        *changes,
    ]
    assert cli.main(command) == 0
    return str(out)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few tasks of GLUE in their usual layout, made up."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("glue")
    lines = Path(sample_file("definitions", 60)).read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    some = "".join(f"{text} \t{int(label > 'noun.b')}\n" for text, label in rows[:24])
    for split in ("train", "dev"):
        write(folder / "SST-2" / f"{split}.tsv", f"sentence\tlabel\n{some}")
    tests = "".join(f"{number}\t{text}\n" for number, (text, _) in enumerate(rows[:7]))
    write(folder / "SST-2" / "test.tsv", f"index\tsentence\n{tests}")
    head = "index\tsentence1\tsentence2"
    pairs = [f"{n}\t{rows[n][0]}\t{rows[n + 1][0]}" for n in range(12)]
    gold = "".join(f"{pair}\t{NLI[n % 3]}\n" for n, pair in enumerate(pairs))
    for split in ("train", "dev_matched", "dev_mismatched"):
        write(folder / "MNLI" / f"{split}.tsv", f"{head}\tgold_label\n{gold}")
    for split, first in (("test_matched", 0), ("test_mismatched", 5)):
        write(folder / "MNLI" / f"{split}.tsv", "\n".join([head, *pairs[first:], ""]))
    write(folder / "diagnostic" / "diagnostic.tsv", "\n".join([head, *pairs[:4], ""]))
    numbers = "".join(f"{pair}\t{n % 6 * 0.9:.3f}\n" for n, pair in enumerate(pairs))
    for split in ("train", "dev"):
        write(folder / "STS-B" / f"{split}.tsv", f"{head}\tscore\n{numbers}")
    write(folder / "STS-B" / "test.tsv", "\n".join([head, *pairs, ""]))
    return folder


@pytest.fixture(scope="module")
def classifier(root: Path) -> str:
    """A model that has learned its few reviews by heart."""
    return tune("sst2", root / "m-sst2", "--task-data", str(root), settings=(*STILL, *HEART))


@pytest.fixture(scope="module")
def pairer(root: Path) -> str:
    return tune("mnli", root / "m-mnli", "--task-data", str(root))


@pytest.fixture(scope="module")
def regressor(root: Path) -> str:
    return tune("stsb", root / "m-stsb", "--task-data", str(root))


@pytest.fixture(scope="module")
def tagger(root: Path) -> str:
    file = sample_file("tags", 12)
    return tune("tag", root / "m-tag", "--train", file, "--dev", file)


@pytest.fixture(scope="module")
def answerer(root: Path) -> str:
    """A model of questions, some of which have no answer."""
    whole = json.loads(Path(sample_file("spans", 24)).read_text(encoding="utf-8"))
    for number, paragraph in enumerate(whole["data"][0]["paragraphs"]):
        if number % 2:
            paragraph["qas"][0] |= {"answers": [], "is_impossible": True}
    file = str(write(root / "questions.json", json.dumps(whole)))
    return tune("answer", root / "m-answer", "--train", file, "--dev", file)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence a mistake is answered with; below it a layout, where data is missing."""
    capsys.readouterr()
    assert cli.main([*arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    first, *rest = captured.err.splitlines()
    assert first.startswith("clozelab: ") and all(line.startswith("  ") for line in rest), (
        captured.err
    )
    return first


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


# Tasks.


def test_tasks_lists_every_task_with_kind_metrics_and_question(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "width", 200)
    table = output_of(capsys, "tasks").splitlines()
    assert [line.split()[0] for line in table[1:]] == list(NAMED)
    assert "mrpc" in table[3] and "accuracy, f1" in table[3] and "classify" in table[3]


def test_a_task_is_told_in_full_with_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    output = output_of(capsys, "tasks", "mnli")
    assert output.startswith("MNLI: ") and "contradiction, entailment, neutral" in output
    files = {line.split()[0]: line.split()[1] for line in output.splitlines() if ".tsv" in line}
    assert files["dev"] == "dev_matched.tsv" and files["test_mismatched"] == "test_mismatched.tsv"
    assert "DIR/MNLI/" in output and "--task-data" in output and "CLOZELAB_DATA" in output
    assert "mnli" in refused(capsys, "tasks", "mnly")


def test_finetune_help_names_every_option_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["finetune", "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    for heading in ("task files:", "machine options:"):
        assert heading in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_several_runs_are_told_in_one_table_and_their_notes_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = sample_file("definitions", 16)
    capsys.readouterr()
    tune("classify", root / "two", "--train", file, "--dev", file, "--seeds", "2", "--grid",
         "layer_decay=0.9,1.0", settings=("batch_size=8", "steps=2", "length=100"))  # fmt: skip
    captured = capsys.readouterr()
    head, *rows, constant = captured.out.splitlines()
    assert head.split() == ["cell", "accuracy", "median", "best", "runs"]
    assert constant.startswith("constant prediction: accuracy ")
    assert [row.split()[0] for row in rows] == ["layer_decay-0.9", "layer_decay-1"]
    assert len({row.index("±") for row in rows}) == 1
    assert captured.err.count("blocks of 64 tokens") == 1
    assert captured.err.splitlines()[-1].startswith(f"{root / 'two'}: the best run is layer_decay-")


# Predict.


def test_texts_are_predicted_a_line_each_wherever_they_come_from(
    classifier: str,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [word for text in TEXTS for word in ("--text", text)]
    wanted = output_of(capsys, "predict", classifier, *options)
    fields = [line.split("\t") for line in wanted.splitlines()]
    assert [text for *_, text in fields] == TEXTS
    assert all(label in "01" and 0.5 <= float(chance) <= 1 for label, chance, _ in fields)
    file = write(root / "some.txt", "\n".join([*TEXTS, ""]))
    assert output_of(capsys, "predict", classifier, "--file", str(file)) == wanted
    for more in ([], ["--file", "-"]):
        typed(monkeypatch, "\n".join(TEXTS))
        assert output_of(capsys, "predict", classifier, *more) == wanted
    table = write(root / "some.tsv", "\n".join(["sentence", *TEXTS, ""]))
    assert output_of(capsys, "predict", classifier, "--file", str(table)) == wanted
    odd = write(root / "odd.jsonl", jsonl(*({"wording": text, "label": "x"} for text in TEXTS)))
    named = ["--file", str(odd), "--columns", "first=wording"]
    assert output_of(capsys, "predict", classifier, *named) == wanted, (
        "a label in the file is no matter"
    )
    out = root / "out.tsv"
    assert output_of(capsys, "predict", classifier, *options, "--out", str(out)) == ""
    assert out.read_text(encoding="utf-8") == wanted


def test_a_reader_who_has_seen_enough_of_the_predictions_ends_them_quietly(
    classifier: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    capsys.readouterr()
    with open(write, "w") as closed, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", closed)
        options = [word for text in TEXTS * 500 for word in ("--text", text)]
        assert cli.main(["predict", classifier, *options]) == 0
    assert capsys.readouterr().err == ""


def test_a_prediction_has_the_number_of_its_line(
    classifier: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(root / "gap.txt", f"{TEXTS[0]}\n\n{TEXTS[1]}\n\n")
    output, notes = run_command(capsys, "predict", classifier, "--file", str(file), "--json")
    records = [json.loads(line) for line in output.splitlines()]
    assert [(each["id"], each["text"]) for each in records] == [
        ("1", TEXTS[0]),
        ("2", ""),
        ("3", TEXTS[1]),
        ("4", ""),
    ]
    assert "gap.txt: empty lines: 2" in notes


def test_predict_counts_the_texts_that_it_truncates(
    classifier: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(root / "long.txt", "\n".join([TEXTS[0], "long " * 500, "longer " * 500]))
    _, notes = run_command(capsys, "predict", classifier, "--file", str(file))
    assert "texts truncated to the maximum length: 2" in notes
    _, notes = run_command(capsys, "predict", classifier, "--text", TEXTS[0])
    assert notes == ""


def test_evaluate_counts_the_texts_that_it_truncates(
    classifier: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = (root / "SST-2" / "dev.tsv").read_text(encoding="utf-8").splitlines()
    label = dev[1].split("\t")[1]
    file = write(root / "long.tsv", "\n".join([*dev[:3], f"{'long ' * 500}\t{label}"]))
    _, notes = run_command(capsys, "evaluate", classifier, str(file), "--device", "cpu")
    assert f"texts truncated to the maximum length: 1 (first at {file}:4)" in notes


def test_what_was_learned_by_heart_is_predicted_and_json_has_every_probability(
    classifier: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = root / "SST-2" / "dev.tsv"
    gold = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    output = output_of(capsys, "predict", classifier, "--file", str(file), "--json")
    predictions = [json.loads(line) for line in output.splitlines()]
    assert [prediction["id"] for prediction in predictions] == [
        str(number) for number in range(len(gold))
    ]
    right = sum(
        prediction["label"] == label
        for prediction, (_, label) in zip(predictions, gold, strict=True)
    )
    assert right >= 0.9 * len(gold)
    for prediction in predictions:
        assert sum(prediction["probabilities"].values()) == pytest.approx(1)
        assert prediction["label"] == max(
            prediction["probabilities"], key=prediction["probabilities"].__getitem__
        )


def test_json_has_what_was_given_beside_what_was_predicted(
    classifier: str,
    pairer: str,
    tagger: str,
    answerer: str,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def predict_json(model: str, *arguments: str) -> dict[str, Any]:
        prediction: dict[str, Any] = json.loads(
            output_of(capsys, "predict", model, *arguments, "--json")
        )
        return prediction

    assert predict_json(classifier, "--text", "a joy")["text"] == "a joy"
    pair = predict_json(pairer, "--text", "one", "--text", "two")
    assert (pair["first"], pair["second"]) == ("one", "two") and pair["label"] in NLI
    tagged = predict_json(tagger, "--text", "He saw Anna")
    assert tagged["words"] == ["He", "saw", "Anna"] and len(tagged["tags"]) == 3
    reply = clozelab.answer(answerer, question="who", passage="Anna came.", top=2)
    assert repr(reply).splitlines()[0] == (reply.text or "the passage does not say")
    assert len(repr(reply).splitlines()) == 1 + min(2, len(reply.span.best))
    question = {"id": "q7", "question": "who", "context": "Anna came."}
    file = write(root / "given.jsonl", jsonl(question))
    prediction = predict_json(answerer, "--file", str(file))
    assert (prediction["id"], prediction["question"], prediction["passage"]) == (
        "q7",
        "who",
        "Anna came.",
    )
    assert "answers" not in prediction


def test_columns_are_remembered_and_those_given_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"text {n}\t{'up' if n % 2 else 'down'}\n" for n in range(8))
    file = write(tmp_path / "a.tsv", "wording\tmood\n" + rows)
    options = ["--train", str(file), "--dev", str(file)]
    options += ["--columns", "first=wording", "--columns", "label=mood"]
    out = tune("classify", tmp_path / "out", *options)
    capsys.readouterr()
    assert "accuracy" in output_of(capsys, "evaluate", out, str(file))
    assert len(output_of(capsys, "predict", out, "--file", str(file)).splitlines()) == 8
    other = write(tmp_path / "b.tsv", "saying\tlabel\n" + rows)
    assert "looked for" in refused(capsys, "evaluate", out, str(other))
    assert "accuracy" in output_of(capsys, "evaluate", out, str(other), "--columns", "first=saying")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sst2", "--pairs", "order"], "--pairs: is for held-out losses on --data CORPUS, not"),
        (["sst2", "--masks", "bert"], "--masks: is for held-out losses on --data CORPUS, not"),
        (["sst2", "--blocks", "1024"], "not for sst2; leave it out"),
        (["--data", "c", "--split", "dev"], "--split: is for a task or a labelled file, not"),
        (["--data", "c", "--columns", "first=a"], "--columns: is for a task or a labelled file"),
    ],
)
def test_evaluate_refuses_what_it_would_ignore(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert sentence in refused(capsys, "evaluate", "run", *arguments)


def test_what_is_not_there_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    file, none = str(write(tmp_path / "a.tsv", "sentence\tlabel\na\t1\n")), "nosuch.tsv"
    commands = {
        "nosuch.tsv does not exist": ["predict", "run", "--file", none],
        "neither a file nor a known task": ["evaluate", "run", none],
        "has no data for sst2": ["evaluate", "run", "sst2", "--task-data", str(tmp_path)],
        "nosuch.tsv: is not a corpus": ["evaluate", "run", "--data", none],
        "nosuch.tsv does not exist, nor": ["finetune", "run", "classify", "--train", none],
        "nosuch.tsv does not exist, nor nosuch.tsv.xz": [
            "finetune",
            "run",
            "classify",
            "--train",
            file,
            "--dev",
            none,
        ],
        "did you mean sst2": ["finetune", "run", "sst3", "--task-data", str(tmp_path)],
        "task 'sst3' is unknown": ["predict", "run", "--task", "sst3", "--out", "o"],
        "recipe nosuch is unknown": ["bench", "nosuch"],
        "other.tsv: is not a corpus": ["bench", "--data", "other.tsv"],
    }
    code = (
        "import json, sys; sys.modules['torch'] = None; from clozelab.cli import main;"
        "sys.exit({*map(main, json.loads(sys.argv[1]))} != {2})"
    )
    process_arguments = [sys.executable, "-c", code, json.dumps([*commands.values()])]
    process = run_process(
        process_arguments, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert process.returncode == 0, process.stderr
    for command, line in zip(commands, process.stderr.split("clozelab: ")[1:], strict=True):
        assert command in " ".join(line.split()), line


def test_a_text_never_breaks_a_line_of_the_output(
    classifier: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = output_of(
        capsys, "predict", classifier, "--text", "a\tb\nc\u2028d [red]e[/]", "--text", ""
    )
    assert [line.split("\t")[2] for line in output.splitlines()] == ["a b c d [red]e[/]", ""]


def test_pairs_are_two_texts_or_parted_by_a_tab(
    pairer: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = output_of(capsys, "predict", pairer, "--text", "one", "--text", "two")
    assert wanted.endswith("one | two\n") and wanted.split("\t")[0] in NLI
    typed(monkeypatch, "one\ttwo\n")
    assert output_of(capsys, "predict", pairer) == wanted
    assert "--text: has 1 text, but the model takes two" in refused(
        capsys, "predict", pairer, "--text", "one"
    )
    typed(monkeypatch, "one\ttwo\nthree\n")
    assert "standard input:2: has 1 text" in refused(capsys, "predict", pairer)
    typed(monkeypatch, "one\ttwo\n\n")
    message = refused(capsys, "predict", pairer)
    assert "input:2: is empty, but the model takes two texts; remove the line" in message
    typed(monkeypatch, "one\ttwo\tthree\n")
    assert "standard input:1: has 3 texts" in refused(capsys, "predict", pairer)


def test_words_are_tagged_and_questions_answered(
    tagger: str, answerer: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = output_of(capsys, "predict", tagger, "--text", "He saw \u200b Anna")
    assert [word.rpartition("/")[0] for word in output.split()] == ["He", "saw", "\u200b", "Anna"]
    file = write(
        root / "asked.jsonl", jsonl({"id": "q7", "question": "who", "context": "Anna came."})
    )
    (line,) = output_of(capsys, "predict", answerer, "--file", str(file)).splitlines()
    assert line.startswith("q7\t") and line[3:] in "Anna came."
    answer = json.loads(output_of(capsys, "predict", answerer, "--file", str(file), "--json"))
    assert {"text", "probability", "start"} == {*answer["best"][0]} and answer["null"] is not None
    for candidate in answer["best"]:
        assert "Anna came."[candidate["start"] :].startswith(candidate["text"])


def test_answer_shows_the_answer_and_its_rivals_or_says_that_there_is_none(
    answerer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passage = "Anna came home. " * 40
    command = ["answer", answerer, "--question", "who came", "--top", "2"]
    output = output_of(capsys, *command, "--passage", passage)
    first, *_, second, third = output.splitlines()
    assert first == "the passage has no answer" or first in passage
    assert all(line.split()[0].endswith("%") for line in (second, third))
    typed(monkeypatch, passage)
    assert output_of(capsys, *command, "--passage", "-") == output


def test_an_answer_is_shown_in_its_place_and_none_is_said_to_be_none() -> None:
    passage = "before " * 100 + "Anna came. " + "after " * 100
    begin = passage.index("Anna")
    rivals = (Candidate("Anna", 0.7, begin), Candidate("Anna came", 0.2, begin))
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    with console.capture() as caught:
        console.print(*views.answer(PassageAnswer(passage, Span("Anna", 3.0, -1.0, rivals), 2), {}))
    text = caught.get()
    assert text.count("Anna") == 4 and text.count("…") == 2 and len(text) < len(passage)
    lines = [line.rstrip() for line in Text.from_ansi(text).plain.splitlines()]
    assert lines[0] == "Anna" and lines[-2:] == [" 70.0%  Anna", " 20.0%  Anna came"]
    with console.capture() as caught:
        console.print(*views.answer(PassageAnswer("Anna came.", Span("", 3.0, 9.0, rivals), 1), {}))
    assert "the passage has no answer" in caught.get()


@pytest.mark.parametrize("name", ["classify", "regress", "tag", "choose", "coreference"])
def test_predictions_are_shown_in_rows_of_a_terminal(name: str) -> None:
    sentence_examples = Sentences("0", "one [red]text[/] " * 8, None), Sentences("1", "x", "y")
    shown_as: dict[str, tuple[list[Any], list[Any], str]] = {
        "classify": (
            [*sentence_examples],
            [Class("no", {"no": 0.9}), Class("maybe", {"maybe": 0.5})],
            "maybe",
        ),
        "regress": ([*sentence_examples], [Number(1.5), Number(12.25)], "12.2500  x | y"),
        "tag": ([Tagged("0", ("in", "Rome"))], [Tags(("O", "B-LOC"), (1.0, 1.0))], "in Rome/B-LOC"),
        "choose": ([Choice("0", "a", ("b", "c"))], [Picked(1, (0.2, 0.8))], "1  0.8000  c"),
        "coreference": (
            [Document("0", (("Anna", "saw", "her", "dog"),))],
            [Clusters(((Mention(0, 0), Mention(2, 2)),))],
            "Anna = her",
        ),
    }
    (examples, predictions, wanted), kind = shown_as[name], KINDS[name]
    console = Console(width=60, file=io.StringIO(), markup=False)
    with console.capture() as caught:
        console.print(views.for_people(Predictions(predictions, examples, kind)))
    text = caught.get()
    assert wanted in text and all(len(line) <= 60 for line in text.splitlines())
    if len(examples) == 2:
        assert "[red]text[/]" in text
        first, last = text.splitlines()[0], text.splitlines()[-1]
        assert first.index("one") == last.index("x"), "texts begin below one another"
        assert name != "regress" or first.startswith(" 1.5000 "), "numbers end below one another"


# Evaluate.


def test_a_file_and_a_task_are_scored(
    classifier: str, pairer: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_file = output_of(capsys, "evaluate", classifier, str(root / "SST-2" / "dev.tsv"))
    by_task = output_of(capsys, "evaluate", classifier, "sst2", "--task-data", str(root))
    assert by_file == by_task
    head, row = by_file.splitlines()
    assert head.split() == ["accuracy"] and row.split()[0] == "dev" and float(row.split()[1]) >= 90
    lines = output_of(capsys, "evaluate", pairer, "mnli", "--task-data", str(root)).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["dev", "dev_mismatched"]
    assert len({len(line.rstrip()) for line in lines}) == 1, "numbers end below one another"


def test_scores_are_recorded_with_the_digest_of_what_was_scored(
    classifier: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, record = root / "SST-2" / "dev.tsv", tmp_path / "scores.json"
    more = (["--task-data", str(root)], [])
    for what, options in zip(("sst2", str(file)), more, strict=True):
        printed = output_of(capsys, "evaluate", classifier, what, *options, "--out", str(record))
        scored = json.loads(record.read_text(encoding="utf-8"))
        assert scored["digests"] == {str(file.resolve()): sha256(file)}
        assert f"{scored['scores']['dev']['accuracy']:.2f}" in printed
        assert (
            scored["task"] == what and scored["model"] == classifier and scored["machine"]["python"]
        )
        assert "already exists" in refused(
            capsys, "evaluate", classifier, what, *options, "--out", str(record)
        )
        record.unlink()


# Submissions.


def test_submissions_are_the_files_that_glue_takes(
    classifier: str,
    pairer: str,
    regressor: str,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = root / "sent"
    options = ["--task-data", str(root), "--out", str(out)]
    wanted = {"SST-2.tsv": 7, "MNLI-m.tsv": 12, "MNLI-mm.tsv": 7, "AX.tsv": 4, "STS-B.tsv": 12}
    assert output_of(capsys, "predict", classifier, "--task", "sst2", *options) == ""
    output_of(capsys, "predict", pairer, "--task", "mnli", *options)
    output_of(capsys, "predict", pairer, "--task", "mnli", "--split", "test_mismatched", *options)
    output_of(capsys, "predict", pairer, "--task", "ax", *options)
    output_of(capsys, "predict", regressor, "--task", "stsb", *options)
    assert {file.name for file in out.iterdir()} == {*wanted}
    labels = {"SST-2.tsv": {"0", "1"}, "MNLI-m.tsv": {*NLI}, "MNLI-mm.tsv": {*NLI}}
    for name, count in wanted.items():
        head, *rows = (out / name).read_text(encoding="utf-8").splitlines()
        cells = [row.split("\t") for row in rows]
        assert head == "index\tprediction" and len(cells) == count
        first = 5 if name == "MNLI-mm.tsv" else 0
        assert [number for number, _ in cells] == [str(first + n) for n in range(count)]
        if name in labels:
            assert {label for _, label in cells} <= labels[name]
    scores = [row.split("\t")[1] for row in (out / "STS-B.tsv").read_text().splitlines()[1:]]
    assert all(0 <= float(score) <= 5 and len(score) == 5 for score in scores)


def test_a_submission_is_refused_to_a_model_of_another_task(
    classifier: str, pairer: str, answerer: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--task-data", str(root), "--out", str(root / "never")]
    assert "was fine-tuned for answer" in refused(
        capsys, "predict", answerer, "--task", "sst2", *options
    )
    assert "has the labels 0, 1" in refused(capsys, "predict", pairer, "--task", "sst2", *options)
    message = refused(capsys, "predict", classifier, "--task", "sst2", "--task-data", str(root))
    assert "--out DIR" in message
    message = refused(capsys, "predict", classifier, "--task", "sst2", "--text", "a", *options)
    assert "leave out --text, --file and --json" in message
    columns = ["--columns", "first=sentence"]
    message = refused(capsys, "predict", classifier, "--task", "sst2", *columns, *options)
    assert "--columns is for your own files, but sst2 is a known task" in message
    message = refused(capsys, "predict", classifier, "--task", "sst2", "--split", "final", *options)
    assert "sst2 has no final split" in message
    assert not (root / "never").exists()


# Mistakes.

BAD = {
    "unknown.tsv": ("sentence\tlabel\nx\t1\ny\tfine\n", "unknown.tsv:3 has the label 'fine'"),
    "column.tsv": ("wording\tlabel\nx\t1\n", "column.tsv has no column for the first"),
    "unlabelled.tsv": ("sentence\nx\n", "unlabelled.tsv has no column for the label"),
    "ragged.tsv": ("sentence\tlabel\nx\t1\ny\t1\tz\n", "ragged.tsv:3 has 3 columns"),
    "empty.tsv": ("", "empty.tsv is empty"),
    "bare.tsv": ("sentence\tlabel\n", "bare.tsv has a header line and no rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_line(
    classifier: str, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, wanted = BAD[name]
    file = str(write(tmp_path / name, text))
    assert wanted in refused(capsys, "evaluate", classifier, file)
    train = [
        "finetune",
        base_model(),
        "classify",
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cpu",
    ]
    dev = str(write(tmp_path / "good.tsv", "sentence\tlabel\nx\t1\ny\t0\n"))
    assert wanted in refused(capsys, *train, "--train", dev, "--dev", file)


def test_mistakes_with_predict_are_answered_in_a_sentence(
    classifier: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predict = ["predict", classifier]
    typed(monkeypatch, "")
    assert "standard input: is empty" in refused(capsys, *predict)
    assert "--text: is empty; give a text" in refused(capsys, *predict, "--text", "")
    nothing = str(write(tmp_path / "nothing.txt", "\n\n"))
    assert "nothing.txt: is empty" in refused(capsys, *predict, "--file", nothing)
    latin = str(write(tmp_path / "latin.txt", "caf\u00e9".encode("latin-1")))
    assert "is not UTF-8" in refused(capsys, *predict, "--file", latin)
    assert "--file and --text cannot be combined" in refused(
        capsys, *predict, "--text", "a", "--file", nothing
    )
    for name in ("gone.txt", "gone.tsv"):
        assert "gone" in refused(capsys, *predict, "--file", str(tmp_path / name))
    assert "is a folder" in refused(capsys, *predict, "--file", str(tmp_path))
    assert "is a folder" in refused(capsys, *predict, "--text", "a", "--out", str(tmp_path))
    gone = str(tmp_path / "no" / "file.tsv")
    assert "does not exist; make it first" in refused(
        capsys, *predict, "--text", "a", "--out", gone
    )
    assert "--columns" in refused(capsys, *predict, "--text", "a", "--columns", "first=x")
    assert "--split" in refused(capsys, *predict, "--text", "a", "--split", "dev")
    old_file = write(tmp_path / "kept.tsv", "old")
    ragged = str(write(tmp_path / "ragged.tsv", BAD["ragged.tsv"][0]))
    refused(capsys, *predict, "--file", ragged, "--out", str(old_file), "--overwrite")
    assert old_file.read_text() == "old" and not list(tmp_path.glob("*.part"))
    message = refused(capsys, "predict", base_model(), "--text", "a")
    assert "was not fine-tuned" in message and "clozelab finetune" in message


def test_mistakes_with_evaluate_and_answer_are_answered_in_a_sentence(
    classifier: str,
    answerer: str,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CLOZELAB_DATA", raising=False)
    message = refused(capsys, "evaluate", classifier, "reviews.tsv")
    assert "neither a file nor a known task" in message
    assert "--task-data DIR" in refused(capsys, "evaluate", classifier, "cola")
    assert "evaluate needs" in refused(capsys, "evaluate", classifier)
    assert "was not fine-tuned" in refused(
        capsys, "evaluate", base_model(), str(root / "SST-2/dev.tsv")
    )
    known = ["sst2", "--task-data", str(root)]
    message = refused(capsys, "evaluate", classifier, *known, "--columns", "first=sentence")
    assert "--columns is for your own files, but sst2 is a known task" in message
    message = refused(capsys, "evaluate", answerer, *known)
    assert "is of kind classify" in message and "was fine-tuned for answer" in message
    ask = ["answer", answerer, "--question", "who"]
    message = refused(capsys, "answer", classifier, "--question", "who", "--passage", "Anna")
    assert "was fine-tuned for classify, not answer" in message
    assert "--passage: is empty" in refused(capsys, *ask, "--passage", " ")
    typed(monkeypatch, "")
    assert "--passage: is empty" in refused(capsys, *ask, "--passage", "-")
    assert "--top 0" in refused(capsys, *ask, "--passage", "Anna", "--top", "0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_to_be_missing(
    classifier: str, answerer: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ["--device", "cuda"]
    file = str(root / "SST-2" / "dev.tsv")
    for command in (
        ["predict", classifier, "--text", "a"],
        ["evaluate", classifier, file],
        ["answer", answerer, "--question", "a", "--passage", "b"],
        [
            "finetune",
            base_model(),
            "classify",
            "--train",
            file,
            "--dev",
            file,
            "--out",
            str(root / "g"),
        ],
    ):
        assert "no GPU was found" in refused(capsys, *command, *gpu)
