"""The families of transformers; their differences are the fields of `Family`, in families.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from clozelab.config.toml import Shelf

TABLES = Shelf("table", "models/interop")
Activation = Literal["tanh", "relu", "gelu", "none"]
SUMMARISED = ("classify", "regress", "choose")  # kinds of task that make one vector of a block
TASKS = (*SUMMARISED, "tag", "answer")  # kinds of task that classes have heads for
LANGUAGE_MODELS = ("masked_lm", "causal_lm", "permutation_lm")  # heads over the vocabulary


class Summary(NamedTuple):
    """How one vector becomes logits: a dense layer with an activation, and a classifier."""

    activation: Activation = "tanh"  # none: neither dense layer nor activation
    drop_first: bool = False  # dropout before the dense layer too, not only after it
    bias: bool = True  # of the classifier


_BERT_SUMMARY = Summary()


@dataclass(frozen=True)
class Family:
    """One family, or a relative: the same function under other names.

    Their names that begin with a dot follow the prefix, those with a colon that of a layer; {} is
    the layer's number. If there are three names, our tensor is theirs concatenated.
    """

    name: str  # of the family
    recipe: str  # our recipe for a model of it
    stem: str  # how the names of its classes begin
    prefix: str  # of the encoder's tensors, in classes with a head
    layer: str  # prefix of a layer's tensors
    names: dict[str, tuple[str, ...]]  # our module or tensor: theirs
    decoder: str  # the module whose matrix is the embedding table, unless the head has its own
    classes: dict[str, str]  # heads of pretraining: the end of their class's name
    keys: dict[str, tuple[str, ...]]  # our setting: their key, and a second key that is also read
    defaults: dict[str, Any]  # the values of keys that a config leaves out
    fixed: dict[str, Any] = field(default_factory=dict)  # settings that have one value only
    constants: dict[str, Any] = field(default_factory=dict)  # other keys of its config
    transform: tuple[str, ...] = ()  # the dense layer and the norm of a head over the vocabulary
    bias: str = ""  # of that head, if it differs from the decoder's
    weight_form: Literal["ours", "transposed", "by head"] = "ours"  # the layout of its matrices
    pooler: str = ".pooler.dense"  # the dense layer of a summary
    classifier: str = "classifier"  # of a summary
    summary: Summary = _BERT_SUMMARY
    choice_activation: Activation = "tanh"  # of the summary of choices, if it differs
    # Whether its classes for classify and regress have the dense layer in the classifier, and
    # do not use the pooler.
    whole_classifier: bool = False
    gelu_head: bool = False  # its head over the vocabulary always has gelu
    task_transform: bool = False  # heads of tasks have that transform, too
    dropout_key: str = "classifier_dropout"  # of the dropout of a task's head
    pooling_key: str = ""  # of the pooling, if it may be a mean
    no_class_for: tuple[str, ...] = ()  # kinds of task
    # One text, and two; the number is the type of what follows.
    template: tuple[str, ...] = ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
    ends: tuple[str, ...] = ()  # the roles of bos and eos, if a config has them; "": none

    @property
    def is_roberta(self) -> bool:
        """Whether positions are counted from the padding's id."""
        return self.name in ("roberta", "roberta-prelayernorm")

    @property
    def is_gpt(self) -> bool:
        """Whether it is causal, with a head over the vocabulary that is a table alone."""
        return self.name in ("openai-gpt", "gpt2")

    @property
    def words(self) -> str:
        """The name of the embedding table."""
        return self.theirs("encoder.embeddings.words.weight")[0]

    def required(self, *, predicts: bool) -> dict[str, Any]:
        """The settings that an encoder must have; `predicts`: with a head over the vocabulary."""
        gelu = {"activation": "gelu"} if predicts and self.gelu_head else {}
        return self.fixed | gelu

    def head_class(self, heads: frozenset[str]) -> tuple[frozenset[str], str]:
        """The class with the most of these heads of pretraining: its heads and its name."""
        sets = {frozenset(names.split()): ending for names, ending in self.classes.items()}
        held = max((names for names in sets if names <= heads), key=len)
        return held, f"{self.stem}{sets[held]}"

    def summary_of(self, kind: str) -> Summary:
        """The summary of the class for that kind of task; BERT's where it has no other."""
        if kind not in SUMMARISED:
            return _BERT_SUMMARY
        if kind == "choose" and self.whole_classifier:
            return Summary(self.choice_activation)
        return self.summary

    def theirs(self, name: str) -> tuple[str, ...]:
        """Their names of our tensor; empty if they have none."""
        number = re.search(r"\.(\d+)\.", name)
        pattern = re.sub(r"\.\d+\.", ".{}.", name)
        names, ending = self._all_names.get(pattern), ""
        if names is None:
            module, _, last = pattern.rpartition(".")
            names, ending = self._all_names.get(module, ()), f".{last}"
        layer = f"{self.prefix}.{self.layer}."
        full = (re.sub(r"^:", layer, re.sub(r"^\.", f"{self.prefix}.", each)) for each in names)
        return tuple(f"{each.format(number and number[1])}{ending}" for each in full)

    def outward(self, name: str, tensor: Tensor, *, heads: int) -> dict[str, Tensor]:
        """Our tensor under their names, in their layout."""
        names = self.theirs(name)
        parts = tensor.chunk(len(names)) if names else ()
        pairs = zip(names, parts, strict=True)
        return {each: self._to_their_layout(name, part, heads).contiguous() for each, part in pairs}

    def inward(self, name: str, tensors: list[Tensor]) -> Tensor:
        """Their tensors as one of ours, in our layout."""
        alike = len({each.shape for each in tensors}) == 1 and tensors[0].dim() > 0
        tensor = torch.cat(tensors) if alike else tensors[0]
        form = self._layout(name)
        if form == "transposed" and tensor.dim() == 2:
            tensor = tensor.T
        elif form == "vector":
            tensor = tensor.flatten()
        elif form == "into heads" and tensor.dim() == 3:
            tensor = tensor.flatten(1).T
        elif form == "out of heads" and tensor.dim() == 3:
            tensor = tensor.flatten(1)
        return tensor.contiguous()

    def _to_their_layout(self, name: str, tensor: Tensor, heads: int) -> Tensor:
        form = self._layout(name)
        if form == "transposed":
            return tensor.T
        if form == "vector":
            return tensor[None, None]
        if form == "into heads":
            return tensor.T.reshape(tensor.shape[1], heads, -1)
        return tensor.reshape(len(tensor), heads, -1) if form == "out of heads" else tensor

    def _layout(self, name: str) -> str | None:
        """How the layout of their tensor differs from ours; None if it does not."""
        patterns = _LAYOUTS.get(self.weight_form, {})
        return next((form for form in patterns if re.fullmatch(patterns[form], name)), None)

    @cached_property
    def _all_names(self) -> dict[str, tuple[str, ...]]:
        """Our names and theirs, with those of all heads."""
        names = {"heads.tag.classifier": "classifier", "heads.answer.scores": "qa_outputs"}
        parts = {"table": f"{self.decoder}.weight", "bias": self.bias or f"{self.decoder}.bias"}
        parts |= zip(("dense", "norm"), self.transform, strict=False)
        for head in LANGUAGE_MODELS:
            names |= {f"heads.{head}.{ours}": theirs for ours, theirs in parts.items()}
        for kind in SUMMARISED:
            dense, classifier = self.pooler, self.classifier
            if self.whole_classifier and kind != "choose":
                dense, classifier = "classifier.dense", "classifier.out_proj"
            names |= {f"heads.{kind}.dense": dense, f"heads.{kind}.classifier": classifier}
        for kind in TASKS if self.task_transform else ():
            pairs = zip(("dense", "norm"), self.transform, strict=True)
            names |= {f"heads.{kind}.transform.{ours}": theirs for ours, theirs in pairs}
        if self.bias:
            names["idle_bias"] = f"{self.decoder}.bias"
        return {**{ours: (theirs,) for ours, theirs in names.items() if theirs}, **self.names}


# The layouts of a family's matrices, by patterns of our names.
_LAYOUTS = {
    "transposed": {"transposed": r"encoder\.(attention|ffn)\.\d+\.(qkv|inner|output)\.weight"},
    "by head": {
        "vector": r"encoder\.embeddings\.query",
        "into heads": r"encoder\.attention\.\d+\.(query|key|value|position)\.weight",
        "out of heads": r"encoder\.attention\.\d+\.output\.weight",
    },
}


def _read_families() -> dict[str, Family]:
    """Every family by model_type, with the fields of the family that it extends."""
    tables: dict[str, dict[str, Any]] = {}
    families = {}
    for model_type, own in TABLES.find("families").tables().items():
        relative = own.pop("relative_of", None)
        table = {**tables.get(relative or own.pop("extends", ""), {})}
        for field_, value in own.items():
            entries = {**table.get(field_, {}), **value} if isinstance(value, dict) else {}
            table[field_] = {key: e for key, e in entries.items() if e != ""} or value
        tables[model_type] = table
        lists = {name: tuple(value) for name, value in table.items() if isinstance(value, list)}
        pairs = {name: _tuples(table[name].items()) for name in ("names", "keys")}
        summary = Summary(**table.get("summary", {}))
        fields = {**table, **lists, **pairs, "summary": summary}
        families[model_type] = Family(name=relative or model_type, **fields)
    return families


def _tuples(entries: Iterable[tuple[str, str | list[str]]]) -> dict[str, tuple[str, ...]]:
    return {ours: (value,) if isinstance(value, str) else tuple(value) for ours, value in entries}


MODEL_TYPES = _read_families()
FAMILIES = {name: family for name, family in MODEL_TYPES.items() if family.name == name}
