"""What to measure: a request, the rows of its table, and the recipe of each."""

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
from clozelab.ranges import CheckedOptions, PositiveInt
from clozelab.runs.events import drained
from clozelab.runs.machine import Machine
from clozelab.text.building import BuildOptions, choose_tokenizer, cores
from clozelab.text.store import Corpus
from clozelab.text.store.build import build
from clozelab.text.store.corpus import Store, open_stores

ROUNDS = 5  # turns of each contender, since machines drift
TURN = 2.0  # seconds of our turn at least, unless steps are given: shorter ones vary
_SCHEDULE_STEPS = 1_000_000  # steps of the schedule, more than any bench takes
_TOKENS = {"cpu": 4096, "cuda": 32_768}  # of a step
_VOCABULARY = 8000  # of the embedded corpus


@dataclass(frozen=True)
class BenchRequest(CheckedOptions):
    """The options of a user; None is what suits the machine."""

    recipes: tuple[str, ...] = ()
    data: tuple[str, ...] = ()  # none: the embedded text
    size: str | None = None
    sequences: PositiveInt | None = None
    length: PositiveInt | None = None
    steps: PositiveInt | None = None  # timed, of each contender; None: turns of 2 seconds
    against: str | None = None
    settings: tuple[str, ...] = ()
    machine: Machine = field(default_factory=Machine)

    @property
    def steps_a_turn(self) -> int | None:
        """The timed steps of one turn; None: as many as take two seconds."""
        return -(-self.steps // ROUNDS) if self.steps else None


@dataclass(frozen=True)
class BenchRow:
    """One line of the table."""

    recipe: str
    size: str | None = None  # None: the recipe's own
    length: int | None = None
    sequences: int | None = None


_DEFAULT_ROWS = {
    "cpu": (BenchRow("roberta", "mini"), BenchRow("roberta", "tiny")),
    "cuda": (
        BenchRow("roberta", "base"),
        BenchRow("bert", "base", length=128),
        BenchRow("roberta", "small", sequences=512),
        BenchRow("roberta", "mini", sequences=512),
    ),
}


def rows(request: BenchRequest, device: str) -> tuple[BenchRow, ...]:
    """The rows of a request: its recipes, or a few that suit the device."""
    if request.recipes or request.size:
        size = request.size or ("mini" if device == "cpu" else None)
        table = tuple(BenchRow(name, size) for name in request.recipes or ("roberta",))
    else:
        table = _DEFAULT_ROWS[device]
    shape: dict[str, Any] = {"length": request.length, "sequences": request.sequences}
    shape = {name: value for name, value in shape.items() if value}
    return tuple(replace(row, **shape) for row in table)


def recipe_of(row: BenchRow, request: BenchRequest, corpus: Corpus, *, device: str) -> Recipe:
    """The recipe of a row: one length, one batch size, and no teacher.

    At a released size the vocabulary is at least the recipe's, though the corpus may have fewer.
    """
    recipe = recipes.read(row.recipe, size=row.size, overrides=request.settings)
    objectives = tuple(part for part in recipe.objectives if not part.needs_teacher)
    if not objectives:
        raise UserError(
            f"{row.recipe}: needs a teacher, which bench does not have; name another recipe"
        )
    blocks: Any = recipe.blocks
    length = row.length or blocks.length
    sequences = row.sequences or max(1, _TOKENS[device] // length)
    stream = {"rows": sequences, "reuse": -(-length // 2)} if "stream" in blocks.provides else {}
    schedule = replace(recipe.schedule, batch_size=sequences, phases=(), ramp=())
    shaped = replace(
        recipe,
        blocks=replace(blocks, length=length, **stream),
        objectives=objectives,
        schedule=schedule.fitted(_SCHEDULE_STEPS),
    )
    measured = fitted(shaped, corpus)
    tokenizer: Any = measured.tokenizer
    released = 0 if row.size in DIAL else recipe.tokenizer.vocabulary
    vocabulary = max(tokenizer.vocabulary, released)
    return replace(measured, tokenizer=replace(tokenizer, vocabulary=vocabulary))


@contextmanager
def text(request: BenchRequest) -> Iterator[list[Store]]:
    """The corpora of a request; the embedded text is built into a temporary folder."""
    if request.data:
        yield open_stores(request.data)
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
