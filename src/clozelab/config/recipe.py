"""A recipe: the parts that make a pretraining run, and everything that changes its result.

Recipes are TOML. A recipe may extend another: its tables then replace those of the same name, so
that a file holds only what its paper changed. A recipe is checked completely when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from clozelab import registry
from clozelab.config import slots, toml
from clozelab.config.overrides import override
from clozelab.config.renamed import recorded, renamed
from clozelab.config.sizes import DIAL, derived
from clozelab.config.tables import build, flat, plain
from clozelab.config.toml import RECIPES, Source, Table, written
from clozelab.contracts import Format, Masking
from clozelab.encoder import Encoder
from clozelab.errors import UserError
from clozelab.masking import Corruption
from clozelab.nearest import listed, remedy
from clozelab.objectives import Objective
from clozelab.text.tokenizers import TokenizerSpec, part_of
from clozelab.training import Optimiser, Schedule

_WORDS = ("name", "title", "extends")
_KEYS = (*_WORDS, "imports", *slots.TABLES, "sizes")

names = RECIPES.names


class _Chain(NamedTuple):
    """The tables of a recipe, merged with those of the recipes that it extends."""

    tables: Table
    homes: dict[str, str]  # by table, the file that it comes from
    places: list[str]  # the recipe, the one that it extends, and so on


@dataclass(frozen=True)
class Recipe:
    """A complete recipe, whose parts fit together."""

    name: str
    title: str  # the paper
    tokenizer: TokenizerSpec  # parameters are counted for its vocabulary size
    blocks: Format
    masking: Masking
    corruption: Corruption
    encoder: Encoder
    objectives: tuple[Objective, ...]
    optimiser: Optimiser
    schedule: Schedule

    def __post_init__(self) -> None:
        slots.check(self)

    def tables(self) -> dict[str, Any]:
        """The recipe as the tables of a TOML file, with every default written out."""
        return {slot: _table(slot, getattr(self, slot)) for slot in slots.TABLES}

    def reading(self, tokenizer: Tokenizer, *, vocabulary: int | None = None) -> Recipe:
        """The recipe with the settings of a trained tokenizer in place of its own.

        `vocabulary` is the number of embedding rows, where it exceeds the tokenizer's ids.
        """
        part: Any = part_of(tokenizer) or self.tokenizer
        return replace(self, tokenizer=replace(part, vocabulary=vocabulary or part.vocabulary))

    @classmethod
    def read(cls, name_or_path: str | Path, **options: Any) -> Recipe:
        """Read a recipe by name or from a file; `size` and `overrides` as in `read`."""
        return read(name_or_path, **options)

    def override(self, changes: str | Iterable[str] | Mapping[str, Any]) -> Recipe:
        """A checked copy with other values, given as dotted `key=value` or as a dictionary."""
        if isinstance(changes, Mapping):
            changes = [f"{key}={written(value)}" for key, value in changes.items()]
        elif isinstance(changes, str):
            changes = [changes]
        # `use` first: choosing another part would drop keys that were set before.
        ordered = sorted(
            changes, key=lambda pair: not pair.partition("=")[0].strip().endswith(".use")
        )
        if not ordered:
            return self
        tables = self.tables()
        for change in ordered:
            override(tables, change, place=self.name)
        return self._rebuilt(tables, self.name)

    def _rebuilt(self, tables: Table, place: str) -> Recipe:
        return _build({"name": self.name, "title": self.title, **tables}, place)

    def diff(self, other: Recipe | str | Path) -> list[tuple[str, Any, Any]]:
        """The differences from another recipe: key, value here, value there; None is no value."""
        others = (other if isinstance(other, Recipe) else read(other)).tables()
        left, right = dict(flat(self.tables())), dict(flat(others))
        keys = sorted({**left, **right}, key=lambda key: slots.TABLES.index(key.split(".")[0]))
        return [(k, left.get(k), right.get(k)) for k in keys if left.get(k) != right.get(k)]

    def __str__(self) -> str:
        return self.to_toml()

    def to_toml(self) -> str:
        """The complete recipe as the text of a file: it extends nothing and reads back equal."""
        head = {"name": self.name, "title": self.title, "imports": slots.modules(self) or None}
        return toml.to_toml({**head, **self.tables()})

    def warnings(self) -> list[str]:
        """Settings that are allowed but probably a mistake, one sentence each."""
        return slots.warnings(self)

    def parameters(self) -> dict[str, int]:
        """Parameter counts by dotted part; tied embeddings are counted once, in the encoder."""
        size = self.tokenizer.vocabulary
        counts = {f"encoder.{key}": n for key, n in self.encoder.parameters(size).items()}
        for part in self.objectives:
            name = slots.use("objectives", part)
            for key, n in part.parameters(self.encoder, size).items():
                counts[f"{name}.{key}"] = n
        return counts


def read(
    name_or_path: str | Path, *, size: str | None = None, overrides: Iterable[str] = ()
) -> Recipe:
    """The recipe of that name or in that file, at a size, with `key=value` overrides; checked."""
    source = RECIPES.find(name_or_path)
    recipe = _packaged_at(source, size) if source.path is None else _at(source, size)
    return recipe.override(overrides)


def parse(text: str, place: str) -> Recipe:
    """The recipe that a record holds as text; `place` is what errors call it."""
    with recorded():
        return _checked(Source(text, place, Path(place)))[1]


def chain(name_or_path: str | Path) -> list[str]:
    """The names or paths of the recipe, of the one that it extends, and so on."""
    return _resolve(RECIPES.find(name_or_path)).places


def sizes(name_or_path: str | Path) -> list[str]:
    """The names of a recipe's sizes: those of the dial, then those that its authors released."""
    return [*DIAL, *_resolve(RECIPES.find(name_or_path)).tables.get("sizes", {})]


to_toml, difference = Recipe.to_toml, Recipe.diff


def _table(slot: str, part: Any) -> Any:
    """A part as a table, with `use` unless it is the slot's default; a list for several parts."""
    if isinstance(part, tuple):
        return [_table(slot, item) for item in part]
    name = slots.use(slot, part)
    return plain(part) if name == slots.USUAL.get(slot) else {"use": name, **plain(part)}


def _checked(source: Source) -> tuple[_Chain, Recipe]:
    """The merged tables of a file and its recipe; every released size is checked too."""
    chain = _resolve(source)
    place, released = chain.places[0], chain.tables.get("sizes", {})
    recipe = _build(chain.tables, place, homes=chain.homes)
    if not (isinstance(released, dict) and all(isinstance(t, dict) for t in released.values())):
        raise UserError(f"{place}: sizes must be tables; write each as [sizes.large]")
    for size in released:
        if size in DIAL:
            raise UserError(
                f"{place}: sizes.{size} is the name of a built-in size; give it another name"
            )
        _sized(recipe, size, released)
    return chain, recipe


def _at(source: Source, size: str | None) -> Recipe:
    """The recipe of a file, at a size."""
    chain, recipe = _packaged(source) if source.path is None else _checked(source)
    return recipe if size is None else _sized(recipe, size, chain.tables.get("sizes", {}))


# Recipes that come with the package never change, so they are read once.
_packaged, _packaged_at = cache(_checked), cache(_at)


def _resolve(source: Source) -> _Chain:
    """The tables of a recipe, merged with those of all recipes that it extends."""
    chain = _Chain({}, {}, [])
    seen: list[Path | str] = []
    while True:
        tables, place = source.tables(), source.place
        _check_keys(tables, place)
        registry.require(tables.pop("imports", []), place)
        if not seen:
            tables.setdefault("name", Path(place).stem)
            tables.setdefault("title", tables["name"])
        chain.places.append(place)
        for word, table in tables.items():
            if word not in chain.tables:
                chain.homes[word], chain.tables[word] = place, table
            elif _amends_parent(word, chain.tables[word]) and isinstance(table, dict):
                own = renamed(chain.tables[word], table, place=chain.homes[word], key=word)
                chain.tables[word] = {**table, **own}
        parent = chain.tables.pop("extends", None)
        if parent is None:
            return chain
        seen.append(source.path.resolve() if source.path else place)
        try:
            source = RECIPES.find(source.beside(parent))
        except UserError as error:
            raise UserError(f"{place}: extends: {error}") from None
        if (source.path.resolve() if source.path else source.place) in seen:
            circle = ", which extends ".join([*chain.places[1:], source.place])
            raise UserError(
                f"{chain.places[0]}: extends {circle}, which is a circle; let one of them"
                " extend a complete recipe, for instance bert"
            )


def _amends_parent(slot: str, table: Any) -> bool:
    """Whether a table amends its parent's: it lacks the key that a complete table must have.

    That key is `use`, or `steps` for the schedule; a corruption is complete without either.
    """
    needed = "steps" if slot == "schedule" else "use"
    tabular = slot in slots.SLOTS and slot != "corruption" and isinstance(table, dict)
    return tabular and needed not in table


def _check_keys(tables: Table, place: str) -> None:
    for word in tables:
        if word not in _KEYS:
            kind = "table" if isinstance(tables[word], dict | list) else "key"
            raise UserError(f"{place}: {word} is not a {kind} of a recipe; {remedy(word, _KEYS)}")
    for word in _WORDS:
        if not isinstance(tables.get(word, ""), str):
            raise UserError(f"{place}: {word} must be a string in quotes")


def _build(tables: Table, place: str, *, homes: Mapping[str, str] | None = None) -> Recipe:
    """The checked recipe of complete tables; `homes` has the file of each, for errors."""
    _check_keys(tables, place)
    parts: dict[str, Any] = {}
    for slot in slots.TABLES:
        if slot not in tables:
            raise UserError(f'{place}: table {slot} is missing; give it, or set extends = "bert"')
        home, table = (homes or {}).get(slot, place), tables[slot]
        if slot != "objectives":
            parts[slot] = _part(slot, table, place=home, key=slot)
        elif isinstance(table, list):
            parts[slot] = tuple(
                _part(slot, item, place=home, key=f"{slot}.{n}") for n, item in enumerate(table)
            )
        else:
            raise UserError(f"{home}: objectives must be a list; write each under [[objectives]]")
    return Recipe(name=tables["name"], title=tables["title"], **parts)


def _part(slot: str, table: Any, *, place: str, key: str) -> Any:
    if not isinstance(table, dict):
        raise UserError(f"{place}: {key} must be a table; write its keys under [{slot}]")
    parts = slots.SLOTS[slot]
    word = table.get("use", slots.USUAL.get(slot))
    if word is None:
        raise UserError(f"{place}: {key}.use is missing; use {listed(parts)}")
    part = registry.find(slot, word) if isinstance(word, str) else None
    if part is None:
        fix = f"{remedy(str(word), parts)}{registry.failures()}"
        raise UserError(f"{place}: {key}.use = {written(word)} is unknown; {fix}")
    rest = {name: value for name, value in table.items() if name != "use"}
    return build(part, rest, place=place, key=key)


def _sized(recipe: Recipe, size: str, released: Table) -> Recipe:
    """The recipe at a released size, or else at one of the dial or of layers x hidden size.

    A released size sets keys of the encoder; a table inside it sets keys of another slot, or, under
    `objectives`, those of the objective of that name.
    """
    if size not in released:
        return derived(recipe, size, released=list(released))
    tables, place = recipe.tables(), f"{recipe.name} at {size}"

    def change(parts: Table, part: str, changes: Any, key: str) -> None:
        if part not in parts:
            raise UserError(f"{place}: {key} is unknown; {remedy(part, parts)}")
        if not isinstance(changes, dict):
            raise UserError(f"{place}: {key} must be a table; write it as [sizes.{size}.{key}]")
        parts[part].update(renamed(changes, parts[part], place=place, key=part))

    for key, value in released[size].items():
        if key == "objectives" and isinstance(value, dict):
            named = {table["use"]: table for table in tables[key]}
            for name, changes in value.items():
                change(named, name, changes, f"{key}.{name}")
        elif key in slots.TABLES or isinstance(value, dict):
            change(tables, key, value, key)
        else:
            change(tables, "encoder", {key: value}, "encoder")
    return recipe._rebuilt(tables, place)
