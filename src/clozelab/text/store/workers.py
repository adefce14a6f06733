"""The shards of a build, made by tasks wherever they run.

Some portions of the text are read at a time, and their shards are made by as many tasks as the
engine wants. A portion of which something is lost is read again, as a build that was stopped reads
everything again: the shards that are finished are known by their names.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.building import BuildProgress
from clozelab.text.reading.layouts import Reading
from clozelab.text.reading.lines import shown
from clozelab.text.reading.sources import (
    Portion,
    Spooled,
    listing,
    no_text,
    portions,
    total_bytes,
)
from clozelab.text.store import shards
from clozelab.text.store.engines import Engine, ShardSource, Task, TaskLost
from clozelab.text.store.tasks import PortionEnd

_TRIES = 5  # of reading a portion of which not one more shard is finished


def tokenised(
    inputs: list[str],
    folder: Path,
    settings: shards.TokenisingSettings,
    spans: dict[str, shards.Spans],
    *,
    reading: Reading,
    counts: Counts,
    where: Engine,
) -> Generator[BuildProgress, None, shards.ShardPlan]:
    """Tokenise everything, shard by shard; returns which they are, in the text's order."""
    total = total_bytes(inputs, reading)
    parts = portions(inputs, reading, counts)
    finished = {file.stem for file in folder.glob("*.npz") if shards.sound(file)}
    where.prepare(settings, folder)
    arguments = (reading, spans, settings.digest(), finished)
    making = _Making(where, parts, arguments, folder=folder)
    try:
        yield BuildProgress("tokenising", 0, total)
        while making.goes_on():
            yield BuildProgress("tokenising", making.reached(), total)
    finally:
        making.close()
    for _, end in sorted(making.ends.items()):
        counts.merge(end.counts)
    seen: Counter[str] = Counter()
    for end in making.ends.values():
        seen.update(end.seen)
    counts.add("documents named in --spans and not found", number=len(spans.keys() - seen.keys()))
    for name, number in seen.items():
        counts.add(shards.PAST_END, name, max(len(spans[name]) - number, 0))
    if not making.names:
        raise no_text(inputs, counts)
    read = [name for name, *_ in listing(inputs, reading)]
    sources = ["standard input" if isinstance(name, Spooled) else shown(name) for name in read]
    return shards.ShardPlan(
        folder, settings, [name for _, name in sorted(making.names.items())], sources
    )


class _Making:
    """The shards of some portions, on their way."""

    def __init__(
        self, where: Engine, parts: list[Portion], arguments: tuple[Any, ...], *, folder: Path
    ) -> None:
        self._where, self._parts, self._arguments, self._folder = where, parts, arguments, folder
        self._finished: set[str] = arguments[-1]
        self._unread = deque(range(len(parts)))
        self._readers: dict[int, ShardSource] = {}  # by the portion, the next to be asked first
        self._latest: dict[int, ShardSource | None] = {}  # reader of a portion, at its end too
        self._tasks: dict[Task, tuple[int, ShardSource]] = {}
        self._tries: Counter[int] = Counter()
        self._reached: Counter[int] = Counter()
        self.names: dict[tuple[int, int], str] = {}  # by portion and number
        self.ends: dict[int, PortionEnd] = {}

    def reached(self) -> int:
        """Bytes of the text that are done."""
        return self._reached.total()

    def goes_on(self) -> bool:
        """Begin what is to be begun, take what is done; whether anything is left."""
        width, most = self._where.width, self._where.readers
        while len(self._tasks) < width and (self._readers or self._unread):
            while self._unread and len(self._readers) < most:
                part = self._unread.popleft()
                reader = self._where.reader(self._parts[part], *self._arguments)
                self._readers[part] = self._latest[part] = reader
            part = next(iter(self._readers))
            reader = self._readers[part] = self._readers.pop(part)  # the others come first now
            cut = reader.next()
            if isinstance(cut, PortionEnd):  # one on a node promises something, which is told later
                self._end(part, cut)
            else:
                self._tasks[self._where.submit(cut)] = part, reader
        for task in self._where.first_done(self._tasks) if self._tasks else ():
            self._take(task, *self._tasks.pop(task))
        return bool(self._tasks or self._readers or self._unread)

    def _take(self, task: Task, part: int, reader: ShardSource) -> None:
        """What a task came to."""
        try:
            shard = self._where.result(task)
        except TaskLost as lost:
            if self._latest[part] is reader:  # else a later one reads it again
                self._read_again(part, lost)
            return
        if isinstance(shard, PortionEnd):
            if self._readers.get(part) is reader:
                self._end(part, shard)
            return
        if shard.cut.name not in self._finished:
            shard.save(self._folder)
            self._finished.add(shard.cut.name)
            self._tries[part] = 0
        self.names[part, shard.cut.number] = shard.cut.name
        self._reached[part] = max(self._reached[part], shard.cut.reached)

    def _end(self, part: int, end: PortionEnd) -> None:
        self._readers.pop(part).close()
        self.ends[part] = end

    def _read_again(self, part: int, lost: TaskLost) -> None:
        if part in self._readers:
            self._readers.pop(part).close()
        self._latest[part] = None
        self._tries[part] += 1
        if self._tries[part] >= _TRIES:
            raise UserError(
                f"--on: text was lost {_TRIES} times on its way ({lost}); run the same command"
                " again, finished parts are kept"
            )
        self._unread.appendleft(part)

    def close(self) -> None:
        """Read no further."""
        for reader in self._readers.values():
            reader.close()
