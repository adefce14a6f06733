from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from support import study_folders

from clozelab import cli
from clozelab.config import recipe as recipes
from clozelab.config.overrides import keys_set
from clozelab.config.renamed import OldNameWarning, current, first_keys, first_names, renamed
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.studies import records, spec

ROOT = Path(__file__).resolve().parents[3]
OLD = """
extends = "roberta"
[masking]
use = "token"
rate = 0.4
[optimiser]
use = "adamw"
rate = 1e-3
decay = 0.1
"""
OLD_ENCODERS = {
    "transformer": ("roberta", "width=128", "heads=2", "inner=512", "embedding=64"),
    "relative": ("xlnet", "width=128", "heads=2", "inner=512"),
    "lstm": ("elmo", "width=128", "inner=512"),
}


def test_a_recipe_with_old_names_is_read_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(OLD, encoding="utf-8")
    with pytest.warns(OldNameWarning) as warned:
        recipe = recipes.read(file)
    assert recipe.masking.mask_rate == 0.4  # type: ignore[attr-defined]
    assert (recipe.optimiser.learning_rate, recipe.optimiser.weight_decay) == (1e-3, 0.1)
    assert "masking.rate is now called masking.mask_rate; use that name" in {
        str(warning.message) for warning in warned
    }


def test_an_old_name_can_be_set() -> None:
    with pytest.warns(
        OldNameWarning, match=r"schedule\.sequences is now called schedule\.batch_size"
    ):
        recipe = recipes.read("bert", overrides=["schedule.sequences=7"])
    assert recipe == recipes.read("bert", overrides=["schedule.batch_size=7"])


@pytest.mark.parametrize("name", OLD_ENCODERS)
def test_the_sizes_of_an_encoder_by_their_old_names(name: str) -> None:
    recipe, *old_settings = OLD_ENCODERS[name]
    today = {"width": "hidden_size", "inner": "intermediate_size", "embedding": "embedding_size"}
    if name == "lstm":
        today["inner"] = "cell_size"
    pairs = [word.split("=") for word in old_settings]
    new = [f"encoder.{today.get(key, key)}={value}" for key, value in pairs]
    with pytest.warns(OldNameWarning, match=r"encoder\.width is now called encoder\.hidden_size"):
        old = recipes.read(recipe, overrides=[f"encoder.{word}" for word in old_settings])
    assert old == recipes.read(recipe, overrides=new)
    assert keys_set(["blocks.length=8", "encoder.inner = 3"], "encoder", old.encoder) == [
        today["inner"]
    ]


def test_released_sizes_by_old_names_replace_the_new_ones(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(
        'extends = "electra"\n[sizes.slim]\nwidth = 256\nheads = 4\ninner = 1024\n'
        "embedding = 128\n[sizes.slim.optimiser]\nrate = 3e-4\n",
        encoding="utf-8",
    )
    with pytest.warns(OldNameWarning):
        recipe = recipes.read(file, size="slim")
    encoder = recipe.encoder
    assert (encoder.hidden_size, encoder.embedding_size) == (256, 128)
    assert encoder.intermediate_size == 1024  # type: ignore[union-attr]
    assert recipe.optimiser.learning_rate == 3e-4


def test_an_old_setting_of_a_protocol_can_be_set() -> None:
    with pytest.warns(OldNameWarning, match="head_rate is now called head_learning_rate"):
        old = protocols.read("bert", "sst2", "classify", overrides=["head_rate=0.5"])
    new = protocols.read("bert", "sst2", "classify", overrides=["head_learning_rate=0.5"])
    assert old == new and old.head_learning_rate == 0.5


def test_a_record_is_read_without_a_warning() -> None:
    """Every recorded recipe, those of packed cells included."""
    texts = {path.read_text(encoding="utf-8") for path in ROOT.glob("results/**/recipe.toml")}
    for file in ROOT.glob("results/**/cells.jsonl"):
        cells = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        texts |= {cell["text"] for cell in cells if cell["file"].endswith("seed-0/recipe.toml")}
    for old in ("sequences", "width", "inner", "embedding"):
        assert sum(f"\n{old} = " in text for text in texts) > 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in texts:
            recipe = recipes.parse(text, "recipe.toml")
            assert recipe.schedule.batch_size > 0
            assert recipe.encoder.hidden_size > 0 and recipe.encoder.embedding_size > 0


def test_a_study_with_old_names_is_the_same_study(tmp_path: Path) -> None:
    new = spec.read("albert-width")
    text, file = spec.to_toml(new), tmp_path / "study.toml"
    for name, old in {"hidden_size =": "width =", "embedding_size=": "embedding="}.items():
        assert name in text
        text = text.replace(name, old)
    file.write_text(text, encoding="utf-8")
    with pytest.warns(OldNameWarning, match="now called .*hidden_size"):
        old = spec.read(file)
    for old_variant, other in zip(old.variants, new.variants, strict=True):
        assert old_variant.hidden_size == other.hidden_size
        assert first_keys(old_variant.set) == first_keys(other.set)
        assert old.recipe_of(old_variant, size="mini") == new.recipe_of(other, size="mini")
    set_by_old = replace(new, set=("encoder.width=64",))
    assert not set_by_old.differs(replace(new, set=("encoder.hidden_size=64",)), ["name", "set"])
    assert set_by_old.differs(replace(new, set=("encoder.hidden_size=32",)), ["name", "set"])


def test_a_recorded_multiple_of_the_width_is_read_without_a_warning(tmp_path: Path) -> None:
    file = study_folders.study(tmp_path / "s") / "study.toml"
    text = file.read_text(encoding="utf-8").replace("[[variants]]\n", "[[variants]]\nwidth = 2.0\n")
    file.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OldNameWarning)
        study = records.read(file.parent).study
    assert [variant.hidden_size for variant in study.variants] == [2.0] * len(study.variants)


def test_recorded_studies_are_read_without_a_warning() -> None:
    files = [*ROOT.glob("results/*/study.toml"), *ROOT.glob("results/unfinished/*/study.toml")]
    assert any("encoder.embedding=" in file.read_text(encoding="utf-8") for file in files)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OldNameWarning)
        for file in files:
            study = records.read(file.parent).study
            assert all(study.recipe_of(variant, size="mini") for variant in study.variants)


def test_a_key_under_both_names_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"a\.toml: masking has mask_rate under its old and its new name"
    ):
        renamed({"rate": 0.1, "mask_rate": 0.2}, ["mask_rate"], place="a.toml", key="masking")


def test_a_part_that_has_the_name_itself_keeps_it() -> None:
    assert current("optimiser.rate", ["rate", "learning_rate"]) == "optimiser.rate"
    assert current("schedule.decay", ["decay"]) == "schedule.decay"


def test_digests_are_made_by_the_first_names() -> None:
    tables = {"masking": {"mask_rate": 0.15, "cap": 3}, "schedule": {"batch_size": 8}}
    first = {"masking": {"rate": 0.15, "cap": 3}, "schedule": {"sequences": 8}}
    assert first_names(repr(tables)) == repr(first)
    quoted = ({"a": "\"'", "hidden_size": 8}, repr({"a": "\"'", "hidden_size": 8}))
    before = ({"a": "\"'", "width": 8}, repr({"a": "\"'", "width": 8}))
    assert first_names(repr(quoted)) == repr(before)


def test_the_command_line_says_it_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "bert", "--set", "optimiser.rate=3e-4"]) == 0
    output = capsys.readouterr().err.strip()
    assert output == "clozelab: optimiser.rate is now called optimiser.learning_rate; use that name"
