"""From text to a finished store: train a tokenizer, tokenise in parallel, put it together.

The build is a generator: it yields how far it is, and whoever runs it draws the bar. Everything
unfinished lies in `building/`; a build that was stopped in any way goes on from there.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

from tokenizers import Tokenizer

from clozelab import cluster, files
from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.keys import root
from clozelab.text import near
from clozelab.text.building import BuildOptions, BuildProgress
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.loading import load
from clozelab.text.overlap import EvaluationNgrams
from clozelab.text.reading.layouts import RawDocument, Reading
from clozelab.text.reading.sentences import LONGEST, lines, splitter
from clozelab.text.reading.sources import (
    BytesRead,
    Spooled,
    documents,
    listing,
    text_bytes,
    total_bytes,
)
from clozelab.text.store import manifest as manifests
from clozelab.text.store import shards
from clozelab.text.store.adding import check_addition
from clozelab.text.store.comparing import Comparison
from clozelab.text.store.corpus import Corpus
from clozelab.text.store.engines import engine
from clozelab.text.store.finish import finish
from clozelab.text.store.manifest import NAME
from clozelab.text.store.workers import tokenised
from clozelab.text.tokenizers import TokenizerSpec
from clozelab.text.units import NgramTable, gazetteer, read_spans
from clozelab.text.vocabulary import check_ids, describe
from clozelab.text.words import segmenter

_KIND = "corpus"
_BUILDING = "unfinished corpus"
_SPOOL = "standard-input"  # in a folder to build in: what was fed in
_ADDING = "adding"  # in a folder to build in: which addition to which state it is
_SAMPLE = {"unigram": 1 << 26}  # bytes of text a tokenizer learns from, where the rule is slow
_MANY_UNKNOWN = 0.01  # of all tokens: then it is said
_MOST_SAMPLE = 1 << 30  # bytes of text that a tokenizer is trained on, at most


def build(
    inputs: Sequence[str],
    out: Path,
    *,
    tokenizer: TokenizerSpec | Tokenizer,
    options: BuildOptions,
    counts: Counts,
) -> Generator[BuildProgress, None, Corpus]:
    """Build a store from texts in `out`; yields progress, returns the opened store.

    What was skipped, cut or repaired, and what falls short of the asked, is added to `counts`.
    """
    spec = tokenizer
    spans = read_spans(_read_lines(options.spans), options.spans) if options.spans else {}
    names = _read_lines(options.entities) if options.entities else []
    comparison = _comparison(options, counts)
    _check_places(inputs, options)
    with _telling(out), _held(out) as folder, engine(options) as where:
        inputs = _spooled(inputs, folder)
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = yield from _trained(tokenizer, inputs, folder, options.reading)
        _check_tokenizer(tokenizer)
        settings = _settings(tokenizer, names, comparison, options=options, counts=counts)
        plan = yield from tokenised(
            inputs, folder, settings, spans, reading=options.reading, counts=counts, where=where
        )
        for stage, done, total in finish(out, plan, options=asdict(options), counts=counts):
            yield BuildProgress(stage, done, total, "steps")
        files.remove_folder(folder, last=_ADDING)
    corpus = Corpus.open(out, trusting=True)
    # A part from outside need not say whether more text gives it more ids.
    learns = getattr(spec, "learns", True)
    if learns and not isinstance(spec, Tokenizer) and corpus.vocabulary.size < spec.vocabulary:
        counts.add(
            f"vocabulary smaller than the {spec.vocabulary:,} asked for, for want of text",
            number=corpus.vocabulary.size,
        )
    _count_unknown(corpus, counts)
    return corpus


def _count_unknown(corpus: Corpus, counts: Counts) -> None:
    """Say how many tokens of the text the tokenizer does not know, where they are many."""
    roles, times = corpus.vocabulary.roles, corpus.vocabulary.counts
    if times is None or "unk" not in roles:
        return
    number, total = int(times[roles["unk"]]), int(times.sum())
    if number >= _MANY_UNKNOWN * total > 0:
        name = corpus.tokenizer.id_to_token(roles["unk"])
        counts.add(f"tokens unknown to the tokenizer ({name}), of {total:,}", number=number)


def add(
    inputs: Sequence[str], out: Path, *, options: BuildOptions, counts: Counts
) -> Generator[BuildProgress, None, Corpus]:
    """Add texts to a finished store: tokenised as its own, after all that is in it.

    Until the end the store is as it was; an addition that was stopped goes on like a build.
    """
    comparison = _comparison(options, counts)
    _check_places(inputs, options)
    with _telling(out), _held_to_add(out) as (folder, parent), engine(options) as where:
        inputs = _spooled(inputs, folder)
        read = [
            (name, files.sha256(Path(name)) if isinstance(name, Spooled) else (size, changed))
            for name, size, changed in listing(inputs, options.reading)
        ]
        request_text = repr([read, asdict(replace(options, workers=None, on=None))])
        note, request = folder / _ADDING, blake2b(request_text.encode(), digest_size=16).hexdigest()
        before = note.read_text(encoding="utf-8").split() if note.exists() else []
        if before == [request, parent.manifest.get("parent")]:  # it was killed at its very end
            files.remove_folder(folder, last=_ADDING)
            counts.add("additions that had been finished before they were stopped")
            return parent
        settings = _settings_of(parent, comparison)
        plan = yield from tokenised(
            inputs, folder, settings, {}, reading=options.reading, counts=counts, where=where
        )
        files.write_text(note, f"{request} {parent.manifest['fingerprint']}\n")
        steps = finish(out, plan, options=asdict(options), counts=counts, parent=parent)
        for stage, done, total in steps:
            yield BuildProgress(stage, done, total, "steps")
        files.remove_folder(folder, last=_ADDING)
    return Corpus.open(out, trusting=True)


def _check_places(inputs: Sequence[str], options: BuildOptions) -> None:
    """Refuse names that lead nowhere before anything is made."""
    listing(inputs, options.reading)
    if options.on is not None:
        cluster.known(options.on)


@contextmanager
def _telling(out: Path) -> Iterator[None]:
    """Tell in a sentence of a full disk, and of a worker that was killed."""
    try:
        yield
    except OSError as error:
        if error.errno in files.FULL:
            raise UserError(
                f"{out}: no space left on the disk; free some and run the same command again,"
                " finished parts are kept"
            ) from None
        raise
    except BrokenProcessPool:
        raise UserError(
            f"{out}: a worker process was killed, perhaps for memory; run the same command again"
            " with fewer --workers, finished parts are kept"
        ) from None


@contextmanager
def _held_to_add(out: Path) -> Iterator[tuple[Path, Corpus]]:
    """The folder to build in and the corpus, which nobody else adds to meanwhile."""
    known = Corpus.open(out, trusting=True)  # what is no corpus is refused before a lock is made
    if not out.is_dir():
        raise UserError(f"{out}: is what a corpus was; text is added to what it is now")
    if files.kind_of(out) != _KIND or known.manifest["version"] != manifests.VERSION:
        raise UserError(f"{out}: was built by an early version of clozelab; build it again")
    with files.locked(out, work="build"):
        parent = Corpus.open(out, trusting=True)
        parent.check()
        check_addition(out, parent.manifest)
        folder = out / "building"
        files.claim(folder, _BUILDING)
        try:
            yield folder, parent
        except UserError:
            with suppress(OSError):
                _give_up(folder)
            raise


@contextmanager
def _held(out: Path) -> Iterator[Path]:
    """The folder to build in, which is ours alone until the corpus is finished.

    Only a folder with our marker is ever written to or removed. Where a build is refused before it
    kept anything, nothing stays behind.
    """
    folder = out / "building"
    new, unmarked = not out.exists(), files.kind_of(out) is None
    taken = UserError(f"{out}: holds a finished corpus; remove it, or choose another --out")
    if _finished(out):
        raise taken
    files.claim(out, _KIND)
    with files.locked(out, work="build"):
        if (out / NAME).exists():
            if files.kind_of(folder) == _BUILDING:  # of a build killed at its very end
                files.remove_folder(folder, last=_ADDING)
            files.finish_removal(folder)
            raise taken
        try:
            files.claim(folder, _BUILDING)
            yield folder
        except UserError:
            with suppress(OSError):
                _give_up(folder)
                if unmarked:
                    _clear(out)
                if new:
                    out.rmdir()
            raise


def _finished(out: Path) -> bool:
    """Whether a folder without a marker is a corpus all the same: early ones had none."""
    with suppress(UserError):
        return files.kind_of(out) is None and bool(manifests.read(out))
    return False


def _give_up(folder: Path) -> None:
    """Remove a folder to build in, if it is ours and nothing in it is of use to another try."""
    if files.kind_of(folder) == _BUILDING:
        (folder / _SPOOL).unlink(missing_ok=True)
    _clear(folder)
    folder.rmdir()


def _clear(folder: Path) -> None:
    """Take its marker and its lock from a folder of ours that has nothing else in it."""
    left = list(folder.iterdir())
    if files.kind_of(folder) and all(files.is_own(file) for file in left):
        for file in left:
            file.unlink()


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    """A tokenizer without these could not make one block of any format."""
    check_ids(tokenizer, "--tokenizer-from")
    vocabulary = describe(tokenizer)
    for role in ("cls", "sep", "mask"):
        vocabulary.role(role)


def _spooled(inputs: Sequence[str], folder: Path) -> list[str]:
    """Standard input is read twice, by the tokenizer and by the store: keep it in a file."""
    if "-" not in inputs:
        return list(inputs)
    if sys.stdin is None:
        raise UserError("-: there is no standard input; name files or folders instead")
    spool = folder / _SPOOL
    with spool.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return [Spooled(spool) if name == "-" else name for name in inputs]


def _trained(
    spec: TokenizerSpec, inputs: list[str], folder: Path, reading: Reading
) -> Generator[BuildProgress, None, Tokenizer]:
    """Train a tokenizer on a fair sample of the text, or find the one trained before."""
    inputs_read = [repr(spec), repr(reading), repr(listing(inputs, reading))]
    name = blake2b("\0".join(inputs_read).encode(), digest_size=8).hexdigest()
    saved = folder / f"tokenizer-{name}.json"
    if saved.exists():
        with suppress(UserError):  # it was damaged since, and is trained again
            return load(saved)
    total, most = total_bytes(inputs, reading), text_bytes(inputs, reading)
    limit = _SAMPLE.get(type(spec).__name__.lower(), _MOST_SAMPLE)
    share = 1.0 if not most else min(1.0, limit / most)
    read = BytesRead()
    stop, ended = threading.Event(), threading.Event()
    stream = documents(inputs, reading, Counts(), progress=read)
    texts = _sample(stream, share, limit=limit, stop=stop)
    result: list[Tokenizer | BaseException] = []

    def learn() -> None:
        try:
            result.append(spec.train(texts))
        except BaseException as error:  # handed to the main thread, which raises it
            result.append(error)
        ended.set()

    try:
        threading.Thread(target=learn, daemon=True).start()
        while not ended.wait(0.1):
            reads = read.done < (total or 1)
            stage = "reading for the tokenizer" if reads else "training the tokenizer"
            yield BuildProgress(stage, read.done, total)
    finally:  # a thread that still calls back from the library when Python ends would abort it
        stop.set()
        ended.wait(1)  # not join: an interrupt inside a join declares the thread dead
    trained = result[0]
    if isinstance(trained, BaseException):
        raise trained
    files.write_text(saved, trained.to_str(pretty=True))
    return load(saved)


def _sample(
    texts: Iterator[RawDocument], share: float, *, limit: int, stop: threading.Event
) -> Iterator[str]:
    """The paragraphs of a share of the documents, chosen by their names; at most `limit` bytes."""
    size = 0
    for document in texts:
        if share < 1 and root(0, document.name) >= share * 2**64:
            continue
        for paragraph in document.text.split("\n"):
            # The trainers hold a hundred bytes for every character of what they are given.
            for piece in [paragraph] if len(paragraph) <= LONGEST else lines(paragraph):
                size += len(piece.encode())
                if stop.is_set():
                    raise KeyboardInterrupt
                if size > limit:
                    return
                yield piece


def _comparison(options: BuildOptions, counts: Counts) -> Comparison:
    """What is to be compared with other text."""
    pieces = None if options.unique == "documents" else options.unique
    if options.near_duplicates:
        near.check()
    exclude = None
    if options.exclude:
        exclude = EvaluationNgrams.read(
            options.exclude,
            options.exclude_ngram,
            counts=counts,
            encoding=options.reading.encoding,
        )
    return Comparison(pieces, exclude, near=options.near_duplicates is not None)


def _settings_of(corpus: Corpus, comparison: Comparison) -> shards.TokenisingSettings:
    """What turned the text of a corpus into tokens."""
    kind, segments = corpus.manifest["sentences"].split()[0], corpus.manifest["segmenter"]
    splitter(kind)  # refused where it is not installed
    if segments and segmenter() is None:
        raise UserError(f"{corpus.name}: has Chinese words by {segments}: pip install rjieba")
    entities = NgramTable.of(corpus.array("entities"))
    tokenizer = corpus.tokenizer.to_str()
    return shards.TokenisingSettings(tokenizer, kind, bool(segments), entities, comparison)


def _settings(
    tokenizer: Tokenizer,
    names: list[str],
    comparison: Comparison,
    *,
    options: BuildOptions,
    counts: Counts,
) -> shards.TokenisingSettings:
    """Everything that turns text into tokens; `names` are those of entities."""
    segment = options.segment and segmenter() is not None
    entities = NgramTable()
    if names:
        cached = CachedTokenizer(tokenizer, segment=False, counts=counts)
        entities = gazetteer(names, cached, counts)
    kind = splitter(options.sentences).name.split()[0]
    return shards.TokenisingSettings(tokenizer.to_str(), kind, segment, entities, comparison)


def _read_lines(place: str) -> list[str]:
    try:
        return Path(place).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"{place}: cannot be read ({error.strerror}); check the name") from None
    except UnicodeDecodeError:
        raise UserError(f"{place}: is not UTF-8 text; convert it to UTF-8") from None
