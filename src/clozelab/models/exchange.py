"""A trained model out to transformers or ONNX, and a model of transformers in as a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clozelab.config import recipe as recipes
from clozelab.config import slots
from clozelab.contracts import Pooling
from clozelab.errors import UserError
from clozelab.files import new_folder, write_text
from clozelab.finetuning import loading
from clozelab.models.build import weights_of
from clozelab.models.generator import FOLDER, generator_of
from clozelab.models.history import adaptation, data, lineage, longest_block, metrics
from clozelab.models.interop import huggingface, onnx, sentence_transformers
from clozelab.models.interop.card import card
from clozelab.models.interop.exporting import to_transformers
from clozelab.models.interop.families import FAMILIES
from clozelab.models.interop.fitting import family_for, suits
from clozelab.models.interop.heads import TaskHead
from clozelab.models.interop.tokenizer import with_special_tokens
from clozelab.models.load import load
from clozelab.models.model import ORIGIN, Model
from clozelab.objectives import language_models
from clozelab.remote.access import is_url, shown
from clozelab.remote.cache import local_folder
from clozelab.remote.copies import check_new, put_folder
from clozelab.runs.directory import PLAN, TASK, Run, machine_facts
from clozelab.training import checkpoint

_MARKS = 3  # around two texts, with one between them


@dataclass(frozen=True)
class Exchanged:
    """What was written, in words, and what the user should know of it."""

    what: str
    notes: tuple[str, ...] = ()


def export(
    model: str | Model,
    out: str | Path,
    *,
    family: str | None = None,
    pool: Pooling | None = None,
    changes: Mapping[str, object] | None = None,
) -> Exchanged:
    """Write a Hugging Face directory; of a fine-tuned model with the head of its task.

    Where a vector stands for a text, as `pool` says or as the model was trained for, it is also one
    of sentence-transformers.

    The generator of a model has a directory of its own in it. At a URL, config.json comes last.
    What was changed in a model since it was trained goes into its card.
    """
    model = load(model) if isinstance(model, str) else model
    how: dict[str, Any] = {"family": family, "name": shown(str(out)), "changes": changes or {}}
    pool = _pooling(model, pool)
    with _new(str(out), last="config.json") as folder:
        return _with_generator(model, folder, pool=pool, **how)


def export_all(
    place: str, out: Path, *, family: str | None = None, pool: Pooling | None = None
) -> Exchanged:
    """Write every checkpoint of a run as a Hugging Face directory, all in one folder."""
    run = Run.open(local_folder(place))
    steps = sorted(run.checkpoints.glob("step-*"))
    if not steps:
        raise UserError(f"{shown(place)}: has no checkpoint; wait, or resume the run")
    notes = dict[str, None]()
    with new_folder(out) as folder:
        for step in steps:
            model, name = load(str(step)), f"{out}/{step.name}"
            how: dict[str, Any] = {"family": family, "name": name, "changes": {}}
            written = _with_generator(model, folder / step.name, pool=_pooling(model, pool), **how)
            notes |= dict.fromkeys(written.notes)
    if keep := run.machine().get("keep"):
        note = f"{place}: keeps its last {keep} checkpoints; pretrain with --keep 0 keeps all"
        notes[note] = None
    return Exchanged(f"{len(steps)} steps, each {written.what}", (*notes,))


def _pooling(model: Model, pool: Pooling | None) -> Pooling | None:
    """The pooling that sentence-transformers is told: as asked, or as the model was trained for."""
    if pool is None and model.pooling in sentence_transformers.MODES:
        pool = model.pooling
    sentence_transformers.check(pool, encoder=model.recipe.encoder, place=model.place)
    return pool


def _with_generator(
    model: Model,
    folder: Path,
    *,
    family: str | None,
    name: str,
    changes: Mapping[str, object],
    pool: Pooling | None,
) -> Exchanged:
    """Write a model and, in a folder of its own in that, its generator."""
    generator = generator_of(model)
    whole = _export(model, folder, family=family, name=name, changes=changes)
    if pool is not None:
        width, length = model.recipe.encoder.hidden_size, _length(model)
        sentence_transformers.write(folder, pool, width=width, length=length)
        whole = replace(whole, what=f"{whole.what}, and a model of sentence-transformers")
    if generator is None:
        return whole
    if model.origin is not None:
        generator = replace(
            generator, origin=replace(model.origin, heads=("masked_lm",), bare=False)
        )
    fits = suits(generator.recipe.encoder, FAMILIES["electra"], predicts=True)
    family = "electra" if fits else None
    name = f"{name}/{FOLDER}"
    part = _export(generator, folder / FOLDER, family=family, name=name, changes=changes)
    return Exchanged(f"{whole.what}, and {part.what} in {FOLDER}", whole.notes)


def _export(
    model: Model, out: Path, *, family: str | None, name: str, changes: Mapping[str, object]
) -> Exchanged:
    """Write one model; `name` is what its card calls it."""
    place = model.place
    task, origin = _head(model), model.origin
    if model.shift and task is None:
        raise UserError(
            f"{place}: masked_lm.shift = {model.shift} predicts a masked token from the place"
            " before it, and no class of transformers does; export to ONNX, or fine-tune it first"
        )
    vocabulary, weights = model.vocabulary, weights_of(model.module)
    model_type: str | None = None
    if origin is not None:  # it goes out as it came
        model_type = None if family else origin.model_type
        family = family or origin.family
        weights = {name: value.to(getattr(torch, origin.dtype)) for name, value in weights.items()}
    if family is None and task is not None:
        # An encoder of ELECTRA's shape may be ALBERT's; what it was pretrained on says which.
        heads = {slots.use("objectives", part) for part in model.recipe.objectives}
        detects = frozenset(heads & {"replaced_token"})
        family = family_for(model.recipe.encoder, detects, vocabulary, task=task)
    if origin is not None and family == origin.family and origin.pad is not None:
        vocabulary = replace(vocabulary, roles={**vocabulary.roles, "pad": origin.pad})
    if origin is not None and family == origin.family and FAMILIES[family].is_roberta:
        # Its config says from which id positions are counted, whatever the tokenizer pads with.
        offset = getattr(model.recipe.encoder, "position_offset", 1)
        vocabulary = replace(vocabulary, roles={**vocabulary.roles, "pad": offset - 1})
    exported = to_transformers(
        model.recipe.encoder,
        weights,
        vocabulary=vocabulary,
        length=_length(model),
        family=family,
        model_type=model_type,
        task=task,
        bare=origin is not None and origin.bare,
    )
    kind = exported.config["model_type"]
    if _doubled(model) and not FAMILIES[exported.family].is_roberta:
        raise UserError(
            f"{place}: was tuned with two separators between two texts, as roberta has them, and a"
            f" {kind} model of transformers has one; export to ONNX, whose tokenizer has them too"
        )
    shorter = _trained_length(model) if task is None else None
    facts = {"longest block": f"{shorter:,} tokens"} if shorter else {}
    # How a model of another library was tuned is not known.
    tuned = model.task if model.step else None
    text = card(
        name=name,
        title=model.recipe.title.rstrip("."),
        recipe_toml=recipes.to_toml(model.recipe),
        data={**data(model), **facts, **changes},
        metrics=metrics(model),
        family=kind,
        predicts=exported.predicts,
        task=task,
        lineage=lineage(model),
        task_toml=loading.to_toml(tuned) if tuned else "",
        adaptation=adaptation(model),
    )
    huggingface.write(
        out, exported, tokenizer=model.tokenizer, vocabulary=model.vocabulary, card=text
    )
    # A generator has a directory of its own; a projection and a decoder were of use in training.
    apart = {"heads.generator", "heads.contrastive", "heads.retromae"}
    parts = sorted({".".join(left.split(".")[:2]) for left in exported.left} - apart)
    notes = [f"left out, since {kind} has no place for it: {', '.join(parts)}"] if parts else []
    if shorter:
        notes.append(
            f"its {model.recipe.encoder.max_positions:,} positions were trained on blocks of up to"
            f" {shorter:,} tokens: so many the tokenizer says that a text may have"
        )
    what = f"{exported.config['architectures'][0]} of transformers"
    return Exchanged(what, (*model.notes, *notes))


@contextmanager
def _new(out: str, *, last: str) -> Iterator[Path]:
    """A folder that appears when all is in it; at a URL the file of a name then comes last."""
    if not is_url(out):
        with new_folder(Path(out)) as folder:
            yield folder
        return
    check_new(out)
    with TemporaryDirectory() as name:
        yield Path(name)
        put_folder(Path(name), out, last=last)


def export_graph(place: str, out: str | Path) -> Exchanged:
    """Write a folder with model.onnx and the tokenizer that goes before it."""
    onnx.require(shown(str(out)))
    model = load(place)
    shape, heads, task = model.recipe.encoder, model.module.heads, _head(model)
    # A head that reads queries is left out: a graph has none.
    names = [*language_models(heads, "masked", "causal"), "replaced_token"]
    names = names if task is None else [task.kind]
    head: Any = next((heads[name] for name in names if name in heads), None)
    family = family_for(shape, frozenset(heads), model.vocabulary, task=task)
    family = "roberta" if _doubled(model) else family  # by what stands between two texts
    tuned = task is not None and task.marked
    ready = with_special_tokens(model.tokenizer, family, model.vocabulary, tuned=tuned)
    with _new(str(out), last="model.onnx") as folder:
        outputs = onnx.export_onnx(
            folder / "model.onnx",
            model.module.encoder,
            shape=shape,
            head=head,
            shift=model.shift,
            task=task,
        )
        (folder / "tokenizer.json").write_text(ready.to_str(pretty=True), encoding="utf-8")
    return Exchanged(f"model.onnx, which puts out {' and '.join(outputs)}", model.notes)


def import_model(place: str, out: Path) -> Exchanged:
    """Make a run of a model of transformers, so that every command takes it."""
    path = local_folder(place)
    if (path / "recipe.toml").exists() or (path / PLAN).exists():
        raise UserError(f"{shown(place)}: is a run of clozelab already; use it as it is")
    model = load(place)
    text = recipes.to_toml(model.recipe)
    texts = {"recipe.toml": text, "tokenizer.json": model.tokenizer.to_str()}
    facts = {**machine_facts(), "data": [], "from": shown(place), "seed": 0}
    if model.origin is not None:
        texts[ORIGIN] = model.origin.to_json()
    if model.task is not None:
        texts[TASK] = loading.to_toml(model.task)
        facts["task"] = model.task.called
    with new_folder(out) as folder:
        run = Run.create(folder, recipe_toml=text, machine=facts)
        if model.task is not None:
            write_text(run.path / TASK, texts[TASK])
        weights = {name: value.detach() for name, value in model.module.named_parameters()}
        checkpoint.save(
            run.checkpoints, 0, weights=weights, tensors={}, state={}, texts=texts, keep=0
        )
    kind = "" if model.module.heads else ", an encoder alone, without a head that predicts"
    kind = f", tuned to {model.task.kind.name}" if model.task else kind
    return Exchanged(f"a run of the recipe {model.recipe.name}, at step 0{kind}", model.notes)


def _head(model: Model) -> TaskHead | None:
    """The head of the task that a model was fine-tuned for."""
    if model.task is None:
        return None
    return loading.outward(model.task, length=_length(model))


def _doubled(model: Model) -> bool:
    """Whether the model was tuned on two texts with two separators between them."""
    task = model.task
    if task is None or not task.kind.two_texts:
        return False
    return loading.reader_of(model, task).marks(2) > _MARKS


def _length(model: Model) -> int:
    """The most tokens a text may have."""
    if model.task is not None:
        return loading.reader_of(model, model.task).length
    most = model.recipe.encoder.max_positions or model.recipe.blocks.length
    return _trained_length(model) or most


def _trained_length(model: Model) -> int | None:
    """The longest block that the model was trained on, if it has positions for longer ones."""
    trained, most = longest_block(model), model.recipe.encoder.max_positions
    return trained if trained and most and trained < most else None
