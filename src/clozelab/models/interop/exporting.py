"""A model as config and tensors of a class of transformers.

Our tensors are named `encoder.…` and `heads.<objective>.…`, as runs save them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from clozelab.contracts import Vocabulary
from clozelab.encoder import Encoder
from clozelab.errors import UserError
from clozelab.models.build import WORDS
from clozelab.models.interop.configs import Config, to_config
from clozelab.models.interop.families import LANGUAGE_MODELS, MODEL_TYPES, Family
from clozelab.models.interop.fitting import (
    adapted,
    check_family,
    completed,
    family_for,
    special_ids,
)
from clozelab.models.interop.heads import TaskHead, architecture, head_shapes, head_to_config
from clozelab.objectives import PARTS


class Exported(NamedTuple):
    """A model in the format of transformers."""

    config: Config
    tensors: dict[str, Tensor]
    length: int  # the most tokens a text may have
    left: list[str]  # our tensors that no class of the family has
    family: str  # of which model_type may be another name
    predicts: bool  # a head over the vocabulary goes with it
    task: TaskHead | None = None


def shapes(
    encoder: Encoder,
    vocabulary: int,
    heads: Iterable[str],
    *,
    plain: bool = False,
    tied: bool = True,
) -> dict[str, Size]:
    """The names and shapes of our tensors for an encoder and heads.

    Heads over the vocabulary are `tied` to the embedding table, or have their own; a `plain` causal
    head has no other weights.
    """
    settings: dict[str, dict[str, Any]] = {name: {"tied": tied} for name in LANGUAGE_MODELS}
    settings["causal_lm"]["head"] = "plain" if plain else "transform"
    with torch.device("meta"):
        modules = {"encoder": encoder.build(vocabulary)}
        for name in heads:
            part: Any = PARTS[name]
            modules[f"heads.{name}"] = part(**settings.get(name, {})).build(encoder, vocabulary)
    return {
        f"{place}.{name}": tensor.shape
        for place, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def pooler_shapes(width: int) -> dict[str, Size]:
    """The shapes of an imported pooler that no head uses."""
    return {"pooler.weight": Size((width, width)), "pooler.bias": Size((width,))}


def to_transformers(
    encoder: Any,
    weights: Mapping[str, Tensor],
    *,
    vocabulary: Vocabulary,
    length: int,
    family: str | None = None,
    model_type: str | None = None,
    task: TaskHead | None = None,
    bare: bool = False,
) -> Exported:
    """The model for transformers, in the given family or else in the one that fits.

    `model_type` may be another name of the family. A fine-tuned model keeps the head of its task,
    any other the heads of its pretraining; a pooler that no head uses is kept if the family has
    one. A GPT's head has no weights of its own: `bare` says that there is no head.
    """
    heads = frozenset(name.split(".")[1] for name in weights if name.startswith("heads."))
    name = family or family_for(encoder, heads, vocabulary, task=task)
    transforms = "heads.causal_lm.dense.weight" in weights
    check_family(encoder, name, transforms=transforms, task=task)
    types = {key: other for key, other in MODEL_TYPES.items() if other.name == name}
    model_type = model_type if model_type in types else name
    theirs = types[model_type]
    size = max(len(weights.get(WORDS, ())), vocabulary.size)
    if not theirs.is_gpt and not transforms:
        heads -= {"causal_lm"}  # without a transform, which only a GPT's class allows
    if task is None:
        class_name, expected = _head_class(encoder, weights, theirs, heads, size=size, bare=bare)
    else:
        full_task, weights = completed(task, weights, theirs, width=encoder.hidden_size)
        class_name = str(architecture(theirs, task))
        expected = shapes(encoder, size, ()) | head_shapes(full_task, encoder.hidden_size)
    expected |= _unused_pooler(encoder.hidden_size, weights, theirs, taken=expected)
    check_shapes(weights, expected, "the model")
    ours, left = {key: weights[key] for key in expected}, sorted({*weights} - {*expected})
    if task is not None:
        _refuse_rest(task, left)
    if theirs.name != "xlnet":
        encoder, ours = adapted(encoder, ours, theirs, vocabulary)
        length = min(length, encoder.positions)
    predicts = any(
        each.startswith(f"heads.{head}.") for each in expected for head in LANGUAGE_MODELS
    )
    tied = not any(each.endswith(".table") for each in expected)
    config = {
        "model_type": model_type,
        "architectures": [class_name],
        "vocab_size": size,
        **to_config(encoder, theirs, predicts=predicts),
        **special_ids(theirs, vocabulary),
        **({} if task is None else head_to_config(task, theirs)),
        "tie_word_embeddings": tied,
        "dtype": str(ours[WORDS].dtype).removeprefix("torch."),
    }
    encoder_only = class_name == f"{theirs.stem}Model"
    tensors = _renamed(ours, theirs, heads=encoder.heads, alone=encoder_only, tied=tied)
    return Exported(config, tensors, length, left, name, predicts, task)


def _head_class(
    encoder: Any,
    weights: Mapping[str, Tensor],
    family: Family,
    heads: frozenset[str],
    *,
    size: int,
    bare: bool,
) -> tuple[str, dict[str, Size]]:
    """The class with the most of a model's heads, and the shapes of our tensors that it has."""
    held, class_name = family.head_class(heads)
    tied = not any(f"heads.{head}.table" in weights for head in held)
    expected = shapes(encoder, size, held, plain=family.is_gpt, tied=tied)
    if held & {*LANGUAGE_MODELS} and "idle_bias" in weights and family.bias:
        expected["idle_bias"] = Size((size,))
    return f"{family.stem}Model" if family.is_gpt and bare else class_name, expected


def _unused_pooler(
    width: int, weights: Mapping[str, Tensor], family: Family, *, taken: Iterable[str]
) -> dict[str, Size]:
    """The shapes of a pooler that no head uses, if the family has one."""
    pooler = pooler_shapes(width)
    place = {each for name in pooler for each in family.theirs(name)}
    heads = {each for name in taken for each in family.theirs(name)}
    return pooler if place and not place & heads and pooler.keys() <= weights.keys() else {}


def _renamed(
    ours: Mapping[str, Tensor], family: Family, *, heads: int, alone: bool, tied: bool
) -> dict[str, Tensor]:
    """Our tensors under the family's names, without the prefix for a bare encoder."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        tensors |= family.outward(name, tensor, heads=heads)
    decoder_bias = f"{family.decoder}.bias"
    if family.bias in tensors and (not tied or decoder_bias in tensors):
        # Transformers adds the decoder's bias; the head's is unused, and may differ.
        bias = tensors[family.bias]
        tensors[family.bias], tensors[decoder_bias] = tensors.get(decoder_bias, bias), bias
    if not alone:
        return tensors
    return {name.removeprefix(f"{family.prefix}."): tensor for name, tensor in tensors.items()}


def _refuse_rest(task: TaskHead, left: list[str]) -> None:
    """Refuse a head with tensors that the class does not have."""
    rest = [name for name in left if name.startswith((f"heads.{task.kind}.", "features."))]
    if rest:
        raise UserError(
            f"task {task.kind}: {listed(rest)} in no class of transformers; use the run as it is"
            " (`clozelab predict`)"
        )


def check_shapes(
    weights: Mapping[str, Tensor],
    expected: Mapping[str, Size],
    place: str,
    *,
    called: Mapping[str, str] | None = None,
) -> None:
    """Refuse weights that are missing or of another shape; `called` names them in errors."""
    missing = [name for name in expected if name not in weights]
    if missing:
        raise UserError(f"{place}: {listed(missing)} missing; take a whole checkpoint")
    wrong = [name for name, shape in expected.items() if weights[name].shape != shape]
    if wrong:
        names = [called[name] if called else name for name in wrong]
        shape, right = list(weights[wrong[0]].shape), list(expected[wrong[0]])
        raise UserError(
            f"{place}: {listed(names)} of another shape than the settings say (the first is"
            f" {shape} as we lay it, not {right}); fix the settings"
        )


def listed(names: list[str]) -> str:
    """The first few of some names, and how many more."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} {'is' if len(names) == 1 else 'are'}"
