"""The manifest of a store: what it is, how it was built, a checksum of every file; sealed.

Version 2 ends with a seal, a digest of everything before it, and its fingerprint covers all files.
Version 1 has no seal, and its fingerprint covers text and tokenizer only; it can still be read, its
types are checked in the same way, and its fingerprint is used unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from clozelab.errors import UserError

NAME = "manifest.json"
PARENT = "parent.json"  # in the folder of an addition: the manifest before it
VERSION = 2
SPLITS = ("train", "held_out")
ARRAYS = ("ids", "marks", "sentences", "documents")
NOT_STATED = "not stated"  # for a licence
REMEDY = "restore it from a copy, or remove the folder and build it again"

_UNSEALED = 1
_FIRST_FILES = {  # in every version
    "tokenizer.json",
    *("counts.npy", "words.npy", "word_numbers.npy", "words.txt"),
    *(f"{split}/{array}.npy" for split in SPLITS for array in ARRAYS),
}
_FILES = {_UNSEALED: _FIRST_FILES, VERSION: {*_FIRST_FILES, "phrases.npy", "entities.npy"}}
_INSIDE = re.compile(r"(?!\.)[\w.-]+(?:/(?!\.)[\w.-]+)*", re.ASCII)  # paths inside the folder
_DIGEST = re.compile("[0-9a-f]{64}")

_SIZES = {"documents": int, "sentences": int, "tokens": int}
_TYPES: dict[str, Any] = {
    "splits": {split: _SIZES for split in SPLITS},
    "vocabulary": int,
    "units": {"phrase": int, "entity": int},
    "sentences": str,
    "segmenter": (str, type(None)),
    "inputs": [str],
    "reading": dict,
    "options": dict,
    "notes": {...: int},
    "tokenizer": str,
    "fingerprint": str,
    "files": {...: {"bytes": int, "sha256": str}},
}
_ADDED: dict[str, Any] = {"held_out": {"whole": int, "parts": int}, "seal": str}  # in version 2
_LATER: dict[str, Any] = {  # only if something was left out, or text was added
    "examples": {...: [str]},
    "folder": str,
    "parent": str,
    "added": [{"inputs": [str], "reading": dict, "options": dict}],
}


def fingerprint(files: Mapping[str, Mapping[str, Any]]) -> str:
    """A digest of everything that training reads: the checksums of the store's files, by name.

    It does not depend on workers, shards or the paths of inputs, since the files do not.
    """
    lines = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return sha256(lines.encode()).hexdigest()


def render(manifest: Mapping[str, Any]) -> str:
    """The text of a manifest's file, with its seal."""
    content = {key: value for key, value in manifest.items() if key != "seal"}
    seal = sha256(_text(content).encode("utf-8", "surrogatepass")).hexdigest()
    return _text({**content, "seal": seal})


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a finished store."""
    file = folder / NAME
    if not file.is_file():
        if (folder / "building").is_dir():
            raise UserError(
                f"{folder}: this corpus is unfinished; run the same corpus build again to"
                " continue it"
            )
        raise UserError(
            f"{folder}: is not a corpus; make one with clozelab corpus build TEXT --out DIR"
        )
    return _read(file)


def states(folder: Path) -> Iterator[dict[str, Any]]:
    """The manifest of a store, then its earlier ones, before text was added, newest first."""
    manifest = read(folder)
    yield manifest
    while "parent" in manifest and (file := folder / manifest["folder"] / PARENT).is_file():
        manifest = _read(file)
        yield manifest


def _read(file: Path) -> dict[str, Any]:
    return parsed(file.read_bytes(), str(file))


def state(known: Sequence[Mapping[str, Any]], fingerprint: str, *, place: str) -> int:
    """The index of the first of `known` manifests whose fingerprint begins so."""
    prints = [str(manifest["fingerprint"]) for manifest in known]
    for number, one in enumerate(prints):
        if one.startswith(fingerprint):
            return number
    names = ", ".join(one[:8] for one in prints)
    raise UserError(f"{place}: has no version {fingerprint}; name one of {names}")


def parsed(content: bytes, file: str) -> dict[str, Any]:
    """The manifest in a file's bytes; one that was altered or has wrong types is refused."""
    try:
        text = content.decode("utf-8")
        manifest: dict[str, Any] = json.loads(text)
        version = manifest["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{file}: is not a corpus manifest; build the corpus again") from None
    if type(version) is not int or version not in _FILES:
        raise UserError(
            f"{file}: has format version {version}, but this clozelab reads {_UNSEALED} and"
            f" {VERSION}; build the corpus again"
        )
    if version == VERSION and text != render(manifest):
        raise UserError(f"{file}: its checksum differs, so the file was altered; {REMEDY}")
    types = dict(_TYPES) if version == _UNSEALED else {**_TYPES, **_ADDED}
    types |= {key: kind for key, kind in _LATER.items() if key in manifest}
    wrong = _wrong(manifest, types, "") or _wrong_files(manifest["files"], _FILES[version])
    if not wrong and not _INSIDE.fullmatch(manifest.get("folder", "train")):
        wrong = "folder is no name of a folder in it"
    if wrong:
        raise UserError(f"{file}: not a whole corpus manifest ({wrong}); build the corpus again")
    return manifest


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def _wrong(value: Any, kind: Any, place: str) -> str:
    """What is wrong with the type of a value; "" if nothing is.

    A kind is a type or several, a list of one kind, or a kind for each key (`...`: for any key).
    """
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return f"{place} is no table"
        if ... in kind:
            kind = dict.fromkeys(value, kind[...])
        if missing := kind.keys() - value.keys():
            return f"{place} lacks {min(missing)}".strip()
        parts = [(value[key], kind[key], f"{place}.{key}".lstrip(".")) for key in kind]
    elif isinstance(kind, list):
        if not isinstance(value, list):
            return f"{place} is no list"
        parts = [(item, kind[0], place) for item in value]
    else:
        if isinstance(value, bool) or not isinstance(value, kind):
            return f"{place} is of the wrong type"
        return f"{place} is below 0" if isinstance(value, int) and value < 0 else ""
    return next(filter(None, (_wrong(*part) for part in parts)), "")


def _wrong_files(files: Mapping[str, Any], expected: set[str]) -> str:
    if missing := expected - files.keys():
        return f"files lacks {min(missing)}"
    for name, entry in files.items():
        if not _INSIDE.fullmatch(name):
            return f"files has {name!r}, which is no name of a file in the folder"
        if not _DIGEST.fullmatch(entry["sha256"]):
            return f"files.{name}.sha256 is no digest"
    return ""
