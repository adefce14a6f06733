"""Put the shards together: leave out repeats, part train from held-out, count, mark, write.

One shard is in memory at a time; what grows with the corpus is a few bytes a document.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from tokenizers import Tokenizer

from clozelab import files
from clozelab.contracts import Array, Bools, Counts, Ints, Keys, Mark
from clozelab.errors import UserError
from clozelab.keys import fold, mix
from clozelab.packed import ranges
from clozelab.text.reading.sentences import splitter
from clozelab.text.store.manifest import ARRAYS, NAME, SPLITS, VERSION, fingerprint, render
from clozelab.text.store.parting import Parting, held_out
from clozelab.text.store.shards import Shard, TokenisingSettings, load
from clozelab.text.units import KeyCounts, contains, mark_phrases, mine, pairs
from clozelab.text.vocabulary import describe, lettered
from clozelab.text.words import segmenter

_FIRST_WORD = 3  # 0 unknown, 1 and 2 open and close a block
_PARTITION = 1 << 22  # documents compared for repetition at a time

T = TypeVar("T")
Steps = Generator[tuple[str, int, int], None, T]


@dataclass(frozen=True)
class ShardPlan:
    """The shards to put together, in the text's order, and where they came from."""

    settings: TokenisingSettings
    names: list[str]
    inputs: list[str]
    kept: Bools | None = None  # which documents stay; all, where it is not said

    def shards(self, folder: Path) -> Iterator[Shard]:
        """Read them one by one, without the documents left out."""
        first = 0
        for name in self.names:
            shard = load(folder / f"{name}.npz")
            count = len(shard.documents) - 1
            yield shard if self.kept is None else shard.only(self.kept[first : first + count])
            first += count


def finish(out: Path, plan: ShardPlan, *, options: dict[str, Any], counts: Counts) -> Steps[None]:
    """Write the finished store; yields (stage, done, total)."""
    folder, total = out / "building", len(plan.names)
    ready = folder / "ready"
    for split in SPLITS:
        (ready / split).mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_str(plan.settings.tokenizer)
    digests, sizes = _survey(plan, folder, counts)
    if not sizes.any():
        raise UserError(f"{', '.join(plan.inputs)}: not one token in this text; name other files")
    if options["unique"]:
        first_seen = _first_of_each(digests)
        counts.add("documents left out as repeats", number=int((~first_seen).sum()))
        plan = replace(plan, kept=first_seen)
        digests, sizes = digests[first_seen], sizes[first_seen]
    parting = held_out(digests, sizes, plan.shards(folder), share=options["held_out"])
    yield "counting words", 0, total
    _write_words(plan, folder, ready, tokenizer, most=options["words"])
    phrases = np.zeros(0, dtype=np.uint64)
    if options["phrases"]:
        phrases = yield from _phrases(plan, folder, tokenizer)
    units = yield from _write_splits(
        plan,
        folder,
        ready,
        parting=parting,
        sizes=sizes,
        phrases=phrases,
    )
    save_array(ready / "phrases.npy", phrases)
    save_array(ready / "entities.npy", plan.settings.entities.rows())
    (ready / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    parted = {
        "whole": int((sizes[parting.whole, 1] > 0).sum()),
        "parts": len(parting.parts),
    }
    manifest = _manifest(ready, plan, options=options, counts=counts, units=units, held_out=parted)
    _publish(out, ready, manifest)


def _survey(plan: ShardPlan, folder: Path, counts: Counts) -> tuple[Keys, Ints]:
    """Every document's digest, and its tokens and sentences; and what the workers counted."""
    digests, sizes = [], []
    for shard in plan.shards(folder):
        counts.merge(shard.counts)
        digests.append(shard.digests)
        tokens = np.diff(shard.sentences[shard.documents])
        sizes.append(np.stack([tokens, np.diff(shard.documents)], axis=1))
    return np.concatenate(digests), np.concatenate(sizes)


def _first_of_each(digests: Keys) -> Bools:
    """Which documents are the first of their text, compared a part of the digests at a time."""
    first_seen = np.zeros(len(digests), dtype=bool)
    parts = -(-len(digests) // _PARTITION)
    part_of = digests[:, 0] % np.uint64(parts)
    for part in range(parts):
        mine = np.flatnonzero(part_of == part)
        _, first = np.unique(digests[mine], axis=0, return_index=True)
        first_seen[mine[first]] = True
    return first_seen


def _write_words(
    plan: ShardPlan, folder: Path, ready: Path, tokenizer: Tokenizer, *, most: int
) -> None:
    """The most frequent words: their keys and numbers, and a list for the eye.

    A word may have several keys: byte BPE spells it in other ids after a space.
    """
    tally = KeyCounts()
    for shard in plan.shards(folder):
        tally.add(shard.words, shard.word_counts)
    keys, counts = tally.table()
    often = np.sort(keys[np.lexsort((keys, -counts))[: 2 * most]])
    spelled = _spelled(plan, folder, tokenizer, often)
    totals: Counter[str] = Counter()
    for word, count in zip(spelled, counts[np.searchsorted(keys, often)].tolist(), strict=True):
        totals[word] += count
    del totals[""]  # an unknown token spells nothing
    ranked = sorted(totals, key=lambda word: (-totals[word], word))[:most]
    number = {word: rank + _FIRST_WORD for rank, word in enumerate(ranked)}
    numbers = np.array([number.get(word, 0) for word in spelled], dtype=np.int32)
    save_array(ready / "words.npy", often[numbers > 0])
    save_array(ready / "word_numbers.npy", numbers[numbers > 0])
    lines = [f"{word}\t{totals[word]}\n" for word in ranked]
    (ready / "words.txt").write_text("".join(lines), encoding="utf-8")


def _spelled(plan: ShardPlan, folder: Path, tokenizer: Tokenizer, words: Keys) -> list[str]:
    """The text of some words."""
    spelled: dict[int, str] = {}
    missing = words
    for shard in plan.shards(folder):
        row, ids = shard.word_ids[contains(missing, shard.words)[shard.word_ids[:, 0]]].T
        tokens: dict[int, list[int]] = {}
        for word, number in zip(shard.words[row].tolist(), ids.tolist(), strict=True):
            tokens.setdefault(word, []).append(number)
        texts = tokenizer.decode_batch(list(tokens.values()))
        spelled |= zip(tokens, (text.strip() for text in texts), strict=True)
        seen = np.array(sorted(tokens), dtype=np.uint64)
        missing = missing[~contains(seen, missing)]
    return [spelled[word] for word in words.tolist()]


def _phrases(plan: ShardPlan, folder: Path, tokenizer: Tokenizer) -> Steps[Keys]:
    """The pairs of words that make phrases, mined from the whole corpus."""
    signs, total = lettered(tokenizer), len(plan.names)
    words, together = KeyCounts(), KeyCounts()
    for number, shard in enumerate(plan.shards(folder)):
        one, two = pairs(shard.ids, shard.marks, shard.sentences, lettered=signs)
        words.add(*np.unique(one, return_counts=True))
        together.add(*np.unique(two, return_counts=True))
        yield "mining phrases", number, total

    def again() -> Iterator[Keys]:
        for shard in plan.shards(folder):
            keys = fold(shard.ids, np.flatnonzero(shard.marks & Mark.SEGMENT))
            yield np.stack([mix(keys[:-1], keys[1:]), keys[:-1], keys[1:]])

    return mine(words.table(), together.table(), pieces=again())


def _write_splits(
    plan: ShardPlan,
    folder: Path,
    ready: Path,
    *,
    parting: Parting,
    sizes: Ints,
    phrases: Keys,
) -> Steps[dict[str, int]]:
    """Copy the documents of every shard into the splits; count and mark on the way."""
    vocabulary = describe(Tokenizer.from_str(plan.settings.tokenizer)).size
    kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
    token_counts = np.zeros(vocabulary, dtype=np.int64)
    out = {}
    for split in SPLITS:
        totals = parting.totals(sizes, held=split == "held_out")
        out[split] = Writer(ready / split, kind, totals=totals)
    units = {"phrase": 0, "entity": 0}
    first = 0
    for number, shard in enumerate(plan.shards(folder)):
        mined = mark_phrases(shard.ids, shard.marks, shard.sentences, phrases=phrases)
        units["phrase"] += len(mined)
        units["phrase"] += int(shard.units[0])
        units["entity"] += int(shard.units[1])
        for split in SPLITS:
            pieces = parting.sentences(shard, first, held=split == "held_out")
            ids = out[split].add(shard, *pieces)
            if split == "train":
                token_counts += np.bincount(ids, minlength=vocabulary)
        first += len(shard.documents) - 1
        yield "writing", number + 1, len(plan.names)
    for writer in out.values():
        writer.close()
    save_array(ready / "counts.npy", token_counts)
    return units


def _manifest(
    ready: Path,
    plan: ShardPlan,
    *,
    options: dict[str, Any],
    counts: Counts,
    units: dict[str, int],
    held_out: dict[str, int],
) -> dict[str, Any]:
    """What the store is and what made it; nothing that differs between two equal builds."""
    entries = {
        file.relative_to(ready).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": files.sha256(file),
        }
        for file in sorted(file for file in ready.rglob("*") if file.is_file())
    }
    splits = {}
    for split in SPLITS:
        sentences = np.load(ready / split / "sentences.npy", mmap_mode="r")
        documents = np.load(ready / split / "documents.npy", mmap_mode="r")
        splits[split] = {
            "documents": len(documents) - 1,
            "sentences": len(sentences) - 1,
            "tokens": int(sentences[-1]),
        }
    tokenizer = plan.settings.tokenizer
    shaping = {k: v for k, v in options.items() if k not in ("workers", "reading")}
    return {
        "version": VERSION,
        "splits": splits,
        "vocabulary": describe(Tokenizer.from_str(tokenizer)).size,
        "units": units,
        "sentences": splitter(plan.settings.sentences).name,  # type: ignore[arg-type]
        "segmenter": segmenter() if plan.settings.segment else None,
        "inputs": plan.inputs,
        "reading": options["reading"],
        "options": shaping,
        "notes": dict(sorted(counts.numbers.items())),
        "tokenizer": sha256(tokenizer.encode()).hexdigest(),
        "fingerprint": fingerprint(entries),
        "held_out": held_out,
        "files": entries,
    }


def _publish(out: Path, ready: Path, manifest: dict[str, Any]) -> None:
    """Move the finished files into place; the manifest comes last and makes it a corpus."""
    part = ready.parent / "manifest.part"
    files.write_text(part, render(manifest))
    for split in SPLITS:
        (out / split).mkdir(exist_ok=True)
    for name in manifest["files"]:
        files.sync(ready / name)
        (ready / name).replace(out / name)
    part.replace(out / NAME)


def save_array(file: Path, array: Array) -> None:
    """Write a small array; np.save to a path does not say when it was the disk that was full."""
    whole = BytesIO()
    np.save(whole, array)
    file.write_bytes(whole.getvalue())


class Writer:
    """The arrays of a split, appended to; plain writes, since a full disk kills a mapped one."""

    def __init__(self, folder: Path, kind: type, *, totals: tuple[int, int, int]) -> None:
        tokens, sentences, documents = totals
        lengths = (tokens, tokens, sentences + 1, documents + 1)
        kinds = (kind, np.uint8, np.int64, np.int64)
        self._files: dict[str, BinaryIO] = {}
        self._kinds = {name: np.dtype(of) for name, of in zip(ARRAYS, kinds, strict=True)}
        for name, length in zip(ARRAYS, lengths, strict=True):
            self._files[name] = (folder / f"{name}.npy").open("wb")
            header = {"descr": self._kinds[name].str, "fortran_order": False, "shape": (length,)}
            np.lib.format.write_array_header_1_0(self._files[name], header)
        self._put("sentences", np.zeros(1))
        self._put("documents", np.zeros(1))
        self._tokens = self._sentences = 0

    def add(self, shard: Shard, begin: Ints, count: Ints) -> Array:
        """Append pieces of a shard, each of so many sentences from one on; returns their ids."""
        sentence = ranges(begin, count)
        size = shard.sentences[sentence + 1] - shard.sentences[sentence]
        token = ranges(shard.sentences[sentence], size)
        ids = shard.ids[token]
        self._put("ids", ids)
        self._put("marks", shard.marks[token])
        self._put("sentences", self._tokens + np.cumsum(size))
        self._put("documents", self._sentences + np.cumsum(count))
        self._tokens += len(ids)
        self._sentences += len(size)
        return ids

    def _put(self, name: str, values: Array) -> None:
        self._files[name].write(values.astype(self._kinds[name]).tobytes())

    def close(self) -> None:
        """Write everything to disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
