"""Open a trained model: a run, one of its checkpoints, a Hugging Face directory or a hub name.

Of a folder with several fine-tunings it is the one that did best on the dev set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from clozelab import recipe as recipes
from clozelab.contracts import UserError, Vocabulary
from clozelab.encoder import Transformer
from clozelab.interop.families import bring
from clozelab.interop.huggingface import read
from clozelab.recipe import Recipe, slots
from clozelab.records import PLAN, Run
from clozelab.runs.model import Model, build
from clozelab.runs.saving import set_weights
from clozelab.runs.tasks import taskfile
from clozelab.runs.tasks.reader import TaskReader
from clozelab.runs.tasks.taskfile import Assignment
from clozelab.runs.tasks.taskhead import inward
from clozelab.runs.tasks.tuned import Tuned
from clozelab.runs.tasks.tuned import build as tuned_model
from clozelab.text.vocabulary import describe
from clozelab.text.vocabulary import load as load_tokenizer
from clozelab.training.checkpoint import CHECKSUMS, Checkpoint, at, newest

_LENGTH = 512  # of blocks, where nothing sets an end to them
# Whose recipe a model of another library is taken for.
_RECIPES = {
    "distilbert": "bert",
    "openai-gpt": "gpt",
    "gpt2": "gpt",
    "roberta-prelayernorm": "swift",
}


@dataclass(frozen=True)
class Loaded:
    """A model with what made it."""

    place: str
    recipe: Recipe
    tokenizer: Tokenizer
    model: Model | Tuned  # in eval mode
    step: int = 0
    notes: tuple[str, ...] = ()
    task: Assignment | None = None  # what it was fine-tuned for

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids the model deals in."""
        return describe(self.tokenizer)

    def reader(self, length: int) -> TaskReader:
        """Texts as the model reads them, in blocks of that length at most.

        Each is made once: its tables take longer to make than a text takes to be read.
        """
        return self._readers.setdefault(length, TaskReader(self.recipe, self.tokenizer, length))

    @cached_property
    def _readers(self) -> dict[int, TaskReader]:
        return {}

    def predict(self, inputs: Sequence[Any], *, device: str | None = None) -> list[Any]:
        """What a fine-tuned model says of each input, as `clozelab predict` does.

        An input is a text or a pair of texts (classify, regress), a sentence or its words (tag), a
        question and its passage (answer), a text and its continuations (choose), or a document in
        sentences of words (coreference).
        """
        from clozelab.runs.tasks.predict import predict  # which opens models itself

        if isinstance(inputs, str):
            raise UserError("predict takes a list of inputs: put the text into one, as [text]")
        return predict(self, inputs, device=device)


def load(place: str) -> Loaded:
    """The model at a place."""
    path = Path(place)
    if (path / CHECKSUMS).exists():
        return _checkpoint(at(path), ())
    if (path / "recipe.toml").exists():
        found, passed = newest(path / "checkpoints")
        if found is None:
            raise _weightless(path, passed)
        return _checkpoint(found, tuple(passed))
    if (path / PLAN).exists():
        return load(str(path / _best(path)))
    return _foreign(place)


def pretrained(given: Loaded) -> Model:
    """The model with its objectives' heads; refused if it was fine-tuned and has none."""
    if isinstance(given.model, Model):
        return given.model
    told = given.task.name if given.task else "a task"
    raise UserError(
        f"{given.place}: is fine-tuned for {told}; name the pretrained model that it came from"
    )


def _weightless(run: Path, passed: list[str]) -> UserError:
    """Why a run has no model to open, and what to do."""
    if Run(run).result() is None:
        return UserError(f"{run}: the run has no whole checkpoint yet; wait, or resume it")
    why = passed[0] if passed else "its checkpoints are gone"
    return UserError(
        f"{run}: is done, but {why}; remove {run / 'result.json'} and run the same command again"
    )


def _best(folder: Path) -> str:
    """The fine-tuning that did best, by the result that tells of them all."""
    result = Run(folder).result()
    if result is None:
        raise UserError(
            f"{folder}: its fine-tunings are not all done; run the same finetune command again,"
            " or name one of the folders in it"
        )
    if "best" not in result:
        raise UserError(
            f"{folder / 'result.json'}: names no best run; remove it and run the same finetune"
            " command again"
        )
    return str(result["best"])


def _checkpoint(found: Checkpoint, notes: tuple[str, ...]) -> Loaded:
    recipe = recipes.parse(found.text("recipe.toml"), str(found.path / "recipe.toml"))
    tokenizer = Tokenizer.from_str(found.text("tokenizer.json"))
    if (found.path / taskfile.FILE).exists():
        text, place = found.text(taskfile.FILE), str(found.path / taskfile.FILE)
        task = taskfile.parse(text, place)
        tuned = tuned_model(recipe, task.kind, task.tuning, seed=0)
        set_weights(tuned, found.weights())
        return Loaded(str(found.path), recipe, tokenizer, tuned.eval(), found.step, notes, task)
    model = build(recipe, recipe.tokenizer.vocabulary, seed=0)
    # What compared a student with a teacher of another width is idle without one.
    weights = {n: w for n, w in found.weights().items() if not n.startswith("heads.distillation.")}
    set_weights(model, weights)
    return Loaded(str(found.path), recipe, tokenizer, model.eval(), found.step, notes)


def _foreign(place: str) -> Loaded:
    """A model of transformers, as the recipe of its family with its own sizes and heads."""
    files = read(place)
    found = bring(files.config, files.tensors)
    tokenizer = load_tokenizer(files.folder)
    known = recipes.read(_recipe(found.family, found.encoder))
    size = len(found.weights["encoder.embeddings.words.weight"])
    kind: Any = known.tokenizer
    parts = [p for p in known.objectives if slots.use("objectives", p) in found.heads]
    recipe = replace(
        within(known, found.encoder),
        tokenizer=replace(kind, vocabulary=size),
        # A bare encoder came without a head: it gets fresh ones.
        objectives=tuple(parts) or known.objectives,
    )
    task: Assignment | None = None
    model: Model | Tuned
    if found.task is None:
        model = build(recipe, size, seed=0)
    else:
        most = found.encoder.positions if isinstance(found.encoder, Transformer) else _LENGTH
        task = inward(found.task, place=place, length=most)
        model = tuned_model(recipe, task.kind, task.tuning, seed=0)
    fresh = {name: value.detach() for name, value in model.named_parameters()}
    missing = sorted({name.rsplit(".", 2)[0] for name in fresh.keys() - found.weights.keys()})
    notes = [f"{place}: {', '.join(missing)} is not in it and begins fresh"] if missing else []
    left = sorted({*found.left, *(found.weights.keys() - fresh.keys())})
    notes += [f"{place}: {', '.join(left)} left behind"] if left else []
    set_weights(model, {**fresh, **{n: w for n, w in found.weights.items() if n in fresh}})
    return Loaded(place, recipe, tokenizer, model.eval(), 0, tuple(notes), task)


def _recipe(family: str, encoder: Any) -> str:
    """The recipe that a model of that family most likely came from."""
    if family == "bert" and encoder.types < 2:  # it never saw a second segment
        return "roberta"
    return _RECIPES.get(family, family)


def within(recipe: Recipe, encoder: Any) -> Recipe:
    """The recipe with another encoder, its blocks no longer than that encoder's positions."""
    blocks: Any = recipe.blocks
    schedule = recipe.schedule
    if isinstance(encoder, Transformer) and blocks.length > encoder.positions:
        blocks = replace(blocks, length=encoder.positions)
    if schedule.phases and max(length for length, _ in schedule.phases) != blocks.length:
        schedule = replace(schedule, phases=())
    return replace(recipe, encoder=encoder, blocks=blocks, schedule=schedule)
