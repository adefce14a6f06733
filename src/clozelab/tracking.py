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

PROJECT = "clozelab"  # unless the tracker's own variable names another
NONE = "none"  # instead of a tracker: a resumed run continues without one
LAST_WAIT = 30.0  # seconds to wait for a tracker at the end of a run
_PARAMS_PER_REQUEST = 100  # MLflow's limit of parameters in a request

Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before its first number."""

    folder: Path
    name: str
    id: str  # by which a tracker finds a resumed run
    config: Mapping[str, Any]  # the recipe, the task and the machine, by dotted names
    tags: Sequence[str] = ()
    group: str | None = None  # runs that belong together: the folder of fine-tunings


class Tracker(Protocol):
    """One tracker, for one run."""

    def begin(self, run: TrackedRun) -> str:
        """Start or resume the run there, and return where a user finds it."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add numbers after a step."""

    def end(self, status: Status) -> None:
        """End the run, with everything written or sent."""


class TensorBoard:
    """Event files in the folder of the run."""

    def begin(self, run: TrackedRun) -> str:
        """Start a writer, with the configuration as a text."""
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        self.writer = SummaryWriter(str(folder))
        lines = [f"    {name} = {value}" for name, value in run.config.items()]
        self._add_text("config", "\n".join(lines))
        self._add_text("tags", ", ".join(run.tags))
        return f"tensorboard --logdir {run.folder}"

    def _add_text(self, name: str, text: str) -> None:
        self.writer.add_text(name, text)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a scalar for each number."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def end(self, status: Status) -> None:
        """Write what is left."""
        self._add_text("status", status)
        self.writer.close()


class Wandb:
    """Weights & Biases: WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE=offline."""

    def begin(self, run: TrackedRun) -> str:
        """Start a separate run, whatever else this process has open."""
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
        """Start a run with the configuration as parameters, and tags without values."""
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
            for first in range(0, len(params), _PARAMS_PER_REQUEST):
                self.client.log_batch(self.id, params=params[first : first + _PARAMS_PER_REQUEST])
        return f"experiment {name}, run {self.id}"

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = self.client.get_experiment_by_name(name)
        if known is not None:
            return str(known.experiment_id)
        try:
            return str(self.client.create_experiment(name))
        except MlflowException:  # another process created it
            known = self.client.get_experiment_by_name(name)
            if known is None:
                raise
            return str(known.experiment_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send all numbers in one request."""
        import time

        from mlflow.entities import Metric

        now = int(1000 * time.time())
        rows = [Metric(_name(name), value, now, step) for name, value in metrics.items()]
        self.client.log_batch(self.id, metrics=rows)

    def end(self, status: Status) -> None:
        """Set the status in MLflow's terms."""
        words = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.id, words[status])


class Trackio:
    """Trackio, on this machine: TRACKIO_PROJECT, TRACKIO_SPACE_ID."""

    def begin(self, run: TrackedRun) -> str:
        """Start a run, whose name includes the id."""
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
        raise UserError(f"{place} {name}: is not a tracker; {remedy(name, TRACKERS)}")
    if find_spec(name) is None:
        raise UserError(f"{place} {name}: {name} is not installed; pip install {name}")
    return name


TrackerNames = Annotated[Sequence[str], trackers]
TrackerName = Annotated[str, tracker]


class Sender:
    """A tracker in its own thread, which sends messages in order."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self.name = name
        self._run = run
        self._ended = False
        self._notes = SimpleQueue[str]()  # from the thread to the training loop
        self._messages = SimpleQueue[tuple[int, Mapping[str, float]] | Status]()
        self._thread = Thread(target=self._send, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the numbers of a step, without waiting."""
        self._messages.put((step, metrics))

    def end(self, status: Status) -> None:
        """End once, and wait for the tracker up to `LAST_WAIT` seconds."""
        if self._ended:
            return
        self._ended = True
        self._messages.put(status)
        self._thread.join(LAST_WAIT)
        if self._thread.is_alive():
            self._notes.put(self._problem(f"did not answer within {LAST_WAIT:g} s"))

    def notes(self) -> list[str]:
        """The messages since the last call."""
        return [self._notes.get() for _ in range(self._notes.qsize())]

    def _send(self) -> None:
        try:
            own = TRACKERS[self.name]()
            self._notes.put(f"{self.name}: {own.begin(self._run)}")
            while not isinstance(message := self._messages.get(), str):
                own.log(*message)
            own.end(message)
        # Whatever the package raises, even SystemExit, the run goes on.
        except BaseException as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())
            self._notes.put(self._problem(f"failed ({line[:300]})"))

    def _problem(self, what: str) -> str:
        return (
            f"{self.name}: {what}; the run continues without it, and can be sent later:"
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
    """A name with only the characters that MLflow allows."""
    return re.sub(r"[^\w/. -]", "_", name)[:250]
