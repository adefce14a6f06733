"""Models as the classes of transformers have them, in both directions.

A whole model's tensors are named `encoder.…` and `heads.<objective>.…`, as runs save them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clozelab.contracts import Vocabulary
from clozelab.encoder import Encoder
from clozelab.errors import UserError
from clozelab.models.interop import typed
from clozelab.models.interop.cleaning import drop_identity, normalised, whole_heads
from clozelab.models.interop.configs import Config, from_config, to_config
from clozelab.models.interop.families import (
    adapted,
    check_family,
    completed,
    family_for,
    special_ids,
)
from clozelab.models.interop.head_configs import head_from_config, head_to_config
from clozelab.models.interop.heads import ROBERTAS, TaskHead, architecture, head_shapes
from clozelab.models.interop.names import GPTS, NAMES, PAIRS, pooler_shapes, shapes

# Model types that are another's under a different name.
_ALIKE = {"xlm-roberta": "roberta", "camembert": "roberta", "ernie": "bert"}
# How the names of a model type's classes begin.
_STEMS = {
    **{"Bert": "bert", "Roberta": "roberta", "RobertaPreLayerNorm": "roberta-prelayernorm"},
    **{"Albert": "albert", "DistilBert": "distilbert", "XLNet": "xlnet"},
    **{"OpenAIGPT": "openai-gpt", "GPT2": "gpt2"},
    **{"XLMRoberta": "xlm-roberta", "Camembert": "camembert", "Ernie": "ernie"},
}
_CLASS = re.compile(rf"({'|'.join(_STEMS)})(Model|LMHeadModel|DoubleHeadsModel|For[A-Z]\w*)")
_BARE = {"openai-gpt": "OpenAIGPTModel", "gpt2": "GPT2Model"}
# Where a relative has other words than the family whose stem it changes.
_OTHER_CLASSES = {"ErnieLMHeadModel": "ErnieForCausalLM"}
_OTHER_PREFIXES = {"ernie": "ernie."}

# The class for each set of heads, of those the family has.
_CLASSES: dict[str, dict[frozenset[str], str]] = {
    "bert": {
        frozenset(): "BertModel",
        frozenset({"masked_lm"}): "BertForMaskedLM",
        frozenset({"next_sentence"}): "BertForNextSentencePrediction",
        frozenset({"masked_lm", "next_sentence"}): "BertForPreTraining",
        frozenset({"causal_lm"}): "BertLMHeadModel",
    },
    "roberta": {
        frozenset(): "RobertaModel",
        frozenset({"masked_lm"}): "RobertaForMaskedLM",
        frozenset({"causal_lm"}): "RobertaForCausalLM",
    },
    "roberta-prelayernorm": {
        frozenset(): "RobertaPreLayerNormModel",
        frozenset({"masked_lm"}): "RobertaPreLayerNormForMaskedLM",
        frozenset({"causal_lm"}): "RobertaPreLayerNormForCausalLM",
    },
    "albert": {
        frozenset(): "AlbertModel",
        frozenset({"masked_lm"}): "AlbertForMaskedLM",
        frozenset({"masked_lm", "sentence_order"}): "AlbertForPreTraining",
    },
    "distilbert": {
        frozenset(): "DistilBertModel",
        frozenset({"masked_lm"}): "DistilBertForMaskedLM",
    },
    "xlnet": {frozenset(): "XLNetModel", frozenset({"permutation_lm"}): "XLNetLMHeadModel"},
    # GPT's head has no weights but a table, where it is not tied.
    **{
        family: dict.fromkeys((frozenset[str](), frozenset({"causal_lm"})), name)
        for family, name in (("openai-gpt", "OpenAIGPTLMHeadModel"), ("gpt2", "GPT2LMHeadModel"))
    },
}


class Exported(NamedTuple):
    """A model as transformers has it."""

    config: Config
    tensors: dict[str, Tensor]
    length: int  # the most tokens a text may have
    left: list[str]  # tensors of ours that no class of the family has
    family: str  # whose function it has; its model_type may be a relative's
    task: TaskHead | None = None


class Imported(NamedTuple):
    """A model as clozelab has it."""

    encoder: Encoder
    weights: dict[str, Tensor]
    family: str
    model_type: str  # the family's, or a relative's
    heads: tuple[str, ...]
    left: list[str]  # tensors of theirs that have no place here
    task: TaskHead | None = None  # the head of a task, its weights under heads.<kind>
    bare: bool = False  # it came as an encoder alone
    notes: tuple[str, ...] = ()


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
    family = family or family_for(encoder, heads, vocabulary, task=task)
    transforms = "heads.causal_lm.dense.weight" in weights
    check_family(encoder, family, transforms=transforms, task=task)
    if family not in GPTS and not transforms:
        heads -= {"causal_lm"}  # a table alone, which only a GPT's class has
    kind = model_type if model_type and _ALIKE.get(model_type) == family else family
    words = weights.get("encoder.embeddings.words.weight")
    size = vocabulary.size if words is None else max(len(words), vocabulary.size)
    tied = True
    if task is None:
        saved = max((each for each in _CLASSES[family] if each <= heads), key=len)
        alone = bare if family in GPTS else not saved
        class_name: str | None = (
            _BARE[family] if alone and family in GPTS else _CLASSES[family][saved]
        )
        tied = not any(f"heads.{head}.table" in weights for head in saved)
        expected = shapes(encoder, size, tuple(saved), family=family, tied=tied)
        about: Config = {}
        if saved - {*PAIRS} and "idle_bias" in weights and NAMES[family].bias:
            expected["idle_bias"] = torch.Size((size,))
    else:
        saved, class_name, alone = frozenset(), architecture(family, task), False
        about = head_to_config(task, family)
        whole, weights = completed(task, weights, family, width=encoder.width)
        expected = shapes(encoder, size, ()) | head_shapes(whole, encoder.width)
    expected |= _loose_pooler(weights, expected, family, encoder.width)
    _check(weights, expected, "the model")
    ours = {name: weights[name] for name in expected}
    left = sorted(set(weights) - set(expected))
    if task is not None:
        _refuse_rest(task, left)
    if family != "xlnet":
        encoder, ours = adapted(encoder, ours, family, vocabulary)
        length = min(length, encoder.positions)
    config = {
        "model_type": kind,
        "architectures": [_called(class_name, family, kind)],
        "vocab_size": size,
        **to_config(encoder, family, predicts=bool(saved)),
        **special_ids(family, vocabulary),
        **about,
        "tie_word_embeddings": tied,
        "dtype": str(ours["encoder.embeddings.words.weight"].dtype).removeprefix("torch."),
    }
    tensors = _outward(ours, family, kind, heads=encoder.heads, alone=alone, tied=tied)
    return Exported(config, tensors, length, left, family, task)


def _called(name: str | None, family: str, kind: str) -> str | None:
    """A class of the family as its relative calls it."""
    stems = {each: stem for stem, each in _STEMS.items()}
    if name is None or kind == family:
        return name
    other = name.replace(stems[family], stems[kind], 1)
    return _OTHER_CLASSES.get(other, other)


def _outward(
    ours: Mapping[str, Tensor], family: str, kind: str, *, heads: int, alone: bool, tied: bool
) -> dict[str, Tensor]:
    """Our tensors as the family or its relative has them; an encoder alone has no prefix."""
    names = NAMES[family]
    tensors: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        tensors |= names.outward(name, tensor, heads=heads)
    added = f"{names.decoder}.bias"
    if names.bias in tensors and (not tied or added in tensors):
        # The decoder's bias is what is added; the head's lies idle, and may be another.
        bias = tensors[names.bias]
        tensors[names.bias], tensors[added] = tensors.get(added, bias), bias
    prefix = "" if alone else _OTHER_PREFIXES.get(kind, names.prefix)
    return {
        prefix + name.removeprefix(names.prefix) if name.startswith(names.prefix) else name: tensor
        for name, tensor in tensors.items()
    }


def _refuse_rest(task: TaskHead, left: list[str]) -> None:
    """A head that is more than its class has is another function."""
    rest = [name for name in left if name.startswith((f"heads.{task.kind}.", "features."))]
    if rest:
        raise UserError(
            f"task {task.kind}: {_listed(rest)} in no class of transformers; use the run as it is"
            " (`clozelab predict`)"
        )


def _loose_pooler(
    weights: Mapping[str, Tensor], expected: Mapping[str, torch.Size], family: str, width: int
) -> dict[str, torch.Size]:
    """The pooler that no head has, where there is one and the family has a place for it."""
    names, pooler = NAMES[family], pooler_shapes(width)
    taken = {each for name in expected for each in names.theirs(name)}
    place = {each for name in pooler for each in names.theirs(name)}
    return pooler if place and not place & taken and pooler.keys() <= weights.keys() else {}


def from_transformers(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Imported:
    """A model of transformers as one of ours; heads are kept where we have them, and are whole."""
    kind = _model_type(config, tensors)
    family = _ALIKE.get(kind, kind)
    size = typed.whole(config, "vocab_size", typed.whole(config, "n_token"))
    if size is None:
        raise UserError("config.json: no vocab_size; every config has one, so add it")
    encoder, names = from_config(config, family), NAMES[family]
    if family != "albert" and encoder.layers > len(tensors):  # which may share them all
        raise UserError(f"{kind} weights: {len(tensors):,} tensors, and {encoder.layers:,} layers")
    task = head_from_config(config, tensors, family=family, encoder=encoder)
    own = head_shapes(task, encoder.width) if task is not None else {}
    pooler = pooler_shapes(encoder.width)
    idle = {"idle_bias": torch.Size((size,))} if names.bias else {}
    possible = shapes(encoder, size, _possible(encoder, family), family=family, tied=False)
    theirs = {name: names.theirs(name) for name in (*possible, *own, *pooler, *idle)}
    found, tied = normalised(
        tensors,
        names,
        {each for group in theirs.values() for each in group},
        tied=typed.flag(config, "tie_word_embeddings", True),
    )
    if tied:
        theirs = {name: group for name, group in theirs.items() if not name.endswith(".table")}
    if family == "albert":
        drop_identity(encoder, found)
    heads = whole_heads(_possible(encoder, family), theirs, found)
    if any(each not in found for name in own for each in theirs[name]):
        task, own = None, {}
    expected = {**shapes(encoder, size, heads, family=family, tied=tied), **own}
    if {*heads} - {*PAIRS} and all(theirs[name][0] in found for name in idle):
        expected |= idle
    taken = {each for name in expected for each in theirs[name]}
    if not taken & {*theirs["pooler.weight"]} and all(
        theirs[name] and theirs[name][0] in found for name in pooler
    ):
        expected |= pooler
    missing = [each for name in expected for each in theirs[name] if each not in found]
    if missing:
        raise UserError(f"{kind} weights: {_listed(missing)} missing; import a whole checkpoint")
    weights = {
        name: _full(names.inward(name, [found[each] for each in theirs[name]]), theirs[name])
        for name in expected
    }
    _check(
        weights,
        expected,
        f"{kind} weights",
        called={name: " + ".join(theirs[name]) for name in expected},
    )
    left = sorted(set(found) - {each for name in expected for each in theirs[name]})
    bare = not heads and task is None
    if family in GPTS and tied:
        bare = _comes_bare(config, tensors, names.prefix)
    notes = _stale(config, task)
    return Imported(encoder, weights, family, kind, heads, left, task, bare, notes)


_BY_PREFIX = {NAMES[family].prefix: family for family in NAMES} | {"ernie.": "ernie"}
del _BY_PREFIX["transformer."]  # which three families have


def _model_type(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """As the config says, or its class, or what the tensors' names begin with."""
    kind = typed.word(config, "model_type")
    if kind is None:
        classes = map(_CLASS.fullmatch, typed.words(config, "architectures"))
        prefixes = {f"{name.partition('.')[0]}." for name in tensors}
        known = [_STEMS[match[1]] for match in classes if match]
        known = known or [_BY_PREFIX[prefix] for prefix in prefixes if prefix in _BY_PREFIX]
        if len({*known}) != 1:
            raise UserError(
                "config.json: has no model_type, and no class in architectures that says it; add"
                f' "model_type", one of {", ".join(sorted([*NAMES, *_ALIKE]))}'
            )
        return known[0]
    if kind not in NAMES and kind not in _ALIKE:
        raise UserError(
            f"config.json: model_type {kind!r} is unknown here; there are"
            f" {', '.join(sorted([*NAMES, *_ALIKE]))}"
        )
    return kind


def _comes_bare(config: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str) -> bool:
    """Whether a GPT came as an encoder alone: by its class, else by its tensors' names."""
    for name in typed.words(config, "architectures")[:1]:
        if _CLASS.fullmatch(name):
            return name in _BARE.values()
    return not any(name.startswith(prefix) for name in tensors)


def _stale(config: Mapping[str, Any], task: TaskHead | None) -> tuple[str, ...]:
    """What to say of labels that the config names otherwise than the head has them."""
    table = typed.table(config, "id2label")
    if task is None or not task.labels or not table or {*task.labels} == {*table.values()}:
        return ()
    return (
        f"config.json: id2label does not name {len(task.labels)} labels, a name each, which the"
        f" head has; they are called {task.labels[0]} to {task.labels[-1]}",
    )


def _possible(encoder: Any, family: str) -> tuple[str, ...]:
    """The heads with weights that this encoder may have in that family."""
    if family in ROBERTAS and encoder.activation != "gelu":
        return ()  # its head is made with gelu all the same, which ours would not be
    if family in GPTS or (family in ("bert", *ROBERTAS) and encoder.causal):
        return ("causal_lm",)
    return tuple(sorted({head for heads in _CLASSES[family] for head in heads} - {"causal_lm"}))


def _check(
    weights: Mapping[str, Tensor],
    expected: Mapping[str, torch.Size],
    place: str,
    *,
    called: Mapping[str, str] | None = None,
) -> None:
    """Refuse weights that are missing or of another shape, by the names the user knows."""
    missing = [name for name in expected if name not in weights]
    if missing:
        raise UserError(f"{place}: {_listed(missing)} missing; take a whole checkpoint")
    wrong = [name for name, shape in expected.items() if weights[name].shape != shape]
    if wrong:
        named = [called[name] if called else name for name in wrong]
        found, wanted = list(weights[wrong[0]].shape), list(expected[wrong[0]])
        raise UserError(
            f"{place}: {_listed(named)} of another shape than the settings say (the first is"
            f" {found} as we lay it, not {wanted}); fix the settings"
        )


def _listed(names: list[str]) -> str:
    """The first few of some names, and how many more."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} {'is' if len(names) == 1 else 'are'}"


def _full(tensor: Tensor, names: tuple[str, ...]) -> Tensor:
    """Less than single precision becomes single: weights are trained in it."""
    if not tensor.is_floating_point():
        raise UserError(f"{names[0]}: holds {tensor.dtype}, which are no weights; import others")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
