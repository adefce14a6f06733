"""Labelled examples, heads and metrics: what an encoder is good for, one kind of task a file."""

from clozelab.tasks.answer import Answer
from clozelab.tasks.choose import Choose
from clozelab.tasks.classify import Classify
from clozelab.tasks.coreference import Coreference
from clozelab.tasks.regress import Regress
from clozelab.tasks.tag import Tag

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
