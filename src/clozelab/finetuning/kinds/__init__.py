"""Kinds of tasks: examples, settings, head, metrics and output of each.

`TaskKind` is the interface of a kind. One from outside joins `KINDS` by
`clozelab.register("task", name, kind)`.
"""

from collections.abc import Mapping

from clozelab import registry
from clozelab.finetuning.files.named import Setting
from clozelab.finetuning.kinds.answer import Answer
from clozelab.finetuning.kinds.choose import Choose
from clozelab.finetuning.kinds.coreference import Coreference
from clozelab.finetuning.kinds.kind import TaskKind
from clozelab.finetuning.kinds.sentences import Classify, Regress
from clozelab.finetuning.kinds.tag import Tag

KINDS: dict[str, type[TaskKind]] = {
    "classify": Classify,
    "regress": Regress,
    "choose": Choose,
    "tag": Tag,
    "answer": Answer,
    "coreference": Coreference,
}
registry.opened("task", KINDS)


def own_words() -> dict[str, tuple[str, Mapping[str, Setting]]]:
    """The words for tasks of a user's own files: the kind of each, and its settings."""
    registry.load_given()
    words: dict[str, tuple[str, Mapping[str, Setting]]] = {name: (name, {}) for name in KINDS}
    for name, kind in KINDS.items():
        words |= {word: (name, settings) for word, settings in kind.words.items()}
    return words


__all__ = [
    "KINDS",
    "Answer",
    "Choose",
    "Classify",
    "Coreference",
    "Regress",
    "Tag",
    "TaskKind",
    "own_words",
]
