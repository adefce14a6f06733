"""The record of an adaptation: its gain on the new text, and its forgetting.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.runs.directory import Entry, Run, json_or_empty

FILE = "adaptation.json"  # in the run's folder: what was measured when it was done
_TEXTS = {"held_out": "new text", "general": "general text"}  # by what the log calls them


@dataclass(frozen=True)
class BeforeAfter:
    """One measure of the model before and after."""

    name: str
    before: float
    after: float
    form: str = ".3f"  # how it is written

    def written(self) -> tuple[str, str, str, str]:
        """Its name, both values and their difference, with a true minus sign."""
        change = self.after - self.before
        signed = f"{change:+{self.form}}".replace("-", "−")
        return self.name, f"{self.before:{self.form}}", f"{self.after:{self.form}}", signed


@dataclass(frozen=True)
class AdaptationRecord:
    """The measurements of an adaptation before and after."""

    texts: Mapping[str, str]  # the corpora of "held_out" and "general" by their places
    losses: Mapping[str, Sequence[tuple[int, float]]]  # the held-out loss of each text by step
    best_step: int  # the step whose weights it ends with
    steps: int
    changes: Sequence[str]  # what it changed in the model's recipe
    others: Sequence[BeforeAfter]  # probes, tasks and pseudo-perplexity

    @property
    def gain(self) -> float:
        """By how many nats the loss of the new text fell."""
        before, after = self._before_and_after("held_out")
        return before - after

    @property
    def forgetting(self) -> float | None:
        """By how many nats the loss of the general text rose, if that was measured."""
        if "general" not in self.losses:
            return None
        before, after = self._before_and_after("general")
        return after - before

    @property
    def outweighed(self) -> bool:
        """Whether it forgot more than it gained."""
        return self.forgetting is not None and self.forgetting > max(self.gain, 0.0)

    @property
    def verdict(self) -> str:
        """The gain and the forgetting in a sentence."""
        new = _folder_name(self.texts["held_out"])
        if not self.best_step:
            return f"no step lowered the loss on {new}; the model is unchanged"
        words = [f"new text ({new}): {self.gain:.3f} nats gained"]
        if self.forgetting is None:
            words.append("forgetting is not measured, because there is no general text")
        else:
            what = "forgotten" if self.forgetting > 0 else "gained"
            general = _folder_name(self.texts["general"])
            words.append(f"general text ({general}): {abs(self.forgetting):.3f} {what}")
        words[-1] += f" (the weights of step {self.best_step:,} of {self.steps:,} are kept)"
        return ", ".join(words)

    def rows(self) -> list[BeforeAfter]:
        """All measures before and after."""
        rows = []
        for of in self.losses:
            name = f"held-out loss, {_TEXTS[of]} ({_folder_name(self.texts[of])})"
            rows.append(BeforeAfter(name, *self._before_and_after(of)))
        return [*rows, *self.others]

    def _before_and_after(self, of: str) -> tuple[float, float]:
        losses = dict(self.losses[of])
        return losses[0], losses[self.best_step]


def read_adaptation(run: Run) -> AdaptationRecord | None:
    """The record of an adaptation from its run's folder; None if it is none or not done."""
    facts, result = run.machine(), run.result()
    if "adaptation" not in facts or result is None or "best_step" not in result:
        return None
    settings = facts["adaptation"]
    curves = {of: run.losses(of).get(settings["objective"], []) for of in _TEXTS}
    texts = {
        "held_out": facts["data"][0].rpartition(":")[0],
        "general": settings.get("general", ""),
    }
    best_step = int(result["best_step"])
    losses = {of: points for of, points in curves.items() if {0, best_step} <= {*dict(points)}}
    if "held_out" not in losses:  # the log was damaged
        return None
    return AdaptationRecord(
        texts=texts,
        losses=losses,
        best_step=best_step,
        steps=result["steps"],
        changes=settings.get("changes", []),
        others=[
            *_probes(run.events("probe"), best_step),
            *_measures(json_or_empty(run.path / FILE)),
        ],
    )


def _probes(entries: Sequence[Entry], best_step: int) -> Iterator[BeforeAfter]:
    """Yield the scores of the probes that were run both before and after."""
    by_step = {entry["step"]: entry for entry in entries}
    before, after = by_step.get(0, {}), by_step.get(best_step, {})
    for task, scores in before.items():
        for metric, score in scores.items() if isinstance(scores, dict) else ():
            if metric != "layer" and None not in (score, after.get(task, {}).get(metric)):
                name = f"probe of {task}, {metric.replace('_', ' ')}"
                yield BeforeAfter(name, score, after[task][metric], ".2f")


def _measures(measured: Mapping[str, Any]) -> Iterator[BeforeAfter]:
    """Yield the recorded scores of tasks and pseudo-perplexity."""
    for row in measured.get("rows", []):
        yield BeforeAfter(**row)


def _folder_name(place: str) -> str:
    return Path(place.partition("@")[0]).name
