"""A request for a fine-tuning: the model, the task's data, the protocol, the seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozelab.config.toml import is_path
from clozelab.errors import UserError
from clozelab.files import sha256
from clozelab.finetuning import protocols
from clozelab.finetuning.files.columns import Source
from clozelab.finetuning.files.hub import is_hub
from clozelab.finetuning.files.sentences import gold_beside
from clozelab.finetuning.files.splits import TaskSplits, find, own
from clozelab.finetuning.files.tables import Table, located
from clozelab.finetuning.kinds import own_words
from clozelab.remote.access import is_url, shown
from clozelab.remote.cache import local_file


@dataclass(frozen=True)
class Data:
    """Where a task's examples are: in the usual layout of a known task, or in one's own files."""

    task: str  # a known task, or a word for a kind: classify, pairs, tag, …
    root: str | None = None
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    columns: tuple[str, ...] = ()  # role=column, if the columns have unusual names
    labels: tuple[str, ...] = ()  # by default those of the training file

    @property
    def files(self) -> dict[str, str]:
        """The user's own files by their splits."""
        files = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: file for split, file in files.items() if file}

    def splits(self) -> TaskSplits:
        """The splits of the task, whose files exist."""
        if self.files:
            return own(
                self.task, **self.files, columns=columns_of(self.columns), labels=self.labels
            )
        if self.columns:
            raise UserError(
                f"--columns is for your own files, but {self.task} is a known task; leave it out"
            )
        if self.task in own_words():
            raise UserError(f"{self.task}: is for your own files; give --train FILE --dev FILE")
        return find(self.task, self.root)

    def check(self) -> None:
        """Refuse missing files, before anything is read."""
        for file in self.files.values():
            if not is_hub(file):
                located(local_file(file))
        if not self.files:
            self.splits()

    def digests(
        self, read: Callable[[Data], TaskSplits] | None = None, *, part: str | None = None
    ) -> dict[str, str]:
        """The sha256 of all training and dev data, or of one `part`.

        Files are named by absolute paths. Datasets of the hub are named by name and split, and
        hashed by their rows as read, by `read` if that caches them.
        """

        def wanted(split: str) -> bool:
            return split.startswith(part) if part else not split.startswith("test")

        if not self.files:
            splits = self.splits().splits
            sources = [splits[name].source for name in splits if wanted(name)]
            # Links are not resolved: they may point to another file the next time.
            paths = [s.parent.resolve() / s.name for s in sources if isinstance(s, Path)]
            paths += [gold for path in paths for gold in gold_beside(path)]
            return {str(path): _digest(path) for path in paths}
        digests = {}
        for split, file in self.files.items():
            if not wanted(split):
                continue
            if is_hub(file):
                source = (read or Data.splits)(self).splits[split].source
                digests[f"{file} ({split})"] = _rows_digest(source)
            else:
                path = located(local_file(file)).resolve()
                digests[shown(file) if is_url(file) else str(path)] = _digest(path)
        return digests


@dataclass(frozen=True)
class FinetuneRequest:
    """The description of one fine-tuning, from which any process can run it."""

    model: str
    data: Data
    protocol: str | None = None  # None: that of the model's recipe
    settings: tuple[str, ...] = ()  # key=value over the protocol's
    seed: int = 0
    fresh: bool = False  # random weights instead of the model's
    teacher: str | None = None
    name: str = "seed-0"  # of its folder
    digests: Mapping[str, str] | None = None  # of its data; None: not known


def settled(request: FinetuneRequest) -> FinetuneRequest:
    """The request with absolute paths."""
    names = ("root", "train", "dev", "test")
    places: dict[str, Any] = {name: absolute(getattr(request.data, name)) for name in names}
    return replace(
        request,
        model=absolute(request.model) or request.model,
        teacher=absolute(request.teacher),
        protocol=absolute_protocol(request.protocol),
        data=replace(request.data, **places),
    )


def absolute(place: str | None) -> str | None:
    """The absolute path; a hub's name unchanged, a URL without credentials."""
    if place and is_url(place):
        return shown(place)
    return str(Path(place).resolve()) if place and Path(place).exists() else place


def absolute_protocol(protocol: str | None) -> str | None:
    """The absolute path of a protocol's file; a name unchanged."""
    return str(Path(protocol).resolve()) if protocol and is_path(protocol) else protocol


def refuse_changed(
    before: Mapping[str, str], now: Mapping[str, str], *, since: str, more: bool = True
) -> None:
    """Refuse files that have changed, since scores on different data cannot be averaged.

    There may be `more` files than before, of other tasks. Otherwise files may have been moved: the
    contents must be the same.
    """
    changed = [
        file
        for file, digest in now.items()
        if before.get(file, digest) != digest or not (more or digest in before.values())
    ]
    if not more:
        changed = changed or [file for file in before if before[file] not in now.values()]
    if changed:
        files, have = ", ".join(map(_relative, changed)), "has" if len(changed) == 1 else "have"
        raise UserError(
            f"{files} {have} changed since {since}; restore the old files, or name another"
            " folder with --out"
        )


def _relative(file: str) -> str:
    """A path relative to the current folder, if it is below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _digest(path: Path) -> str:
    """The sha256 of a file, or of the names and digests of a folder's files."""
    if not path.is_dir():
        return sha256(path)
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    lines = "".join(f"{sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in inside)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def _rows_digest(source: Source) -> str:
    """The sha256 of a dataset's rows as JSON; values that JSON lacks count by their type."""
    assert isinstance(source, Table)
    digest = hashlib.sha256()
    for row in source.rows:
        line = json.dumps(row.values, sort_keys=True, default=lambda value: type(value).__name__)
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def with_settings(request: FinetuneRequest, cell: Mapping[str, Any]) -> FinetuneRequest:
    """The request with the settings of a grid's cell added."""
    return replace(request, settings=(*request.settings, *protocols.changes(cell)))


def columns_of(words: Sequence[str]) -> dict[str, str]:
    """The columns by their roles, from words such as `label=sentiment`."""
    columns = {}
    for word in words:
        role, sign, column = word.partition("=")
        if not (role and sign and column):
            raise UserError(f"--columns {word}: write ROLE=COLUMN, as in label=sentiment")
        columns[role] = column
    return columns
