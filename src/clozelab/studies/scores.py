"""The names of scores in a study: sst2.accuracy, held_out.masked_lm, pair.sentence_order.

A score of a task is TASK.METRIC. Every other measure is KIND.NAME, and `MEASURE_KINDS` describes
the kinds; studies/measures.py computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozelab import objectives, registry
from clozelab.errors import UserError
from clozelab.finetuning.files.named import NAMED
from clozelab.finetuning.kinds import KINDS, own_words
from clozelab.nearest import listed, remedy


@dataclass(frozen=True)
class MeasureKind:
    """What KIND.NAME means in a study."""

    says: str  # its label in tables; {} is the name, as `written`
    names: Callable[[], Iterable[str]] | None = None  # the allowed names; None: any
    unit: str = "points"
    lower: bool = False  # whether lower values are better
    gated: bool = True  # whether runs on the plateau are excluded from it
    written: Mapping[str, str] = field(default_factory=dict)  # names that a label writes otherwise


def _names(*names: str) -> Callable[[], Iterable[str]]:
    return lambda: names


# Measures from a run's own log.
RUN = ("finished", "left_plateau", "spikes", "gradient_tail")
MEASURE_KINDS = {
    "held_out": MeasureKind(
        "held-out {} loss",
        lambda: objectives.PARTS,
        unit="nats",
        lower=True,
        written={"masked_lm": "masked-LM", "causal_lm": "causal-LM"},
    ),
    "under": MeasureKind("masked-LM loss under the masks of {}", unit="nats", lower=True),
    "joint": MeasureKind(
        "loss of two words masked together{}",
        _names("two", "chain"),
        unit="nats",
        lower=True,
        written={"two": "", "chain": ", by the chain rule"},
    ),
    "gain": MeasureKind("gain of the {} rule over independence", _names("chain"), unit="nats"),
    "pair": MeasureKind("pair {}", lambda: objectives.PAIRS),
    "pairs": MeasureKind(
        "minimal pairs, {}",
        written={"blimp": "BLiMP", "zhoblimp": "ZhoBLiMP", "crows_pairs": "CrowS-Pairs"},
    ),
    "probe": MeasureKind("frozen probe, {}"),
    "cls": MeasureKind("frozen probe of [CLS], {}"),
    "facts": MeasureKind("cloze facts, {}"),
    "run": MeasureKind("share of runs: {}", _names(*RUN[:2]), gated=False),
    "log": MeasureKind("{} of a run", _names(*RUN[2:]), unit="times", lower=True, gated=False),
    "spread": MeasureKind("deviation over tunings of {}", lower=True),
    "worst": MeasureKind("worst tuning of {}"),
    "best": MeasureKind("best tuning of {}"),
    "own": MeasureKind("own {}"),
}
TUNINGS = ("spread", "worst", "best")  # over several fine-tunings of one encoder, by TASK.METRIC

_TASK_KIND = MeasureKind("{}")
_DEFAULT_SIZE = 1_000  # items of an evaluation set whose size is not known
_CORRELATION = 0.5  # assumed correlation of two models' answers, if items are not recorded

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
        if "." in name or name in MEASURE_KINDS:
            raise UserError(
                f"{place}: task {task}: {name} cannot be the name of a task; give the folder a"
                f" name without a dot that is not {listed(MEASURE_KINDS)}"
            )
        return name
    known = [name for name, one in NAMED.items() if "train" in one.splits]
    if task not in known:
        own = " or KIND=FOLDER for your own, as in classify=reviews"
        raise UserError(f"{place}: task {task} is unknown; {remedy(task, known)}{own}")
    return task


def check_score(score: str, tasks: Iterable[str], *, place: str) -> None:
    """Refuse a score that does not exist; `tasks` are those of the study."""
    first, sign, name = score.partition(".")
    if not sign or not name:
        raise UserError(
            f"{place}: {score} is not a score; write TASK.METRIC, held_out.OBJECTIVE or"
            " pair.OBJECTIVE"
        )
    if first in TUNINGS:
        check_score(name, tasks, place=place)
        return
    allowed: Iterable[str] | None
    if first == "own":
        registry.find("measure", name)
        allowed = MEASURES
    elif first in MEASURE_KINDS:
        names = MEASURE_KINDS[first].names
        allowed = names and names()
    else:
        own = {named_task(one, place=place): one for one in tasks if "=" in one}
        allowed = metrics_of(own.get(first) or named_task(first, place=place))
    if allowed is not None and name not in allowed:
        raise UserError(f"{place}: {score} is unknown: after {first}. {remedy(name, allowed)}")


def kind_of(measure: str) -> MeasureKind:
    """The kind of a measure; a task's scores are points, and higher is better."""
    return MEASURE_KINDS.get(measure.partition(".")[0], _TASK_KIND)


def is_loss(measure: str) -> bool:
    """Whether lower values of a measure are better."""
    return kind_of(measure).lower


def unit(measure: str) -> str:
    """The unit of a measure."""
    return kind_of(measure).unit


def decimals(measure: str) -> int:
    """How many decimals are shown: nats need three, points one."""
    return 3 if is_loss(measure) or unit(measure) == "nats" else 1


def label(measure: str) -> str:
    """The label of a measure in tables."""
    first, _, name = measure.partition(".")
    if first not in MEASURE_KINDS:
        name = measure
    kind = kind_of(measure)
    return kind.says.format(kind.written.get(name, name.replace("_", " ").replace(".", " ")))


def sampling_variance(
    measure: str, value: float, sizes: Mapping[str, float], *, compared: bool = False
) -> float:
    """The variance of a score by the sampling of its items.

    `sizes` are the numbers of items by task or kind of measure. An accuracy has the variance of a
    binomial, which bounds that of any mean of numbers between 0 and 1, and nearly that of a
    correlation. The losses of two models on one token differ by about a nat (standard deviation),
    of which each model has half the variance. Their answers to a question are assumed to be
    correlated, which takes a part of the variance where they are `compared`.
    """
    first, _, rest = measure.partition(".")
    task = rest.partition(".")[0] if first in TUNINGS else first
    size = sizes.get(measure) or sizes.get(task) or _DEFAULT_SIZE
    if first == "spread" or unit(measure) == "times":
        return 0.0
    if unit(measure) == "nats":
        return 0.5 / size
    share = min(max(value, 0.0), 100.0)
    share = (share * size / 100 + 1) / (size + 2)  # keeps it between 0 and 1
    variance = 1e4 * share * (1 - share) / size
    return (1 - _CORRELATION) * variance if compared and kind_of(measure).gated else variance


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
