"""Trackers: where a team looks at its runs, beside the folder of a run.

A tracker is told what a run is (`begin`), its numbers after a step (`log`), and how it ended
(`end`). Its package is imported when it begins. Which project, server or mode it uses is set as its
own documentation says: WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID, …

While a run trains, a `Sender` does this in a thread of its own. So a tracker that fails, or does
not answer, costs a run nothing but a line of warning.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Annotated, Any, Literal, Protocol

from clozelab.errors import UserError
from clozelab.nearest import remedy
from clozelab.options import words

PROJECT = "clozelab"  # where the tracker's own variable names no other
NONE = "none"  # in place of a tracker: a resumed run goes on without
LAST_WAIT = 30.0  # seconds that the end of a run waits for a tracker
_BATCH = 100  # of MLflow's parameters in a request, its limit

Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before its first number."""

    folder: Path
    name: str
    id: str  # by which a tracker finds it again when it is resumed
    config: Mapping[str, Any]  # the recipe, the task and the machine, by dotted names
    tags: Sequence[str] = ()
    group: str | None = None  # runs that belong together: the folder of fine-tunings


class Tracker(Protocol):
    """One tracker, for one run."""

    def begin(self, run: TrackedRun) -> str:
        """Start the run there, or go on with it; where a user finds it."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add numbers after a step."""

    def end(self, status: Status) -> None:
        """End the run; everything is written or sent by then."""


class TensorBoard:
    """Event files in the folder of the run."""

    def begin(self, run: TrackedRun) -> str:
        """The configuration becomes a text."""
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        self.writer = SummaryWriter(str(folder))
        lines = [f"    {name} = {value}" for name, value in run.config.items()]
        self._text("config", "\n".join(lines))
        self._text("tags", ", ".join(run.tags))
        return f"tensorboard --logdir {run.folder}"

    def _text(self, name: str, text: str) -> None:
        self.writer.add_text(name, text)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A scalar for each number."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def end(self, status: Status) -> None:
        """Write what is left."""
        self._text("status", status)
        self.writer.close()


class Wandb:
    """Weights & Biases: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline."""

    def begin(self, run: TrackedRun) -> str:
        """A run of its own, whatever else this process has open."""
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.id,
            group=run.group,
            tags=[tag[:64] for tag in run.tags],  # its limit
            config=dict(run.config),
            dir=str(run.folder),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        return str(self.run.dir if self.run.offline else self.run.url)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row."""
        self.run.log(dict(metrics), step=step)

    def end(self, status: Status) -> None:
        """Send what is left."""
        self.run.finish(exit_code=0 if status == "finished" else 1)


class Mlflow:
    """MLflow: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME."""

    def begin(self, run: TrackedRun) -> str:
        """Parameters are the configuration; tags are tags without a value."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._experiment(name)
        earlier = self.client.search_runs([experiment], f"tags.clozelab_id = '{run.id}'")
        tags = {"clozelab_id": run.id, **dict.fromkeys(map(_name, run.tags), "")}
        if earlier:
            self.id = earlier[0].info.run_id
        else:
            tags |= {"group": run.group} if run.group else {}
            created = self.client.create_run(experiment, run_name=run.name, tags=tags)
            self.id = created.info.run_id
            params = [Param(_name(name), str(value)[:500]) for name, value in run.config.items()]
            for first in range(0, len(params), _BATCH):
                self.client.log_batch(self.id, params=params[first : first + _BATCH])
        return f"experiment {name}, run {self.id}"

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = self.client.get_experiment_by_name(name)
        if known is not None:
            return str(known.experiment_id)
        try:
            return str(self.client.create_experiment(name))
        except MlflowException:  # another process was quicker
            known = self.client.get_experiment_by_name(name)
            if known is None:
                raise
            return str(known.experiment_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """All numbers in one request."""
        import time

        from mlflow.entities import Metric

        now = int(1000 * time.time())
        rows = [Metric(_name(name), value, now, step) for name, value in metrics.items()]
        self.client.log_batch(self.id, metrics=rows)

    def end(self, status: Status) -> None:
        """In MLflow's words."""
        words = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.id, words[status])


class Trackio:
    """Trackio, on this machine: TRACKIO_PROJECT, TRACKIO_SPACE_ID."""

    def begin(self, run: TrackedRun) -> str:
        """A run goes by its name there, which has the id in it."""
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.run = trackio.init(
            project=project,
            name=f"{run.name}-{run.id}",
            group=run.group,
            config={**run.config, "tags": list(run.tags)},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return f"trackio show --project {project}"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row."""
        self.run.log(dict(metrics), step=step)

    def end(self, status: Status) -> None:
        """Write what is left."""
        self.run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "trackio": Trackio,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "tensorboard": TensorBoard,
}


def trackers(value: Any, place: str) -> list[str]:
    """Names of trackers whose packages are installed; others are refused."""
    names = list(dict.fromkeys(words(value, place)))
    for name in names:
        if name != NONE or len(names) > 1:
            tracker(name, place)
    return names


def tracker(value: Any, place: str) -> str:
    """The name of a tracker whose package is installed."""
    name = str(value)
    if name not in TRACKERS:
        raise UserError(f"{place} {name}: is no tracker; {remedy(name, TRACKERS)}")
    if find_spec(name) is None:
        raise UserError(f"{place} {name}: {name} is not installed; pip install {name}")
    return name


TrackerNames = Annotated[Sequence[str], trackers]
TrackerName = Annotated[str, tracker]


class Sender:
    """A tracker in a thread of its own; what it is told is sent one after another."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self.name = name
        self._run = run
        self._ended = False
        self._notes = SimpleQueue[str]()  # of the thread, for whoever trains
        self._waiting = SimpleQueue[tuple[int, Mapping[str, float]] | Status]()
        self._thread = Thread(target=self._send, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers after a step; nobody waits for them."""
        self._waiting.put((step, metrics))

    def end(self, status: Status) -> None:
        """The end, which waits for the tracker, but not for ever; it comes once."""
        if self._ended:
            return
        self._ended = True
        self._waiting.put(status)
        self._thread.join(LAST_WAIT)
        if self._thread.is_alive():
            self._notes.put(self._problem(f"did not answer within {LAST_WAIT:g} s"))

    def notes(self) -> list[str]:
        """What it has to say since it was asked last."""
        return [self._notes.get() for _ in range(self._notes.qsize())]

    def _send(self) -> None:
        try:
            own = TRACKERS[self.name]()
            self._notes.put(f"{self.name}: {own.begin(self._run)}")
            while not isinstance(message := self._waiting.get(), str):
                own.log(*message)
            own.end(message)
        # Whatever its package does, exits included: the run goes on.
        except BaseException as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            self._notes.put(self._problem(f"failed ({line[:300]})"))

    def _problem(self, what: str) -> str:
        return (
            f"{self.name}: {what}; the run goes on without it, and all of it can be sent later:"
            f" clozelab track {self._run.folder} --to {self.name} --again"
        )


def numbers(table: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The finite numbers of nested tables: train/masked_lm/loss."""
    flat: dict[str, float] = {}
    for name, value in table.items():
        place = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            flat |= numbers(value, place)
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[place] = float(value)
    return flat


def _name(name: str) -> str:
    """A name with what MLflow takes in one."""
    return re.sub(r"[^\w/. -]", "_", name)[:250]
