"""A pretraining run read from its folder: recipe, machine, cost, and losses over tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from clozelab.config.recipe import Recipe
from clozelab.errors import UserError
from clozelab.runs.directory import Entry, Run, losses
from clozelab.text.loading import load
from clozelab.text.tokenizers import part_of

Points = list[tuple[float, float]]  # (tokens, value)


@dataclass(frozen=True)
class RunRecord:
    """What one pretraining run was, did and cost, as far as it got."""

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
    last: dict[str, dict[str, float]]  # the last held-out measurements
    limited_by: str | None  # feed, host, memory or arithmetic; old runs do not say
    changes: Sequence[Entry] = ()  # changes of machine settings, with their steps
    tokenizer_known: bool = True  # False: the recipe has the tokenizer that was asked for

    @property
    def done(self) -> bool:
        """Whether it took all its steps."""
        return self.steps >= self.recipe.schedule.total

    @property
    def reached(self) -> float | None:
        """The last loss of its language model, held out or in training, whichever is lower.

        A run that has learned its text by heart is high on held-out text alone. One that is causal
        in part is a masked language model in the end.
        """
        other = "causal_lm" if self.recipe.schedule.causal else None
        every = (*self.last, *self.train)
        names = [name for name in every if name.endswith("_lm") and name != other]
        ends = [self.last[name]["loss"] for name in names if name in self.last]
        trained = [self.train[name][-3:] for name in names if self.train.get(name)]
        ends += [fmean(loss for _, loss in points) for points in trained]
        return min(ends, default=None)


def read_run(run: Run, name: str) -> RunRecord:
    """One run, as far as it got, under a name."""
    recipe, tokenizer_known = _recipe(run)
    kinds = defaultdict[str, list[Entry]](list)
    for entry in run.events():
        kinds[entry["kind"]].append(entry)
    steps, held_out = kinds["step"], kinds["held_out"]
    tokens_at: dict[int, int] = {}  # tokens seen after each logged step
    seconds, total = 0.0, 0
    for entry in steps:
        total += entry.get("tokens", 0)
        seconds += entry.get("seconds", 0.0)
        tokens_at[entry["step"]] = total
    result = run.result() or {}
    if total and "tokens" in result:  # a thinned log has only some of the steps
        tokens_at = {step: round(n * result["tokens"] / total) for step, n in tokens_at.items()}
    return RunRecord(
        name=name,
        folder=run.path,
        recipe=recipe,
        machine=run.machine(),
        steps=max([result.get("steps", 0), *tokens_at]),
        tokens=result.get("tokens", total),
        seconds=result.get("seconds", seconds),
        train=_curves(steps, tokens_at),
        held_out=_curves(held_out, tokens_at),
        probes=_probes(kinds["probe"], tokens_at),
        last={k: v for k, v in held_out[-1].items() if isinstance(v, dict)} if held_out else {},
        limited_by=result.get("limited_by"),
        changes=[entry for entry in kinds["changed"] if entry.get("settings")],
        tokenizer_known=tokenizer_known,
    )


def _recipe(run: Run) -> tuple[Recipe, bool]:
    """The recipe, and whether it has the tokenizer of the corpus.

    Old runs recorded the tokenizer that was asked for; their checkpoints have the corpus's.
    """
    recipe = run.recipe()
    if run.machine().get("tokenizer") == recipe.tables()["tokenizer"]["use"]:
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
