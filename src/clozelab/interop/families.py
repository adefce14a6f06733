"""Weights as the classes of transformers have them: `export` writes them so, `bring` reads them.

A whole model's tensors are named `encoder.…` and `heads.<objective>.…`, as runs save them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clozelab.contracts import UserError, Vocabulary
from clozelab.encoder import Encoder, Relative, Transformer
from clozelab.interop.cleaning import cleaned, present, stays, without_identity
from clozelab.interop.configs import Config, understood, written
from clozelab.interop.fitting import admit, filled, fitted, fitting, marks
from clozelab.interop.heads import ROBERTAS, TaskHead, architecture, head_shapes
from clozelab.interop.labels import head_understood, head_written
from clozelab.interop.names import GPTS, NAMES, shapes

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
    # GPT's head has no weights of its own.
    "openai-gpt": {frozenset(): "OpenAIGPTLMHeadModel"},
    "gpt2": {frozenset(): "GPT2LMHeadModel"},
}


class Exported(NamedTuple):
    """A model as transformers has it."""

    config: Config
    tensors: dict[str, Tensor]
    length: int  # the most tokens a text may have
    left: list[str]  # tensors of ours that no class of the family has
    task: TaskHead | None = None


class Imported(NamedTuple):
    """A model as clozelab has it."""

    encoder: Encoder
    weights: dict[str, Tensor]
    family: str
    heads: tuple[str, ...]
    left: list[str]  # tensors of theirs that have no place here
    task: TaskHead | None = None  # the head of a task, its weights under heads.<kind>


def export(
    encoder: Encoder,
    weights: Mapping[str, Tensor],
    *,
    vocabulary: Vocabulary,
    length: int,
    family: str | None = None,
    task: TaskHead | None = None,
) -> Exported:
    """A whole model's weights for transformers, in the family that fits unless one is named.

    Of a fine-tuned model the head of its task is kept, of another the heads of its pretraining.
    """
    heads = frozenset(name.split(".")[1] for name in weights if name.startswith("heads."))
    family = family or fitting(encoder, heads, vocabulary, task=task)
    admit(encoder, family, heads, task=task)
    words = weights.get("encoder.embeddings.words.weight")
    size = vocabulary.size if words is None else max(len(words), vocabulary.size)
    if task is None:
        kept = max((each for each in _CLASSES[family] if each <= heads), key=len)
        called: str | None = _CLASSES[family][kept]
        alone = not kept and family not in GPTS
        expected, about = shapes(encoder, size, tuple(kept)), {}
    else:
        called, alone = architecture(family, task), False
        about = head_written(task, family)
        whole, weights = filled(task, weights, family, width=encoder.width)
        expected = shapes(encoder, size, ()) | head_shapes(whole, encoder.width)
    _check(weights, expected, "the model")
    assert isinstance(encoder, Transformer | Relative)
    ours = {name: weights[name] for name in expected}
    left = sorted(set(weights) - set(expected))
    if task is not None:
        _refuse_rest(task, left)
    if isinstance(encoder, Transformer):
        encoder, ours = fitted(encoder, ours, family, vocabulary)
        length = min(length, encoder.positions)
    config = {
        "model_type": family,
        "architectures": [called],
        "vocab_size": size,
        **written(encoder, family),
        **marks(family, vocabulary),
        **about,
        "tie_word_embeddings": True,
        "dtype": str(ours["encoder.embeddings.words.weight"].dtype).removeprefix("torch."),
    }
    prefix = NAMES[family].prefix if alone else ""  # which an encoder alone has not
    tensors: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        theirs = NAMES[family].outward(name, tensor, heads=encoder.heads)
        tensors |= {each.removeprefix(prefix): part for each, part in theirs.items()}
    return Exported(config, tensors, length, left, task)


def _refuse_rest(task: TaskHead, left: list[str]) -> None:
    """A head that is more than its class has is another function."""
    rest = [name for name in left if name.startswith((f"heads.{task.kind}.", "features."))]
    if rest:
        raise UserError(
            f"task {task.kind}: {_listed(rest)} in no class of transformers; use the run as it is"
            " (`clozelab predict`)"
        )


def bring(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Imported:
    """A model of transformers as one of ours; heads are kept where we have them."""
    kind = config.get("model_type")
    family = _ALIKE.get(str(kind), str(kind))
    if family not in NAMES:
        raise UserError(
            f"config.json: model_type {kind!r} is unknown here; there are"
            f" {', '.join(sorted([*NAMES, *_ALIKE]))}"
        )
    if "vocab_size" not in config:
        raise UserError("config.json: no vocab_size; every config has one, so add it")
    encoder, size, names = understood(config, family), config["vocab_size"], NAMES[family]
    task = head_understood(config, tensors, family=family, encoder=encoder)
    own = head_shapes(task, encoder.width) if task is not None else {}
    possible = {**shapes(encoder, size, _possible(encoder, family)), **own}
    theirs = {name: names.theirs(name) for name in possible}
    known = {each for group in theirs.values() for each in group}
    found = cleaned(tensors, names, known)
    if family == "albert" and isinstance(encoder, Transformer):
        without_identity(encoder, found)
    heads = present(_possible(encoder, family), theirs, found)
    expected = {**shapes(encoder, size, heads), **own}
    missing = [each for name in expected for each in theirs[name] if each not in found]
    if missing:
        raise UserError(f"{kind} weights: {_listed(missing)} missing; import a whole checkpoint")
    weights = {
        name: _full(names.inward(name, [found[each] for each in theirs[name]])) for name in expected
    }
    names_there = {name: " + ".join(theirs[name]) for name in expected}
    _check(weights, expected, f"{kind} weights", called=names_there)
    left = sorted(set(found) - {each for name in expected for each in theirs[name]})
    strange = [each for each in left if each not in known and not stays(each, names)]
    if strange:
        raise UserError(
            f"{kind} weights: {_listed(strange)} not known; take them out of the file, or import"
            " the checkpoint they were added to"
        )
    if family in GPTS:
        heads = ("causal_lm",)
    return Imported(encoder, weights, family, heads, left, task)


def _possible(encoder: Encoder, family: str) -> tuple[str, ...]:
    """The heads with weights that this encoder may have in that family."""
    causal = isinstance(encoder, Transformer) and encoder.causal
    if family in ROBERTAS and isinstance(encoder, Transformer) and encoder.activation != "gelu":
        return ()  # its head is made with gelu all the same, which ours would not be
    if family in ("bert", *ROBERTAS) and causal:
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
            f" {found} as we lay it, not {wanted}); mend the settings"
        )


def _listed(names: list[str]) -> str:
    """The first few of some names, and how many more."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} {'is' if len(names) == 1 else 'are'}"


def _full(tensor: Tensor) -> Tensor:
    """Half precision becomes full: weights are trained in it."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
