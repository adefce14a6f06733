"""Public functions: their options, however they are described, and what becomes of values."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

from clozelab.errors import UserError
from clozelab.options import (
    REQUIRED,
    Few,
    Grid,
    Place,
    Places,
    Settings,
    Texts,
    command,
    option,
    options,
    whole,
)

Size = Annotated[int, whole, "how large", "N"]


@dataclass(frozen=True)
class Shared:
    """What several functions take."""

    quiet: bool = option("say nothing", False)
    rounds: Few | None = option("how often", metavar="TIMES")
    hidden: int = 3  # no option


@command
def work(
    place: Place,
    more: Places = (),
    *,
    size: Size,
    how: Literal["fast", "well"] | None = None,
    keep: bool = True,
    set: Settings = (),
    shared: Shared,
) -> Any:
    """Do it.

    Args:
        place (DIR): where
        more: others
        how: in which
            manner
        keep: keep it
        set: settings
    """
    return place, more, size, how, keep, set, shared


def test_options_are_described_by_docstring_type_or_field() -> None:
    described = {each.name: (each.help, each.metavar, each.default) for each in options(work)}
    assert described == {
        "place": ("where", "DIR", REQUIRED),
        "more": ("others", None, ()),
        "size": ("how large", "N", REQUIRED),
        "how": ("in which manner", None, None),
        "keep": ("keep it", None, True),
        "set": ("settings", None, ()),
        "quiet": ("say nothing", None, False),
        "rounds": ("how often", "TIMES", None),
    }
    assert list(inspect.signature(work).parameters) == list(described)
    lines = (inspect.getdoc(work) or "").partition("Args:\n")[2].splitlines()
    assert [line.strip().partition(":")[0] for line in lines] == list(described)


def test_options_know_their_kind() -> None:
    each = {declared.name: declared for declared in options(work)}
    assert each["how"].choices == ("fast", "well") and each["keep"].choices is None
    assert each["more"].several and each["set"].several and not each["place"].several
    assert each["size"].kind is int and each["rounds"].kind is int and each["keep"].kind is bool
    assert each["keep"].flags == ["--keep", "--no-keep"] and each["quiet"].flags == ["--quiet"]
    assert each["quiet"].group is Shared and each["place"].positional


def test_values_are_converted_and_fields_gathered() -> None:
    done = work(Path("a"), "b", size="1,000", set={"x.y": 0.5}, rounds=2)
    assert done == ("a", ["b"], 1000, None, True, ["x.y=0.5"], Shared(rounds=2))
    assert work("a", size=1) == ("a", (), 1, None, True, (), Shared())
    given = work("a", None, size=1, keep=None, set=None, rounds=None)
    assert given == work("a", size=1)  # None is the default


@command
def read(*, text: Texts = (), grid: Grid | None = None, device: Literal["cpu"] = "cpu") -> Any:
    """Read."""
    return text, grid, device


@command
def count(places: Places, *, share: float) -> Any:
    """Count them."""
    return places, share


def test_values_of_other_libraries_are_taken() -> None:
    array = np.array(["a", "b"])
    for texts in (["a", "b"], ("a", "b"), iter(["a", "b"]), array):
        assert read(text=texts)[0] == ["a", "b"]
    assert read(device=torch.device("cpu"))[2] == "cpu"
    assert work("a", (Path(name) for name in "bc"), size=np.int64(3))[1:3] == (["b", "c"], 3)
    settings = {"a": np.float32(0.1), "b": np.int64(2), "c": np.array([1, 2]), "d": Path("x")}
    settings |= {"e": np.bool_(True), "f": np.str_("word")}
    assert work("a", size=1, set=settings)[5] == [
        *("a=0.1", "b=2", "c=[1, 2]", 'd="x"', "e=true", 'f="word"')
    ]
    grid = {"rate": [1e-4, np.float32(3e-4)], "kind": ("a", "b"), "one": 1}
    assert read(grid=grid)[1] == ["rate=0.0001,0.0003", 'kind="a","b"', "one=1"]
    assert read(grid="rate=1,2")[1] == ["rate=1,2"]
    grid = {"rate": range(2), "set": np.array([0.5]), "one": np.array(1)}
    assert read(grid=grid)[1] == ["rate=0,1", "set=0.5", "one=1"]


class Table:
    """As tables of pandas are, it is iterated over by the names of its columns."""

    ndim = 2

    def __iter__(self) -> Any:
        return iter(["text", "label"])


class Opened:
    """An opened model of another library."""

    tokenizer = None

    def save_pretrained(self) -> None:
        """Save it."""

    def __repr__(self) -> str:
        return "Opened(\n  layers\n)"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: read(text=Table()), "is not a text or a list of texts; give one of these"),
        (lambda: read(text={"text": "a"}), "{'text': 'a'} is not a text or a list of texts"),
        (lambda: read(text=b"ab"), "b'ab' is not a text or a list of texts"),
        (lambda: read(text=Path("a")), "PosixPath('a') is not a text or a list of texts"),
        (lambda: read(text=[None]), "--text: None is not a text; give a string"),
        (lambda: read(text=["a"] * 2, grid=True), "--grid: True is not a name"),
        (lambda: work(Opened(), size=1), "type Opened is not a path; save it with save_pretrained"),
        (lambda: work(list(range(99)), size=1), "place: an object of type list is not a name"),
        (lambda: work("a", size=1, set={"b": None}), "--set: b is None; give it a value, or"),
        (lambda: read(grid={"b": [1, None]}), "--grid: b is None; give it a value, or"),
        (lambda: count([], share=1), "places: is empty; give one or more"),
        (lambda: count("a", share=10**400), "is not a number; give one"),
        (lambda: work("a", "b", 1), "work: takes only place and more without a name; name the"),
        (lambda: read("a"), "read: takes nothing without a name; name the others, as in text=…"),
    ],
)
def test_values_that_do_not_fit_are_named_on_one_line(call: Any, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        call()
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"size": None}, "--size: None is not a whole number"),
        ({"size": -1}, "--size: -1 is not a whole number of 0 or more"),
        ({"size": 1, "how": "fst"}, "--how fst: is unknown; did you mean fast?"),
        ({"size": 1, "keep": "yes"}, "--keep yes: must be True or False"),
        ({"size": 1, "rounds": 5000}, "--rounds: 5000 is more than 4,096"),
        ({"size": 1, "quite": True}, "work has no option quite; did you mean quiet?"),
        ({"size": 1, "hidden": 4}, "work has no option hidden"),
        ({}, "work: missing a required argument: 'size'; see help(clozelab.work)"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        work("a", **values)
    assert sentence in str(raised.value)


def test_errors_are_told_without_credentials() -> None:
    @command
    def opened(place: Place) -> None:
        """Open a place."""
        raise UserError(f"{place}: is closed; open s3://bucket/b")

    with pytest.raises(UserError) as error:
        opened("s3://me:secret@bucket/a?key=secret")
    assert str(error.value) == "s3://bucket/a is closed; open s3://bucket/b"
