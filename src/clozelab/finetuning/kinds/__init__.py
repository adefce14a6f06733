"""Labelled examples, heads and metrics: what an encoder is good for, one kind of task a file."""

from clozelab.finetuning.kinds.answer import Answer
from clozelab.finetuning.kinds.choose import Choose
from clozelab.finetuning.kinds.classify import Classify
from clozelab.finetuning.kinds.coreference import Coreference
from clozelab.finetuning.kinds.regress import Regress
from clozelab.finetuning.kinds.tag import Tag

Kind = Classify | Regress | Choose | Tag | Answer | Coreference

KINDS: dict[str, type[Kind]] = {
    "classify": Classify,
    "regress": Regress,
    "choose": Choose,
    "tag": Tag,
    "answer": Answer,
    "coreference": Coreference,
}
OWN = (*KINDS, "pairs")  # what a task of one's own files goes by; pairs are classified too

__all__ = ["KINDS", "OWN", "Answer", "Choose", "Classify", "Coreference", "Kind", "Regress", "Tag"]
