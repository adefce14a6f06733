"""A model as a class of transformers has it: its config and its tensors.

A whole model's tensors are named `encoder.…` and `heads.<objective>.…`, as runs save them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from clozelab.contracts import Vocabulary
from clozelab.encoder import Encoder
from clozelab.errors import UserError
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

_WORDS = "encoder.embeddings.words.weight"


class Exported(NamedTuple):
    """A model as transformers has it."""

    config: Config
    tensors: dict[str, Tensor]
    length: int  # the most tokens a text may have
    left: list[str]  # tensors of ours that no class of the family has
    family: str  # whose function it has; its model_type may be a relative's
    task: TaskHead | None = None


def shapes(
    encoder: Encoder,
    vocabulary: int,
    heads: Iterable[str],
    *,
    plain: bool = False,
    tied: bool = True,
) -> dict[str, Size]:
    """Every tensor of ours, by name, for that encoder and those heads.

    Heads over the vocabulary are tied to the embedding table, or have one of their own; a `plain`
    causal head has nothing else.
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
    """A pooler that belongs to no head: it came beside an encoder, and goes with it."""
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
    """A whole model's weights for transformers, in the family that fits unless one is named.

    `model_type` may be that of a relative, which is the family under another name.

    Of a fine-tuned model the head of its task is kept, of another the heads of its pretraining; a
    pooler of no head goes along where the family has one. A GPT's head has no weights: `bare` says
    that there is none.
    """
    heads = frozenset(name.split(".")[1] for name in weights if name.startswith("heads."))
    name = family or family_for(encoder, heads, vocabulary, task=task)
    transforms = "heads.causal_lm.dense.weight" in weights
    check_family(encoder, name, transforms=transforms, task=task)
    relatives = [each for each, other in MODEL_TYPES.items() if other.name == name]
    model_type = model_type if model_type in relatives else name
    theirs = MODEL_TYPES[model_type or name]
    size = max(len(weights.get(_WORDS, ())), vocabulary.size)
    if not theirs.is_gpt and not transforms:
        heads -= {"causal_lm"}  # a table alone, which only a GPT's class has
    if task is None:
        chosen = _pretrained(encoder, weights, theirs, heads, size=size, bare=bare)
    else:
        chosen = _tuned(encoder, weights, theirs, task, size=size)
    ours, left = chosen.parted(encoder.width, theirs)
    if task is not None:
        _refuse_rest(task, left)
    if theirs.name != "xlnet":
        encoder, ours = adapted(encoder, ours, theirs, vocabulary)
        length = min(length, encoder.positions)
    config = {
        "model_type": model_type,
        "architectures": [chosen.class_name],
        "vocab_size": size,
        **to_config(encoder, theirs, predicts=chosen.predicts),
        **special_ids(theirs, vocabulary),
        **chosen.head_config,
        "tie_word_embeddings": chosen.tied,
        "dtype": str(ours[_WORDS].dtype).removeprefix("torch."),
    }
    tensors = _renamed(ours, theirs, heads=encoder.heads, alone=chosen.alone, tied=chosen.tied)
    return Exported(config, tensors, length, left, name, task)


class _Chosen(NamedTuple):
    """What of a model goes out: a class of transformers, and the weights that it has."""

    class_name: str
    weights: Mapping[str, Tensor]
    expected: dict[str, Size]
    tied: bool = True
    alone: bool = False  # an encoder without a head
    predicts: bool = False  # with a head of pretraining
    head_config: Mapping[str, Any] = MappingProxyType({})

    def parted(self, width: int, family: Family) -> tuple[dict[str, Tensor], list[str]]:
        """The weights that go out, with the pooler of no head, and the names of the others."""
        pooler = pooler_shapes(width)
        taken = {each for name in self.expected for each in family.theirs(name)}
        place = {each for name in pooler for each in family.theirs(name)}
        loose = place and not place & taken and pooler.keys() <= self.weights.keys()
        expected = self.expected | (pooler if loose else {})
        check_shapes(self.weights, expected, "the model")
        return {name: self.weights[name] for name in expected}, sorted(
            {*self.weights} - {*expected}
        )


def _pretrained(
    encoder: Any,
    weights: Mapping[str, Tensor],
    family: Family,
    heads: frozenset[str],
    *,
    size: int,
    bare: bool,
) -> _Chosen:
    """A model with those of its heads that a class has."""
    held, class_name = family.head_class(heads)
    alone = bare if family.is_gpt else not held
    tied = not any(f"heads.{head}.table" in weights for head in held)
    expected = shapes(encoder, size, held, plain=family.is_gpt, tied=tied)
    if held & {*LANGUAGE_MODELS} and "idle_bias" in weights and family.bias:
        expected["idle_bias"] = Size((size,))
    class_name = f"{family.stem}Model" if alone else class_name
    return _Chosen(class_name, weights, expected, tied, alone, predicts=bool(held))


def _tuned(
    encoder: Any, weights: Mapping[str, Tensor], family: Family, task: TaskHead, *, size: int
) -> _Chosen:
    """A model with the head of its task."""
    whole, weights = completed(task, weights, family, width=encoder.width)
    expected = shapes(encoder, size, ()) | head_shapes(whole, encoder.width)
    class_name = str(architecture(family, task))
    return _Chosen(class_name, weights, expected, head_config=head_to_config(task, family))


def _renamed(
    ours: Mapping[str, Tensor], family: Family, *, heads: int, alone: bool, tied: bool
) -> dict[str, Tensor]:
    """Our tensors as the family has them; an encoder alone has no prefix."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        tensors |= family.outward(name, tensor, heads=heads)
    added = f"{family.decoder}.bias"
    if family.bias in tensors and (not tied or added in tensors):
        # The decoder's bias is what is added; the head's lies idle, and may be another.
        bias = tensors[family.bias]
        tensors[family.bias], tensors[added] = tensors.get(added, bias), bias
    if not alone:
        return tensors
    return {name.removeprefix(f"{family.prefix}."): tensor for name, tensor in tensors.items()}


def _refuse_rest(task: TaskHead, left: list[str]) -> None:
    """A head that is more than its class has is another function."""
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
    """Refuse weights that are missing or of another shape, by the names the user knows."""
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
