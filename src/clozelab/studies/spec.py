"""Studies: a table of a paper as an experiment: a base recipe and what its variants change.

A study is TOML. It says by which tasks and measures the variants are compared, with how many seeds,
what every run has the same of, what the paper found and what it claims. All of it is checked when
it is read, every variant's recipe included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from clozelab.config import recipe as recipes
from clozelab.config import toml
from clozelab.config.recipe import Recipe
from clozelab.config.tables import build, plain
from clozelab.config.toml import STUDIES, written
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.nearest import remedy
from clozelab.studies.checks import check
from clozelab.studies.scores import named_task

_WORDS = ("name", "title", "question")
_TABLES = ("paper", "base", "variants", "claims")
names = STUDIES.names


@dataclass(frozen=True)
class Paper:
    """Whose table a study is."""

    name: str
    source: str  # with its version and the table's number


@dataclass(frozen=True)
class Variant:
    """One row of the table: what it changes in the base, how it is tuned, what the paper found."""

    name: str
    says: str
    recipe: str | None = None  # in place of the base's
    set: tuple[str, ...] = ()  # key=value over the base's
    size: str | None = None  # in place of the one asked for
    layers: float | None = None  # so many times those of the size asked for
    width: float | None = None  # likewise; heads and the feed-forward layer go with it
    share: float = 1.0  # of the tokens (steps, time) that the others have
    teacher: str | None = None  # the variant that it is distilled from
    data: str | None = None  # a word that the command gives a corpus, where it needs its own
    finetune: tuple[str, ...] = ()  # key=value over the protocol's
    protocol: str | None = None  # in place of the usual one
    paper: dict[str, float] = field(default_factory=dict)  # by score, as in sst2.accuracy

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise UserError(f"name {self.name!r}: use small letters, digits and - between them")
        for name in ("share", "layers", "width"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{name} = {value:g} must be above 0")
        if self.protocol is not None and self.protocol not in protocols.names():
            raise UserError(
                f"protocol {self.protocol} is unknown; {remedy(self.protocol, protocols.names())}"
            )


@dataclass(frozen=True)
class Claim:
    """What the paper claims, as a direction that can be tested."""

    better: str
    than: str
    on: tuple[str, ...]  # scores; each is judged alone, and all by their mean
    says: str
    margin: float = 0.0  # better, or not worse by more than this

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise UserError(f"margin = {self.margin:g} must be 0, or what may be lost, above it")


@dataclass(frozen=True)
class Base:
    """What the variants have in common."""

    recipe: str
    set: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    seeds: int = 3
    equal: Literal["tokens", "steps", "time"] = "tokens"
    finetune: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"seeds = {self.seeds} must be at least 1")


@dataclass(frozen=True)
class StudySpec:
    """A study as its file says; its variants are valid recipes that differ."""

    name: str
    title: str
    question: str
    paper: Paper
    recipe: str
    set: tuple[str, ...]
    tasks: tuple[str, ...]  # names, or KIND=FOLDER for one's own files
    measures: tuple[str, ...]
    seeds: int
    equal: str
    finetune: tuple[str, ...]
    variants: tuple[Variant, ...]
    claims: tuple[Claim, ...]

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        for one in self.variants:
            if one.name == name:
                return one
        fix = remedy(name, [one.name for one in self.variants])
        raise UserError(f"{self.name}: variant {name} is unknown; {fix}")

    def recipe_of(self, variant: Variant | str, *, size: str | None = None) -> Recipe:
        """A variant's recipe, resolved at a size."""
        one = self.variant(variant) if isinstance(variant, str) else variant
        word = one.recipe or self.recipe
        changes = [*self._shape(one, size), *self.set, *one.set]
        return recipes.read(word, size=one.size or size, overrides=changes)

    def narrowed(
        self,
        *,
        tasks: Sequence[str] | None = None,
        variants: Sequence[str] | None = None,
        seeds: int | None = None,
        overrides: Sequence[str] = (),
        tuning: Sequence[str] = (),
    ) -> StudySpec:
        """The study as it was asked for: other tasks, some variants; claims go where they can."""
        kept = self.variants
        if variants is not None:
            chosen = [self.variant(name).name for name in variants]
            kept = tuple(one for one in self.variants if one.name in chosen)
        names = [one.name for one in kept]
        for one in kept:
            if one.teacher is not None and one.teacher not in names:
                raise UserError(
                    f"{self.name}: variant {one.name} is taught by {one.teacher}; name that as well"
                )
        wanted = self.tasks if tasks is None else tuple(tasks)
        scored = {named_task(task, place=self.name) for task in wanted}
        claims = []
        for claim in self.claims:
            on = tuple(s for s in claim.on if s in self.measures or s.partition(".")[0] in scored)
            if on and claim.better in names and claim.than in names:
                claims.append(replace(claim, on=on))
        found = replace(
            self,
            tasks=wanted,
            variants=kept,
            seeds=self.seeds if seeds is None else seeds,
            claims=tuple(claims),
            set=(*self.set, *overrides),
            finetune=(*self.finetune, *tuning),
        )
        if found.seeds < 1:
            raise UserError(f"--seeds {found.seeds}: at least 1")
        check(found, self.name)
        return found

    def _shape(self, one: Variant, size: str | None) -> list[str]:
        """What a variant's multiples, or its teacher's layers, make of the size asked for."""
        word = one.recipe or self.recipe
        sized = recipes.read(word, size=one.size or size).encoder
        layers, width = sized.layers, sized.width
        if one.teacher is not None and size is not None and one.size is None:
            # A student keeps its share of its teacher's layers, whatever the size gives.
            teacher = self.variant(one.teacher)
            full = recipes.read(teacher.recipe or self.recipe).encoder.layers
            own = recipes.read(word).encoder.layers
            layers = max(1, self.recipe_of(teacher, size=size).encoder.layers * own // full)
        if one.layers is not None:
            layers = max(1, round(sized.layers * one.layers))
        if one.width is not None:
            width = max(64, round(sized.width * one.width / 64) * 64)
        if (layers, width) == (sized.layers, sized.width):
            return []
        before, after = plain(sized), plain(sized.resized(layers, width))
        if width == sized.width:  # its heads may not be of 64
            after = {**before, "layers": layers, "groups": after.get("groups")}
        return [
            f"encoder.{key}={written(value)}"
            for key, value in after.items()
            if value is not None and before.get(key) != value
        ]


def read(name_or_path: str | Path) -> StudySpec:
    """The study of that name or in that file, checked."""
    source = STUDIES.find(name_or_path)
    tables, place = source.tables(), source.place
    for word in tables:
        if word not in (*_WORDS, *_TABLES):
            fix = remedy(word, (*_WORDS, *_TABLES))
            raise UserError(f"{place}: {word} is no key of a study; {fix}")
    for word in ("title", "question", "paper", "base", "variants"):
        if word not in tables:
            raise UserError(f"{place}: {word} is missing; give it")
    for word in _WORDS:
        if not isinstance(tables.get(word, ""), str):
            raise UserError(f"{place}: {word} must be a word in quotes")
    common = _common(tables["base"], place)
    study = StudySpec(
        name=tables.get("name", Path(place).stem),
        title=tables["title"],
        question=tables["question"],
        paper=_one(Paper, tables["paper"], place=place, key="paper"),
        variants=_several(Variant, tables["variants"], place=place, key="variants"),
        claims=_several(Claim, tables.get("claims", []), place=place, key="claims"),
        **{name: getattr(common, name) for name in Base.__dataclass_fields__},
    )
    study = replace(study, variants=tuple(_from_here(one, place) for one in study.variants))
    check(study, place)
    return study


def to_toml(study: StudySpec) -> str:
    """The study written out; it reads back equal."""
    return toml.to_toml(
        {
            **{word: getattr(study, word) for word in _WORDS},
            "paper": plain(study.paper),
            "base": {name: getattr(study, name) for name in Base.__dataclass_fields__},
            "variants": [plain(variant) for variant in study.variants],
            "claims": [plain(claim) for claim in study.claims],
        }
    )


def _one(part: type, table: Any, *, place: str, key: str) -> Any:
    if not isinstance(table, dict):
        raise UserError(f"{place}: {key} must be a table; write its keys under [{key}]")
    return build(part, table, place=place, key=key)


def _several(part: type, tables: Any, *, place: str, key: str) -> tuple[Any, ...]:
    if not isinstance(tables, list):
        raise UserError(f"{place}: {key} must be a list; write each under [[{key}]]")
    return tuple(
        _one(part, table, place=place, key=f"{key}.{number}") for number, table in enumerate(tables)
    )


def _common(table: Any, place: str) -> Base:
    """The base, its paths seen from the file."""
    base: Base = _one(Base, table, place=place, key="base")
    tasks = tuple(
        f"{kind}{sign}{_path(folder, place)}" if sign else kind
        for kind, sign, folder in (task.partition("=") for task in base.tasks)
    )
    return replace(base, recipe=_word(base.recipe, place), tasks=tasks)


def _from_here(variant: Variant, place: str) -> Variant:
    word = variant.recipe
    return variant if word is None else replace(variant, recipe=_word(word, place))


def _word(recipe: str, place: str) -> str:
    """A recipe's name as it is, its path as it is seen from the study's folder."""
    return _path(recipe, place) if recipe.endswith(".toml") else recipe


def _path(word: str, place: str) -> str:
    return str((Path(place).parent / word).resolve())


def tasks_of(words: Iterable[str]) -> list[str]:
    """Tasks as a command lists them: by name, or KIND=FOLDER; with commas or one by one."""
    found = [task for word in words for task in word.split(",") if task]
    return [
        f"{kind}={Path(folder).resolve()}" if sign else kind
        for kind, sign, folder in (task.partition("=") for task in found)
    ]
