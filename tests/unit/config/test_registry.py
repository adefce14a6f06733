"""Parts from outside: a module registers them, recipes name them, records name the module."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.outside_parts import NAME, restored  # noqa: F401
from support.processes import run_process

import clozelab
from clozelab import registry
from clozelab.cli import main
from clozelab.config import slots
from clozelab.config.recipe import parse, read, to_toml
from clozelab.errors import UserError
from clozelab.training import Schedule

RECIPE = f'''
extends = "roberta"
imports = ["{NAME}"]
[masking]
use = "each_nth"
n = 5
'''


@dataclass(frozen=True)
class Half(Schedule):
    """Half the rate, always."""

    def factor(self, step: int) -> float:
        """The rate after so many steps, as a share of the peak."""
        return 0.5


def test_a_recipe_names_a_part_of_an_imported_module_and_its_record_names_the_module() -> None:
    registry.load(NAME)
    recipe = parse(RECIPE, "mine.toml")
    assert slots.use("masking", recipe.masking) == "each_nth"
    text = to_toml(recipe)
    assert f'imports = ["{NAME}"]' in text
    assert parse(text, "recorded.toml") == recipe
    assert read("bert", overrides=["masking.use=each_nth", "masking.n=3"]).masking.n == 3  # type: ignore[attr-defined]
    assert "imports" not in to_toml(read("bert"))


def test_a_record_does_not_import_what_nobody_named() -> None:
    with pytest.raises(UserError, match=f"--import {NAME}") as refused:
        parse(RECIPE, "stranger/recipe.toml")
    assert NAME not in sys.modules
    assert str(refused.value).startswith("stranger/recipe.toml: ") and "trust" in str(refused.value)
    with pytest.raises(UserError, match="imports must be a list"):
        parse('extends = "bert"\nimports = "os"', "mine.toml")


def test_a_process_that_is_started_has_the_parts_of_the_one_that_starts_it() -> None:
    registry.load(NAME)
    imports = os.environ[registry.IMPORTS]
    sys.modules.pop(NAME)
    registry._outside["masking"].clear()
    slots.SLOTS["masking"].pop("each_nth")
    registry.load_given.cache_clear()
    assert imports == NAME
    assert parse(RECIPE, "recorded.toml").masking.n == 5  # type: ignore[attr-defined]


class _Point:
    name, value = "tests", NAME

    def load(self) -> Any:
        if self.value == "broken":
            raise ImportError("no such thing")
        return __import__(self.value)


def test_an_installed_package_is_asked_for_what_clozelab_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [_Point()])
    assert read("bert", overrides=["masking.use=each_nth"]).masking.n == 7  # type: ignore[attr-defined]
    assert parse(RECIPE, "recorded.toml").masking.n == 5  # type: ignore[attr-defined]


def test_a_module_that_the_starting_process_had_may_be_missing_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(registry.IMPORTS, "not_there")
    assert read("bert")
    with pytest.raises(UserError, match=r"did you mean .*not_there: ModuleNotFoundError"):
        read("bert", overrides=["masking.use=tokn"])


def test_an_installed_package_that_is_broken_is_named_where_a_part_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = _Point()
    broken.value = "broken"
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [broken])
    assert read("bert")
    with pytest.raises(UserError, match="entry point tests: ImportError: no such thing"):
        read("bert", overrides=["masking.use=each_nth"])


def test_a_command_imports_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text(RECIPE)
    assert main(["show", "mine.toml"]) == 2
    assert f"--import {NAME}" in capsys.readouterr().err
    assert main(["--import", NAME, "show", "mine.toml"]) == 0
    assert main(["show", "mine.toml", f"--import={NAME}"]) == 0
    assert "each_nth" in capsys.readouterr().out
    for arguments, message in (
        (["show", "bert", "--import"], "no module is named"),
        (["show", "bert", "--import", "mine.py"], "is a file"),
        (["show", "bert", "--import", "not_there"], "ModuleNotFoundError"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_the_help_says_how_parts_are_imported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--import MODULE" in capsys.readouterr().out


def test_a_schedule_from_outside_is_named_by_its_table() -> None:
    clozelab.register("schedule", "half", Half)
    recipe = read("bert", overrides=["schedule.use=half"])
    assert recipe.schedule.factor(17) == 0.5
    again = parse(to_toml(recipe), "recorded.toml")
    assert again == recipe and isinstance(again.schedule, Half)
    assert "use" not in read("bert").tables()["schedule"]


def test_what_a_script_registered_is_asked_for_where_it_is_missing() -> None:
    text = 'extends = "bert"\nimports = ["__main__"]'
    with pytest.raises(UserError, match="script or a notebook"):
        parse(text, "recorded.toml")


@dataclass(frozen=True)
class _Idle:
    provides: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()

    def hide(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class _Silent:
    def hide(self, *_: Any) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class _Descent(_Idle):
    def build(self, *_: Any, **__: Any) -> list[Any]:
        """Build nothing."""
        return []


@pytest.mark.parametrize(
    ("slot", "name", "part", "arguments"),
    [
        ("maskin", "idle", _Idle, "did you mean masking?"),
        ("masking", "Idle", _Idle, "small letters"),
        ("masking", "token", _Idle, "is a part of clozelab itself"),
        ("blocks", "idle", _Idle, "has no plan()"),
        ("masking", "idle", _Silent, "what it provides"),
        ("masking", "idle", _Idle(), "not a frozen dataclass"),
        ("task", "idle", _Idle, "has no read()"),
        ("optimiser", "idle", _Descent, "inherit from clozelab.training.Optimiser, which declares"),
    ],
)
def test_what_is_no_part_is_refused_in_a_sentence(
    slot: str, name: str, part: Any, arguments: str
) -> None:
    with pytest.raises(UserError) as refused:
        clozelab.register(slot, name, part)
    assert arguments in str(refused.value) and "\n" not in str(refused.value)


def test_a_name_belongs_to_the_module_that_took_it_first() -> None:
    registry.load(NAME)
    with pytest.raises(UserError, match=f"registered by {NAME} already"):
        clozelab.register("masking", "each_nth", _Idle)
    clozelab.register("masking", "idle", _Idle)
    clozelab.register("masking", "idle", _Idle)  # as a notebook does whose cell is run again


def test_a_name_of_clozelab_is_refused_once_where_its_parts_are_not_loaded_yet() -> None:
    code = """
from dataclasses import dataclass
import clozelab

@dataclass(frozen=True)
class Mine:
    provides = needs = frozenset()
    def hide(self, *_): ...

clozelab.register("masking", "token", Mine)
for _ in range(2):
    try:
        print(clozelab.read("bert").name)
    except clozelab.UserError as error:
        print(error)
"""
    done = run_process([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refused, known = done.stdout.splitlines()
    assert "masking token: is a part of clozelab itself" in refused and known == "bert"


def test_a_part_without_a_name_is_refused_where_it_is_to_be_recorded() -> None:
    with pytest.raises(UserError, match=r"masking: _Idle is not registered; clozelab\.register"):
        to_toml(replace(read("bert"), masking=_Idle()))  # type: ignore[arg-type]
