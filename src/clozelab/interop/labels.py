"""The head of a task in a config of transformers: labels by name, kind and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clozelab.contracts import UserError
from clozelab.encoder import Encoder, Transformer
from clozelab.interop.heads import (
    ROBERTAS,
    SUMMARISED,
    Activation,
    Summary,
    TaskHead,
    head_names,
    usual,
)
from clozelab.interop.names import GPTS

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
TOLD = "clozelab"  # the key of what a config has no word for
EPSILON = 1e-12  # of the norm inside a beam's head; theirs has that of the encoder


def head_written(task: TaskHead, family: str) -> dict[str, Any]:
    """What the config says of the head."""
    config = labelled(task)
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


def labelled(task: TaskHead) -> dict[str, Any]:
    """The names of the labels, what kind of numbers the logits are, and what else is told."""
    config: dict[str, Any] = {}
    names = {"classify": task.labels, "tag": task.labels, "regress": ("value",)}.get(task.kind)
    if names is not None:
        config["id2label"] = dict(enumerate(names))
        config["label2id"] = {name: number for number, name in enumerate(names)}
    if task.kind in _PROBLEMS:
        config["problem_type"] = _PROBLEMS[task.kind]
    if task.told:
        config[TOLD] = dict(task.told)
    return config


def head_understood(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, family: str, encoder: Encoder
) -> TaskHead | None:
    """The head that a file holds; None where it holds none, or one that is not to be had here."""
    kind = _kind(config, tensors, family)
    beam = "start_logits.dense.weight" in tensors
    answers = "start" if beam else "scores"
    last = f"heads.{kind}.{answers if kind == 'answer' else 'classifier'}"
    rows = tensors.get(f"{head_names(family).get(last)}.weight")
    if rows is None or (beam and config.get("layer_norm_eps", EPSILON) != EPSILON):
        return None
    if kind == "classify":
        kind = "regress" if len(config.get("id2label") or rows) == 1 else "classify"
        if config.get("problem_type") not in (None, _PROBLEMS[kind]):
            return None
    summary: Summary | None = usual(family, kind)
    if family == "xlnet" and kind in SUMMARISED:
        summary = _xlnet_summary(config)
    if summary is None or unseeing(encoder, family, kind):
        return None
    dropout, told = config.get(_dropout_key(family, kind)), config.get(TOLD)
    return TaskHead(
        kind,
        labels=_labels(config, len(rows)) if kind in ("classify", "tag") else (),
        summary=summary,
        head="beam" if beam else "span",
        beams=int(config.get("start_n_top", 5)),
        impossible=beam and _judges(tensors),
        dropout=float(encoder.dropout if dropout is None else dropout),
        told=dict(told) if isinstance(told, Mapping) else {},
    )


def _judges(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a beam says that there is no answer: one that was never taught to is all zero."""
    score = tensors.get("answer_class.dense_1.weight")
    return score is None or bool(score.any())


def unseeing(encoder: Encoder, family: str, kind: str) -> bool:
    """Whether the class takes the first token's vector of an encoder that reads left to right."""
    causal = isinstance(encoder, Transformer) and encoder.causal
    return causal and kind in SUMMARISED and family not in GPTS


def _kind(config: Mapping[str, Any], tensors: Mapping[str, Tensor], family: str) -> str:
    """By the class that the file was written by, else by what is in it."""
    for name in map(str, (config.get("architectures") or ())[:1]):
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
    """The names of the labels, by number."""
    table = config.get("id2label")
    if not table:
        return tuple(f"LABEL_{number}" for number in range(rows))
    try:
        named = {int(number): str(name) for number, name in table.items()}
    except (AttributeError, ValueError):
        named = {}
    if sorted(named) != list(range(len(table))) or len(set(named.values())) != len(table):
        raise UserError(
            "config.json: id2label must give the numbers from 0 a name each, no name twice; mend it"
        )
    return tuple(named[number] for number in range(len(named)))


def _xlnet_summary(config: Mapping[str, Any]) -> Summary | None:
    """XLNet's config says how it sums up; None where ours cannot."""
    if config.get("summary_type", "last") != "last" or config.get("summary_proj_to_labels"):
        return None
    dense, activation = config.get("summary_use_proj", True), config.get("summary_activation")
    activation = "tanh" if "summary_activation" not in config else activation or "linear"
    known: dict[tuple[bool, str], Activation] = {
        (True, "tanh"): "tanh",
        (True, "relu"): "relu",
        (False, "linear"): "none",
    }
    found = known.get((bool(dense), str(activation)))
    first = bool(config.get("summary_first_dropout"))
    return None if found is None else Summary(found, drop_first=first)


def _dropout_key(family: str, kind: str) -> str:
    if family == "distilbert" and kind == "answer":
        return "qa_dropout"
    return _DROPOUTS.get(family, "")
