"""Open a trained model: a run, one of its checkpoints, a Hugging Face directory or a hub name.

Of a folder with several fine-tunings it is the one that did best on the dev set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from clozelab.config import recipe as recipes
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.layers import Linear, unset_weights
from clozelab.models.build import PretrainingModel, build
from clozelab.models.generator import FOLDER, WithGenerator, joined
from clozelab.models.interop import huggingface
from clozelab.models.interop.families import FAMILIES
from clozelab.models.interop.importing import Imported, from_transformers
from clozelab.models.model import ORIGIN, Model, Origin
from clozelab.objectives import PARTS, CausalLm, Objective
from clozelab.remote.access import is_url
from clozelab.remote.cache import local_folder
from clozelab.runs.directory import PLAN, TASK, Run
from clozelab.runs.saving import set_weights
from clozelab.text.loading import load as load_tokenizer
from clozelab.text.vocabulary import describe
from clozelab.text.vocabulary import within as in_table
from clozelab.training.checkpoint import CHECKSUMS, Checkpoint, newest, open_checkpoint

if TYPE_CHECKING:
    from clozelab.finetuning.task import TunedTask
    from clozelab.finetuning.tuned import Tuned

_LENGTH = 512  # of blocks, where nothing sets an end to them
_NAMED = 8  # modules of others that are named one by one


def load(place: str) -> Model:
    """The model at a place."""
    path = local_folder(place)
    if (path / CHECKSUMS).exists():
        return _checkpoint(open_checkpoint(path), ())
    if (path / "recipe.toml").exists():
        checkpoint, passed = newest(path / "checkpoints")
        if checkpoint is not None:
            return _checkpoint(checkpoint, tuple(passed))
        if Run(path).result() is None:
            raise UserError(f"{path}: the run has no whole checkpoint yet; wait, or resume it")
        again = f"train it again by clozelab pretrain --resume {path}"
        if (path / TASK).exists():
            again = f"remove {path / 'result.json'} and run the same finetune command again"
        problem = passed[0].partition(";")[0] if passed else "its checkpoints are gone"
        raise UserError(f"{path}: is done, but {problem}; {again}")
    if (path / PLAN).exists():
        return load(str(path / best_tuning(path)))
    return _foreign(str(path) if is_url(place) else place)


def pretrained(model: Model) -> PretrainingModel:
    """Its weights with its objectives' heads; refused if it was fine-tuned and has none."""
    if isinstance(model.module, PretrainingModel):
        return model.module
    task = model.task.called if model.task else "a task"
    raise UserError(
        f"{model.place}: is fine-tuned for {task}; name the pretrained model that it came from"
    )


def best_tuning(folder: Path) -> str:
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


def _checkpoint(checkpoint: Checkpoint, notes: tuple[str, ...]) -> Model:
    recipe = recipes.parse(checkpoint.text("recipe.toml"), str(checkpoint.path / "recipe.toml"))
    tokenizer = Tokenizer.from_str(checkpoint.text("tokenizer.json"))
    recipe = recipe.reading(tokenizer, vocabulary=recipe.tokenizer.vocabulary)
    origin: Origin | None = None
    if (checkpoint.path / ORIGIN).exists():
        origin = Origin.parse(checkpoint.text(ORIGIN), str(checkpoint.path / ORIGIN))
    task: TunedTask | None = None
    if (checkpoint.path / TASK).exists():
        from clozelab.finetuning.loading import parse

        task = parse(checkpoint.text(TASK), str(checkpoint.path / TASK))
    # What compared a student with a teacher of another width is idle without one.
    parts = [slots.use("objectives", part) for part in recipe.objectives if part.needs_teacher]
    idle = tuple(f"heads.{part}." for part in parts)
    weights = {name: w for name, w in checkpoint.weights().items() if not name.startswith(idle)}
    module = shell(recipe, task, origin, weights)
    set_weights(module, weights)
    place = str(checkpoint.path)
    return Model(place, recipe, tokenizer, module.eval(), checkpoint.step, notes, task, origin)


def shell(
    recipe: Recipe, task: TunedTask | None, origin: Origin | None, weights: Mapping[str, Tensor]
) -> PretrainingModel | Tuned:
    """The module that some weights belong to, as it was trained or as it came; still without."""
    module: PretrainingModel | Tuned
    if task is not None:
        from clozelab.finetuning.loading import build as tuned_model

        with unset_weights():
            module = tuned_model(recipe, task.kind, task.tuning, seed=0)
    else:
        with unset_weights():
            module = build(recipe, recipe.tokenizer.vocabulary, seed=0)
        if origin is not None:
            module.keep_heads(origin.heads)
        if "idle_bias" in weights:
            module.idle_bias = nn.Parameter(torch.empty_like(weights["idle_bias"]))
    if "pooler.weight" in weights:
        module.pooler = Linear(*weights["pooler.weight"].shape)
    return module


def _foreign(place: str) -> Model:
    """A model of transformers, as the recipe of its family with its own sizes and heads."""
    files = huggingface.read(place)
    tokenizer = load_tokenizer(files.folder)
    try:
        imported = from_transformers(files.config, files.tensors)
        generator = _generator(files.folder, imported)
        rows = len(imported.weights["encoder.embeddings.words.weight"])
        tokenizer, beyond = in_table(tokenizer, rows)
        recipe = _taken_for(imported, generator).reading(tokenizer, vocabulary=rows)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    size = describe(tokenizer).size
    if size > rows:
        raise UserError(
            f"{place}: the tokenizer has ids up to {size - 1:,} and the model {rows:,} words;"
            " resize the model's embeddings to the tokenizer, and save both"
        )
    # Single precision where there are several, which loses none of them.
    dtypes = {tensor.dtype for tensor in files.tensors.values() if tensor.is_floating_point()}
    dtype = str(dtypes.pop() if len(dtypes) == 1 else torch.float32).removeprefix("torch.")
    heads, weights = imported.heads, imported.weights
    if generator is not None:
        heads, weights = ("generator", *heads), weights | generator.weights
    as_what = imported.family, heads, imported.bare, dtype, imported.model_type
    origin = Origin(*as_what, imported.pad)
    task: TunedTask | None = None
    if imported.task is not None:
        from clozelab.finetuning.loading import inward

        length = imported.encoder.max_positions or _LENGTH
        task = inward(imported.task, place=place, length=length)
    module = shell(recipe, task, origin, weights)
    names = {name for name, _ in module.named_parameters()}
    set_weights(module, {name: w for name, w in weights.items() if name in names})
    left = sorted({*imported.left, *(weights.keys() - names)})
    notes = [f"{place}: {note}" for note in imported.notes]
    if beyond:
        notes.append(
            f"{place}: left aside, since the model has no row for them: the tokenizer's"
            f" {', '.join(beyond[:_NAMED])}"
        )
    notes += [f"{place}: left aside, since nothing here needs it: {_summed(left)}"] if left else []
    return Model(place, recipe, tokenizer, module.eval(), 0, tuple(notes), task, origin)


def _generator(folder: Path, imported: Imported) -> WithGenerator | None:
    """The generator in a folder of its own, where a model that predicts nothing has one."""
    place = folder / FOLDER
    predicts = imported.task or {*imported.heads} - {"replaced_token"}
    if predicts or not (place / "config.json").exists():
        return None
    files = huggingface.read(str(place))
    try:
        other = from_transformers(files.config, files.tensors)
    except UserError as error:
        raise UserError(f"{FOLDER}: {error}") from None
    return joined(imported, other, FOLDER)


def _taken_for(imported: Imported, generator: WithGenerator | None) -> Recipe:
    """The recipe that the model most likely came from, with its sizes and of its heads."""
    encoder: Any = imported.encoder
    name = "gpt" if encoder.causal else FAMILIES[imported.family].recipe
    plain = imported.family == "bert" and "next_sentence" not in imported.heads
    if plain and not encoder.causal and encoder.segment_types < 2:
        name = "roberta"  # it never saw a second segment
    known = recipes.read(name)
    objectives = {slots.use("objectives", part): part for part in known.objectives}
    if generator is not None:
        objectives["generator"] = generator.part
    heads = imported.heads
    if generator is not None or "replaced_token" in heads:  # of which one may have come alone
        heads = ("generator", "replaced_token")
    parts: list[Any] = [part for name, part in objectives.items() if name in heads]
    parts += [PARTS[name]() for name in heads if name not in objectives]
    if "heads.causal_lm.dense.weight" in imported.weights:
        parts = [CausalLm(head="transform")]
    own = [name.split(".")[1] for name in imported.weights if name.endswith(".table")]
    # Without a head over the vocabulary it has the objectives that it would be trained on with.
    predicts = any("targets" in part.needs for part in parts) or imported.heads == ("causal_lm",)
    ours = tied(parts, dict.fromkeys(own, False)) if predicts else known.objectives
    return within(known, imported.encoder, objectives=ours)


def _summed(names: Sequence[str]) -> str:
    """Tensors by the modules that they are of."""
    modules = list(dict.fromkeys(".".join(name.split(".")[:-1]) or name for name in names))
    more = f" and {len(modules) - _NAMED} more" if len(modules) > _NAMED else ""
    return f"{', '.join(modules[:_NAMED])}{more}"


def tied(objectives: Iterable[Any], ties: Mapping[str, bool]) -> tuple[Any, ...]:
    """The objectives, those that are named tied to the embedding table or not."""
    named = {slots.use("objectives", part): part for part in objectives}
    return tuple(
        replace(part, tied=ties[name]) if name in ties else part for name, part in named.items()
    )


def within(
    recipe: Recipe, encoder: Any, *, objectives: tuple[Objective, ...] | None = None
) -> Recipe:
    """The recipe with another encoder, its blocks no longer than that encoder's positions.

    Other `objectives` come with it, where the recipe's own do not suit the encoder.
    """
    blocks: Any = recipe.blocks
    schedule = recipe.schedule
    blocks = replace(blocks, length=min(blocks.length, encoder.max_positions or blocks.length))
    if schedule.phases and max(length for length, _ in schedule.phases) != blocks.length:
        schedule = replace(schedule, phases=())
    return replace(
        recipe,
        encoder=encoder,
        blocks=blocks,
        schedule=schedule,
        objectives=recipe.objectives if objectives is None else objectives,
    )
