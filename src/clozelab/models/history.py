"""What a model's runs tell of it, for its card: data, results, and the models it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clozelab.models.model import Model
from clozelab.remote.access import is_url
from clozelab.runs.adaptation import AdaptationRecord, read_adaptation
from clozelab.runs.directory import PLAN, Run
from clozelab.text.store.manifest import NOT_STATED
from clozelab.training.checkpoint import CHECKSUMS

_FAR = 32  # models back; a chain that is longer goes in a circle


def data(model: Model) -> dict[str, object]:
    """What the model learned from."""
    facts = _facts(model)
    nearest = next((_called(place, run) for place, run in _before(model)), None)
    entries: dict[str, object] = {"corpora": _corpora(facts), "from": nearest}
    license = _license(facts)
    if model.task is not None:
        before = (_corpora(run.machine()) for _, run in _before(model) if run)
        entries = {
            "task": facts.get("task"),
            "training examples": facts.get("examples"),
            "corpora of its pretraining": next(filter(None, before), None),
        }
        license = next((_license(run.machine()) for _, run in _before(model) if run), NOT_STATED)
    entries["licence of the text"] = license
    entries |= {"teacher": facts.get("teacher"), "seed": facts.get("seed")}
    return {name: fact for name, fact in entries.items() if fact not in (None, "")}


def corpora(model: Model) -> list[str]:
    """The corpora that the model's run was trained on, each with its weight, if that is known."""
    return [str(place) for place in _facts(model).get("data") or ()]


def fingerprints(model: Model) -> list[str]:
    """Those of the corpora that the model's run was trained on, if that is known."""
    return [str(fingerprint) for fingerprint in _facts(model).get("fingerprint") or ()]


def metrics(model: Model) -> dict[str, object]:
    """What came out at the end of the run, if this is its end."""
    run = _run(model)
    result = (run.result() if run else None) or {}
    if run is None or result.get("steps") != model.step:
        return {"steps": model.step} if model.step else {}
    if model.task is None:
        of_machine = ("times", "seconds", "limited_by")  # of no use to whoever takes the model
        return dict(_flat({name: result[name] for name in result if name not in of_machine}))
    scores = dict(result.get("dev", {}))
    best = scores.pop("step", model.step)
    shown = {f"{name} on dev": f"{score:.4g}{_spread(run, name)}" for name, score in scores.items()}
    return {**shown, "steps": f"{model.step:,}, the best after {best:,}"}


def adaptation(model: Model) -> AdaptationRecord | None:
    """What the model's run gained and forgot, if it is an adaptation and this is its end."""
    run = _run(model)
    record = read_adaptation(run) if run else None
    return record if record is not None and record.steps == model.step else None


def longest_block(model: Model) -> int | None:
    """The most tokens that a block had in any training of the model; None if that is not known."""
    before = [run for _, run in _before(model)]
    if model.origin is not None or None in before or model.recipe.encoder.recurrent:
        return None
    recipes = [model.recipe, *(run.recipe() for run in before if run)]
    return max(recipe.blocks.length for recipe in recipes)


def lineage(model: Model) -> list[str]:
    """The models that this one came from, the oldest first."""
    return [_called(place, run) for place, run in _before(model)][::-1]


def _before(model: Model) -> Iterator[tuple[str, Run | None]]:
    """The places that the model came from, the nearest first, with the run of each if it has."""
    place = _facts(model).get("from")
    for _ in range(_FAR):
        if not place:
            return
        run = _home(Path(place))
        yield str(place), run
        place = run.machine().get("from") if run else None


def _facts(model: Model) -> dict[str, Any]:
    run = _run(model)
    return run.machine() if run else {}


def _run(model: Model) -> Run | None:
    """The run that a checkpoint belongs to, if it lies in one."""
    folder = Path(model.place)
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


def _called(place: str, run: Run | None) -> str:
    """A run by its folder and what it is; a model of others by its folder's name or the hub's."""
    if run is None:
        return Path(place).name if Path(place).is_absolute() else place
    above = _plan(run)
    name = str(run.path.relative_to(above.parent)) if above else run.path.resolve().name
    what = run.machine().get("task") or run.recipe().name
    return name if name == what else f"{name} ({what})"


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
        score = cell["scores"].get(metric, {})
        if mine and "low" in score:
            interval = f"{score['low']:.4g} to {score['high']:.4g} at 95 %"
            return f"; the mean of {score['runs']} seeds is {score['mean']:.4g} ({interval})"
    return ""


def _license(facts: Mapping[str, Any]) -> str:
    """That of the corpora, as it was stated where they were built."""
    return ", ".join(dict.fromkeys(map(str, facts.get("license") or [NOT_STATED])))


def _corpora(facts: Mapping[str, Any]) -> str:
    """The corpora by their names, with their weights where there are several."""
    places = [str(place) for place in facts.get("data") or []]
    names = [place if is_url(place) else Path(place).name for place in places]
    return ", ".join(names) if len(names) > 1 else "".join(names).removesuffix(":1")


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Tables inside tables as one, names joined."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name.replace('_', ' ')} ")
        else:
            yield f"{before}{name.replace('_', ' ')}", value
