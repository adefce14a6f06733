"""The store: a tokenised corpus, memory-mapped, with checksums and a record of how it was built.

manifest.json   what it is, how it was built, a checksum of every file, a seal; written last
tokenizer.json  the tokenizer
train/, held_out/   ids.npy marks.npy sentences.npy documents.npy
counts.npy      how often each id occurs in train
phrases.npy entities.npy   the keys of the units that were found, to find them in other text
words.npy       keys of the most frequent words, ascending; word_numbers.npy; words.txt
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import clozelab
from clozelab import files
from clozelab.contracts import Documents, Ints, Spelling, Vocabulary
from clozelab.errors import UserError
from clozelab.options import located
from clozelab.remote.access import is_url, shown
from clozelab.remote.ahead import AheadArray, AheadFile, bytes_ahead, filling, is_unfinished
from clozelab.text.encoding import Tokenised
from clozelab.text.loading import load
from clozelab.text.store import fetching
from clozelab.text.store import manifest as manifests
from clozelab.text.store.manifest import ARRAYS, NOT_STATED, REMEDY, SPLITS
from clozelab.text.units import NgramTable, mark_entities, mark_phrases
from clozelab.text.vocabulary import describe, letters

CHECKED_WHOLE = 1 << 28  # bytes: in stores up to this size, opening compares all checksums
_LITTLE = 1 << 24  # bytes: in larger ones, those of files up to this size
_HEADER = 128  # bytes at the beginning of an array's file
_TYPES = {"ids": "uint16 uint32", "marks": "uint8", "sentences": "int64", "documents": "int64"}


@dataclass(frozen=True)
class Corpus:
    """An opened corpus."""

    path: Path  # its folder (of a URL, that in the cache), or FOLDER@FINGERPRINT
    manifest: dict[str, Any]
    url: str = field(default="", repr=False)  # if it was opened by one

    @classmethod
    def open(
        cls, place: str | Path | Corpus, *, trusting: bool = False, ahead: bool = False
    ) -> Corpus:
        """Open a corpus; a missing, truncated or altered file is refused.

        FOLDER@FINGERPRINT opens an earlier version, from before text was added. A corpus at a URL
        is downloaded first; with `ahead`, its tokens are downloaded while they are read. File sizes
        are always checked. For a corpus over 256 MB, only files up to 16 MB have their checksums
        compared here; `check` compares all. With `trusting`, for a corpus just written, none are.
        """
        place = located(place, "corpus")
        if is_url(place):
            return _fetched(place, trusting=trusting, ahead=ahead)
        path = Path(place)
        folder, fingerprint = _parted(path)
        corpus = cls(path, _state(folder, fingerprint) if fingerprint else manifests.read(folder))
        whole = corpus.bytes <= CHECKED_WHOLE
        corpus.check(up_to=0 if trusting else None if whole else _LITTLE)
        return corpus

    @classmethod
    def build(cls, input: Any, **options: Any) -> Corpus:
        """Build a corpus from text: `clozelab.build_corpus`."""
        return clozelab.build_corpus(input, **options)

    def show(self) -> Any:
        """Show its sizes, lengths, frequent words and first tokens: `clozelab.show_corpus`."""
        return clozelab.show_corpus(self)

    def show_blocks(self, recipe: Any, **options: Any) -> Any:
        """Show blocks that a recipe makes of it: `clozelab.show_blocks`."""
        return clozelab.show_blocks(recipe, corpus=self, **options)

    def decode(self, ids: Any) -> str:
        """The text of some token ids: a list, an array, or a slice of `documents(…).ids`."""
        try:
            numbers = [int(number) for number in ids]
        except (TypeError, ValueError):
            raise UserError("decode needs token ids; give a list or an array of them") from None
        return self.tokenizer.decode(numbers, skip_special_tokens=False)

    def __repr__(self) -> str:
        tokens = sum(split["tokens"] for split in self.manifest["splits"].values())
        return f"Corpus({self.name!r}, {tokens:,} tokens, {self.manifest['vocabulary']:,} ids)"

    @property
    def license(self) -> str | None:
        """The licences of its text, as they were stated where it was built and added to."""
        parts = [self.manifest, *self.manifest.get("added", [])]
        stated = [part["options"].get("license") for part in parts]
        words = dict.fromkeys(str(license or NOT_STATED) for license in stated)
        return ", ".join(words) if any(stated) else None

    @property
    def place(self) -> str:
        """The path or URL by which it can be opened again."""
        return self.url or str(self.path)

    @property
    def name(self) -> str:
        """Its place for messages and records: a URL without credentials."""
        return shown(self.place)

    @property
    def root(self) -> Path:
        """The folder of the store, with its earlier states and its plans."""
        return _parted(self.path)[0]

    @property
    def folder(self) -> Path:
        """The folder of its current files."""
        return self.root / str(self.manifest.get("folder", ""))

    @property
    def is_arriving(self) -> bool:
        """Whether some of it is still being fetched."""
        return bytes_ahead(self.root) > 0

    @property
    def bytes(self) -> int:
        """Size on disk, without the manifest."""
        return sum(int(entry["bytes"]) for entry in self.manifest["files"].values())

    def check(
        self, *, up_to: int | None = None, tell: Callable[[int], None] = lambda size: None
    ) -> None:
        """Compare all with the manifest; checksums of all files, or of those up to some bytes.

        `tell` is called with the bytes of each part that was compared.
        """
        inside = self.folder.resolve()
        for name, entry in self.manifest["files"].items():
            file = self.folder / name
            if not file.is_file():
                raise UserError(f"{file}: is missing from the corpus; {REMEDY}")
            if not file.resolve().is_relative_to(inside):
                raise UserError(f"{file}: is a link to outside the corpus; {REMEDY}")
            size = file.stat().st_size
            if size != entry["bytes"]:
                raise UserError(f"{file}: {size:,} bytes instead of {entry['bytes']:,}; {REMEDY}")
            arriving = _arriving(file)
            if arriving and up_to is None:
                arriving.join()
            compares = up_to is None or (size <= up_to and not arriving)
            if compares and files.sha256(file, tell=tell) != entry["sha256"]:
                raise UserError(f"{file}: its checksum differs, so the file was altered; {REMEDY}")
        for split in SPLITS:
            self._arrays(split)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        return load(self.folder / "tokenizer.json")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, with how often each id occurs in train."""
        return replace(describe(self.tokenizer), counts=self.array("counts"))

    @cached_property
    def spelling(self) -> Spelling:
        """The bytes that ids spell, and the numbers of whole words."""
        flat, starts = letters(self.tokenizer)
        words, numbers = self.array("words"), self.array("word_numbers")
        return Spelling(flat, starts, words, numbers)

    def mark_units(self, encoded: Tokenised) -> dict[str, Ints]:
        """Mark this corpus's phrases and entities in a new text; [·, 2] spans of each kind."""
        ids, marks, starts = encoded.ids, encoded.marks, encoded.starts
        phrases, names = self.array("phrases"), NgramTable.of(self.array("entities"))
        return {
            "phrase": mark_phrases(ids, marks, starts, phrases=phrases),
            "entity": mark_entities(ids, marks, starts, entities=names),
        }

    def documents(self, split: str = "train") -> Documents:
        """The documents of a split, memory-mapped, as their tokens one after another.

        Sentence i is `ids[sentences[i]:sentences[i + 1]]`; document i is its sentences from
        `documents[i]` up to `documents[i + 1]`.
        """
        if split not in SPLITS:
            raise UserError(f"{self.name}: has no split {split!r}; choose {' or '.join(SPLITS)}")
        arrays = self._arrays(split)
        return Documents(**arrays, vocabulary=self.vocabulary, spelling=self.spelling)

    def _arrays(self, split: str) -> dict[str, Any]:
        """The arrays of a split, memory-mapped and checked against the manifest and each other."""
        sizes = self.manifest["splits"][split]
        tokens, sentences = sizes["tokens"], sizes["sentences"]
        lengths = (tokens, tokens, sentences + 1, sizes["documents"] + 1)
        arrays = {}
        for name, length in zip(ARRAYS, lengths, strict=True):
            array = arrays[name] = self.array(f"{split}/{name}", mapped=True)
            if array.shape != (length,) or str(array.dtype) not in _TYPES[name].split():
                raise UserError(
                    f"{self.folder / split / name}.npy: {array.dtype} of {array.shape} where the"
                    f" manifest says {length:,}; {REMEDY}"
                )
        for name, end in (("sentences", tokens), ("documents", sentences)):
            if arrays[name][0] != 0 or arrays[name][-1] != end:
                raise UserError(f"{self.folder / split / name}.npy: a byte was altered; {REMEDY}")
        return arrays

    def array(self, name: str, *, mapped: bool = False) -> Any:
        """One of its arrays, by the name of its file without .npy."""
        file = self.folder / f"{name}.npy"
        arriving = _arriving(file)
        if arriving:
            arriving.need([0], [min(_HEADER, arriving.size)])
        try:
            array = np.load(file, mmap_mode="r" if mapped or arriving else None, allow_pickle=False)
            return AheadArray(array, arriving, offset=array.offset) if arriving else array
        except FileNotFoundError:
            raise UserError(f"{file}: is missing from the corpus; {REMEDY}") from None
        except (ValueError, EOFError, SyntaxError, TokenError, MemoryError) as error:
            raise UserError(f"{file}: is not a readable array ({error}); {REMEDY}") from None

    def needs(self, units: str) -> None:
        """Refuse where the store was built without a kind of unit."""
        known = self.manifest["segmenter"] if units == "segment" else self.manifest["units"][units]
        remedy = {
            "phrase": "with --phrases",
            "entity": "with --entities FILE or --spans FILE",
            "segment": "where rjieba is installed, without --no-segmentation",
        }
        if not known:
            raise UserError(f"{self.name}: has no {units} units; build it again {remedy[units]}")


def _arriving(file: Path) -> AheadFile | None:
    """The file if this process is still fetching it; an error if another one is."""
    arriving = filling(file)
    if arriving is None and is_unfinished(file):
        raise UserError(f"{file}: is still being downloaded; open the corpus by its URL")
    return arriving


def _parted(path: Path) -> tuple[Path, str]:
    """Split FOLDER@FINGERPRINT into both; the fingerprint is "" if there is none."""
    name, _, fingerprint = path.name.rpartition("@")
    return (path.with_name(name), fingerprint) if name and not path.exists() else (path, "")


def _state(folder: Path, fingerprint: str) -> dict[str, Any]:
    """The manifest of the state of a store whose fingerprint begins so."""
    known = list(manifests.states(folder))
    return known[manifests.state(known, fingerprint, place=str(folder))]


def _fetched(url: str, *, trusting: bool, ahead: bool) -> Corpus:
    """The store at a URL, opened in the cache; damaged files are fetched again."""
    folder = fetching.fetched(url, ahead=ahead)
    try:
        corpus = Corpus.open(folder, trusting=trusting or bytes_ahead(folder) > 0)
    except UserError:
        corpus = Corpus.open(fetching.fetched(url, checked=True), trusting=trusting)
    return replace(corpus, url=url)


def exists(place: str) -> bool:
    """Whether the folder of a store exists; always true for a URL."""
    return is_url(place) or _parted(Path(place))[0].is_dir()


def as_it_was(place: str, fingerprint: str) -> str:
    """`DIR:WEIGHT`, or `DIR@FINGERPRINT:WEIGHT` if text was added after that state."""
    path, _, weight = place.rpartition(":")
    if is_url(path):
        folder, named = fetching.parted(path)
        states = fetching.states(folder)
    else:
        at, named = _parted(Path(path))
        states = manifests.states(at)
    earlier = [state["fingerprint"] for state in states][1:]
    return f"{path}@{fingerprint[:16]}:{weight}" if fingerprint in earlier and not named else place


Store = tuple[Corpus, float]


def open_stores(places: Sequence[str], *, ahead: bool = False) -> list[Store]:
    """Open the stores `DIR` or `DIR:WEIGHT`, which must have the same tokenizer."""
    stores = [(Corpus.open(place, ahead=ahead), weight) for place, weight in map(weighted, places)]
    if not stores:
        raise UserError("no corpus to train on; give --data DIR")
    first = stores[0][0]
    for corpus, _ in stores[1:]:
        if corpus.tokenizer.to_str() != first.tokenizer.to_str():
            raise UserError(
                f"{corpus.name}: its tokenizer is not that of {first.name}; build it again with"
                f" --tokenizer-from {first.name}"
            )
    return stores


def store_identity(store: Store) -> dict[str, Any]:
    """What a run records of a store: its place, weight and fingerprint."""
    corpus, weight = store
    path = corpus.name if corpus.url else str(corpus.path.resolve())
    return {"path": path, "weight": weight, "made": corpus.manifest["fingerprint"]}


def weighted(word: str, *, option: str = "--data", called: str = "weight") -> tuple[str, float]:
    """The place and the weight of `DIR` or `DIR:WEIGHT`; errors name the option and the number."""
    place, sign, number = word.rpartition(":")
    host = is_url(word) and ("/" in number or re.fullmatch(r"https?://[^/]*", word))
    if not sign or host or Path(word).exists():
        return word, 1.0
    try:
        weight = float(number)
    except ValueError:
        raise UserError(
            f"{option} {shown(word)}: {number} is not a {called}; write DIR or DIR:0.5"
        ) from None
    if not 0 < weight < float("inf"):
        raise UserError(f"{option} {shown(word)}: a {called} must be above 0")
    return place, weight
