"""What version 0.1.0 wrote opens, measures what it measured, and goes on as it went on.

`old.tar.xz` has what these commands left behind in a folder /old: `corpus build --phrases
--entities`, `pretrain` (killed at its seventh step of eight, with a checkpoint of the fourth),
`import` of what `export` made of it, `distil` (killed before its first checkpoint), `finetune` and
`study`. It stands for users' folders: what is written otherwise by now must still read these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.golden_numbers import old, unpack_old
from support.pretrain_runs import MACHINE, QUIET, of_kind

from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.pretraining.held_out import evaluate
from clozelab.pretraining.pretrain import resume
from clozelab.reporting.records import gather
from clozelab.runs.events import Ended, drained, means
from clozelab.studies import records
from clozelab.studies import spec as studies
from clozelab.studies.plan import make_plan
from clozelab.studies.request import make_request
from clozelab.studies.run import follow
from clozelab.text.store import Corpus
from clozelab.training.loop import Step

torch.set_num_threads(1)
HELD_OUT = {"masked_lm": 5.733929824829102, "next_sentence": 0.42272529006004333}
IMPORTED = {"masked_lm": 5.812310735020069, "next_sentence": 0.5622486472129822}
NEXT = {
    "masked_lm": [5.821485900878907, 5.828546142578125, 5.757394027709961, 5.790753173828125],
    "next_sentence": [
        *(0.28292006254196167, 0.2666255533695221, 0.244993656873703, 0.23013611137866974)
    ],
}
STUDENT = {
    "distillation": [0.10939689510124774, 0.10637984237050623, 0.09850119955745744],
    "masked_lm": [5.895186996459961, 5.866859054565429, 5.811748504638672],
}
SCORES = {"reviews.accuracy": 50.0, "held_out.masked_lm": 5.7957013104413}


def close(values: Any) -> Any:
    """The same numbers but for rounding in single precision."""
    return pytest.approx(values, rel=1e-5, abs=1e-5)


def losses(steps: list[Step]) -> dict[str, list[float]]:
    """Of every objective, step by step."""
    metrics = [means(step.sums) for step in steps]
    return {
        name: [metrics_of_step[name]["loss"] for metrics_of_step in metrics] for name in metrics[0]
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy that may be changed."""
    unpack_old(tmp_path)
    return tmp_path


def test_a_corpus_opens_and_is_whole() -> None:
    corpus = Corpus.open(old() / "corpus")
    corpus.check()
    documents = corpus.documents()
    assert (len(documents), len(documents.ids)) == (10, 3041)
    corpus.needs("phrase")
    corpus.needs("entity")
    start = corpus.tokenizer.decode(documents.ids[:30].tolist())
    assert start.startswith("daemon book : the design and implementation")


@pytest.mark.parametrize(("name", "expected"), [("run", HELD_OUT), ("imported", IMPORTED)])
def test_a_run_measures_what_it_measured(name: str, expected: dict[str, float]) -> None:
    metrics = means(evaluate(str(old() / name), str(old() / "corpus"), blocks=16))
    assert {
        objective: metrics_of_step["loss"] for objective, metrics_of_step in metrics.items()
    } == close(expected)


def test_a_run_goes_on_as_it_went_on(folder: Path) -> None:
    events = [
        *resume(starting.resumed(folder / "run"), folder / "run", machine=MACHINE, saving=QUIET)
    ]
    steps = of_kind(Step, events)
    assert [step.number for step in steps] == [5, 6, 7, 8]
    curves = losses(steps)
    assert curves.keys() == NEXT.keys()
    for objective, expected in NEXT.items():
        assert curves[objective] == close(expected)
    (ended,) = of_kind(Ended, events)
    assert ended.whole
    (run,), _ = gather([folder / "run"])
    assert run.done and [len(points) for points in run.train.values()] == [8, 8]


def test_a_student_without_a_checkpoint_finds_its_teacher_and_begins_again(folder: Path) -> None:
    place = folder / "student"
    events = [*resume(starting.resumed(place), place, machine=MACHINE, saving=QUIET)]
    curves = losses(of_kind(Step, events))
    assert curves.keys() == STUDENT.keys()
    for objective, expected in STUDENT.items():
        assert curves[objective] == close(expected)


def test_a_fine_tuned_model_says_what_it_said() -> None:
    model = load(str(old() / "tuned"))
    assert model.task is not None and model.step == 8
    predictions = model.predict(["a plant with red flowers", "a man who writes books"])
    assert [prediction.label for prediction in predictions] == ["noun.person", "noun.person"]
    chances = [prediction.probabilities["noun.plant"] for prediction in predictions]
    assert chances == close([0.47469953224171746, 0.47334170456107066])
    _, (trials,) = gather([old() / "tuned"])
    assert trials.data[0] == "classify" and len(trials.cells) == 1


def test_an_imported_model_says_where_it_came_from() -> None:
    model = load(str(old() / "imported"))
    assert model.origin is not None
    assert (model.origin.family, model.origin.heads) == ("bert", ("masked_lm", "next_sentence"))


def test_a_study_is_shown_and_has_nothing_left_to_do(folder: Path) -> None:
    place = folder / "study"
    evidence = records.read(place)
    assert evidence.ended and [cell.scores for cell in evidence.done] == [SCORES, SCORES]
    request = make_request(
        studies.read(place / "study.toml"), [str(folder / "corpus")], size="tiny", budget="3steps"
    )
    plan = drained(make_plan(request, MACHINE, out=place))
    events = [event.event for event in follow(plan, place, machine=MACHINE, saving=QUIET)]
    assert not of_kind(Step, events)
    assert records.read(place).done == evidence.done
