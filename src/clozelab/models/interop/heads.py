"""Heads of tasks in transformers: their classes, tensors and configs.

A fine-tuned model's tensors are named `encoder.…` and `heads.<kind>.…`, kind being classify,
regress, choose, tag or answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from torch import Size, Tensor

from clozelab.encoder import Encoder
from clozelab.models.interop import typed
from clozelab.models.interop.families import (
    FAMILIES,
    SUMMARISED,
    TASKS,
    Activation,
    Family,
    Summary,
)

_ENDINGS = {
    "classify": "ForSequenceClassification",
    "regress": "ForSequenceClassification",
    "choose": "ForMultipleChoice",
    "tag": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
}
_PROBLEMS = {"classify": "single_label_classification", "regress": "regression"}
# The values that a config must have for its pooler, if it has the keys.
_POOLERS: dict[str, dict[str, Any]] = {
    "electra": {
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    "deberta-v2": {"pooler_hidden_act": "gelu", "pooler_dropout": 0},
}
EXTRA_KEY = "clozelab"  # the key for settings that transformers has no key for
IMPORTED = "imported"  # the name of an imported task without a name
MARKS_KEY = "marks"  # under that: whether a text gets special tokens
# Fixed settings of our beam head and transform; in transformers they are the encoder's.
BEAM = {"epsilon": 1e-12}
TRANSFORM = {"epsilon": 1e-5, "activation": "gelu", "bias": False}
_POOLS: dict[str, Literal["mark", "mean"]] = {"cls": "mark", "mean": "mean"}


class TaskHead(NamedTuple):
    """The settings of a task's head, by which a class of transformers is chosen."""

    kind: str
    labels: tuple[str, ...] = ()  # of classify and tag: their order is that of the logits
    summary: Summary = Summary()  # of the kinds that have one
    pool: Literal["mark", "mean"] = "mark"
    head: Literal["span", "beam"] = "span"  # of answer
    beams: int = 5  # of a beam: how many starts, and ends of each
    impossible: bool = False  # of a beam: whether it predicts that there is no answer
    transform: bool = False  # a dense layer, gelu and a norm, without biases, before the logits
    dropout: float = 0.1
    vectors: str = "last"  # what the head reads; only "last" can be exported
    special_tokens: bool = True  # whether its texts get special tokens
    # Settings that transformers has no key for, such as the null threshold: they are in the config
    # under a key of ours, which transformers keeps.
    extra: Mapping[str, Any] = MappingProxyType({})

    @property
    def called(self) -> str:
        """The name of the task, or its kind if it has no name."""
        name = str(self.extra.get("task", IMPORTED))
        return self.kind if name == IMPORTED else name

    @property
    def outputs(self) -> int:
        """The number of logits per vector."""
        return len(self.labels) if self.kind in ("classify", "tag") else 1

    @property
    def needs(self) -> Mapping[str, Any]:
        """The values that the head requires of the encoder's settings."""
        return BEAM if self.is_beam else TRANSFORM if self.transform else {}

    @property
    def is_beam(self) -> bool:
        """Whether it answers by XLNet's beam."""
        return self.kind == "answer" and self.head == "beam"


def architecture(family: Family, task: TaskHead) -> str | None:
    """The class that has such a head over that family's encoder, if there is one."""
    xlnet = family.name == "xlnet"
    lacks = task.kind in family.no_class_for or (task.is_beam and not xlnet)
    if lacks or task.kind not in _ENDINGS:
        return None
    simple = "Simple" if xlnet and task.kind == "answer" and not task.is_beam else ""
    return f"{family.stem}{_ENDINGS[task.kind]}{simple}"


def summary(family: str, kind: str) -> Summary:
    """How a family's class for a kind of task summarises a block, as a head must to be exported.

    If there is no such class or summary, it is BERT's.
    """
    exists = family in FAMILIES and architecture(FAMILIES[family], TaskHead(kind)) is not None
    return FAMILIES[family].summary_of(kind) if exists else Summary()


def transforms(family: str, kind: str) -> bool:
    """Whether a family's class for a kind of task has a transform."""
    return family in FAMILIES and FAMILIES[family].task_transform and kind in TASKS


def summary_is_blind(encoder: Encoder, family: Family, kind: str) -> bool:
    """Whether the class takes the first token's vector of an encoder that reads left to right."""
    return encoder.causal and kind in SUMMARISED and not family.is_gpt


def unlike(encoder: Encoder, task: TaskHead) -> list[str]:
    """The settings of an encoder that differ from those that a head requires."""
    return [name for name, value in task.needs.items() if getattr(encoder, name) != value]


def head_shapes(task: TaskHead, width: int) -> dict[str, Size]:
    """Every tensor of the head, by our name."""
    modules: dict[str, tuple[int, ...]] = {"classifier": (task.outputs, width)}
    if task.kind in SUMMARISED and task.summary.activation != "none":
        modules = {"dense": (width, width), **modules}
    elif task.kind == "answer" and task.head == "span":
        modules = {"scores": (2, width)}
    elif task.kind == "answer":
        modules = {
            "start": (1, width),
            "end_dense": (width, 2 * width),
            "end_norm": (width,),
            "end_scores": (1, width),
        }
        if task.impossible:
            modules |= {"class_dense": (width, 2 * width), "class_score": (1, width)}
    shapes: dict[str, Size] = {}
    for name, shape in modules.items():
        shapes |= {f"{name}.weight": Size(shape), f"{name}.bias": Size(shape[:1])}
    if task.transform and not task.is_beam:
        shapes |= {"transform.dense.weight": Size((width, width))}
        shapes |= {"transform.norm.weight": Size((width,))}
    shapes.pop("class_score.bias", None)
    if task.kind in SUMMARISED and not task.summary.bias:
        del shapes["classifier.bias"]
    return {f"heads.{task.kind}.{name}": shape for name, shape in shapes.items()}


def head_to_config(task: TaskHead, family: Family) -> dict[str, Any]:
    """The part of a config that describes the head."""
    config = label_config(task)
    if family.dropout_key:
        config[_dropout_key(family, task.kind)] = task.dropout
    if family.pooling_key and task.kind in SUMMARISED:
        config[family.pooling_key] = "mean" if task.pool == "mean" else "cls"
    if family.name == "xlnet" and task.kind in SUMMARISED:
        dense = task.summary.activation != "none"
        config["summary_type"] = "last"
        config["summary_use_proj"] = dense
        config["summary_activation"] = task.summary.activation if dense else "linear"
        if task.summary.drop_first:
            config["summary_first_dropout"] = task.dropout
    if task.is_beam:
        config |= {"start_n_top": task.beams, "end_n_top": task.beams}
    return config


def label_config(task: TaskHead) -> dict[str, Any]:
    """The part of a config with the labels, the type of problem, and our extra settings."""
    config: dict[str, Any] = {}
    names = {"classify": task.labels, "tag": task.labels, "regress": ("value",)}.get(task.kind)
    if names is not None:
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: number for number, name in enumerate(names)}
    if task.kind in _PROBLEMS:
        config["problem_type"] = _PROBLEMS[task.kind]
    if task.extra:
        config[EXTRA_KEY] = dict(task.extra)
    return config


def head_from_config(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, family: Family, encoder: Encoder
) -> TaskHead | None:
    """The head of a checkpoint; None if it has none, or one that is not available here."""
    kind = _kind(config, tensors, family)
    beam = "start_logits.dense.weight" in tensors
    head = TaskHead(kind, head="beam" if beam else "span", transform=family.task_transform)
    if architecture(family, head) is None:
        return None
    module = ("start" if beam else "scores") if kind == "answer" else "classifier"
    scores = next(map(tensors.get, family.theirs(f"heads.{kind}.{module}.weight")), None)
    if scores is None or scores.dim() != 2 or unlike(encoder, head):
        return None
    if kind == "classify":
        kind = "regress" if len(scores) == 1 else "classify"
        if typed.word(config, "problem_type") not in (None, _PROBLEMS[kind]):
            return None
    summary: Summary | None = family.summary_of(kind)
    if family.name == "xlnet" and kind in SUMMARISED:
        summary = _xlnet_summary(config)
    elif kind in SUMMARISED and (kind == "choose" or not family.whole_classifier):
        required = _POOLERS.get(family.name, {})
        matches = all(config.get(key, value) == value for key, value in required.items())
        summary = summary if matches else None
    if summary is None or summary_is_blind(encoder, family, kind):
        return None
    extra = dict(typed.table(config, EXTRA_KEY))
    pool: Literal["mark", "mean"] = "mark"
    if family.pooling_key and kind in SUMMARISED:
        pool = typed.choice(config, family.pooling_key, _POOLS, default="cls")
    # These weights are zero in a beam that was not trained to predict that there is no answer.
    answer_class = tensors.get("answer_class.dense_1.weight")
    return head._replace(
        kind=kind,
        labels=_labels(config, len(scores)) if kind in ("classify", "tag") else (),
        summary=summary,
        pool=pool,
        beams=typed.whole(config, "start_n_top", 5) or 5,
        impossible=beam and (answer_class is None or bool(answer_class.any())),
        dropout=typed.number(config, _dropout_key(family, kind), encoder.dropout) or 0.0,
        # A GPT-2 that was fine-tuned elsewhere reads texts without special tokens.
        special_tokens=extra.get(MARKS_KEY, bool(extra) or not family.is_gpt) is not False,
        extra=extra,
    )


def _kind(config: Mapping[str, Any], tensors: Mapping[str, Tensor], family: Family) -> str:
    """The kind of task, from the class in the config or from the tensors; "" if unknown."""
    for name in typed.words(config, "architectures")[:1]:
        for kind, ending in _ENDINGS.items():
            if ending in name:
                return kind
    if family.task_transform:
        return ""  # all its classes have the same tensors
    if "classifier.weight" in tensors and "sequence_summary.summary.weight" in tensors:
        return "choose"
    if "qa_outputs.weight" in tensors or "start_logits.dense.weight" in tensors:
        return "answer"
    if "classifier.weight" not in tensors or "pre_classifier.weight" in tensors:
        return "classify"
    if not any("pooler." in name for name in tensors):
        return "tag"
    return "choose" if family.is_roberta else "classify"


def _labels(config: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """The labels by number; numbered names if the config's map does not fit the head."""
    names: dict[int, str] = {}
    for label, name in typed.table(config, "id2label").items():
        if not (str(label).isdecimal() and len(str(label)) < 10 and isinstance(name, str)):
            raise typed.wrong("id2label", config["id2label"], "must name labels by their numbers")
        names[int(label)] = name
    if sorted(names) != list(range(rows)) or len(set(names.values())) != rows:
        return tuple(f"LABEL_{number}" for number in range(rows))
    return tuple(names[number] for number in range(rows))


def _xlnet_summary(config: Mapping[str, Any]) -> Summary | None:
    """The summary that XLNet's config describes; None if ours cannot do it."""
    to_labels = typed.flag(config, "summary_proj_to_labels")
    if typed.word(config, "summary_type", "last") != "last" or to_labels:
        return None
    dense = typed.flag(config, "summary_use_proj", True)
    activation = typed.word(config, "summary_activation") or "linear"
    activation = activation if "summary_activation" in config else "tanh"
    known: dict[tuple[bool, str], Activation] = {
        (True, "tanh"): "tanh",
        (True, "relu"): "relu",
        (False, "linear"): "none",
    }
    usable = known.get((dense, activation))
    first = bool(typed.number(config, "summary_first_dropout", 0.0))
    return None if usable is None else Summary(usable, drop_first=first)


def _dropout_key(family: Family, kind: str) -> str:
    others = {("distilbert", "answer"): "qa_dropout", ("electra", "choose"): "summary_last_dropout"}
    return others.get((family.name, kind), family.dropout_key)
