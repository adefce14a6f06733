"""A page about some runs: one file without a link to anything, or the same as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from clozelab import recipe as recipes
from clozelab.recipe.tables import written
from clozelab.report import commands, figures
from clozelab.report.figures import Line, Row
from clozelab.report.gathering import Pretraining, Trials
from clozelab.report.scores import told


@dataclass(frozen=True)
class Cell:
    """What a table shows, and what it is sorted by."""

    text: str
    value: float | None = None  # numbers stand on the right


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, and what stands under it: figures, tables, words, commands."""

    title: str
    parts: Sequence[str | Table | tuple[str, str]]  # words, a table, or (kind, content)


def sections(runs: Sequence[Pretraining], tunings: Sequence[Trials]) -> Iterator[Section]:
    """The page's content."""
    if tunings:
        yield Section("Tasks", [*_scores(tunings)])
    if runs:
        yield Section("Pretraining", [_losses(runs), *_curves(runs)])
    if any(run.recipe != runs[0].recipe for run in runs):
        yield Section("What the recipes do differently", [_differences(runs)])
    again = [commands.pretrain(run) for run in runs]
    again += [line for one in tunings for line in commands.finetune(one)]
    yield Section("How to do it again", [("code", "\n".join(again))])
    yield Section("Machines", [_machines([*runs, *tunings])])


def html(runs: Sequence[Pretraining], tunings: Sequence[Trials], *, title: str) -> str:
    """One self-contained page."""
    style, script = (_file(name) for name in ("page.css", "page.js"))
    body = [f"<h1>{escape(title)}</h1>", f'<p class="note">{escape(_opening(runs, tunings))}</p>']
    for section in sections(runs, tunings):
        body.append(f"<h2>{escape(section.title)}</h2>")
        body += [_html(part) for part in section.parts]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def markdown(runs: Sequence[Pretraining], tunings: Sequence[Trials], *, title: str) -> str:
    """The same in plain text, without the figures."""
    lines = [f"# {title}", "", _opening(runs, tunings), ""]
    for section in sections(runs, tunings):
        lines += [f"## {section.title}", ""]
        for part in section.parts:
            lines += _markdown(part)
    return "\n".join(lines).rstrip() + "\n"


def _opening(runs: Sequence[Pretraining], tunings: Sequence[Trials]) -> str:
    counts = [(len(runs), "pretraining"), (len(tunings), "fine-tuning")]
    said = [f"{many} {what}{'s' if many > 1 else ''}" for many, what in counts if many]
    return f"{' and '.join(said)}. Scores are on dev sets; ± is half of a mean's 95 % interval."


def _scores(tunings: Sequence[Trials]) -> Iterator[str | Table | tuple[str, str]]:
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
                *(_number(cell["selected"][what]) for what in ("median", "best")),
                _runs(cell),
                _number({**one.order["tuning"], **cell["settings"]}["rate"], "g"),
                _number(sum(one.seconds[cell["name"]].values()) / 60),
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
                number,
            )
            for number, (name, (_, cell)) in enumerate(zip(names, mine, strict=True))
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
            _number(sum(run.recipe.parameters().values()) / 1e6),
            _number(run.steps, ",d"),
            _number(run.tokens / 1e6),
            _number(run.seconds / 60),
            _number(run.tokens / max(run.seconds, 1e-9) / 1e3),
            *(_loss(run, name) for name in objectives),
        ]
        for run in runs
    ]
    columns = ["run", "recipe", "M parameters", "steps", "M tokens", "minutes", "k tokens/s"]
    return Table([*columns, *(f"{name.replace('_', ' ')}, held out" for name in objectives)], rows)


def _loss(run: Pretraining, name: str) -> Cell:
    if name not in run.last:
        return Cell("–")
    return _number(run.last[name]["loss"], ".3f")


def _curves(runs: Sequence[Pretraining]) -> Iterator[tuple[str, str]]:
    """Each objective's loss over tokens: held-out text, and faintly what was trained on."""
    for name in dict.fromkeys(name for run in runs for name in (*run.held_out, *run.train)):
        held = any(name in run.held_out for run in runs)
        lines = []
        for number, run in enumerate(runs):
            if name in run.held_out:
                lines.append(Line(run.name, run.held_out[name], number))
                if name in run.train:
                    lines.append(Line(run.name, _smooth(run.train[name]), number, faint=True))
            elif name in run.train:
                said = f"{run.name} (in training)" if held else run.name
                lines.append(Line(said, run.train[name], number))
        what = "loss on held-out text" if held else "loss in training"
        faint = "; faint: in training" if any(line.faint for line in lines) else ""
        yield ("heading", f"{name.replace('_', ' ')}: {what}, in nats{faint}")
        yield ("figure", figures.curves(lines, across="tokens seen", up="loss"))


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A running mean, so that noise does not hide the curve."""
    found: list[tuple[float, float]] = []
    mean = points[0][1]
    for x, y in points:
        mean += 0.1 * (y - mean)
        found.append((x, mean))
    return found


def _differences(runs: Sequence[Pretraining]) -> Table:
    """Every setting that some run has otherwise than the first."""
    first = runs[0].recipe
    keys: dict[str, dict[str, str]] = {}
    for run in runs[1:]:
        for key, ours, theirs in recipes.difference(first, run.recipe):
            row = keys.setdefault(key, {runs[0].name: _told(ours)})
            row[run.name] = _told(theirs)
    rows = [
        [Cell(key), *(Cell(row.get(run.name, row[runs[0].name])) for run in runs)]
        for key, row in keys.items()
    ]
    return Table(["setting", *(run.name for run in runs)], rows)


def _machines(runs: Sequence[Pretraining | Trials]) -> Table:
    names = ("gpu", "device", "precision", "cpus", "torch", "clozelab", "commit", "seed")
    rows = [
        [Cell(run.name), *(Cell(str(run.machine.get(name, "–"))) for name in names)] for run in runs
    ]
    return Table(["run", *names], rows)


def _spread(one: dict[str, float] | None) -> Cell:
    return Cell("–") if one is None else Cell(told(one), one["mean"])


def _number(value: float, form: str = ".1f") -> Cell:
    return Cell(format(int(value) if "d" in form else value, form), float(value))


def _told(value: Any) -> str:
    return "–" if value is None else written(value)


def _html(part: str | Table | tuple[str, str]) -> str:
    if isinstance(part, Table):
        return _html_table(part)
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    kind, content = part
    if kind == "figure":
        return f"<figure>{content}</figure>" if content else ""
    tag = "pre" if kind == "code" else "h3"
    return f"<{tag}>{escape(content)}</{tag}>"


def _html_table(table: Table) -> str:
    right = {
        number for row in table.rows for number, cell in enumerate(row) if cell.value is not None
    }
    marks = [' class="n"' if number in right else "" for number in range(len(table.columns))]
    head = "".join(f"<th{m}>{escape(c)}</th>" for c, m in zip(table.columns, marks, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{mark}{_value(cell)}>{escape(cell.text)}</td>"
            for cell, mark in zip(row, marks, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>'


def _value(cell: Cell) -> str:
    return "" if cell.value is None else f' data-value="{cell.value!r}"'


def _markdown(part: str | Table | tuple[str, str]) -> list[str]:
    if isinstance(part, str):
        return [part, ""]
    if isinstance(part, Table):
        rule = ["---" for _ in part.columns]
        rows = [[cell.text.replace("|", "\\|") for cell in row] for row in part.rows]
        return [*(f"| {' | '.join(row)} |" for row in [part.columns, rule, *rows]), ""]
    kind, content = part
    if kind == "figure":
        return []
    return [f"```\n{content}\n```", ""] if kind == "code" else [f"### {content}", ""]


def _file(name: str) -> str:
    return (resources.files("clozelab") / "report" / name).read_text(encoding="utf-8")
