"""The board of results/board: check its entries, write its table, its pictures and what is shipped.

    python tools/board.py            check every entry, then write all that is made of them
    python tools/board.py --check    check, and refuse what is not up to date; writes nothing
    python tools/board.py --state results/board/NAME    enter what the records give into entry.toml

`clozelab pretrain` tells where a run would stand by src/clozelab/reporting/board.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from board_records import SCORES, TASKS, Entry, Figure, checked_entry, computed_entry, read_texts

from clozelab.config.toml import to_toml
from clozelab.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
BOARD, SHIPPED = ROOT / "results" / "board", ROOT / "src" / "clozelab" / "reporting" / "board.json"
BEGIN, END = "<!-- table: tools/board.py -->", "<!-- end of table -->"
NAMES = {
    **{"loss": "loss", "blimp": "BLiMP", "cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC"},
    **{"stsb": "STS-B", "rte": "RTE", "mnli": "MNLI, 4 %", "squad1": "SQuAD 1.1"},
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 330, 230, 44, 26, 38  # of a panel
STYLE = """text { font: 11px sans-serif; fill: #333; } .axis { stroke: #999; } .title { font-weight:
bold; } .dot { fill: #0072b2; } .bar { stroke: #0072b2; stroke-width: 2; } @media
(prefers-color-scheme: dark) { text { fill: #ddd; } .axis { stroke: #777; } .dot { fill: #56b4e9; }
.bar { stroke: #56b4e9; } }"""


def entries(board: Path) -> list[Entry]:
    """All entries, checked, newest first."""
    texts = read_texts(board / "texts.toml")
    folders = sorted(file.parent for file in board.glob("*/entry.toml"))
    board_entries = [checked_entry(folder, texts) for folder in folders]
    return sorted(board_entries, key=lambda entry: (entry.date, entry.name), reverse=True)


def table(board_entries: Sequence[Entry]) -> str:
    """The entries as Markdown; a dash for what was not measured."""
    head = ["date", "recipe", "minutes", "GPU", "text", "seeds", *NAMES.values(), "commit"]
    right = {"minutes", "seeds", *NAMES.values()}
    lines = [" | ".join(head), " | ".join("--:" if name in right else "---" for name in head)]
    for entry in board_entries:
        recipe = f"[{entry.recipe}]({entry.name}/entry.toml)"
        cells = [entry.date, recipe, f"{entry.minutes:.2f}", entry.gpu, entry.text.name]
        cells.append(str(len(entry.seeds)))
        cells += [_cell(name, entry.figures.get(name)) for name in NAMES]
        lines.append(" | ".join([*cells, entry.commit[:7]]))
    notes = [
        f"- {entry.date}, {entry.recipe}: {entry.note}." for entry in board_entries if entry.note
    ]
    return "\n".join([*(f"| {line} |" for line in lines), "", *notes])


def _cell(name: str, figure: Figure | None) -> str:
    if figure is None:
        return "–"
    digits = 2 if name == "loss" else 1
    half = "" if figure.half is None else f" ± {figure.half:.{digits}f}"
    fewer = name in TASKS and figure.tunings < TASKS[name][1]
    return f"{figure.mean:.{digits}f}{half}{f' ({figure.tunings})' if fewer else ''}"


def picture(board_entries: Sequence[Entry]) -> str:
    """The SVG of loss and scores over minutes, with a panel for each measure."""
    panels, far = [], 1.15 * max(5.0, *(entry.minutes for entry in board_entries))
    for name, title in NAMES.items():
        points = [(entry, entry.figures[name]) for entry in board_entries if name in entry.figures]
        if points:
            panels.append(_panel(title, points, far=far, lower=name == "loss"))
    rows = -(-len(panels) // 3)
    places = [
        f'<g transform="translate({WIDTH * (n % 3)} {HEIGHT * (n // 3)})">{panel}</g>'
        for n, panel in enumerate(panels)
    ]
    size = f"0 0 {3 * WIDTH} {rows * HEIGHT}"
    says = 'role="img" aria-label="loss and scores over minutes of training"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" {says}>'
    return f"{opening}<style>{STYLE}</style>{''.join(places)}</svg>\n"


def _panel(title: str, points: Sequence[tuple[Entry, Figure]], *, far: float, lower: bool) -> str:
    """A panel: entries as dots with names, minutes on the x axis."""
    ends = [f.mean + sign * (f.half or 0.0) for _, f in points for sign in (-1, 1)]
    step = next(
        size
        for size in (0.05, 0.1, 0.2, 1.0, 2.0, 5.0, 20.0, 50.0)
        if _spread(ends, lower) < size * 4
    )
    low, high = step * (min(ends) // step), step * -(-max(ends) // step)
    low, high = (low - step, high + step) if high - low < 2 * step else (low, high)

    def x(minutes: float) -> float:
        return LEFT + minutes / far * (WIDTH - LEFT - 12)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    bottom = HEIGHT - BOTTOM
    better = "lower is better" if lower else "higher is better"
    parts = [
        _text(LEFT, 15, title, anchor="start", kind="title"),
        _text(WIDTH - 12, 15, better, anchor="end"),
        f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - 12}" fill="none"/>',
        _text((LEFT + WIDTH) / 2, HEIGHT - 6, "minutes", anchor="middle"),
    ]
    for tick in range(0, int(far) + 1, 5 if far < 30 else 10):
        parts.append(_text(x(tick), bottom + 14, f"{tick}", anchor="middle"))
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        says = f"{value:.2f}" if step < 1 else f"{value:.0f}"
        parts.append(_text(LEFT - 4, y(value) + 4, says, anchor="end"))
    for number, (entry, figure) in enumerate(points):
        across, up = x(entry.minutes), y(figure.mean)
        if figure.half:
            bar = [y(figure.mean - figure.half), y(figure.mean + figure.half)]
            parts.append(f'<path class="bar" d="M{across:.1f} {bar[0]:.1f}V{bar[1]:.1f}"/>')
        parts.append(f'<circle class="dot" cx="{across:.1f}" cy="{up:.1f}" r="4"/>')
        below = number % 2  # alternately, so that names of neighbours do not overlap
        says = f"{entry.recipe} {figure.mean:.{2 if lower else 1}f}"
        says += f", {entry.text.name}" if lower else ""  # losses compare on one text alone
        parts.append(_text(across, up + (18 if below else -9), says, anchor="middle"))
    return "".join(parts)


def _spread(ends: Sequence[float], lower: bool) -> float:
    """The range that an axis covers at least."""
    return max(max(ends) - min(ends), 0.1 if lower else 2.0)


def _text(x: float, y: float, says: str, *, anchor: str, kind: str = "label") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(says)}</text>'


def shipped_json(board_entries: Sequence[Entry]) -> str:
    """The JSON file with which `clozelab pretrain` compares a run."""
    rows = [
        {
            **{"name": entry.name, "date": entry.date, "recipe": entry.recipe, "gpu": entry.gpu},
            **{"minutes": round(entry.minutes, 2), "seeds": len(entry.seeds)},
            "text": entry.text.name,
            "fingerprint": entry.text.fingerprint,
            "scores": {k: round(entry.figures[k].mean, 3) for k in SCORES if k in entry.figures},
        }
        for entry in board_entries
    ]
    return json.dumps({"made_by": "tools/board.py", "entries": rows}, indent=1) + "\n"


def files_of(board: Path, readme: str, board_entries: Sequence[Entry]) -> dict[Path, str]:
    """The files that are made from the entries, with their texts."""
    body = f"{BEGIN}\n{table(board_entries)}\n{END}"
    if not re.search(f"{BEGIN}.*{END}", readme, flags=re.DOTALL):
        raise UserError(f"{board / 'README.md'}: has no place for the table ({BEGIN} … {END})")
    page = re.sub(f"{BEGIN}.*{END}", lambda _: body, readme, flags=re.DOTALL)
    files = {board / "README.md": page, board / "board.svg": picture(board_entries)}
    return {**files, SHIPPED: shipped_json(board_entries)} if board.resolve() == BOARD else files


def write_entry(folder: Path) -> None:
    """Write the facts and scores of the records into the entry's file."""
    entry = computed_entry(folder, read_texts(folder.parent / "texts.toml"))
    file = folder / "entry.toml"
    stated = tomllib.loads(file.read_text(encoding="utf-8"))
    facts = {"date": entry.date, "recipe": entry.recipe, "minutes": round(entry.minutes, 2)}
    facts |= {"gpu": entry.gpu, "text": entry.text.name, "commit": entry.commit}
    facts |= {"note": entry.note} if entry.note else {}
    scores = {name: round(figure.mean, 2) for name, figure in entry.figures.items()}
    text = to_toml({**facts, "scores": scores, "seeds": stated["seeds"]})
    file.write_text(text, encoding="utf-8")


def main() -> int:
    """Check, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--state", type=Path, metavar="DIR", help="one entry, from its records")
    parser.add_argument("--board", type=Path, default=BOARD)
    arguments = parser.parse_args()
    try:
        if arguments.state is not None:
            write_entry(arguments.state.resolve())
            return 0
        board_entries = entries(arguments.board)
        readme = (arguments.board / "README.md").read_text(encoding="utf-8")
        files = files_of(arguments.board, readme, board_entries)
    except (UserError, OSError, KeyError, ValueError) as error:
        what = (
            error if isinstance(error, UserError | OSError) else f"{type(error).__name__} {error}"
        )
        print(f"board: {what}", file=sys.stderr)
        return 1
    stale = [
        file
        for file, text in files.items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    if arguments.check:
        for file in stale:
            print(f"{file}: is not up to date; run python tools/board.py", file=sys.stderr)
        return 1 if stale else 0
    for file in stale:
        file.write_text(files[file], encoding="utf-8")
    written = ", ".join(file.name for file in stale) or "nothing"
    print(f"{len(board_entries)} entries; written: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
