"""Measuring speed: what a row holds, that both sides do the same work, what is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.corpora import build, texts, write

from clozelab import cli
from clozelab.benching import measure, theirs
from clozelab.benching.measure import Finished, Turn, bench
from clozelab.benching.padding import padded, whole_rows
from clozelab.benching.rows import ROUNDS, BenchRequest, BenchRow, recipe_of, rows
from clozelab.cli.views.bench import measured as shown_rows
from clozelab.config import recipe
from clozelab.contracts import Targets
from clozelab.errors import UserError
from clozelab.pretraining.job import PretrainJob
from clozelab.pretraining.trainer import PretrainTrainer
from clozelab.runs.events import Said
from clozelab.runs.machine import Machine
from clozelab.text.store import Corpus
from clozelab.training.packing import BatchShape, batch_shape
from clozelab.training.world import World

CPU = Machine(device="cpu", workers=0)
STILL = ("encoder.dropout=0", "encoder.attention_dropout=0")
KINDS = {
    "roberta": "RobertaForMaskedLM",
    "bert": "BertForPreTraining",
    "albert": "AlbertForPreTraining",
    "distilbert": "DistilBertForMaskedLM",
    "gpt": "OpenAIGPTLMHeadModel",
    "xlnet": "XLNetLMHeadModel",
    "spanbert": "BertForMaskedLM",
}
TRAINER = {"Trainer"} if find_spec("accelerate") else set()
# Theirs drops out before its pairs; theirs looks at all where there is nothing to be seen, as at
# the first position of a row: how much that is depends on the text.
LOOSE = {"albert": 0.05, "xlnet": 0.01}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("bench")
    return build(write(folder / "a.jsonl", texts(40)), folder / "c")


def order(
    corpus: Corpus, name: str, *, against: str | None = "transformers", **more: Any
) -> BenchRequest:
    settings = {"size": "1x64", "length": 32, "sequences": 4, "steps": 1, "machine": CPU, **more}
    return BenchRequest((name,), (str(corpus.path),), against=against, **settings)


def bench_record(request: BenchRequest) -> dict[str, Any]:
    last = list(bench(request))[-1]
    assert isinstance(last, Finished)
    return last.record


@pytest.fixture(scope="module")
def beside(corpus: Corpus) -> dict[str, Any]:
    return bench_record(order(corpus, "roberta", settings=STILL))


@pytest.mark.parametrize("name", KINDS)
def test_transformers_class_of_a_recipe_is_its_own(corpus: Corpus, name: str) -> None:
    own_recipe = recipe_of(BenchRow(name, "1x64", 32, 4), order(corpus, name), corpus, device="cpu")
    exported = theirs.exported(PretrainJob(own_recipe, [(corpus, 1.0)]))
    assert exported.config["architectures"] == [KINDS[name]]


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("albert", "distilbert", "gpt", "xlnet")
        ),
    ],
)
def test_both_sides_do_the_same_work(
    corpus: Corpus, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "find_spec", lambda _: None)
    settings = (*STILL, "blocks.reverse=false") if name == "xlnet" else STILL
    (row,) = bench_record(order(corpus, name, settings=settings))["rows"]
    alike(row, atol=LOOSE.get(name, 1e-4))


def test_both_sides_of_a_roberta_do_the_same_work(beside: dict[str, Any]) -> None:
    (row,) = beside["rows"]
    alike(row, atol=1e-4)
    assert row["peers"].keys() == {"transformers", *TRAINER}


def test_a_stream_of_odd_length_reuses_the_larger_half(corpus: Corpus) -> None:
    request = order(corpus, "xlnet", length=33)
    shaped: Any = recipe_of(rows(request, "cpu")[0], request, corpus, device="cpu")
    assert (shaped.blocks.length, shaped.blocks.reuse) == (33, 17)


def alike(row: dict[str, Any], *, atol: float) -> None:
    mine, peer = row["clozelab"], row["peers"]["transformers"]
    assert abs(mine["first_loss"] - peer["first_loss"]) < atol
    tokens = [[turn["tokens"] for turn in side["turns"]] for side in (mine, peer)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == ROUNDS
    assert all(0 < count <= 4 * 32 for count in tokens[0])


@pytest.mark.skipif(not TRAINER, reason="accelerate is not installed")
def test_the_trainer_sees_the_same_text(corpus: Corpus, beside: dict[str, Any]) -> None:
    (row,) = beside["rows"]
    turns = row["peers"]["Trainer"]["turns"]
    assert len(turns) == ROUNDS and all(0 < turn["tokens"] <= 4 * 32 for turn in turns)
    share, room = share_and_shape(corpus, "roberta", constant=False)
    wholes = [row_ids for batch in room.batches(share) for row_ids in whole_rows(batch)]
    plan = prepared(corpus, "roberta").sources(0)[0]
    blocks = plan.plan(0).blocks(plan.order(0)[: len(share)])
    assert [id_ for row_ids in wholes for id_ in row_ids] == blocks.ids.tolist()


def prepared(corpus: Corpus, name: str) -> PretrainTrainer:
    request = order(corpus, name)
    own_recipe = recipe_of(rows(request, "cpu")[0], request, corpus, device="cpu")
    return PretrainTrainer(
        PretrainJob(own_recipe, [(corpus, 1.0)]), CPU, World(0, 1, torch.device("cpu"))
    )


def share_and_shape(corpus: Corpus, name: str, *, constant: bool) -> tuple[Any, BatchShape]:
    trainer = prepared(corpus, name)
    share = trainer.steps.sample(trainer.sources(0))
    batch_size = len(share) // 2 + 1
    return share, batch_shape(
        share, tokens=batch_size * 32, blocks=batch_size, max_seqlen=32, constant=constant
    )


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_rows_hold_every_real_token_and_target_and_no_dummy(
    corpus: Corpus, constant: bool, full: bool
) -> None:
    share, room = share_and_shape(corpus, "bert", constant=constant)
    config = {"model_type": "bert", "type_vocab_size": 2, "pad_token_id": 1}
    padded_batches = [padded(batch, config, full=full) for batch in room.batches(share)]
    assert len(padded_batches) > 1
    assert (
        sum(int(padded_batch["attention_mask"].sum()) for padded_batch in padded_batches)
        == share.tokens
    )
    assert sum(len(padded_batch["input_ids"]) for padded_batch in padded_batches) == len(share)
    counts = share.counts()
    hidden = sum(
        int((padded_batch["labels"] != Targets.IGNORED).sum()) for padded_batch in padded_batches
    )
    assert hidden == counts["masked_lm"]
    pairs = torch.cat([padded_batch["next_sentence_label"] for padded_batch in padded_batches])
    assert len(pairs) == counts["next_sentence"] and set(pairs.tolist()) == {0, 1}
    for padded_batch in padded_batches:
        outside = padded_batch["attention_mask"] == 0
        assert (padded_batch["input_ids"][outside] == 1).all()
        assert (padded_batch["labels"][outside] == Targets.IGNORED).all()
        assert padded_batch["input_ids"].shape == padded_batch["token_type_ids"].shape
        assert not full or padded_batch["input_ids"].shape[1] == 32


def test_the_record_is_complete_and_plain(beside: dict[str, Any], tmp_path: Path) -> None:
    record = json.loads(json.dumps(beside, allow_nan=False))
    assert {"torch", "transformers", "clozelab", "python", "device"} <= record["machine"].keys()
    (row,) = record["rows"]
    expected = {"recipe": "roberta", "size": "1x64", "length": 32, "dropout": 0.0, "sequences": 4}
    assert expected.items() <= row["what"].items()
    assert row["what"]["flops_a_token"] > 0 and row["what"]["peak_flops"] > 0
    numbers = ("tokens_a_second", "useful_share", "first_step_seconds")
    for side in (row["clozelab"], *row["peers"].values()):
        assert all(side[name] > 0 for name in numbers) and side["peak_memory_gib"] is None
    assert row["clozelab"]["feed_share"] > 0
    assert all(side["ratio"]["speed"] > 0 for side in row["peers"].values())
    (tmp_path / "r.toml").write_text(row["recipe"], encoding="utf-8")
    assert recipe.read(str(tmp_path / "r.toml")).blocks.length == 32


def test_the_table_fits_eighty_columns(beside: dict[str, Any]) -> None:
    console = Console(width=80, record=True, file=StringIO())
    more_rows = {**beside, "rows": [*beside["rows"], *deepcopy(beside["rows"])]}
    more_rows["rows"][1]["clozelab"]["tokens_a_second"] = 12_345_678.0
    console.print(*shown_rows(more_rows, {}))
    output = console.export_text()
    assert "…" not in output and max(map(len, output.splitlines())) <= 80
    assert output.count("tokens/s") == 1 and "12,345,678" in output


def test_turns_are_told_of_as_they_are_taken(corpus: Corpus) -> None:
    events = list(bench(order(corpus, "roberta", against=None)))
    turns = [event for event in events if isinstance(event, Turn)]
    assert [turn.done for turn in turns] == list(range(1, turns[0].turns + 1))
    assert [turn.what for turn in turns[-2:]] == ["clozelab", "the feed"]


def test_what_transformers_does_not_have_is_said(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "find_spec", lambda _: None)
    (span,) = bench_record(order(corpus, "spanbert"))["rows"]
    assert any("without span_boundary" in note for note in span["notes"])
    assert any("accelerate" in note for note in span["notes"])
    assert span["peers"].keys() == {"transformers"}
    (elmo,) = bench_record(order(corpus, "elmo"))["rows"]
    assert not elmo["peers"] and "no such model" in elmo["notes"][0]


def test_rows_suit_the_device_unless_they_are_named() -> None:
    assert {row.size for row in rows(BenchRequest(), "cpu")} == {"mini", "tiny"}
    assert [row.recipe for row in rows(BenchRequest(), "cuda")][:2] == ["roberta", "bert"]
    assert rows(BenchRequest(size="tiny"), "cuda") == (BenchRow("roberta", "tiny"),)
    chosen_rows = rows(BenchRequest(("bert", "gpt"), length=64, sequences=2), "cpu")
    assert chosen_rows == (BenchRow("bert", "mini", 64, 2), BenchRow("gpt", "mini", 64, 2))


def test_a_released_size_has_the_table_of_its_recipe(corpus: Corpus) -> None:
    own = recipe_of(BenchRow("bert", "base"), BenchRequest(), corpus, device="cuda")
    assert own.tokenizer.vocabulary == 30522 and own.schedule.batch_size * 512 == 32_768
    small = recipe_of(BenchRow("bert", "mini"), BenchRequest(), corpus, device="cpu")
    assert small.tokenizer.vocabulary == corpus.vocabulary.size


def test_the_command_prints_a_table_and_writes_a_record(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "bench.json"
    arguments = ["bert", "--size", "1x64", "--length", "32", "--sequences", "2", "--steps", "1"]
    arguments += ["--data", str(corpus.path), "--device", "cpu", "--out", str(place)]
    assert cli.main(["bench", *arguments]) == 0
    assert "bert 1x64, 2 × 32 tokens" in capsys.readouterr().out
    assert len(json.loads(place.read_text(encoding="utf-8"))["rows"]) == 1


def test_mistakes_are_answered(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="--against jax: is unknown; choose transformers"):
        bench_record(order(corpus, "roberta", against="jax"))
    with pytest.raises(UserError, match="is not a corpus; make one"):
        bench_record(BenchRequest(data=(str(tmp_path),), machine=CPU))
    with pytest.raises(UserError, match="--steps 0"):
        order(corpus, "roberta", steps=0)
    assert cli.main(["bench", "--out", str(tmp_path / "none" / "b.json")]) == 2
    monkeypatch.setattr(theirs, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"not installed; pip install 'clozelab\[bench\]'"):
        bench_record(order(corpus, "roberta"))


def test_a_row_that_fills_the_memory_does_not_lose_the_others(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = measure._Trial.turns

    def full(self: Any) -> Any:
        if self.row.recipe == "bert":
            raise torch.OutOfMemoryError
        yield from turns(self)

    monkeypatch.setattr(measure._Trial, "turns", full)
    events = list(bench(replace(order(corpus, "bert", against=None), recipes=("bert", "roberta"))))
    (notice,) = (event.text for event in events if isinstance(event, Said))
    assert "bert: out of memory with 4 sequences a step" in notice and "--sequences 2" in notice
    last = events[-1]
    assert isinstance(last, Finished)
    assert [row["what"]["recipe"] for row in last.record["rows"]] == ["roberta"]
    with pytest.raises(UserError, match="out of memory"):
        list(bench(order(corpus, "bert", against=None)))
