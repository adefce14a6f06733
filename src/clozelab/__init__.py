"""clozelab pretrains, fine-tunes, distils and compares the BERT family of encoders.

The public names, each imported when it is first used, so that `import clozelab` is quick:
`Recipe` and `read` (recipes), `Corpus` (a store), `pretrain` (a run), `finetune` (runs on a task),
`study` (a comparison of recipes), `load` (a trained model; `load(run).predict([...])` applies a
fine-tuned one), `UserError` (what every mistake raises).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozelab.config.recipe import Recipe, read
    from clozelab.errors import UserError
    from clozelab.finetuning.finetune import finetune
    from clozelab.models.load import load
    from clozelab.pretraining.pretrain import pretrain
    from clozelab.registry import register
    from clozelab.studies.run import study
    from clozelab.text.store import Corpus

__version__ = "0.1.0"
__all__ = [
    "Corpus",
    "Recipe",
    "UserError",
    "finetune",
    "load",
    "pretrain",
    "read",
    "register",
    "study",
]

_HOMES = {
    "Corpus": "clozelab.text.store",
    "Recipe": "clozelab.config.recipe",
    "UserError": "clozelab.errors",
    "finetune": "clozelab.finetuning.finetune",
    "load": "clozelab.models.load",
    "pretrain": "clozelab.pretraining.pretrain",
    "read": "clozelab.config.recipe",
    "register": "clozelab.registry",
    "study": "clozelab.studies.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"clozelab has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
