"""What a model's runs tell of it, for its card: data, results, and the models it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clozelab.models.load import Loaded
from clozelab.runs.directory import PLAN, Run
from clozelab.training.checkpoint import CHECKSUMS

_FAR = 32  # models back; a chain that is longer goes in a circle


def data(loaded: Loaded) -> dict[str, object]:
    """What the model learned from."""
    facts = _facts(loaded)
    entries: dict[str, object] = {"corpora": _corpora(facts), "from": facts.get("from")}
    if loaded.task is not None:
        before = (_corpora(run.machine()) for _, run in _before(loaded) if run)
        entries = {
            "task": facts.get("task"),
            "training examples": facts.get("examples"),
            "corpora of its pretraining": next(filter(None, before), None),
        }
    entries |= {"teacher": facts.get("teacher"), "seed": facts.get("seed")}
    return {name: fact for name, fact in entries.items() if fact not in (None, "")}


def metrics(loaded: Loaded) -> dict[str, object]:
    """What came out at the end of the run, if this is its end."""
    run = _run(loaded)
    result = (run.result() if run else None) or {}
    if run is None or result.get("steps") != loaded.step:
        return {"steps": loaded.step} if loaded.step else {}
    if loaded.task is None:
        return dict(_flat(result))
    scores = dict(result.get("dev", {}))
    best = scores.pop("step", loaded.step)
    shown = {f"{name} on dev": f"{score:.4g}{_spread(run, name)}" for name, score in scores.items()}
    return {**shown, "steps": f"{loaded.step:,}, the best after {best:,}"}


def lineage(loaded: Loaded) -> list[str]:
    """The models that this one came from, the oldest first."""
    return [_called(run) if run else _short(place) for place, run in _before(loaded)][::-1]


def _before(loaded: Loaded) -> Iterator[tuple[str, Run | None]]:
    """The places that the model came from, the nearest first, with the run of each if it has."""
    place = _facts(loaded).get("from")
    for _ in range(_FAR):
        if not place:
            return
        run = _home(Path(place))
        yield str(place), run
        place = run.machine().get("from") if run else None


def _facts(loaded: Loaded) -> dict[str, Any]:
    run = _run(loaded)
    return run.machine() if run else {}


def _run(loaded: Loaded) -> Run | None:
    """The run that a checkpoint belongs to, if it lies in one."""
    folder = Path(loaded.place)
    return _home(folder) if (folder / CHECKSUMS).is_file() else None


def _home(place: Path) -> Run | None:
    """The run at a place: itself, that of a checkpoint, or the best of several; None if there is
    none, as of a model of another library, or one that was moved.
    """
    if (place / CHECKSUMS).is_file():
        place = place.parent.parent
    elif (place / PLAN).is_file():
        place = place / str((Run(place).result() or {}).get("best", ""))
    whole = (place / "machine.toml").is_file() and (place / "recipe.toml").is_file()
    return Run(place) if whole else None


def _called(run: Run) -> str:
    """A run by its folder and what it is."""
    above = _plan(run)
    name = str(run.path.relative_to(above.parent)) if above else run.path.resolve().name
    what = run.machine().get("task")
    what = what or run.recipe().name
    return name if name == what else f"{name} ({what})"


def _short(place: str) -> str:
    """A model of others by its name on the hub, or that of its folder."""
    return Path(place).name if Path(place).is_absolute() else place


def _plan(run: Run) -> Path | None:
    """The folder of fine-tunings that a run is one of, itself or by its cell of a grid."""
    above = run.path.resolve().parents[:2]
    return next((folder for folder in above if (folder / PLAN).is_file()), None)


def _spread(run: Run, metric: str) -> str:
    """A score over all seeds: of several runs the best is better than one is to expect."""
    folder = _plan(run)
    result = (Run(folder).result() if folder else None) or {}
    for cell in result.get("cells", ()):
        mine = folder is not None and (folder / cell["name"]).resolve() == run.path.resolve().parent
        one = cell["scores"].get(metric, {})
        if mine and "low" in one:
            interval = f"{one['low']:.4g} to {one['high']:.4g} at 95 %"
            return f"; the mean of {one['runs']} seeds is {one['mean']:.4g} ({interval})"
    return ""


def _corpora(facts: Mapping[str, Any]) -> str:
    return ", ".join(map(str, facts.get("data") or []))


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Tables inside tables as one, names joined."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name.replace('_', ' ')} ")
        else:
            yield f"{before}{name.replace('_', ' ')}", value
