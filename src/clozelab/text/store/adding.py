"""A corpus that text was added to: its files lie in a folder of their own inside it, and one file,
the manifest, is replaced to say so. What it was before stays there, and can still be opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clozelab import files
from clozelab.errors import UserError
from clozelab.text.store.manifest import NAME, PARENT, render
from clozelab.text.store.shards import ShardPlan

_KIND = "addition"


def check_addition(out: Path, parent: dict[str, Any]) -> None:
    """Refuse, before any work is done, where something else stands in the place of the files."""
    folder = out / _folder(parent)
    if folder.exists() and files.kind_of(folder) != _KIND:
        raise UserError(f"{folder}: is in the way of what is to be added; move it elsewhere")


def _folder(parent: dict[str, Any]) -> str:
    """The folder of the files of a corpus when text has been added."""
    return f"added-{len(parent.get('added', [])) + 1}"


def added(parent: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a corpus that text was added to, from that which the new text would have."""
    additions = parent.get("added", [])
    examples = {**parent.get("examples", {}), **new.get("examples", {})}
    return {
        **parent,
        "splits": {
            split: _sum(parent["splits"][split], new["splits"][split]) for split in new["splits"]
        },
        "units": _sum(parent["units"], new["units"]),
        "inputs": [*parent["inputs"], *new["inputs"]],
        "notes": dict(sorted(_sum(parent["notes"], new["notes"]).items())),
        "held_out": _sum(parent["held_out"], new["held_out"]),
        "fingerprint": new["fingerprint"],
        **({"examples": examples} if examples else {}),
        "parent": parent["fingerprint"],
        "folder": _folder(parent),
        "added": [*additions, {name: new[name] for name in ("inputs", "reading", "options")}],
        "files": new["files"],
    }


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in [*first, *second]}


def publish_addition(out: Path, plan: ShardPlan, manifest: dict[str, Any]) -> None:
    """Move the finished files into place as one folder; then the manifest makes them the corpus."""
    folder = out / manifest["folder"]
    files.remove_folder(folder)  # of an addition that was killed here
    files.mark(plan.ready, _KIND)
    files.write_text(plan.ready / PARENT, (out / NAME).read_text(encoding="utf-8"))
    for file in sorted(plan.ready.rglob("*")):
        files.sync(file)
    plan.ready.rename(folder)
    files.sync(out)
    files.write_text(out / NAME, render(manifest))
