"""Make the finished store of shards: clean, split train from held-out, count, mark units, write.

One shard is in memory at a time; only a few bytes per document grow with the corpus.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from clozelab import files
from clozelab.contracts import Array, Counts, Documents, Ints, Keys, Mark
from clozelab.errors import UserError
from clozelab.keys import fold, mix
from clozelab.packed import contains, ranges
from clozelab.remote import access
from clozelab.text.building import BuildProgress, Stage
from clozelab.text.reading.lines import shown
from clozelab.text.reading.sentences import splitter
from clozelab.text.store.adding import added, publish_addition
from clozelab.text.store.cleaning import clean
from clozelab.text.store.corpus import Corpus
from clozelab.text.store.leakage import count_leaked
from clozelab.text.store.manifest import ARRAYS, NAME, SPLITS, VERSION, fingerprint, render
from clozelab.text.store.shards import Shard, ShardPlan
from clozelab.text.store.splitting import HeldOutSplit, split_documents
from clozelab.text.units import KeyCounts, mark_phrases, mine, pairs
from clozelab.text.vocabulary import describe, lettered
from clozelab.text.words import segmenter

_VOCABULARIES = (
    *("tokenizer.json", "words.npy", "word_numbers.npy", "words.txt"),
    *("phrases.npy", "entities.npy"),
)
_COPIED = 1 << 22  # entries of an array that are copied at a time
_FIRST_WORD = 3  # the number of the first word; 0 is unknown, 1 and 2 open and close a block


def finish(
    out: Path,
    plan: ShardPlan,
    *,
    options: dict[str, Any],
    counts: Counts,
    parent: Corpus | None = None,
) -> Stage[None]:
    """Write the finished store; if it has a parent, after the parent's text."""
    shutil.rmtree(plan.ready, ignore_errors=True)  # left by a build that was killed
    for split in SPLITS:
        (plan.ready / split).mkdir(parents=True, exist_ok=True)
    digests, sizes = _digests_and_sizes(plan, counts)
    places = ", ".join(plan.inputs)
    if not sizes.any():
        left = " is left by --exclude" if options["exclude"] else ""
        raise UserError(f"{places}: no token in this text{left}; name other files")
    plan = yield from clean(plan, options=options, counts=counts, parent=parent)
    if plan.kept:
        digests, sizes = _digests_and_sizes(plan, Counts())
    if not sizes.any():
        raise UserError(f"{places}: all of this text is already in the corpus; name other files")
    division = split_documents(digests, sizes, plan.shards(), share=options["held_out"])
    if parent is None:
        phrases = yield from _write_vocabularies(plan, options)
    else:
        phrases = parent.array("phrases")
        for name in _VOCABULARIES:
            shutil.copyfile(parent.folder / name, plan.ready / name)
    splits, units = yield from _write_splits(plan, division, phrases=phrases, parent=parent)
    if parent is not None:
        count_leaked(plan.ready, parent, counts=counts)
    held_whole = int((sizes[division.whole, 1] > 0).sum())
    facts = {
        "splits": splits,
        "units": units,
        "notes": dict(sorted(counts.numbers.items())),
        "held_out": {"whole": held_whole, "parts": len(division.parts)},
        "examples": dict(sorted(counts.examples.items())),
    }
    manifest = _manifest(plan, options=options, facts=facts)
    if parent is None:
        _publish(out, plan, manifest)
    else:
        publish_addition(out, plan, added(parent.manifest, manifest))


def _digests_and_sizes(plan: ShardPlan, counts: Counts) -> tuple[Keys, Ints]:
    """Every document's digest, and its numbers of tokens and sentences; merges workers' counts."""
    digests, sizes = [], []
    for shard in plan.shards():
        counts.merge(shard.counts)
        digests.append(shard.digests)
        tokens = np.diff(shard.sentences[shard.documents])
        sizes.append(np.stack([tokens, np.diff(shard.documents)], axis=1))
    return np.concatenate(digests), np.concatenate(sizes)


def _write_vocabularies(plan: ShardPlan, options: dict[str, Any]) -> Stage[Keys]:
    """Write the tokenizer, the whole words and the units; returns the keys of phrases."""
    yield BuildProgress("counting words", 0, len(plan.names), "steps")
    _write_words(plan, most=options["words"])
    phrases = np.zeros(0, dtype=np.uint64)
    if options["phrases"]:
        phrases = yield from _mine_phrases(plan)
    _save_array(plan.ready / "phrases.npy", phrases)
    _save_array(plan.ready / "entities.npy", plan.settings.entities.rows())
    (plan.ready / "tokenizer.json").write_text(plan.tokenizer.to_str(pretty=True), encoding="utf-8")
    return phrases


def _write_words(plan: ShardPlan, *, most: int) -> None:
    """Write the most frequent words: their keys and numbers, and a list for people.

    A word may have several keys: in byte BPE it has other ids after a space.
    """
    tally = KeyCounts()
    for shard in map(Shard.with_words, plan.shards()):
        tally.add(shard.words, shard.word_counts)
    keys, counts = tally.table()
    frequent = np.sort(keys[np.lexsort((keys, -counts))[: 2 * most]])
    spelled = _word_texts(plan, frequent)
    totals: Counter[str] = Counter()
    for word, count in zip(spelled, counts[np.searchsorted(keys, frequent)].tolist(), strict=True):
        totals[word] += count
    del totals[""]  # of unknown tokens
    ranked = sorted(totals, key=lambda word: (-totals[word], word))[:most]
    number = {word: rank + _FIRST_WORD for rank, word in enumerate(ranked)}
    numbers = np.array([number.get(word, 0) for word in spelled], dtype=np.int32)
    _save_array(plan.ready / "words.npy", frequent[numbers > 0])
    _save_array(plan.ready / "word_numbers.npy", numbers[numbers > 0])
    lines = [f"{word}\t{totals[word]}\n" for word in ranked]
    (plan.ready / "words.txt").write_text("".join(lines), encoding="utf-8")


def _word_texts(plan: ShardPlan, words: Keys) -> list[str]:
    """The text of the words with these keys."""
    spelled: dict[int, str] = {}
    missing = words
    for shard in map(Shard.with_words, plan.shards()):
        row, ids = shard.word_ids[contains(missing, shard.words)[shard.word_ids[:, 0]]].T
        tokens: dict[int, list[int]] = {}
        for word, number in zip(shard.words[row].tolist(), ids.tolist(), strict=True):
            tokens.setdefault(word, []).append(number)
        texts = plan.tokenizer.decode_batch(list(tokens.values()))
        spelled |= zip(tokens, (text.strip() for text in texts), strict=True)
        seen = np.array(sorted(tokens), dtype=np.uint64)
        missing = missing[~contains(seen, missing)]
        if not len(missing):
            break  # frequent words are mostly found in the first shards
    return [spelled[word] for word in words.tolist()]


def _mine_phrases(plan: ShardPlan) -> Stage[Keys]:
    """The keys of the pairs of words that are phrases, mined from the whole corpus."""
    has_letters, total = lettered(plan.tokenizer), len(plan.names)
    words, together = KeyCounts(), KeyCounts()
    for number, shard in enumerate(plan.shards()):
        word_keys, pair_keys = pairs(shard.ids, shard.marks, shard.sentences, lettered=has_letters)
        words.add(*np.unique(word_keys, return_counts=True))
        together.add(*np.unique(pair_keys, return_counts=True))
        yield BuildProgress("mining phrases", number, total, "steps")

    def pairs_of_shards() -> Iterator[Keys]:
        for shard in plan.shards():
            keys = fold(shard.ids, np.flatnonzero(shard.marks & Mark.SEGMENT))
            yield np.stack([mix(keys[:-1], keys[1:]), keys[:-1], keys[1:]])

    return mine(words.table(), together.table(), pieces=pairs_of_shards())


def _write_splits(
    plan: ShardPlan, division: HeldOutSplit, *, phrases: Keys, parent: Corpus | None
) -> Stage[tuple[dict[str, dict[str, int]], dict[str, int]]]:
    """Copy the documents of every shard to the splits; mark phrases, count ids.

    Returns the sizes of the splits and the counts of units.
    """
    vocabulary = describe(plan.tokenizer).size
    kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
    token_counts = np.zeros(vocabulary, dtype=np.int64)
    before = {split: parent.documents(split) if parent else None for split in SPLITS}
    writers = {split: _SplitWriter(plan.ready / split, kind, before[split]) for split in SPLITS}
    if parent:
        token_counts += parent.array("counts")
    units = {"phrase": 0, "entity": 0}
    first = 0
    for number, shard in enumerate(plan.shards()):
        mined = mark_phrases(shard.ids, shard.marks, shard.sentences, phrases=phrases)
        units["phrase"] += len(mined) + int(shard.units[0])
        units["entity"] += int(shard.units[1])
        for split in SPLITS:
            pieces = division.sentences(shard, first, held=split == "held_out")
            ids = writers[split].add(shard, *pieces)
            if split == "train":
                token_counts += np.bincount(ids, minlength=vocabulary)
        first += len(shard.documents) - 1
        yield BuildProgress("writing", number + 1, len(plan.names), "steps")
    for writer in writers.values():
        writer.close()
    _save_array(plan.ready / "counts.npy", token_counts)
    return {split: writer.sizes for split, writer in writers.items()}, units


def _manifest(plan: ShardPlan, *, options: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the store; it has nothing that differs between two equal builds."""
    entries = {
        file.relative_to(plan.ready).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": files.sha256(file),
        }
        for file in sorted(plan.ready.rglob("*"))
        if file.is_file()
    }
    return {
        "version": VERSION,
        "splits": facts["splits"],
        "vocabulary": describe(plan.tokenizer).size,
        "units": facts["units"],
        "sentences": splitter(plan.settings.sentences).name,
        "segmenter": segmenter() if plan.settings.segment else None,
        "inputs": plan.inputs,
        "reading": options["reading"],
        "options": _recorded_options(options),
        "notes": facts["notes"],
        "tokenizer": sha256(plan.settings.tokenizer.encode()).hexdigest(),
        "fingerprint": fingerprint(entries),
        "held_out": facts["held_out"],
        **({"examples": facts["examples"]} if facts["examples"] else {}),
        "files": entries,
    }


def _recorded_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options as the manifest records them.

    Newer options are recorded only if they are used, and `unique` is true for documents, so that
    manifests stay equal to those of earlier versions.
    """
    unique = {None: False, "documents": True}.get(options["unique"], options["unique"])
    left_out = {"workers", "on", "reading"}
    left_out |= set() if options["exclude"] else {"exclude", "exclude_ngram"}
    left_out |= set() if options["near_duplicates"] else {"near_duplicates"}
    left_out |= set() if options["license"] else {"license"}
    recorded = {name: value for name, value in options.items() if name not in left_out}
    if "exclude" in recorded:
        recorded["exclude"] = [shown(access.shown(place)) for place in recorded["exclude"]]
    return {**recorded, "unique": unique}


def _publish(out: Path, plan: ShardPlan, manifest: dict[str, Any]) -> None:
    """Move the finished files into place, the manifest last."""
    part = plan.folder / "manifest.part"
    files.write_text(part, render(manifest))
    for split in SPLITS:
        (out / split).mkdir(exist_ok=True)
    for name in manifest["files"]:
        files.sync(plan.ready / name)
        (plan.ready / name).replace(out / name)
    part.replace(out / NAME)


def _save_array(file: Path, array: Array) -> None:
    """Write a small array; np.save to a path would hide the error of a full disk."""
    buffer = BytesIO()
    np.save(buffer, array)
    file.write_bytes(buffer.getvalue())


class _SplitWriter:
    """Appends to the arrays of a split; not mapped, since a full disk would kill the process."""

    def __init__(self, folder: Path, kind: type, before: Documents | None) -> None:
        kinds = (kind, np.uint8, np.int64, np.int64)
        self._kinds = {name: np.dtype(dtype) for name, dtype in zip(ARRAYS, kinds, strict=True)}
        self._files = {name: (folder / f"{name}.npy").open("wb") for name in ARRAYS}
        self._lengths = dict.fromkeys(ARRAYS, 0)
        for name in ARRAYS:
            self._write_header(name)
            zero = np.zeros(1 if name in ("sentences", "documents") else 0)
            old = zero if before is None else getattr(before, name)
            for first in range(0, len(old), _COPIED):
                self._put(name, old[first : first + _COPIED])

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of documents, sentences and tokens."""
        length = self._lengths
        bounds = {name: length[name] - 1 for name in ("documents", "sentences")}
        return {**bounds, "tokens": length["ids"]}

    def add(self, shard: Shard, begin: Ints, count: Ints) -> Array:
        """Append pieces of a shard, `count` sentences from `begin` on each; returns their ids."""
        sentence = ranges(begin, count)
        size = shard.sentences[sentence + 1] - shard.sentences[sentence]
        token = ranges(shard.sentences[sentence], size)
        ids, before = shard.ids[token], self.sizes
        self._put("ids", ids)
        self._put("marks", shard.marks[token])
        self._put("sentences", before["tokens"] + np.cumsum(size))
        self._put("documents", before["sentences"] + np.cumsum(count))
        return ids

    def _put(self, name: str, values: Array) -> None:
        self._files[name].write(values.astype(self._kinds[name]).tobytes())
        self._lengths[name] += len(values)

    def _write_header(self, name: str) -> None:
        """Write an array's header, which has room for any length."""
        shape = (self._lengths[name],)
        header = {"descr": self._kinds[name].str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._files[name], header)

    def close(self) -> None:
        """Write everything to disk, with the lengths of the arrays."""
        for name, file in self._files.items():
            file.seek(0)
            self._write_header(name)
            file.flush()
            os.fsync(file.fileno())
            file.close()
