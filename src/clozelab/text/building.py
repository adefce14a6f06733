"""Build a corpus: which tokenizer, from where, with what defaults."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.nearest import nearest
from clozelab.text.extension import Extension
from clozelab.text.reading.sentences import splitter
from clozelab.text.store import Corpus
from clozelab.text.store.build import build
from clozelab.text.store.options import BuildOptions, BuildProgress
from clozelab.text.tokenizers import TOKENIZERS, TokenizerSpec
from clozelab.text.vocabulary import load
from clozelab.text.words import segmenter

VOCABULARY = 30_000  # ids, unless asked otherwise


def choose_tokenizer(
    *,
    kind: str | None = None,
    vocabulary: int | None = None,
    cased: bool | None = None,
    source: str | None = None,
    recipe: TokenizerSpec | None = None,
    extend: int | None = None,
) -> TokenizerSpec | Tokenizer:
    """The tokenizer a corpus is to be built with: a given one, a recipe's, or one to be trained.

    `recipe` is the one that a recipe asks for, `extend` how many words of the text a given one is
    to learn.
    """
    if source is not None:
        if kind or vocabulary or recipe or cased is not None:
            raise UserError("--tokenizer-from brings its own settings: leave the others out")
        trained = load(source)
        return trained if extend is None else Extension(trained.to_str(), extend)
    if extend is not None:
        raise UserError("--extend adds words to a trained tokenizer: name it by --tokenizer-from")
    if recipe is not None:
        training = recipe
    else:
        name = kind or "wordpiece"
        if name not in TOKENIZERS:
            meant = nearest(name, TOKENIZERS)
            hint = f"did you mean {meant}? " if meant else ""
            raise UserError(f"--tokenizer {name}: unknown; {hint}there are {', '.join(TOKENIZERS)}")
        training = TOKENIZERS[name](vocabulary=VOCABULARY)
    if vocabulary is not None:
        if vocabulary < 300:
            raise UserError(f"--vocabulary {vocabulary}: too small to spell with; at least 300")
        training = replace(training, vocabulary=vocabulary)  # type: ignore[type-var]
    if cased is not None:
        training = replace(training, cased=cased)  # type: ignore[type-var]
    return training


def make(
    inputs: Sequence[str],
    out: Path,
    *,
    tokenizer: TokenizerSpec | Tokenizer,
    options: BuildOptions,
    counts: Counts,
) -> Generator[BuildProgress, None, Corpus]:
    """Build a corpus; see `build`. What falls short of the asked is added to `counts`."""
    corpus = yield from build(inputs, out, tokenizer=tokenizer, options=options, counts=counts)
    if not isinstance(tokenizer, Tokenizer) and corpus.vocabulary.size < tokenizer.vocabulary:
        counts.add(
            f"vocabulary smaller than the {tokenizer.vocabulary:,} asked for, for want of text",
            number=corpus.vocabulary.size,
        )
    return corpus


def missing(options: BuildOptions) -> list[str]:
    """What this machine lacks for a better corpus, to be said before it is built."""
    said = []
    if options.sentences == "auto" and splitter("auto").name.startswith("plain"):
        said.append("nupunkt is not installed: sentences are split by a plain rule")
    if options.segment and segmenter() is None:
        said.append("rjieba is not installed: Chinese words are not segmented")
    return said


def cores() -> int:
    """Processes to use unless told otherwise: the cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
