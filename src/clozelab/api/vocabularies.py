"""Vocabularies: what one makes of a text, words added to it, what a text does not use removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clozelab.api.corpora import ReadingOptions
from clozelab.api.models import opened
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.files import check_new
from clozelab.nearest import counted
from clozelab.options import ModelLike, Place, Places, command

if TYPE_CHECKING:
    from clozelab.models.model import Model
    from clozelab.models.vocabulary import VocabularyFigures
    from clozelab.text.extension import NewWord
    from clozelab.text.usage import Usage

_BEST = 10  # words worth adding that are shown


@dataclass(frozen=True, repr=False)
class VocabularySummary:
    """A model's vocabulary, and what it makes of a text."""

    place: str
    kind: str  # of tokenizer
    specials: tuple[str, ...]
    figures: VocabularyFigures
    used: int | None = None  # of its tokens, in the text
    candidates: Sequence[NewWord] = ()  # words that would save tokens, the best first

    def __repr__(self) -> str:
        lines = [f"{self.place}: {self.kind}, {_shown(self.figures)}"]
        if self.used is not None:
            lines.append(f"used by the text: {counted(self.used, 'token')} of the vocabulary")
            best = ", ".join(word.text for word in self.candidates[:_BEST])
            more = ": " + best + (", …" if len(self.candidates) > _BEST else "") if best else ""
            lines.append(f"words worth adding: {len(self.candidates):,}{more}")
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class VocabularyChange:
    """A model that was written with another vocabulary: what it was, and what it is."""

    path: Path
    before: VocabularyFigures
    after: VocabularyFigures
    added: tuple[str, ...] = ()  # words, the best first

    def __repr__(self) -> str:
        added = f": {counted(len(self.added), 'word')} added" if self.added else ""
        lines = [f"{self.path}{added}"]
        lines += [f"before: {_shown(self.before)}", f"after: {_shown(self.after)}"]
        return "\n".join(lines)

    def load(self) -> Model:
        """The model that was written."""
        from clozelab.models.load import load

        return load(str(self.path))


def _shown(figures: VocabularyFigures) -> str:
    """The figures on one line."""
    parts = [f"{figures.tokens:,} tokens", f"{figures.parameters:,} parameters"]
    if (text := figures.text) is not None:
        parts.append(f"{text.tokens_per_word:.3f} tokens per word")
        parts.append(f"{text.unknown / max(text.tokens, 1):.1%} unknown")
    return ", ".join(parts)


@command
def show_vocabulary(
    model: ModelLike,
    input: Places = (),
    *,
    least: int = 10,
    reading: ReadingOptions,
    watch: Watch,
) -> VocabularySummary:
    """Show a model's vocabulary, and how it splits a text.

    With a text: tokens per word, how many tokens of the vocabulary the text uses, and the words
    that would save the most tokens.

    Args:
        input: files, folders, patterns, URLs, - (standard input), hf:OWNER/NAME
        least: least occurrences of a word to be listed (10)
    """
    from clozelab.config import slots
    from clozelab.models.vocabulary import check_pieces, figures

    loaded = opened(model, watch)
    check_pieces(loaded)
    special = loaded.vocabulary.special.tolist()
    names = [loaded.tokenizer.id_to_token(number) or "" for number in special]
    known: dict[str, Any] = {
        "place": loaded.place,
        "kind": slots.use("tokenizer", loaded.recipe.tokenizer),
        "specials": tuple(name for name in names if not name.startswith("[unused")),
    }
    if not input:
        return VocabularySummary(**known, figures=figures([loaded])[0])
    usage = _read(loaded, input, reading, watch)
    return VocabularySummary(
        **known,
        figures=figures([loaded], usage.sample)[0],
        used=usage.used,
        candidates=_candidates(usage, least=least),
    )


@command
def add_to_vocabulary(
    model: ModelLike,
    input: Places,
    *,
    words: int,
    out: Place,
    init: Literal["mean", "focus", "normal", "random"] = "mean",
    least: int = 10,
    seed: int = 0,
    reading: ReadingOptions,
    watch: Watch,
) -> VocabularyChange:
    """Add words of a text to a model's vocabulary, and write it as a Hugging Face directory.

    The added words are those that save the most tokens: their occurrences times their number of
    pieces less one. The tokens of a word that contains no added word do not change. Continue the
    pretraining of the model afterwards (pretrain --from).

    Args:
        input: files, folders, patterns, URLs, - (standard input), hf:OWNER/NAME
        words: how many words to add
        out (DIR): the folder to make
        init: initial embedding of a new word: mean of its pieces (FVT), focus on words used like it
            (FOCUS), normal: a sample from the distribution of all embeddings, or random: as in a
            new model (mean)
        least: least occurrences of a word to be added (10)
        seed: seed of the random embeddings (0)
    """
    from clozelab.models.vocabulary import with_words
    from clozelab.text.extension import check_extendable

    if words < 1:
        raise UserError(f"--words {words}: must be at least 1")
    loaded = _start(model, out, least, watch)
    check_extendable(loaded.tokenizer)
    usage = _read(loaded, input, reading, watch)
    candidates = usage.words.ranked(least=least)
    extended = with_words(loaded, candidates, usage, words=words, initialisation=init, seed=seed)
    note = f"{counted(words, 'word')} added ({init}); the results below are from before that"
    added = tuple(each.text for each in candidates[:words])
    return _written(loaded, extended, out, usage=usage, note=note, watch=watch, added=added)


@command
def trim_vocabulary(
    model: ModelLike,
    input: Places,
    *,
    out: Place,
    least: int = 1,
    size: int | None = None,
    reading: ReadingOptions,
    watch: Watch,
) -> VocabularyChange:
    """Trim a model's vocabulary to the tokens that a text uses; write a Hugging Face directory.

    The special tokens stay. Text without the removed pieces has the same outputs as before.

    Args:
        input: files, folders, patterns, URLs, - (standard input), hf:OWNER/NAME
        out (DIR): the folder to make
        least: remove pieces with fewer occurrences than this (1)
        size: keep at most this many tokens, the most frequent (all that occur)
    """
    from clozelab.models.vocabulary import without_unused

    loaded = _start(model, out, least, watch)
    usage = _read(loaded, input, reading, watch)
    trimmed = without_unused(loaded, usage, least=least, size=size)
    note = f"trimmed from {loaded.vocabulary.size:,} tokens to {trimmed.vocabulary.size:,}"
    return _written(loaded, trimmed, out, usage=usage, note=note, watch=watch)


def _start(model: Any, out: str, least: int, watch: Watch) -> Model:
    """The model, once nothing that is asked for is refused."""
    from clozelab.models.vocabulary import check_pieces

    if least < 1:
        raise UserError(f"--least {least}: must be at least 1")
    check_new(Path(out))
    loaded = opened(model, watch)
    check_pieces(loaded)
    return loaded


def _candidates(usage: Usage, *, least: int) -> list[NewWord]:
    """The words worth a row; none where the tokenizer cannot be given any."""
    try:
        return usage.words.ranked(least=least)
    except UserError:
        return []


def _read(model: Model, input: Sequence[str], reading: ReadingOptions, watch: Watch) -> Usage:
    """What the model's tokenizer makes of the text."""
    from clozelab.contracts import Counts
    from clozelab.text.reading.sources import BytesRead, find
    from clozelab.text.usage import usage

    inputs, progress = find(input, reading.chosen()), BytesRead()
    work = usage(model.tokenizer, inputs.documents(Counts(), progress=progress), progress=progress)
    return watch.drain(work, "reading", inputs.bytes or 0)


def _written(
    before: Model,
    after: Model,
    out: str,
    *,
    usage: Usage,
    note: str,
    watch: Watch,
    added: tuple[str, ...] = (),
) -> VocabularyChange:
    """Write the model, and say what changed."""
    from clozelab.models.exchange import export
    from clozelab.models.vocabulary import figures

    written = export(after, Path(out), changes={"vocabulary": note})
    for line in written.notes:
        watch.warn(line)
    watch.say(f"{out}: {written.what}")
    was, is_now = figures([before, after], usage.sample)
    return VocabularyChange(Path(out), was, is_now, added)
