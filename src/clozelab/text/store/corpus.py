"""The store: a corpus tokenised once, memory-mapped, with checksums and the story of its making.

manifest.json   what it is, what made it, a checksum of every file; written last
tokenizer.json  the tokenizer
train/, held_out/   ids.npy marks.npy sentences.npy documents.npy
counts.npy      how often each id occurs in train
phrases.npy entities.npy   the units that were found, to find them in other text
words.npy       keys of the most frequent words, ascending; word_numbers.npy; words.txt
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab.contracts import Documents, Ints, Mark, Spelling, UserError, Vocabulary
from clozelab.text.encoding import Encoded
from clozelab.text.spelling import letters
from clozelab.text.units import Runs, mark_phrases, mark_runs
from clozelab.text.vocabulary import describe

VERSION = 1
SPLITS = ("train", "held_out")
ARRAYS = ("ids", "marks", "sentences", "documents")
_SMALL = 1 << 28  # bytes: a store up to this size is checked whole whenever it is opened


@dataclass(frozen=True)
class Corpus:
    """An opened store."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, place: str | Path, *, trusting: bool = False) -> Corpus:
        """Open a store; a file that is missing, cut short or altered is refused.

        Sizes are always compared; the checksums of a store over 256 MB only by `check`, and not
        those of a store just written (`trusting`).
        """
        path = Path(place)
        corpus = cls(path, _read_manifest(path))
        corpus.check(checksums=corpus.bytes <= _SMALL and not trusting)
        return corpus

    @property
    def bytes(self) -> int:
        """Size on disk, but for the manifest."""
        return sum(int(entry["bytes"]) for entry in self.manifest["files"].values())

    def check(self, *, checksums: bool = True) -> None:
        """Compare every file with the manifest."""
        for name, entry in self.manifest["files"].items():
            file = self.path / name
            remedy = "restore it from a copy, or remove the folder and build it again"
            if not file.is_file():
                raise UserError(f"{file}: missing from the corpus; {remedy}")
            size = file.stat().st_size
            if size != entry["bytes"]:
                raise UserError(f"{file}: {size:,} bytes instead of {entry['bytes']:,}; {remedy}")
            if checksums and checksum(file) != entry["sha256"]:
                raise UserError(f"{file}: its checksum differs, a byte was altered; {remedy}")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        return Tokenizer.from_file(str(self.path / "tokenizer.json"))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids, with how often each occurs in train."""
        return replace(describe(self.tokenizer), counts=np.load(self.path / "counts.npy"))

    @cached_property
    def spelling(self) -> Spelling:
        """What the ids spell, and the words they make."""
        flat, starts = letters(self.tokenizer)
        words, numbers = (np.load(self.path / f"{n}.npy") for n in ("words", "word_numbers"))
        return Spelling(flat, starts, words, numbers)

    def mark_units(self, encoded: Encoded) -> dict[str, Ints]:
        """Mark in a new text the phrases and names that this corpus knows; [·, 2] spans of each."""
        ids, marks, starts = encoded.ids, encoded.marks, encoded.starts
        phrases = np.load(self.path / "phrases.npy")
        names = Runs.of(np.load(self.path / "entities.npy"))
        return {
            "phrase": mark_phrases(ids, marks, starts, phrases=phrases),
            "entity": mark_runs(ids, marks, starts, runs=names, bit=Mark.ENTITY),
        }

    def documents(self, split: str = "train") -> Documents:
        """The documents of a split, memory-mapped."""
        if split not in SPLITS:
            raise UserError(f"{self.path}: no split {split!r}; there are {' and '.join(SPLITS)}")
        arrays = {
            name: np.load(self.path / split / f"{name}.npy", mmap_mode="r") for name in ARRAYS
        }
        return Documents(**arrays, vocabulary=self.vocabulary, spelling=self.spelling)

    def needs(self, units: str) -> None:
        """Refuse where the store was built without a kind of unit."""
        found = self.manifest["segmenter"] if units == "segment" else self.manifest["units"][units]
        remedy = {
            "phrase": "with --phrases",
            "entity": "with --entities FILE or --spans FILE",
            "segment": "where rjieba is installed, without --no-segmentation",
        }
        if not found:
            raise UserError(
                f"{self.path}: no {units} units in this corpus; build it again {remedy[units]}"
            )


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    if not file.is_file():
        if (path / "building").is_dir():
            raise UserError(
                f"{path}: this corpus is unfinished; run the same corpus build again, it goes on"
                " where it stopped"
            )
        raise UserError(f"{path}: no corpus here; make one by clozelab corpus build TEXT --out DIR")
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        version = manifest["version"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file}: not a corpus manifest; build the corpus again") from None
    if version != VERSION:
        raise UserError(
            f"{file}: written as version {version}, this clozelab reads {VERSION}; build it again"
        )
    if not {"splits", "vocabulary", "units", "files"} <= manifest.keys():
        raise UserError(f"{file}: not a whole corpus manifest; build the corpus again")
    return manifest


def checksum(file: Path) -> str:
    """SHA-256 of a file."""
    digest = sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
