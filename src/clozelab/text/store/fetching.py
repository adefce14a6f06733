"""A corpus at a URL → the same corpus in the cache of this machine.

A plan needs only the offsets of sentences and documents; the tokens, most of the bytes, may come
later. But a step reads blocks from anywhere in a corpus, so all of it is fetched in the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clozelab import files
from clozelab.errors import UserError
from clozelab.remote import access, cache
from clozelab.remote.access import MissingError, RemoteFile, joined, shown
from clozelab.remote.ahead import POSSIBLE
from clozelab.remote.cache import Tell
from clozelab.remote.fetching import Wanted
from clozelab.text.store import manifest as manifests
from clozelab.text.store.manifest import NAME, PARENT

_TOKENS = ("train/ids.npy", "train/marks.npy")
_LARGE = 1 << 26  # bytes: smaller files are fetched before they are read
_STATE = re.compile(r"(.+/[^/?]+)@([0-9a-f]{4,64})(\?.*)?")


def parted(url: str) -> tuple[str, str]:
    """Split URL@FINGERPRINT into the URL of a corpus and the fingerprint, "" if there is none."""
    match = _STATE.fullmatch(url)
    return (match[1] + (match[3] or ""), match[2]) if match else (url, "")


def states(url: str) -> Iterator[dict[str, Any]]:
    """The manifest of a corpus, then its earlier ones, before text was added, newest first."""
    return (manifest for _, manifest, _ in _manifests(url))


def fetched(
    url: str,
    *,
    checked: bool = False,
    ahead: bool = False,
    tell: Tell = lambda done, total: None,
) -> Path:
    """The folder in the cache of a corpus or of an earlier state; `checked` compares checksums.

    With `ahead`, the tokens of train may be fetched while they are read, if by one process.
    """
    place, fingerprint = parted(url)
    known = list(_manifests(place))
    number = manifests.state([state for _, state, _ in known], fingerprint, place=shown(place))
    _, manifest, text = known[number]
    wanted = [_wanted_file(place, manifest, name) for name in manifest["files"]]
    key = f"corpus {manifests.fingerprint(manifest['files'])} {manifest.get('folder', '')}"
    single_process = int(os.environ.get("WORLD_SIZE", "1")) == 1 and POSSIBLE

    def later(file: Wanted) -> bool:
        return ahead and single_process and file.name.endswith(_TOKENS) and file.bytes > _LARGE

    folder = cache.entry(key, wanted, url=place, checked=checked, later=later, tell=tell)
    texts = {name: content for name, _, content in known[number + 1 :]}
    for name, content in {**texts, NAME: text}.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            files.write_text(folder / name, content.decode())
    return folder


def _manifests(url: str) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """The path, content and bytes of each manifest, newest first."""
    name, has_parent = NAME, True
    while has_parent:
        at = joined(url, name)
        try:
            text = access.content(at)
        except MissingError:
            if name == NAME:
                raise UserError(
                    f"{shown(url)}: is not a corpus; upload the folder that corpus build made"
                ) from None
            return
        manifest = manifests.parsed(text, shown(at))
        yield name, manifest, text
        has_parent = "parent" in manifest
        name = f"{manifest.get('folder', '')}/{PARENT}"


def _wanted_file(url: str, manifest: dict[str, Any], name: str) -> Wanted:
    """A file of a corpus to be fetched; its size and checksum are known from the manifest."""
    inside = f"{manifest['folder']}/{name}" if "folder" in manifest else name
    known, at = manifest["files"][name], joined(url, inside)
    file = RemoteFile(at, *access.system_of(at), known["bytes"], "")
    return Wanted(inside, file, known["sha256"])
