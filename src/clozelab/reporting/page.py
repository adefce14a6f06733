"""A page about some runs: scores, curves, what their recipes do differently, how to do it again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from clozelab.config import recipe as recipes
from clozelab.config.recipe import Recipe
from clozelab.config.toml import written
from clozelab.reporting import commands, figures
from clozelab.reporting.document import GAP, Cell, Page, Part, Section, Table, number
from clozelab.reporting.figures import Line, Row
from clozelab.reporting.gathering import Pretraining, Trials
from clozelab.reporting.scores import told


def sections(runs: Sequence[Pretraining], tunings: Sequence[Trials]) -> Iterator[Section]:
    """The page's content."""
    if tunings:
        yield Section("Tasks", [*_scores(tunings)])
    if runs:
        yield Section("Pretraining", [_losses(runs), *_curves(runs)])
    if any(run.recipe != runs[0].recipe for run in runs):
        unknown = {run.name for run in runs if not run.tokenizer_known}
        table = differences([(run.name, run.recipe) for run in runs], unknown=unknown)
        if table.rows:
            yield Section("What the recipes do differently", [table])
    again = [commands.pretrain(run) for run in runs]
    again += [line for one in tunings for line in commands.finetune(one)]
    yield Section("How to do it again", [("code", "\n".join(again))])
    yield Section("Machines", [_machines([*runs, *tunings]), *_changes(runs)])


def page(runs: Sequence[Pretraining], tunings: Sequence[Trials], *, title: str) -> Page:
    """All that is told of some runs."""
    return Page(title, _opening(runs, tunings), [*sections(runs, tunings)])


def _opening(runs: Sequence[Pretraining], tunings: Sequence[Trials]) -> str:
    counts = [(len(runs), "pretraining"), (len(tunings), "fine-tuning")]
    said = [f"{many} {what}{'s' if many > 1 else ''}" for many, what in counts if many]
    return f"{' and '.join(said)}. Scores are on dev sets; ± is half of a mean's 95 % interval."


def _scores(tunings: Sequence[Trials]) -> Iterator[Part]:
    """A table and a figure for each task."""
    tasks = list(dict.fromkeys(one.data for one in tunings))
    for task, title in zip(tasks, _titles(tasks), strict=True):
        mine = [(one, cell) for one in tunings if one.data == task for cell in one.cells]
        names = _names(mine)
        metrics = list(dict.fromkeys(metric for _, cell in mine for metric in cell["scores"]))
        yield ("heading", title)
        rows = [
            [
                Cell(name),
                *(_spread(cell["scores"].get(metric)) for metric in metrics),
                *(number(cell["selected"][what]) for what in ("median", "best")),
                _runs(cell),
                number({**one.order["tuning"], **cell["settings"]}["rate"], "g"),
                number(sum(one.seconds[cell["name"]].values()) / 60),
            ]
            for name, (one, cell) in zip(names, mine, strict=True)
        ]
        columns = ["model", *(m.replace("_", " ") for m in metrics), "median", "best", "runs"]
        yield Table([*columns, "rate", "minutes"], rows)
        first = metrics[0]
        dots = [
            Row(
                name,
                [scores[first] for scores in cell["seeds"].values()],
                cell["scores"][first].get("low"),
                cell["scores"][first].get("high"),
                colour,
            )
            for colour, (name, (_, cell)) in enumerate(zip(names, mine, strict=True))
            if first in cell["scores"]
        ]
        yield ("figure", figures.dots(dots, across=f"{first.replace('_', ' ')}; a dot a run"))


def _titles(tasks: Sequence[tuple[str, str | None, str | None]]) -> list[str]:
    """The tasks' names; one's own goes by its file, in full where that tells too little."""
    titles = []
    for word, train, dev in tasks:
        file = train or dev
        titles.append(f"{word}: {Path(file).name}" if file else word)
    return [
        title if titles.count(title) == 1 else f"{word}: {', '.join(filter(None, files))}"
        for title, (word, *files) in zip(titles, tasks, strict=True)
    ]


def _names(mine: Sequence[tuple[Trials, dict[str, Any]]]) -> list[str]:
    """The model of each and its cell; the folder too, where these do not tell them apart."""
    names = []
    for one, cell in mine:
        model = "random weights" if one.order["fresh"] else Path(one.order["model"]).name
        names.append(f"{model} {cell['name']}".rstrip())
    return [
        name if names.count(name) == 1 else f"{name} ({one.name})"
        for name, (one, _) in zip(names, mine, strict=True)
    ]


def _runs(cell: dict[str, Any]) -> Cell:
    """How many have scores, and how many came to none."""
    runs, diverged = int(cell["selected"]["runs"]), cell.get("diverged", 0)
    return Cell(f"{runs} ({diverged} diverged)" if diverged else str(runs), float(runs))


def _losses(runs: Sequence[Pretraining]) -> Table:
    """What each run cost and came to."""
    objectives = list(dict.fromkeys(name for run in runs for name in run.last))
    rows = [
        [
            Cell(run.name if run.done else f"{run.name} (not done)"),
            Cell(run.recipe.name),
            Cell(_tokenizer(run.recipe)) if run.tokenizer_known else GAP,
            number(sum(run.recipe.parameters().values()) / 1e6),
            number(run.steps, ",d"),
            number(run.tokens / 1e6),
            number(run.seconds / 60),
            number(run.tokens / max(run.seconds, 1e-9) / 1e3),
            Cell(run.limited_by) if run.limited_by else GAP,
            *(_loss(run, name) for name in objectives),
        ]
        for run in runs
    ]
    columns = ["run", "recipe", "tokenizer", "M parameters", "steps", "M tokens", "minutes"]
    columns += ["k tokens/s", "limited by"]
    return Table([*columns, *(f"{name.replace('_', ' ')}, held out" for name in objectives)], rows)


def _tokenizer(recipe: Recipe) -> str:
    """The tokenizer by its kind, case and size."""
    table = recipe.tables()["tokenizer"]
    case = "" if table["cased"] else ", uncased"
    return f"{table['use']}{case}, {table['vocabulary']:,}"


def _loss(run: Pretraining, name: str) -> Cell:
    if name not in run.last:
        return GAP
    return number(run.last[name]["loss"], ".3f")


def _curves(runs: Sequence[Pretraining]) -> Iterator[tuple[str, str]]:
    """Each objective's loss over tokens: held-out text, and faintly what was trained on."""
    for name in dict.fromkeys(name for run in runs for name in (*run.held_out, *run.train)):
        held = any(name in run.held_out for run in runs)
        lines = []
        for colour, run in enumerate(runs):
            if name in run.held_out:
                lines.append(Line(run.name, run.held_out[name], colour))
                if name in run.train:
                    lines.append(Line(run.name, smooth(run.train[name]), colour, faint=True))
            elif name in run.train:
                said = f"{run.name} (in training)" if held else run.name
                lines.append(Line(said, run.train[name], colour))
        what = "loss on held-out text" if held else "loss in training"
        faint = "; faint: in training" if any(line.faint for line in lines) else ""
        yield ("heading", f"{name.replace('_', ' ')}: {what}, in nats{faint}")
        yield ("figure", figures.curves(lines, across="tokens seen", up="loss"))


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A running mean, so that noise does not hide the curve."""
    found: list[tuple[float, float]] = []
    mean = points[0][1]
    for x, y in points:
        mean += 0.1 * (y - mean)
        found.append((x, mean))
    return found


def differences(compared: Sequence[tuple[str, Recipe]], *, unknown: Collection[str] = ()) -> Table:
    """Every setting that some recipe has otherwise than the first; each goes by a name.

    Of the `unknown` nobody recorded by which tokenizer they read, only its size.
    """
    (name, first), *others = compared
    keys: dict[str, dict[str, str]] = {}
    for other, recipe in others:
        for key, ours, theirs in recipes.difference(first, recipe):
            keys.setdefault(key, {name: _told(ours)})[other] = _told(theirs)
    rows = []
    for key, row in keys.items():
        values = {other: row.get(other, row[name]) for other, _ in compared}
        if key.startswith("tokenizer.") and key != "tokenizer.vocabulary":
            values |= dict.fromkeys(unknown, GAP.text)
            if len({*values.values()} - {GAP.text}) < 2:
                continue
        rows.append([Cell(key), *map(Cell, values.values())])
    return Table(["setting", *(other for other, _ in compared)], rows)


def _machines(runs: Sequence[Pretraining | Trials]) -> Table:
    """Where each was made, and with what."""
    names: tuple[str, ...] = ("gpu", "device", "precision", "micro_tokens", "cpus", "torch")
    names += ("clozelab", "commit", "seed")
    rows = [
        [Cell(run.name), *(Cell(str(run.machine.get(name, "–"))) for name in names)] for run in runs
    ]
    return Table(["run", *names], rows)


def _changes(runs: Sequence[Pretraining]) -> Iterator[Part]:
    """What a run was computed with otherwise from some step on."""
    rows = [
        [Cell(run.name), number(entry["step"] + 1, ",d"), Cell(name)]
        + [Cell(_told(both.get(side))) for side in ("from", "to")]
        for run in runs
        for entry in run.changes
        for name, both in entry["settings"].items()
    ]
    if rows:
        yield Table(["run", "from step", "setting", "before", "after"], rows)


def _spread(one: dict[str, float] | None) -> Cell:
    return GAP if one is None else Cell(told(one), one["mean"])


def _told(value: Any) -> str:
    return "–" if value is None else written(value)
