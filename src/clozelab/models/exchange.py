"""Export a trained model to transformers or ONNX, and import a model of transformers as a run."""

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
from clozelab.models.interop.exporting import Exported, to_transformers
from clozelab.models.interop.families import FAMILIES
from clozelab.models.interop.fitting import family_for, suits
from clozelab.models.interop.heads import TaskHead
from clozelab.models.interop.tokenizer import family_tokenizer
from clozelab.models.load import load
from clozelab.models.model import ORIGIN, Model
from clozelab.nearest import counted
from clozelab.objectives import language_models
from clozelab.remote.access import is_url, shown
from clozelab.remote.cache import local_folder
from clozelab.remote.copies import check_new, put_folder
from clozelab.runs.directory import TASK, Run, is_run, machine_facts
from clozelab.training import checkpoint

_SINGLE_SEPARATOR = 3  # special tokens of two texts with a single separator


@dataclass(frozen=True)
class Exchanged:
    """A description of what was written, and notes for the user."""

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

    If texts are pooled, by `pool` or as the model was trained, sentence-transformers can open it
    too.

    A generator is written to a subdirectory. At a URL, config.json is written last. `changes` since
    the training go into the model's card.
    """
    model = load(model) if isinstance(model, str) else model
    with _output_folder(str(out), last="config.json") as folder:
        name, changes = shown(str(out)), changes or {}
        return _write(model, folder, family=family, name=name, changes=changes, pool=pool)


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
            model, name, target = load(str(step)), f"{out}/{step.name}", folder / step.name
            written = _write(model, target, family=family, name=name, changes={}, pool=pool)
            notes |= dict.fromkeys(written.notes)
    if keep := run.machine().get("keep"):
        note = f"{place}: keeps its last {keep} checkpoints; pretrain with --keep 0 keeps all"
        notes[note] = None
    return Exchanged(f"{counted(len(steps), 'step')}, each {written.what}", (*notes,))


def _write(
    model: Model,
    folder: Path,
    *,
    family: str | None,
    name: str,
    changes: Mapping[str, object],
    pool: Pooling | None,
) -> Exchanged:
    """Write a model and, in a subfolder, its generator.

    The pooling for sentence-transformers is the given one, or that of the model's training.
    """
    if pool is None and model.pooling in sentence_transformers.MODES:
        pool = model.pooling
    sentence_transformers.check(pool, encoder=model.recipe.encoder, place=model.place)
    generator = generator_of(model)
    exported = _export(model, folder, family=family, name=name, changes=changes)
    if pool is not None:
        width, length = model.recipe.encoder.hidden_size, model.text_length or _length(model)
        sentence_transformers.write(folder, pool, width=width, length=length)
        exported = replace(exported, what=f"{exported.what}, and a model of sentence-transformers")
    if generator is None:
        return exported
    fits = suits(generator.recipe.encoder, FAMILIES["electra"], predicts=True)
    family = "electra" if fits else None
    name = f"{name}/{FOLDER}"
    beside = _export(generator, folder / FOLDER, family=family, name=name, changes=changes)
    return Exchanged(f"{exported.what}, and {beside.what} in {FOLDER}", exported.notes)


def _export(
    model: Model, out: Path, *, family: str | None, name: str, changes: Mapping[str, object]
) -> Exchanged:
    """Write one model; `name` is its name on its card."""
    exported = _as_transformers(model, family)
    kind, task = exported.config["model_type"], exported.task
    if _doubles_separator(model) and not FAMILIES[exported.family].is_roberta:
        raise UserError(
            f"{model.place}: was fine-tuned with two separators between two texts, as in roberta,"
            f" but a {kind} model of transformers has one; export to ONNX, which keeps both"
        )
    shorter = _trained_length(model) if task is None else None
    facts = {"longest block": f"{shorter:,} tokens"} if shorter else {}
    # It is not known how an imported model was fine-tuned.
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
        out,
        exported,
        tokenizer=model.tokenizer,
        vocabulary=model.vocabulary,
        card=text,
        separators=model.separators,
    )
    # A generator is exported separately; projection and decoder are needed only in training.
    expected_left = {"heads.generator", "heads.contrastive", "heads.retromae"}
    parts = sorted({".".join(left.split(".")[:2]) for left in exported.left} - expected_left)
    notes = [f"left out, because {kind} has no place for it: {', '.join(parts)}"] if parts else []
    if shorter:
        notes.append(
            f"its {model.recipe.encoder.max_positions:,} positions were trained on blocks of"
            f" up to {shorter:,} tokens; the tokenizer's maximum length is set to that"
        )
    what = f"{exported.config['architectures'][0]} of transformers"
    return Exchanged(what, (*model.notes, *notes))


def _as_transformers(model: Model, family: str | None) -> Exported:
    """The config and tensors of a class of transformers; of an import those that it came with."""
    encoder, task, origin = model.recipe.encoder, _task_head(model), model.origin
    if model.shift and task is None:
        raise UserError(
            f"{model.place}: masked_lm.shift = {model.shift} predicts a masked token from the"
            " previous position, which no class of transformers does; export to ONNX, or"
            " fine-tune it first"
        )
    vocabulary, weights = model.vocabulary, weights_of(model.module)
    model_type: str | None = None
    if origin is not None:
        model_type = None if family else origin.model_type
        family = family or origin.family
        weights = {name: value.to(getattr(torch, origin.dtype)) for name, value in weights.items()}
        if family == origin.family:
            pad = origin.pad
            if FAMILIES[family].is_roberta:  # its positions are counted from this id
                pad = getattr(encoder, "position_offset", 1) - 1
            if pad is not None:
                vocabulary = replace(vocabulary, roles={**vocabulary.roles, "pad": pad})
    if family is None and task is not None:
        # ELECTRA and ALBERT may have encoders of one shape; the objectives tell them apart.
        heads = {slots.use("objectives", part) for part in model.recipe.objectives}
        family = family_for(encoder, frozenset(heads & {"replaced_token"}), vocabulary, task=task)
    return to_transformers(
        encoder,
        weights,
        vocabulary=vocabulary,
        length=_length(model),
        family=family,
        model_type=model_type,
        task=task,
        bare=origin is not None and origin.bare,
    )


@contextmanager
def _output_folder(out: str, *, last: str) -> Iterator[Path]:
    """A folder that appears when it is complete; at a URL the file `last` is written last."""
    if not is_url(out):
        with new_folder(Path(out)) as folder:
            yield folder
        return
    check_new(out)
    with TemporaryDirectory() as name:
        yield Path(name)
        put_folder(Path(name), out, last=last)


def export_graph(place: str, out: str | Path) -> Exchanged:
    """Write a folder with model.onnx and its tokenizer."""
    onnx.require(shown(str(out)))
    model = load(place)
    shape, heads, task = model.recipe.encoder, model.module.heads, _task_head(model)
    # XLNet's head is left out: the graph has no query stream.
    names = [*language_models(heads, "masked", "causal"), "replaced_token"]
    names = names if task is None else [task.kind]
    head: Any = next((heads[name] for name in names if name in heads), None)
    family = family_for(shape, frozenset(heads), model.vocabulary, task=task)
    family = "roberta" if _doubles_separator(model) else family  # it has two separators
    tuned = task is not None and task.special_tokens
    ready = family_tokenizer(
        model.tokenizer, family, model.vocabulary, tuned=tuned, separators=model.separators
    )
    with _output_folder(str(out), last="model.onnx") as folder:
        outputs = onnx.export_onnx(
            folder / "model.onnx",
            model.module.encoder,
            shape=shape,
            head=head,
            shift=model.shift,
            task=task,
        )
        (folder / "tokenizer.json").write_text(ready.to_str(pretty=True), encoding="utf-8")
    return Exchanged(f"model.onnx with the outputs {' and '.join(outputs)}", model.notes)


def import_model(place: str, out: Path) -> Exchanged:
    """Write a model of transformers as a run, which every command can read."""
    if is_run(local_folder(place)):
        raise UserError(f"{shown(place)}: is already a run of clozelab; use it directly")
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
    kind = "" if model.module.heads else ", an encoder without a prediction head"
    kind = f", fine-tuned for {model.task.kind.name}" if model.task else kind
    return Exchanged(f"a run of the recipe {model.recipe.name}, at step 0{kind}", model.notes)


def _task_head(model: Model) -> TaskHead | None:
    """The head of the task that a model was fine-tuned for."""
    if model.task is None:
        return None
    return loading.outward(model.task, length=_length(model))


def _doubles_separator(model: Model) -> bool:
    """Whether the model was fine-tuned with two separators between two texts."""
    task = model.task
    if task is None or not task.kind.two_texts or model.separators is not None:
        return False
    return loading.reader_of(model, task).num_special_tokens(2) > _SINGLE_SEPARATOR


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
