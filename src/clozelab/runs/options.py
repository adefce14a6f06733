"""Options that many functions share: those of the machine, and how often a run saves.

Nothing here needs torch: the command line reads these for its help.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from clozelab.config.renamed import OldNameWarning
from clozelab.errors import UserError
from clozelab.options import Few, OneOf, Place, Words, option, whole
from clozelab.ranges import CheckedOptions, at_least
from clozelab.tracking import TrackerNames, tracker

if TYPE_CHECKING:
    from clozelab.training.schedule import Schedule

Precision = Literal["fp32", "bf16", "fp16"]
Count = Annotated[int, whole, at_least(1)]
_RECORDED = ("save_every", "evaluate_every", "evaluate_blocks")
Device = Annotated[str, OneOf("cpu", "cuda"), "where to compute (a GPU, if there is one)"]


@dataclass(frozen=True)
class MachineOptions(CheckedOptions):
    """Options that change the speed. The precision also changes the arithmetic. With dropout, the
    micro-batch changes what is dropped; without dropout, it changes no gradient.
    """

    device: Device | None = option("where to compute (a GPU, if there is one)")
    precision: Precision | None = option("precision of the arithmetic (bf16 on a GPU, else fp32)")
    micro_batch: Count | None = option("full-length sequences at a time (what fits in memory)")
    workers: Few | None = option(
        "threads (pretraining on a GPU: processes) that prepare batches (1)"
    )
    compile: bool | None = option("compile the model (on a GPU)")
    kernels: bool | None = option("use clozelab's kernels in a compiled model (on a GPU)")
    graphs: bool | None = option("replay compiled steps as CUDA graphs (narrow models)")
    recompute: bool | None = option("recompute activations: less memory, more time")


@dataclass(frozen=True)
class TrackOptions(CheckedOptions):
    """Where a run is logged, besides its folder. A tracker that fails does not stop the run."""

    track: TrackerNames = option(
        "also log to trackio, wandb, mlflow or tensorboard; none stops that", (), metavar="NAME"
    )
    tags: Words = option("tags of the run in the tracker", (), metavar="TAG,…")


@dataclass(frozen=True)
class SaveOptions(TrackOptions):
    """How often a run saves and evaluates, in steps; by default ten times, with 0 only at the end.

    With a time budget it evaluates less often if evaluations would take over a tenth of the time.
    """

    save_every: int | None = option("steps between checkpoints; 0: only at the end (total/10)")
    keep: int | None = option("checkpoints to keep; 0 for all (2; a resumed run: as before)")
    evaluate_every: int | None = option("steps between evaluations on held-out text (total/10)")
    evaluate_blocks: Count | None = option("held-out blocks in one evaluation (1,024)")
    probe: Words | None = option(
        "tasks to probe during training, also blimp; the training does not change", metavar="TASK,…"
    )
    probe_every: int | None = option("steps between probes; 0: only at the end (total/10)")
    probe_examples: int | None = option("texts to fit a probe on, and pairs to score (4,096)")
    task_data: Place | None = option("folder with the data of these tasks (CLOZELAB_DATA)")
    tensorboard: bool = option("the old name of --track tensorboard", False)
    max_seconds_between_saves: float | None = 600  # it saves after as long in any case

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.probe and (self.probe_every, self.probe_examples) != (None, None):
            raise UserError(
                "--probe-every and --probe-examples: need tasks; name them with --probe TASK,…"
            )

        if self.tensorboard:
            message = "--tensorboard is now called --track tensorboard; use that name"
            warnings.warn(message, OldNameWarning, stacklevel=3)
            trackers = dict.fromkeys([*self.track, tracker("tensorboard", "--track")])
            object.__setattr__(self, "track", tuple(trackers))
            object.__setattr__(self, "tensorboard", False)

    def probing(self) -> dict[str, Any]:
        """What machine.toml records of the probes, so that a resumed run keeps them."""
        names = ("probe", "probe_every", "probe_examples", "task_data")
        return {name: getattr(self, name) for name in names if self.probe}

    def recorded(self) -> dict[str, Any]:
        """What machine.toml records of saves and evaluations, so that a resumed run keeps them.

        Evaluations decide when an adaptation stops, and which weights it keeps.
        """
        return {name: value for name in _RECORDED if (value := getattr(self, name)) is not None}

    def changes(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What these options change of those that a run recorded, with its old and new value."""
        return {
            name: {"from": facts.get(name), "to": value}
            for name, value in self.recorded().items()
            if value != facts.get(name)
        }

    def recalled(self, facts: Mapping[str, Any]) -> SaveOptions:
        """The options of a resumed run: these, and the recorded ones where these say nothing."""
        recorded = {name: facts[name] for name in _RECORDED if name in facts}
        keep = facts.get("keep", self.checkpoints) if self.keep is None else self.keep
        return replace(self, keep=keep, **recorded | self.recorded())

    @property
    def checkpoints(self) -> int:
        """The number of checkpoints to keep; 0 is all."""
        return 2 if self.keep is None else self.keep

    @property
    def held_out_blocks(self) -> int:
        """The number of held-out blocks of one evaluation."""
        return 1024 if self.evaluate_blocks is None else self.evaluate_blocks

    def due(self, every: int | None, number: int, schedule: Schedule, *, times: int = 10) -> bool:
        """Whether something that happens every `every` steps, and at the end, is due at a step.

        None: `times` times over the run, at equal shares of it.
        """
        if number == schedule.total:
            return True
        if every is not None:
            return bool(every and number % every == 0)
        before, now = (times * schedule.progress(step) + 1e-9 for step in (number - 1, number))
        return int(now) > int(before)
