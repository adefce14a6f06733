"""The shards of a build, made by the tasks of an engine.

A few portions of the text are read at a time, and their shards are made by as many tasks as the
engine asks for. If anything of a portion is lost, the portion is read again, as a stopped build
reads everything again: finished shards are recognised by their names.
"""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import Any

from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.text.building import BuildProgress, Stage
from clozelab.text.reading.sources import Inputs, Portion
from clozelab.text.store import shards
from clozelab.text.store.engines import Engine, ShardSource, Task, TaskLost
from clozelab.text.store.tasks import PortionEnd

_TRIES = 5  # of reading a portion without finishing another shard


def tokenised(
    inputs: Inputs,
    folder: Path,
    settings: shards.TokenisingSettings,
    spans: dict[str, shards.Spans],
    *,
    counts: Counts,
    where: Engine,
) -> Stage[shards.ShardPlan]:
    """Tokenise all inputs into shards; yields progress, returns the shards in the text's order."""
    counts.merge(inputs.counts)
    total = inputs.bytes
    finished = {file.stem for file in folder.glob("*.npz") if shards.sound(file)}
    where.prepare(settings, folder)
    arguments = (inputs.reading, spans, settings.digest(), finished)
    maker = _ShardMaker(where, inputs.portions(), arguments, folder=folder)
    try:
        yield BuildProgress("tokenising", 0, total)
        while maker.advance():
            yield BuildProgress("tokenising", maker.reached(), total)
    finally:
        maker.close()
    for _, end in sorted(maker.ends.items()):
        counts.merge(end.counts)
    seen: Counter[str] = Counter()
    for end in maker.ends.values():
        seen.update(end.seen)
    counts.add("documents named in --spans and not found", number=len(spans.keys() - seen.keys()))
    for name, number in seen.items():
        counts.add(shards.PAST_END, name, max(len(spans[name]) - number, 0))
    if not maker.names:
        raise inputs.no_text(counts)
    names = [name for _, name in sorted(maker.names.items())]
    return shards.ShardPlan(folder, settings, names, [item.shown for item in inputs.items])


class _ShardMaker:
    """The readers and tasks that make the shards of all portions."""

    def __init__(
        self, where: Engine, parts: list[Portion], arguments: tuple[Any, ...], *, folder: Path
    ) -> None:
        self._where, self._parts, self._arguments, self._folder = where, parts, arguments, folder
        self._finished: set[str] = arguments[-1]
        self._unread = deque(range(len(parts)))
        self._readers: dict[int, ShardSource] = {}  # by portion, in the order of their turns
        self._latest: dict[int, ShardSource | None] = {}  # by portion, also after its end
        self._tasks: dict[Task, tuple[int, ShardSource]] = {}
        self._tries: Counter[int] = Counter()
        self._reached: Counter[int] = Counter()
        self.names: dict[tuple[int, int], str] = {}  # of shards, by portion and number
        self.ends: dict[int, PortionEnd] = {}

    def reached(self) -> int:
        """Bytes of the text that are tokenised."""
        return self._reached.total()

    def advance(self) -> bool:
        """Start readers and tasks, take results; returns whether anything is left to do."""
        width, max_readers = self._where.width, self._where.readers
        while len(self._tasks) < width and (self._readers or self._unread):
            while self._unread and len(self._readers) < max_readers:
                part = self._unread.popleft()
                reader = self._where.reader(self._parts[part], *self._arguments)
                self._readers[part] = self._latest[part] = reader
            part = next(iter(self._readers))
            reader = self._readers[part] = self._readers.pop(part)  # to the end of the queue
            cut = reader.next()
            if isinstance(cut, PortionEnd):  # a reader on a node returns it through a task
                self._end_portion(part, cut)
            else:
                self._tasks[self._where.submit(cut)] = part, reader
        for task in self._where.first_done(self._tasks) if self._tasks else ():
            self._take_result(task, *self._tasks.pop(task))
        return bool(self._tasks or self._readers or self._unread)

    def _take_result(self, task: Task, part: int, reader: ShardSource) -> None:
        """Take the result of a task: save its shard, or note the end or loss of a portion."""
        try:
            shard = self._where.result(task)
        except TaskLost as lost:
            if self._latest[part] is reader:  # otherwise a later reader is at work already
                self._read_again(part, lost)
            return
        if isinstance(shard, PortionEnd):
            if self._readers.get(part) is reader:
                self._end_portion(part, shard)
            return
        if shard.cut.name not in self._finished:
            shard.save(self._folder)
            self._finished.add(shard.cut.name)
            self._tries[part] = 0
        self.names[part, shard.cut.number] = shard.cut.name
        self._reached[part] = max(self._reached[part], shard.cut.reached)

    def _end_portion(self, part: int, end: PortionEnd) -> None:
        self._readers.pop(part).close()
        self.ends[part] = end

    def _read_again(self, part: int, lost: TaskLost) -> None:
        if part in self._readers:
            self._readers.pop(part).close()
        self._latest[part] = None
        self._tries[part] += 1
        if self._tries[part] >= _TRIES:
            raise UserError(
                f"--on: text was lost {_TRIES} times in transfer ({lost}); run the same"
                " command again, finished parts are kept"
            )
        self._unread.appendleft(part)

    def close(self) -> None:
        """Stop reading."""
        for reader in self._readers.values():
            reader.close()
