"""Read a model and a task's files: the examples and weights of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import Blocks
from clozelab.errors import UserError
from clozelab.finetuning import protocols
from clozelab.finetuning.balance import label_notes
from clozelab.finetuning.config import FinetuneConfig
from clozelab.finetuning.evaluator import Evaluator, pack
from clozelab.finetuning.files.splits import TaskSplits
from clozelab.finetuning.kinds import TaskKind
from clozelab.finetuning.request import Data, FinetuneRequest, absolute, refuse_changed
from clozelab.finetuning.task import TunedTask
from clozelab.finetuning.tuned import Tuned, language_model
from clozelab.models.build import weights_of
from clozelab.models.interop.fitting import family_for
from clozelab.models.interop.heads import summary, transforms
from clozelab.models.load import load
from clozelab.models.model import Model
from clozelab.models.reader import TaskReader
from clozelab.objectives import PAIRS
from clozelab.objectives.objective import following
from clozelab.training.packing import PackedExamples


@dataclass(frozen=True)
class FinetuneInputs:
    """The inputs of a trial: task, model, examples and weights."""

    task: TunedTask
    recipe: Recipe
    tokenizer: Tokenizer
    train: PackedExamples  # the training examples
    dev: Mapping[str, Evaluator]  # the first selects the best model
    start: Mapping[str, Tensor]  # initial weights by name; others are initialised anew
    seed: int
    origin: str | None  # where the weights are from
    origin_task: str | None = None  # what that model was fine-tuned on, if it was
    teacher: Tuned | None = None
    teacher_origin: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)  # of the files with its examples
    notes: tuple[str, ...] = ()


def inputs_for(request: FinetuneRequest) -> FinetuneInputs:
    """The inputs of a request; models and examples are cached for the next one like it."""
    model = opened(request.model)
    tuning = tuning_of(request, model)
    digests = request.data.digests(splits_of)
    if request.digests is not None:  # files may have changed since the request
        since = "the first of these runs began"
        refuse_changed(request.digests, digests, since=since, more=False)
    splits = splits_of(request.data)
    notes = list(model.notes)
    length = model.block_length(tuning.length)
    if length != tuning.length:
        notes.append(
            f"blocks of {length} tokens: the encoder was trained on blocks no longer than this"
        )
    kind: Any = kind_for(model, splits, tuning)  # Any, since it is a key of a cache
    train, dev, counted = _tokenized_examples(
        request.model, request.data, kind, length, request.teacher
    )
    notes += counted
    if request.data.files and len({*digests.values()}) == 1:  # known tasks may divide one file
        notes.append(
            "the dev set is the training set, so its scores say nothing about other examples;"
            " give other examples with --dev"
        )
    return FinetuneInputs(
        task=TunedTask(request.data.task, kind, tuning, request.data.columns),
        recipe=model.recipe,
        tokenizer=model.tokenizer,
        train=_with_language_model(train) if tuning.lm_weight else train,
        dev=dev,
        start={} if request.fresh else _initial_weights(model, kind, tuning),
        seed=request.seed,
        origin=None if request.fresh else absolute(request.model),
        origin_task=None if request.fresh or model.task is None else model.task.name,
        teacher=_teacher(request, model, kind),
        teacher_origin=absolute(request.teacher),
        digests=digests,
        notes=(*notes, *_after_notes(request, model, tuning)),
    )


def check(request: FinetuneRequest) -> None:
    """Refuse a request that lacks a split, or whose settings or teacher do not suit the task."""
    model, splits = opened(request.model), splits_of(request.data)
    tuning = tuning_of(request, model)
    for split in ("train", "dev"):
        splits.parts(split)
    kind = kind_for(model, splits, tuning)
    _teacher(request, model, kind)
    reader = TaskReader(model.recipe, model.tokenizer, model.block_length(tuning.length))
    training = splits.read("train")
    kind.tokenize(training[:1], reader, training=True)  # refuses too short blocks
    if tuning.steps is not None:  # otherwise they depend on how many blocks long examples are
        tuning.schedule(len(training))  # refuses a warm-up that is longer than the run
    if request.teacher is not None:
        _check_reading(request.teacher, kind, training[:1], reader)
    if tuning.lm_weight:
        language_model(model.recipe, tuning)


@lru_cache(maxsize=2)
def opened(place: str) -> Model:
    """The model or teacher at a place, cached for several requests."""
    return load(place)


def forget() -> None:
    """Clear the caches of models and examples, whose files may change."""
    for cached in (opened, splits_of, _tokenized_examples):
        cached.cache_clear()


def tuning_of(request: FinetuneRequest, model: Model) -> FinetuneConfig:
    """The protocol's settings for the task, with the user's overrides."""
    kind = splits_of(request.data).kind
    protocol = request.protocol or protocols.protocol_for(model.recipe)
    task = protocols.task_word(request.data.task, kind)
    return protocols.read(protocol, task, kind, overrides=request.settings)


@lru_cache(maxsize=4)
def splits_of(data: Data) -> TaskSplits:
    """The splits of a task, cached for several requests."""
    return data.splits()


@lru_cache(maxsize=1)
def _tokenized_examples(
    place: str, data: Data, kind: TaskKind, length: int, teacher: str | None
) -> tuple[PackedExamples, dict[str, Evaluator], list[str]]:
    """The tokenised training examples, the dev sets, and notes.

    Cached, since they do not depend on learning rates and the like.
    """
    model, splits = opened(place), splits_of(data)
    reader = learner = TaskReader(model.recipe, model.tokenizer, length)
    if teacher is not None and model.recipe.encoder.segment_types == 0:
        # A teacher such as BERT tells two texts apart by segments; such a student ignores them.
        learner = replace(reader, recipe=opened(teacher).recipe)
    tokenized = kind.tokenize(splits.read("train"), learner, training=True)
    evaluators = {
        name: Evaluator.of(kind, splits.read(name), reader) for name in splits.parts("dev")
    }
    dev = {name: evaluator.examples for name, evaluator in evaluators.items()}
    notes = [*splits.notes, *label_notes(kind, splits.read("train"), dev)]
    notes += [*splits.counts.lines(), *tokenized.counts.lines()]
    for name, evaluator in evaluators.items():
        notes += [f"{name}: {line}" for line in evaluator.tokenized.counts.lines()]
    return pack(tokenized, kind.name), evaluators, notes


def kind_for(model: Model, splits: TaskSplits, tuning: FinetuneConfig) -> TaskKind:
    """The task's kind with the head that the encoder's class in transformers has.

    Settings of the protocol or the user override that.
    """
    names = {field.name for field in fields(splits.part)}  # type: ignore[arg-type]
    settings: dict[str, Any] = dict(splits.settings)
    for name, source in splits.part.from_tuning.items():
        if name in names:
            settings[name] = getattr(tuning, source)
    usual = _default_head(model, splits.kind)
    settings |= {name: value for name, value in usual.items() if name in names}
    return protocols.kind_with(settings, tuning.task, splits.kind, place=splits.name)


def _default_head(model: Model, kind: str) -> dict[str, Any]:
    """The settings of the head that the encoder's class in transformers has."""
    encoder = model.recipe.encoder
    if encoder.layout.summary is None:
        return {"pool": "mean", "summary": "none"}
    # From the recipe, since a fine-tuned model no longer has the heads of its pretraining.
    heads = frozenset(slots.use("objectives", part) for part in model.recipe.objectives)
    family = model.origin.family if model.origin else family_for(encoder, heads, model.vocabulary)
    usual = summary(family, kind)
    settings = {"summary": usual.activation, "drop_first": usual.drop_first, "bias": usual.bias}
    return settings | {"transform": transforms(family, kind)}


def _initial_weights(model: Model, kind: TaskKind, tuning: FinetuneConfig) -> dict[str, Tensor]:
    """The initial weights: the encoder's, and the pooler's if pretraining and the head have one.

    A head that was tuned on another task is dropped, and so is a pooler if the head does not read
    the last states, which it was trained on. An imported pooler without a head is used if the class
    of transformers uses it; RoBERTa's do only for choices. A transform is initialised with that of
    the masked language model, as in transformers.
    """
    weights = weights_of(model.module)
    start = {name: value for name, value in weights.items() if name.startswith("encoder.")}
    last_states = tuning.features in ("tuned", "last") and tuning.reader == "linear"
    if last_states and getattr(kind, "summary", None) == "tanh":
        owners = [f"heads.{owner}.pooler" for owner in PAIRS]
        owners += [] if getattr(kind, "drop_first", False) else ["pooler"]
        for name in (f"{owner}.{part}" for owner in owners for part in ("weight", "bias")):
            if name in weights:
                start[f"heads.{kind.name}.dense.{name.rpartition('.')[2]}"] = weights[name]
    if last_states and getattr(kind, "transform", False):
        trained = {n: w for n, w in weights.items() if n.startswith("heads.masked_lm.")}
        width, dense = model.recipe.encoder.hidden_size, trained.get("heads.masked_lm.dense.weight")
        # A transform of another width, or with biases, does not fit.
        fits = dense is not None and dense.shape == (width, width)
        for name in ("dense", "norm") if fits and not model.recipe.encoder.bias else ():
            place = f"heads.{kind.name}.transform.{name}.weight"
            start[place] = trained[f"heads.masked_lm.{name}.weight"]
    if tuning.lm_weight:
        start |= {n: w for n, w in weights.items() if n.startswith("heads.causal_lm.")}
    return start


def _teacher(request: FinetuneRequest, model: Model, kind: TaskKind) -> Tuned | None:
    """The teacher, which must have been fine-tuned on the same task."""
    if request.teacher is None:
        return None
    if not kind.distillable:
        raise UserError(
            f"{request.data.task}: cannot be distilled; leave --teacher out, or distil the encoder"
            " and fine-tune it"
        )
    teacher = opened(request.teacher)
    if not isinstance(teacher.module, Tuned) or teacher.task is None:
        raise UserError(
            f"{request.teacher}: is not fine-tuned on {request.data.task}, as a teacher must be;"
            f" make one with clozelab finetune {request.teacher} {request.data.task}"
        )
    if teacher.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        raise UserError(
            f"{request.teacher}: its vocabulary is not that of {request.model}; name a teacher with"
            " the same vocabulary"
        )
    compared = ("name", *kind.outputs)
    theirs = [getattr(teacher.task.kind, name, None) for name in compared]
    if theirs != [getattr(kind, name) for name in compared]:
        raise UserError(
            f"{request.teacher}: was fine-tuned on another task than {request.data.task}; name"
            " another teacher"
        )
    return teacher.module


def _check_reading(place: str, kind: TaskKind, examples: Sequence[Any], reader: TaskReader) -> None:
    """Refuse a teacher that would read other blocks of the examples than the student."""
    teacher = opened(place)
    assert teacher.task is not None
    positions = teacher.recipe.encoder.max_positions
    if positions is not None and positions < reader.length:
        raise UserError(
            f"{place}: reads at most {positions} tokens, but blocks have up to {reader.length};"
            f" use --set length={positions}, or another teacher"
        )
    theirs = replace(reader, recipe=teacher.recipe, special_tokens=teacher.task.special_tokens)
    mine, other = (kind.tokenize(examples, by, training=True).columns for by in (reader, theirs))
    encoders = reader.recipe.encoder, teacher.recipe.encoder
    ignored = {"segments"} if any(encoder.segment_types == 0 for encoder in encoders) else set()
    same = (
        np.array_equal(mine[name], other[name]) for name in mine.keys() & other.keys() - ignored
    )
    if mine.keys() != other.keys() or not all(same):
        raise UserError(
            f"{place}: has other special tokens or segments than the student; name a teacher whose"
            " encoder reads texts in the same way"
        )


def _after_notes(request: FinetuneRequest, model: Model, tuning: FinetuneConfig) -> list[str]:
    """A note if the protocol starts from a model of another task and this is none."""
    before = model.task.name if model.task is not None else None
    if request.fresh or tuning.after in (None, before):
        return []
    return [
        f"the protocol starts from a model fine-tuned on {tuning.after}, which this one is"
        f" not; use --after {tuning.after}, or name such a model"
    ]


def _with_language_model(examples: PackedExamples) -> PackedExamples:
    """The blocks with targets of GPT's auxiliary language model added (GPT §3.2)."""
    zeros = np.zeros(len(examples.columns["ids"]), dtype=np.uint8)
    blocks = Blocks(
        ids=examples.columns["ids"].astype(np.int32),
        starts=examples.starts,
        marks=zeros,
        segments=zeros,
        fixed=zeros.astype(bool),
        numbers=np.arange(len(examples)),
    )
    return replace(examples, targets={**examples.targets, "causal_lm": following(blocks)})
