"""A page about some runs: scores, curves, differences of recipes, and how to reproduce them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.renamed import recorded, renamed
from clozelab.config.toml import written
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
)
from clozelab.reporting.figures import Chart, DotRow, Line
from clozelab.reporting.records import FinetuneRecord
from clozelab.runs.record import RunRecord


def sections(runs: Sequence[RunRecord], tunings: Sequence[FinetuneRecord]) -> Iterator[Section]:
    """The page's content."""
    if tunings:
        yield Section("Tasks", [*scores(tunings)])
    if runs:
        yield Section("Pretraining", [_losses(runs), *charts(runs)])
    if any(run.recipe != runs[0].recipe for run in runs):
        unknown = {run.name for run in runs if not run.tokenizer_known}
        table = differences([(run.name, run.recipe) for run in runs], unknown=unknown)
        if table.rows:
            yield Section("Differences between the recipes", [table])
    lines = [commands.pretrain(run) for run in runs]
    lines += [line for record in tunings for line in commands.finetune(record)]
    yield Section("How to reproduce them", [("code", "\n".join(lines))])
    yield Section("Machines", [_machines([*runs, *tunings]), *_changes(runs)])


def page(runs: Sequence[RunRecord], tunings: Sequence[FinetuneRecord], *, title: str) -> Page:
    """The page of some runs."""
    return Page(title, _opening(runs, tunings), [*sections(runs, tunings)])


def _opening(runs: Sequence[RunRecord], tunings: Sequence[FinetuneRecord]) -> str:
    counts = [(len(runs), "pretraining"), (len(tunings), "fine-tuning")]
    texts = [f"{count} {kind}{'s' if count > 1 else ''}" for count, kind in counts if count]
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
                *(_mean(cell["scores"].get(metric)) for metric in metrics),
                *(number(cell["selected"][key]) for key in ("median", "best")),
                _runs(cell),
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
    """The names of the tasks; a task of the user's own goes by its file, in full if need be."""
    files = [(word, *filter(None, own)) for word, *own in tasks]
    titles = [f"{word}: {Path(own[0]).name}" if own else word for word, *own in files]
    return told_apart(titles, [f"{word}: {', '.join(own)}" for word, *own in files])


def _names(cells: Sequence[tuple[FinetuneRecord, dict[str, Any]]]) -> list[str]:
    """Model and grid cell of each; the folder, too, where names would be equal."""
    names = []
    for record, cell in cells:
        order = record.order
        model = "random weights" if order["fresh"] else Path(order["model"]).name
        names.append(f"{model} {cell['name']}".rstrip())
    folders = (record.name for record, _ in cells)
    return told_apart(names, [f"{a} ({b})" for a, b in zip(names, folders, strict=True)])


def told_apart(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """The names, in their longer form where two are equal."""
    pairs = zip(names, longer, strict=True)
    return [name if names.count(name) == 1 else more for name, more in pairs]


def _learning_rate(record: FinetuneRecord, cell: dict[str, Any]) -> float:
    settings = {**record.order["tuning"], **cell["settings"]}
    with recorded():
        today = renamed(settings, ["learning_rate"], place=record.name, key="tuning")
    return float(today["learning_rate"])


def _runs(cell: dict[str, Any]) -> TableCell:
    """The number of runs with scores, and of those that diverged."""
    runs, diverged = int(cell["selected"]["runs"]), cell.get("diverged", 0)
    return NumberCell(f"{runs} ({diverged} diverged)" if diverged else str(runs), float(runs))


def _losses(runs: Sequence[RunRecord]) -> PageTable:
    """The cost and the held-out losses of each run."""
    names = dict.fromkeys(name for run in runs for name in run.last if name not in run.untrained)
    objectives = list(names)
    rows = [
        [
            run.name if run.done else f"{run.name} (not done)",
            run.recipe.name,
            _tokenizer(run.recipe) if run.tokenizer_known else GAP,
            number(sum(run.recipe.parameters().values()) / 1e6),
            number(run.steps, ",d"),
            number(run.tokens / 1e6),
            number(run.seconds / 60),
            number(run.tokens / max(run.seconds, 1e-9) / 1e3),
            run.limited_by or GAP,
            *(
                number(run.last[o]["loss"], ".3f")
                if o in run.last and o not in run.untrained
                else GAP
                for o in objectives
            ),
        ]
        for run in runs
    ]
    columns = ["run", "recipe", "tokenizer", "M parameters", "steps", "M tokens", "minutes"]
    columns += ["k tokens/s", "limited by"]
    columns += [f"{words(name)}, held out" for name in objectives]
    several = len(by_tokenizer(runs)) > 1 and objectives
    note = "Losses under different tokenizers, or on different text, cannot be compared."
    return PageTable(columns, rows, note if several else "")


def _tokenizer(recipe: Recipe) -> str:
    """The tokenizer by its kind, case and size."""
    table = recipe.tables()["tokenizer"]
    case = "" if table["cased"] else ", uncased"
    return f"{table['use']}{case}, {table['vocabulary']:,}"


def charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """All curves of some runs."""
    every = (*_loss_curves(runs), *_probe_curves(runs), *_number_curves(runs))
    return [chart for chart in every if any(line.points for line in chart.lines)]


def _loss_curves(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    """Each objective's loss: on held-out text and, faintly, in training.

    Runs with different tokenizers predict different things, and have figures of their own.
    """
    colours = {run.name: colour for colour, run in enumerate(runs)}
    for name in dict.fromkeys(name for run in runs for name in _measured(run)):
        groups = by_tokenizer([run for run in runs if name in _measured(run)])
        for title, group in zip(group_titles(groups), groups, strict=True):
            held_out = any(name in run.held_out for run in group)
            lines = [
                line
                for run in group
                for line in _loss_lines(run, name, colours[run.name], held_out)
            ]
            where = "on held-out text" if held_out else "in training"
            faint = "faint: in training" if any(line.faint for line in lines) else ""
            said = f"{words(name)}: loss {where}, in nats"
            note = "; ".join(filter(None, (title, faint)))
            yield Chart(said, lines, "tokens seen", "loss", base="tokens", note=note)


def _loss_lines(run: RunRecord, name: str, colour: int, held_out: bool) -> Iterator[Line]:
    if name in run.held_out:
        yield Line(run.name, run.held_out[name], colour, clock=run.clock)
    if name in run.train:
        alone = name not in run.held_out
        title = f"{run.name} (in training)" if held_out and alone else run.name
        points = run.train[name]
        yield Line(title, points, colour, faint=not alone, clock=run.clock, noisy=True)


def _measured(run: RunRecord) -> list[str]:
    """The objectives whose loss says something: heads that are not trained know nothing."""
    names = dict.fromkeys((*run.held_out, *run.train))
    return [name for name in names if name not in run.untrained]


def by_tokenizer(runs: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """The runs, those with one tokenizer together."""
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(run.tokenizer_key, []).append(run)
    return list(groups.values())


def group_titles(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """What to say of each group's tokenizer; nothing where there is one group."""
    if len(groups) < 2:
        return [""] * len(groups)
    runs = [group[0] for group in groups]
    titles = [_tokenizer(run.recipe) for run in runs]
    if len({*titles}) < len(titles) or not all(run.tokenizer_known for run in runs):
        titles = [
            f"text {', '.join(Path(word.rpartition(':')[0] or word).name for word in data)}"
            if (data := run.machine.get("data"))
            else f"vocabulary of {run.recipe.tokenizer.vocabulary:,}"
            for run in runs
        ]
    numbers = range(1, len(titles) + 1)
    titles = told_apart(titles, [f"{a}, {n}" for a, n in zip(titles, numbers, strict=True)])
    return titles


NUMBERS = {  # by what a log calls them: the title, the vertical axis, whether it is noisy
    "learning_rate": ("learning rate", "learning rate", False),
    "norm": ("gradient norm before clipping", "norm", True),
    "tokens_a_second": ("throughput", "tokens per second", True),
}


def _number_curves(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    """Learning rate, gradient norm and throughput."""
    for name, (title, up, noisy) in NUMBERS.items():
        lines = [
            Line(run.name, run.numbers[name], colour, clock=run.clock, noisy=noisy)
            for colour, run in enumerate(runs)
            if run.numbers.get(name)
        ]
        yield Chart(title, lines, "tokens seen", up, whole=name == "learning_rate", base="tokens")


def _probe_curves(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    """What the layers of each run held of tasks as it was trained."""
    for name in dict.fromkeys(name for run in runs for name in run.probes):
        lines = [
            Line(run.name, run.probes[name], colour, clock=run.clock)
            for colour, run in enumerate(runs)
            if name in run.probes
        ]
        title = f"probe of {words(name)}, of 100"
        chances = {run.chance[name] for run in runs if name in run.chance}
        marks = {"a constant answer": chances.pop()} if len(chances) == 1 else {}
        yield Chart(title, lines, "tokens seen", "score", True, "tokens", marks)


def words(name: str) -> str:
    """A name of the records in words."""
    return name.replace("_", " ")


def differences(
    compared: Sequence[tuple[str, Recipe]], *, unknown: Collection[str] = ()
) -> PageTable:
    """Every setting in which some recipe differs from the first.

    The `unknown` recipes have no record of their tokenizer but its vocabulary size.
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


def _machines(runs: Sequence[RunRecord | FinetuneRecord]) -> PageTable:
    """The machine and software of each run."""
    names: tuple[str, ...] = ("gpu", "device", "precision", "micro_tokens", "cpus", "torch")
    names += ("clozelab", "commit", "seed")
    rows = [[run.name, *(str(run.machine.get(name, GAP)) for name in names)] for run in runs]
    return PageTable(["run", *names], rows)


def _changes(runs: Sequence[RunRecord]) -> Iterator[Part]:
    """Machine settings that changed during a run."""
    rows: list[list[TableCell]] = []
    for run in runs:
        for entry in run.changes:
            for name, change in entry["settings"].items():
                sides = (_text(change.get(side)) for side in ("from", "to"))
                rows.append([run.name, number(entry["step"] + 1, ",d"), name, *sides])
    if rows:
        yield PageTable(["run", "from step", "setting", "before", "after"], rows)


def _mean(summary: dict[str, float] | None) -> TableCell:
    return GAP if summary is None else NumberCell(mean_text(summary), summary["mean"])


def mean_text(summary: Mapping[str, float]) -> str:
    """A mean, with half the width of its interval where there is one."""
    mean = f"{summary['mean']:.1f}"
    return f"{mean} ± {summary['high'] - summary['mean']:>4.1f}" if "high" in summary else mean


def _text(value: Any) -> str:
    return GAP if value is None else written(value)
