"""The names of what a study compares: sst2.accuracy, held_out.masked_lm, pair.sentence_order.

A score of a task has the names of the task and of one of its metrics. A held-out loss has the name
of its objective, and so has the accuracy on pairs. A measure from outside is called own.NAME. Only
of losses is lower better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from clozelab import objectives, registry
from clozelab.errors import UserError
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.kinds import KINDS, own_words
from clozelab.nearest import remedy

# Measures from outside: `measure(model, corpus)` of a loaded model and the folder of the corpus.
MEASURES: dict[str, Callable[[Any, str], float]] = {}
registry.opened("measure", MEASURES)


def named_task(task: str, *, place: str) -> str:
    """The name of a task in a study: its own, or that of its folder (KIND=FOLDER)."""
    kind, sign, folder = task.partition("=")
    if sign:
        if kind not in own_words() or not folder:
            raise UserError(
                f"{place}: task {task}: write KIND=FOLDER, with a kind of {', '.join(own_words())}"
            )
        name = Path(folder).name
        if "." in name or name in ("held_out", "pair", "own"):
            raise UserError(
                f"{place}: task {task}: {name} cannot be the name of a task; give the folder a"
                " name without a dot that is not held_out, pair or own"
            )
        return name
    known = [name for name, one in NAMED.items() if "train" in one.splits]
    if task not in known:
        own = " or KIND=FOLDER for your own, as in classify=reviews"
        raise UserError(f"{place}: task {task} is unknown; {remedy(task, known)}{own}")
    return task


def check_score(score: str, tasks: Iterable[str], *, place: str) -> None:
    """Refuse a score that does not exist; `tasks` has the user's own."""
    first, sign, metric = score.partition(".")
    if not sign:
        raise UserError(
            f"{place}: {score} is no score; write TASK.METRIC, held_out.OBJECTIVE or pair.OBJECTIVE"
        )
    if first == "held_out":
        allowed: Iterable[str] = objectives.PARTS
    elif first == "pair":
        allowed = objectives.PAIRS
    elif first == "own":
        registry.find("measure", metric)
        allowed = MEASURES
    else:
        own = {named_task(one, place=place): one for one in tasks if "=" in one}
        allowed = metrics_of(own.get(first) or named_task(first, place=place))
    if metric not in allowed:
        raise UserError(f"{place}: {score} is unknown: after {first}. {remedy(metric, allowed)}")


def is_loss(measure: str) -> bool:
    """Whether lower values of a measure are better."""
    return measure.startswith("held_out.")


def unit(measure: str) -> str:
    """The unit of a measure."""
    return "nats" if is_loss(measure) else "points"


def label(measure: str) -> str:
    """A measure in words, as at the head of a column."""
    words = measure.replace("_", " ").replace(".", " ")
    return f"{words.replace('held out', 'held-out')} loss" if is_loss(measure) else words


def metrics_of(task: str) -> list[str]:
    """The metrics that a task is scored by."""
    kind, sign, _ = task.partition("=")
    if sign:
        return list(KINDS[own_words()[kind][0]].score_names())
    named = NAMED[task]
    if named.scores:
        return list(named.scores)
    metrics = named.settings.get("metrics")
    kind_scores = KINDS[named.kind].score_names(metrics if isinstance(metrics, tuple) else None)
    others = [split.removeprefix("dev_") for split in named.splits if split.startswith("dev_")]
    return [*kind_scores, *(f"{score}_{other}" for other in others for score in kind_scores)]
