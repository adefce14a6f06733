"""Inputs (files, folders, patterns, URLs, standard input, datasets) → a stream of documents, in the
order in which they are named and in bounded memory."""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath, PurePosixPath
from typing import IO

from clozelab import files
from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.nearest import nearest
from clozelab.remote import access
from clozelab.text.reading import remote
from clozelab.text.reading.layouts import RawDocument, Reading, read_text
from clozelab.text.reading.lines import (
    PACKINGS,
    Lines,
    TextFile,
    kind_ending,
    local,
    opened,
    shown,
)
from clozelab.text.reading.records import (
    HUB,
    columnar,
    csv_rows,
    from_hub,
    json_lines,
    separated,
    tsv_rows,
)

_STDIN = "-"
_STDIN_NAME = "standard input"
_BARE_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_READ, _ASIDE = "files read: {}", "files left aside: {}, read if named themselves"  # by ending
_PROBED, _PROBE = 16, 1 << 22  # files that are sampled for the size of their text, bytes of each

PORTION = 1 << 26  # bytes, after which the next file goes to another reader

ByLines = Callable[[Lines, Reading], Iterator[RawDocument]]
_COLUMNAR = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_BY_LINES: dict[str, ByLines] = {
    "": read_text,
    ".txt": read_text,
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), json_lines),
    ".csv": partial(separated, split=csv_rows),
    ".tsv": partial(separated, split=tsv_rows),
}
_KNOWN = {*_COLUMNAR, *_BY_LINES}  # the endings of files that are read from a folder


@dataclass
class BytesRead:
    """How much has been read."""

    done: int = 0  # bytes of the files, compressed


@dataclass(frozen=True)
class Item:
    """One input: a file, standard input or a dataset of the hub."""

    name: str
    file: TextFile | None = None  # of standard input, a copy that can be read more than once

    @property
    def shown(self) -> str:
        """Its name for messages and records."""
        return _STDIN_NAME if self.is_stdin else shown(self.name)

    @property
    def is_stdin(self) -> bool:
        """Whether it is standard input."""
        return self.name == _STDIN

    @property
    def size(self) -> int | None:
        """Its bytes; None if unknown."""
        return None if self.file is None else self.file.size

    def copied(self, file: Path) -> Item:
        """Standard input, of which a file has a copy; the same content is the same input."""
        changed = int(files.sha256(file), 16)
        return replace(self, file=replace(local(file), name=_STDIN_NAME, changed=changed))

    def documents(
        self, reading: Reading, *, counts: Counts, progress: BytesRead
    ) -> Generator[RawDocument, None, None]:
        """Its documents, in order, in bounded memory."""
        if self.file is not None:
            return _read_file(self.file, reading, counts=counts, progress=progress)
        if self.is_stdin:
            stream = sys.stdin.buffer
            return _read_stream(stream, _STDIN_NAME, None, reading=reading, counts=counts)
        return from_hub(self.name, reading, counts=counts)


@dataclass(frozen=True)
class Portion:
    """The part of the inputs for one reader: a large file, or several small ones."""

    items: tuple[Item, ...]

    @property
    def is_remote(self) -> bool:
        """Whether all of it is at URLs, which any machine can read."""
        return all(item.file is not None and access.is_url(item.name) for item in self.items)

    def documents(
        self, reading: Reading, *, counts: Counts, progress: BytesRead
    ) -> Generator[RawDocument, None, None]:
        """Its documents, in order."""
        for item in self.items:
            # The file is closed at once, also if reading stops early.
            with closing(item.documents(reading, counts=counts, progress=progress)) as stream:
                yield from stream


@dataclass(frozen=True)
class Inputs:
    """What was named to be read, how it is read, and the files that the names stand for."""

    names: tuple[str, ...]
    reading: Reading
    items: tuple[Item, ...]
    counts: Counts  # of the files in folders, by what is done with them

    @property
    def bytes(self) -> int | None:
        """Bytes of all files, compressed; None where some input has no known size."""
        known = [item.size for item in self.items if item.size is not None]
        return sum(known) if len(known) == len(self.items) else None

    def text_bytes(self) -> int | None:
        """Bytes of the text in all files, estimated from their beginnings; None if unknown."""
        if self.bytes is None:
            return None
        text = compressed = 0
        for item in self.items[:: -(-len(self.items) // _PROBED)]:
            progress, size = BytesRead(), 0
            stream = item.documents(self.reading, counts=Counts(), progress=progress)
            with closing(stream):
                for document in stream:
                    size += len(document.text.encode())
                    if size >= _PROBE:
                        break
            text, compressed = text + size, compressed + progress.done
        return int(self.bytes * text / max(compressed, 1))

    def listing(self) -> list[tuple[str, int, int]]:
        """Name, size and time of change (ns) of every file, to recognise equal inputs."""
        return [
            (item.name, item.size or 0, item.file.changed if item.file else 0)
            for item in self.items
        ]

    def portions(self) -> list[Portion]:
        """The items in portions, by size alone: each has those that begin within PORTION bytes."""
        groups: list[list[Item]] = []
        size, remote_group = 0, None
        for item in self.items:
            if size >= PORTION or access.is_url(item.name) != remote_group:
                groups.append([])
                size, remote_group = 0, access.is_url(item.name)
            groups[-1].append(item)
            size += item.size or 0
        return [Portion(tuple(group)) for group in groups]

    def documents(
        self, counts: Counts, *, progress: BytesRead | None = None
    ) -> Generator[RawDocument, None, None]:
        """Every document, in order; what was skipped or repaired is added to `counts`.

        Inputs without any document are refused at the end.
        """
        counts.merge(self.counts)
        any_text = False
        stream = Portion(self.items).documents(
            self.reading, counts=counts, progress=progress or BytesRead()
        )
        with closing(stream):
            for document in stream:
                any_text = True
                yield document
        if not any_text:
            raise self.no_text(counts)

    def no_text(self, counts: Counts) -> UserError:
        """The error for inputs without any document."""
        named = (_STDIN_NAME if name == _STDIN else access.shown(name) for name in self.names)
        skipped = "; ".join(f"{what}: {number}" for what, number in counts.numbers.items())
        return UserError(
            f"there is no text in {', '.join(named)}{f' ({skipped})' if skipped else ''}; name"
            " other files, or another --field"
        )


def find(names: Sequence[str], reading: Reading) -> Inputs:
    """The inputs of these names; those that lead nowhere are refused."""
    if not names:
        raise UserError("no input is named; name files, folders, URLs, - or hf:owner/name")
    counts = Counts()
    items = [item for name in names for item in _expand(name, reading.split, counts=counts)]
    for name, number in Counter(item.name for item in items).items():
        counts.add("inputs named more than once and read as often", name, number - 1)
    return Inputs(tuple(names), reading, tuple(items), counts)


def _read_file(
    text: TextFile, reading: Reading, *, counts: Counts, progress: BytesRead
) -> Generator[RawDocument, None, None]:
    """The documents of one file, in order; adds to `progress`."""
    start = progress.done
    with opened(text) as (file, stream):
        if kind := _COLUMNAR.get(text.kind):
            for share, document in columnar(text, stream, kind, reading=reading, counts=counts):
                progress.done = start + int((text.size or 0) * share)
                yield document
        else:
            read = None if text.name == _STDIN_NAME else _BY_LINES.get(text.kind, read_text)
            texts = _read_stream(stream, text.name, read, reading=reading, counts=counts)
            with closing(texts):
                for document in texts:
                    progress.done = start + file.tell()
                    yield document
    progress.done = progress.done if text.size is None else start + text.size


def _read_stream(
    stream: IO[bytes], name: str, read: ByLines | None, *, reading: Reading, counts: Counts
) -> Generator[RawDocument, None, None]:
    """The documents of a stream of lines; without `read`, JSON lines if it begins with "{"."""
    lines = Lines(stream, name, encoding=reading.encoding, counts=counts)
    try:
        head = lines.head().lstrip()
        if not head:
            counts.add("empty files", name)
        read = read or (json_lines if head.startswith("{") else read_text)
        yield from read(lines, reading)
    finally:
        lines.release()


def _expand(name: str, split: str, *, counts: Counts) -> list[Item]:
    path = Path(name)
    if name == _STDIN:
        return [Item(name)]
    if access.is_url(name):
        texts = remote.find_texts(name, partial(_is_read, counts=counts))
        return [Item(text.name, text) for text in texts]
    if name.startswith("hf:"):
        return [_hub_item(name)]
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:  # a folder on the way may not be entered, a name is too long
        raise UserError(f"{name} may not be read ({error.strerror}); fix that first") from None
    if is_folder:
        return _folder(path, split, counts=counts)
    if exists and not path.is_file():  # it would be read twice, and a pipe can be read once
        raise UserError(
            f"{name} is a pipe or a device, not a file; name - and send the text to standard input"
        )
    if exists:
        return [Item(name, local(path))]
    if path.is_symlink():
        raise UserError(f"{name} is a link to {os.readlink(path)}, which is missing; fix the link")
    if glob.has_magic(name):
        found = glob.glob(name, recursive=True)
        matches = remote.innermost(sorted(found))
        for folder in sorted({*found} - {*matches}):  # in which other matches are
            _refuse_made(Path(folder))
        items = [item for match in matches for item in _expand(match, split, counts=counts)]
        if items:
            return items
        raise UserError(f"no file matches {name}{_nearest(path)}")
    is_file = path.suffix.lower() in PACKINGS or kind_ending(path) in _KNOWN - {""}
    if _BARE_HUB.fullmatch(name) and not path.parent.exists() and not is_file:
        return [_hub_item(f"hf:{name}")]
    raise UserError(f"there is no file or folder {name}{_nearest(path)}")


def _is_read(name: str, url: str, *, counts: Counts) -> bool:
    """Whether the file at that path in a folder at a URL is read; counted as in a local one."""
    path = PurePosixPath(name)
    if remote.is_hidden(name):
        counts.add("hidden files skipped", url)
        return False
    is_known = kind_ending(path) in _KNOWN
    counts.add((_READ if is_known else _ASIDE).format(_ending(path)), url)
    return is_known


def _nearest(path: Path) -> str:
    """The end of an error about a missing path: the name that may have been meant."""
    missing = path
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    try:
        names = sorted(os.listdir(missing.parent))
    except OSError:
        names = []
    meant = nearest(missing.name, names, alike=0.5)
    return f": did you mean {missing.parent / meant}?" if meant else ": check the name"


def _refuse_made(folder: Path) -> None:
    """Refuse a folder that clozelab made, such as a corpus."""
    if kind := files.kind_of(folder):
        raise UserError(f"{folder}: is a {kind} that clozelab made, not text; name the text itself")


def _folder(folder: Path, split: str, *, counts: Counts) -> list[Item]:
    _refuse_made(folder)
    entries = _entries(folder)
    if any(entry.name == "dataset_dict.json" for entry in entries):
        splits = [entry.name for entry in entries if entry.is_dir()]
        if split not in splits:
            raise UserError(f"{folder} has no split {split!r}; give --split {' or '.join(splits)}")
        folder = folder / split
    if (folder / "state.json").exists() and (folder / "dataset_info.json").exists():
        return _saved_dataset(folder)
    aside: list[Path] = []
    paths = _files(folder, aside, counts=counts)
    if not paths:
        only = f", only {_endings(aside)}; name those files themselves"
        hint = only if aside else "; name another folder"
        raise UserError(f"the folder {folder} has no text files{hint}")
    for path in paths:
        counts.add(_READ.format(_ending(path)), shown(path))
    for path in aside:
        counts.add(_ASIDE.format(_ending(path)), shown(path))
    return [Item(str(path), local(path)) for path in paths]


def _ending(path: PurePath) -> str:
    """How a file's name ends, with the ending of its compression."""
    endings = path.suffixes[-2:] if path.suffix.lower() in PACKINGS else path.suffixes[-1:]
    return "".join(endings) or "without an ending"


def _endings(paths: list[Path]) -> str:
    """Counts of files by ending, the most frequent first."""
    counted = Counter(map(_ending, paths)).most_common()
    named = [f"{number:,} {ending}" for ending, number in counted[:6]]
    return ", ".join(named) + (", …" if len(counted) > 6 else "")


def _saved_dataset(folder: Path) -> list[Item]:
    """The Arrow files of a dataset that `datasets.save_to_disk` wrote."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        paths = [folder / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder}/state.json is damaged; save the dataset again") from None
    if missing := [path for path in paths if not path.exists()]:
        raise UserError(f"{missing[0]} is missing from the dataset; save the dataset again")
    return [Item(str(path), local(path)) for path in paths]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(
            f"the folder {folder} may not be read ({error.strerror}); change its permissions"
        ) from None


def _files(folder: Path, aside: list[Path], *, counts: Counts) -> list[Path]:
    """Every file of text in a folder and the folders in it, sorted by path.

    These are tables, JSON lines, .txt and files without an ending unless they hold NUL bytes.
    Files with other endings are appended to `aside`; they are read only if they are named.
    """
    paths: list[Path] = []
    for entry in _entries(folder):
        path = folder / entry.name
        if entry.name.startswith("."):
            counts.add("hidden files skipped", shown(path))
        elif entry.is_symlink() and not path.exists():
            raise UserError(f"{path} is a link to {os.readlink(path)}, which is missing; fix it")
        elif entry.is_dir(follow_symlinks=False):
            if files.kind_of(path):
                counts.add("folders that clozelab made skipped", shown(path))
            else:
                paths += _files(path, aside, counts=counts)
        elif not entry.is_file():
            counts.add("links to folders and special files skipped", shown(path))
        elif kind_ending(path) not in _KNOWN:
            aside.append(path)
        elif _is_binary(path):
            counts.add("binary files skipped", shown(path))
        else:
            paths.append(path)
    return paths


def _is_binary(path: Path) -> bool:
    if path.suffix:
        return False
    with opened(local(path)) as (file, _):
        return b"\0" in file.read(4096)


def _hub_item(name: str) -> Item:
    if not HUB.fullmatch(name):
        raise UserError(f"{name} is not a dataset; write hf:owner/name or hf:owner/name:split")
    package = find_spec("datasets")
    if package is None or package.origin is None:  # a folder of that name is no package
        raise UserError(
            f"{name} is not a file, and reading it from the Hugging Face hub needs another"
            " package; pip install clozelab[datasets]"
        )
    return Item(name)
