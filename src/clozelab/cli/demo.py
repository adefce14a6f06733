"""The demonstration: the embedded text through every stage, command by command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from rich.markup import escape

from clozelab.cli.books import set_aside
from clozelab.cli.console import err, out
from clozelab.options import Place, command

_TEXT = (
    "Pierre bought a second-hand umbrella in New York because it had been raining"
    " unbelievably hard since Wednesday."
)
_BLANK = "It is one of {} most common kinds of bug."
_SENTENCES = ("And the king said unto his servants, Go forth.", "The file system crashed again.")
_TUNING = (
    "--set",
    "learning_rate=1e-3",
    "--set",
    "epochs=10",
    "--set",
    "batch_size=8",
    "--seeds",
    "3",
)
# So little text is gone through in more and smaller steps than tiny has.
_SETTINGS = {"swift": ("--set", "schedule.batch_size=8")}


@command
def demo(*, out: Place = "demo", budget: str = "40s") -> None:
    """Take the embedded text from raw to two encoders and a task; finished stages are kept.

    Args:
        out (DIR): where to work (demo/)
        budget: for each of them (40s)
    """
    place = Path(out)
    corpus, models = place / "corpus", (place / "swift", place / "bert")
    text, books = set_aside(place)
    _corpus(corpus, text)
    _say("diff", "bert", "roberta")
    _say("mask", "bert", _TEXT, "--corpus", str(corpus), "--epoch", "0")
    _say("mask", "spanbert", _TEXT, "--corpus", str(corpus), "--epoch", "0")
    for model in models:
        _pretrain(model, corpus, budget)
    _compare(corpus, models)
    _say("fill", str(models[0]), _BLANK.format("[MASK]"), "--top", "3")
    if not (place / "hf").exists():
        _say("export", str(models[1]), str(place / "hf"))
    _fill_mask(place / "hf")
    _task(place, models[0], books)
    shown = (*models, place / "books", place / "books-fresh")
    _say("report", *map(str, shown), "--out", str(place / "page.html"), "--title", "The demo")


def _corpus(place: Path, text: Path) -> None:
    if (place / "manifest.json").exists():
        _say("corpus", "show", str(place))
    else:
        built = ("--out", str(place), "--vocabulary", "8000", "--phrases")
        _say("corpus", "build", str(text), *built)


def _pretrain(place: Path, corpus: Path, budget: str) -> None:
    """Train a model of the folder's name; one that is there already goes on, if it has to."""
    if (place / "result.json").exists():
        return
    if (place / "checkpoints").exists():
        _say("pretrain", "--resume", str(place))
        return
    words = ("--size", "tiny", "--data", str(corpus), "--budget", budget, "--out", str(place))
    _say("pretrain", place.name, *words, *_SETTINGS.get(place.name, ()))


def _compare(corpus: Path, models: tuple[Path, ...]) -> None:
    """Held-out losses beside what guessing by frequency costs."""
    from clozelab.api.corpora import entropy
    from clozelab.runs.directory import Run
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


def _task(place: Path, model: Path, books: dict[str, Path]) -> None:
    """Which book a sentence is from: the model, and its like without pretraining."""
    tuned, fresh = place / "books", place / "books-fresh"
    files = ("--train", str(books["train"]), "--dev", str(books["dev"]))
    _finetune(model, tuned, *files)
    _finetune(model, fresh, *files, "--fresh")
    _gain(tuned, fresh)
    texts = [word for text in _SENTENCES for word in ("--text", text)]
    _say("predict", str(tuned), *texts)
    if not (place / "hf-books").exists():
        _say("export", str(tuned), str(place / "hf-books"))
    _classification(place / "hf-books")


def _finetune(model: Path, place: Path, *more: str) -> None:
    """Fit the model to a few labelled sentences, unless that is done."""
    if not (place / "result.json").exists():
        _say("finetune", str(model), "classify", "--out", str(place), *more, *_TUNING)


def _gain(tuned: Path, fresh: Path) -> None:
    """The two accuracies side by side, and what may be said of them."""
    from clozelab.runs.directory import Run

    scores = [(Run(one).result() or {})["cells"][0]["selected"] for one in (tuned, fresh)]
    out.print(f"{_shown(scores[0])}  of 100 right, pretrained")
    out.print(f"{_shown(scores[1])}  the same architecture from random weights")
    if scores[0].get("low", 0) > scores[1].get("high", 100):
        gain = scores[0]["mean"] - scores[1]["mean"]
        out.print(f"Pretraining gained {gain:.1f} points; the 95 % intervals do not overlap.\n")
    else:
        out.print("No clear gain: so short a pretraining is too little for this task.\n")


def _shown(score: Mapping[str, float]) -> str:
    """The mean over seeds; of two or more with half its interval."""
    sure = f" ± {score['high'] - score['mean']:.1f}" if "high" in score else ""
    return f"[bold]{score['mean']:.1f}{sure}[/]"


def _fill_mask(place: Path) -> None:
    """The exported encoder as anyone opens it."""
    if not _opens("fill-mask"):
        return
    from transformers import AutoTokenizer, pipeline

    mask = AutoTokenizer.from_pretrained(str(place)).mask_token
    for guess in pipeline("fill-mask", str(place))(_BLANK.format(mask), top_k=3):
        out.print(escape(f"{guess['score']:.1%}  {guess['sequence']}"))
    out.print()


def _classification(place: Path) -> None:
    """The exported classifier as anyone opens it."""
    if not _opens("text-classification"):
        return
    from transformers import pipeline

    found = pipeline("text-classification", str(place))(list(_SENTENCES))
    for guess, text in zip(found, _SENTENCES, strict=True):
        out.print(escape(f"{guess['score']:.1%}  {guess['label']}  {text}"))
    out.print()


def _opens(what: str) -> bool:
    """Whether transformers is there to open a model; says which pipeline does."""
    out.rule(f'[bold]transformers.pipeline("{what}")', align="left")
    if find_spec("transformers") is None:
        err.print("transformers is not installed, so the exported model is not opened here")
        return False
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return True


def _say(*words: str) -> None:
    """Run a command, its words above what it shows."""
    from clozelab.cli import run

    spoken = " ".join(f'"{word}"' if " " in word else word for word in words)
    out.rule(f"[bold]clozelab {escape(spoken)}", align="left")
    run(words)
    out.print()
