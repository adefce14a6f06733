"""What is known of a run, a folder or a corpus, for the checks; None is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clozelab.config.recipe import Recipe
from clozelab.diagnosis.text import TextFacts
from clozelab.diagnosis.weights import EmbeddingTable
from clozelab.masking import Corruption
from clozelab.runs.diagnostics import StepTimes, copying_loss, plateau_level

Floats = NDArray[np.float64]
_YOUNG_SHARE = 0.3  # share of the steps, as _EARLY in runs/diagnostics.py
_LAST_LINES = 0.05  # share of the log whose mean is the current loss
# The unigram entropy as a share of ln(vocabulary): of English text by 8,192 pieces 0.77, by 30,522
# pieces 0.71 (results/README.md). Used if there is no corpus.
_TYPICAL = 0.73
_TRAINER_KEYS = {  # our setting: that of transformers' Trainer
    "optimiser.learning_rate": "learning_rate",
    "optimiser.clip": "max_grad_norm",
    "schedule.warmup": "warmup_steps",
}
_TRAINED = 0.85  # share of the plateau's loss; a log that begins below it is of a trained model


@dataclass(frozen=True)
class TrainingLog:
    """The log of a run: a row for each line of it."""

    objective: str  # whose loss it is
    total: int  # steps of the whole run; if not known, those done
    steps: Floats
    loss: Floats  # NaN if missing or not finite
    norm: Floats  # of the gradient, before clipping
    learning_rate: Floats
    tokens: Floats  # seen so far; NaN if not counted
    held_out: Sequence[tuple[float, float]] = ()  # step and loss
    not_finite: Sequence[tuple[int, str]] = ()  # step, and what was not finite
    ended: int = 0  # steps of a run that is done
    warmup: int = 0
    clip: float | None = None  # the largest gradient norm; 0 is no clipping
    times: StepTimes | None = None
    limited_by: str | None = None  # as the run recorded it
    accuracy: Mapping[str, float] = field(default_factory=dict)  # by token read: mask, …
    settings: Mapping[str, object] = field(default_factory=dict)  # precision and the like

    @cached_property
    def after_warmup(self) -> NDArray[np.bool_]:
        """The lines after the warm-up whose loss is known."""
        return np.asarray((self.steps > self.warmup) & np.isfinite(self.loss))

    @cached_property
    def end(self) -> float | None:
        """The current training loss: the mean of the last lines."""
        losses = self.loss[np.isfinite(self.loss)]
        last = losses[-max(3, int(len(losses) * _LAST_LINES)) :]
        return float(last.mean()) if len(last) else None

    @property
    def done(self) -> int:
        """The number of steps done; a log may have lost its last lines."""
        return max(int(self.steps[-1]) if len(self.steps) else 0, self.ended)

    @property
    def young(self) -> bool:
        """Whether it may still be on the plateau, which every run passes."""
        return self.done < _YOUNG_SHARE * self.total

    @property
    def peak(self) -> float:
        """The highest learning rate; 0 if none is known."""
        return float(np.nan_to_num(self.learning_rate).max(initial=0.0))

    @property
    def travelled(self) -> float:
        """The sum of the learning rates so far: how far Adam can move a weight."""
        known = np.isfinite(self.learning_rate)
        rates, steps = self.learning_rate[known], self.steps[known]
        return float((rates * np.diff(steps, prepend=0.0)).sum())


@dataclass(frozen=True)
class MaskToken:
    """The mask token, as the tokenizer's files name it."""

    name: str | None
    number: int | None  # its id; None: the tokenizer does not know it
    pieces: int  # the number of tokens that its name is split into in a text
    same_as: str | None = None  # another role that has the same id
    others: Sequence[str] = ()  # further spellings that the tokenizer has


@dataclass(frozen=True)
class Case:
    """A run, a folder or a corpus to be checked."""

    place: str
    kind: Literal["run", "folder", "corpus"]
    state: str
    log: TrainingLog | None = None
    recipe: Recipe | None = None
    text: TextFacts | None = None
    language_model: bool = False  # the loss is in nats per token
    predicts_masks: bool = False
    origin: str | None = None  # the model that it started from, or learns from
    size: tuple[int, int] | None = None  # layers and hidden size
    vocabulary: int | None = None  # rows of the embedding table
    entropy: float | None = None  # of the text's tokens, if no more of it is read
    masked_share: float | None = None  # counted in the text
    mask_token: MaskToken | None = None
    tables: Sequence[EmbeddingTable] = ()
    damaged: Path | None = None  # the newest weights, if they cannot be read
    accuracy: Mapping[str, float] = field(default_factory=dict)  # on held-out text, or in training
    unknown: Sequence[str] = ()

    @property
    def loss(self) -> float | None:
        """The last loss: on held-out text, or else in training."""
        if self.log is None:
            return None
        return self.log.held_out[-1][1] if self.log.held_out else self.log.end

    @property
    def unigram(self) -> float | None:
        """The unigram entropy; estimated if the text is not available."""
        if self.text is not None:
            return self.text.unigram
        if self.entropy is not None:
            return self.entropy
        return None if self.vocabulary is None else _TYPICAL * float(np.log(self.vocabulary))

    @property
    def unigram_known(self) -> bool:
        """Whether the unigram entropy is that of the text itself."""
        return self.text is not None or self.entropy is not None

    @property
    def plateau(self) -> float | None:
        """The loss of frequencies and copying alone; without a recipe BERT's masks are assumed."""
        if self.unigram is None:
            return None
        if self.recipe is not None:
            return plateau_level(self.recipe, self.unigram)
        return copying_loss(self.unigram, Corruption()) if self.predicts_masks else self.unigram

    @property
    def continued(self) -> bool:
        """Whether it started from trained weights, by its records or its first loss."""
        if self.recipe is not None or self.log is None or self.plateau is None:
            return self.origin is not None
        first = self.log.loss[np.isfinite(self.log.loss)][:1]
        return bool(self.language_model and (first < _TRAINED * self.plateau).any())

    def key(self, name: str) -> str:
        """The name of a setting in the library that made the run."""
        return _TRAINER_KEYS[name] if self.kind == "folder" else name

    @property
    def changes_course(self) -> bool:
        """Whether block length or direction changes during the run, so that its loss may jump."""
        schedule = self.recipe.schedule if self.recipe is not None else None
        return schedule is not None and bool(schedule.phases or schedule.causal)

    @property
    def worse_than_guessing(self) -> bool:
        """Whether the loss is above that of a uniform guess."""
        loss, uniform = self.losses.get("loss"), self.losses.get("uniform")
        return loss is not None and uniform is not None and loss > 1.02 * uniform

    @property
    def losses(self) -> dict[str, float]:
        """The loss, and the levels that it is compared with."""
        known = {
            "loss": self.loss if self.language_model else None,
            "uniform": None if self.vocabulary is None else float(np.log(self.vocabulary)),
            "unigram": self.text.unigram if self.text else None,
            "plateau": self.plateau if self.text else None,
            "bigram": self.text.bigram if self.text else None,
        }
        return {name: value for name, value in known.items() if value is not None}
