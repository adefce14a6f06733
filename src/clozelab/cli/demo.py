"""The demonstration: the embedded text through every stage, command by command.

Its task is to say which book a sentence is from, of documents that no encoder has read.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.text import Text

from clozelab import data
from clozelab.cli.console import err, out
from clozelab.files import write_text
from clozelab.options import Place, command
from clozelab.runs.directory import Run

_TEXT = (
    "Pierre bought a second-hand umbrella in New York because it had been raining"
    " unbelievably hard since Wednesday."
)
_BLANK = "It is one of {} most common kinds of bug."
_SENTENCES = ("And the king said unto his servants, Go forth.", "The file system crashed again.")
_TUNING = (
    *("--set", "learning_rate=1e-3", "--set", "epochs=10", "--set", "batch_size=8"),
    *("--seeds", "3"),
)
# So little text is gone through in more and smaller steps than tiny has.
_SETTINGS = {"swift": ("--set", "schedule.batch_size=8")}
# Documents go by the book and the chapter or entry; three of the books are novels of one author.
_BOOKS = {"pride": "austen", "northanger": "austen", "persuasion": "austen"}
_ASIDE = 8  # one document in so many is not trained on: enough to score by
_SPLITS = {"train": slice(0, 20), "dev": slice(20, 120)}  # sentences of each book
_WORDS = range(6, 15)  # of such a sentence


@command
def demo(*, out: Place = "demo", budget: str = "40s") -> None:
    """Run every stage on the embedded text: a corpus, two encoders and a task.

    Finished stages are kept.

    Args:
        out (DIR): folder to work in (demo/)
        budget: training budget of each encoder (40s)
    """
    place = Path(out)
    corpus, models, exported = place / "corpus", (place / "swift", place / "bert"), place / "hf"
    text, books = _set_aside(place)
    if (corpus / "manifest.json").exists():
        _say("corpus", "show", corpus)
    else:
        how = ("--vocabulary", "8000", "--phrases", "--license", "public domain")
        _say("corpus", "build", text, "--out", corpus, *how)
    _say("diff", "bert", "roberta")
    for recipe in ("bert", "spanbert"):
        _say("mask", recipe, _TEXT, "--corpus", corpus, "--epoch", "0")
    for model in models:
        _pretrain(model, corpus, budget)
    _compare(corpus, models)
    _say("fill", models[0], _BLANK.format("[MASK]"), "--top", "3")
    _once(exported, "export", models[1], exported)
    _pipeline("fill-mask", exported, _fill_mask)
    _task(place, models[0], books)
    shown = (*models, place / "books", place / "books-fresh")
    _say("report", *shown, "--out", place / "page.html", "--title", "The demo")


def _set_aside(place: Path) -> tuple[Path, dict[str, Path]]:
    """Text to train from, and labelled sentences of the rest; written unless they are there."""
    text = place / "text.jsonl"
    splits = {name: place / f"books-{name}.tsv" for name in _SPLITS}
    if not text.exists():
        place.mkdir(parents=True, exist_ok=True)
        with gzip.open(data.corpus(), "rt", encoding="utf-8") as file:
            lines = list(file)
        books = _sentences(lines[::_ASIDE])
        for name, part in _SPLITS.items():
            rows = [f"{one}\t{book}\n" for book in sorted(books) for one in books[book][part]]
            write_text(splits[name], "".join(["sentence\tlabel\n", *rows]))
        del lines[::_ASIDE]
        write_text(text, "".join(lines))
    return text, splits


def _sentences(lines: list[str]) -> dict[str, list[str]]:
    """Sentences of a middling length by their book, in an order of their own."""
    books: dict[str, list[str]] = {}
    for line in lines:
        document = json.loads(line)
        book = document["id"].partition("-")[0]
        for sentence in re.split(r"(?<=[.!?;])\s+", document["text"]):
            words = sentence.split()
            if len(words) in _WORDS:
                books.setdefault(_BOOKS.get(book, book), []).append(" ".join(words))
    for book, sentences in sorted(books.items()):
        random.Random(book).shuffle(sentences)
    return books


def _pretrain(place: Path, corpus: Path, budget: str) -> None:
    """Train a model of the folder's name; one that is there already goes on, if it has to."""
    if (place / "checkpoints").exists():
        _once(place / "result.json", "pretrain", "--resume", place)
        return
    words = ("--size", "tiny", "--data", corpus, "--budget", budget, "--out", place)
    _say("pretrain", place.name, *words, *_SETTINGS.get(place.name, ()))


def _compare(corpus: Path, models: tuple[Path, ...]) -> None:
    """Held-out losses beside what guessing by frequency costs."""
    from clozelab.runs.diagnostics import unigram_entropy
    from clozelab.text.store import Corpus

    floor = unigram_entropy(Corpus.open(corpus).vocabulary.counts)
    for model in models:
        result = Run.open(model).result() or {}
        measured = result.get("held_out", result["train"])  # a tiny corpus holds nothing out
        loss = measured["masked_lm"]["loss"]
        sentence = f": {loss:.2f} nats per masked token; predicting by frequency gives {floor:.2f}"
        out.print(Text.assemble((model.name, "bold"), sentence))
    out.print()


def _task(place: Path, model: Path, books: dict[str, Path]) -> None:
    """Which book a sentence is from: the model, and its like without pretraining."""
    tuned, fresh, exported = place / "books", place / "books-fresh", place / "hf-books"
    words = ("--train", books["train"], "--dev", books["dev"], *_TUNING)
    _once(tuned / "result.json", "finetune", model, "classify", "--out", tuned, *words)
    _once(fresh / "result.json", "finetune", model, "classify", "--out", fresh, *words, "--fresh")
    _gain(tuned, fresh)
    _say("predict", tuned, *(word for text in _SENTENCES for word in ("--text", text)))
    _once(exported, "export", tuned, exported)
    _pipeline("text-classification", exported, _classification)


def _gain(tuned: Path, fresh: Path) -> None:
    """The two accuracies side by side, and what may be said of them."""
    scores = [(Run(run).result() or {})["cells"][0]["selected"] for run in (tuned, fresh)]
    models = ("pretrained", "the same architecture from random weights")
    for score, model in zip(scores, models, strict=True):
        out.print(Text.assemble((_shown(score), "bold"), f" % accuracy, {model}"))
    if scores[0].get("low", 0) > scores[1].get("high", 100):
        gain = scores[0]["mean"] - scores[1]["mean"]
        out.print(f"Pretraining gained {gain:.1f} points; the 95 % intervals do not overlap.\n")
    else:
        out.print("No clear gain: this pretraining is too short for this task.\n")


def _shown(score: Mapping[str, float]) -> str:
    """The mean over seeds; of two or more with half its interval."""
    sure = f" ± {score['high'] - score['mean']:.1f}" if "high" in score else ""
    return f"{score['mean']:.1f}{sure}"


def _fill_mask(pipeline: Any) -> Iterator[str]:
    for guess in pipeline(_BLANK.format(pipeline.tokenizer.mask_token), top_k=3):
        yield f"{guess['score']:.1%}  {guess['sequence']}"


def _classification(pipeline: Any) -> Iterator[str]:
    for guess, text in zip(pipeline(list(_SENTENCES)), _SENTENCES, strict=True):
        yield f"{guess['score']:.1%}  {guess['label']}  {text}"


def _pipeline(task: str, place: Path, ask: Callable[[Any], Iterable[str]]) -> None:
    """Ask an exported model as anyone opens it, by the pipeline of transformers, if it is there."""
    out.rule(Text(f'transformers.pipeline("{task}")', "bold"), align="left")
    if find_spec("transformers") is None:
        err.print("transformers is not installed, so the exported model is not tested with it")
        return
    from transformers import pipeline
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    make: Any = pipeline
    for line in ask(make(task, str(place))):
        out.print(line)
    out.print()


def _once(target: Path, *words: str | Path) -> None:
    """Run a command, unless what it makes is there."""
    if not target.exists():
        _say(*words)


def _say(*words: str | Path) -> None:
    """Run a command, its words above what it shows."""
    from clozelab.cli import run

    spoken = " ".join(f'"{word}"' if " " in str(word) else str(word) for word in words)
    out.rule(Text(f"clozelab {spoken}", "bold"), align="left")
    run([str(word) for word in words])
    out.print()
