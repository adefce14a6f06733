"""What is measured: an order, the rows of its table, and the recipe of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clozelab import data
from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.sizes import DIAL
from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.pretraining.fitting import fitted
from clozelab.runs.events import drained
from clozelab.runs.machine import Machine
from clozelab.text.building import BuildOptions, choose_tokenizer, cores
from clozelab.text.store import Corpus
from clozelab.text.store.build import build
from clozelab.text.store.corpus import Store, open_stores

ROUNDS = 5  # every contender has its turn so many times: machines drift
TURN = 2.0  # seconds of ours at least, unless told how many steps: shorter turns are not stable
_MOST = 1_000_000  # steps; a bench ends long before, whatever its turns are
_TOKENS = {"cpu": 4096, "cuda": 32_768}  # of a step
_VOCABULARY = 8000  # of the embedded corpus


@dataclass(frozen=True)
class Order:
    """What a user asks for; None is whatever suits the machine."""

    recipes: tuple[str, ...] = ()
    data: tuple[str, ...] = ()  # none: the embedded text
    size: str | None = None
    sequences: int | None = None
    length: int | None = None
    steps: int | None = None  # that are timed, for each contender; None: turns of two seconds
    against: str | None = None
    settings: tuple[str, ...] = ()
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        for name in ("sequences", "length", "steps"):
            if getattr(self, name) == 0:
                raise UserError(f"--{name} 0: must be at least 1")

    @property
    def lap(self) -> int | None:
        """The timed steps of one turn, where they are told."""
        return -(-self.steps // ROUNDS) if self.steps else None


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    recipe: str
    size: str | None = None  # None: the recipe's own
    length: int | None = None
    sequences: int | None = None


_USUAL = {
    "cpu": (Row("roberta", "mini"), Row("roberta", "tiny")),
    "cuda": (
        Row("roberta", "base"),
        Row("bert", "base", length=128),
        Row("roberta", "small", sequences=512),
        Row("roberta", "mini", sequences=512),
    ),
}


def rows(order: Order, device: str) -> tuple[Row, ...]:
    """The rows of an order: its recipes, or a few that suit the device."""
    if order.recipes or order.size:
        size = order.size or ("mini" if device == "cpu" else None)
        found = tuple(Row(name, size) for name in order.recipes or ("roberta",))
    else:
        found = _USUAL[device]
    given = {"length": order.length, "sequences": order.sequences}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value}
    return tuple(replace(row, **asked) for row in found)


def recipe_of(row: Row, order: Order, corpus: Corpus, *, device: str) -> Recipe:
    """The recipe of a row: one length, one size of step, and no teacher.

    At a released size the table has the recipe's own rows, though the corpus may have fewer.
    """
    given = recipes.read(row.recipe, size=row.size, overrides=order.settings)
    blocks: Any = given.blocks
    length = row.length or blocks.length
    sequences = row.sequences or max(1, _TOKENS[device] // length)
    stream = "stream" in blocks.provides
    blocks = replace(
        blocks, length=length, **({"rows": sequences, "reuse": length // 2} if stream else {})
    )
    schedule = replace(given.schedule, sequences=sequences, phases=(), ramp=())
    shaped = replace(
        given,
        blocks=blocks,
        objectives=tuple(part for part in given.objectives if not part.needs_teacher),
        schedule=schedule.fitted(_MOST),
    )
    made = fitted(shaped, corpus)
    tokenizer: Any = made.tokenizer
    own = 0 if row.size in DIAL else given.tokenizer.vocabulary
    most = max(tokenizer.vocabulary, own)
    return replace(made, tokenizer=replace(tokenizer, vocabulary=most))


@contextmanager
def text(order: Order) -> Iterator[list[Store]]:
    """The stores of an order; the embedded text is built for it and gone afterwards."""
    if order.data:
        yield open_stores(order.data)
        return
    with TemporaryDirectory() as folder:
        building = build(
            [str(data.corpus())],
            Path(folder) / "corpus",
            tokenizer=choose_tokenizer(vocabulary=_VOCABULARY),
            options=BuildOptions(workers=cores()),
            counts=Counts(),
        )
        yield [(drained(building), 1.0)]
