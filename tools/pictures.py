"""Make the README's pictures from the commands themselves: python tools/pictures.py"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.color import Color
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from clozelab import cli
from clozelab.cli import commands
from clozelab.files import write_text
from clozelab.reporting.palette import DARK, LIGHT, themed

TEXT = (
    "The umbrella salesman remembered an extraordinarily rainy Wednesday in New York, when he sold"
    " forty umbrellas before breakfast and nobody complained about the price."
)
RECIPES = ("bert", "spanbert", "albert", "xlnet")
EPOCH = 14  # in which BERT's tokens are masked, replaced and kept
FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 96


class _Recorder(Console):
    def show(self, *things: Any) -> None:
        """Print what a view made."""
        for thing in things:
            self.print(thing)


def main() -> None:
    """Make docs/pictures/masks.svg: the masks of one sentence under four recipes."""
    console = _Recorder(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True
    )
    commands.out = console
    for recipe in RECIPES:
        console.print(
            f'[bold green]$[/] clozelab mask {recipe} [dim]"The umbrella…" --epoch {EPOCH}[/]'
        )
        cli.run(["mask", recipe, TEXT, "--epoch", str(EPOCH)])
        console.print()
    # Without a font to fetch: the reader's own fixed-width font is used.
    plain = CONSOLE_SVG_FORMAT[: CONSOLE_SVG_FORMAT.index("@font-face")]
    plain += CONSOLE_SVG_FORMAT[CONSOLE_SVG_FORMAT.index(".{unique_id}-matrix") :]
    FOLDER.mkdir(parents=True, exist_ok=True)
    how = {"title": "clozelab", "code_format": plain, "unique_id": "masks", "clear": False}
    light, dark = (console.export_svg(theme=theme(colours), **how) for colours in (LIGHT, DARK))
    write_text(FOLDER / "masks.svg", both(light, dark))


def theme(colours: Mapping[str, str]) -> TerminalTheme:
    """A terminal in the colours of pages: black, red, green, yellow, blue, magenta, cyan, white."""
    names = ("ink", "s1", "s2", "s4", "s0", "s3", "s5", "paper")
    triplets = [Color.parse(colours[name]).triplet or (0, 0, 0) for name in names]
    paper, ink = (Color.parse(colours[name]).triplet or (0, 0, 0) for name in ("panel", "ink"))
    return TerminalTheme(paper, ink, triplets)


def both(light: str, dark: str) -> str:
    """One drawing with light and dark colours, from two that differ only in colours."""
    pairs = zip(
        *(re.findall(r'fill="(#\w{6})"', drawing) for drawing in (light, dark)), strict=True
    )
    rules = re.findall(r"(\.masks-r\d+) \{ (fill: #\w{6})", dark)
    night = "\n".join(f"{name} {{ {fill} }}" for name, fill in rules)
    drawn = light.replace(
        "</style>", f"@media (prefers-color-scheme: dark) {{\n{night} }}\n</style>"
    )
    return themed(drawn, {a: b for a, b in dict(pairs).items() if a != b})


if __name__ == "__main__":
    main()
