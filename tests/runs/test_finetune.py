"""Fine-tuning from end to end: every kind learns, the best is kept, what was stopped goes on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.coreference import stories
from support.finetune_tasks import (
    QUICK,
    SHORT,
    STILL,
    base_model,
    double_precision_trial,
    equal,
    events,
    finetune_request,
    inputs_of,
    named_request,
    run_finetuning,
    sample_file,
    steps_of,
    weights,
)
from support.labelled_files import jsonl, write
from support.pretrain_runs import HERE, MACHINE, shrunk

import clozelab
from clozelab import data, statistics
from clozelab.cli import main
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.finetuning.examples import (
    Choice,
    Class,
    Clusters,
    Number,
    Picked,
    Question,
    Sentences,
    Span,
    Tagged,
    Tags,
)
from clozelab.finetuning.examples import GoldAnswer as Gold
from clozelab.finetuning.files.documents import gap as read_gap
from clozelab.finetuning.finetune import planned, summary
from clozelab.finetuning.inputs import inputs_for, opened
from clozelab.finetuning.kinds import Answer, Choose, Classify, Coreference, Regress, Tag
from clozelab.finetuning.predict import data_of, follow, follow_score, predict
from clozelab.finetuning.request import Data
from clozelab.finetuning.trial import Trial
from clozelab.models.load import load
from clozelab.runs.directory import Run
from clozelab.runs.events import Said, Scored, drained, means
from clozelab.runs.session import SaveOptions, Session
from clozelab.training.loop import Step, train

torch.set_num_threads(1)

PRONOUNS = (
    "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    "1\tAnna met Ellen and she wept.\tshe\t19\tAnna\t0\tTRUE\tEllen\t9\tFALSE\tx\n"
    "2\tPaul met Henry and he wept.\the\t19\tPaul\t0\tFALSE\tHenry\t9\tTRUE\tx\n"
    "3\tPaul met Henry and he slept.\the\t19\tPaul\t0\tFALSE\tHenry\t9\tFALSE\tx\n"
)


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of tasks that go by name, with a few examples each."""
    root = tmp_path_factory.mktemp("glue")
    truth = ("entailment", "neutral", "contradiction")
    pairs = [(f"word {n} is here", f"number {n}", truth[n % 3]) for n in range(12)]
    rows = "".join(f"{a}\t{b}\t{label}\n" for a, b, label in pairs)
    for name in ("train", "dev_matched"):
        write(root / "MNLI" / f"{name}.tsv", "sentence1\tsentence2\tgold_label\n" + rows)
    other = rows.replace("entailment", "neutral")  # so that its score is another
    write(root / "MNLI" / "dev_mismatched.tsv", "sentence1\tsentence2\tgold_label\n" + other)
    rows = "".join(f"{n}\t{a}\t{b}\n" for n, (a, b, _) in enumerate(pairs))
    write(root / "diagnostic" / "diagnostic.tsv", "index\tsentence1\tsentence2\n" + rows)
    rows = "".join(
        f"{n}\t{a}\t{b}\t{'entailment' if n % 2 else 'not_entailment'}\n"
        for n, (a, b, _) in enumerate(pairs)
    )
    for name in ("train", "dev"):
        write(root / "RTE" / f"{name}.tsv", "index\tsentence1\tsentence2\tlabel\n" + rows)
    for name in ("development", "validation"):
        write(root / "gap" / f"gap-{name}.tsv", PRONOUNS)
    return root


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows some pairs by heart."""
    out = tmp_path_factory.mktemp("pairs") / "tuned"
    run_finetuning(finetune_request("pairs", sample_file("pairs", 32)), out)
    return out


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Definitions, and how many words each has."""
    file = data.task("definitions", "train")
    texts = [line.split("\t")[0] for line in file.read_text("utf-8").splitlines()[1:25]]
    rows = "".join(f"{text}\t{len(text.split()) / 5}\n" for text in texts)
    return str(write(tmp_path_factory.mktemp("numbers") / "a.tsv", "sentence\tscore\n" + rows))


@pytest.fixture(scope="module")
def stories_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Our own stories, their mentions marked."""
    records = [story._asdict() for story in stories()[:6]]
    return str(write(tmp_path_factory.mktemp("stories") / "a.jsonl", jsonl(*records)))


# Every kind learns


@pytest.mark.parametrize(
    ("kind", "name", "count", "metric", "chance"),
    [
        ("classify", "definitions", 32, "accuracy", 30),
        ("pairs", "pairs", 32, "accuracy", 60),
        ("tag", "tags", 32, "f1", 20),
        ("answer", "spans", 32, "exact", 20),
        ("choose", "choices", 16, "accuracy", 40),
    ],
)
def test_every_kind_learns_a_small_real_sample(
    tmp_path: Path, kind: str, name: str, count: int, metric: str, chance: float
) -> None:
    request = finetune_request(kind, sample_file(name, count), model=base_model(variant="embedded"))
    scores_seen = events(Scored, run_finetuning(request, tmp_path / "out"))
    assert len(scores_seen) == 12  # one an epoch
    assert scores_seen[-1].at_best[metric] > max(85, chance + 30)


def test_a_beam_learns_answers_as_a_span_does(tmp_path: Path) -> None:
    request = finetune_request("answer", sample_file("spans", 32), *QUICK, "head=beam")
    (*_, last) = events(Scored, run_finetuning(request, tmp_path / "out"))
    assert last.at_best["exact"] > 85
    kind = load(str(tmp_path / "out")).task.kind  # type: ignore[union-attr]
    assert isinstance(kind, Answer) and kind.head == "beam"


def test_numbers_are_learned(tmp_path: Path, numbers: str) -> None:
    settings = ("batch_size=8", "learning_rate=5e-3", "length=64", "epochs=16", *STILL)
    happened = run_finetuning(finetune_request("regress", numbers, *settings), tmp_path / "out")
    assert events(Scored, happened)[-1].at_best["pearson"] > 85


def test_coreference_is_learned_from_stories(stories_file: str) -> None:
    settings = (
        "length=64",
        "batch_size=1",
        "learning_rate=2e-3",
        "epochs=32",
        "shape=constant",
        *STILL,
    )
    inputs = inputs_for(
        finetune_request(
            "coreference", stories_file, *settings, model=base_model(variant="embedded")
        )
    )
    # Smaller than the usual head, and with as many mentions as our stories have.
    kind: Any = replace(
        inputs.task.kind,
        hidden=32,
        feature=8,
        widest=4,
        ratio=0.7,  # type: ignore[call-arg]
    )
    judges = {name: replace(judge, kind=kind) for name, judge in inputs.dev.items()}
    changed_inputs = replace(inputs, task=replace(inputs.task, kind=kind), dev=judges)
    work = Trial(changed_inputs, MACHINE, HERE)
    (before,) = work.evaluate(0, blocks=0)
    steps_of(work)
    (after,) = work.evaluate(work.schedule.total, blocks=0)
    assert isinstance(before, Scored) and isinstance(after, Scored)
    assert after.scores["conll"] > 60 > before.scores["conll"] + 30


def test_a_model_that_is_tuned_says_what_it_learned(pairs: Path) -> None:
    model = load(str(pairs))
    rows = [
        line.split("\t") for line in Path(sample_file("pairs", 32)).read_text("utf-8").split("\n")
    ]
    predictions = predict(model, [(a, b) for a, b, _ in rows[1:33]])
    assert (
        sum(
            prediction.label == row[2]
            for prediction, row in zip(predictions, rows[1:33], strict=True)
        )
        > 27
    )
    result = Run(pairs / "seed-0").result()
    assert result is not None
    scores = drained(follow_score(model, data_of(model, sample_file("pairs", 32))))
    assert scores["dev"]["accuracy"] == result["dev"]["accuracy"]


# Perfect predictions and constants


def test_perfect_predictions_score_a_hundred_and_constants_what_theory_says() -> None:
    labels = ["a"] * 6 + ["b"] * 2
    texts = [Sentences(str(n), "x", None, label) for n, label in enumerate(labels)]
    kind = Classify(("a", "b"), metrics=("accuracy", "f1", "matthews"), positive="a")
    perfect = kind.score([Class(label, {}) for label in labels], texts)
    assert perfect == pytest.approx({"accuracy": 100, "f1": 100, "matthews": 100})
    constant = kind.score([Class("a", {})] * 8, texts)
    assert constant == pytest.approx({"accuracy": 75, "f1": 100 * 2 * 0.75 / 1.75, "matthews": 0})

    values = [Sentences(str(n), "x", None, float(n)) for n in range(5)]
    numbers = Regress()
    assert numbers.score([Number(3 * n + 1.0) for n in range(5)], values) == pytest.approx(
        {"pearson": 100, "spearman": 100}
    )
    assert numbers.score([Number(2.0)] * 5, values) == {"pearson": 0, "spearman": 0}

    choices = [Choice(str(n), "x", ("a", "b", "c", "d"), n % 4) for n in range(8)]
    choose = Choose(choices=4)
    right = [Picked(n % 4, ()) for n in range(8)]
    assert choose.score(right, choices) == {"accuracy": 100}
    assert choose.score([Picked(2, ())] * 8, choices) == {"accuracy": 25}


def test_the_same_of_tags_answers_and_clusters() -> None:
    tags = ("B-X", "I-X", "O", "O", "B-Y", "O", "O", "O")
    sentence = [Tagged("0", tuple("abcdefgh"), tags)]
    tag = Tag(("O", "B-X", "I-X", "B-Y", "I-Y"), metrics=("f1", "accuracy"))
    assert tag.score([Tags(tags, ())], sentence) == {"f1": 100, "accuracy": 100}
    outside = [Tags(("O",) * 8, ())]
    assert tag.score(outside, sentence) == {"f1": 0, "accuracy": 62.5}

    questions = [Question(str(n), "q", "one two", (Gold("two", 4),)) for n in range(3)]
    spans = [Span("two", 0.0, None, ())] * 3
    assert (
        Answer().score(spans, questions)["exact"] == Answer().score(spans, questions)["f1"] == 100
    )
    none = [Span("", 0.0, 1.0, ())] * 4
    scores = Answer(impossible=True).score(none, [*questions, Question("3", "q", "one two", ())])
    assert scores["exact"] == scores["f1"] == 25

    documents, kind = stories(), Coreference()
    right = [Clusters(document.clusters or ()) for document in documents]
    assert kind.score(right, documents)["conll"] == pytest.approx(100)
    assert kind.score([Clusters(())] * len(documents), documents)["conll"] == 0


# The encoder as it is


@pytest.mark.parametrize("settings", [("features=last",), ("features=weighted_all",)])
@pytest.mark.parametrize("reader", ["linear", "bilstm"])
def test_a_frozen_encoder_stays_as_it_is_and_its_features_are_learned_from(
    tmp_path: Path, settings: tuple[str, ...], reader: str
) -> None:
    changed_settings = (*QUICK, *settings, f"reader={reader}", "hidden=32")
    changed_settings = tuple(
        word for word in changed_settings if not word.startswith(("epochs", "learning_rate"))
    )
    request = finetune_request(
        "tag", sample_file("tags", 16), *changed_settings, "epochs=8", "learning_rate=1e-2"
    )
    happened = run_finetuning(request, tmp_path / "out")
    before, after = opened(base_model()).module.state_dict(), weights(tmp_path / "out" / "seed-0")
    encoder_names = [name for name in after if name.startswith("encoder.")]
    assert encoder_names and all(torch.equal(before[name], after[name]) for name in encoder_names)
    losses = [
        step.sums["tag"]["loss"] / step.sums["tag"]["count"] for step in events(Step, happened)
    ]
    assert losses[-1] < 0.6 * losses[0]
    if settings == ("features=weighted_all",):
        assert after["features.mix.weights"].abs().max() > 0
    assert ("features.recurrent.lstm.weight_ih_l0" in after) == (reader == "bilstm")
    assert load(str(tmp_path / "out")).module.frozen  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "pooler_kept"),
    [
        (("features=last",), True),
        (("features=last", "reader=bilstm", "hidden=32"), False),
        (("features=concat_last_four",), False),
        (("features=sum_all",), False),
    ],
)
def test_a_pooler_is_kept_where_it_reads_what_it_was_trained_on(
    tmp_path: Path, settings: tuple[str, ...], pooler_kept: bool
) -> None:
    changed_settings = tuple(
        word for word in QUICK if not word.startswith(("epochs", "learning_rate"))
    )
    request = finetune_request(
        "pairs",
        sample_file("pairs", 16),
        *changed_settings,
        *settings,
        "learning_rate=1e-9",
        "steps=1",
    )
    run_finetuning(request, tmp_path / "out")
    before = opened(base_model()).module.state_dict()["heads.next_sentence.pooler.weight"]
    after = weights(tmp_path / "out" / "seed-0")["heads.classify.dense.weight"]
    assert (after.shape == before.shape and torch.allclose(after, before, atol=1e-6)) == pooler_kept


@pytest.mark.parametrize("kind", ["pairs", "tag", "answer"])
def test_elmo_is_read_through_a_recurrent_layer(tmp_path: Path, kind: str) -> None:
    file = sample_file({"pairs": "pairs", "tag": "tags", "answer": "spans"}[kind], 16)
    changed_settings = (
        "hidden=32",
        "length=64",
        "learning_rate=1e-2",
        "epochs=10",
        "batch_size=8",
        "head_dropout=0",
    )
    request = finetune_request(kind, file, *changed_settings, model=base_model("elmo"))
    plan = planned(request)
    assert plan.request.protocol == "elmo"
    happened = run_finetuning(plan, tmp_path / "out")
    before, after = (
        opened(base_model("elmo")).module.state_dict(),
        weights(tmp_path / "out" / "seed-0"),
    )
    assert all(torch.equal(before[n], after[n]) for n in after if n.startswith("encoder."))
    assert {"features.mix.weights", "features.recurrent.lstm.weight_ih_l0"} <= after.keys()
    first, *_, last = events(Step, happened)
    # What an encoder after four steps tells apart is little, but words.
    share = 0.6 if kind == "tag" else 1
    assert last.sums[_kind(kind)]["loss"] < share * first.sums[_kind(kind)]["loss"]
    if kind == "pairs":
        assert load(str(tmp_path / "out")).task.kind.pool == "mean"  # type: ignore[union-attr]


def _kind(word: str) -> str:
    return "classify" if word == "pairs" else word


# Teachers, chains, other protocols


def test_a_teacher_of_no_weight_changes_nothing_and_another_is_half_of_the_loss(
    pairs: Path,
) -> None:
    request = finetune_request("pairs", sample_file("pairs", 32), *SHORT)
    taught = replace(request, teacher=str(pairs))
    plain = Trial(inputs_of(request), MACHINE, HERE)
    losses = [step.sums["classify"]["loss"] for step in steps_of(plain)]
    none = Trial(inputs_of(taught, alpha=1.0), MACHINE, HERE)
    steps = steps_of(none)
    assert [step.sums["classify"]["loss"] for step in steps] == losses
    assert equal(dict(plain.model.named_parameters()), dict(none.model.named_parameters()))
    half = Trial(inputs_of(taught, alpha=0.5), MACHINE, HERE)
    first, *_ = (step.sums["classify"] for step in steps_of(half))
    assert first["soft"] > 0
    assert first["loss"] == pytest.approx(0.5 * losses[0] + 0.5 * first["soft"])
    assert not equal(dict(plain.model.named_parameters()), dict(half.model.named_parameters()))
    assert half.facts()["teacher"] == str(pairs)
    assert "seed-0" not in half.model.state_dict() and len(half.model.teacher) == 1
    assert equal(dict(half.model.teacher[0].named_parameters()), weights(pairs / "seed-0"))


def test_a_student_nears_its_teacher(pairs: Path) -> None:
    request = finetune_request("pairs", sample_file("pairs", 32), *QUICK, teacher=str(pairs))
    work = Trial(inputs_of(request, alpha=0.0), MACHINE, HERE)
    losses = [step.sums["classify"]["soft"] for step in steps_of(work)]
    assert sum(losses[-4:]) < 0.3 * sum(losses[:4])


def test_a_teacher_reads_the_segments_that_its_student_ignores(pairs: Path) -> None:
    request = finetune_request("pairs", sample_file("pairs", 32), *SHORT)
    student = replace(request, model=base_model("distilbert"))
    inputs = inputs_of(replace(student, teacher=str(pairs)))
    mine, alone, theirs = (
        each.train.columns for each in (inputs, inputs_of(student), inputs_of(request))
    )
    assert not alone["segments"].any()
    assert all((mine[name] == theirs[name]).all() for name in theirs) and mine["segments"].any()
    assert all(step.sums["classify"]["soft"] > 0 for step in steps_of(Trial(inputs, MACHINE, HERE)))


def test_a_chain_goes_on_from_the_earlier_task_and_says_so(tmp_path: Path, glue: Path) -> None:
    first, second = tmp_path / "mnli", tmp_path / "rte"
    run_finetuning(named_request("mnli", glue), first)
    request = named_request("rte", glue, protocol="roberta", model=str(first))
    inputs = inputs_for(request)
    parent = weights(first / "seed-0")
    assert inputs.start.keys() == {name for name in parent if name.startswith("encoder.")}
    assert all(torch.equal(inputs.start[name], parent[name]) for name in inputs.start)
    happened = run_finetuning(request, second)
    facts = Run(second / "seed-0").machine()
    assert facts["from"] == str(first) and facts["from_task"] == "mnli"
    assert not [event for event in events(Said, happened) if "--after" in event.text]


def test_a_protocol_that_goes_on_from_another_task_says_so(tmp_path: Path, glue: Path) -> None:
    happened = run_finetuning(named_request("rte", glue, protocol="roberta"), tmp_path / "out")
    (notice,) = [event.text for event in events(Said, happened) if "--after" in event.text]
    assert "--after mnli" in notice
    assert "from_task" not in Run(tmp_path / "out" / "seed-0").machine()
    assert not [note for note in inputs_for(named_request("rte", glue)).notes if "--after" in note]
    fresh = named_request("rte", glue, protocol="roberta", fresh=True)
    assert not [note for note in inputs_for(fresh).notes if "--after" in note]
    assert inputs_for(fresh).start == {} and inputs_for(fresh).origin is None


def test_a_command_makes_a_chain(tmp_path: Path, glue: Path) -> None:
    command = ["finetune", base_model(), "rte", "--after", "mnli", "--task-data", str(glue)]
    command += ["--out", str(tmp_path / "out"), "--device", "cpu", "--set", "steps=1"]
    assert main(command) == 0
    facts = Run(tmp_path / "out" / "seed-0").machine()
    assert facts["from"] == str(tmp_path / "out-after-mnli") and facts["from_task"] == "mnli"
    assert Run(tmp_path / "out-after-mnli" / "seed-0").machine()["from"] == base_model()


def test_gpt_learns_its_language_beside_the_task(tmp_path: Path) -> None:
    request = finetune_request(
        "pairs", sample_file("pairs", 16), "steps=3", "batch_size=4", "length=64"
    )
    request = replace(request, model=base_model("gpt"), protocol="gpt")
    prepared = Trial(inputs_for(request), MACHINE, HERE).prepare(0)
    assert prepared.weights == {"classify": 1, "causal_lm": 0.5}
    happened = run_finetuning(request, tmp_path / "out")
    step = events(Step, happened)[0]
    assert step.sums["causal_lm"]["count"] > step.sums["classify"]["count"] == 4
    mine = weights(tmp_path / "out" / "seed-0")
    theirs = opened(base_model("gpt")).module.state_dict()
    heads = [name for name in theirs if name.startswith("heads.causal_lm.")]
    assert all(name in mine for name in heads)
    assert predict(load(str(tmp_path / "out")), [("a", "b")])[0].label in ("yes", "no")


def test_a_model_without_a_causal_language_model_cannot_go_on_with_one() -> None:
    with pytest.raises(UserError, match=r"lm_weight = 0\.5.*--set lm_weight=0"):
        Trial(
            inputs_of(finetune_request("pairs", sample_file("pairs", 16), *SHORT), lm_weight=0.5),
            MACHINE,
            HERE,
        )


def test_rates_go_by_layers_but_for_the_half_that_layers_share() -> None:
    inputs = inputs_of(finetune_request("pairs", sample_file("pairs", 16), *SHORT), layer_decay=0.5)
    recipe = shrunk("albert", "encoder.layers=4", "encoder.sharing=attention")
    work = Trial(inputs, MACHINE, HERE)
    assert [work._scale(f"encoder.{half}.0.x") for half in ("attention", "ffn")] == [0.5, 0.5]
    work.inputs = replace(inputs, recipe=recipe)
    assert work._scale("encoder.attention.0.query.weight") == 1
    assert [work._scale(f"encoder.ffn.{n}.inner.weight") for n in range(4)] == [
        1 / 8,
        1 / 4,
        0.5,
        1,
    ]
    assert work._scale("encoder.embeddings.words.weight") == 1 / 16
    assert work._scale("heads.classify.dense.weight") == 1


def test_long_documents_are_several_examples_to_learn_from_and_one_to_be_judged_by(
    stories_file: str,
) -> None:
    inputs = inputs_for(
        finetune_request("coreference", stories_file, "length=8", "steps=1", "batch_size=1")
    )
    kind = inputs.task.kind
    assert isinstance(kind, Coreference) and kind.segment == 8
    (judge,) = inputs.dev.values()
    assert len(judge.tokenized.groups) - 1 == 6 < len(inputs.train.units) - 1
    units = inputs.train.units
    assert (units[1:] - units[:-1]).max() == kind.train_segments
    assert judge.tokenized.groups[-1] == units[-1]  # blocks, all in all


# What is scored


def test_gap_is_judged_by_its_pronouns(tmp_path: Path, glue: Path) -> None:
    file = glue / "gap" / "gap-validation.tsv"
    documents = read_gap(file)
    right = [Clusters(document.clusters or ()) for document in documents]
    scores = Coreference().score(right, documents)
    assert (
        scores["f1"] == scores["masculine_f1"] == scores["feminine_f1"] == 100
        and scores["bias"] == 1
    )
    none = Coreference().score([Clusters(())] * 3, documents)
    assert none["f1"] == 0 and "conll" not in none
    # One of three names is right, of two that are to be found.
    pronouns = [document.pronoun for document in documents[1:] if document.pronoun]
    wrong = [right[0], *(Clusters(((pronoun.mention, pronoun.a),)) for pronoun in pronouns)]
    scores = Coreference().score(wrong, documents)
    assert (scores["precision"], scores["recall"]) == pytest.approx((100 / 3, 50))
    out = tmp_path / "out"
    run_finetuning(named_request("gap", glue), out)
    result = Run(out / "seed-0").result()
    assert result is not None and {"f1", "masculine_f1"} <= result["dev"].keys()
    assert result["selected"] == result["dev"]["f1"]
    model = load(str(out))
    data = data_of(model, "gap", root=str(glue))
    (gap_scores,) = drained(follow_score(model, data)).values()
    assert gap_scores == {name: value for name, value in result["dev"].items() if name != "step"}


def test_a_model_of_ones_own_files_is_scored_by_a_tasks_official_metrics(tmp_path: Path) -> None:
    rows = [(f"a {n}", f"b {n}", n % 2) for n in range(8)]
    own = "".join(f"{a}\t{b}\t{label}\n" for a, b, label in rows)
    file = write(tmp_path / "a.tsv", "sentence1\tsentence2\tlabel\n" + own)
    run_finetuning(finetune_request("pairs", str(file), *SHORT), tmp_path / "out")
    lines = "".join(f"0\t1\t2\t{a}\t{b}\t{label}\n" for a, b, label in rows)
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    write(tmp_path / "QQP" / "dev.tsv", header + lines)
    model = load(str(tmp_path / "out"))
    assert drained(follow_score(model, data_of(model, str(file))))["dev"].keys() == {"accuracy"}
    official = drained(follow_score(model, data_of(model, "qqp", root=str(tmp_path))))
    assert official["dev"].keys() == {"accuracy", "f1"}


def test_the_second_dev_set_is_named_and_the_first_selects(tmp_path: Path, glue: Path) -> None:
    run_finetuning(named_request("mnli", glue, *QUICK), tmp_path / "out")
    result = Run(tmp_path / "out").result()
    assert result is not None
    scores = result["cells"][0]["seeds"]["0"]
    assert scores.keys() == result["constant"].keys() == {"accuracy", "accuracy_mismatched"}
    assert 100 / 3 <= result["constant"]["accuracy"] < 100
    assert result["selected"] == scores["accuracy"] > scores["accuracy_mismatched"]
    assert (
        protocols.task_word("ax", "classify") == "mnli" == protocols.task_word("mnli", "classify")
    )
    assert protocols.task_word("race_high", "choose") == "race"


def test_the_threshold_is_chosen_on_dev_and_kept_with_the_best(tmp_path: Path) -> None:
    whole = json.loads(Path(sample_file("spans", 32)).read_text(encoding="utf-8"))
    for number, paragraph in enumerate(whole["data"][0]["paragraphs"]):
        if number % 2:
            paragraph["qas"][0] |= {"answers": [], "is_impossible": True}
    file = write(tmp_path / "spans.json", json.dumps(whole))
    run_finetuning(finetune_request("answer", str(file), *QUICK, "head=span"), tmp_path / "out")
    model = load(str(tmp_path / "out"))
    assert model.task is not None and isinstance(model.task.kind, Answer)
    kind = model.task.kind
    assert kind.impossible and kind.threshold != 0
    examples = Data("answer", dev=str(file)).splits().read("dev")
    answers = drained(follow(model, examples))
    assert kind.calibrated(answers, examples).threshold == kind.threshold
    result = Run(tmp_path / "out" / "seed-0").result()
    assert result is not None
    assert kind.score(answers, examples)["f1"] == result["dev"]["f1"] == result["selected"]
    usual = replace(kind, threshold=0.0)
    assert result["dev"]["f1"] >= usual.score(usual.decided(answers), examples)["f1"]
    assert {answer.text == "" for answer in answers} == {True, False}


def test_the_best_epoch_is_kept_and_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = iter([50.0, 90.0, 10.0, 90.0])
    monkeypatch.setattr(Classify, "score", lambda *_: {"accuracy": next(planted)})
    changed_settings = tuple(word for word in QUICK if not word.startswith("epochs"))
    inputs = inputs_for(
        finetune_request("pairs", sample_file("pairs", 16), *changed_settings, "epochs=4")
    )
    work = Trial(inputs, MACHINE, HERE)
    run = Run.create(tmp_path / "run", recipe_toml="", machine={})
    seen: list[dict[str, torch.Tensor]] = []
    for event in Session(
        work, run, SaveOptions(save_every=0, evaluate_every=work.sampler.epoch), again=""
    ).go(0, work.start()):
        if isinstance(event, Scored):
            seen.append({n: p.detach().clone() for n, p in work.model.named_parameters()})
    saved_weights = weights(tmp_path / "run")
    assert [equal(saved_weights, epoch_weights) for epoch_weights in seen] == [
        False,
        True,
        False,
        False,
    ]
    result = run.result()
    assert result is not None and result["dev"] == {
        "step": 2 * work.sampler.epoch,
        "accuracy": 90.0,
    }


# Seeds and grids


def test_a_summary_is_best_median_mean_and_students_interval() -> None:
    summary_row = statistics.summary([1.0, 2.0, 4.0])
    assert (summary_row["best"], summary_row["median"], summary_row["runs"]) == (4, 2, 3)
    assert summary_row["mean"] == pytest.approx(7 / 3)
    # The standard deviation is √(7/3); t with two degrees of freedom is 4.302653.
    half = 4.302653 * (7 / 3) ** 0.5 / 3**0.5
    assert (summary_row["low"], summary_row["high"]) == pytest.approx((7 / 3 - half, 7 / 3 + half))
    assert statistics.summary([5.0]) == {"best": 5, "median": 5, "mean": 5, "runs": 1}


def test_a_grid_and_seeds_make_a_table_with_every_score_and_the_best(tmp_path: Path) -> None:
    settings = tuple(word for word in SHORT if not word.startswith("learning_rate"))
    request = finetune_request("pairs", sample_file("pairs", 16), *settings, "warmup=0")
    plan = planned(request, grid=["learning_rate=1e-3,1e-2"], seeds=2)
    out = tmp_path / "out"
    run_finetuning(plan, out)
    result = Run(out).result()
    assert result is not None and len(result["cells"]) == 2
    chosen = {}
    for cell in result["cells"]:
        mine = {}
        for seed in (0, 1):
            seed_result = Run(out / cell["name"] / f"seed-{seed}").result()
            assert seed_result is not None
            mine[str(seed)] = {"accuracy": seed_result["dev"]["accuracy"]}
            chosen[f"{cell['name']}/seed-{seed}"] = seed_result["selected"]
        assert cell["seeds"] == mine
        assert cell["scores"]["accuracy"] == statistics.summary(
            [seed_scores["accuracy"] for seed_scores in mine.values()]
        )
        assert cell["settings"] == {
            "learning_rate": float(cell["name"].removeprefix("learning_rate-"))
        }
    assert result["selected"] == chosen[result["best"]] == max(chosen.values())
    assert load(str(out)).place.startswith(str(out / result["best"]))


def test_the_best_of_all_cells_and_seeds_is_named(tmp_path: Path) -> None:
    request = finetune_request("pairs", sample_file("pairs", 16), "epochs=1", "batch_size=8")
    plan = planned(request, grid=["learning_rate=1e-3,1e-2"], seeds=2)
    for trial_request, value in zip(plan.requests(), (40.0, 60.0, 70.0, 20.0), strict=True):
        (tmp_path / trial_request.name).mkdir(parents=True)
        dev = {"step": 2, "accuracy": value, "f1": value / 2}
        Run(tmp_path / trial_request.name).write_result({"dev": dev, "selected": value})
    copy = tmp_path / plan.requests()[0].name
    Run(shutil.copytree(copy, f"{copy}-old")).write_result({"dev": {"step": 2}, "selected": 90.0})
    summary_record = summary(tmp_path, plan.request.data.task, cells=plan.cells)
    assert (
        summary_record["best"] == "learning_rate-0.01/seed-0" and summary_record["selected"] == 70
    )
    first, second = summary_record["cells"]
    assert first["scores"]["f1"]["best"] == 30 and first["scores"]["f1"]["mean"] == 25
    assert second["selected"]["median"] == 45 and second["selected"]["runs"] == 2
    # t with one degree of freedom is 12.7062047; the deviation of 40 and 60 is √200.
    assert first["selected"]["high"] == pytest.approx(50 + 12.7062047 * 10)


def test_what_is_done_is_not_done_again_and_another_protocol_is_refused(tmp_path: Path) -> None:
    request, out = finetune_request("pairs", sample_file("pairs", 16), *SHORT), tmp_path / "out"
    run_finetuning(planned(request), out)
    files = [path for path in (out / "seed-0").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    happened = run_finetuning(planned(request, seeds=3), out)
    assert {record.trial for record in happened} == {"seed-1", "seed-2"}
    assert {path: path.stat().st_mtime_ns for path in before} == before
    result = Run(out).result()
    assert result is not None and result["cells"][0]["selected"]["runs"] == 3
    assert run_finetuning(planned(request, seeds=3), out) == []
    mine, other = (weights(out / f"seed-{seed}") for seed in (1, 2))
    assert not equal(mine, other)
    with pytest.raises(
        UserError, match=r"was started differently \(settings, tuning\); name another"
    ):
        run_finetuning(planned(replace(request, settings=(*SHORT, "clip=0.5"))), out)
    with pytest.raises(UserError, match=r"\(protocol"):
        run_finetuning(planned(replace(request, protocol="bert")), out)


def test_an_order_of_examples_is_drawn_by_seed_and_epoch_alone() -> None:
    inputs = inputs_for(finetune_request("pairs", sample_file("pairs", 16), *SHORT))
    first, second = (Trial(replace(inputs, seed=seed), MACHINE, HERE) for seed in (0, 1))
    orders = [work.sampler._order(epoch).tolist() for work in (first, second) for epoch in (0, 1)]
    assert all(sorted(each) == list(range(16)) for each in orders)
    assert len({tuple(each) for each in orders}) == 4
    assert orders[0] == Trial(inputs, MACHINE, HERE).sampler._order(0).tolist()
    labels = [step.counts["classify"] for step in map(first.prepare, range(2))]
    assert labels == [8, 8]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("pairs", "pairs"), ("choose", "choices"), ("answer", "spans"), ("tag", "tags")],
)
def test_the_seed_reaches_the_order_the_fresh_head_and_the_dropout_of_every_kind(
    kind: str, name: str
) -> None:
    inputs = inputs_for(
        finetune_request(kind, sample_file(name, 16), *SHORT[: -len(STILL)])
    )  # with dropout
    head = f"heads.{inputs.task.kind.name}."

    def drawn(seed: int) -> list[Any]:
        """The order of the first epoch, the head's weights, and the loss of one batch by seed."""
        work = Trial(replace(inputs, seed=seed), MACHINE, HERE)
        fresh = [p.tolist() for n, p in work.model.named_parameters() if n.startswith(head)]
        fixed = Trial(inputs, MACHINE, HERE)  # but for the dropout
        fixed.train_state.seed = work.train_state.seed
        (step,) = train(fixed.train_state, iter([fixed.prepare(0)]), HERE)
        return [work.sampler._order(0).tolist(), fresh, step.sums]

    same, other = drawn(0), drawn(1)
    assert same == drawn(0)
    assert all(mine != theirs for mine, theirs in zip(same, other, strict=True))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("pairs", "pairs"), ("choose", "choices"), ("answer", "spans"), ("tag", "tags")],
)
def test_micro_batches_change_neither_losses_nor_weights(kind: str, name: str) -> None:
    inputs = inputs_for(finetune_request(kind, sample_file(name, 16), *SHORT))
    whole = double_precision_trial(inputs)
    parts = double_precision_trial(inputs, replace(MACHINE, micro_batch=1))
    assert len(whole.prepare(0).batches) == 1 < len(parts.prepare(0).batches)
    for mine, other in zip(steps_of(whole), steps_of(parts), strict=True):
        (a,), (b,) = mine.sums.values(), other.sums.values()
        assert a == pytest.approx(b, rel=1e-12) and mine.norm == pytest.approx(other.norm, rel=1e-9)
    for (n, a), (_, b) in zip(
        whole.model.named_parameters(), parts.model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=n)


def test_python_fits_a_model_in_one_call(tmp_path: Path) -> None:
    request = finetune_request("pairs", sample_file("pairs", 16), *SHORT)
    where = {"train": request.data.train, "dev": request.data.dev, "out": tmp_path / "out"}
    how = {"seeds": 2, "set": request.settings, "device": "cpu", "workers": 0}
    model = clozelab.finetune(request.model, request.data.task, **where, **how).load()
    assert model.task is not None and model.task.kind.name == "classify"
    result = Run(tmp_path / "out").result()
    assert result is not None and result["cells"][0]["selected"]["runs"] == 2
    assert model.predict([("a word", "its meaning")])[0].label in ("yes", "no")


def test_a_folder_tells_of_all_its_runs_whatever_was_asked_last(tmp_path: Path) -> None:
    settings = tuple(word for word in SHORT if not word.startswith("learning_rate"))
    request, out = finetune_request("pairs", sample_file("pairs", 16), *settings), tmp_path / "out"
    run_finetuning(planned(request, grid=["learning_rate=1e-3"], seeds=2), out)
    run_finetuning(planned(request, grid=["learning_rate=2e-3"]), out)
    result = Run(out).result()
    assert result is not None
    runs = {cell["name"]: cell["selected"]["runs"] for cell in result["cells"]}
    assert runs == {"learning_rate-0.001": 2, "learning_rate-0.002": 1}


def test_settings_of_the_kind_of_task_are_tried_used_and_kept(tmp_path: Path) -> None:
    short = [word.replace("length=64", "length=24") for word in SHORT]
    request, out = (
        finetune_request("answer", sample_file("spans", 8), *short, "task.longest=7"),
        tmp_path / "out",
    )
    run_finetuning(planned(request, grid=["task.stride=2,8"]), out)
    kinds = {}
    for name in ("task.stride-2", "task.stride-8"):
        task = load(str(out / name / "seed-0")).task
        assert task is not None and isinstance(task.kind, Answer)
        kinds[task.kind.stride] = task.kind.longest
    assert kinds == {2: 7, 8: 7}
    settings_tried = ((*request.settings, f"task.stride={stride}") for stride in (2, 8))
    blocks = [len(inputs_for(replace(request, settings=some)).train) for some in settings_tried]
    assert blocks[0] > blocks[1]
    with pytest.raises(UserError, match=r"grid.task.strid is not a key .* did you mean stride"):
        planned(request, grid=["task.strid=2,8"])
    with pytest.raises(UserError, match=r"was started differently \(settings, tuning\)"):
        run_finetuning(planned(replace(request, settings=(*short, "task.longest=8"))), out)


def test_coreference_reads_a_document_twice_where_segments_overlap(stories_file: str) -> None:
    settings = ("length=8", "steps=1", "batch_size=1")
    once = inputs_for(finetune_request("coreference", stories_file, *settings))
    twice = inputs_for(
        finetune_request(
            "coreference", stories_file, *settings, "task.overlap=true", "task.hidden=16"
        )
    )
    assert isinstance(twice.task.kind, Coreference) and twice.task.kind.hidden == 16
    assert len(twice.train) > len(once.train)
    assert "heads.coreference.mix.weight" in dict(
        Trial(twice, MACHINE, HERE).model.named_parameters()
    )


def test_parts_of_speech_are_learned_and_scored_by_accuracy(tmp_path: Path) -> None:
    text = "the\tDT\ncat\tNN\nsleeps\tVBZ\n\na\tDT\ndog\tNN\nbarks\tVBZ\n"
    request = finetune_request("tag", str(write(tmp_path / "speech.conll", text)), *SHORT)
    happened = run_finetuning(request, tmp_path / "out")
    assert "tags such as DT name no entities" in "".join(s.text for s in events(Said, happened))
    result = Run(tmp_path / "out").result()
    assert result is not None and list(result["cells"][0]["scores"]) == ["accuracy"]


@pytest.mark.parametrize("kind", ["classify", "tag", "answer"])
def test_a_transform_begins_as_that_of_the_masked_language_model(kind: str) -> None:
    file = sample_file({"classify": "definitions", "tag": "tags", "answer": "spans"}[kind], 16)
    model = base_model("modernbert")
    before = opened(model).module.state_dict()
    start = inputs_of(finetune_request(kind, file, *SHORT, model=model)).start
    for name in ("dense.weight", "norm.weight"):
        begun = start[f"heads.{kind}.transform.{name}"]
        assert torch.equal(begun, before[f"heads.masked_lm.{name}"])


@pytest.mark.parametrize("name", ["modernbert", "mosaicbert", "neobert", "diffusion", "minilm"])
def test_a_newer_recipe_is_fine_tuned(name: str) -> None:
    file = sample_file("definitions", 16)
    changed_settings = (
        "steps=60",
        "batch_size=16",
        "learning_rate=5e-3",
        "length=32",
        "warmup=0",
        *STILL,
    )
    work = double_precision_trial(
        inputs_of(finetune_request("classify", file, *changed_settings, model=base_model(name)))
    )
    begun, encoder = work.model.state_dict(), opened(base_model(name)).module.encoder
    for weight, value in encoder.state_dict().items():
        assert torch.equal(begun[f"encoder.{weight}"], value.double())
    losses = [means(step.sums)["classify"]["loss"] for step in steps_of(work)]
    assert losses[-1] < 0.5 * losses[0]
