"""A model of transformers as one of ours: from its config and its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from clozelab.encoder import Encoder
from clozelab.errors import UserError
from clozelab.models.interop import deberta, typed
from clozelab.models.interop.configs import from_config
from clozelab.models.interop.exporting import check_shapes, listed, pooler_shapes, shapes
from clozelab.models.interop.families import FAMILIES, LANGUAGE_MODELS, MODEL_TYPES, Family
from clozelab.models.interop.heads import TaskHead, head_from_config, head_shapes

_TYPES = {family.stem: model_type for model_type, family in MODEL_TYPES.items()}
_CLASS = re.compile(rf"({'|'.join(_TYPES)})(Model|LMHeadModel|DoubleHeadsModel|For[A-Z]\w*)")
# Buffers that old files hold beside the weights.
_BUFFERS = re.compile(r"(.*\.)?(position_ids|token_type_ids)|.*\.attn\.(masked_)?bias")


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
    pad: int | None = None  # the id that its config pads with


def from_transformers(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Imported:
    """A model of transformers as one of ours; heads are kept where we have them, and are whole."""
    model_type = _model_type(config, tensors)
    family = MODEL_TYPES[model_type]
    size = typed.whole(config, "vocab_size", typed.whole(config, "n_token"))
    if size is None:
        raise UserError("config.json: no vocab_size; every config has one, so add it")
    encoder, place = from_config(config, family), f"{model_type} weights"
    if family.name != "albert" and encoder.layers > len(tensors):  # which may share them all
        raise UserError(f"{place}: {len(tensors):,} tensors, and {encoder.layers:,} layers")
    task = head_from_config(config, tensors, family=family, encoder=encoder)
    heads = _possible_heads(encoder, family)
    possible = shapes(encoder, size, heads, plain=family.is_gpt, tied=False)
    possible |= {} if task is None else head_shapes(task, encoder.hidden_size)
    possible |= pooler_shapes(encoder.hidden_size)
    possible |= {"idle_bias": Size((size,))} if family.bias else {}
    tied = typed.flag(config, "tie_word_embeddings", True)
    held, tied = _normalised(tensors, family, possible, tied=tied)
    if family.name == "albert":
        _drop_identity(encoder, held)
    heads, expected = _whole(possible, held, family, heads, tied=tied)
    if task is not None and not any(name.startswith(f"heads.{task.kind}.") for name in expected):
        task = None
    weights = _inward(held, expected, family, place)
    left = sorted({*held} - {each for name in expected for each in family.theirs(name)})
    bare = not heads and task is None
    if family.is_gpt and tied:
        bare = _comes_bare(config, tensors, family)
    notes, pad = _stale(config, task), config.get("pad_token_id")
    pad = pad if isinstance(pad, int) and 0 <= pad < size else None
    return Imported(encoder, weights, family.name, model_type, heads, left, task, bare, notes, pad)


def _model_type(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """As the config says, or its class, or what the tensors' names begin with."""
    model_type = typed.word(config, "model_type")
    known = ", ".join(sorted(MODEL_TYPES))
    if model_type is None:
        classes = map(_CLASS.fullmatch, typed.words(config, "architectures"))
        types = {_TYPES[match[1]] for match in classes if match}
        prefixes = {name.partition(".")[0] for name in tensors} - {"transformer"}  # of three
        types = types or {
            each
            for each, family in MODEL_TYPES.items()
            if family.prefix in prefixes and (each in FAMILIES or family.prefix == each)
        }
        if len(types) != 1:
            raise UserError(
                "config.json: has no model_type, and no class in architectures that says it; add"
                f' "model_type", one of {known}'
            )
        return types.pop()
    if model_type not in MODEL_TYPES:
        raise UserError(
            f"config.json: model_type {model_type!r} is unknown here; there are {known}"
        )
    return model_type


def _possible_heads(encoder: Any, family: Family) -> tuple[str, ...]:
    """The heads with weights that this encoder may have in that family."""
    names = {head for heads in family.classes for head in heads.split()}
    names = names & {"causal_lm"} if encoder.causal else names - {"causal_lm"}
    if family.gelu_head and encoder.activation != "gelu":
        names -= {*LANGUAGE_MODELS}  # made with gelu all the same, which ours would not be
    return tuple(sorted(names))


def _normalised(
    tensors: Mapping[str, Tensor], family: Family, possible: Iterable[str], *, tied: bool
) -> tuple[dict[str, Tensor], bool]:
    """The tensors under the names of today, each once, without buffers; and whether they are tied.

    `tied` is what the config says; a decoder that differs from the table of words is not tied,
    whatever it says, which is how transformers reads it.
    """
    table, bias = f"{family.decoder}.weight", f"{family.decoder}.bias"
    known = {table, bias, *(each for name in possible for each in family.theirs(name))}
    heads = deberta.head_names(tensors.keys()) if family.name == "deberta-v2" else {}
    held: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _BUFFERS.fullmatch(name):
            continue
        new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        new = new.replace("LayerNorm.beta", "LayerNorm.bias")
        if family.name == "bert":  # whose relative's tensors may have either prefix
            new = re.sub(r"^(bert|ernie)\.", f"{family.prefix}.", new)
        new = heads.get(new, new)
        if new not in known and f"{family.prefix}.{new}" in known:
            new = f"{family.prefix}.{new}"
        held[new] = tensor
    if tied and table in held:
        tied = _same(held.setdefault(family.words, held[table]), held[table])
        if tied:
            del held[table]
    if family.bias and bias in held:
        # The decoder's is added: it takes the name of the head's, which lies idle if it is another.
        added, idle = held.pop(bias), held.get(family.bias)
        held[family.bias] = added
        if idle is not None and not _same(added, idle):
            held[bias] = idle
    return held, tied


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are one, bit for bit."""
    return first.dtype == second.dtype and torch.equal(first, second)


def _drop_identity(encoder: Encoder, held: dict[str, Tensor]) -> None:
    """ALBERT always has a projection; where there is nothing to project, it must do nothing."""
    inside = "albert.encoder.embedding_hidden_mapping_in"
    if encoder.embedding_size != encoder.hidden_size or f"{inside}.weight" not in held:
        return
    weight, bias = held.pop(f"{inside}.weight"), held.pop(f"{inside}.bias", None)
    eye = torch.eye(encoder.hidden_size).to(weight)
    if not torch.equal(weight, eye) or (bias is not None and bias.any()):
        raise UserError(
            f"{inside}: projects a width onto itself, which no encoder here does; import a"
            " checkpoint whose embedding_size is below its hidden_size"
        )


def _whole(
    possible: Mapping[str, Size],
    held: Mapping[str, Tensor],
    family: Family,
    heads: tuple[str, ...],
    *,
    tied: bool,
) -> tuple[tuple[str, ...], dict[str, Size]]:
    """Which heads are there whole, and every tensor to be read: of half a head nothing is used."""
    modules: dict[str, dict[str, Size]] = {}
    for name, shape in possible.items():
        if not (tied and name.endswith(".table")):
            module = name.split(".")[: 2 if name.startswith("heads.") else 1]
            modules.setdefault(".".join(module), {})[name] = shape
    theirs = {
        module: {each for name in names for each in family.theirs(name)}
        for module, names in modules.items()
    }
    present = {module for module, names in theirs.items() if names and names <= held.keys()}
    whole = tuple(h for h in heads if f"heads.{h}" in present or f"heads.{h}" not in modules)
    if not {*whole} & {*LANGUAGE_MODELS}:
        present -= {"idle_bias"}
    if any(theirs["pooler"] & theirs[each] for each in present if each.startswith("heads.")):
        present -= {"pooler"}  # it is a head's
    parts = (names for module, names in modules.items() if module in present | {"encoder"})
    return whole, {name: shape for names in parts for name, shape in names.items()}


def _inward(
    held: Mapping[str, Tensor], expected: Mapping[str, Size], family: Family, place: str
) -> dict[str, Tensor]:
    """Their tensors as ours; less than single precision becomes single, which is trained in."""
    theirs = {name: family.theirs(name) for name in expected}
    missing = [each for names in theirs.values() for each in names if each not in held]
    if missing:
        raise UserError(f"{place}: {listed(missing)} missing; import a whole checkpoint")
    weights = {}
    for name, names in theirs.items():
        tensor = family.inward(name, [held[each] for each in names])
        if not tensor.is_floating_point():
            raise UserError(
                f"{names[0]}: holds {tensor.dtype}, which are no weights; import others"
            )
        precise = tensor.dtype in (torch.float32, torch.float64)
        weights[name] = tensor if precise else tensor.float()
    check_shapes(
        weights, expected, place, called={name: " + ".join(theirs[name]) for name in theirs}
    )
    return weights


def _comes_bare(config: Mapping[str, Any], tensors: Mapping[str, Tensor], family: Family) -> bool:
    """Whether a GPT came as an encoder alone: by its class, else by its tensors' names."""
    for name in typed.words(config, "architectures")[:1]:
        if _CLASS.fullmatch(name):
            return name == f"{family.stem}Model"
    return not any(name.startswith(f"{family.prefix}.") for name in tensors)


def _stale(config: Mapping[str, Any], task: TaskHead | None) -> tuple[str, ...]:
    """What to say of labels that the config names otherwise than the head has them."""
    table = typed.table(config, "id2label")
    if task is None or not task.labels or not table or {*task.labels} == {*table.values()}:
        return ()
    return (
        f"config.json: id2label does not name {len(task.labels)} labels, a name each, which the"
        f" head has; they are called {task.labels[0]} to {task.labels[-1]}",
    )
