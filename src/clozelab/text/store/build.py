"""From text to a finished store: train a tokenizer, tokenise in parallel, put it together.

The build is a generator that yields its progress, which the caller may show. Everything unfinished
is in `building/`; a build that was stopped in any way continues from there.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
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
from clozelab.text.building import BuildOptions, BuildProgress, Stage
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.loading import load
from clozelab.text.overlap import EvaluationNgrams
from clozelab.text.reading.layouts import RawDocument
from clozelab.text.reading.sentences import LONGEST, lines, splitter
from clozelab.text.reading.sources import BytesRead, Inputs, find
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
from clozelab.text.vocabulary import check_ids, describe, strips_marks
from clozelab.text.words import segmenter

_KIND = "corpus"
_BUILDING = "unfinished corpus"
_SPOOL = "standard-input"  # a file in `building/`: a copy of standard input
_ADDING = "adding"  # a file in `building/`: a digest of the addition, and its parent's fingerprint
_SAMPLE = {"unigram": 1 << 26}  # bytes of text to train on, for tokenizers that train slowly
_MANY = 0.01  # the share of unknown tokens, or of those in other scripts, that is pointed out
# Scripts in which marks tell words apart: of India and its neighbours, Thai to Tibetan, Burmese,
# Khmer, and Japanese kana.
_MARKED = re.compile("[\u0900-\u0dff\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff]")
_MOST_SAMPLE = 1 << 30  # bytes of text that other tokenizers are trained on, at most


def build(
    inputs: Sequence[str],
    out: Path,
    *,
    tokenizer: TokenizerSpec | Tokenizer,
    options: BuildOptions,
    counts: Counts,
) -> Stage[Corpus]:
    """Build a store from texts in `out`; yields progress, returns the opened store.

    What was skipped, cut or repaired, and a vocabulary that is too small, is added to `counts`.
    """
    spec = tokenizer
    spans = read_spans(_read_lines(options.spans), options.spans) if options.spans else {}
    names = _read_lines(options.entities) if options.entities else []
    comparison = _comparison(options, counts)
    _check_inputs(inputs, options)
    with _readable_errors(out), _locked_folder(out) as folder, engine(options) as runner:
        texts = _spooled(find(inputs, options.reading), folder)
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = yield from _trained_tokenizer(tokenizer, texts, folder)
        _check_tokenizer(tokenizer)
        settings = _settings(tokenizer, names, comparison, options=options, counts=counts)
        plan = yield from tokenised(texts, folder, settings, spans, counts=counts, where=runner)
        yield from finish(out, plan, options=asdict(options), counts=counts)
        files.remove_folder(folder, last=_ADDING)
    corpus = Corpus.open(out, trusting=True)
    # Parts from outside the package need not have `learns`.
    learns = getattr(spec, "learns", True)
    if learns and not isinstance(spec, Tokenizer) and corpus.vocabulary.size < spec.vocabulary:
        counts.add(
            f"vocabulary smaller than the {spec.vocabulary:,} asked for, for want of text",
            number=corpus.vocabulary.size,
        )
    _count_unknown(corpus, counts)
    _count_stripped(corpus, counts)
    return corpus


def _count_unknown(corpus: Corpus, counts: Counts) -> None:
    """Count the unknown tokens of the text, if they are many."""
    roles, times = corpus.vocabulary.roles, corpus.array("counts")
    if "unk" not in roles:
        return
    number, total = int(times[roles["unk"]]), int(times.sum())
    if number >= _MANY * total > 0:
        name = corpus.tokenizer.id_to_token(roles["unk"])
        counts.add(f"tokens unknown to the tokenizer ({name}), of {total:,}", number=number)


def _count_stripped(corpus: Corpus, counts: Counts) -> None:
    """Count the tokens in scripts whose marks the tokenizer removes, if they are many."""
    if not strips_marks(corpus.tokenizer):
        return
    times, pieces = corpus.array("counts"), corpus.tokenizer.get_vocab()
    number = sum(int(times[i]) for piece, i in pieces.items() if _MARKED.search(piece))
    if number >= _MANY * int(times.sum()) > 0:
        counts.add(
            "tokens in scripts whose marks the tokenizer removes (が → か, कि → क); keep them with"
            " --tokenizer wordpiece --cased or --tokenizer byte_bpe",
            number=number,
        )


def add(
    inputs: Sequence[str], out: Path, *, options: BuildOptions, counts: Counts
) -> Stage[Corpus]:
    """Append texts to a finished store, tokenised with its settings; yields progress.

    Until the end the store is unchanged; an addition that was stopped continues like a build.
    """
    comparison = _comparison(options, counts)
    _check_inputs(inputs, options)
    with _readable_errors(out), _locked_corpus(out) as (folder, parent), engine(options) as runner:
        texts = _spooled(find(inputs, options.reading), folder)
        sources = [(name, (size, changed)) for name, size, changed in texts.listing()]
        request_text = repr([sources, asdict(replace(options, workers=None, on=None))])
        note, request = folder / _ADDING, blake2b(request_text.encode(), digest_size=16).hexdigest()
        before = note.read_text(encoding="utf-8").split() if note.exists() else []
        if before == [request, parent.manifest.get("parent")]:  # it was killed after it finished
            files.remove_folder(folder, last=_ADDING)
            counts.add("additions that had been finished before they were stopped")
            return parent
        settings = _corpus_settings(parent, comparison)
        plan = yield from tokenised(texts, folder, settings, {}, counts=counts, where=runner)
        files.write_text(note, f"{request} {parent.manifest['fingerprint']}\n")
        yield from finish(out, plan, options=asdict(options), counts=counts, parent=parent)
        files.remove_folder(folder, last=_ADDING)
    return Corpus.open(out, trusting=True)


def _check_inputs(inputs: Sequence[str], options: BuildOptions) -> None:
    """Refuse names of inputs or clusters that do not exist, before anything is written."""
    find(inputs, options.reading)
    if options.on is not None:
        cluster.known(options.on)


@contextmanager
def _readable_errors(out: Path) -> Iterator[None]:
    """Turn errors of a full disk and of a killed worker into UserErrors."""
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
def _locked_corpus(out: Path) -> Iterator[tuple[Path, Corpus]]:
    """The folder to build in and the corpus, locked against other additions."""
    known = Corpus.open(out, trusting=True)  # refuses what is no corpus, before a lock is made
    if not out.is_dir():
        raise UserError(
            f"{out}: is an earlier version of a corpus; add the text to the current one"
        )
    if files.kind_of(out) != _KIND or known.manifest["version"] != manifests.VERSION:
        raise UserError(f"{out}: was built by an early version of clozelab; build it again")
    files.check_writable(out)
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
def _locked_folder(out: Path) -> Iterator[Path]:
    """The folder to build in, locked until the corpus is finished.

    Only folders with our marker are written to or removed. If a build is refused before it has
    written anything of use, everything is removed again.
    """
    folder = out / "building"
    new, unmarked = not out.exists(), files.kind_of(out) is None
    taken = UserError(
        f"{out}: contains a finished corpus; use it, remove it, or choose another --out"
    )
    if _finished(out):
        raise taken
    files.claim(out, _KIND)
    with files.locked(out, work="build"):
        if (out / NAME).exists():
            if files.kind_of(folder) == _BUILDING:  # left by a build that was killed as it ended
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
    """Whether a folder without a marker is a corpus: those of early versions have none."""
    with suppress(UserError):
        return files.kind_of(out) is None and bool(manifests.read(out))
    return False


def _give_up(folder: Path) -> None:
    """Remove the folder to build in, if it has our marker and nothing that a retry could use."""
    if files.kind_of(folder) == _BUILDING:
        (folder / _SPOOL).unlink(missing_ok=True)
    _clear(folder)
    folder.rmdir()


def _clear(folder: Path) -> None:
    """Remove marker and lock from a folder of ours that has nothing else in it."""
    left = list(folder.iterdir())
    if files.kind_of(folder) and all(files.is_own(file) for file in left):
        for file in left:
            file.unlink()


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer without [CLS], [SEP] or [MASK], which every format of blocks needs."""
    check_ids(tokenizer, "--tokenizer-from")
    vocabulary = describe(tokenizer)
    for role in ("cls", "sep", "mask"):
        vocabulary.role(role)


def _spooled(inputs: Inputs, folder: Path) -> Inputs:
    """The inputs with standard input copied to a file, since it is read more than once."""
    if not any(item.is_stdin for item in inputs.items):
        return inputs
    if sys.stdin is None:
        raise UserError("-: there is no standard input; name files or folders instead")
    spool = folder / _SPOOL
    with spool.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    items = (item.copied(spool) if item.is_stdin else item for item in inputs.items)
    return replace(inputs, items=tuple(items))


def _trained_tokenizer(spec: TokenizerSpec, inputs: Inputs, folder: Path) -> Stage[Tokenizer]:
    """Train a tokenizer on a random sample of the documents, or load the one trained before."""
    key = [repr(spec), repr(inputs.reading), repr(inputs.listing())]
    name = blake2b("\0".join(key).encode(), digest_size=8).hexdigest()
    saved = folder / f"tokenizer-{name}.json"
    if saved.exists():
        with suppress(UserError):  # a damaged file is trained again
            return load(saved)
    total, text_size = inputs.bytes, inputs.text_bytes()
    limit = _SAMPLE.get(type(spec).__name__.lower(), _MOST_SAMPLE)
    share = 1.0 if not text_size else min(1.0, limit / text_size)
    read = BytesRead()
    stop, ended = threading.Event(), threading.Event()
    stream = inputs.documents(Counts(), progress=read)
    texts = _sample(stream, share, limit=limit, stop=stop)
    result: list[Tokenizer | BaseException] = []

    def learn() -> None:
        try:
            result.append(spec.train(texts))
        except BaseException as error:  # the main thread raises it
            result.append(error)
        ended.set()

    try:
        threading.Thread(target=learn, daemon=True).start()
        while not ended.wait(0.1):
            reads = read.done < (total or 1)
            stage = "reading for the tokenizer" if reads else "training the tokenizer"
            yield BuildProgress(stage, read.done, total)
    finally:  # a callback from the library after Python has ended would abort the process
        stop.set()
        ended.wait(1)  # not join: after an interrupt inside it, the thread counts as dead
    trained = result[0]
    if isinstance(trained, BaseException):
        raise trained
    files.write_text(saved, trained.to_str(pretty=True))
    return load(saved)


def _sample(
    texts: Iterator[RawDocument], share: float, *, limit: int, stop: threading.Event
) -> Iterator[str]:
    """The paragraphs of a share of the documents, at most `limit` bytes.

    Documents are drawn by their numbers, since the names of files must not change a corpus.
    """
    size = 0
    for number, document in enumerate(texts):
        if share < 1 and root(0, f"document {number}") >= share * 2**64:
            continue
        for paragraph in document.text.split("\n"):
            # The trainers need a hundred bytes for every character of a text.
            for piece in [paragraph] if len(paragraph) <= LONGEST else lines(paragraph):
                size += len(piece.encode())
                if stop.is_set():
                    raise KeyboardInterrupt
                if size > limit:
                    return
                yield piece


def _comparison(options: BuildOptions, counts: Counts) -> Comparison:
    """What to record for comparing documents with other text, by the options."""
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


def _corpus_settings(corpus: Corpus, comparison: Comparison) -> shards.TokenisingSettings:
    """The settings with which the text of a corpus was tokenised."""
    kind, segments = corpus.manifest["sentences"].split()[0], corpus.manifest["segmenter"]
    splitter(kind)  # raises if it is not installed
    if segments and segmenter() is None:
        raise UserError(
            f"{corpus.name}: its Chinese words were segmented by {segments}; pip install rjieba"
        )
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
    """The settings of a new build; `names` are the names of entities."""
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
