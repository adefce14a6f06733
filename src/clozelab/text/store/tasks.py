"""The tasks of a build: to read a portion and cut it into shards, and to tokenise a shard.

A task has no effect but its result. So a lost one can be run again anywhere, and the nodes of a
cluster do not need the build's folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from clozelab.contracts import Counts
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.sources import BytesRead, Portion
from clozelab.text.store import shards


@dataclass(frozen=True)
class ShardCut:
    """A shard of a portion, before it is tokenised."""

    number: int  # in the portion
    name: str
    reached: int  # bytes of the portion up to its end
    job: shards.ShardJob | None  # None if the shard is finished


@dataclass(frozen=True)
class PortionEnd:
    """The end of a portion, after its last shard."""

    counts: Counts = field(default_factory=Counts)  # what was skipped or repaired
    seen: Counter[str] = field(default_factory=Counter)  # by document, how many spans begin in it


class ShardReader:
    """Reads a portion and cuts it into shards."""

    def __init__(
        self,
        portion: Portion,
        reading: Reading,
        spans: dict[str, shards.Spans],
        digest: bytes,
        finished: Set[str],
    ) -> None:
        self._end, self._read, self._number = PortionEnd(), BytesRead(), -1
        self._digest, self._finished = digest, finished
        self._documents = portion.documents(reading, counts=self._end.counts, progress=self._read)
        self._jobs = shards.jobs(self._documents, spans)

    def next(self) -> ShardCut | PortionEnd:
        """The next shard, or after the last one the end of the portion."""
        job = next(self._jobs, None)
        if job is None:
            return self._end
        self._number += 1
        for number, spans in job.spans.items():
            self._end.seen[job.documents[number].name] += len(spans)
        name = job.name(self._digest)
        unfinished = None if name in self._finished else job
        return ShardCut(self._number, name, self._read.done, unfinished)

    def close(self) -> None:
        """Stop reading."""
        self._documents.close()


@dataclass(frozen=True)
class ShardMade:
    """A shard that a task has made."""

    cut: ShardCut  # without the text
    content: bytes | None = None  # None if it is in its file

    def save(self, folder: Path) -> ShardMade:
        """Write its content to the build's folder, and drop it from the result."""
        if self.content is not None:
            shards.save(self.content, folder / f"{self.cut.name}.npz")
        return replace(self, content=None)


def make_shard(
    settings: shards.TokenisingSettings, cut: ShardCut | PortionEnd
) -> ShardMade | PortionEnd:
    """Tokenise a shard, unless it is finished; the end of a portion is returned as it is."""
    if isinstance(cut, PortionEnd):
        return cut
    done = replace(cut, job=None)
    if cut.job is None:
        return ShardMade(done)
    tokenizer, counts = _cached_tokenizer(settings.tokenizer, settings.segment)
    counts.clear()
    arrays = shards.tokenise(cut.job, settings, tokenizer, counts)
    return ShardMade(done, shards.pack(arrays, counts))


@lru_cache(maxsize=1)
def _cached_tokenizer(tokenizer: str, segment: bool) -> tuple[CachedTokenizer, Counts]:
    """A tokenizer with its cache, kept in the process for the next task."""
    counts = Counts()
    return CachedTokenizer(Tokenizer.from_str(tokenizer), segment=segment, counts=counts), counts
