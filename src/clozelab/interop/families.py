"""Weights as the classes of transformers have them: `export` writes them so, `bring` reads them.

A whole model's tensors are named `encoder.…` and `heads.<objective>.…`, as runs save them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clozelab.contracts import UserError, Vocabulary
from clozelab.encoder import Encoder, Lstm, Relative, Transformer
from clozelab.interop.configs import Config, understood, written
from clozelab.interop.names import NAMES, Names, shapes

# Model types that are another's under a different name.
_ALIKE = {"xlm-roberta": "roberta", "camembert": "roberta", "ernie": "bert"}

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
    # GPT's head has no weights of its own.
    "openai-gpt": {frozenset(): "OpenAIGPTLMHeadModel"},
    "gpt2": {frozenset(): "GPT2LMHeadModel"},
}

_GPTS = ("openai-gpt", "gpt2")
# Heads of tasks: they stay behind, said aloud.
_TASKS = (
    "classifier.", "pre_classifier.", "qa_outputs.", "score.", "sequence_summary.", "logits_proj.",
    "start_logits.", "end_logits.", "answer_class.", "multiple_choice_head.", "lm_head.",
)  # fmt: skip
# Buffers that old files hold beside the weights.
_BUFFERS = (".position_ids", ".token_type_ids", ".attn.bias", ".attn.masked_bias")


class Exported(NamedTuple):
    """A model as transformers has it."""

    config: Config
    tensors: dict[str, Tensor]
    length: int  # the most tokens a text may have
    left: list[str]  # tensors of ours that no class of the family has


class Imported(NamedTuple):
    """A model as clozelab has it."""

    encoder: Encoder
    weights: dict[str, Tensor]
    family: str
    heads: tuple[str, ...]
    left: list[str]  # tensors of theirs that have no place here


def export(
    encoder: Encoder,
    weights: Mapping[str, Tensor],
    *,
    vocabulary: Vocabulary,
    length: int,
    family: str | None = None,
) -> Exported:
    """A whole model's weights for transformers, in the family that fits unless one is named."""
    if isinstance(encoder, Lstm):
        raise UserError(
            "encoder lstm: transformers has no such class; use `clozelab embed`, or export to ONNX"
        )
    heads = frozenset(name.split(".")[1] for name in weights if name.startswith("heads."))
    family = family or _fitting(encoder, heads, vocabulary)
    _admit(encoder, family, heads)
    kept = max((each for each in _CLASSES[family] if each <= heads), key=len)
    size = len(weights["encoder.embeddings.words.weight"])
    expected = shapes(encoder, size, tuple(kept))
    _check(weights, expected, "the model")
    ours = {name: weights[name] for name in expected}
    if isinstance(encoder, Transformer):
        encoder, ours = _fitted(encoder, ours, family, vocabulary)
    config = {
        "model_type": family,
        "architectures": [_CLASSES[family][kept]],
        "vocab_size": size,
        **written(encoder, family),
        **_marks(family, vocabulary),
        "tie_word_embeddings": True,
        "dtype": str(ours["encoder.embeddings.words.weight"].dtype).removeprefix("torch."),
    }
    tensors: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        tensors |= NAMES[family].outward(name, tensor, heads=encoder.heads)
    if not kept and family not in _GPTS:  # an encoder alone has no prefix
        prefix = NAMES[family].prefix
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    if isinstance(encoder, Transformer):
        length = min(length, encoder.positions)
    return Exported(config, tensors, length, sorted(set(weights) - set(expected)))


def _fitting(encoder: Encoder, heads: frozenset[str], vocabulary: Vocabulary) -> str:
    """The family that has this encoder and, of those, most of its heads."""
    if not isinstance(encoder, Transformer):
        return "xlnet"
    if encoder.causal and not encoder.embedding_norm:
        return "gpt2" if encoder.norm == "pre" else "openai-gpt"
    narrow = encoder.embedding != encoder.width
    if encoder.sharing != "none" or narrow or "sentence_order" in heads:
        return "albert"
    counted = encoder.position_offset == vocabulary.roles.get("pad", -1) + 1
    if encoder.position_offset and counted and encoder.activation == "gelu":
        return "roberta"
    plain = encoder.types == 0 and encoder.position_offset == 0 and not encoder.causal
    return "distilbert" if plain and encoder.epsilon == 1e-12 else "bert"


def _admit(encoder: Encoder, family: str, heads: frozenset[str]) -> None:
    """Refuse a family that is none, or not for this encoder or its head."""
    if family not in NAMES:
        raise UserError(f"family {family!r}: unknown; there are {', '.join(NAMES)}")
    if (family == "xlnet") != isinstance(encoder, Relative):
        raise UserError(f"family {family!r}: not for this encoder; leave it out")
    if family in _GPTS and "causal_lm" in heads:
        raise UserError(
            f'objectives.causal_lm.head = "transform": a {family} model of transformers has'
            ' "plain"; train it so, or export to ONNX, which takes any encoder'
        )


def _fitted(
    encoder: Transformer, weights: dict[str, Tensor], family: str, vocabulary: Vocabulary
) -> tuple[Transformer, dict[str, Tensor]]:
    """The same function in the shape that the family has."""
    inside = "encoder.embeddings"
    words = weights[f"{inside}.words.weight"]
    if family == "roberta":
        padding = vocabulary.role("pad")
        if encoder.position_offset != padding + 1:
            raise UserError(
                f"encoder.position_offset = {encoder.position_offset}: roberta counts positions"
                f" from the padding id, here {padding} + 1; leave the family out"
            )
    elif encoder.position_offset:
        rows = weights[f"{inside}.positions.weight"][encoder.position_offset :]
        weights = {**weights, f"{inside}.positions.weight": rows}
        encoder = replace(encoder, position_offset=0)
    if encoder.types == 0 and family in ("bert", "roberta", "albert"):
        weights = {**weights, f"{inside}.types.weight": words.new_zeros(1, encoder.embedding)}
        encoder = replace(encoder, types=1)
    if family == "albert" and encoder.embedding == encoder.width:
        weights = {
            **weights,
            f"{inside}.projection.weight": torch.eye(encoder.width).to(words),
            f"{inside}.projection.bias": words.new_zeros(encoder.width),
        }
    return encoder, weights


def _marks(family: str, vocabulary: Vocabulary) -> dict[str, int | None]:
    """The ids that a config names."""
    roles = vocabulary.roles
    marks = {"pad_token_id": roles.get("pad")}
    if family in ("roberta", "albert"):
        marks |= {"bos_token_id": roles.get("cls"), "eos_token_id": roles.get("sep")}
    elif family in ("xlnet", *_GPTS):
        marks |= {"bos_token_id": None, "eos_token_id": roles.get("eod", roles.get("sep"))}
    return marks


def bring(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Imported:
    """A model of transformers as one of ours; heads are kept where we have them."""
    kind = config.get("model_type")
    family = _ALIKE.get(str(kind), str(kind))
    if family not in NAMES:
        known = ", ".join(sorted([*NAMES, *_ALIKE]))
        raise UserError(f"config.json: model_type {kind!r} is unknown here; there are {known}")
    if "vocab_size" not in config:
        raise UserError("config.json: no vocab_size; every config has one, so add it")
    encoder, size, names = understood(config, family), config["vocab_size"], NAMES[family]
    possible = shapes(encoder, size, _possible(encoder, family))
    theirs = {name: names.theirs(name) for name in possible}
    found = _cleaned(tensors, names, {each for group in theirs.values() for each in group})
    if family == "albert" and isinstance(encoder, Transformer):
        _without_identity(encoder, found)
    heads = _present(_possible(encoder, family), theirs, found)
    expected = shapes(encoder, size, heads)
    missing = [each for name in expected for each in theirs[name] if each not in found]
    if missing:
        raise UserError(f"{kind} weights: {_listed(missing)} missing; import a whole checkpoint")
    weights = {
        name: _full(names.inward(name, [found.pop(each) for each in theirs[name]]))
        for name in expected
    }
    _check(weights, expected, f"{kind} weights")
    ending = {each for group in theirs.values() for each in group}
    strange = [each for each in found if each not in ending and not _stays(each, names)]
    if strange:
        raise UserError(
            f"{kind} weights: {_listed(strange)} not known; take them out of the file, or import"
            " the checkpoint they were added to"
        )
    if family in _GPTS:
        heads = ("causal_lm",)
    return Imported(encoder, weights, family, heads, sorted(found))


def _possible(encoder: Encoder, family: str) -> tuple[str, ...]:
    """The heads with weights that this encoder may have in that family."""
    causal = isinstance(encoder, Transformer) and encoder.causal
    if family == "roberta" and isinstance(encoder, Transformer) and encoder.activation != "gelu":
        return ()  # its head is made with gelu all the same, which ours would not be
    if family in ("bert", "roberta") and causal:
        return ("causal_lm",)
    return tuple(sorted({head for heads in _CLASSES[family] for head in heads} - {"causal_lm"}))


def _cleaned(
    tensors: Mapping[str, Tensor], names: Names, known: Iterable[str]
) -> dict[str, Tensor]:
    """The tensors under the names of today, each once, without buffers."""
    known = {*known, *names.twins}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_BUFFERS) or name in ("position_ids", "token_type_ids"):
            continue
        new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        new = new.replace("LayerNorm.beta", "LayerNorm.bias")
        if new.startswith("ernie."):
            new = new.replace("ernie.", names.prefix, 1)
        if new not in known and names.prefix + new in known:
            new = names.prefix + new
        found[new] = tensor
    for second, first in names.twins.items():
        if second not in found:
            continue
        tensor = found.pop(second)
        if not torch.equal(found.setdefault(first, tensor), tensor):
            raise UserError(
                f"{second}: differs from {first}, and here they are tied; save the encoder alone"
                " (model.base_model.save_pretrained) and import that"
            )
    return found


def _without_identity(encoder: Transformer, found: dict[str, Tensor]) -> None:
    """ALBERT always has a projection; where there is nothing to project, it must do nothing."""
    inside = "albert.encoder.embedding_hidden_mapping_in"
    if encoder.embedding != encoder.width or f"{inside}.weight" not in found:
        return
    weight, bias = found.pop(f"{inside}.weight"), found.pop(f"{inside}.bias", None)
    eye = torch.eye(encoder.width).to(weight)
    if not torch.equal(weight, eye) or (bias is not None and bias.any()):
        raise UserError(
            f"{inside}: projects a width onto itself, which no encoder here does; import a"
            " checkpoint whose embedding_size is below its hidden_size"
        )


def _present(
    heads: tuple[str, ...], theirs: Mapping[str, tuple[str, ...]], found: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """The heads that are there; of a pair's head the pooler alone is none."""
    present = []
    for head in heads:
        names = {name: theirs[name] for name in theirs if name.startswith(f"heads.{head}.")}
        own = {name for name in names if ".pooler." not in name}
        if any(each in found for name in own for each in names[name]):
            present.append(head)
    return tuple(present)


def _stays(name: str, names: Names) -> bool:
    """Whether a tensor is of a head that we do not keep."""
    return name.removeprefix(names.prefix).startswith(("pooler.", *_TASKS))


def _check(weights: Mapping[str, Tensor], expected: Mapping[str, torch.Size], place: str) -> None:
    """Refuse weights that are missing or of another shape."""
    missing = [name for name in expected if name not in weights]
    if missing:
        raise UserError(f"{place}: {_listed(missing)} missing; take a whole checkpoint")
    wrong = [name for name, shape in expected.items() if weights[name].shape != shape]
    if wrong:
        first = wrong[0]
        raise UserError(
            f"{place}: {_listed(wrong)} of another shape than the settings say ({first}:"
            f" {list(weights[first].shape)}, not {list(expected[first])}); mend the settings"
        )


def _listed(names: list[str]) -> str:
    """The first few of some names, and how many more."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} {'is' if len(names) == 1 else 'are'}"


def _full(tensor: Tensor) -> Tensor:
    """Half precision becomes full: weights are trained in it."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
