"""A page of sections: one self-contained HTML file, or the same as Markdown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

import clozelab
from clozelab.errors import UserError
from clozelab.markdown import fenced, plain, within
from clozelab.reporting import palette
from clozelab.reporting.charts import Chart, charts_data
from clozelab.reporting.static import script, text_of

GENERATOR = f"clozelab {clozelab.__version__}"  # identifies our pages


@dataclass(frozen=True)
class NumberCell:
    """A number in a table: aligned to the right, and sorted by its value."""

    text: str
    value: float

    def __str__(self) -> str:
        return self.text


TableCell = str | NumberCell
GAP = "–"  # not measured


@dataclass(frozen=True)
class PageTable:
    """Columns and rows; the `soft` columns are in a lighter colour."""

    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    note: str = ""
    soft: frozenset[int] = frozenset()


# A paragraph, a table, curves, or (kind, content).
Part = str | PageTable | Chart | tuple[str, str]


@dataclass(frozen=True)
class Section:
    """A heading and its content: text, tables, figures, subheadings, notes, code."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A whole page; `lead` comes first, in large type, then `opening`."""

    title: str
    opening: str
    sections: Sequence[Section]
    lead: str = ""

    def html(self, *, refresh: int | None = None) -> str:
        """One self-contained file, which reloads every `refresh` seconds."""
        style = palette.css() + text_of("figures.css") + text_of("page.css")
        reload = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
        body = [f"<h1>{escape(self.title)}</h1>"]
        body += [f'<p class="lead">{escape(self.lead)}</p>'] if self.lead else []
        body.append(_html(("note", self.opening)))
        if refresh:
            now = time.strftime("%H:%M:%S")
            body.append(_html(("note", f"As of {now}; the page reloads every {refresh} s.")))
        charts: list[Chart] = []
        for section in self.sections:
            body += [f"<h2>{escape(section.title)}</h2>", *_html_parts(section.parts, charts)]
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="generator" content="{GENERATOR}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"{reload}<title>{escape(self.title)}</title>\n"
            f"<style>\n{style}</style>\n</head>\n<body>\n"
            + "\n".join(body)
            + f"\n{_chart_data(charts)}{_scripts(charts)}</body>\n</html>\n"
        )

    def markdown(self) -> str:
        """The same as Markdown, without the figures."""
        texts = [f"<!-- generator: {GENERATOR} -->", f"# {plain(self.title)}"]
        texts += [f"**{plain(self.lead)}**"] if self.lead else []
        texts.append(plain(self.opening))
        for section in self.sections:
            texts += [f"## {plain(section.title)}", *map(_markdown, section.parts)]
        return "\n\n".join(filter(None, texts)) + "\n"

    def written(self, place: Path, *, refresh: int | None = None) -> str:
        """The page as HTML or Markdown, by the name of its file."""
        check(place)
        return self.markdown() if place.suffix == ".md" else self.html(refresh=refresh)


def check(place: Path) -> None:
    """Refuse a file name that is neither HTML nor Markdown."""
    if place.suffix not in (".html", ".md"):
        raise UserError(f"--out {place}: is not a page; use a name ending in .html or .md")


def number(value: float, form: str = ".1f") -> NumberCell:
    """A number in a format, sorted by its value."""
    return NumberCell(format(int(value) if "d" in form else value, form), float(value))


def three_digits(value: float) -> NumberCell:
    """A number in three digits, or rounded to a whole number from 100 on."""
    return NumberCell(f"{value:,.0f}" if value >= 100 else f"{value:.3g}", value)


def _html_parts(parts: Sequence[Part], charts: list[Chart]) -> Iterator[str]:
    """Yield the HTML of a section's parts; successive charts are side by side."""
    for is_chart, group in groupby(parts, key=lambda part: isinstance(part, Chart)):
        if not is_chart:
            yield from map(_html, group)
            continue
        figures = []
        for chart in group:
            assert isinstance(chart, Chart)
            if drawn := chart.drawn:
                note = _html(("note", chart.note)) if chart.note else ""
                caption = f"<div><h3>{escape(chart.title)}</h3>{note}</div>"
                number = f' data-chart="{len(charts)}"'
                caption = f"<figcaption>{caption}</figcaption>"
                figures.append(f"<figure{number}>{caption}{drawn}</figure>")
                charts.append(chart)
        if figures:
            yield f'<div class="figures">{"".join(figures)}</div>'


def _chart_data(charts: Sequence[Chart]) -> str:
    """The data of the charts, for the script that draws them."""
    if not charts:
        return ""
    data = charts_data(charts)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")  # so that nothing in it ends the element
    return f'<script type="application/json" id="charts">{text}</script>\n'


def _scripts(charts: Sequence[Chart]) -> str:
    """The page's scripts, with those of figures if there are any."""
    names = [*(("figures.js", "charts.js") if charts else ()), "tables.js", "page.js"]
    return f'<script type="module">\n{"".join(map(script, names))}</script>\n'


def _html(part: Part) -> str:
    if isinstance(part, PageTable):
        return _html_table(part)
    if isinstance(part, Chart):
        return "".join(_html_parts([part], []))
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    kind, content = part
    if kind == "figure":
        return f"<figure>{content}</figure>" if content else ""
    if kind == "note":
        return f'<p class="note">{escape(content)}</p>'
    tag = "pre" if kind == "code" else "h3"
    return f"<{tag}>{escape(content)}</{tag}>"


def _html_table(table: PageTable) -> str:
    classes = []
    for at in range(len(table.columns)):
        words = ["n"] if any(isinstance(row[at], NumberCell) for row in table.rows) else []
        words += ["soft"] if at in table.soft else []
        classes.append(f' class="{" ".join(words)}"' if words else "")
    inside = "<thead><tr>"
    for column, mark in zip(table.columns, classes, strict=True):
        inside += f'<th scope="col"{mark}>{escape(column)}</th>'
    inside += "</tr></thead><tbody>"
    for row in table.rows:
        inside += "<tr>"
        for cell, mark in zip(row, classes, strict=True):
            value = f' data-value="{cell.value!r}"' if isinstance(cell, NumberCell) else ""
            inside += f"<td{mark}{value}>{escape(str(cell))}</td>"
        inside += "</tr>"
    note = _html(("note", table.note)) if table.note else ""
    return f'<div class="wide"><table>{inside}</tbody></table></div>{note}'


def _markdown(part: Part) -> str:
    if isinstance(part, str):
        return plain(part)
    if isinstance(part, Chart):
        return "\n\n".join(filter(None, (f"### {plain(part.title)}", plain(part.note))))
    if isinstance(part, PageTable):
        rows = [part.columns, *([str(cell) for cell in row] for row in part.rows)]
        head, *body = ([within(text) for text in row] for row in rows)
        lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body]]
        return "\n".join([*lines, *(["", plain(part.note)] if part.note else [])])
    kind, content = part
    if kind == "code":
        return fenced(content)
    return {"figure": "", "note": plain(content)}.get(kind, f"### {plain(content)}")
