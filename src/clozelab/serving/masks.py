"""The masks of a recipe on a text, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.nearest import remedy
from clozelab.pretraining import masks
from clozelab.pretraining.shown_masks import DECISIONS, UNITS, known_units, shown_blocks
from clozelab.runs.directory import Run
from clozelab.serving.folders import Folders
from clozelab.text.store import Corpus

MOST_EPOCHS = 12


def choices(folders: Folders) -> dict[str, Any]:
    """The recipes by name, those of the runs here, and the corpora."""
    names = [{"name": name, "title": recipes.read(name).title} for name in recipes.names()]
    runs = [{"name": folder.name, "title": "of a run"} for folder in folders.of("run")]
    return {"recipes": names + runs, "corpora": [one.name for one in folders.of("corpus")]}


def masked(
    folders: Folders,
    *,
    recipe: str,
    text: str,
    corpus: str | None,
    epochs: int,
    seed: int,
    changes: Sequence[str],
) -> dict[str, Any]:
    """The tokens of a text in each of the first epochs, with their masks."""
    if not 1 <= epochs <= MOST_EPOCHS:
        raise UserError(f"{epochs} epochs: from 1 to {MOST_EPOCHS}")
    read = _read_recipe(folders, recipe).override(changes)
    store = Corpus.open(folders.named(corpus, "corpus").path, trusting=True) if corpus else None
    laid = masks.lay(text, read, store)
    tokenizer = masks.tokenizer_of(read, store, text=text)
    hidden = masks.masked(laid, read, epochs=list(range(epochs)), seed=seed)
    return {
        "name": read.name,
        "title": read.title,
        "ordered": read.masking.provides >= {"order_of_prediction"},
        "hides": bool(read.masking.provides),
        "copies": read.corruption.copies,
        "units": [_unit_json(kind, texts) for kind, texts in known_units(laid, read, tokenizer)],
        "free": int((~laid.blocks.fixed).sum()),
        "epochs": [
            {
                "epoch": each.epoch,
                "copy": read.corruption.copy(each.epoch) if read.corruption.copies else None,
                "hidden": len(each.hidden.positions),
                "spans": len(each.hidden.spans),
                "levels": each.levels,
                "blocks": [
                    [_token_json(token) for token in block]
                    for block in shown_blocks(laid, each, read, tokenizer)
                ],
            }
            for each in hidden
        ],
    }


def _read_recipe(folders: Folders, name: str) -> Recipe:
    """A packaged recipe, or that of a listed run; never another file."""
    if name in recipes.names():
        return recipes.read(name)
    for folder in folders.of("run"):
        if folder.name == name:
            return Run.open(folder.path).recipe()
    raise UserError(f"recipe {name}: is unknown; {remedy(name, recipes.names())}")


def _token_json(token: Any) -> dict[str, Any]:
    """The fields of a token that are set."""
    facts = {name: value for name, value in asdict(token).items() if value not in (None, "", False)}
    if token.decision is not None:
        facts["decision"] = DECISIONS[token.decision]
    return facts


def _unit_json(kind: str, texts: list[str] | None) -> dict[str, Any]:
    name, remedy_words = UNITS[kind]
    return {"name": name, "texts": texts, "remedy": remedy_words}
