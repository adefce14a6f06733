"""Protocols: how each paper tunes its encoder to each task, as TOML files.

[default] is complete; [kinds.answer] overrides it for a kind of task, and [tasks.cola] overrides
both, key by key. [grid] lists the values a paper tries, [grids.cola] those for one task or kind
instead. A table task inside any of them, as in [kinds.answer.task], has settings of the kind of
task itself. [suits] describes the recipes that a packaged protocol is for: the values of parts that
distinguish them from BERT's, and a rank, of which the lowest wins. All of a file is checked when it
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
_COMPARED = ("encoder", "masking", "objectives")  # parts by which a protocol is chosen
_DEFAULT = "bert"  # the protocol of a recipe that suits no other
_SMALL = 768  # narrower encoders need other settings than the papers'
_TASK = "task."  # prefix of the settings of a kind of task
_FIELDS = [field.name for field in fields(FinetuneConfig)]
# Settings that exclude each other.
RIVALS = {"epochs": "steps", "steps": "epochs", "warmup": "warmup_steps", "warmup_steps": "warmup"}
# A minimal config, to check single values.
_MINIMAL: Table = {"learning_rate": 1e-5, "batch_size": 1, "length": 1, "steps": 1}


def tasks() -> dict[str, str]:
    """The tasks that a protocol may have a table for, and the kind of each."""
    named = {task.protocol or name: task.kind for name, task in NAMED.items()}
    return named | ELSEWHERE


def task_word(task: str, kind: str) -> str:
    """The key of a task in protocols: its name, that of the task it is a part of, or its kind."""
    word = NAMED[task].protocol or task if task in NAMED else task
    return word if word in tasks() else kind


def protocol_for(recipe: Recipe, *, base: Recipe | None = None) -> str:
    """The protocol of the paper that a recipe is nearest to by its parts; for a small encoder ours.

    `base` is the recipe that a study's variant changes; its protocol is that of all variants. A
    protocol that freezes the encoder, as ELMo's does, is kept at every size.
    """
    suited = [
        (tables["suits"]["rank"], name)
        for name, tables in _packaged().items()
        if _suits(base or recipe, tables.get("suits", {}))
    ]
    protocol = min(suited)[1] if suited else _DEFAULT
    trains = _packaged()[protocol]["default"].get("features", "tuned") == "tuned"
    return OURS if trains and recipe.encoder.hidden_size < _SMALL else protocol


@cache
def _packaged() -> dict[str, Table]:
    return {name: PROTOCOLS.find(name).tables() for name in names()}


def _suits(recipe: Recipe, marks: Table) -> bool:
    """Whether a recipe has one of the `suits` values of a protocol; `true` is for any value.

    Names and tokenizers do not count: any recipe may be used with another tokenizer.
    """
    facts = ((slot, *mark) for slot in _COMPARED for mark in marks.get(slot, {}).items())
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
    """The settings for a task, with `key=value` overrides; a user's own task goes by its kind."""
    tables, place = _read_tables(PROTOCOLS.find(protocol))
    _check_known(task, (*tasks(), *own_words()), f"{place}: task {task}")
    _check_known(kind, KINDS, f"{place}: kind {kind}")
    settings = _merge(_merge_layers(tables, task, kind, place=place), _parse_overrides(overrides))
    return _build_config(settings, place=place, key=task, task=task, kind=kind)


def grid(protocol: str | Path, task: str) -> dict[str, list[Any]]:
    """The grid of a protocol for a task, or else for its kind, or else for any."""
    tables, place = _read_tables(PROTOCOLS.find(protocol))
    _check_known(task, (*tasks(), *own_words()), f"{place}: task {task}")
    kind = _kind_of(task)
    for key in (task, kind):
        if key in tables["grids"]:
            return _value_lists(tables["grids"][key], place=place, key=f"grids.{key}", kind=kind)
    if not tables["grid"]:
        raise UserError(
            f"{place} has no grid for {task}; give one, as in --grid learning_rate=1e-5,2e-5"
        )
    return _value_lists(tables["grid"], place=place, key="grid", kind=None)


def cells(
    grid: Mapping[str, Sequence[Any]], overrides: Iterable[str] = (), *, kind: str | None = None
) -> list[Table]:
    """Every combination of a grid's values, or of those that words like batch_size=16,32 list.

    Settings have a fixed order, so that a cell always has the same name. `kind` is the kind of
    task, needed to check its own settings (task.stride).
    """
    chosen: Table = {}
    for word in overrides:
        key, text = setting.split(word, example="learning_rate=1e-5,2e-5", place="grid")
        if key in chosen:
            raise UserError(f"grid: {key} = {text} repeats the key; list its values once")
        chosen[key] = setting.values(text)
    lists = _value_lists(chosen or grid, place="grid", key="grid", kind=kind)
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def named(cell: Mapping[str, Any]) -> str:
    """A short name for a cell, fit for a folder: learning_rate-2e-05-batch_size-32."""
    return "-".join(f"{key}-{_value_name(cell[key])}" for key in sorted(cell, key=_sort_key))


def changes(cell: Mapping[str, Any]) -> list[str]:
    """A cell as the overrides that `read` takes."""
    return [f"{key}={written(value)}" for key, value in cell.items()]


@cache
def _read_tables(source: Source) -> tuple[Table, str]:
    """The tables of a protocol, all checked, and its name in errors.

    Cached, since a study reads them for every variant and task.
    """
    tables, place = source.tables(), source.place
    for word, table in tables.items():
        _check_known(word, _WORDS, f"{place}: {word}")
        inner = table.values() if word in _NESTED and isinstance(table, dict) else ()
        if not all(isinstance(entry, dict) for entry in (table, *inner)):
            head = word if word not in _NESTED else f"{word}.{'tag' if word == 'kinds' else 'cola'}"
            raise UserError(f"{place}: {word} has keys outside a table; write them under [{head}]")
    if "default" not in tables:
        raise UserError(
            f"{place}: table default is missing; give it, with learning_rate, batch_size and epochs"
        )
    tables = {word: tables.get(word, {}) for word in _WORDS}
    _check_tables(tables, place)
    return tables, place


def _check_tables(tables: Table, place: str) -> None:
    """Check every table, whatever the task."""
    _merge_layers(tables, None, None, place=place)
    for kind in tables["kinds"]:
        _check_known(kind, KINDS, f"{place}: kinds.{kind}")
        _merge_layers(tables, None, kind, place=place)
    for task in tables["tasks"]:
        _check_known(task, tasks(), f"{place}: tasks.{task}")
        _merge_layers(tables, task, tasks()[task], place=place)
    _value_lists(tables["grid"], place=place, key="grid", kind=None)
    for key, table in tables["grids"].items():
        _check_known(key, (*tasks(), *KINDS), f"{place}: grids.{key}")
        _value_lists(table, place=place, key=f"grids.{key}", kind=_kind_of(key))


def _merge_layers(tables: Table, task: str | None, kind: str | None, *, place: str) -> Table:
    """The merged settings for a task; each layer is checked, so that an error names it."""
    layers = {"default": tables["default"]}
    for word, name in (("kinds", kind), ("tasks", task)):
        if name in tables[word]:
            layers[f"{word}.{name}"] = tables[word][name]
    settings: Table = {}
    for key, layer in layers.items():
        settings = _merge(settings, _flatten(layer, place=place, key=key))
        _build_config(settings, place=place, key=key, task=task, kind=kind)
    return settings


def _merge(below: Table, above: Table) -> Table:
    """Merge a table over another; a key also removes its rival, as steps do epochs."""
    replaced = {RIVALS[key] for key in above if key in RIVALS}
    return {key: value for key, value in below.items() if key not in replaced} | above


def _flatten(table: Mapping[str, Any], *, place: str, key: str) -> Table:
    """The table with the settings of the kind of task flattened, as task.stride."""
    task = table.get("task", {})
    if not isinstance(task, dict):
        raise UserError(f"{place}: {key}.task must be a table; write what it sets, as task.stride")
    own = {name: value for name, value in table.items() if name != "task"}
    return {
        **renamed(own, _FIELDS, place=place, key=key),
        **{f"{_TASK}{name}": value for name, value in task.items()},
    }


def _build_config(
    table: Table, *, place: str, key: str, task: str | None, kind: str | None
) -> FinetuneConfig:
    own = {name: value for name, value in table.items() if not name.startswith(_TASK)}
    chosen = {name[len(_TASK) :]: value for name, value in table.items() if name not in own}
    own["task"] = _task_lines(chosen, kind, place=place, key=f"{key}.task")
    tuning: FinetuneConfig = build(FinetuneConfig, own, place=place, key=key)
    if tuning.after is not None:
        _check_known(tuning.after, tasks(), f'{place}: {key}.after = "{tuning.after}"')
        if tuning.after == task:
            raise UserError(f"{place}: {key}.after names {task} itself; name an earlier task")
    return tuning


def kind_with(
    settings: Mapping[str, Any], lines: tuple[str, ...], kind: str, *, place: str
) -> TaskKind:
    """The kind with its examples' settings, overridden by lines of `FinetuneConfig.task`."""
    table = {**settings, **tomllib.loads("\n".join(lines))}
    part: TaskKind = build(KINDS[kind], table, place=place, key="task")
    return part


def _task_lines(table: Table, kind: str | None, *, place: str, key: str) -> tuple[str, ...]:
    """The settings of a kind of task as lines of TOML, checked against the kind.

    Lines are ordered, and can be compared and hashed.
    """
    if not table:
        return ()
    if kind is None:
        example = "[kinds.answer.task] and [grids.answer.task]"
        raise UserError(f"{place}: {key} is not a kind of task; name one, as in {example}")
    part = KINDS[kind]
    for name in table:
        if name in part.from_tuning:
            raise UserError(f"{place}: {key}.{name} is not set here; set {part.from_tuning[name]}")
        if name in part.from_examples:
            raise UserError(f"{place}: {key}.{name} is read from the examples; leave it out")
    classes = {name: table[name] for name in part.class_fields if type(table.get(name)) is int}
    table = table | {name: str(number) for name, number in classes.items()}
    tried = build(part, part.stand_in(table) | table, place=place, key=key)
    values = plain(tried)
    return tuple(f"{name} = {written(values[name])}" for name in sorted({*table} & {*values}))


def _value_lists(
    table: Mapping[str, Any], *, place: str, key: str, kind: str | None
) -> dict[str, list[Any]]:
    """The lists of values in the order of the settings, each value checked."""
    lists: dict[str, list[Any]] = {}
    flat = _flatten(table, place=place, key=key)
    for name in sorted(flat, key=_sort_key):
        values = flat[name]
        if not isinstance(values, list) or not values:
            raise UserError(f"{place}: {key}.{name} must be a list of values, as in [16, 32]")
        lists[name] = []
        for value in values:
            settings = _merge(_MINIMAL, {name: value})
            config = _build_config(settings, place=place, key=key, task=None, kind=kind)
            own = tuple(value) if isinstance(value, list) else value  # of the kind of task
            lists[name].append(getattr(config, name, own))
        if len({*lists[name]}) < len(values):
            raise UserError(f"{place}: {key}.{name} lists a value twice; list it once")
    for name in lists:
        if RIVALS.get(name) in lists:
            raise UserError(f"{place}: {key} has {name} and {RIVALS[name]}; list one of them")
    return lists


def _parse_overrides(overrides: Iterable[str]) -> Table:
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


def _kind_of(task: str) -> str:
    """The kind of a task, which may go by that word itself."""
    return tasks().get(task) or own_words()[task][0]


def _sort_key(name: str) -> tuple[int, str]:
    """The sort key of a setting: the order of `FinetuneConfig`, then settings of the kind."""
    with recorded():
        today = current(name, _FIELDS)
    return _FIELDS.index(today) if today in _FIELDS else len(_FIELDS), name


def _value_name(value: Any) -> str:
    """A value as part of a name, without a decimal point or brackets."""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return "+".join(_value_name(item) for item in value)
    return str(value).lower()


def _check_known(word: str, allowed: Collection[str], what: str) -> None:
    if word not in allowed:
        raise UserError(f"{what} is unknown; {remedy(word, allowed)}")
