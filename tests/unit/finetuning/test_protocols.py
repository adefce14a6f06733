"""Protocols: every file reads for every task, says what the papers say, and refuses mistakes."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from support.processes import run_process

from clozelab.config import recipe as recipes
from clozelab.config.slots import SLOTS
from clozelab.config.tables import build, plain
from clozelab.errors import UserError
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.kinds import KINDS, Answer, Coreference, Tag, own_words
from clozelab.finetuning.protocols import (
    cells,
    changes,
    grid,
    kind_with,
    named,
    names,
    protocol_for,
    read,
    tasks,
)
from clozelab.training.optimiser import Adamw, BertAdam

SYSTEMS = {
    *("bert", "roberta", "spanbert", "albert", "xlnet", "distilbert", "wwm", "ernie"),
    *("gpt", "elmo", "electra", "modernbert", "deberta", "ours", "swift"),
}
SIMPLE = FinetuneConfig(learning_rate=1e-4, batch_size=32, length=128, epochs=3)
MINE = "[default]\nlearning_rate = 1e-4\nbatch_size = 8\nlength = 64\nepochs = 2\n"


def for_task(protocol: str | Path, task: str, *overrides: str) -> FinetuneConfig:
    return read(protocol, task, tasks().get(task, task), overrides=overrides)


@pytest.fixture
def mine(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(act: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(UserError) as caught:
        act(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the files ---


def test_the_folder_holds_the_family_and_ours() -> None:
    assert set(names()) == SYSTEMS


@pytest.mark.parametrize("name", names())
def test_a_protocol_reads_for_every_task_and_every_kind_of_ones_own(name: str) -> None:
    for task, kind in tasks().items():
        tuning = read(name, task, kind)
        assert build(FinetuneConfig, plain(tuning), place="task.toml", key="tuning") == tuning
        assert tuning.schedule(1_000_000).steps > 0
        assert tuning.length <= 512
    for task in own_words():
        read(name, task, "classify" if task == "pairs" else task)


@pytest.mark.parametrize("name", names())
def test_a_protocol_begins_with_its_paper_and_fits_a_screen(name: str) -> None:
    text = (resources.files("clozelab") / "config" / "protocols" / f"{name}.toml").read_text(
        "utf-8"
    )
    assert text.startswith("# ") and ("arXiv" in text or name in ("gpt", "ours", "swift"))
    assert max(map(len, text.splitlines())) <= 100


def test_recipes_have_the_protocol_of_their_paper() -> None:
    protocols_by_recipe = {name: protocol_for(recipes.read(name)) for name in recipes.names()}
    assert set(protocols_by_recipe.values()) == SYSTEMS - {
        "swift"
    }  # which is used where it is named
    for name in SYSTEMS - {"wwm", "ours", "swift"}:
        assert protocols_by_recipe[name] == name
    assert (
        protocols_by_recipe["roberta_wwm"] == "wwm"
        and protocols_by_recipe["bert_chinese"] == "bert"
    )
    assert protocols_by_recipe["swift"] == "ours"
    assert protocol_for(recipes.read("swift", size="base")) == "roberta"
    for name in SYSTEMS - {"wwm", "ours", "swift", "elmo"}:
        assert protocol_for(recipes.read(name, size="tiny")) == "ours"
    assert protocol_for(recipes.read("elmo", size="tiny")) == "elmo"


def test_what_a_protocol_suits_is_what_parts_can_have() -> None:
    folder = resources.files("clozelab") / "config" / "protocols"
    tables = {name: tomllib.loads((folder / f"{name}.toml").read_text("utf-8")) for name in names()}
    suits = {name: table["suits"] for name, table in tables.items() if "suits" in table}
    assert suits.keys() == SYSTEMS - {"bert", "ours", "swift"}
    assert sorted(table.pop("rank") for table in suits.values()) == [*range(1, len(suits) + 1)]
    for table in suits.values():
        for slot, facts in table.items():
            parts = SLOTS[slot]
            assert {*facts.get("use", ())} <= parts.keys()
            for field in facts.keys() - {"use"}:
                assert any(hasattr(part, field) for part in parts.values()), field


@pytest.mark.parametrize("name", recipes.names())
def test_the_protocol_goes_by_the_parts_not_by_the_name_or_the_tokenizer(name: str) -> None:
    own = recipes.read(name)
    copy = recipes.parse(recipes.to_toml(replace(own, name="mine", title="mine")), "mine.toml")
    assert protocol_for(copy) == protocol_for(own)
    tokenizer = recipes.read("bert").tokenizer  # a run has that of its corpus
    assert protocol_for(replace(own, tokenizer=tokenizer)) == protocol_for(own)


def test_a_variant_is_tuned_as_the_recipe_that_it_changes() -> None:
    base = recipes.read("bert")
    changed = recipes.read("bert", overrides=["encoder.position_offset=2"])
    assert (protocol_for(changed), protocol_for(changed, base=base)) == ("roberta", "bert")


@pytest.mark.parametrize(
    ("system", "task", "rate", "sequences", "length"),
    [
        ("bert", "squad1", 5e-5, 32, 384),
        ("bert", "squad2", 5e-5, 48, 384),
        ("bert", "swag", 2e-5, 16, 128),
        ("bert", "xnli", 5e-5, 32, 128),
        ("bert", "ontonotes", 1e-5, 1, 128),
        ("roberta", "cola", 1e-5, 16, 512),
        ("roberta", "mnli", 1e-5, 32, 512),
        ("roberta", "rte", 2e-5, 16, 512),
        ("roberta", "race", 1e-5, 16, 512),
        ("spanbert", "ontonotes", 2e-5, 1, 384),
        ("albert", "qqp", 5e-5, 128, 512),
        ("albert", "squad1", 5e-5, 48, 384),
        ("albert", "race", 2e-5, 32, 512),
        ("deberta", "mnli", 1.5e-5, 64, 256),
        ("deberta", "cola", 2e-5, 32, 64),
        ("deberta", "conll2003", 2e-5, 16, 512),
        ("electra", "rte", 1e-4, 32, 128),
        ("electra", "squad2", 1e-4, 32, 512),
        ("modernbert", "mrpc", 8e-5, 32, 512),
        ("xlnet", "squad2", 2e-5, 24, 512),
        ("xlnet", "stsb", 5e-5, 32, 128),
        ("wwm", "chnsenticorp", 2e-5, 32, 128),
        ("ernie", "cmrc2018", 8e-5, 32, 512),
        ("gpt", "race", 6.25e-5, 32, 512),
        ("ours", "sst2", 2e-4, 32, 128),
        ("ours", "squad1", 2e-4, 32, 384),
    ],
)
def test_rates_sequences_and_lengths_are_the_papers(
    system: str, task: str, rate: float, sequences: int, length: int
) -> None:
    tuning = for_task(system, task)
    assert (tuning.learning_rate, tuning.batch_size, tuning.length) == (rate, sequences, length)


def test_what_makes_a_system_is_in_its_protocol() -> None:
    bert, roberta = for_task("bert", "cola"), for_task("roberta", "cola")
    assert isinstance(bert.optimiser_part(), BertAdam) and bert.shape == "google_linear"
    part = roberta.optimiser_part()
    assert part == Adamw(
        learning_rate=1e-5,
        betas=(0.9, 0.98),
        epsilon=1e-6,
        weight_decay=0.1,
        decay_all=True,
        clip=0.0,
    )
    modernbert = for_task("modernbert", "mrpc")
    assert modernbert.optimiser_part() == Adamw(
        learning_rate=8e-5, betas=(0.9, 0.98), epsilon=1e-6, weight_decay=8e-6, clip=1.0
    )
    assert (modernbert.epochs, modernbert.warmup, modernbert.head_dropout) == (2, 0, 0)
    assert for_task("spanbert", "cola").epochs == 4 and for_task("spanbert", "sst2").epochs == 10
    assert for_task("xlnet", "squad1").layer_decay == 0.75
    assert for_task("xlnet", "race").layer_decay == 1
    assert for_task("xlnet", "mnli").weight_decay == 0
    assert for_task("gpt", "swag").lm_weight == 0.5
    assert (for_task("elmo", "conll2003").features, for_task("elmo", "conll2003").reader) == (
        "weighted_all",
        "bilstm",
    )
    assert [for_task("albert", task).head for task in ("squad1", "squad2")] == ["span", "beam"]
    assert [for_task("albert", task).dropout for task in ("mnli", "qqp")] == [0.0, 0.1]
    distil = for_task("distilbert", "squad1")
    assert (distil.alpha, distil.temperature) == (0.5, 2.0)
    assert [for_task("ours", task).epochs for task in ("mnli", "rte", "litbank")] == [3, 10, 20]
    coreference = for_task("spanbert", "litbank")
    assert (coreference.head_learning_rate, coreference.head_dropout) == (1e-4, 0.3)
    assert for_task("roberta", "cola").head_dropout == 0
    assert for_task("bert", "cola").head_dropout == 0.1
    assert for_task("albert", "squad2").head_dropout == 0.1
    assert for_task("xlnet", "squad2").task == ("best = 5", "longest = 64")


@pytest.mark.parametrize(
    "system", ["bert", "spanbert", "roberta", "wwm", "ernie", "electra", "deberta"]
)
def test_nothing_drops_out_before_the_scores_of_starts_and_ends(system: str) -> None:
    assert for_task(system, "squad1").head_dropout == for_task(system, "answer").head_dropout == 0


@pytest.mark.parametrize("system", names())
def test_a_training_document_has_eleven_short_segments_or_three_long_ones(system: str) -> None:
    tuning = for_task(system, "litbank")
    kind = kind_with({"segment": tuning.length}, tuning.task, "coreference", place="litbank")
    assert isinstance(kind, Coreference)
    assert (kind.segment, kind.train_segments) in [(128, 11), (384, 3)]


@pytest.mark.parametrize("system", names())
def test_three_tasks_start_from_mnli_in_two_papers_and_in_swift(system: str) -> None:
    tasks_after_mnli = {task for task in tasks() if for_task(system, task).after == "mnli"}
    chained = system in ("roberta", "albert", "swift")
    assert tasks_after_mnli == ({"rte", "mrpc", "stsb"} if chained else set())


@pytest.mark.parametrize(
    ("task", "examples", "steps", "warmup"),
    # The configurations of its code fill their batches otherwise: a few steps differ.
    [("cola", 8551, 5336, 320), ("sst2", 67_349, 20_935, 1256), ("mnli", 392_702, 123_873, 7432)]
    + [("mrpc", 3668, 2296, 137), ("stsb", 5749, 3598, 214)],
)
def test_roberta_takes_about_the_steps_of_its_configurations(
    task: str, examples: int, steps: int, warmup: int
) -> None:
    schedule = for_task("roberta", task).schedule(examples)
    assert schedule.steps == pytest.approx(steps, rel=0.01)
    assert schedule.warmup == pytest.approx(warmup, rel=0.01)


def test_albert_takes_the_steps_of_its_table_whatever_the_examples() -> None:
    schedule = for_task("albert", "mnli").schedule(123)
    assert (schedule.steps, schedule.warmup, schedule.batch_size) == (10_000, 1000, 128)


# --- layers and overrides ---


def test_tables_are_laid_over_one_another_key_by_key(mine: Any) -> None:
    kinds = "[kinds.answer]\nlength = 384\nlearning_rate = 2e-4\n"
    path = mine(f"{MINE}{kinds}[tasks.squad2]\nlearning_rate = 3e-4\n")
    assert for_task(path, "cola").learning_rate == 1e-4
    assert [
        (t.learning_rate, t.length) for t in (for_task(path, "squad1"), for_task(path, "squad2"))
    ] == [
        (2e-4, 384),
        (3e-4, 384),
    ]
    assert for_task(str(path), "answer") == for_task(path, "squad1")
    # The kind is the caller's: a task of that name may be read as another.
    assert read(path, "cola", "answer").length == 384


def test_steps_take_the_place_of_epochs_and_the_other_way_round(mine: Any) -> None:
    path = mine(MINE + "warmup = 0.1\n[tasks.cola]\nsteps = 7\nwarmup_steps = 2\n")
    tuning = for_task(path, "cola")
    assert (tuning.epochs, tuning.steps, tuning.warmup, tuning.warmup_steps) == (None, 7, None, 2)
    tuning = for_task(path, "cola", "epochs=4", "warmup=0.5")
    assert (tuning.epochs, tuning.steps, tuning.warmup, tuning.warmup_steps) == (4, None, 0.5, None)


def test_overrides_come_last_and_need_no_quotes() -> None:
    tuning = for_task(
        "xlnet", "squad2", "learning_rate=1e-3", "features=last", "betas=[0.8, 0.9]", "dropout=none"
    )
    assert (tuning.learning_rate, tuning.features, tuning.betas, tuning.dropout) == (
        1e-3,
        "last",
        (0.8, 0.9),
        None,
    )
    assert tuning.layer_decay == 0.75
    assert for_task("bert", "cola", "dropout=none").dropout is None


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("[tasks.coal]\nlearning_rate = 1.0\n", ("mine.toml: tasks.coal", "did you mean cola?")),
        ("[kinds.tags]\nlearning_rate = 1.0\n", ("kinds.tags", "did you mean tag?")),
        ("[task.cola]\nlearning_rate = 1.0\n", ("mine.toml: task", "did you mean tasks?")),
        ("[tasks.rte]\nlearning_rat = 1.0\n", ("is not a key", "did you mean learning_rate?")),
        ('[tasks.rte]\nlearning_rate = "a"\n', ('tasks.rte.learning_rate = "a" must be a number',)),
        ("[kinds.tag]\nlearning_rate = 0.0\n", ("kinds.tag.learning_rate = 0.0: must be above 0",)),
        ("[kinds.tag]\nsteps = 1\nepochs = 1\n", ("kinds.tag.epochs and steps are both set",)),
        ('[tasks.rte]\nafter = "mlni"\n', ('tasks.rte.after = "mlni"', "did you mean mnli?")),
        ('[tasks.mnli]\nafter = "mnli"\n', ("tasks.mnli.after names mnli itself",)),
        ("[grid]\nlearning_rate = 1e-5\n", ("grid.learning_rate must be a list of values",)),
        ("[grid]\nlearning_rate = []\n", ("grid.learning_rate must be a list of values",)),
        ("[grid]\nlearning_rate = [1e-5, -1.0]\n", ("grid.learning_rate = -1.0: must be above 0",)),
        ("[grids.coal]\nlearning_rate = [1.0]\n", ("grids.coal", "did you mean cola?")),
        ("[grids.cola]\nepochs = [1]\nsteps = [1]\n", ("grids.cola has epochs and steps",)),
        ("[tasks]\ncola = 3\n", ("tasks has keys outside a table", "[tasks.cola]")),
        ("[default.task]\nstride = 1\n", ("default.task is not a kind", "[kinds.answer.task]")),
        ("[grid]\ntask.stride = [1]\n", ("grid.task is not a kind", "[grids.answer.task]")),
        ("[kinds.answer.task]\nstrid = 1\n", ("kinds.answer.task.strid", "mean stride?")),
        ("[tasks.litbank]\ntask.ratio = 0.0\n", ("tasks.litbank.task.ratio = 0.0: must be",)),
        ("[kinds.tag]\ntask = 3\n", ("kinds.tag.task must be a table",)),
        ("[grids.squad1.task]\nstride = 3\n", ("grids.squad1.task.stride must be a list",)),
        ("[grids.squad1.task]\nstride = [3, 0]\n", ("grids.squad1.task.stride = 0: must be",)),
    ],
)
def test_a_mistake_anywhere_in_a_file_is_named_whatever_task_is_asked_for(
    mine: Any, text: str, phrases: tuple[str, ...]
) -> None:
    message = refusal(for_task, mine(MINE + text), "sst2")
    assert all(word in message for word in phrases), message


def test_a_file_that_is_no_protocol_is_refused(mine: Any) -> None:
    assert "table default is missing" in refusal(for_task, mine(""), "sst2")
    assert "is not valid TOML" in refusal(for_task, mine("x"), "sst2")
    assert "default has keys outside a table" in refusal(for_task, mine("default = 3"), "sst2")
    short = refusal(
        for_task, mine("[default]\nlearning_rate = 1e-4\nbatch_size = 8\nlength = 9\n"), "sst2"
    )
    assert "default.epochs is missing; set epochs or steps" in short
    assert "default.length is missing" in refusal(
        for_task, mine("[default]\nlearning_rate = 1e-4\nbatch_size = 8\nepochs = 2\n"), "sst2"
    )


@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        (("brt", "cola", "classify"), ("protocol brt is unknown", "did you mean bert?")),
        (("no/bert.toml", "cola", "classify"), ("no/bert.toml does not exist",)),
        (("bert", "sst-2", "classify"), ("task sst-2 is unknown", "did you mean sst2?")),
        (("bert", "cola", "clasify"), ("kind clasify is unknown", "did you mean classify?")),
    ],
)
def test_an_unknown_word_is_refused(arguments: tuple[str, str, str], phrases: tuple[str]) -> None:
    message = refusal(read, *arguments)
    assert all(word in message for word in phrases), message


@pytest.mark.parametrize(
    ("overrides", "phrases"),
    [
        (["batchsize=1"], ("bert: cola.batchsize is not a key", "did you mean batch_size?")),
        (["learning_rate"], ("'learning_rate' sets nothing", "learning_rate=2e-5")),
        (["learning_rate="], ("'learning_rate=' sets nothing",)),
        (["learning_rate=1", "learning_rate=2"], ("rate is set twice", "leave it out of the grid")),
        (["features=lst"], ('cola.features = "lst" is unknown', "did you mean last?")),
        (["steps=3", "epochs=1"], ("epochs and steps are both set",)),
    ],
)
def test_a_bad_override_is_refused(overrides: list[str], phrases: tuple[str, ...]) -> None:
    message = refusal(for_task, "bert", "cola", *overrides)
    assert all(word in message for word in phrases), message


# --- settings of the kind of task ---


def test_settings_of_the_kind_are_laid_over_one_another_like_the_rest(mine: Any) -> None:
    path = mine(
        MINE + "[kinds.answer.task]\nstride = 64\nbest = 7\n[tasks.squad2]\ntask.stride = 32\n"
    )
    assert for_task(path, "cola").task == ()
    assert for_task(path, "squad1").task == ("best = 7", "stride = 64")
    assert for_task(path, "squad2").task == ("best = 7", "stride = 32")
    tuning = for_task(path, "squad2", "task.longest=9", "task.stride=16", "learning_rate=1.0")
    assert (tuning.learning_rate, tuning.task) == (1, ("best = 7", "longest = 9", "stride = 16"))
    assert len({tuning, for_task(path, "squad2")}) == 2  # they can be kept by
    assert build(FinetuneConfig, plain(tuning), place="task.toml", key="tuning") == tuning
    kind = kind_with({"impossible": True, "best": 1}, tuning.task, "answer", place="squad2")
    assert kind == Answer(impossible=True, best=7, longest=9, stride=16)


def test_words_lists_and_nothing_are_settings_of_a_kind_too() -> None:
    tuning = for_task("bert", "conll2003", "task.scheme=iob2", 'task.metrics=["recall", "f1"]')
    kind = kind_with({"tags": ("O", "B-X")}, tuning.task, "tag", place="conll2003")
    assert kind == Tag(("O", "B-X"), scheme="iob2", metrics=("recall", "f1"))
    assert for_task("bert", "conll2003", "task.scheme=none").task == ()
    for name in ("0", "good"):
        assert for_task("bert", "cola", f'task.positive="{name}"', 'task.metrics=["f1"]').task
    assert for_task("bert", "cola", "task.positive=0").task == ('positive = "0"',)
    with pytest.raises(UserError, match=r"task.positive = true must be a word in quotes"):
        for_task("bert", "cola", "task.positive=true")
    assert for_task("bert", "coreference", "task.ratio=1").task[0] == "ratio = 1.0"


@pytest.mark.parametrize(
    ("task", "override", "phrases"),
    [
        ("squad1", "task.strid=64", ("squad1.task.strid is not a key", "did you mean stride?")),
        ("cola", "task.stride=64", ("cola.task.stride is not a key of cola.task",)),
        ("squad1", "task.stride=short", ('squad1.task.stride = "short" must be a whole number',)),
        ("squad1", "task.stride=0", ("squad1.task.stride = 0: must be at least 1",)),
        ("conll2003", "task.scheme=iob3", ('scheme = "iob3" is unknown', "did you mean iob")),
        ("cola", 'task.metrics=["f2"]', ("cola.task.metrics = ['f2']: give some of accuracy",)),
        ("cola", "task.dropout=0.2", ("cola.task.dropout is not set here; set head_dropout",)),
        ("litbank", "task.segment=9", ("litbank.task.segment is not set here; set length",)),
        ("cola", 'task.labels=["a", "b"]', ("cola.task.labels is read from the examples",)),
        ("cola", "task=stride", ("'task=stride' sets nothing", "task.stride=64")),
    ],
)
def test_a_bad_setting_of_a_kind_is_refused(
    task: str, override: str, phrases: tuple[str, ...]
) -> None:
    message = refusal(for_task, "bert", task, override)
    assert all(word in message for word in phrases), message


# --- grids ---


def test_settings_of_the_kind_can_be_tried(mine: Any) -> None:
    path = mine(MINE + "[grids.answer]\nlearning_rate = [1.0]\ntask.stride = [64, 32]\n")
    grid_cells = cells(grid(path, "squad1"), kind="answer")
    assert [named(cell) for cell in grid_cells] == [
        "learning_rate-1-task.stride-64",
        "learning_rate-1-task.stride-32",
    ]
    grid_settings = ["task.stride=32", "task.best=1,2", "length=64"]
    grid_cells = cells({}, grid_settings, kind="answer")
    assert [named(cell) for cell in grid_cells] == [
        *("length-64-task.best-1-task.stride-32", "length-64-task.best-2-task.stride-32"),
    ]
    read_back = for_task("bert", "squad1", *changes(grid_cells[1]))
    assert (read_back.length, read_back.task) == (64, ("best = 2", "stride = 32"))
    assert "task.best is set twice" in refusal(
        for_task, "bert", "squad1", "task.best=3", *changes(grid_cells[1])
    )
    lists = cells({}, ['task.metrics=["f1"],["recall", "f1"]'], kind="tag")
    assert [named(cell) for cell in lists] == ["task.metrics-f1", "task.metrics-recall+f1"]
    for cell in lists:
        for_task("bert", "tag", *changes(cell))


def test_a_grid_is_the_tasks_or_its_kinds_or_the_protocols(mine: Any) -> None:
    assert (
        grid("bert", "cola") == grid("bert", "stsb") == {"learning_rate": [5e-5, 4e-5, 3e-5, 2e-5]}
    )
    generic = {"learning_rate": [5e-5, 3e-5, 2e-5], "batch_size": [16, 32], "epochs": [2, 3, 4]}
    assert grid("bert", "conll2003") == grid("bert", "tag") == generic
    path = mine(MINE + "[grid]\nlearning_rate = [1.0, 2.0]\n[grids.rte]\nbatch_size = [4]\n")
    assert (grid(path, "rte"), grid(path, "cola")) == (
        {"batch_size": [4]},
        {"learning_rate": [1.0, 2.0]},
    )
    assert "gpt has no grid for cola; give one" in refusal(grid, "gpt", "cola")
    assert "did you mean cola?" in refusal(grid, "bert", "coal")


def test_cells_come_in_a_fixed_order_with_names_that_never_change() -> None:
    grid_cells = cells(grid("roberta", "cola"))
    assert [named(cell) for cell in grid_cells] == [
        *("learning_rate-1e-05-batch_size-16", "learning_rate-1e-05-batch_size-32"),
        *("learning_rate-2e-05-batch_size-16", "learning_rate-2e-05-batch_size-32"),
        *("learning_rate-3e-05-batch_size-16", "learning_rate-3e-05-batch_size-32"),
    ]
    assert len({*map(named, cells(grid("bert", "conll2003")))}) == 18


def test_a_users_grid_takes_the_place_of_the_protocols() -> None:
    grid_cells = cells(grid("bert", "cola"), ["batch_size=16,32", "learning_rate=1e-5,0.00002"])
    assert [named(cell) for cell in grid_cells] == [
        *("learning_rate-1e-05-batch_size-16", "learning_rate-1e-05-batch_size-32"),
        *("learning_rate-2e-05-batch_size-16", "learning_rate-2e-05-batch_size-32"),
    ]
    # Whichever way a cell is asked for, it is the same cell.
    again = cells({}, ["learning_rate=2e-05,1.0e-5", "batch_size=32,16"])
    assert sorted(map(named, again)) == sorted(map(named, grid_cells))
    assert named(cells({}, ["epochs=3"])[0]) == named(cells({}, ["epochs=3.0"])[0]) == "epochs-3"
    grid_settings = ["betas=[0.9,0.98],[0.9,0.999]", "features=last,tuned", "decay_all=true"]
    odd = [named(cell) for cell in cells({}, grid_settings)]
    assert odd[0] == "betas-0.9+0.98-decay_all-true-features-last" and len({*odd}) == 4


def test_no_grid_is_one_cell_without_a_name() -> None:
    assert [named(cell) for cell in cells({})] == [""]


def test_a_name_goes_by_the_order_of_the_settings() -> None:
    assert named({"batch_size": 32, "learning_rate": 2e-5}) == "learning_rate-2e-05-batch_size-32"


@pytest.mark.parametrize(
    ("grid_settings", "problem"),
    [
        (["learning_rate=1e-5,0.00001"], "grid.learning_rate lists a value twice"),
        (["learning_rate=1e-5", "learning_rate=2e-5"], "list its values once"),
        (["learning_rat=1e-5"], "did you mean learning_rate?"),
        (["learning_rate=fast,slow"], 'grid.learning_rate = "fast" must be a number'),
        (["learning_rate"], "'learning_rate' sets nothing"),
        (["steps=1,2", "epochs=1,2"], "grid has steps and epochs"),
        (["task.stride=1,2"], "grid.task is not a kind of task"),
        (["task=1,2"], "grid.task must be a table"),
    ],
)
def test_a_bad_grid_is_refused(grid_settings: list[str], problem: str) -> None:
    message = refusal(cells, {}, grid_settings)
    assert problem in message or problem.replace("steps and epochs", "epochs and steps") in message


def test_a_cell_is_read_as_overrides_and_never_silently_beaten_by_them() -> None:
    for cell in cells(grid("spanbert", "cola")):
        tuning = for_task("spanbert", "cola", "epochs=1", *changes(cell))
        assert (tuning.learning_rate, tuning.batch_size, tuning.epochs) == (
            cell["learning_rate"],
            cell["batch_size"],
            1,
        )
    assert "rate is set twice" in refusal(
        for_task, "bert", "cola", "learning_rate=1e-3", *changes(cell)
    )


# --- the settings ---


@pytest.mark.parametrize(
    ("examples", "sequences", "epochs", "steps"),
    [(100, 32, 3, 12), (96, 32, 3, 9), (97, 32, 3, 12), (1, 32, 1, 1), (10, 32, 0.1, 1)]
    + [(1000, 10, 0.5, 50), (8551, 16, 10, 5350)],
)
def test_steps_are_the_batches_of_an_epoch_times_the_epochs(
    examples: int, sequences: int, epochs: float, steps: int
) -> None:
    schedule = replace(SIMPLE, batch_size=sequences, epochs=epochs).schedule(examples)
    assert (schedule.steps, schedule.batch_size) == (steps, sequences)


def test_warm_up_is_a_share_cut_to_whole_steps_or_a_number_of_them() -> None:
    ten = replace(SIMPLE, epochs=None, steps=10)
    assert ten.schedule(5).warmup == 0
    assert [replace(ten, warmup=share).schedule(5).warmup for share in (0.1, 0.19, 1)] == [1, 1, 10]
    assert replace(ten, warmup_steps=3).schedule(5).warmup == 3
    message = refusal(replace(ten, warmup_steps=11).schedule, 5)
    assert "warmup_steps = 11: the run has only 10 steps" in message
    assert replace(ten, shape="cosine").schedule(5).decay == "cosine"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("learning_rate", 0.0),
            ("betas", (0.9, 1.0)),
            ("epsilon", 0.0),
            ("weight_decay", -0.1),
            ("clip", -1.0),
        ),
        *(
            ("batch_size", 0),
            ("length", 0),
            ("epochs", 0.0),
            ("hidden", 0),
            ("head_learning_rate", 0.0),
        ),
        *(("warmup", -0.1), ("warmup", 1.1), ("warmup_steps", -1), ("layer_decay", 0.0)),
        *(("layer_decay", 1.1), ("dropout", 1.0), ("attention_dropout", -0.1)),
        *(("head_dropout", 1.0), ("lm_weight", -1.0), ("alpha", 1.1), ("temperature", 0.0)),
    ],
)
def test_settings_that_cannot_be_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        replace(SIMPLE, **{field: value})


def test_one_of_two_ways_to_say_a_thing_is_given() -> None:
    with pytest.raises(UserError, match="epochs is missing"):
        FinetuneConfig(learning_rate=1e-4, batch_size=1, length=8)
    with pytest.raises(UserError, match="epochs and steps are both set"):
        replace(SIMPLE, steps=3)
    with pytest.raises(UserError, match="warmup and warmup_steps are both set"):
        replace(SIMPLE, warmup=0.1, warmup_steps=3)
    with pytest.raises(UserError, match="steps = 0"):
        replace(SIMPLE, epochs=None, steps=0)


# --- the package ---


def test_protocols_are_read_without_torch() -> None:
    code = (
        "import sys; from clozelab.finetuning import protocols as p;"
        "p.read('bert', 'cola', 'classify').optimiser_part(); sys.exit('torch' in sys.modules)"
    )
    run_process([sys.executable, "-c", code], check=True)


def test_protocols_lie_in_the_package_that_the_wheel_is_made_of() -> None:
    root = Path(__file__).parents[3]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel["targets"]["wheel"] == {"packages": ["src/clozelab"]}
    assert {
        file.stem for file in (root / "src/clozelab/config/protocols").glob("*.toml")
    } == SYSTEMS
    assert set(tasks().values()) == set(KINDS)
