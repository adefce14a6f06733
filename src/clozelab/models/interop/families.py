"""The families of transformers: how they differ is a field of `Family` each, in families.toml."""

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

    A name of theirs that begins with a dot follows the prefix, one with a colon that of a layer; {}
    is a layer's number. Three names of theirs are one tensor of ours in three stretches.
    """

    name: str  # of the family whose function it has
    recipe: str  # ours, that a model of it is taken for
    stem: str  # how the names of its classes begin
    prefix: str  # before the names of the encoder's tensors, where a head stands beside it
    layer: str  # before the names of a layer's
    names: dict[str, tuple[str, ...]]  # our module or tensor, and theirs
    decoder: str  # the module whose matrix is the embedding table, unless the head has its own
    classes: dict[str, str]  # heads of pretraining, and how the name of their class ends
    keys: dict[str, tuple[str, ...]]  # our setting, their key and a second one that is read too
    defaults: dict[str, Any]  # what a config that leaves a key out means by it
    fixed: dict[str, Any] = field(default_factory=dict)  # settings that it has in one way only
    constants: dict[str, Any] = field(default_factory=dict)  # what else its config says
    transform: tuple[str, ...] = ()  # the dense layer and the norm of a head over the vocabulary
    bias: str = ""  # of that head, where it is another than the decoder's
    weight_form: Literal["ours", "transposed", "by head"] = "ours"  # how its matrices lie
    pooler: str = ".pooler.dense"  # the dense layer of a summary
    classifier: str = "classifier"  # of a summary
    summary: Summary = _BERT_SUMMARY
    choice_activation: Activation = "tanh"  # of the summary of choices, where that is another
    # Whether its classes for classify and regress have the dense layer in the classifier, and leave
    # the pooler, if there is one, unused.
    whole_classifier: bool = False
    gelu_head: bool = False  # its head over the vocabulary has gelu, whatever the layers have
    task_transform: bool = False  # the heads of tasks have the dense layer and the norm of that one
    dropout_key: str = "classifier_dropout"  # of the dropout of a task's head
    pooling_key: str = ""  # of what stands for a block, where that may be the mean of its vectors
    no_class_for: tuple[str, ...] = ()  # kinds of task
    # One text, and two; the number is the type of what follows.
    template: tuple[str, ...] = ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
    ends: tuple[str, ...] = ()  # the roles of bos and eos, where a config has them; "": none

    @property
    def is_roberta(self) -> bool:
        """Whether positions are counted from the padding's id."""
        return self.name in ("roberta", "roberta-prelayernorm")

    @property
    def is_gpt(self) -> bool:
        """Whether it reads from the left, and its head over the vocabulary is a table alone."""
        return self.name in ("openai-gpt", "gpt2")

    @property
    def words(self) -> str:
        """The name of the embedding table."""
        return self.theirs("encoder.embeddings.words.weight")[0]

    def head_class(self, heads: frozenset[str]) -> tuple[frozenset[str], str]:
        """The heads of pretraining that a class has, the most of those, and the class."""
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
        """Their names for a tensor of ours; none where they have no such thing."""
        number = re.search(r"\.(\d+)\.", name)
        pattern = re.sub(r"\.\d+\.", ".{}.", name)
        names, ending = self._table.get(pattern), ""
        if names is None:
            module, _, last = pattern.rpartition(".")
            names, ending = self._table.get(module, ()), f".{last}"
        layer = f"{self.prefix}.{self.layer}."
        full = (re.sub(r"^:", layer, re.sub(r"^\.", f"{self.prefix}.", each)) for each in names)
        return tuple(f"{each.format(number and number[1])}{ending}" for each in full)

    def outward(self, name: str, tensor: Tensor, *, heads: int) -> dict[str, Tensor]:
        """A tensor of ours as theirs."""
        names = self.theirs(name)
        parts = tensor.chunk(len(names)) if names else ()
        pairs = zip(names, parts, strict=True)
        return {each: self._formed(name, part, heads).contiguous() for each, part in pairs}

    def inward(self, name: str, tensors: list[Tensor]) -> Tensor:
        """Their tensors as one of ours, in our shape if theirs is what it should be."""
        alike = len({each.shape for each in tensors}) == 1 and tensors[0].dim() > 0
        tensor = torch.cat(tensors) if alike else tensors[0]
        form = self._form(name)
        if form == "transposed" and tensor.dim() == 2:
            tensor = tensor.T
        elif form == "vector":
            tensor = tensor.flatten()
        elif form == "into heads" and tensor.dim() == 3:
            tensor = tensor.flatten(1).T
        elif form == "out of heads" and tensor.dim() == 3:
            tensor = tensor.flatten(1)
        return tensor.contiguous()

    def _formed(self, name: str, tensor: Tensor, heads: int) -> Tensor:
        form = self._form(name)
        if form == "transposed":
            return tensor.T
        if form == "vector":
            return tensor[None, None]
        if form == "into heads":
            return tensor.T.reshape(tensor.shape[1], heads, -1)
        return tensor.reshape(len(tensor), heads, -1) if form == "out of heads" else tensor

    def _form(self, name: str) -> str | None:
        """How a tensor of theirs lies otherwise than ours."""
        patterns = _FORMS.get(self.weight_form, {})
        return next((form for form in patterns if re.fullmatch(patterns[form], name)), None)

    @cached_property
    def _table(self) -> dict[str, tuple[str, ...]]:
        """All names, those of every head too."""
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


# How the matrices of a family lie, by a pattern of our names.
_FORMS = {
    "transposed": {"transposed": r"encoder\.(attention|ffn)\.\d+\.(qkv|inner|output)\.weight"},
    "by head": {
        "vector": r"encoder\.embeddings\.query",
        "into heads": r"encoder\.attention\.\d+\.(query|key|value|position)\.weight",
        "out of heads": r"encoder\.attention\.\d+\.output\.weight",
    },
}


def _read() -> dict[str, Family]:
    """Every family by its model_type, with what it takes from the one that it extends."""
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


MODEL_TYPES = _read()
FAMILIES = {name: family for name, family in MODEL_TYPES.items() if family.name == name}
