"""Open a trained model: a run, one of its checkpoints, a Hugging Face directory or a hub name.

Of a folder with several fine-tuned models it is the one that did best on the dev set.
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
from clozelab.files import kind_of
from clozelab.layers import Linear, unset_weights
from clozelab.models.build import WORDS, PretrainingModel, build
from clozelab.models.generator import FOLDER, WithGenerator, joined
from clozelab.models.interop import huggingface, sentence_transformers
from clozelab.models.interop.families import FAMILIES
from clozelab.models.interop.importing import Imported, from_transformers
from clozelab.models.model import ORIGIN, Model, Origin
from clozelab.objectives import PARTS, CausalLm, Objective
from clozelab.remote.access import is_url, shown
from clozelab.remote.access import joined as joined_url
from clozelab.remote.cache import local_folder
from clozelab.runs.directory import PLAN, TASK, Run, runs_in
from clozelab.runs.saving import set_weights
from clozelab.text.loading import load as load_tokenizer
from clozelab.text.roles import pair_separators
from clozelab.text.vocabulary import describe
from clozelab.text.vocabulary import within as in_table
from clozelab.training.checkpoint import CHECKSUMS, Checkpoint, newest, open_checkpoint

if TYPE_CHECKING:
    from clozelab.finetuning.task import TunedTask
    from clozelab.finetuning.tuned import Tuned

_DEFAULT_LENGTH = 512  # of blocks, if the encoder does not limit positions
_MOST_NAMES = 8  # the most names that a note lists


def load(place: str) -> Model:
    """The model at a path, URL or hub name."""
    path = local_folder(place)
    if (path / CHECKSUMS).exists():
        return _load_checkpoint(open_checkpoint(path), ())
    if (path / "recipe.toml").exists():
        checkpoint, skipped = newest(path / "checkpoints")
        if checkpoint is not None:
            return _load_checkpoint(checkpoint, tuple(skipped))
        if Run(path).result() is None:
            raise UserError(f"{path}: the run has no complete checkpoint yet; wait, or resume it")
        if (path / TASK).exists():
            remedy = f"remove {path / 'result.json'} and run the same finetune command again"
        else:
            verb = "adapt" if "adaptation" in Run(path).machine() else "pretrain"
            remedy = f"train it again with clozelab {verb} --resume {path}"
        problem = skipped[0].partition(";")[0] if skipped else "its checkpoints are missing"
        raise UserError(f"{path}: is done, but {problem}; {remedy}")
    if (kind := kind_of(path)) in ("corpus", "study"):
        raise UserError(f"{place}: is a {kind}, not a model; name a run or a checkpoint")
    if (path / PLAN).exists():
        return load(str(path / best_tuning(path)))
    _refuse_runs(place, path)
    return _load_foreign(str(path) if is_url(place) else place)


def _refuse_runs(place: str, path: Path) -> None:
    """Refuse a folder that has runs in it, and name one of them."""
    if (path / "config.json").exists():
        return
    for run in runs_in(path):
        named = joined_url(shown(place), run.name) if is_url(place) else run
        raise UserError(
            f"{shown(place)}: is a folder of runs, not a model; name one of them, as in {named}"
        )


def pretrained(model: Model) -> PretrainingModel:
    """The module with the heads of pretraining; a fine-tuned model has none and is refused."""
    if isinstance(model.module, PretrainingModel):
        return model.module
    task = model.task.called if model.task else "a task"
    raise UserError(
        f"{model.place}: is fine-tuned for {task}; name the pretrained model that it came from"
    )


def best_tuning(folder: Path) -> str:
    """The name of the fine-tuned model that did best, from the folder's result."""
    result = Run(folder).result()
    if result is None:
        raise UserError(
            f"{folder}: some of its fine-tuning runs are not done; run the same finetune"
            " command again, or name one of the folders in it"
        )
    if "best" not in result:
        raise UserError(
            f"{folder / 'result.json'}: does not name the best run; remove it and run the"
            " same finetune command again"
        )
    return str(result["best"])


def _load_checkpoint(checkpoint: Checkpoint, notes: tuple[str, ...]) -> Model:
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
    # The projections that compared a student with its teacher are not needed without the teacher.
    parts = [slots.use("objectives", part) for part in recipe.objectives if part.needs_teacher]
    unused = tuple(f"heads.{part}." for part in parts)
    weights = {name: w for name, w in checkpoint.weights().items() if not name.startswith(unused)}
    module = shell(recipe, task, origin, weights)
    set_weights(module, weights)
    place = str(checkpoint.path)
    return Model(place, recipe, tokenizer, module.eval(), checkpoint.step, notes, task, origin)


def shell(
    recipe: Recipe, task: TunedTask | None, origin: Origin | None, weights: Mapping[str, Tensor]
) -> PretrainingModel | Tuned:
    """The module, not yet initialised, that these weights fit."""
    module: PretrainingModel | Tuned
    with unset_weights():
        if task is None:
            module = build(recipe, recipe.tokenizer.vocabulary, seed=0)
        else:
            from clozelab.finetuning.loading import build as tuned_model

            module = tuned_model(recipe, task.kind, task.tuning, seed=0)
    if isinstance(module, PretrainingModel):
        if origin is not None:
            module.keep_heads(origin.heads)
        if "idle_bias" in weights:
            module.idle_bias = nn.Parameter(torch.empty_like(weights["idle_bias"]))
    if "pooler.weight" in weights:
        module.pooler = Linear(*weights["pooler.weight"].shape)
    return module


def _load_foreign(place: str) -> Model:
    """A model of transformers, with the recipe of its family changed to its sizes and heads."""
    files = huggingface.read(place)
    tokenizer = load_tokenizer(files.folder)
    try:
        imported = from_transformers(files.config, files.tensors)
        generator = _load_generator(files.folder, imported)
        rows = len(imported.weights[WORDS])
        tokenizer, extra_tokens = in_table(tokenizer, rows)
        positions = imported.encoder.max_positions
        length = _block_length(files.length, imported.encoder)
        recipe = _recipe_for(imported, generator, length=length).reading(tokenizer, vocabulary=rows)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    size = describe(tokenizer).size
    if size > rows:
        raise UserError(
            f"{place}: the tokenizer has ids up to {size - 1:,}, but the model has {rows:,}"
            " embeddings; resize the model's embeddings to the tokenizer, and save both"
        )
    # Of several types float32, which holds the values of all.
    dtypes = {tensor.dtype for tensor in files.tensors.values() if tensor.is_floating_point()}
    dtype = str(dtypes.pop() if len(dtypes) == 1 else torch.float32).removeprefix("torch.")
    heads, weights = imported.heads, imported.weights
    if generator is not None:
        heads, weights = ("generator", *heads), weights | generator.weights
    origin_fields = imported.family, heads, imported.bare, dtype, imported.model_type
    pooling = sentence_transformers.read(files.folder)
    text_length = sentence_transformers.read_length(files.folder)
    if text_length is not None and text_length > (positions or text_length):
        text_length = None
    reads_pairs = imported.encoder.layout.in_pretraining
    separators = pair_separators(tokenizer, files.folder) if reads_pairs else None
    origin = Origin(*origin_fields, imported.pad, pooling, length, text_length, separators)
    task: TunedTask | None = None
    if imported.task is not None:
        from clozelab.finetuning.loading import inward

        task = inward(imported.task, place=place, length=length or positions or _DEFAULT_LENGTH)
    module = shell(recipe, task, origin, weights)
    names = {name for name, _ in module.named_parameters()}
    set_weights(module, {name: w for name, w in weights.items() if name in names})
    rest = sorted({*imported.left, *(weights.keys() - names)})
    notes = [f"{place}: {note}" for note in imported.notes]
    if extra_tokens:
        notes.append(
            f"{place}: ignored, because the model has no embedding for them: the tokenizer's"
            f" {', '.join(extra_tokens[:_MOST_NAMES])}"
        )
    if modules := sentence_transformers.ignored(files.folder):
        notes.append(
            f"{place}: its vectors are not those of sentence-transformers, which also applies"
            f" {modules}"
        )
    notes += [f"{place}: ignored, because nothing here needs it: {_modules(rest)}"] if rest else []
    return Model(place, recipe, tokenizer, module.eval(), 0, tuple(notes), task, origin)


def _block_length(length: int | None, encoder: Any) -> int | None:
    """The tokenizer's maximum length, or None if blocks of the encoder cannot have it.

    They have at most all of its positions, and at least half of its window of attention.
    """
    least, most = getattr(encoder, "window", 0) // 2, encoder.max_positions or 0
    return length if length is not None and least <= length <= most else None


def _load_generator(folder: Path, imported: Imported) -> WithGenerator | None:
    """The generator in a subfolder, if there is one and the model itself predicts no tokens."""
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


def _recipe_for(
    imported: Imported, generator: WithGenerator | None, *, length: int | None
) -> Recipe:
    """The recipe that the model most likely came from, with its sizes and heads.

    `length` is that of its blocks, if it is known.
    """
    encoder: Any = imported.encoder
    name = "gpt" if encoder.causal else FAMILIES[imported.family].recipe
    plain = imported.family == "bert" and "next_sentence" not in imported.heads
    if plain and not encoder.causal and encoder.segment_types < 2:
        name = "roberta"  # it never saw a second segment
    base = recipes.read(name)
    objectives = {slots.use("objectives", part): part for part in base.objectives}
    if generator is not None:
        objectives["generator"] = generator.part
    heads = imported.heads
    if generator is not None or "replaced_token" in heads:  # one may come alone
        heads = ("generator", "replaced_token")
    parts: list[Any] = [part for name, part in objectives.items() if name in heads]
    parts += [PARTS[name]() for name in heads if name not in objectives]
    if "heads.causal_lm.dense.weight" in imported.weights:
        parts = [CausalLm(head="transform")]
    untied = [name.split(".")[1] for name in imported.weights if name.endswith(".table")]
    # A model without a head over the vocabulary gets the recipe's objectives for further training.
    predicts = any("targets" in part.needs for part in parts) or imported.heads == ("causal_lm",)
    chosen = tied(parts, dict.fromkeys(untied, False)) if predicts else base.objectives
    return within(base, imported.encoder, objectives=chosen, length=length)


def _modules(names: Sequence[str]) -> str:
    """The modules of these tensors, the first few by name."""
    modules = list(dict.fromkeys(".".join(name.split(".")[:-1]) or name for name in names))
    more = f" and {len(modules) - _MOST_NAMES} more" if len(modules) > _MOST_NAMES else ""
    return f"{', '.join(modules[:_MOST_NAMES])}{more}"


def tied(objectives: Iterable[Any], ties: Mapping[str, bool]) -> tuple[Any, ...]:
    """The objectives, with `ties` saying which heads are tied to the embedding table."""
    named = {slots.use("objectives", part): part for part in objectives}
    return tuple(
        replace(part, tied=ties[name]) if name in ties else part for name, part in named.items()
    )


def within(
    recipe: Recipe,
    encoder: Any,
    *,
    objectives: tuple[Objective, ...] | None = None,
    length: int | None = None,
) -> Recipe:
    """The recipe with another encoder, and blocks no longer than that encoder's positions.

    `objectives` replace the recipe's, if these do not suit the encoder; `length` replaces that of
    its blocks.
    """
    blocks: Any = recipe.blocks
    schedule = recipe.schedule
    length = length or blocks.length
    blocks = replace(blocks, length=min(length, encoder.max_positions or length))
    if schedule.phases and max(length for length, _ in schedule.phases) != blocks.length:
        schedule = replace(schedule, phases=())
    return replace(
        recipe,
        encoder=encoder,
        blocks=blocks,
        schedule=schedule,
        objectives=recipe.objectives if objectives is None else objectives,
    )
