"""The commands: for each the function that does it, and what is printed of what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clozelab.api import (
    benching,
    corpora,
    matrix,
    models,
    probing,
    recipes,
    studies,
    tasks,
    training,
)
from clozelab.cli import demo, printing, shell


def _nothing(result: Any, values: Mapping[str, Any]) -> None:
    """Print nothing: what there is to say was said on standard error."""


@dataclass(frozen=True)
class Command:
    """One command."""

    call: Callable[..., Any]  # a public function: its options are the command's
    show: Callable[[Any, Mapping[str, Any]], None] = _nothing  # of its result and its options
    required: tuple[str, ...] = ()  # options that Python may leave out
    on_event: Callable[[Any], None] | None = None  # prints while the work goes on

    def run(self, values: Mapping[str, Any]) -> None:
        """Do it, and print what came out."""
        events = {"on_event": self.on_event} if self.on_event else {}
        self.show(self.call(**values, **events), values)


COMMANDS: dict[str, Command] = {
    "corpus build": Command(corpora.build_corpus, printing.corpus),
    "corpus show": Command(printing.corpus_show),
    "corpus check": Command(printing.corpus_check),
    "show": Command(printing.show),
    "diff": Command(printing.diff),
    "mask": Command(recipes.mask, printing.masks),
    "blocks": Command(recipes.show_blocks, printing.blocks),
    "pretrain": Command(training.pretrain),
    "distil": Command(training.distil),
    "evaluate": Command(tasks.evaluate, printing.measured),
    "matrix": Command(matrix.matrix, printing.matrix),
    "probe": Command(probing.probe, printing.probes),
    "tasks": Command(printing.tasks),
    "finetune": Command(tasks.finetune, printing.tuned),
    "predict": Command(tasks.predict, printing.predictions),
    "answer": Command(tasks.answer, printing.answer),
    "study": Command(studies.study, printing.study, on_event=printing.study_event),
    "export": Command(models.export),
    "import": Command(models.import_model),
    "fill": Command(models.fill, printing.filled),
    "embed": Command(models.embed, required=("out",)),
    "report": Command(studies.report),
    "bench": Command(benching.bench, printing.bench),
    "demo": Command(demo.demo),
    "completion": Command(shell.completion),
    "version": Command(printing.version),
}
