"""A page about some runs: scores, curves, differences of recipes, and how to reproduce them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.renamed import recorded, renamed
from clozelab.config.toml import written
from clozelab.nearest import counted
from clozelab.reporting import commands, figures
from clozelab.reporting.document import (
    GAP,
    NumberCell,
    Page,
    PageTable,
    Part,
    Section,
    TableCell,
    number,
    three_digits,
)
from clozelab.reporting.figures import DotRow
from clozelab.reporting.records import FinetuneRecord
from clozelab.reporting.run_curves import (
    charts,
    comparable,
    tokenizer_text,
    told_apart,
    words,
)
from clozelab.runs.record import RunRecord


def sections(runs: Sequence[RunRecord], tunings: Sequence[FinetuneRecord]) -> Iterator[Section]:
    """Yield the sections of the page."""
    if tunings:
        yield Section("Tasks", [*scores(tunings)])
    if runs:
        yield Section("Pretraining", [_loss_table(runs), *charts(runs)])
    if (table := differences_of(runs)).rows:
        yield Section("Differences between the recipes", [table])
    lines = [commands.pretrain(run) for run in runs]
    lines += [line for record in tunings for line in commands.finetune(record)]
    yield Section("How to reproduce them", [("code", "\n".join(lines))])
    yield Section("Machines", [_machine_table([*runs, *tunings]), *_machine_changes(runs)])


def page(runs: Sequence[RunRecord], tunings: Sequence[FinetuneRecord], *, title: str) -> Page:
    """The page of some runs."""
    return Page(title, _opening(runs, tunings), [*sections(runs, tunings)])


def _opening(runs: Sequence[RunRecord], tunings: Sequence[FinetuneRecord]) -> str:
    counts = [(len(runs), "pretraining"), (len(tunings), "fine-tuning")]
    texts = [counted(count, kind) for count, kind in counts if count]
    return (
        f"{' and '.join(texts)}. Scores are on dev sets; ± is half the 95 % interval of a mean over"
        " seeds."
    )


def scores(tunings: Sequence[FinetuneRecord]) -> Iterator[Part]:
    """A table and a figure for each task."""
    tasks = list(dict.fromkeys(record.data for record in tunings))
    for task, title in zip(tasks, _titles(tasks), strict=True):
        records = [record for record in tunings if record.data == task]
        cells = [(record, cell) for record in records for cell in record.cells]
        names = _names(cells)
        metrics = list(dict.fromkeys(metric for _, cell in cells for metric in cell["scores"]))
        yield ("heading", title)
        rows = [
            [
                name,
                *(_mean_cell(cell["scores"].get(metric)) for metric in metrics),
                *(number(cell["selected"][key]) for key in ("median", "best")),
                _runs_cell(cell),
                number(_learning_rate(record, cell), "g"),
                number(sum(record.seconds[cell["name"]].values()) / 60),
            ]
            for name, (record, cell) in zip(names, cells, strict=True)
        ]
        if constants := {m: v for record in records for m, v in record.constant.items()}:
            means = (number(constants[m]) if m in constants else GAP for m in metrics)
            rows.append(["a constant answer", *means, *[GAP] * 5])
        columns = ["model", *(words(m) for m in metrics), "median", "best", "runs"]
        yield PageTable([*columns, "learning rate", "minutes"], rows)
        first = metrics[0]
        dots = []
        for colour, (name, (_, cell)) in enumerate(zip(names, cells, strict=True)):
            if mean := cell["scores"].get(first):
                values = [seed[first] for seed in cell["seeds"].values()]
                dots.append(DotRow(name, values, mean.get("low"), mean.get("high"), colour))
        chance = constants.get(first)
        across = f"{words(first)}; one dot per run"
        across += "; dashed: a constant answer" if chance is not None else ""
        yield ("figure", figures.dots(dots, across=across, chance=chance))


def _titles(tasks: Sequence[tuple[str, str | None, str | None]]) -> list[str]:
    """The names of the tasks; a user's own task has the name of its file, in full if needed."""
    files = [(word, *filter(None, own)) for word, *own in tasks]
    titles = [f"{word}: {Path(own[0]).name}" if own else word for word, *own in files]
    return told_apart(titles, [f"{word}: {', '.join(own)}" for word, *own in files])


def _names(cells: Sequence[tuple[FinetuneRecord, dict[str, Any]]]) -> list[str]:
    """The name of each row: model and grid cell, with the folder if names are equal."""
    names = []
    for record, cell in cells:
        order = record.order
        model = "random weights" if order["fresh"] else Path(order["model"]).name
        names.append(f"{model} {cell['name']}".rstrip())
    folders = (record.name for record, _ in cells)
    return told_apart(names, [f"{a} ({b})" for a, b in zip(names, folders, strict=True)])


def _learning_rate(record: FinetuneRecord, cell: dict[str, Any]) -> float:
    settings = {**record.order["tuning"], **cell["settings"]}
    with recorded():
        today = renamed(settings, ["learning_rate"], place=record.name, key="tuning")
    return float(today["learning_rate"])


def _runs_cell(cell: dict[str, Any]) -> TableCell:
    """The number of runs with scores, and of those that diverged."""
    runs, diverged = int(cell["selected"]["runs"]), cell.get("diverged", 0)
    return NumberCell(f"{runs} ({diverged} diverged)" if diverged else str(runs), float(runs))


def _loss_table(runs: Sequence[RunRecord]) -> PageTable:
    """The cost and the held-out losses of each run."""
    names = dict.fromkeys(name for run in runs for name in run.last if name not in run.untrained)
    objectives = list(names)
    rows = [
        [
            run.name if run.done else f"{run.name} (not done)",
            run.recipe.name,
            tokenizer_text(run.recipe) if run.tokenizer_known else GAP,
            three_digits(sum(run.recipe.parameters().values()) / 1e6),
            number(run.steps, ",d"),
            three_digits(run.tokens / 1e6),
            three_digits(run.seconds / 60),
            three_digits(run.tokens / max(run.seconds, 1e-9) / 1e3),
            run.limited_by or GAP,
            *(_held_out_cell(run, name) for name in objectives),
        ]
        for run in runs
    ]
    columns = ["run", "recipe", "tokenizer", "M parameters", "steps", "M tokens", "minutes"]
    columns += ["k tokens/s", "limited by"]
    columns += [f"{words(name)}, held out" for name in objectives]
    several = len(comparable(runs)) > 1 and objectives
    note = "Losses under different tokenizers, or on different text, cannot be compared."
    return PageTable(columns, rows, note if several else "")


def _held_out_cell(run: RunRecord, objective: str) -> TableCell:
    """The last held-out loss; a gap if it was not finite, as where a run diverged."""
    loss = run.last.get(objective, {}).get("loss")
    return GAP if loss is None or objective in run.untrained else number(loss, ".3f")


def differences_of(runs: Sequence[RunRecord]) -> PageTable:
    """Every setting in which the recipe of some run differs from that of the first."""
    unknown = {run.name for run in runs if not run.tokenizer_known}
    return differences([(run.name, run.recipe) for run in runs], unknown=unknown)


def differences(
    compared: Sequence[tuple[str, Recipe]], *, unknown: Collection[str] = ()
) -> PageTable:
    """Every setting in which some recipe differs from the first.

    Of the `unknown` recipes only the vocabulary size of their tokenizer is recorded.
    """
    names = [name for name, _ in compared]
    keys: dict[str, dict[str, str]] = {}
    for name, recipe in compared[1:]:
        for key, ours, theirs in recipes.difference(compared[0][1], recipe):
            keys.setdefault(key, dict.fromkeys(names, _text(ours)))[name] = _text(theirs)
    rows = []
    for key, values in keys.items():
        if key.startswith("tokenizer.") and key != "tokenizer.vocabulary":
            values |= dict.fromkeys(unknown, GAP)
            if len({*values.values()} - {GAP}) < 2:
                continue
        rows.append([key, *values.values()])
    return PageTable(["setting", *names], rows)


def _machine_table(runs: Sequence[RunRecord | FinetuneRecord]) -> PageTable:
    """The machine and software of each run."""
    names: tuple[str, ...] = ("gpu", "device", "precision", "micro_tokens", "cpus", "torch")
    names += ("clozelab", "commit", "seed")
    rows = [[run.name, *(str(run.machine.get(name, GAP)) for name in names)] for run in runs]
    return PageTable(["run", *names], rows)


def _machine_changes(runs: Sequence[RunRecord]) -> Iterator[Part]:
    """Machine settings that changed during a run."""
    rows: list[list[TableCell]] = []
    for run in runs:
        for entry in run.changes:
            for name, change in entry["settings"].items():
                sides = (_text(change.get(side)) for side in ("from", "to"))
                rows.append([run.name, number(entry["step"] + 1, ",d"), name, *sides])
    if rows:
        yield PageTable(["run", "from step", "setting", "before", "after"], rows)


def _mean_cell(summary: dict[str, float] | None) -> TableCell:
    return GAP if summary is None else NumberCell(mean_text(summary), summary["mean"])


def mean_text(summary: Mapping[str, float]) -> str:
    """A mean, with half the width of its interval if there is one."""
    mean = f"{summary['mean']:.1f}"
    return f"{mean} ± {summary['high'] - summary['mean']:>4.1f}" if "high" in summary else mean


def _text(value: Any) -> str:
    return GAP if value is None else written(value)
