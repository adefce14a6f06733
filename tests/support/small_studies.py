"""Studies made for tests: shrunk recipes, a few steps, an embedded task of a few examples."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.finetune_tasks import sample_file, shared_folder
from support.pretrain_runs import MACHINE, store

from clozelab.runs.events import drained
from clozelab.runs.session import SaveOptions
from clozelab.studies import spec as studies
from clozelab.studies.plan import StudyPlan, make_plan
from clozelab.studies.request import make_request
from clozelab.studies.run import StudyEvent, follow
from clozelab.studies.spec import StudySpec

SAVE_OPTIONS = SaveOptions(save_every=1, evaluate_every=0, evaluate_blocks=16, keep=1)
SMALL = (
    *(
        "encoder.layers=2",
        "encoder.hidden_size=32",
        "encoder.heads=2",
        "encoder.intermediate_size=64",
    ),
    *("encoder.embedding_size=32", "encoder.dropout=0.0", "encoder.attention_dropout=0.0"),
    *("blocks.length=32", "schedule.warmup=0", "schedule.batch_size=4", "schedule.phases=[]"),
)
TUNED = ("batch_size=8", "length=32", "steps=2")
STATIC = {"name": "static", "says": "ten copies"}
DYNAMIC = {"name": "dynamic", "says": "fresh masks", "set": ["corruption.copies=0"]}
STUDENT = {
    "name": "student",
    "says": "half",
    "recipe": "distilbert",
    "teacher": "static",
    "set": ["encoder.layers=1"],
}
BROKEN = {  # the store has no entities
    "name": "broken",
    "says": "hides names",
    "set": ["masking.use=knowledge", "masking.mask_rate=0.15", "masking.levels={entity = 1.0}"],
}


def reviews() -> str:
    """A task of one's own, in a folder."""
    place = shared_folder() / "reviews"
    if not place.exists():
        place.mkdir()
        for split in ("train", "dev"):
            shutil.copy(sample_file("definitions", 16), place / f"{split}.tsv")
    return f"classify={place}"


def write_study(place: Path, *variants: dict[str, Any], **base: Any) -> Path:
    """A study in a file."""
    from clozelab.config.toml import written as toml

    common = {
        **{"recipe": "bert", "set": list(SMALL), "tasks": [], "seeds": 1},
        **{"measures": ["held_out.masked_lm"], "finetune": list(TUNED)},
        **base,
    }
    lines = ['title = "Masks"', 'question = "Do fresh masks help?"', "[paper]"]
    lines += ['name = "RoBERTa"', 'source = "Table 1"', "[base]"]
    lines += [f"{key} = {toml(value)}" for key, value in common.items()]
    for variant in variants or (STATIC, DYNAMIC):
        lines += ["[[variants]]", *(f"{key} = {toml(value)}" for key, value in variant.items())]
    lines += claim(variants or (STATIC, DYNAMIC))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


def claim(variants: Sequence[dict[str, Any]]) -> list[str]:
    """One of the second variant over the first."""
    names = [variant["name"] for variant in variants]
    if len(names) < 2:
        return []
    return [
        *("[[claims]]", f'better = "{names[1]}"', f'than = "{names[0]}"'),
        *('on = ["held_out.masked_lm"]', 'says = "Fresh masks are no worse."'),
    ]


def read_study(place: Path, *variants: dict[str, Any], **base: Any) -> StudySpec:
    """A study, read from a file."""
    return studies.read(write_study(place / "masks.toml", *variants, **base))


def plan_of(
    study: StudySpec,
    out: Path | None = None,
    *,
    budget: str | None = "3steps",
    at_once: int | None = 1,
    tunings_at_once: int = 1,
) -> StudyPlan:
    """Its plan on the small store."""
    request = make_request(study, [store("wordpiece")], budget=budget)
    side_by_side: dict[str, Any] = {"at_once": at_once, "tunings_at_once": tunings_at_once}
    return drained(make_plan(request, MACHINE, out=out, **side_by_side))


def run_study(
    study: StudySpec, out: Path, *, stop_after: int | None = None, **more: Any
) -> list[StudyEvent]:
    """Run a study; its events, or only the first so many, after which it is stopped."""
    events: list[StudyEvent] = []
    plan = plan_of(study, out, **more)
    for event in follow(plan, out, machine=MACHINE, saving=SAVE_OPTIONS):
        events.append(event)
        if stop_after is not None and len(events) == stop_after:
            break
    return events


def narrowed(study: StudySpec, **changes: Any) -> StudySpec:
    """The study with other fields."""
    return replace(study, **changes)
