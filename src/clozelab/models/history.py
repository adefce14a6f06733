"""The history of a model from its runs, for its card: data, results, and earlier models."""

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

_MOST_ANCESTORS = 32  # the most models to go back, in case they form a cycle


def data(model: Model) -> dict[str, object]:
    """The data that the model was trained on."""
    facts = _facts(model)
    parent = next((_name(place, run) for place, run in _ancestors(model)), None)
    entries: dict[str, object] = {"corpora": _corpora(facts), "from": parent}
    license = _license(facts)
    if model.task is not None:
        corpora_before = (_corpora(run.machine()) for _, run in _ancestors(model) if run)
        entries = {
            "task": facts.get("task"),
            "training examples": facts.get("examples"),
            "corpora of its pretraining": next(filter(None, corpora_before), None),
        }
        license = next((_license(run.machine()) for _, run in _ancestors(model) if run), NOT_STATED)
    entries["licence of the text"] = license
    entries |= {"teacher": facts.get("teacher"), "seed": facts.get("seed")}
    return {name: fact for name, fact in entries.items() if fact not in (None, "")}


def corpora(model: Model) -> list[str]:
    """The corpora that the model's run was trained on, each with its weight, if that is known."""
    return [str(place) for place in _facts(model).get("data") or ()]


def fingerprints(model: Model) -> list[str]:
    """The fingerprints of the corpora that the model's run was trained on, if known."""
    return [str(fingerprint) for fingerprint in _facts(model).get("fingerprint") or ()]


def metrics(model: Model) -> dict[str, object]:
    """The results of the run, if the model is from its last step."""
    run = _run(model)
    result = (run.result() if run else None) or {}
    if run is None or result.get("steps") != model.step:
        return {"steps": model.step} if model.step else {}
    if model.task is None:
        of_machine = ("times", "seconds", "limited_by")  # facts of the machine, not of the model
        return dict(_flatten({name: result[name] for name in result if name not in of_machine}))
    scores = dict(result.get("dev", {}))
    best = scores.pop("step", model.step)
    shown = {f"{name} on dev": f"{score:.4g}{_seeds(run, name)}" for name, score in scores.items()}
    return {**shown, "steps": f"{model.step:,}, the best after {best:,}"}


def adaptation(model: Model) -> AdaptationRecord | None:
    """The record of an adaptation, if the model is from the last step of one."""
    run = _run(model)
    record = read_adaptation(run) if run else None
    return record if record is not None and record.steps == model.step else None


def longest_block(model: Model) -> int | None:
    """The longest block in any training of the model, or None if that is not known.

    Of an imported model it is the maximum length of its tokenizer.
    """
    if model.origin is not None:
        return model.origin.length
    ancestors = [run for _, run in _ancestors(model)]
    if None in ancestors or model.recipe.encoder.recurrent:
        return None
    recipes = [model.recipe, *(run.recipe() for run in ancestors if run)]
    return max(recipe.blocks.length for recipe in recipes)


def lineage(model: Model) -> list[str]:
    """The models that this one came from, the oldest first."""
    return [_name(place, run) for place, run in _ancestors(model)][::-1]


def _ancestors(model: Model) -> Iterator[tuple[str, Run | None]]:
    """The places of earlier models, the latest first, each with its run if there is one."""
    place = _facts(model).get("from")
    for _ in range(_MOST_ANCESTORS):
        if not place:
            return
        run = _run_at(Path(place))
        yield str(place), run
        place = run.machine().get("from") if run else None


def _facts(model: Model) -> dict[str, Any]:
    run = _run(model)
    return run.machine() if run else {}


def _run(model: Model) -> Run | None:
    """The run that a model's checkpoint belongs to, if any."""
    folder = Path(model.place)
    return _run_at(folder) if (folder / CHECKSUMS).is_file() else None


def _run_at(place: Path) -> Run | None:
    """The run at a path, of a checkpoint, or the best of several; None if there is no run."""
    if (place / CHECKSUMS).is_file():
        place = place.parent.parent
    elif (place / PLAN).is_file():
        place = place / str((Run(place).result() or {}).get("best", ""))
    is_run = (place / "machine.toml").is_file() and (place / "recipe.toml").is_file()
    return Run(place) if is_run else None


def _name(place: str, run: Run | None) -> str:
    """The name of a model: folder and recipe of a run, else the folder's or hub's name."""
    if run is None:
        return Path(place).name if Path(place).is_absolute() else place
    plan_folder = _plan_folder(run)
    name = str(run.path.relative_to(plan_folder.parent)) if plan_folder else run.path.resolve().name
    kind = run.machine().get("task") or run.recipe().name
    return name if name == kind else f"{name} ({kind})"


def _plan_folder(run: Run) -> Path | None:
    """The folder of several fine-tuned models that a run belongs to, if any."""
    parents = run.path.resolve().parents[:2]
    return next((folder for folder in parents if (folder / PLAN).is_file()), None)


def _seeds(run: Run, metric: str) -> str:
    """The mean and interval of a score over all seeds, since the best of them is biased."""
    folder = _plan_folder(run)
    result = (Run(folder).result() if folder else None) or {}
    for cell in result.get("cells", ()):
        ours = folder is not None and (folder / cell["name"]).resolve() == run.path.resolve().parent
        score = cell["scores"].get(metric, {})
        if ours and "low" in score:
            interval = f"{score['low']:.4g} to {score['high']:.4g} at 95 %"
            return f"; the mean of {score['runs']} seeds is {score['mean']:.4g} ({interval})"
    return ""


def _license(facts: Mapping[str, Any]) -> str:
    """The licences of the corpora, as stated when they were built."""
    return ", ".join(dict.fromkeys(map(str, facts.get("license") or [NOT_STATED])))


def _corpora(facts: Mapping[str, Any]) -> str:
    """The corpora by their names, with their weights where there are several."""
    places = [str(place) for place in facts.get("data") or []]
    names = [place if is_url(place) else Path(place).name for place in places]
    return ", ".join(names) if len(names) > 1 else "".join(names).removesuffix(":1")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested tables, their names joined."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name.replace('_', ' ')} ")
        else:
            yield f"{prefix}{name.replace('_', ' ')}", value
