"""Heads of tasks as the classes of transformers have them: which there are, what they hold.

A fine-tuned model's tensors are named `encoder.…` and `heads.<kind>.…`, kind being classify,
regress, choose, tag or answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from torch import Size

Activation = Literal["tanh", "relu", "none"]
ROBERTAS = ("roberta", "roberta-prelayernorm")  # the second has its norms before each half
SUMMARISED = ("classify", "regress", "choose")  # kinds that make one vector of a block


class Summary(NamedTuple):
    """How one vector becomes logits: a dense layer with an activation, and a classifier."""

    activation: Activation = "tanh"  # none: neither dense layer nor activation
    drop_first: bool = False  # dropout before the dense layer too, not only after it
    bias: bool = True  # of the classifier


class TaskHead(NamedTuple):
    """What a class of transformers is chosen by; the rest of a head is its weights."""

    kind: str
    labels: tuple[str, ...] = ()  # of classify and tag: their order is that of the logits
    summary: Summary = Summary()  # of the kinds that have one
    pool: Literal["mark", "mean"] = "mark"
    head: Literal["span", "beam"] = "span"  # of answer
    beams: int = 5  # of a beam: how many starts, and ends of each
    impossible: bool = False  # of a beam: whether it judges that there is an answer at all
    dropout: float = 0.1
    vectors: str = "last"  # what the head stands on; only the last layer's go anywhere
    # What a config has no word for, as how texts are laid or when there is no answer: it lies in
    # the config under a key of ours, which transformers keeps as it is.
    extra: Mapping[str, Any] = MappingProxyType({})

    @property
    def outputs(self) -> int:
        """Logits of a vector."""
        return len(self.labels) if self.kind in ("classify", "tag") else 1


_STEMS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "roberta-prelayernorm": "RobertaPreLayerNorm",
    "albert": "Albert",
    "distilbert": "DistilBert",
    "xlnet": "XLNet",
    "openai-gpt": "OpenAIGPT",
    "gpt2": "GPT2",
}
_ENDINGS = {
    "classify": "ForSequenceClassification",
    "regress": "ForSequenceClassification",
    "choose": "ForMultipleChoice",
    "tag": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
}
_LACKING = {"openai-gpt": ("choose", "tag", "answer"), "gpt2": ("choose",)}


def architecture(family: str, task: TaskHead) -> str | None:
    """The class that has such a head over that family's encoder, if there is one."""
    lacking = _LACKING.get(family, ())
    if family not in _STEMS or task.kind not in _ENDINGS or task.kind in lacking:
        return None
    beam = task.kind == "answer" and task.head == "beam"
    if beam and family != "xlnet":
        return None
    simple = "Simple" if family == "xlnet" and task.kind == "answer" and not beam else ""
    return f"{_STEMS[family]}{_ENDINGS[task.kind]}{simple}"


# The dense layer and the classifier of a class that makes one vector of a block.
_SUMMARY_NAMES = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("roberta.pooler.dense", "classifier"),
    "roberta-prelayernorm": ("roberta_prelayernorm.pooler.dense", "classifier"),
    "albert": ("albert.pooler", "classifier"),
    "distilbert": ("pre_classifier", "classifier"),
    "xlnet": ("sequence_summary.summary", "logits_proj"),
    "openai-gpt": ("", "score"),
    "gpt2": ("", "score"),
}
_BEAM_NAMES = {
    "heads.answer.start": "start_logits.dense",
    "heads.answer.end_dense": "end_logits.dense_0",
    "heads.answer.end_norm": "end_logits.LayerNorm",
    "heads.answer.end_scores": "end_logits.dense_1",
    "heads.answer.class_dense": "answer_class.dense_0",
    "heads.answer.class_score": "answer_class.dense_1",
}


def head_names(family: str) -> dict[str, str]:
    """Our modules and theirs, of every kind's head."""
    found = {"heads.tag.classifier": "classifier", "heads.answer.scores": "qa_outputs"}
    for kind in SUMMARISED:
        dense, classifier = _SUMMARY_NAMES[family]
        if family in ROBERTAS and kind != "choose":  # the classes that ignore their pooler
            dense, classifier = "classifier.dense", "classifier.out_proj"
        found[f"heads.{kind}.classifier"] = classifier
        if dense:
            found[f"heads.{kind}.dense"] = dense
    return found | (_BEAM_NAMES if family == "xlnet" else {})


_SUMMARIES = {
    "roberta": Summary(drop_first=True),
    "roberta-prelayernorm": Summary(drop_first=True),
    "distilbert": Summary("relu"),
    "openai-gpt": Summary("none", bias=False),
    "gpt2": Summary("none", bias=False),
}


def default_summary(family: str, kind: str) -> Summary:
    """The summary of a family's class for that kind; BERT's where it has no other."""
    if kind not in SUMMARISED or (family in ROBERTAS and kind == "choose"):
        return Summary()
    return _SUMMARIES.get(family, Summary())


def head_shapes(task: TaskHead, width: int) -> dict[str, Size]:
    """Every tensor of the head, by our name."""
    dense = {"dense.weight": (width, width), "dense.bias": (width,)}
    classifier = {"classifier.weight": (task.outputs, width), "classifier.bias": (task.outputs,)}
    parts: dict[str, tuple[int, ...]]
    if task.kind in SUMMARISED:
        parts = {**(dense if task.summary.activation != "none" else {}), **classifier}
        if not task.summary.bias:
            del parts["classifier.bias"]
    elif task.kind == "tag":
        parts = {**classifier}
    elif task.head == "span":
        parts = {"scores.weight": (2, width), "scores.bias": (2,)}
    else:
        parts = {
            "start.weight": (1, width),
            "start.bias": (1,),
            "end_dense.weight": (width, 2 * width),
            "end_dense.bias": (width,),
            "end_norm.weight": (width,),
            "end_norm.bias": (width,),
            "end_scores.weight": (1, width),
            "end_scores.bias": (1,),
        }
        if task.impossible:
            parts |= {
                "class_dense.weight": (width, 2 * width),
                "class_dense.bias": (width,),
                "class_score.weight": (1, width),
            }
    return {f"heads.{task.kind}.{name}": Size(shape) for name, shape in parts.items()}
