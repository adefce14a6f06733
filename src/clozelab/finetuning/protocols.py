"""Protocols: how each paper tunes its encoder to each task, as TOML files.

[default] is complete; [kinds.answer] overrides it for a kind of task, [tasks.cola] both,
key by key. [grid] lists the values a paper tries, [grids.cola] those for one task or kind in its
place. A table task inside any of them, as in [kinds.answer.task], has settings of the kind of task
itself. [suits] has the recipes that a packaged protocol is for: the values of parts that set them
apart from BERT's, and a rank, the lowest first where several suit. All of a file is checked when it
is read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from clozelab.config import overrides as setting
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.config.renamed import current, recorded, renamed
from clozelab.config.tables import build, plain
from clozelab.config.toml import PROTOCOLS, Source, Table, written
from clozelab.errors import UserError
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.files.named import ELSEWHERE, NAMED
from clozelab.finetuning.kinds import KINDS, TaskKind, own_words
from clozelab.nearest import remedy

OURS = "ours"
names = PROTOCOLS.names

_NESTED = ("kinds", "tasks", "grids")  # tables of tables
_WORDS = ("suits", "default", "grid", *_NESTED)
_MARKED = ("encoder", "masking", "objectives")  # parts of a recipe that protocols know it by
_USUAL = "bert"  # of a recipe that no protocol says it suits
_SMALL = 768  # a narrower encoder learns faster than the papers' settings were made for
_TASK = "task."  # what the settings of a kind of task begin with
_FIELDS = [field.name for field in fields(FinetuneConfig)]
# Settings of which one takes the place of the other.
RIVALS = {"epochs": "steps", "steps": "epochs", "warmup": "warmup_steps", "warmup_steps": "warmup"}
# To try one value upon.
_LEAST: Table = {"learning_rate": 1e-5, "batch_size": 1, "length": 1, "steps": 1}


def tasks() -> dict[str, str]:
    """The tasks that a protocol may have a table for, and the kind of each."""
    named = {task.protocol or name: task.kind for name, task in NAMED.items()}
    return named | ELSEWHERE


def task_word(task: str, kind: str) -> str:
    """What protocols know a task by: its name, that of the task it is a part of, or its kind."""
    word = NAMED[task].protocol or task if task in NAMED else task
    return word if word in tasks() else kind


def protocol_for(recipe: Recipe, *, base: Recipe | None = None) -> str:
    """The protocol of the paper that a recipe is nearest to by its parts; for a small encoder ours.

    `base` is what a study's variant changes: all variants of it are tuned by its protocol. One that
    leaves the encoder as it is, as ELMo's does, is kept at every size.
    """
    suited = [
        (tables["suits"]["rank"], name)
        for name, tables in _packaged().items()
        if _suits(base or recipe, tables.get("suits", {}))
    ]
    protocol = min(suited)[1] if suited else _USUAL
    trains = _packaged()[protocol]["default"].get("features", "tuned") == "tuned"
    return OURS if trains and recipe.encoder.hidden_size < _SMALL else protocol


@cache
def _packaged() -> dict[str, Table]:
    return {name: PROTOCOLS.find(name).tables() for name in names()}


def _suits(recipe: Recipe, marks: Table) -> bool:
    """Whether a recipe has one of the marks of a protocol: a value of a part, `true` for any.

    A name is no mark, nor is the tokenizer: any recipe may meet a corpus that has another.
    """
    facts = ((slot, *mark) for slot in _MARKED for mark in marks.get(slot, {}).items())
    for slot, name, values in facts:
        parts = getattr(recipe, slot)
        for part in parts if slot == "objectives" else (parts,):
            value = slots.use(slot, part) if name == "use" else getattr(part, name, None)
            if value and (values is True or value in values):
                return True
    return False


def read(
    protocol: str | Path, task: str, kind: str, *, overrides: Iterable[str] = ()
) -> FinetuneConfig:
    """The settings for a task, with `key=value` overrides; one's own goes by its kind."""
    tables, place = _tables(PROTOCOLS.find(protocol))
    _known(task, (*tasks(), *own_words()), f"{place}: task {task}")
    _known(kind, KINDS, f"{place}: kind {kind}")
    settings = _over(_layered(tables, task, kind, place=place), _changes(overrides))
    return _config(settings, place=place, key=task, task=task, kind=kind)


def grid(protocol: str | Path, task: str) -> dict[str, list[Any]]:
    """The values that a protocol tries for a task, or else for its kind, or else for any."""
    tables, place = _tables(PROTOCOLS.find(protocol))
    _known(task, (*tasks(), *own_words()), f"{place}: task {task}")
    kind = _kind(task)
    for key in (task, kind):
        if key in tables["grids"]:
            return _lists(tables["grids"][key], place=place, key=f"grids.{key}", kind=kind)
    if not tables["grid"]:
        raise UserError(
            f"{place} has no grid for {task}; give one, as in --grid learning_rate=1e-5,2e-5"
        )
    return _lists(tables["grid"], place=place, key="grid", kind=None)


def cells(
    grid: Mapping[str, Sequence[Any]], overrides: Iterable[str] = (), *, kind: str | None = None
) -> list[Table]:
    """Every combination of a grid's values, or of those that words like batch_size=16,32 list.

    In the order of the settings, so that the same cell has the same name however it was asked for.
    `kind` is the kind of task, without which none of its own settings (task.stride) can be tried.
    """
    chosen: Table = {}
    for word in overrides:
        key, text = setting.split(word, example="learning_rate=1e-5,2e-5", place="grid")
        if key in chosen:
            raise UserError(f"grid: {key} = {text} is not its only list; list its values once")
        chosen[key] = setting.values(text)
    lists = _lists(chosen or grid, place="grid", key="grid", kind=kind)
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def named(cell: Mapping[str, Any]) -> str:
    """A short name for a cell, fit for a folder: learning_rate-2e-05-batch_size-32."""
    return "-".join(f"{key}-{_short(cell[key])}" for key in sorted(cell, key=_place))


def changes(cell: Mapping[str, Any]) -> list[str]:
    """A cell as the overrides that `read` takes."""
    return [f"{key}={written(value)}" for key, value in cell.items()]


@cache
def _tables(source: Source) -> tuple[Table, str]:
    """The tables of a protocol, each of them tried, and what to call it.

    They are tried once for each text: a study asks for every variant and task.
    """
    tables, place = source.tables(), source.place
    for word, table in tables.items():
        _known(word, _WORDS, f"{place}: {word}")
        inner = table.values() if word in _NESTED and isinstance(table, dict) else ()
        if not all(isinstance(each, dict) for each in (table, *inner)):
            head = word if word not in _NESTED else f"{word}.{'tag' if word == 'kinds' else 'cola'}"
            raise UserError(f"{place}: {word} has keys outside a table; write them under [{head}]")
    if "default" not in tables:
        raise UserError(
            f"{place}: table default is missing; give it, with learning_rate, batch_size and epochs"
        )
    tables = {word: tables.get(word, {}) for word in _WORDS}
    _check(tables, place)
    return tables, place


def _check(tables: Table, place: str) -> None:
    """Try every table, whichever task is asked for."""
    _layered(tables, None, None, place=place)
    for kind in tables["kinds"]:
        _known(kind, KINDS, f"{place}: kinds.{kind}")
        _layered(tables, None, kind, place=place)
    for task in tables["tasks"]:
        _known(task, tasks(), f"{place}: tasks.{task}")
        _layered(tables, task, tasks()[task], place=place)
    _lists(tables["grid"], place=place, key="grid", kind=None)
    for key, table in tables["grids"].items():
        _known(key, (*tasks(), *KINDS), f"{place}: grids.{key}")
        _lists(table, place=place, key=f"grids.{key}", kind=_kind(key))


def _layered(tables: Table, task: str | None, kind: str | None, *, place: str) -> Table:
    """The layers for a task one over another; each is tried, so that an error names its layer."""
    layers = {"default": tables["default"]}
    for word, name in (("kinds", kind), ("tasks", task)):
        if name in tables[word]:
            layers[f"{word}.{name}"] = tables[word][name]
    settings: Table = {}
    for key, layer in layers.items():
        settings = _over(settings, _flat(layer, place=place, key=key))
        _config(settings, place=place, key=key, task=task, kind=kind)
    return settings


def _over(below: Table, above: Table) -> Table:
    """One table over another; steps take the place of epochs, and the like."""
    gone = {RIVALS[key] for key in above if key in RIVALS}
    return {key: value for key, value in below.items() if key not in gone} | above


def _flat(table: Mapping[str, Any], *, place: str, key: str) -> Table:
    """The table with the settings of the kind of task beside the others, as task.stride."""
    task = table.get("task", {})
    if not isinstance(task, dict):
        raise UserError(f"{place}: {key}.task must be a table; write what it sets, as task.stride")
    own = {name: value for name, value in table.items() if name != "task"}
    return {
        **renamed(own, _FIELDS, place=place, key=key),
        **{f"{_TASK}{name}": value for name, value in task.items()},
    }


def _config(
    table: Table, *, place: str, key: str, task: str | None, kind: str | None
) -> FinetuneConfig:
    own = {name: value for name, value in table.items() if not name.startswith(_TASK)}
    chosen = {name[len(_TASK) :]: value for name, value in table.items() if name not in own}
    own["task"] = _task_lines(chosen, kind, place=place, key=f"{key}.task")
    tuning: FinetuneConfig = build(FinetuneConfig, own, place=place, key=key)
    if tuning.after is not None:
        _known(tuning.after, tasks(), f'{place}: {key}.after = "{tuning.after}"')
        if tuning.after == task:
            raise UserError(f"{place}: {key}.after names {task} itself; name an earlier task")
    return tuning


def kind_with(
    settings: Mapping[str, Any], lines: tuple[str, ...], kind: str, *, place: str
) -> TaskKind:
    """The kind by its examples, and by the lines of a `FinetuneConfig.task` over that."""
    table = {**settings, **tomllib.loads("\n".join(lines))}
    part: TaskKind = build(KINDS[kind], table, place=place, key="task")
    return part


def _task_lines(table: Table, kind: str | None, *, place: str, key: str) -> tuple[str, ...]:
    """The settings of a kind of task as lines of TOML, each tried upon the kind that it is for.

    Lines have an order, and can be compared and hashed.
    """
    if not table:
        return ()
    if kind is None:
        example = "[kinds.answer.task] and [grids.answer.task]"
        raise UserError(f"{place}: {key} is for no kind of task; name one, as in {example}")
    part = KINDS[kind]
    for name in table:
        if name in part.from_tuning:
            raise UserError(f"{place}: {key}.{name} is not set here; set {part.from_tuning[name]}")
        if name in part.from_examples:
            raise UserError(f"{place}: {key}.{name} is what the examples say; leave it out")
    tried = build(part, part.stand_in(table) | table, place=place, key=key)
    values = plain(tried)
    return tuple(f"{name} = {written(values[name])}" for name in sorted({*table} & {*values}))


def _lists(
    table: Mapping[str, Any], *, place: str, key: str, kind: str | None
) -> dict[str, list[Any]]:
    """Lists of values in the order of the settings, each value tried."""
    lists: dict[str, list[Any]] = {}
    flat = _flat(table, place=place, key=key)
    for name in sorted(flat, key=_place):
        values = flat[name]
        if not isinstance(values, list) or not values:
            raise UserError(f"{place}: {key}.{name} must be a list of values, as in [16, 32]")
        lists[name] = []
        for value in values:
            settings = _over(_LEAST, {name: value})
            config = _config(settings, place=place, key=key, task=None, kind=kind)
            own = tuple(value) if isinstance(value, list) else value  # of the kind of task
            lists[name].append(getattr(config, name, own))
        if len({*lists[name]}) < len(values):
            raise UserError(f"{place}: {key}.{name} lists a value twice; list it once")
    for name in lists:
        if RIVALS.get(name) in lists:
            raise UserError(f"{place}: {key} has {name} and {RIVALS[name]}; list one of them")
    return lists


def _changes(overrides: Iterable[str]) -> Table:
    settings: Table = {}
    for change in overrides:
        key, text = setting.split(change, example="learning_rate=2e-5", place="protocol")
        key = current(key, _FIELDS)
        if key == "task":
            raise UserError(f"protocol: {change!r} sets nothing; name a setting, as task.stride=64")
        if key in settings:
            raise UserError(
                f"{key} is set twice, to {written(settings[key])} and to {text}; set it once,"
                " or leave it out of the grid"
            )
        settings[key] = setting.value(text)
    return settings


def _kind(task: str) -> str:
    """The kind of a task, which may go by that word itself."""
    return tasks().get(task) or own_words()[task][0]


def _place(name: str) -> tuple[int, str]:
    """Where a setting stands among others: as in `FinetuneConfig`, then those of the kind."""
    with recorded():
        today = current(name, _FIELDS)
    return _FIELDS.index(today) if today in _FIELDS else len(_FIELDS), name


def _short(value: Any) -> str:
    """A value in a name: a whole number has no point, a pair no brackets."""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return "+".join(_short(item) for item in value)
    return str(value).lower()


def _known(word: str, allowed: Collection[str], what: str) -> None:
    if word not in allowed:
        raise UserError(f"{what} is unknown; {remedy(word, allowed)}")
