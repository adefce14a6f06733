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
# Buffers in old files, which are no weights.
_BUFFERS = re.compile(r"(.*\.)?(position_ids|token_type_ids)|.*\.attn\.(masked_)?bias")


class Imported(NamedTuple):
    """A model of transformers as one of ours."""

    encoder: Encoder
    weights: dict[str, Tensor]
    family: str
    model_type: str  # the family's, or a relative's
    heads: tuple[str, ...]
    left: list[str]  # their tensors that are not used here
    task: TaskHead | None = None  # the head of a task, its weights under heads.<kind>
    bare: bool = False  # it is an encoder without heads
    notes: tuple[str, ...] = ()
    pad: int | None = None  # the id that its config pads with


def from_transformers(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Imported:
    """A model of transformers as one of ours; heads are kept if complete and known here."""
    model_type = _model_type(config, tensors)
    family = MODEL_TYPES[model_type]
    size = typed.whole(config, "vocab_size", typed.whole(config, "n_token"))
    if size is None:
        raise UserError("config.json: vocab_size is missing; add it, as every config has it")
    encoder, place = from_config(config, family), f"{model_type} weights"
    if family.name != "albert" and encoder.layers > len(tensors):  # ALBERT may share all layers
        raise UserError(f"{place}: {len(tensors):,} tensors, and {encoder.layers:,} layers")
    task = head_from_config(config, tensors, family=family, encoder=encoder)
    heads = _possible_heads(encoder, family)
    possible = shapes(encoder, size, heads, plain=family.is_gpt, tied=False)
    possible |= {} if task is None else head_shapes(task, encoder.hidden_size)
    possible |= pooler_shapes(encoder.hidden_size)
    possible |= {"idle_bias": Size((size,))} if family.bias else {}
    tied = typed.flag(config, "tie_word_embeddings", True)
    renamed, tied = _normalised(tensors, family, possible, tied=tied)
    if family.name == "albert":
        _drop_identity(encoder, renamed)
    heads, expected = _complete_heads(possible, renamed, family, heads, tied=tied)
    if task is not None and not any(name.startswith(f"heads.{task.kind}.") for name in expected):
        task = None
    weights = _to_our_tensors(renamed, expected, family, place)
    left = sorted({*renamed} - {each for name in expected for each in family.theirs(name)})
    bare = not heads and task is None
    if family.is_gpt and tied:
        bare = _is_bare(config, tensors, family)
    notes, pad = _label_notes(config, task), config.get("pad_token_id")
    pad = pad if isinstance(pad, int) and 0 <= pad < size else None
    return Imported(encoder, weights, family.name, model_type, heads, left, task, bare, notes, pad)


def _model_type(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The model_type, from the config, its class, or the prefix of the tensors' names."""
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
        names -= {*LANGUAGE_MODELS}  # theirs would use gelu, ours the activation
    return tuple(sorted(names))


def _normalised(
    tensors: Mapping[str, Tensor], family: Family, possible: Iterable[str], *, tied: bool
) -> tuple[dict[str, Tensor], bool]:
    """The tensors under today's names without buffers and duplicates, and whether they are tied.

    `tied` is from the config; a decoder that differs from the embedding table is not tied, as in
    transformers.
    """
    table, bias = f"{family.decoder}.weight", f"{family.decoder}.bias"
    known = {table, bias, *(each for name in possible for each in family.theirs(name))}
    heads = deberta.head_names(tensors.keys()) if family.name == "deberta-v2" else {}
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _BUFFERS.fullmatch(name):
            continue
        new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        new = new.replace("LayerNorm.beta", "LayerNorm.bias")
        if family.name == "bert":  # ERNIE's tensors may have either prefix
            new = re.sub(r"^(bert|ernie)\.", f"{family.prefix}.", new)
        new = heads.get(new, new)
        if new not in known and f"{family.prefix}.{new}" in known:
            new = f"{family.prefix}.{new}"
        renamed[new] = tensor
    if tied and table in renamed:
        tied = _equal_bits(renamed.setdefault(family.words, renamed[table]), renamed[table])
        if tied:
            del renamed[table]
    if family.bias and bias in renamed:
        # The decoder's bias is the one that is added: it takes the place of the head's.
        decoder_bias, unused = renamed.pop(bias), renamed.get(family.bias)
        renamed[family.bias] = decoder_bias
        if unused is not None and not _equal_bits(decoder_bias, unused):
            renamed[bias] = unused
    return renamed, tied


def _equal_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal, bit for bit."""
    return first.dtype == second.dtype and torch.equal(first, second)


def _drop_identity(encoder: Encoder, tensors: dict[str, Tensor]) -> None:
    """Drop ALBERT's projection where widths are equal; it must then be the identity."""
    if encoder.embedding_size != encoder.hidden_size:
        return
    module = "encoder.embedding_hidden_mapping_in"  # in an encoder alone without a prefix
    identity = torch.eye(encoder.hidden_size)
    for name in [each for each in tensors if each.removeprefix("albert.").startswith(module)]:
        neutral = identity if name.endswith(".weight") else torch.zeros(encoder.hidden_size)
        if not torch.equal(tensors.pop(name).float(), neutral):
            raise UserError(
                f"{name}: projects a width onto itself, which no encoder here does; import a"
                " checkpoint whose embedding_size is below its hidden_size"
            )


def _complete_heads(
    possible: Mapping[str, Size],
    tensors: Mapping[str, Tensor],
    family: Family,
    heads: tuple[str, ...],
    *,
    tied: bool,
) -> tuple[tuple[str, ...], dict[str, Size]]:
    """The complete heads, and the tensors to read; incomplete heads are ignored."""
    modules: dict[str, dict[str, Size]] = {}
    for name, shape in possible.items():
        if not (tied and name.endswith(".table")):
            module = name.split(".")[: 2 if name.startswith("heads.") else 1]
            modules.setdefault(".".join(module), {})[name] = shape
    theirs = {
        module: {each for name in names for each in family.theirs(name)}
        for module, names in modules.items()
    }
    present = {module for module, names in theirs.items() if names and names <= tensors.keys()}
    complete = tuple(h for h in heads if f"heads.{h}" in present or f"heads.{h}" not in modules)
    if not {*complete} & {*LANGUAGE_MODELS}:
        present -= {"idle_bias"}
    if any(theirs["pooler"] & theirs[each] for each in present if each.startswith("heads.")):
        present -= {"pooler"}  # a head uses it
    parts = (names for module, names in modules.items() if module in present | {"encoder"})
    return complete, {name: shape for names in parts for name, shape in names.items()}


def _to_our_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Size], family: Family, place: str
) -> dict[str, Tensor]:
    """Their tensors as ours; half precision becomes float32, in which weights are trained."""
    theirs = {name: family.theirs(name) for name in expected}
    missing = [each for names in theirs.values() for each in names if each not in tensors]
    if missing:
        raise UserError(f"{place}: {listed(missing)} missing; import a whole checkpoint")
    weights = {}
    for name, names in theirs.items():
        tensor = family.inward(name, [tensors[each] for each in names])
        if not tensor.is_floating_point():
            raise UserError(
                f"{names[0]}: holds {tensor.dtype}, which are no weights; import others"
            )
        precise = tensor.dtype in (torch.float32, torch.float64)
        weights[name] = tensor if precise else tensor.float()
        if not weights[name].isfinite().all():
            raise UserError(
                f"{names[0]}: holds values that are NaN or infinite, with which nothing can be"
                " computed; import a checkpoint from before its training diverged"
            )
    check_shapes(
        weights, expected, place, called={name: " + ".join(theirs[name]) for name in theirs}
    )
    return weights


def _is_bare(config: Mapping[str, Any], tensors: Mapping[str, Tensor], family: Family) -> bool:
    """Whether a GPT is an encoder without a head, by its class or its tensors' names."""
    for name in typed.words(config, "architectures")[:1]:
        if _CLASS.fullmatch(name):
            return name == f"{family.stem}Model"
    return not any(name.startswith(f"{family.prefix}.") for name in tensors)


def _label_notes(config: Mapping[str, Any], task: TaskHead | None) -> tuple[str, ...]:
    """A note if the labels of the config do not fit the head."""
    table = typed.table(config, "id2label")
    if task is None or not task.labels or not table or {*task.labels} == {*table.values()}:
        return ()
    return (
        f"config.json: id2label does not name {len(task.labels)} labels, a name each, which the"
        f" head has; they are called {task.labels[0]} to {task.labels[-1]}",
    )
