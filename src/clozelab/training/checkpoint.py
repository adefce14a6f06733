"""Checkpoints: safetensors and text in a folder, written whole or not at all.

checkpoints/step-00001200/ has model.safetensors, the texts that go with it (recipe, tokenizer),
state/ with what a run needs to go on (absent beside weights alone), and checksums.json, last. A run
whose weights are sharded has the moments of its optimisers in state/ as shards, a file a process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from clozelab import files
from clozelab.errors import UserError
from clozelab.files import write_tensors
from clozelab.training.world import shard_like

if TYPE_CHECKING:
    from clozelab.training.shards import Like

WEIGHTS = "model.safetensors"
TENSORS = "state/tensors.safetensors"
STATE = "state/state.json"
CHECKSUMS = "checksums.json"

Names = Mapping[nn.Parameter, str]


@dataclass(frozen=True)
class Checkpoint:
    """A folder that `open_checkpoint` or `newest` found whole."""

    path: Path
    step: int

    def weights(self, like: Like | None = None) -> dict[str, Tensor]:
        """The model's parameters by name; of one that is `like` a sharded tensor, only a shard."""
        return _read_shards(self.path, like) if like else load_file(self.path / WEIGHTS)

    def tensors(self, like: Like | None = None) -> dict[str, Tensor]:
        """What else the run carried: the optimisers' moments, a memory; nothing beside weights."""
        folder = (self.path / TENSORS).parent
        shard_files = [*folder.glob("*.safetensors")]
        if like or len(shard_files) > 1:
            return _read_shards(folder, like or (lambda name: None))
        return load_file(shard_files[0]) if shard_files else {}

    def state(self) -> dict[str, Any]:
        """Where the run stood; nothing beside weights alone."""
        file = self.path / STATE
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def text(self, name: str) -> str:
        """One of the texts that were saved with it."""
        return (self.path / name).read_text(encoding="utf-8")

    def verify(self) -> None:
        """Refuse it if a file is missing, cut short or changed since it was written."""
        for name, written in _checksums(self.path)["files"].items():
            file = self.path / name
            if not file.is_file():
                raise _damaged(self.path, f"{name} is missing")
            if file.stat().st_size != written["bytes"]:
                raise _damaged(self.path, f"{name} is not as long as it was")
            if files.sha256(file) != written["sha256"]:
                raise _damaged(self.path, f"{name} has changed")


def save(
    folder: Path,
    step: int,
    *,
    weights: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    texts: Mapping[str, str],
    keep: int,
) -> Path:
    """Write a checkpoint and remove the oldest but `keep` (0 keeps all); returns its folder."""
    part = begin(folder, step)
    try:
        write_tensors(part / WEIGHTS, weights)
        if tensors or state:
            (part / TENSORS).parent.mkdir()
            write_tensors(part / TENSORS, tensors)
        return finish(part, step, state=state, texts=texts, keep=keep)
    finally:
        discard(part)


def part_of(folder: Path, step: int) -> Path:
    """Where a checkpoint is written until it is whole."""
    return folder / f".{_name(step)}.part"


def begin(folder: Path, step: int) -> Path:
    """An empty folder for what becomes a checkpoint; several processes may write their tensors."""
    part = part_of(folder, step)
    discard(part)
    part.mkdir(parents=True)
    return part


def finish(
    part: Path, step: int, *, state: Mapping[str, Any], texts: Mapping[str, str], keep: int
) -> Path:
    """Make a checkpoint of what was begun and has its tensors; returns its folder.

    Until the last rename nothing that stood before is touched, so a full disk costs only this one.
    """
    folder = part.parent
    place, old = folder / _name(step), folder / f".{_name(step)}.old"
    _seal_files(part, step, state=state, texts=texts)
    if place.exists():  # a folder cannot replace another at once: `newest` knows the .old one
        discard(old)
        os.replace(place, old)
    os.replace(part, place)
    files.sync(folder)
    _tidy(folder, step, keep)
    return place


def discard(folder: Path) -> None:
    """Remove what is no checkpoint yet, or no longer."""
    shutil.rmtree(folder, ignore_errors=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder; refused if it is damaged."""
    if not path.is_dir():
        raise UserError(f"{path}: there is no such checkpoint; name a folder checkpoints/step-…")
    checkpoint = Checkpoint(path, int(_checksums(path)["step"]))
    checkpoint.verify()
    return checkpoint


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, and a sentence on each damaged one that was passed over."""
    passed: list[str] = []
    for _, path in sorted(_folders(folder), reverse=True):
        try:
            checkpoint = open_checkpoint(path)
        except UserError as error:
            passed.append(str(error))
        else:
            instead = f"{path.name} is used instead"
            return checkpoint, [f"{line.partition(';')[0]}; {instead}" for line in passed]
    return None, passed


def tidy(folder: Path, *, keep: int) -> None:
    """Do what is left of a save that was killed; a checkpoint that it had set aside is put back.

    As a save does, it leaves the `keep` newest (0 keeps all).
    """
    last, _ = newest(folder)
    if last is not None and last.path.name.startswith("."):
        os.replace(last.path, folder / _name(last.step))
    _tidy(folder, last.step if last else 0, keep)


def moments(optimisers: Sequence[Optimizer], names: Names) -> Iterator[tuple[str, Tensor]]:
    """What the optimisers remember, by optimiser, parameter and key; sharded as the parameter."""
    for number, optimiser in enumerate(optimisers):
        for parameter in _members(optimiser):
            for key, value in optimiser.state.get(parameter, {}).items():
                yield f"{number}/{names[parameter]}/{key}", value


def restore(optimisers: Sequence[Optimizer], names: Names, tensors: Mapping[str, Tensor]) -> None:
    """Give `moments` back to fresh optimisers; what is no optimiser's is left alone."""
    moments: dict[tuple[str, str], dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, owner, key = _parse(name)
        if number.isdigit():
            moments.setdefault((number, owner), {})[key] = value
    for count, optimiser in enumerate(optimisers):
        states = {}
        for place, parameter in enumerate(_members(optimiser)):
            mine = moments.pop((str(count), names[parameter]), {})
            states[place] = {key: _fitted(value, parameter, names) for key, value in mine.items()}
        state = optimiser.state_dict()
        state["state"] = {place: values for place, values in states.items() if values}
        optimiser.load_state_dict(state)  # which puts each on its parameter's device
    if moments:
        number, owner = min(moments)
        raise UserError(
            f"the checkpoint has moments of {owner} for optimiser {number}, which does not train"
            " it here: resume with the recipe of the run that wrote it"
        )


def owner_of(name: str) -> str:
    """The parameter that one of the `moments` belongs to."""
    return _parse(name)[1]


def _read_shards(folder: Path, like: Like) -> dict[str, Tensor]:
    """What `shards.read` reads, which a process that shards nothing does not import."""
    from clozelab.training.shards import read

    return read(folder, like)


def _parse(name: str) -> tuple[str, str, str]:
    """A moment's optimiser, parameter and key; what is no moment has no number."""
    number, _, rest = name.partition("/")
    owner, _, key = rest.rpartition("/")
    return number, owner, key


def _fitted(value: Tensor, parameter: nn.Parameter, names: Names) -> Tensor:
    """A moment laid out as its parameter is; a count of steps stays as it is."""
    if not value.ndim:
        return value.clone()
    if value.shape != parameter.shape:
        raise UserError(
            f"the checkpoint's moments of {names[parameter]} have the shape {[*value.shape]} and"
            f" the parameter {[*parameter.shape]}: resume with the recipe of the run that wrote it"
        )
    return shard_like(value.clone(), parameter)


def _members(optimiser: Optimizer) -> list[nn.Parameter]:
    """Its parameters in the order in which its state dictionary counts them."""
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _seal_files(
    folder: Path, step: int, *, state: Mapping[str, Any], texts: Mapping[str, str]
) -> None:
    """Add the texts; every file is on the disk before the checksums are."""
    written = dict(texts)
    if state:
        written[STATE] = json.dumps(state, indent=1, allow_nan=False)
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    saved = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in saved:
        files.sync(file)
    sums = {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": files.sha256(file),
        }
        for file in saved
    }
    listing = {"step": step, "files": sums, "seal": _seal(step, sums)}
    (folder / CHECKSUMS).write_text(json.dumps(listing, indent=1), encoding="utf-8")
    files.sync(folder / CHECKSUMS)
    files.sync(folder)


def _tidy(folder: Path, step: int, keep: int) -> None:
    """Remove what is older than the `keep` newest up to `step`, and what was left half done.

    Later steps stay: a run that passed over a damaged checkpoint writes before it, and over it
    when it gets there.
    """
    saved = sorted((number, path) for number, path in _folders(folder) if number <= step)
    for _, path in saved[:-keep] if keep else []:
        if not path.name.startswith("."):
            os.replace(path, folder / f".{path.name}.old")
    for path in folder.glob(".step-*"):
        discard(path)


def _folders(folder: Path) -> Iterator[tuple[int, Path]]:
    """Steps and their folders; one that a crash left set aside counts where none took its place."""
    for path in folder.glob("*") if folder.is_dir() else []:
        match = re.fullmatch(r"\.?(step-(\d+))(\.old)?", path.name)
        if match and (path.name == match[1] or not (folder / match[1]).exists()):
            yield int(match[2]), path


def _checksums(path: Path) -> dict[str, Any]:
    try:
        listing = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _damaged(path, f"{CHECKSUMS} is missing") from None
    except ValueError:
        raise _damaged(path, f"{CHECKSUMS} cannot be read") from None
    if not isinstance(listing, dict) or listing.get("seal") != _seal(
        listing.get("step"), listing.get("files")
    ):
        raise _damaged(path, f"{CHECKSUMS} has changed")
    return listing


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _seal(step: object, files: object) -> str:
    """The checksum of the checksums."""
    return sha256(json.dumps([step, files], sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(f"{path}: {problem}, so this checkpoint is damaged; go on from an earlier one")
