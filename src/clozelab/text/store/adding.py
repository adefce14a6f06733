"""Adding text to a corpus: the new files are in a folder of their own inside it, and replacing the
manifest makes them the corpus. Its earlier state remains, and can still be opened.
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
    """Refuse, before any work is done, if something else is in the place of the new folder."""
    folder = out / _next_folder(parent)
    if folder.exists() and files.kind_of(folder) != _KIND:
        raise UserError(f"{folder}: already exists where the new text must go; move it elsewhere")


def _next_folder(parent: dict[str, Any]) -> str:
    """The name of the folder for the next addition."""
    return f"added-{len(parent.get('added', [])) + 1}"


def added(parent: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a corpus after an addition, from its own and that of the new files.

    Their arrays have all of the text; what was counted is of the new text alone.
    """
    additions = parent.get("added", [])
    examples = {**parent.get("examples", {}), **new.get("examples", {})}
    return {
        **parent,
        "splits": new["splits"],
        "units": _sum(parent["units"], new["units"]),
        "inputs": [*parent["inputs"], *new["inputs"]],
        "notes": dict(sorted(_sum(parent["notes"], new["notes"]).items())),
        "held_out": _sum(parent["held_out"], new["held_out"]),
        "fingerprint": new["fingerprint"],
        **({"examples": examples} if examples else {}),
        "parent": parent["fingerprint"],
        "folder": _next_folder(parent),
        "added": [*additions, {name: new[name] for name in ("inputs", "reading", "options")}],
        "files": new["files"],
    }


def _sum(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in [*first, *second]}


def publish_addition(out: Path, plan: ShardPlan, manifest: dict[str, Any]) -> None:
    """Move the finished files into place as one folder, then replace the manifest."""
    folder = out / manifest["folder"]
    files.remove_folder(folder)  # left by an addition that was killed here
    files.mark(plan.ready, _KIND)
    files.write_text(plan.ready / PARENT, (out / NAME).read_text(encoding="utf-8"))
    for file in sorted(plan.ready.rglob("*")):
        files.sync(file)
    plan.ready.rename(folder)
    files.sync(out)
    files.write_text(out / NAME, render(manifest))
