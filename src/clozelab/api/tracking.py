"""Track: send runs that were not tracked while they trained."""

from __future__ import annotations

from pathlib import Path

from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.options import Places, Words, command
from clozelab.runs.directory import Run
from clozelab.runs.tracked import begin_tracking, recorded, rows, runs_at
from clozelab.tracking import TRACKERS, TrackerName


@command
def track(
    runs: Places, *, to: TrackerName, tags: Words = (), again: bool = False, watch: Watch
) -> list[Run]:
    """Send runs to a tracker: their settings, curves and results.

    A folder of fine-tuning runs or a study stands for all its runs. To track a run while it trains,
    give --track to the command that trains it.

    Args:
        runs (RUN): folders of runs
        to (NAME): trackio, wandb, mlflow or tensorboard
        tags (TAG,…): tags of the runs in the tracker
        again: also send runs that are already in the tracker, as new runs
    """
    sent = []
    for run in [run for place in runs for run in runs_at(Path(place))]:
        if to in recorded(run) and not again:
            watch.warn(f"{run.path}: is already in {to}; --again sends it as a new run")
            continue
        with run.writing():
            _send(run, to, tags=tags, anew=again, watch=watch)
        sent.append(run)
    return sent


def _send(run: Run, to: str, *, tags: Words, anew: bool, watch: Watch) -> None:
    """One run; what it has already recorded of other trackers stays so."""
    names = dict.fromkeys([*recorded(run), to])
    known = begin_tracking(run, list(names), tags=tags, anew=[to] * anew)
    tracker = TRACKERS[to]()
    try:
        where = tracker.begin(known[to])
        for step, metrics in rows(run):
            tracker.log(step, metrics)
        tracker.end("finished" if run.result() is not None else "stopped")
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"{run.path}: {to} failed ({line[:300]}); fix that, then send it with --again"
        ) from error
    watch.say(f"{run.path}: {where}")
