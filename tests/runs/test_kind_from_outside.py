"""A kind of task that clozelab does not have, defined here alone: tuned, scored, used, reopened."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from support.finetune_tasks import QUICK, SHORT, base_model, finetune_request, run_finetuning
from torch import Tensor, nn

import clozelab
from clozelab import registry
from clozelab.cli import main
from clozelab.contracts import Counts, Encoded, Input, Reader, Sums, Targets
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.finetuning.examples import TokenizedExamples, stacked
from clozelab.finetuning.files.columns import Columns, ReadOptions, Source, text_of
from clozelab.finetuning.heads.head import Head
from clozelab.finetuning.kinds import KINDS, TaskKind
from clozelab.finetuning.predict import data_of, follow_score, predict
from clozelab.finetuning.task import parse
from clozelab.layers import Linear, initialise
from clozelab.models.exchange import export
from clozelab.models.load import load
from clozelab.runs.directory import Run
from clozelab.runs.events import drained
from clozelab.studies.scores import check_score, metrics_of


class Note(NamedTuple):
    """A text, and which topics it is of."""

    id: str
    text: str
    topics: tuple[str, ...] | None = None


class Topics(NamedTuple):
    """The topics that are more likely than not, and how likely each is."""

    topics: tuple[str, ...]
    probabilities: dict[str, float]


class TopicsHead(Head):
    """A logit for each topic over the first token; the labels of a slot are a number's bits."""

    def __init__(self, width: int, topics: int) -> None:
        super().__init__()
        self.classifier = Linear(width, topics)
        initialise(self, width)

    def loss(self, logits: tuple[Tensor, ...], targets: dict[str, Tensor]) -> Sums:
        (scores,), labels = logits, targets["labels"]
        bits = (labels[:, None] >> torch.arange(scores.shape[1], device=labels.device)) & 1
        losses = nn.functional.binary_cross_entropy_with_logits(
            scores, bits.to(scores.dtype), reduction="none"
        )
        labelled = self.labelled(targets)
        return {"loss": losses.sum(-1).where(labelled, 0.0).sum(), "count": labelled.sum()}

    def predict(self, encoded: Encoded, inputs: Input, targets: dict[str, Tensor]) -> Tensor:
        scores: Tensor = self.classifier(
            encoded.hidden_states.index_select(0, targets["at"])
        ).float()
        return scores


@dataclass(frozen=True)
class ManyTopics(TaskKind):
    """Any number of topics for a text (multi-label classification)."""

    name: ClassVar[str] = "many_topics"
    label_field: ClassVar[str | None] = "topics"
    from_examples: ClassVar[tuple[str, ...]] = ("topics",)
    gold: ClassVar[tuple[str, ...]] = ("topics",)

    topics: tuple[str, ...]
    metrics: tuple[str, ...] = ("micro_f1",)

    @classmethod
    def read(
        cls, source: Source, options: ReadOptions, *, settings: Mapping[str, Any], counts: Counts
    ) -> list[Note]:
        columns = Columns(source, options, counts, roles=("text", "topics"))
        name, rows = columns.sought("topics", ("topics",)), columns.rows
        topics = [tuple(text_of(row, name).split("+")) if name else None for row in rows]
        texts = [text_of(row, "text") for row in rows]
        return [Note(str(n), *pair) for n, pair in enumerate(zip(texts, topics, strict=True))]

    @classmethod
    def example(cls, row: Any, name: str) -> Note:
        if not isinstance(row, str):
            raise TypeError
        return Note(name, row)

    @classmethod
    def labels_of(cls, examples: Sequence[Note]) -> tuple[str, ...]:
        return tuple(sorted({topic for note in examples for topic in note.topics or ()}))

    @classmethod
    def stand_in(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"topics": ["a", "b"]}

    def tokenize(
        self, examples: Sequence[Note], reader: Reader, *, training: bool = False
    ) -> TokenizedExamples:
        pieces = reader.pieces([note.text for note in examples])
        room = reader.length - reader.num_special_tokens(1)
        whole = [pieces.text(number) for number in range(len(examples))]
        cut = [slice(part.start, min(part.stop, part.start + room)) for part in whole]
        rows = [reader.with_special_tokens(pieces.part(part)) for part in cut]
        known = [note.topics for note in examples]
        bits = [Targets.IGNORED if topics is None else self._bits(topics) for topics in known]
        columns = {"at": np.array([row.mark for row in rows]), "labels": np.array(bits)}
        return stacked(rows, Targets(np.arange(len(rows) + 1), columns))

    def _bits(self, topics: tuple[str, ...]) -> int:
        return sum(1 << self.topics.index(topic) for topic in topics)

    def build(self, width: int) -> TopicsHead:
        return TopicsHead(width, len(self.topics))

    def decode(
        self, tokenized: TokenizedExamples, outputs: list[Any], examples: Sequence[Note]
    ) -> list[Topics]:
        predictions = []
        for rows in outputs:
            likely = dict(zip(self.topics, (1 / (1 + np.exp(-rows[0]))).tolist(), strict=True))
            predictions.append(
                Topics(tuple(topic for topic, p in likely.items() if p > 0.5), likely)
            )
        return predictions

    def score(self, predictions: Sequence[Topics], examples: Sequence[Note]) -> dict[str, float]:
        both = zip(predictions, examples, strict=True)
        pairs = [({*prediction.topics}, {*note.topics}) for prediction, note in both if note.topics]
        right = sum(len(a & b) for a, b in pairs)
        return {"micro_f1": 200 * right / max(1, sum(len(a) + len(b) for a, b in pairs))}

    @classmethod
    def spelled(cls, prediction: Topics) -> str:
        return "+".join(prediction.topics)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind is there during a test, and gone after it."""
    monkeypatch.setenv(registry.IMPORTS, "")
    monkeypatch.setitem(registry._outside, "task", {})
    clozelab.register("task", "many_topics", ManyTopics)
    yield
    del KINDS["many_topics"]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("notes") / "notes.tsv"
    lines = ["the river is wide\twater", "the road is long\tland", "the bridge is old\tland+water"]
    file.write_text("text\ttopics\n" + "\n".join(lines * 4) + "\n", encoding="utf-8")
    return file


def run_command(*arguments: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(list(arguments)) == 0
    return out.getvalue()


def test_a_kind_from_outside_is_tuned_scored_and_reopened(notes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_finetuning(finetune_request("many_topics", str(notes), *QUICK), out)
    result = Run(out / "seed-0").result()
    assert result is not None and result["dev"]["micro_f1"] == 100 == result["selected"]
    model = load(str(out))
    assert model.task is not None and model.task.kind == ManyTopics(("land", "water"))
    (both, single) = predict(model, ["the bridge is old", "the road is long"])
    assert both.topics == ("land", "water") and single.topics == ("land",)
    assert drained(follow_score(model, data_of(model, str(notes)))) == {"dev": {"micro_f1": 100.0}}
    with pytest.raises(UserError, match="input 0: is 3, but the model takes one text"):
        predict(model, [3])
    # The command line.
    line = run_command("predict", str(out), "--text", "the bridge is old", "--device", "cpu")
    assert line == "land+water\tthe bridge is old\n"
    record = json.loads(
        run_command("predict", str(out), "--file", str(notes), "--json").splitlines()[0]
    )
    assert record["text"] == "the river is wide" and record["topics"] == ["water"]
    assert "100" in run_command("evaluate", str(out), str(notes))
    # transformers has no such head, and is not asked for one.
    with pytest.raises(UserError, match="task many_topics: no bert class of transformers"):
        export(str(out), tmp_path / "hf")


def test_its_task_file_names_the_module_that_it_comes_from(notes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_finetuning(finetune_request("many_topics", str(notes), *SHORT), out)
    text = (out / "seed-0" / "task.toml").read_text(encoding="utf-8")
    assert f'imports = ["{__name__}"]' in text
    with pytest.raises(UserError, match="come from module not_there, which is not loaded"):
        parse(text.replace(__name__, "not_there"), "task.toml")


def test_protocols_and_studies_know_it(tmp_path: Path) -> None:
    protocol = tmp_path / "mine.toml"
    protocol.write_text(
        "[default]\nrate = 1e-4\nsequences = 8\nlength = 64\nepochs = 2\n"
        '[kinds.many_topics.task]\nmetrics = ["micro_f1"]\n',
        encoding="utf-8",
    )
    tuning = protocols.read(protocol, "many_topics", "many_topics")
    assert tuning.task == ('metrics = ["micro_f1"]',)
    with pytest.raises(UserError, match="read from the examples"):
        protocols.read(protocol, "many_topics", "many_topics", overrides=["task.topics=x"])
    assert metrics_of("many_topics=notes") == ["micro_f1"]
    check_score("notes.micro_f1", ["many_topics=notes"], place="study")


def test_a_kind_that_lacks_something_is_refused() -> None:
    @dataclass(frozen=True)
    class Empty(TaskKind):  # type: ignore[misc]
        name: ClassVar[str] = "empty"

    with pytest.raises(UserError, match=r"task empty: has no build\(\)"):
        clozelab.register("task", "empty", Empty)
    with pytest.raises(UserError, match="has another name"):
        clozelab.register("task", "topics", ManyTopics)
    with pytest.raises(UserError, match="part of clozelab itself"):
        clozelab.register("task", "tag", KINDS["tag"])
    assert base_model() and "empty" not in KINDS
