"""The demonstration: the embedded text through every stage, command by command."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from rich.markup import escape

from clozelab.arguments import parser
from clozelab.cli.console import out, warn

_TEXT = (
    "Pierre bought a second-hand umbrella in New York because it had been raining"
    " unbelievably hard since Wednesday."
)
_BLANK = "It is one of {} most common kinds of bug."


def demo(arguments: argparse.Namespace) -> None:
    """From the embedded text to two encoders, and into transformers; finished stages are kept."""
    place = Path(arguments.out)
    corpus, models = place / "corpus", (place / "roberta", place / "bert")
    _corpus(corpus)
    _say("diff", "bert", "roberta")
    _say("mask", "bert", _TEXT, "--corpus", str(corpus), "--epoch", "0")
    _say("mask", "spanbert", _TEXT, "--corpus", str(corpus), "--epoch", "0")
    for model in models:
        _pretrain(model, corpus, arguments.budget)
    _compare(corpus, models)
    _say("fill", str(models[0]), _BLANK.format("[MASK]"), "--top", "3")
    if not (place / "hf").exists():
        _say("export", str(models[1]), str(place / "hf"))
    _transformers(place / "hf")


def _corpus(place: Path) -> None:
    from clozelab import data

    if (place / "manifest.json").exists():
        _say("corpus", "show", str(place))
    else:
        built = ("--out", str(place), "--vocabulary", "8000", "--phrases")
        _say("corpus", "build", str(data.corpus()), *built)


def _pretrain(place: Path, corpus: Path, budget: str) -> None:
    """Train a model of the folder's name; one that is there already goes on, if it has to."""
    if (place / "result.json").exists():
        return
    if (place / "checkpoints").exists():
        _say("pretrain", "--resume", str(place))
        return
    words = ("--size", "tiny", "--data", str(corpus), "--budget", budget, "--out", str(place))
    _say("pretrain", place.name, *words)


def _compare(corpus: Path, models: tuple[Path, ...]) -> None:
    """Held-out losses beside what guessing by frequency costs."""
    from clozelab.records import Run
    from clozelab.report.corpora import entropy
    from clozelab.text.store import Corpus

    floor = entropy(Corpus.open(corpus))
    for model in models:
        result = Run.open(model).result() or {}
        measured = result.get("held_out", result["train"])  # a tiny corpus holds nothing out
        loss = measured["masked_lm"]["loss"]
        out.print(
            f"[bold]{model.name}[/]: {loss:.2f} nats for a hidden token;"
            f" guessing by frequency costs {floor:.2f}"
        )
    out.print()


def _transformers(place: Path) -> None:
    """The exported model as anyone opens it."""
    out.rule("[bold]transformers.pipeline", align="left")
    if find_spec("transformers") is None:
        warn("transformers is not installed, so the exported model is not opened here")
        return
    from transformers import AutoTokenizer, pipeline
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    mask = AutoTokenizer.from_pretrained(str(place)).mask_token
    for guess in pipeline("fill-mask", str(place))(_BLANK.format(mask), top_k=3):
        out.print(escape(f"{guess['score']:.1%}  {guess['sequence']}"))


def _say(*words: str) -> None:
    """Run a command, its words above what it shows."""
    from clozelab.cli import COMMANDS

    spoken = " ".join(f'"{word}"' if " " in word else word for word in words)
    out.rule(f"[bold]clozelab {escape(spoken)}", align="left")
    step = parser().parse_args(words)
    COMMANDS[step.command](step)
    out.print()
