from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from clozelab import cli
from clozelab.config import recipe as recipes
from clozelab.config.renamed import OldNameWarning, current, first_names, renamed
from clozelab.errors import UserError
from clozelab.finetuning import protocols

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


def test_a_recipe_with_old_names_is_read_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(OLD, encoding="utf-8")
    with pytest.warns(OldNameWarning) as warned:
        recipe = recipes.read(file)
    assert recipe.masking.mask_rate == 0.4  # type: ignore[attr-defined]
    assert (recipe.optimiser.learning_rate, recipe.optimiser.weight_decay) == (1e-3, 0.1)
    assert "masking.rate is called masking.mask_rate today; write that" in {
        str(warning.message) for warning in warned
    }


def test_an_old_name_can_be_set() -> None:
    with pytest.warns(OldNameWarning, match=r"schedule\.sequences is called schedule\.batch_size"):
        recipe = recipes.read("bert", overrides=["schedule.sequences=7"])
    assert recipe == recipes.read("bert", overrides=["schedule.batch_size=7"])


def test_an_old_setting_of_a_protocol_can_be_set() -> None:
    with pytest.warns(OldNameWarning, match="head_rate is called head_learning_rate today"):
        old = protocols.read("bert", "sst2", "classify", overrides=["head_rate=0.5"])
    new = protocols.read("bert", "sst2", "classify", overrides=["head_learning_rate=0.5"])
    assert old == new and old.head_learning_rate == 0.5


def test_a_record_is_read_without_a_warning() -> None:
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob("results/**/recipe.toml")]
    old = [text for text in texts if "\nsequences = " in text]
    assert old
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in old:
            assert recipes.parse(text, "recipe.toml").schedule.batch_size > 0


def test_a_key_under_both_names_is_refused() -> None:
    with pytest.raises(UserError, match=r"a\.toml: masking has mask_rate under two names"):
        renamed({"rate": 0.1, "mask_rate": 0.2}, ["mask_rate"], place="a.toml", key="masking")


def test_a_part_that_has_the_name_itself_keeps_it() -> None:
    assert current("optimiser.rate", ["rate", "learning_rate"]) == "optimiser.rate"
    assert current("schedule.decay", ["decay"]) == "schedule.decay"


def test_digests_are_made_by_the_first_names() -> None:
    tables = {"masking": {"mask_rate": 0.15, "cap": 3}, "schedule": {"batch_size": 8}}
    first = {"masking": {"rate": 0.15, "cap": 3}, "schedule": {"sequences": 8}}
    assert first_names(repr(tables)) == repr(first)


def test_the_command_line_says_it_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "bert", "--set", "optimiser.rate=3e-4"]) == 0
    told = capsys.readouterr().err.strip()
    assert told == "clozelab: optimiser.rate is called optimiser.learning_rate today; write that"
