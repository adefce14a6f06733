"""A corpus as something to look at: sizes, lengths, its most frequent words, its making."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clozelab.contracts import Mark
from clozelab.errors import UserError
from clozelab.text.store import Corpus

_BARS = " ▁▂▃▄▅▆▇█"
_SAMPLE = 2_000_000  # tokens looked at for the figures that need the tokens themselves


def show(corpus: Corpus) -> RenderableType:
    """Everything worth knowing about a corpus on one screen."""
    manifest = corpus.manifest
    sizes = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "documents", "sentences", "tokens"):
        sizes.add_column(column, justify="left" if not column else "right")
    for split, numbers in manifest["splits"].items():
        cells = [f"{numbers[key]:,}" for key in ("documents", "sentences", "tokens")]
        sizes.add_row(split.replace("_", "-"), *cells)
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(corpus):
        facts.add_row(name, Text(value))
    head = Text.assemble((str(corpus.path), "bold"), f"  {corpus.bytes / 1e6:,.1f} MB")
    return Group(head, Text(), sizes, Text(), facts)


def _facts(corpus: Corpus) -> list[tuple[str, str]]:
    manifest = corpus.manifest
    documents = corpus.documents("train")
    words = int(((documents.marks[:_SAMPLE] & Mark.WORD) != 0).sum())
    sample = len(documents.marks[:_SAMPLE])
    lengths = np.diff(documents.sentences)
    if (lengths < 0).any():
        damaged = corpus.path / "train" / "sentences.npy"
        raise UserError(f"{damaged}: a byte was altered; build the corpus again")
    facts = [
        ("held out", _held_out(manifest)),
        ("vocabulary", f"{manifest['vocabulary']:,} ids"),
        ("entropy", f"{entropy(corpus):.2f} nats a token (what guessing by frequency costs)"),
        ("tokens a word", f"{sample / max(words, 1):.2f}"),
        ("sentence length", f"{_histogram(lengths)}  median {int(np.median(lengths))} tokens"),
        ("most frequent", ", ".join(_top(corpus, 12))),
        ("sentences by", manifest["sentences"]),
        ("Chinese words by", manifest["segmenter"] or "no segmenter: single characters"),
    ]
    units = {kind: number for kind, number in manifest["units"].items() if number}
    if units:
        facts.append(("units", ", ".join(f"{n:,} {kind} units" for kind, n in units.items())))
    facts += [(what, f"{number:,}") for what, number in manifest["notes"].items()]
    facts.append(("made from", ", ".join(manifest["inputs"][:6]) + _more(manifest["inputs"], 6)))
    facts.append(("fingerprint", manifest["fingerprint"][:16]))
    return facts


def _held_out(manifest: dict[str, Any]) -> str:
    """How much is held out, and of what."""
    tokens = {split: sizes["tokens"] for split, sizes in manifest["splits"].items()}
    if not tokens["held_out"]:
        return "nothing"
    share = tokens["held_out"] / sum(tokens.values())
    number = manifest["splits"]["held_out"]["documents"]  # of the first version, which cut none
    parted = manifest.get("held_out", {"whole": number, "parts": 0})
    what = _documents("whole document", parted["whole"]), _documents("document", parted["parts"])
    parts = [what[0], what[1] and f"parts of {what[1]}"]
    return f"{tokens['held_out']:,} tokens, {share:.2%} of all: {' and '.join(filter(None, parts))}"


def _documents(kind: str, number: int) -> str:
    return f"{number:,} {kind}{'' if number == 1 else 's'}" if number else ""


def entropy(corpus: Corpus) -> float:
    """Nats a token of the unigram distribution of train."""
    counts = corpus.vocabulary.counts
    assert counts is not None
    share = counts[counts > 0] / max(int(counts.sum()), 1)
    return float(-(share * np.log(share)).sum())


def _histogram(lengths: np.typing.NDArray[np.int64]) -> str:
    """Sentence lengths as a little picture: bins of 8 tokens up to 128."""
    bins = np.bincount(np.minimum(lengths // 8, 16), minlength=17)
    scale = (len(_BARS) - 1) / max(int(bins.max()), 1)
    return "".join(_BARS[int(np.ceil(number * scale))] for number in bins)


def _top(corpus: Corpus, count: int) -> list[str]:
    with (corpus.path / "words.txt").open(encoding="utf-8") as lines:
        return [line.rsplit("\t", 1)[0] for line, _ in zip(lines, range(count), strict=False)]


def _more(items: list[str], shown: int) -> str:
    return f" and {len(items) - shown} more" if len(items) > shown else ""
