"""Make the README's pictures from the commands themselves: python tools/pictures.py"""

from __future__ import annotations

import io
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from clozelab import cli

TEXT = (
    "The umbrella salesman remembered an extraordinarily rainy Wednesday in New York, when he sold"
    " forty umbrellas before breakfast and nobody complained about the price."
)
RECIPES = ("bert", "spanbert", "albert", "xlnet")
FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 96


def main() -> None:
    """One picture: the same sentence under four recipes, and BERT's difference from RoBERTa."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True
    )
    cli.out = console
    for recipe in RECIPES:
        console.print(f'[bold green]$[/] clozelab mask {recipe} [dim]"The umbrella…" --epoch 0[/]')
        words = cli.parser().parse_args(["mask", recipe, TEXT, "--epoch", "0", "--seed", "1"])
        cli.COMMANDS["mask"](words)
        console.print()
    # A picture must not fetch a font: the reader's own fixed-width one will do.
    plain = CONSOLE_SVG_FORMAT[: CONSOLE_SVG_FORMAT.index("@font-face")]
    plain += CONSOLE_SVG_FORMAT[CONSOLE_SVG_FORMAT.index(".{unique_id}-matrix") :]
    FOLDER.mkdir(parents=True, exist_ok=True)
    console.save_svg(
        str(FOLDER / "masks.svg"), title="clozelab", code_format=plain, unique_id="masks"
    )


if __name__ == "__main__":
    main()
