"""Draw the rooms of the source and who imports whom: docs/pictures/rooms.svg, from the imports.

    python tools/draw_rooms.py

Rooms are the folders of src/clozelab. An arrow goes to a room that is imported, unless a longer
path leads there as well. The one import of a higher room that the rules allow is dashed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from html import escape
from pathlib import Path

from clozelab.reporting.palette import LIGHT, themed

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "clozelab"
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
FLOORS = (
    ("cli",),
    ("api",),
    ("serving",),
    ("reporting", "benching", "diagnosis"),
    ("studies",),
    ("scoring",),
    ("pretraining", "finetuning"),
    ("models",),
    ("runs",),
    ("config",),
    ("text", "blocks", "masking", "encoder", "objectives", "training"),
    ("kernels", "data", "remote"),
)
WIDTH, HEIGHT, GAP, STEP = 128, 40, 22, 84


def rooms() -> dict[str, list[Path]]:
    """The files of each folder."""
    files: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).parts
        if len(parts) > 1:
            files[parts[0]].append(file)
    return dict(files)


def imports(files: dict[str, list[Path]]) -> set[tuple[str, str]]:
    """Pairs of a room and a room it imports, anywhere in its files except for types only."""
    edges = set()
    for room, paths in files.items():
        for path in paths:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            typing = {
                id(inner)
                for node in ast.walk(tree)
                if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
                for inner in ast.walk(node)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing:
                    names = [f"{node.module}.{alias.name}".split(".") for alias in node.names]
                    edges |= {(room, n[1]) for n in names if n[0] == "clozelab" and n[1] in files}
    return {(room, other) for room, other in edges if room != other}


def shortest(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges that are not implied by a longer path."""
    below: dict[str, set[str]] = defaultdict(set)
    for room, other in edges:
        below[room].add(other)

    def reach(room: str, seen: frozenset[str]) -> set[str]:
        further = below[room] - seen
        return further.union(*(reach(other, seen | further) for other in further))

    return {
        (room, other)
        for room, other in edges
        if not any(other in reach(via, frozenset({room})) for via in below[room] - {other})
    }


def draw(files: dict[str, list[Path]]) -> str:
    """The picture as SVG."""
    floors = [[room for room in floor if room in files] for floor in FLOORS]
    strangers = sorted(files.keys() - {room for floor in FLOORS for room in floor})
    floors = [floor for floor in (*floors, strangers) if floor]
    level = {room: number for number, floor in enumerate(floors) for room in floor}
    whole = max(len(floor) for floor in floors) * (WIDTH + GAP) + GAP
    place = {}
    for number, floor in enumerate(floors):
        left = (whole - len(floor) * (WIDTH + GAP) + GAP) / 2
        place |= {
            room: (left + n * (WIDTH + GAP), 12 + number * STEP) for n, room in enumerate(floor)
        }
    edges = imports(files)
    down = {(room, other) for room, other in edges if level[room] < level[other]}
    up = {(room, other) for room, other in edges if level[room] > level[other]}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {len(floors) * STEP}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>',
        '<marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path d="M0 0 8 4 0 8z" fill="{LIGHT["soft"]}"/></marker>',
    ]
    for room, other in sorted(shortest(down)) + sorted(up):
        (x, y), (to_x, to_y) = place[room], place[other]
        dash = ' stroke-dasharray="4 3"' if (room, other) in up else ""
        start, end = (y + HEIGHT, to_y) if (room, other) in down else (y, to_y + HEIGHT)
        lines.append(
            f'<path d="M{x + WIDTH / 2:g} {start} L{to_x + WIDTH / 2:g} {end}" fill="none"'
            f' stroke="{LIGHT["soft"]}"{dash} marker-end="url(#to)"/>'
        )
    for room, (x, y) in place.items():
        code = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files[room])
        size = f"{len(files[room])} files, {round(code, -2):,} lines"
        lines += [
            f'<rect x="{x:g}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"'
            f' fill="{LIGHT["panel"]}" stroke="{LIGHT["s0"]}"/>',
            f'<text x="{x + WIDTH / 2:g}" y="{y + 17}" text-anchor="middle" font-weight="600"'
            f' fill="{LIGHT["ink"]}">{escape(room)}</text>',
            f'<text x="{x + WIDTH / 2:g}" y="{y + 32}" text-anchor="middle" font-size="10"'
            f' fill="{LIGHT["soft"]}">{size}</text>',
        ]
    return themed("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    PICTURE.write_text(draw(rooms()), encoding="utf-8")
    print(PICTURE)
