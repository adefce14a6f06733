"""A trained model out to transformers or ONNX, and a model of transformers in as a run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import getpid
from pathlib import Path
from typing import Any

from torch import Tensor

from clozelab import recipe as recipes
from clozelab.contracts import UserError
from clozelab.encoder import Relative, Transformer
from clozelab.interop import families, huggingface
from clozelab.interop.card import card
from clozelab.interop.fitting import fitting
from clozelab.interop.onnx import export_onnx
from clozelab.interop.tokenizer import dressed
from clozelab.records import Run, machine_facts
from clozelab.runs.load import Loaded, load
from clozelab.training import checkpoint


@dataclass(frozen=True)
class Handed:
    """What was written, in words, and what the user should know of it."""

    what: str
    notes: tuple[str, ...] = ()


def export(place: str, out: Path, *, family: str | None = None) -> Handed:
    """Write a Hugging Face directory."""
    given = load(place)
    found = families.export(
        given.recipe.encoder,
        _weights(given),
        vocabulary=given.vocabulary,
        length=_length(given),
        family=family,
    )
    kind = found.config["model_type"]
    text = card(
        name=str(out),
        title=given.recipe.title.rstrip("."),
        recipe_toml=recipes.to_toml(given.recipe),
        data=_data(given),
        metrics=_metrics(given),
        family=kind,
    )
    huggingface.write(out, found, tokenizer=given.tokenizer, vocabulary=given.vocabulary, card=text)
    parts = sorted({".".join(name.split(".")[:2]) for name in found.left})
    notes = (f"left out, since {kind} has no place for it: {', '.join(parts)}",) if parts else ()
    return Handed(f"{found.config['architectures'][0]} of transformers", given.notes + notes)


def export_graph(place: str, out: Path) -> Handed:
    """Write a folder with model.onnx and the tokenizer that goes before it."""
    given = load(place)
    encoder, heads = given.recipe.encoder, given.model.heads
    # Of XLNet's head the states are no use: they have seen what they would predict.
    names = () if isinstance(encoder, Relative) else ("masked_lm", "causal_lm")
    head: Any = next((heads[name] for name in names if name in heads), None)
    with _whole(out) as folder:
        outputs = export_onnx(folder / "model.onnx", given.model.encoder, shape=encoder, head=head)
        family = fitting(encoder, frozenset(heads), given.vocabulary)
        dressed(given.tokenizer, family, given.vocabulary).save(str(folder / "tokenizer.json"))
    return Handed(f"model.onnx, which puts out {' and '.join(outputs)}", given.notes)


def bring(place: str, out: Path) -> Handed:
    """Make a run of a model of transformers, so that every command takes it."""
    path = Path(place)
    if (path / "recipe.toml").exists():
        raise UserError(f"{place}: is a run of clozelab already; use it as it is")
    given = load(place)
    text = recipes.to_toml(given.recipe)
    facts = {**machine_facts(), "data": [], "from": place, "seed": 0}
    run = Run.create(out, recipe_toml=text, machine=facts)
    checkpoint.save(
        run.checkpoints,
        0,
        weights=_weights(given),
        tensors={},
        state={},
        texts={"recipe.toml": text, "tokenizer.json": given.tokenizer.to_str()},
        keep=0,
    )
    return Handed(f"a run of the recipe {given.recipe.name}, at step 0", given.notes)


def _weights(given: Loaded) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in given.model.named_parameters()}


def _length(given: Loaded) -> int:
    """The most tokens a text may have."""
    encoder = given.recipe.encoder
    return encoder.positions if isinstance(encoder, Transformer) else given.recipe.blocks.length


def _run(given: Loaded) -> Run | None:
    """The run that a checkpoint belongs to, if it lies in one."""
    folder = Path(given.place)
    inside = (folder / checkpoint.CHECKSUMS).is_file()
    run = folder.parent.parent
    return Run(run) if inside and (run / "machine.toml").is_file() else None


def _data(given: Loaded) -> dict[str, object]:
    """What the model learned from, as its run tells."""
    run = _run(given)
    facts = run.machine() if run else {}
    told: dict[str, object] = {"corpora": ", ".join(map(str, facts.get("data") or []))}
    told |= {"from": facts.get("from"), "teacher": facts.get("teacher"), "seed": facts.get("seed")}
    return {name: fact for name, fact in told.items() if fact not in (None, "")}


def _metrics(given: Loaded) -> dict[str, object]:
    """What came out at the end of the run, if this is its end."""
    run = _run(given)
    result = (run.result() if run else None) or {}
    if result.get("steps") != given.step:
        return {"steps": given.step} if given.step else {}
    return dict(_flat(result))


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Tables inside tables as one, names joined."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name.replace('_', ' ')} ")
        else:
            yield f"{before}{name.replace('_', ' ')}", value


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder that appears when all is in it, or not at all."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: is there already and not empty; give another place or empty it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{getpid()}")
    try:
        beside.mkdir()
        yield beside
        if folder.exists():
            folder.rmdir()
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
