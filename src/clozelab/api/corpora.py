"""Corpora: text → tokenizer → a store to train from; and what is in one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich import progress

from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.interrupts import Stopped, signal_of
from clozelab.nearest import counted
from clozelab.options import Few, LocalFolder, OneOf, Place, Places, command, option
from clozelab.remote.access import is_url, shown

if TYPE_CHECKING:
    from clozelab.text.building import BuildProgress
    from clozelab.text.reading.layouts import Reading
    from clozelab.text.store import Corpus
    from clozelab.text.store.plans import KeptPlan

Unique = Annotated[str, OneOf("lines", "paragraphs", "documents", bare="documents")]

_BARS = " ▁▂▃▄▅▆▇█"
_SAMPLE = 2_000_000  # tokens looked at for the figures that need the tokens themselves
_SHOWN, _WORDS = 32, 12  # tokens of the text, and words by frequency


@dataclass(frozen=True)
class TokenizerOptions:
    """The tokenizer: a new one trained on the text, or an existing one."""

    tokenizer: str | None = option(
        "wordpiece (default), byte_bpe, char_bpe, unigram or chars; for sequences that are not"
        " text: kmer, regex or bytes"
    )
    vocabulary: int | None = option("size of the vocabulary (30,000)")
    cased: bool | None = option("keep upper case")
    k: int | None = option("letters in a k-mer (6)")
    alphabet: str | None = option("the letters of k-mers (ACGT)", metavar="LETTERS")
    pattern: str | None = option("the regular expression whose matches are tokens", metavar="REGEX")
    recipe: str | None = option("train the tokenizer that this recipe asks for")
    tokenizer_from: Place | None = option(
        "a run, folder or file with a trained tokenizer", metavar="MODEL"
    )
    extend: int | None = option("add up to this many words of the text to that tokenizer")

    def choose(self) -> Any:
        """The tokenizer, or how it is to be trained."""
        from clozelab.config import recipe as recipes
        from clozelab.text.building import choose_tokenizer

        return choose_tokenizer(
            kind=self.tokenizer,
            vocabulary=self.vocabulary,
            cased=self.cased,
            source=self.tokenizer_from,
            recipe=recipes.read(self.recipe).tokenizer if self.recipe else None,
            extend=self.extend,
            k=self.k,
            alphabet=self.alphabet,
            pattern=self.pattern,
        )


@dataclass(frozen=True)
class ReadingOptions:
    """How files are read."""

    layout: Literal["auto", "prose", "sentences", "lines"] = option(
        "layout of text files: prose; sentences, one per line with blank lines between documents;"
        " or lines, one document per line",
        "auto",
    )
    field: str = option(
        "field of JSON lines, tables and CSV files to read; several fields, separated by commas,"
        " are the sentences of one document, as in pairs (text)",
        "text",
    )
    split: str = option("split of a dataset (train)", "train")
    encoding: str = option("encoding of text files, also those of --exclude (utf-8)", "utf-8")

    def chosen(self) -> Reading:
        """How a build reads."""
        from clozelab.text.reading.layouts import Reading

        return Reading(**asdict(self))


@dataclass(frozen=True)
class CleaningOptions:
    """What is left out of the text."""

    unique: Unique | None = option(
        "leave out documents, paragraphs or lines that repeat an earlier one"
    )
    near_duplicates: float | None = option(
        "leave out documents at least this similar to an earlier one by their word n-grams, for"
        " instance 0.8; needs rensa",
        metavar="SIMILARITY",
    )
    exclude: Places | None = option(
        "leave out lines that share a word n-gram with any field of these evaluation files",
        metavar="FILE",
    )
    exclude_ngram: int = option("words in such an n-gram (13)", 13)

    def chosen(self) -> dict[str, Any]:
        """What a build takes."""
        if self.exclude is not None and not self.exclude:
            raise UserError("--exclude: no file is named; name one, or leave it out")
        return {**asdict(self), "exclude": tuple(self.exclude or ())}


@command
def build_corpus(
    input: Places,
    *,
    out: LocalFolder,
    sentences: Literal["auto", "nupunkt", "plain", "none"] = "auto",
    phrases: bool = False,
    entities: Place | None = None,
    spans: Place | None = None,
    segmentation: bool = True,
    held_out: float = 0.01,
    words: int = 30_000,
    license: str | None = None,
    workers: Few | None = None,
    on: str | None = None,
    tokenizing: TokenizerOptions,
    cleaning: CleaningOptions,
    reading: ReadingOptions,
    watch: Watch,
) -> Corpus:
    """Build a corpus from text: train or load a tokenizer, tokenise, and write a folder.

    If a build was stopped, the same call continues it.

    Args:
        input: files, folders, patterns, URLs, - (standard input), hf:OWNER/NAME
        out (DIR): the folder to make
        sentences: the sentence splitter; with none, each line is a sentence
        phrases: mine phrases, for knowledge masking
        entities (FILE): names, one per line, for knowledge masking
        spans (FILE): a TSV of document, start, end and kind, for knowledge masking
        segmentation: segment Chinese into words
        held_out: share of the tokens to hold out (0.01)
        words: size of the word vocabulary that ELMo predicts (30,000)
        license (NAME): license of the text; recorded, and written on the cards of models trained
            on it
        workers: processes (one per core), or tasks at the same time on a cluster
        on (CLUSTER): ray://HOST:PORT or local, with Ray
    """
    from clozelab.text.building import BuildOptions, missing
    from clozelab.text.sequences import Kmer
    from clozelab.text.store.build import build

    options = BuildOptions(
        reading=reading.chosen(),
        sentences=sentences,
        segment=segmentation,
        entities=entities,
        spans=spans,
        phrases=phrases,
        held_out=held_out,
        words=words,
        license=license,
        workers=workers,
        on=on,
        **cleaning.chosen(),
    )
    tokenizer = tokenizing.choose()
    for line in missing(options):
        watch.warn(line)
    if reading.layout == "auto" and isinstance(tokenizer, Kmer):
        watch.warn(
            "k-mers run across the lines of a text file; if each line is a separate"
            " sequence, give --layout lines --sentences none"
        )
    building = partial(build, input, Path(out), tokenizer=tokenizer, options=options)
    corpus = _done(building, out, watch)
    share = _held_out_share(corpus.manifest)
    if not held_out / 2 <= share <= held_out * 2:
        watch.warn(
            f"{out}: {share:.2%} of the tokens are held out, not {held_out:.2%}: sentences are not"
            " cut, and copies of a document stay together"
        )
    return corpus


@command
def add_to_corpus(
    corpus: LocalFolder,
    input: Places,
    *,
    held_out: float | None = None,
    license: str | None = None,
    workers: Few | None = None,
    on: str | None = None,
    cleaning: CleaningOptions,
    reading: ReadingOptions,
    watch: Watch,
) -> Corpus:
    """Add text to the end of a corpus, tokenised with the corpus's own tokenizer.

    The corpus gets a new fingerprint. The earlier version stays available as CORPUS@FINGERPRINT,
    and runs that started with it continue with it.

    Args:
        corpus: the corpus's folder
        input: files, folders, patterns, URLs, - (standard input), hf:OWNER/NAME
        held_out: share of the new tokens to hold out (as when the corpus was built)
        license (NAME): license of the new text
        workers: processes (one per core), or tasks at the same time on a cluster
        on (CLUSTER): ray://HOST:PORT or local, with Ray
    """
    from clozelab.text.building import BuildOptions
    from clozelab.text.store import Corpus
    from clozelab.text.store.build import add

    share = Corpus.open(corpus, trusting=True).manifest["options"]["held_out"]
    options = BuildOptions(
        reading=reading.chosen(),
        held_out=share if held_out is None else held_out,
        license=license,
        workers=workers,
        on=on,
        **cleaning.chosen(),
    )
    return _done(partial(add, input, Path(corpus), options=options), corpus, watch)


def fetch_corpora(data: Sequence[str], watch: Watch, *, ahead: bool = False) -> None:
    """Fetch the corpora that are at a URL, with a bar: it may take hours, and is done once.

    With `ahead`, only what must be there before the first step is waited for.
    """
    from clozelab.remote.ahead import bytes_ahead
    from clozelab.text.store.corpus import weighted
    from clozelab.text.store.fetching import fetched

    for word in data:
        place = weighted(re.sub(r"^[\w-]+=(?=\w+:)", "", word))[0] if "://" in word else ""
        if not is_url(place):
            continue
        columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
        with watch.bars(*columns, transient=True) as bars:
            task = bars.add_task("downloading", total=None)

            def show(done: int, total: int, *, place: str = place) -> None:
                if not done:
                    watch.say(f"{shown(place)}: {total / 1e6:,.1f} MB to download")
                bars.update(task, completed=done, total=total)  # noqa: B023

            folder = fetched(place, ahead=ahead, tell=show)
        if left := bytes_ahead(folder):
            watch.say(f"{shown(place)}: {left / 1e6:,.1f} MB are downloaded during training")


def _done(build: Callable[..., Any], out: str, watch: Watch) -> Corpus:
    """Follow a build to its end, and say what it counted."""
    from clozelab.contracts import Counts

    counts = Counts()
    try:
        corpus = _built(build(counts=counts), watch)
    except KeyboardInterrupt as interrupt:
        raise Stopped(
            f"{out}: interrupted; finished parts are kept, and the same command continues"
            " the build",
            signal=signal_of(interrupt),
        ) from None
    for line in counts.lines():
        watch.say(line)
    return corpus


def _built(building: Any, watch: Watch) -> Corpus:
    """Draw a build's progress until it is done."""
    with watch.bars(progress.DownloadColumn(), progress.TransferSpeedColumn()) as bars:

        def show(step: BuildProgress) -> None:
            if step.unit == "steps":
                name, bar, *_, left = bars.columns
                bars.columns = (name, bar, progress.MofNCompleteColumn(), left)
            if [task.description for task in bars.tasks] != [step.stage]:
                for task in bars.tasks:
                    bars.remove_task(task.id)
                bars.add_task(step.stage, total=step.total)
            bars.update(bars.task_ids[0], completed=step.done)

        corpus: Corpus = watch.follow(building, show)
    return corpus


@dataclass(frozen=True, repr=False)
class CorpusSummary:
    """What is in a corpus."""

    path: Path
    bytes: int
    splits: dict[str, dict[str, int]]  # documents, sentences and tokens of each
    facts: dict[str, str]
    name: str  # as it was named: its path, or a URL without credentials

    def __repr__(self) -> str:
        sizes = {
            split: ", ".join(f"{number:,} {what}" for what, number in numbers.items())
            for split, numbers in self.splits.items()
        }
        return "\n".join(f"{name}: {fact}" for name, fact in {**sizes, **self.facts}.items())


@command
def show_corpus(corpus: Place) -> CorpusSummary:
    """Show what is in a corpus.

    Args:
        corpus: the corpus's folder
    """
    from clozelab.text.store import Corpus

    store = Corpus.open(corpus)
    sizes = {
        split: {what: numbers[what] for what in ("documents", "sentences", "tokens")}
        for split, numbers in store.manifest["splits"].items()
    }
    return CorpusSummary(store.path, store.bytes, sizes, _facts(store), store.name)


@command
def check_corpus(corpus: Place, *, watch: Watch) -> Corpus:
    """Compare every byte of a corpus with the checksums in its manifest.

    Args:
        corpus: the corpus's folder
    """
    from clozelab.text.store import Corpus

    store = Corpus.open(corpus)
    columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    with watch.bars(*columns, transient=True) as bars:
        task = bars.add_task("comparing", total=store.bytes)
        store.check(tell=lambda part: bars.advance(task, part))
    return store


@command
def corpus_plans(corpus: Place, *, remove: bool = False, unused: int = 0) -> list[KeptPlan]:
    """List the cached block plans of a corpus, or remove them.

    A large corpus caches the plans of its blocks, so that the next run starts in seconds. A removed
    plan is made again when it is needed.

    Args:
        corpus: the corpus's folder
        remove: remove the listed plans
        unused (DAYS): only plans not used for this many days (0)
    """
    from datetime import UTC, datetime

    from clozelab.text.store import Corpus, plans

    now = datetime.now(UTC)
    old = [plan for plan in plans.listed(Corpus.open(corpus)) if (now - plan.used).days >= unused]
    for plan in old if remove else []:
        plan.remove()
    return old


def _facts(corpus: Corpus) -> dict[str, str]:
    import numpy as np

    from clozelab.diagnosis.text import tokens_a_word
    from clozelab.runs.diagnostics import unigram_entropy
    from clozelab.text.store.manifest import NOT_STATED

    manifest, documents = corpus.manifest, corpus.documents("train")
    marks, lengths = documents.marks[:_SAMPLE], np.diff(documents.sentences)
    if (lengths < 0).any():
        damaged = corpus.folder / "train" / "sentences.npy"
        raise UserError(f"{damaged}: was altered; build the corpus again")
    entropy, median = unigram_entropy(corpus.vocabulary.counts), int(np.median(lengths))
    with (corpus.folder / "words.txt").open(encoding="utf-8") as lines:
        frequent = [line.rsplit("\t", 1)[0] for line in islice(lines, _WORDS)]
    units = {kind: number for kind, number in manifest["units"].items() if number}
    inputs = manifest["inputs"]
    more = f" and {len(inputs) - 6} more" if len(inputs) > 6 else ""
    facts = {
        "held out": _held_out(manifest),
        "vocabulary": f"{manifest['vocabulary']:,} ids",
        "entropy": f"{entropy:.2f} nats per token (the loss of predicting by token frequency)",
        "tokens per word": f"{tokens_a_word(marks):.2f}",
        "sentence length": f"{_histogram(lengths)}  median {counted(median, 'token')}",
        "most frequent": ", ".join(frequent),
        "begins": corpus.decode(documents.ids[:_SHOWN]),
        "sentences by": manifest["sentences"],
        "Chinese words by": manifest["segmenter"] or "no segmenter: single characters",
        "units": ", ".join(f"{number:,} {kind} units" for kind, number in units.items()),
        **_notes(manifest),
        "made from": ", ".join(inputs[:6]) + more,
        "licence": corpus.license or NOT_STATED,
        "fingerprint": manifest["fingerprint"][:16],
        "before text was added": _before(corpus),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _notes(manifest: dict[str, Any]) -> dict[str, str]:
    """What was skipped, cut, repaired or left out, how often, and examples of it."""
    examples = manifest.get("examples", {})
    return {
        what: "\n".join([f"{number:,}", *examples.get(what, [])])
        for what, number in manifest["notes"].items()
    }


def _before(corpus: Corpus) -> str:
    """What the corpus was before text was added, the last first."""
    from clozelab.text.store.manifest import states

    states_before = list(states(corpus.path))[1:] if corpus.path.is_dir() else []
    return "\n".join(
        f"{corpus.name}@{state['fingerprint'][:8]}: {state['splits']['train']['tokens']:,} tokens"
        for state in states_before
    )


def _held_out(manifest: dict[str, Any]) -> str:
    """How much is held out, and of what."""
    share = _held_out_share(manifest)
    if not share:
        return "nothing"
    tokens = manifest["splits"]["held_out"]["tokens"]
    number = manifest["splits"]["held_out"]["documents"]  # of the first version, which cut none
    parted = manifest.get("held_out", {"whole": number, "parts": 0})
    whole, cut = parted["whole"], parted["parts"]
    kinds = [counted(whole, "whole document")] if whole else []
    kinds += [f"parts of {counted(cut, 'document')}"] if cut else []
    return f"{counted(tokens, 'token')}, {share:.2%} of all: {' and '.join(kinds)}"


def _held_out_share(manifest: dict[str, Any]) -> float:
    """The share of the tokens that are held out."""
    tokens = {split: int(sizes["tokens"]) for split, sizes in manifest["splits"].items()}
    return tokens["held_out"] / sum(tokens.values())


def _histogram(lengths: Any) -> str:
    """Sentence lengths as a little picture: bins of 8 tokens up to 128."""
    import numpy as np

    bins = np.bincount(np.minimum(lengths // 8, 16), minlength=17)
    scale = (len(_BARS) - 1) / max(int(bins.max()), 1)
    return "".join(_BARS[int(np.ceil(number * scale))] for number in bins)
