"""Removing repeats from shards: first documents that are equal or nearly equal to an earlier one,
then lines or paragraphs equal to an earlier one; so one copy of everything is kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.contracts import Counts, Documents, Ints, Keys
from clozelab.keys import fold
from clozelab.packed import contains
from clozelab.text import near
from clozelab.text.building import BuildProgress, Stage
from clozelab.text.store.corpus import Corpus
from clozelab.text.store.manifest import SPLITS
from clozelab.text.store.parts import PART, in_parts
from clozelab.text.store.shards import Shard, ShardPlan

_TOKENS = 32  # of an example
_FOLDED = 1 << 22  # tokens hashed at a time, or those of one document
_PAIRS = 1 << 14  # pairs of signatures compared at a time
_MANY = 8  # buckets of more documents are skipped if they were compared before


def clean(
    plan: ShardPlan, *, options: dict[str, Any], counts: Counts, parent: Corpus | None = None
) -> Stage[ShardPlan]:
    """The plan without repeats, as the options say; `counts` gets their number and examples.

    Documents are also compared with those of the parent, the corpus that they are added to.
    """
    level, threshold = options["unique"], options["near_duplicates"]
    if level == "documents":
        if parent is not None:
            plan = _without_documents_of(parent, plan, counts=counts)
        plan = yield from _without_repeats(plan, level, counts=counts)
    if threshold is not None:
        plan = yield from _without_near_duplicates(plan, threshold, counts=counts)
    if level in ("lines", "paragraphs"):
        plan = yield from _without_repeats(plan, level, counts=counts)
    return plan


def _without_repeats(plan: ShardPlan, level: str, *, counts: Counts) -> Stage[ShardPlan]:
    """Keep the first of equal documents, lines or paragraphs; examples are the most frequent."""
    total = sum(len(shard.digests_of(level)) for shard in plan.shards())
    tables = (shard.digests_of(level) for shard in plan.shards())
    first_seen = np.zeros(total, dtype=bool)
    frequent: list[tuple[int, int]] = []  # minus the count, and the number of the first
    done = 0
    for numbers, rows in in_parts(tables, total=total, folder=plan.folder / "parts"):
        yield BuildProgress("looking for repeats", done, total, "steps")
        _, first, times = np.unique(rows, axis=0, return_index=True, return_counts=True)
        first_seen[numbers[first]] = True
        repeated = np.flatnonzero(times > 1)
        frequent += zip((-times[repeated]).tolist(), numbers[first[repeated]].tolist(), strict=True)
        frequent = sorted(frequent)[: Counts.EXAMPLES]
        done += len(numbers)
    texts = _excerpts(plan, {number for _, number in frequent}, level=level)
    what = f"{level} left out as repeats"
    counts.expect(what)
    counts.add(
        what,
        number=int((~first_seen).sum()),
        examples=[f"{-times:,} × {texts[number]}" for times, number in frequent],
    )
    return plan.only(level, first_seen)


def _without_documents_of(parent: Corpus, plan: ShardPlan, *, counts: Counts) -> ShardPlan:
    """Without documents that have the same tokens as a document of the corpus."""
    known = np.sort(np.concatenate([_document_keys(parent.documents(split)) for split in SPLITS]))
    new = [~contains(known, _document_keys(shard)) for shard in plan.shards()]
    keep = np.concatenate(new)
    counts.add("documents left out that are in the corpus", number=int((~keep).sum()))
    return plan.only("documents", keep)


def _document_keys(text: Documents | Shard) -> Keys:
    """A hash of the tokens of each document; 0 for an empty one."""
    bounds = np.asarray(text.sentences)[text.documents]
    keys = np.zeros(len(bounds) - 1, dtype=np.uint64)
    filled = np.flatnonzero(np.diff(bounds))
    for numbers in np.array_split(filled, -(-int(bounds[-1]) // _FOLDED) or 1):
        if len(numbers):
            first, last = bounds[numbers[0]], bounds[numbers[-1] + 1]
            keys[numbers] = fold(text.ids[first:last], bounds[numbers] - first)
    return keys


def _without_near_duplicates(
    plan: ShardPlan, threshold: float, *, counts: Counts
) -> Stage[ShardPlan]:
    """Without documents nearly equal to an earlier one; examples are the least similar pairs.

    The documents of a band's bucket are compared with its first; those that differ from it with the
    first of those, and so on. Signatures and bands are on disk.
    """
    folder = plan.folder / "near"
    shutil.rmtree(folder, ignore_errors=True)  # left by a build that was killed
    folder.mkdir()
    total, count = _write_signatures(plan, folder, threshold)
    if not total:
        shutil.rmtree(folder)
        return plan
    keep = np.ones(total, dtype=bool)
    signatures = np.memmap(folder / "signatures", np.uint32, "r", shape=(total, near.HASHES))
    closest: list[tuple[float, int, int]] = []  # similarity, a document, and an earlier one
    earlier: list[Keys] = []
    for band in range(count):
        yield BuildProgress("looking for near-duplicates", band, count, "steps")
        keys = np.memmap(folder / f"band-{band}", np.uint64, "r", shape=(total, 1))
        tables = (np.array(keys[first : first + PART]) for first in range(0, total, PART))
        for numbers, rows in in_parts(tables, total=total, folder=plan.folder / "parts"):
            of_band = _uncompared(numbers[keep[numbers]], rows[keep[numbers], 0], earlier=earlier)
            for pairs in _similar_pairs(*of_band, signatures=signatures, threshold=threshold):
                keep[[document for _, document, _ in pairs]] = False
                closest = sorted([*closest, *pairs])[: Counts.EXAMPLES]
        earlier.append(keys)
    texts = _excerpts(plan, {*chain.from_iterable(pair[1:] for pair in closest)}, level="documents")
    what = "documents left out as near-duplicates"
    counts.expect(what)
    counts.add(
        what,
        number=int((~keep).sum()),
        examples=[f"{share:.2f}: {texts[one]} | {texts[other]}" for share, one, other in closest],
    )
    del signatures, earlier, keys  # unmap the files before they are removed
    shutil.rmtree(folder)
    return plan.only("documents", keep)


def _write_signatures(plan: ShardPlan, folder: Path, threshold: float) -> tuple[int, int]:
    """Write all signatures to a file, and each band to one; the numbers of documents and bands."""
    total = count = 0
    for shard in plan.shards():
        keys = near.bands(shard.signatures, threshold)
        with (folder / "signatures").open("ab") as file:
            file.write(shard.signatures.tobytes())
        total, count = total + len(keys), keys.shape[1]
        for band in range(count):
            with (folder / f"band-{band}").open("ab") as file:
                file.write(keys[:, band].tobytes())
    return total, count


def _uncompared(numbers: Ints, keys: Keys, *, earlier: list[Keys]) -> tuple[Ints, Keys]:
    """Documents sorted by keys, without large buckets that are together in an earlier band too.

    The documents of such a bucket were compared there; without this, many documents from one
    template would be compared pair by pair in every band.
    """
    order = np.argsort(keys, kind="stable")
    numbers, keys = numbers[order], keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    sizes = np.diff(np.append(first, len(keys)))
    compared = np.zeros(len(first), dtype=bool)
    for bucket in np.flatnonzero(sizes > _MANY):
        members = numbers[first[bucket] : first[bucket] + sizes[bucket]]
        compared[bucket] = any((band[members] == band[members[0]]).all() for band in earlier)
    left = np.repeat(~compared, sizes)
    return numbers[left], keys[left]


def _similar_pairs(
    numbers: Ints, keys: Keys, *, signatures: near.Signatures, threshold: float
) -> Iterator[list[tuple[float, int, int]]]:
    """Yield the documents that are similar to the first one with the same key (keys are sorted):
    similarity, document, first one. Then the same for the remaining documents, and so on."""
    while len(keys):
        begins = np.append(True, keys[1:] != keys[:-1])
        leaders = numbers[begins][np.cumsum(begins) - 1][~begins]
        numbers, keys = numbers[~begins], keys[~begins]
        alike = np.zeros(len(numbers))
        for first in range(0, len(numbers), _PAIRS):
            part = slice(first, first + _PAIRS)
            alike[part] = near.similarities(signatures[leaders[part]], signatures[numbers[part]])
        similar = alike >= threshold
        pairs = (alike[similar].tolist(), numbers[similar].tolist(), leaders[similar].tolist())
        yield list(zip(*pairs, strict=True))
        numbers, keys = numbers[~similar], keys[~similar]


def _excerpts(plan: ShardPlan, numbers: set[int], *, level: str) -> dict[int, str]:
    """The first tokens of some documents, lines or paragraphs as text, by number."""
    texts: dict[int, str] = {}
    first = 0
    for shard in plan.shards() if numbers else ():
        bounds = shard.bounds_of(level)
        last = first + len(bounds) - 1
        for number in numbers:
            if first <= number < last:
                start, stop = shard.sentences[bounds[number - first :][:2]].tolist()
                ids = shard.ids[start : min(stop, start + _TOKENS)].tolist()
                text = plan.tokenizer.decode(ids, skip_special_tokens=False)
                texts[number] = " ".join(text.split()) + (" …" if stop - start > _TOKENS else "")
        first = last
    return texts
