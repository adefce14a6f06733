"""clozelab pretrains, fine-tunes, distils, scores and compares the BERT family of encoders.

Every command of the command line is a function here, with the same options. A function blocks,
reports its progress on standard error (`progress=False` turns this off), and returns an object:

    corpus = clozelab.build_corpus("books/*.txt", out="corpus")
    run = clozelab.pretrain("roberta", data=corpus, size="tiny", budget="20m", out="runs/a")
    run.load().fill("It was a [MASK] night.")

Functions accept paths, strings and objects alike. A mistake raises `UserError`. Names are imported
when they are first used, so that `import clozelab` is fast. Names outside `__all__` are private.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozelab.api.adapting import adapt
    from clozelab.api.benching import bench
    from clozelab.api.corpora import (
        add_to_corpus,
        build_corpus,
        check_corpus,
        corpus_plans,
        show_corpus,
    )
    from clozelab.api.diagnosing import doctor
    from clozelab.api.measuring import evaluate, matrix, probe
    from clozelab.api.models import embed, export, fill, generate, import_model, load
    from clozelab.api.predicting import answer, predict
    from clozelab.api.recipes import diff, mask, read, show_blocks
    from clozelab.api.scoring import score
    from clozelab.api.serving import serve
    from clozelab.api.studies import Study, merge_studies, report, study
    from clozelab.api.tasks import finetune, tasks
    from clozelab.api.tracking import track
    from clozelab.api.training import distil, pretrain, resume
    from clozelab.api.vocabularies import add_to_vocabulary, show_vocabulary, trim_vocabulary
    from clozelab.config.recipe import Recipe
    from clozelab.errors import UserError
    from clozelab.models.model import Model
    from clozelab.registry import register
    from clozelab.runs.directory import Run
    from clozelab.text.store import Corpus

__version__ = "0.2.0"
__all__ = [
    "Corpus",
    "Model",
    "Recipe",
    "Run",
    "Study",
    "UserError",
    "adapt",
    "add_to_corpus",
    "add_to_vocabulary",
    "answer",
    "bench",
    "build_corpus",
    "check_corpus",
    "corpus_plans",
    "diff",
    "distil",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "fill",
    "finetune",
    "generate",
    "import_model",
    "load",
    "mask",
    "matrix",
    "merge_studies",
    "predict",
    "pretrain",
    "probe",
    "read",
    "register",
    "report",
    "resume",
    "score",
    "serve",
    "show_blocks",
    "show_corpus",
    "show_vocabulary",
    "study",
    "tasks",
    "track",
    "trim_vocabulary",
]

_HOMES = {
    "clozelab.api.adapting": ("adapt",),
    "clozelab.api.benching": ("bench",),
    "clozelab.api.corpora": (
        "add_to_corpus",
        "build_corpus",
        "check_corpus",
        "corpus_plans",
        "show_corpus",
    ),
    "clozelab.api.diagnosing": ("doctor",),
    "clozelab.api.measuring": ("evaluate", "matrix", "probe"),
    "clozelab.api.models": ("embed", "export", "fill", "generate", "import_model", "load"),
    "clozelab.api.predicting": ("answer", "predict"),
    "clozelab.api.recipes": ("diff", "mask", "read", "show_blocks"),
    "clozelab.api.scoring": ("score",),
    "clozelab.api.serving": ("serve",),
    "clozelab.api.studies": ("Study", "merge_studies", "report", "study"),
    "clozelab.api.tasks": ("finetune", "tasks"),
    "clozelab.api.tracking": ("track",),
    "clozelab.api.training": ("distil", "pretrain", "resume"),
    "clozelab.api.vocabularies": ("add_to_vocabulary", "show_vocabulary", "trim_vocabulary"),
    "clozelab.config.recipe": ("Recipe",),
    "clozelab.errors": ("UserError",),
    "clozelab.models.model": ("Model",),
    "clozelab.registry": ("register",),
    "clozelab.runs.directory": ("Run",),
    "clozelab.text.store": ("Corpus",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"clozelab has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
