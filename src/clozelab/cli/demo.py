"""The demonstration: the embedded text through every stage, command by command."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape

from clozelab.arguments import parser
from clozelab.cli.console import out

_TEXT = (
    "Pierre bought a second-hand umbrella in New York because it had been raining"
    " unbelievably hard since Wednesday."
)


def demo(arguments: argparse.Namespace) -> None:
    """From the embedded text to masked blocks."""
    from clozelab import data
    from clozelab.cli import COMMANDS

    place = Path(arguments.out) / "corpus"
    steps = [
        ["show", "roberta", "--size", "tiny"],
        ["diff", "bert", "spanbert"],
        ["mask", "bert", _TEXT, "--corpus", str(place)],
        ["mask", "spanbert", _TEXT, "--corpus", str(place), "--epoch", "0"],
        ["mask", "xlnet", _TEXT, "--corpus", str(place), "--epoch", "0"],
        ["blocks", "bert", "--corpus", str(place), "--size", "tiny", "--count", "2"],
        ["blocks", "albert", "--corpus", str(place), "--size", "tiny", "--count", "2"],
    ]
    if not (place / "manifest.json").exists():
        build = ["corpus", "build", str(data.corpus()), "--out", str(place)]
        steps.insert(0, [*build, "--vocabulary", "8000", "--phrases"])
    else:
        steps.insert(0, ["corpus", "show", str(place)])
    for words in steps:
        spoken = " ".join(f'"{word}"' if " " in word else word for word in words)
        out.rule(f"[bold]clozelab {escape(spoken)}", align="left")
        step = parser().parse_args(words)
        COMMANDS[step.command](step)
        out.print()
