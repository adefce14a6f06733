"""The record of a pretraining run: recipe, machine, cost, and losses over tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.runs.diagnostics import followed_objective
from clozelab.runs.directory import Entry, Run, kept, losses
from clozelab.text.loading import load
from clozelab.text.tokenizers import part_of

Points = list[tuple[float, float]]  # (tokens, value)
# The other numbers in each line of a log, with their names in old records.
NUMBERS = {"learning_rate": ("learning_rate", "rate"), "norm": ("norm",)}
NUMBERS |= {"tokens_a_second": ("tokens_a_second",)}


class Moment(NamedTuple):
    """A point in a run: the step, and the tokens and seconds of training until then."""

    step: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class RunRecord:
    """The settings, losses and cost of one pretraining run, as far as it got."""

    name: str
    folder: Path
    recipe: Recipe
    machine: dict[str, Any]
    steps: int
    tokens: int
    seconds: float
    train: dict[str, Points]  # the training loss of each objective
    held_out: dict[str, Points]  # the held-out loss of each objective
    probes: dict[str, Points]  # scores of probes, by task and metric
    last: dict[str, dict[str, float]]  # the last held-out measurements of the weights it keeps
    limited_by: str | None  # feed, host, memory or arithmetic; old runs do not say
    changes: Sequence[Entry] = ()  # changes of machine settings, with their steps
    tokenizer_known: bool = True  # False: the recipe has the tokenizer that was asked for
    clock: Sequence[Moment] = ()  # of each line of the log
    numbers: Mapping[str, Points] = field(default_factory=dict)  # by the names of NUMBERS
    chance: Mapping[str, float] = field(default_factory=dict)  # of probes, a constant answer's
    probed: Mapping[str, float] = field(default_factory=dict)  # the last scores, as `last`

    @property
    def done(self) -> bool:
        """Whether it took all its steps."""
        return self.steps >= self.recipe.schedule.total

    @property
    def untrained(self) -> frozenset[str]:
        """The objectives that are measured but whose heads are never trained."""
        trained, measured = [], set()
        for part in self.recipe.objectives:
            if part.weight and (not part.course or any(factor for _, factor in part.course)):
                trained.append(part)
            else:
                measured.add(slots.use("objectives", part))
        return frozenset(measured - {part.also_trains for part in trained})

    @property
    def text(self) -> str:
        """The place of its first corpus, whose held-out text it is measured on; empty: unknown."""
        place = self._first("data")
        return place.rpartition(":")[0] or place

    @property
    def comparison_key(self) -> tuple[str, str]:
        """A key that is equal for runs whose losses can be compared: one tokenizer, one text.

        Old runs do not record their tokenizer: the text and the vocabulary size stand for it.
        """
        tokenizer = self.machine.get("tokenizer_digest") or self.recipe.tokenizer.vocabulary
        return str(tokenizer), self._first("fingerprint") or self.text

    def _first(self, fact: str) -> str:
        """Of a fact about each corpus, that of the first; the oldest runs had one corpus."""
        facts = self.machine.get(fact) or [""]
        return str(facts if isinstance(facts, str) else facts[0])

    @property
    def reached(self) -> float | None:
        """The last loss of its language model, held-out or in training, whichever is lower.

        (A run that has memorised its text has a high held-out loss only.) A loss that is not
        finite, as of a run that diverged, is not recorded.
        """
        name = followed_objective(self.recipe)
        held_out = self.last.get(name, {}).get("loss")
        ends = [] if held_out is None else [held_out]
        if points := self.train.get(name, [])[-3:]:
            ends.append(fmean(loss for _, loss in points))
        return min(ends, default=None)

    @property
    def found_replaced(self) -> float | None:
        """The share of replaced tokens that its detector finds; None without a detector."""
        detectors = (part for part in self.recipe.objectives if part.detects_replaced)
        last = (self.last.get(slots.use("objectives", part), {}) for part in detectors)
        return next(
            (means["accuracy_replaced"] for means in last if "accuracy_replaced" in means), None
        )


def read_run(run: Run, name: str) -> RunRecord:
    """The record of a run, as far as it got, under a name."""
    facts = run.machine()
    recipe, tokenizer_known = _recipe(run, facts)
    kinds = defaultdict[str, list[Entry]](list)
    for entry in run.events():
        kinds[entry["kind"]].append(entry)
    steps, held_out = kinds["step"], kinds["held_out"]
    result = run.result() or {}
    last = kept(held_out, result)[-1:]
    probes = _probes(kept(kinds["probe"], result), {})
    clock = _moments(steps, result)
    tokens_at = {moment.step: moment.tokens for moment in clock}
    total = sum(entry.get("tokens", 0) for entry in steps)
    seconds = sum(entry.get("seconds", 0.0) for entry in steps)
    return RunRecord(
        name=name,
        folder=run.path,
        recipe=recipe,
        machine=facts,
        steps=max([result.get("steps", 0), *tokens_at]),
        tokens=result.get("tokens", total),
        seconds=result.get("seconds", seconds),
        train=_curves(steps, tokens_at),
        held_out=_curves(held_out, tokens_at),
        probes=_probes(kinds["probe"], tokens_at),
        last={k: v for entry in last for k, v in entry.items() if isinstance(v, dict)},
        limited_by=result.get("limited_by"),
        changes=[entry for entry in kinds["changed"] if entry.get("settings")],
        tokenizer_known=tokenizer_known,
        clock=clock,
        numbers=_numbers(steps, tokens_at),
        chance=facts.get("probe_constants", {}),
        probed={name: points[-1][1] for name, points in probes.items()},
    )


def _moments(steps: Sequence[Entry], result: Mapping[str, Any]) -> list[Moment]:
    """The moment of each log line; a thinned log lacks some steps, so its sums are scaled."""
    if not steps:
        return []
    # The first line includes the compilation, which must not be scaled.
    first = steps[0].get("seconds", 0.0)
    tokens = sum(entry.get("tokens", 0) for entry in steps)
    rest = sum(entry.get("seconds", 0.0) for entry in steps) - first
    token_scale = result.get("tokens", tokens) / max(tokens, 1)
    time_scale = max(result.get("seconds", first + rest) - first, 0.0) / max(rest, 1e-9)
    moments, seen, spent = [], 0, 0.0
    for entry in steps:
        seen += entry.get("tokens", 0)
        spent += entry.get("seconds", 0.0)
        seconds = first + (spent - first) * time_scale
        moments.append(Moment(entry["step"], round(seen * token_scale), seconds))
    return moments


def _numbers(steps: Sequence[Entry], tokens_at: Mapping[int, int]) -> dict[str, Points]:
    """The other numbers of the log over the tokens seen, without those that are not finite."""
    curves: dict[str, Points] = {}
    for name, words in NUMBERS.items():
        logged_name = next((word for word in words if any(word in entry for entry in steps)), None)
        if logged_name is not None:
            curves[name] = [
                (float(tokens_at[entry["step"]]), float(entry[logged_name]))
                for entry in steps
                if entry.get(logged_name) is not None
            ]
    return curves


def _recipe(run: Run, facts: Mapping[str, Any]) -> tuple[Recipe, bool]:
    """The recipe, and whether its tokenizer is that of the corpus.

    Old runs recorded the tokenizer that was asked for; their checkpoints have the corpus's.
    """
    recipe = run.recipe()
    if facts.get("tokenizer") == recipe.tables()["tokenizer"]["use"]:
        return recipe, True
    saved = sorted(run.checkpoints.glob("step-*/tokenizer.json"))
    try:
        tokenizer = load(saved[-1])
    except (IndexError, UserError):
        return recipe, False
    known = part_of(tokenizer) is not None
    return recipe.reading(tokenizer, vocabulary=recipe.tokenizer.vocabulary), known


def _curves(entries: Sequence[Entry], tokens_at: Mapping[int, int]) -> dict[str, Points]:
    """Each objective's loss over the tokens seen."""
    return {
        name: [(_tokens_after(step, tokens_at), loss) for step, loss in points]
        for name, points in losses(entries).items()
    }


def _probes(entries: Sequence[Entry], tokens_at: Mapping[int, int]) -> dict[str, Points]:
    """Each score of each probe over the tokens seen."""
    curves: dict[str, Points] = {}
    for entry in entries:
        for task, scores in entry.items():
            for name, score in scores.items() if isinstance(scores, dict) else ():
                if name != "layer" and score is not None:
                    point = _tokens_after(entry["step"], tokens_at), score
                    curves.setdefault(f"{task} {name}", []).append(point)
    return curves


def _tokens_after(step: int, tokens_at: Mapping[int, int]) -> float:
    """The tokens seen after a step, or after the nearest step before it that was logged."""
    nearest = step if step in tokens_at else max((n for n in tokens_at if n <= step), default=0)
    return float(tokens_at.get(nearest, 0))
