"""The specification of a study: a table of a paper as an experiment.

It is a TOML file with a base recipe, what each variant changes in it, the tasks and measures that
they are compared by, the number of seeds, what is equal for all runs, the paper's numbers and its
claims. All of it is checked when it is read, every variant's recipe included.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from clozelab import registry
from clozelab.config import recipe as recipes
from clozelab.config import slots, toml
from clozelab.config.recipe import Recipe
from clozelab.config.renamed import current, first_keys, recorded
from clozelab.config.tables import build, plain
from clozelab.config.toml import STUDIES, written
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.finetuning.config import FinetuneConfig
from clozelab.nearest import listed, remedy
from clozelab.studies.checks import check
from clozelab.studies.scores import TUNINGS, label, named_task

_WORDS = ("name", "title", "question")
_TABLES = ("paper", "base", "variants", "claims")
names = STUDIES.names
_LATER = {"later": True}  # written only if it is not the default
_REPEAT_OFFSET = 1_000


@dataclass(frozen=True)
class Paper:
    """The paper whose table a study reproduces."""

    name: str
    source: str  # with its version and the number of the table


@dataclass(frozen=True)
class Variant:
    """One row of the table: what it changes in the base, its fine-tuning, the paper's numbers."""

    name: str
    says: str  # what it is, in words
    recipe: str | None = None  # replaces that of the base
    set: tuple[str, ...] = ()  # key=value, over those of the base
    size: str | None = None  # replaces the requested size
    layers: float | None = None  # a multiple of the layers of the requested size
    hidden_size: float | None = None  # likewise; heads and feed-forward layer scale with it
    again: str = field(
        default="", metadata=_LATER
    )  # the variant that it repeats with other seeds (A/A)
    share: float = 1.0  # of the tokens (steps, time) of the other variants
    teacher: str | None = None  # the variant that it is distilled from
    data: str | None = None  # the name of its own corpus, given by --data NAME=CORPUS
    finetune: tuple[str, ...] = ()  # key=value, over those of the protocol
    protocol: str | None = None  # replaces the usual one
    paper: dict[str, float] = field(
        default_factory=dict
    )  # the paper's numbers by score, as in sst2.accuracy

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise UserError(f"name {self.name!r}: use small letters, digits and - between them")
        for name in ("share", "layers", "hidden_size"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{name} = {value:g} must be above 0")
        if self.protocol is not None and self.protocol not in protocols.names():
            raise UserError(
                f"protocol {self.protocol} is unknown; {remedy(self.protocol, protocols.names())}"
            )

    @property
    def seed_offset(self) -> int:
        """The offset of its runs' seeds: a variant that repeats another has other seeds."""
        return _REPEAT_OFFSET if self.again else 0

    def without(self, tasks: Collection[str]) -> Variant:
        """The variant without what it says of some tasks."""
        paper = {name: self.paper[name] for name in _others(self.paper, tasks)}
        return replace(self, finetune=_others(self.finetune, tasks), paper=paper)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: one variant is better than another, or equal to it.

    All that decides it is written down before it is run: what is measured, by how much one may be
    worse, which differences count as none, and how many seeds there will be.
    """

    better: str
    on: tuple[str, ...]  # scores; each is shown, and their mean decides
    says: str  # the claim in words
    than: str = field(default="", metadata=_LATER)  # the other variant; none: `level`
    kind: Literal["better", "equal"] = field(default="better", metadata=_LATER)
    margin: float = 0.0  # by how much it may be worse
    delta: float | None = None  # differences below it count as none
    level: float | None = None  # a number instead of another variant, such as chance
    ratio: float = field(default=1.0, metadata=_LATER)  # of the other's score
    effect: float | None = None  # the paper's advantage, if it has no numbers
    seeds: int | None = None  # None: the study's
    exploratory: bool = field(default=False, metadata=_LATER)  # stated after results were seen
    not_run: tuple[str, ...] = field(default=(), metadata=_LATER)  # its scores of tasks left out

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise UserError(
                f"margin = {self.margin:g} must not be negative; give how much worse the"
                " variant may be"
            )
        for name in ("delta", "ratio", "seeds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{name} = {value:g} must be above 0")
        if bool(self.than) == (self.level is not None):
            raise UserError("than: name the other variant, or give a level in its place")
        if self.kind == "equal" and (self.delta is None or self.margin):
            raise UserError("delta: a claim that two variants are equal needs delta and no margin")

    @property
    def against(self) -> str:
        """The other variant or the level, in words."""
        return self.than or f"{self.level:g}"

    @property
    def judged(self) -> str:
        """The claim in words, and what it is judged by if not by all scores that it names."""
        if not self.not_run:
            return self.says
        return f"{self.says} (Judged by {listed(map(label, self.on), conjunction='and')} alone.)"

    @property
    def comparison(self) -> str:
        """What is compared with what, on what; the key of a claim in a plan."""
        return f"{self.better} against {self.against} on {', '.join(self.on)}"


@dataclass(frozen=True)
class Base:
    """What the variants have in common."""

    recipe: str
    set: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # names, or KIND=FOLDER for the user's own files
    measures: tuple[str, ...] = ()
    seeds: int = 3
    equal: Literal["tokens", "steps", "time"] = "tokens"
    finetune: tuple[str, ...] = ()
    tunings: int = 1  # fine-tunings of each encoder on each task, of which the mean is its score
    blocks: int = 8192  # held-out blocks to evaluate, and twice as many pairs, if there are so many
    noise: dict[str, float] = field(default_factory=dict)  # deviation over seeds, for the power

    def __post_init__(self) -> None:
        for name in ("seeds", "tunings", "blocks"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class StudySpec(Base):
    """A study as read from its file; its variants are valid and different recipes."""

    name: str
    title: str
    question: str
    paper: Paper | None  # None: a question of one's own
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
        """The recipe of a variant, resolved at a size."""
        if isinstance(variant, str):
            variant = self.variant(variant)
        with recorded():  # of a study that was recorded, or may be
            return self._read_recipe(variant, size)

    def differs(self, other: StudySpec, names: Iterable[str]) -> bool:
        """Whether any of those fields differ; old names of a key count as the same."""
        mine, others = (
            {**vars(one), **{name: first_keys(getattr(one, name)) for name in ("set", "finetune")}}
            for one in (self, other)
        )
        return any(mine[name] != others[name] for name in names)

    def warn_of_old_names(self) -> None:
        """Warn of renamed keys in its file and its recipes."""
        for variant in self.variants:
            self._read_recipe(variant, None)
        known = [*FinetuneConfig.__dataclass_fields__]
        for word in (*self.finetune, *(word for one in self.variants for word in one.finetune)):
            current(word.partition("=")[0].strip(), known)

    def _read_recipe(self, variant: Variant, size: str | None) -> Recipe:
        changes = [*self._shape_overrides(variant, size), *self.set, *variant.set]
        name = variant.recipe or self.recipe
        return recipes.read(name, size=variant.size or size, overrides=changes)

    def narrowed(
        self,
        *,
        tasks: Sequence[str] | None = None,
        variants: Sequence[str] | None = None,
        seeds: int | None = None,
        overrides: Sequence[str] = (),
        tuning: Sequence[str] = (),
    ) -> StudySpec:
        """The study with other tasks and settings, or with fewer variants.

        Measures and claims that need a variant or a task that is not run are dropped, and what is
        said of a task of one's own that is not run.
        """
        if seeds is not None and seeds < 1:
            raise UserError(f"--seeds {seeds}: must be at least 1")
        chosen = self.variants
        if variants is not None:
            names = [self.variant(name).name for name in variants]
            chosen = tuple(variant for variant in self.variants if variant.name in names)
        names = [variant.name for variant in chosen]
        for variant in chosen:
            for other, how in ((variant.teacher, "is distilled from"), (variant.again, "repeats")):
                if other and other not in names:
                    raise UserError(
                        f"{self.name}: variant {variant.name} {how} {other}; name that as well"
                    )
        tasks = self.tasks if tasks is None else tuple(tasks)
        scored = {named_task(task, place=self.name) for task in tasks}
        measures = tuple(one for one in self.measures if _measurable(one, names, scored))
        own = {named_task(task, place=self.name) for task in self.tasks if "=" in task}
        chosen = tuple(variant.without(own - scored) for variant in chosen)
        claims = []
        for claim in self.claims:
            on = tuple(s for s in claim.on if s in measures or s.partition(".")[0] in scored)
            not_run = (*claim.not_run, *(s for s in claim.on if s not in on))
            if on and {claim.better, claim.than} <= {*names, ""}:
                stated = min(claim.seeds, seeds) if claim.seeds and seeds else claim.seeds
                claims.append(replace(claim, on=on, seeds=stated, not_run=not_run))
        study = replace(
            self,
            tasks=tasks,
            measures=measures,
            variants=chosen,
            seeds=self.seeds if seeds is None else seeds,
            claims=tuple(claims),
            set=(*self.set, *overrides),
            finetune=(*_others(self.finetune, own - scored), *tuning),
        )
        check(study, self.name)
        return study

    def _shape_overrides(self, variant: Variant, size: str | None) -> list[str]:
        """The overrides that scale a variant's layers and width, or those of a student."""
        name = variant.recipe or self.recipe
        sized = recipes.read(name, size=variant.size or size).encoder
        layers, width = sized.layers, sized.hidden_size
        if variant.teacher is not None and size is not None and variant.size is None:
            # A student keeps its proportion of the teacher's layers at every size.
            teacher = self.variant(variant.teacher)
            full = recipes.read(teacher.recipe or self.recipe).encoder.layers
            own = recipes.read(name).encoder.layers
            layers = max(1, self.recipe_of(teacher, size=size).encoder.layers * own // full)
        if variant.layers is not None:
            layers = max(1, round(sized.layers * variant.layers))
        if variant.hidden_size is not None:
            width = max(64, round(sized.hidden_size * variant.hidden_size / 64) * 64)
        if (layers, width) == (sized.layers, sized.hidden_size):
            return []
        before, after = plain(sized), plain(sized.resized(layers, width))
        if width == sized.hidden_size:  # keep heads that are not of size 64
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
    registry.require(tables.pop("imports", []), place)
    for word in tables:
        if word not in (*_WORDS, *_TABLES):
            fix = remedy(word, (*_WORDS, *_TABLES))
            raise UserError(f"{place}: {word} is not a key of a study; {fix}")
    for word in ("title", "question", "base", "variants"):
        if word not in tables:
            raise UserError(f"{place}: {word} is missing; add it")
    for word in _WORDS:
        if not isinstance(tables.get(word, ""), str):
            raise UserError(f"{place}: {word} must be a string in quotes")
    base, paper = _build_base(tables["base"], place), tables.get("paper")
    study = StudySpec(
        name=tables.get("name", Path(place).stem),
        title=tables["title"],
        question=tables["question"],
        paper=None if paper is None else _build(Paper, paper, place=place, key="paper"),
        variants=_build_all(Variant, tables["variants"], place=place, key="variants"),
        claims=_build_all(Claim, tables.get("claims", []), place=place, key="claims"),
        **{name: getattr(base, name) for name in Base.__dataclass_fields__},
    )
    study = replace(study, variants=tuple(_with_recipe_path(one, place) for one in study.variants))
    study = replace(study, variants=tuple(_with_repeated(one, study) for one in study.variants))
    check(study, place)
    return study


def to_toml(study: StudySpec) -> str:
    """The study as TOML, which `read` reads back."""
    return toml.to_toml(
        {
            **{word: getattr(study, word) for word in _WORDS},
            "imports": _modules(study) or None,
            "paper": study.paper and plain(study.paper),
            "base": {name: getattr(study, name) for name in Base.__dataclass_fields__},
            "variants": [plain(variant) for variant in study.variants],
            "claims": [plain(claim) for claim in study.claims],
        }
    )


def _modules(study: StudySpec) -> list[str]:
    """The modules that register the study's parts and measures from outside."""
    own = [("measure", name.removeprefix("own.")) for name in study.measures]
    in_recipes = [slots.modules(study.recipe_of(variant)) for variant in study.variants]
    return sorted({*registry.modules(own), *(module for group in in_recipes for module in group)})


def _build(part: type, table: Any, *, place: str, key: str) -> Any:
    if not isinstance(table, dict):
        raise UserError(f"{place}: {key} must be a table; write its keys under [{key}]")
    return build(part, table, place=place, key=key)


def _build_all(part: type, tables: Any, *, place: str, key: str) -> tuple[Any, ...]:
    if not isinstance(tables, list):
        raise UserError(f"{place}: {key} must be a list; write each under [[{key}]]")
    return tuple(
        _build(part, table, place=place, key=f"{key}.{number}")
        for number, table in enumerate(tables)
    )


def _build_base(table: Any, place: str) -> Base:
    """The base, with its relative paths resolved."""
    base: Base = _build(Base, table, place=place, key="base")
    tasks = tuple(
        f"{kind}{sign}{_absolute_path(folder, place)}" if sign else kind
        for kind, sign, folder in (task.partition("=") for task in base.tasks)
    )
    return replace(base, recipe=_recipe_path(base.recipe, place), tasks=tasks)


def _with_recipe_path(variant: Variant, place: str) -> Variant:
    name = variant.recipe
    return variant if name is None else replace(variant, recipe=_recipe_path(name, place))


def _with_repeated(variant: Variant, study: StudySpec) -> Variant:
    """A variant that repeats another, with all settings of the other and none of its own."""
    if not variant.again:
        return variant
    original, empty = study.variant(variant.again), Variant(variant.name, variant.says)
    copy = replace(original, name=variant.name, says=variant.says, again=original.name, paper={})
    if original.again or variant not in (copy, replace(empty, again=original.name)):
        raise UserError(
            f"{study.name}: variant {variant.name} repeats {original.name}; leave all but says out"
        )
    return copy


def _recipe_path(recipe: str, place: str) -> str:
    """The name of a recipe, or its path resolved from the folder of the study."""
    return _absolute_path(recipe, place) if recipe.endswith(".toml") else recipe


def _absolute_path(word: str, place: str) -> str:
    return str((Path(place).parent / word).resolve())


def _others(words: Iterable[str], tasks: Collection[str]) -> tuple[str, ...]:
    """The scores or fine-tuning settings that are not of some tasks."""
    return tuple(word for word in words if _task_of(word) not in tasks)


def _task_of(word: str) -> str:
    """The task of a score or a setting (TASK.METRIC, spread.TASK.METRIC, TASK.KEY=VALUE), or ""."""
    first, dot, rest = word.partition("=")[0].partition(".")
    if not dot:
        return ""
    return rest.partition(".")[0] if first in TUNINGS else first


def _measurable(measure: str, variants: Sequence[str], tasks: Collection[str]) -> bool:
    """Whether a measure can be taken in a study of these variants and tasks."""
    kind, _, name = measure.partition(".")
    if kind == "under":
        return name in variants
    return kind not in TUNINGS or _task_of(measure) in tasks


def tasks_of(words: Iterable[str]) -> list[str]:
    """The tasks of a command line: names or KIND=FOLDER, separated by commas or spaces."""
    tasks = [task for word in words for task in word.split(",") if task]
    return [
        f"{kind}={Path(folder).resolve()}" if sign else kind
        for kind, sign, folder in (task.partition("=") for task in tasks)
    ]
