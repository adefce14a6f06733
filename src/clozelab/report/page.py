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
from clozelab.report import figures
from clozelab.report.figures import Line, Row
from clozelab.report.gathering import Pretraining, Tuning
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


def sections(runs: Sequence[Pretraining], tunings: Sequence[Tuning]) -> Iterator[Section]:
    """The page's content."""
    if tunings:
        yield Section("Tasks", [*_scores(tunings)])
    if runs:
        yield Section("Pretraining", [_losses(runs), *_curves(runs)])
    if any(run.recipe != runs[0].recipe for run in runs):
        yield Section("What the recipes do differently", [_differences(runs)])
    yield Section("How to do it again", [("code", "\n".join(_commands(runs, tunings)))])
    yield Section("Machines", [_machines([*runs, *tunings])])


def html(runs: Sequence[Pretraining], tunings: Sequence[Tuning], *, title: str) -> str:
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


def markdown(runs: Sequence[Pretraining], tunings: Sequence[Tuning], *, title: str) -> str:
    """The same in plain text, without the figures."""
    lines = [f"# {title}", "", _opening(runs, tunings), ""]
    for section in sections(runs, tunings):
        lines += [f"## {section.title}", ""]
        for part in section.parts:
            lines += _markdown(part)
    return "\n".join(lines).rstrip() + "\n"


def _opening(runs: Sequence[Pretraining], tunings: Sequence[Tuning]) -> str:
    counts = [(len(runs), "pretraining"), (len(tunings), "fine-tuning")]
    said = [f"{many} {what}{'s' if many > 1 else ''}" for many, what in counts if many]
    return f"{' and '.join(said)}. Scores are on dev sets; ± is half of a mean's 95 % interval."


def _scores(tunings: Sequence[Tuning]) -> Iterator[str | Table | tuple[str, str]]:
    """A table and a figure for each task."""
    for task in dict.fromkeys(one.task for one in tunings):
        mine = [(one, cell) for one in tunings if one.task == task for cell in one.cells]
        metrics = list(mine[0][1]["scores"])
        yield ("heading", task)
        rows = [
            [
                Cell(_named(one, cell)),
                *(_spread(cell["scores"].get(metric)) for metric in metrics),
                *(_number(cell["selected"][what]) for what in ("median", "best")),
                _number(cell["selected"]["runs"], "d"),
                _number(one.settings["rate"], "g"),
                _number(one.seconds / 60),
            ]
            for one, cell in mine
        ]
        columns = ["model", *(m.replace("_", " ") for m in metrics), "median", "best", "runs"]
        yield Table([*columns, "rate", "minutes"], rows)
        dots = [
            Row(
                _named(one, cell),
                [scores[metrics[0]] for scores in cell["seeds"].values()],
                cell["scores"][metrics[0]].get("low"),
                cell["scores"][metrics[0]].get("high"),
                number,
            )
            for number, (one, cell) in enumerate(mine)
        ]
        yield ("figure", figures.dots(dots, across=f"{metrics[0]}; a dot a run"))


def _named(one: Tuning, cell: dict[str, Any]) -> str:
    model = "random weights" if one.fresh else Path(one.model).name
    return f"{model} {cell['name']}".rstrip()


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
    return Table([*columns, *(f"{name}, held out" for name in objectives)], rows)


def _loss(run: Pretraining, name: str) -> Cell:
    if name not in run.last:
        return Cell("–")
    return _number(run.last[name]["loss"], ".3f")


def _curves(runs: Sequence[Pretraining]) -> Iterator[tuple[str, str]]:
    """Each objective's loss over tokens: held-out text, and faintly what was trained on."""
    for name in dict.fromkeys(name for run in runs for name in (*run.held_out, *run.train)):
        lines = []
        for number, run in enumerate(runs):
            if run.held_out.get(name):
                lines.append(Line(run.name, run.held_out[name], number))
            if run.train.get(name):
                firm = run.train[name] if not run.held_out.get(name) else _smooth(run.train[name])
                lines.append(Line(run.name, firm, number, faint=bool(run.held_out.get(name))))
        yield ("heading", f"{name.replace('_', ' ')}: loss on held-out text, in nats")
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


def _commands(runs: Sequence[Pretraining], tunings: Sequence[Tuning]) -> Iterator[str]:
    for run in runs:
        data = " ".join(f"--data {one}" for one in run.machine.get("data") or ["CORPUS"])
        seed, steps = run.machine.get("seed", 0), run.recipe.schedule.steps
        yield (
            f"clozelab pretrain {run.name}/recipe.toml {data} --seed {seed}"
            f" --budget {steps}steps --out again/{run.name}"
        )
    for one in tunings:
        seeds = max(int(cell["selected"]["runs"]) for cell in one.cells)
        fresh = " --fresh" if one.fresh else ""
        yield (
            f"clozelab finetune {one.model} {one.task} --seeds {seeds}{fresh}"
            f" --out again/{one.name}"
        )


def _machines(runs: Sequence[Pretraining | Tuning]) -> Table:
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
