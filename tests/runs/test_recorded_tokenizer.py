"""A run records, exports and shows the tokenizer that it read by, not the one it was asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.pretrain_runs import QUIET, of_kind, run_pretraining, shrunk, store
from support.texts import tokenizer

from clozelab import build_corpus
from clozelab.cli import main
from clozelab.config import recipe as recipes
from clozelab.config.recipe import to_toml
from clozelab.data import TOKENIZERS
from clozelab.models.exchange import export
from clozelab.models.load import load
from clozelab.pretraining import starting
from clozelab.pretraining.fitting import notes
from clozelab.pretraining.pretrain import resume
from clozelab.reporting.page import sections
from clozelab.reporting.records import gather
from clozelab.runs.directory import Run
from clozelab.runs.events import Ended, Said
from clozelab.runs.machine import Machine
from clozelab.text.tokenizers import TOKENIZERS as PARTS
from clozelab.text.tokenizers import Wordpiece, part_of
from clozelab.text.vocabulary import BERT

torch.set_num_threads(1)

RESULTS = Path(__file__).parents[2] / "results"
LINE = (
    'not the one that roberta asks for: use "byte_bpe" → "wordpiece", cased true → false,'
    ' specials ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] → '
    '["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]'
)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_trained_tokenizer_tells_what_part_it_is_of(kind: str) -> None:
    part = part_of(tokenizer(kind))
    assert type(part) is PARTS[kind]
    again = type(part)(vocabulary=tokenizer(kind).get_vocab_size(), cased=part.cased)
    assert part == replace(again, specials=part.specials)


def test_case_and_specials_are_those_of_the_tokenizer() -> None:
    words = (f"Word{number} other" for number in range(40))
    part = Wordpiece(vocabulary=60, cased=True, specials=(*BERT, "[EOD]"))
    trained = part.train(words)
    assert part_of(trained) == replace(part, vocabulary=trained.get_vocab_size())


def test_wordpiece_that_learned_single_characters_is_what_a_recipe_asks_for(
    tmp_path: Path,
) -> None:
    text = tmp_path / "zh.txt"
    text.write_text("今天天气很好。我们去公园。\n\n" * 50, encoding="utf-8")
    corpus = build_corpus([str(text)], out=tmp_path / "zh", recipe="roberta_wwm", vocabulary=300)
    assert notes(recipes.read("roberta_wwm"), corpus) == notes(recipes.read("ernie"), corpus) == ()
    (line,) = notes(recipes.read("roberta"), corpus)
    assert 'use "byte_bpe" → "chars"' in line


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RoBERTa's recipe and BERT's, over one corpus of WordPiece."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("roberta", "bert"):
        data = [store("wordpiece", variant="small")]
        job = starting.fresh(shrunk(name, steps=2), data=data, seed=0)
        notices = [
            event.text for event in of_kind(Said, run_pretraining(job, folder / name, saving=QUIET))
        ]
        assert sum(line.endswith(LINE) for line in notices) == (name == "roberta")
    return folder


def test_the_record_and_every_checkpoint_have_the_tokenizer_of_the_corpus(runs_dir: Path) -> None:
    for file in (
        runs_dir / "roberta" / "recipe.toml",
        *runs_dir.glob("roberta/checkpoints/*/recipe.toml"),
    ):
        recorded = recipes.read(file).tokenizer
        assert recorded == part_of(tokenizer("wordpiece", "small"))
    assert recipes.read(runs_dir / "roberta" / "recipe.toml").masking == shrunk("roberta").masking


def test_the_card_and_the_page_show_it(runs_dir: Path, tmp_path: Path) -> None:
    export(str(runs_dir / "roberta"), tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert 'use = "wordpiece"' in card and "byte_bpe" not in card and "<mask>" not in card
    size = tokenizer("wordpiece", "small").get_vocab_size()
    kinds = {*shown_tokenizers(runs_dir / "roberta", runs_dir / "bert")}
    assert kinds == {f"wordpiece, uncased, {size:,}"}


def shown_tokenizers(*folders: Path) -> list[str]:
    """The tokenizers of runs, as a page shows them."""
    runs, _ = gather(folders)
    table = next(section for section in sections(runs, []) if section.title == "Pretraining").parts[
        0
    ]
    column = table.columns.index("tokenizer")  # type: ignore[union-attr]
    return [str(row[column]) for row in table.rows]  # type: ignore[union-attr]


def test_where_the_record_does_not_say_the_page_does_not_either(
    runs_dir: Path, tmp_path: Path
) -> None:
    places = [tmp_path / name for name in ("roberta", "bert")]
    for place in places:  # without their checkpoints
        place.mkdir()
        for name in ("recipe.toml", "machine.toml", "metrics.jsonl", "result.json"):
            (place / name).write_bytes((runs_dir / place.name / name).read_bytes())
    size = tokenizer("wordpiece", "small").get_vocab_size()
    assert shown_tokenizers(*places) == [f"wordpiece, uncased, {size:,}"] * 2
    for place in places:  # as they were written before: what was asked for, and no word of it
        recipe = recipes.read(place / "recipe.toml")
        asked_tokenizer = replace(shrunk(place.name).tokenizer, vocabulary=size)
        (place / "recipe.toml").write_text(to_toml(replace(recipe, tokenizer=asked_tokenizer)))
        lines = (place / "machine.toml").read_text().splitlines(keepends=True)
        other_lines = [line for line in lines if not line.startswith("tokenizer =")]
        assert len(other_lines) == len(lines) - 1
        (place / "machine.toml").write_text("".join(other_lines))
    assert shown_tokenizers(*places) == ["–", "–"]
    assert not [key for key in settings(tmp_path) if key.startswith("tokenizer.")]
    assert shown_tokenizers(*places, runs_dir / "bert") == [
        "–",
        "–",
        f"wordpiece, uncased, {size:,}",
    ]


def test_a_run_that_was_recorded_of_old_has_a_dash() -> None:
    assert shown_tokenizers(RESULTS / "h200-tasks" / "encoder") == ["–"]


def settings(folder: Path) -> set[str]:
    """The settings in which a page says that two recipes differ."""
    runs, _ = gather([folder / "roberta", folder / "bert"])
    table = next(
        section for section in sections(runs, []) if section.title.startswith("Differences")
    ).parts[0]
    return {str(row[0]) for row in table.rows}  # type: ignore[union-attr]


def test_runs_that_read_one_corpus_do_not_differ_in_their_tokenizers(runs_dir: Path) -> None:
    assert "masking.mask_rate" not in settings(runs_dir) and "blocks.use" in settings(runs_dir)
    assert not [key for key in settings(runs_dir) if key.startswith("tokenizer.")]


def test_a_run_that_recorded_what_it_was_asked_for_is_shown_and_goes_on(
    tmp_path: Path,
) -> None:
    for name in ("roberta", "bert"):
        place = tmp_path / name
        recipe = shrunk(name, steps=4)
        job = starting.fresh(recipe, data=[store("wordpiece")], seed=0)
        run_pretraining(job, place, saving=replace(QUIET, save_every=2, keep=0))
        # As it was written before.
        size = job.recipe.tokenizer.vocabulary
        asked_recipe = replace(job.recipe, tokenizer=replace(recipe.tokenizer, vocabulary=size))
        (place / "recipe.toml").write_text(to_toml(asked_recipe), encoding="utf-8")
    place = tmp_path / "roberta"
    assert "byte_bpe" in Run(place).recipe_text()
    assert not [key for key in settings(tmp_path) if key.startswith("tokenizer.")]
    for file in (place / "result.json", *place.glob("checkpoints/step-00000004/*")):
        file.unlink() if file.is_file() else None
    job = starting.resumed(place, recipe=shrunk("roberta", steps=4))
    events = list(resume(job, place, machine=Machine(), saving=QUIET))
    assert of_kind(Ended, events)[0].whole
    assert type(load(str(place)).recipe.tokenizer) is Wordpiece


def test_the_command_takes_the_recipe_that_was_asked_for(tmp_path: Path) -> None:
    file, place = tmp_path / "roberta.toml", tmp_path / "run"
    file.write_text(to_toml(shrunk("roberta", steps=1)), encoding="utf-8")
    options = ["--data", store("wordpiece"), "--device", "cpu", "--out", str(place)]
    assert main(["pretrain", str(file), *options]) == 0
    assert main(["pretrain", str(file), "--resume", str(place)]) == 0
    assert re.search(r'use = "wordpiece"', Run(place).recipe_text())
