"""The head of a task in a config of transformers: labels by name, kind and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clozelab.encoder import Encoder
from clozelab.models.interop import typed
from clozelab.models.interop.heads import (
    ROBERTAS,
    SUMMARISED,
    Activation,
    Summary,
    TaskHead,
    default_summary,
    head_names,
)
from clozelab.models.interop.names import GPTS

_PROBLEMS = {"classify": "single_label_classification", "regress": "regression"}
_DROPOUTS = {
    "bert": "classifier_dropout",
    "roberta": "classifier_dropout",
    "roberta-prelayernorm": "classifier_dropout",
    "albert": "classifier_dropout_prob",
    "distilbert": "seq_classif_dropout",
    "xlnet": "summary_last_dropout",
    "gpt2": "classifier_dropout",
}
_ENDINGS = {
    "ForSequenceClassification": "classify",
    "ForMultipleChoice": "choose",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
}
EXTRA_KEY = "clozelab"  # the key of what a config has no word for
EPSILON = 1e-12  # of the norm inside a beam's head; theirs has that of the encoder


def head_to_config(task: TaskHead, family: str) -> dict[str, Any]:
    """What the config says of the head."""
    config = label_config(task)
    if family in _DROPOUTS:
        config[_dropout_key(family, task.kind)] = task.dropout
    if family == "xlnet" and task.kind in SUMMARISED:
        dense = task.summary.activation != "none"
        config["summary_type"] = "last"
        config["summary_use_proj"] = dense
        config["summary_activation"] = task.summary.activation if dense else "linear"
        if task.summary.drop_first:
            config["summary_first_dropout"] = task.dropout
    if family == "xlnet" and task.kind == "answer" and task.head == "beam":
        config |= {"start_n_top": task.beams, "end_n_top": task.beams}
    return config


def label_config(task: TaskHead) -> dict[str, Any]:
    """The names of the labels, what kind of numbers the logits are, and what else is told."""
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
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, family: str, encoder: Encoder
) -> TaskHead | None:
    """The head that a file holds; None where it holds none, or one that is not available here."""
    kind = _kind(config, tensors, family)
    beam = "start_logits.dense.weight" in tensors
    answers = "start" if beam else "scores"
    last = f"heads.{kind}.{answers if kind == 'answer' else 'classifier'}"
    scores = tensors.get(f"{head_names(family).get(last)}.weight")
    epsilon = typed.number(config, "layer_norm_eps", EPSILON)
    if scores is None or scores.dim() != 2 or (beam and epsilon != EPSILON):
        return None
    if kind == "classify":
        kind = "regress" if len(scores) == 1 else "classify"
        if typed.word(config, "problem_type") not in (None, _PROBLEMS[kind]):
            return None
    summary: Summary | None = default_summary(family, kind)
    if family == "xlnet" and kind in SUMMARISED:
        summary = _xlnet_summary(config)
    if summary is None or summary_is_blind(encoder, family, kind):
        return None
    key = _dropout_key(family, kind)
    return TaskHead(
        kind,
        labels=_labels(config, len(scores)) if kind in ("classify", "tag") else (),
        summary=summary,
        head="beam" if beam else "span",
        beams=typed.whole(config, "start_n_top", 5) or 5,
        impossible=beam and _judges(tensors),
        dropout=typed.number(config, key, encoder.dropout) or 0.0,
        extra=dict(typed.table(config, EXTRA_KEY)),
    )


def _judges(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a beam says that there is no answer: one that was never taught to is all zero."""
    score = tensors.get("answer_class.dense_1.weight")
    return score is None or bool(score.any())


def summary_is_blind(encoder: Encoder, family: str, kind: str) -> bool:
    """Whether the class takes the first token's vector of an encoder that reads left to right."""
    return encoder.causal and kind in SUMMARISED and family not in GPTS


def _kind(config: Mapping[str, Any], tensors: Mapping[str, Tensor], family: str) -> str:
    """By the class that the file was written by, else by what is in it."""
    for name in typed.words(config, "architectures")[:1]:
        for ending, kind in _ENDINGS.items():
            if ending in name:
                return kind
    if "qa_outputs.weight" in tensors or "start_logits.dense.weight" in tensors:
        return "answer"
    if "classifier.weight" not in tensors or "pre_classifier.weight" in tensors:
        return "classify"
    if not any("pooler." in name for name in tensors):
        return "tag"
    return "choose" if family in ROBERTAS else "classify"


def _labels(config: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """The names of the labels, by number; a map that is not of so many is stale."""
    named: dict[int, str] = {}
    for label, name in typed.table(config, "id2label").items():
        if not (str(label).isdecimal() and len(str(label)) < 10 and isinstance(name, str)):
            raise typed.wrong("id2label", config["id2label"], "must name labels by their numbers")
        named[int(label)] = name
    if sorted(named) != list(range(rows)) or len(set(named.values())) != rows:
        return tuple(f"LABEL_{number}" for number in range(rows))
    return tuple(named[number] for number in range(rows))


def _xlnet_summary(config: Mapping[str, Any]) -> Summary | None:
    """XLNet's config says how it sums up; None where ours cannot."""
    proj_to_labels = typed.flag(config, "summary_proj_to_labels")
    if typed.word(config, "summary_type", "last") != "last" or proj_to_labels:
        return None
    dense = typed.flag(config, "summary_use_proj", True)
    activation = typed.word(config, "summary_activation", "linear")
    activation = "tanh" if "summary_activation" not in config else activation or "linear"
    known: dict[tuple[bool, str], Activation] = {
        (True, "tanh"): "tanh",
        (True, "relu"): "relu",
        (False, "linear"): "none",
    }
    usable = known.get((dense, activation))
    first = bool(typed.number(config, "summary_first_dropout", 0.0))
    return None if usable is None else Summary(usable, drop_first=first)


def _dropout_key(family: str, kind: str) -> str:
    if family == "distilbert" and kind == "answer":
        return "qa_dropout"
    return _DROPOUTS.get(family, "")
