"""Checkpoints: safetensors and text in a folder, written completely or not at all.

checkpoints/step-00001200/ has model.safetensors, the texts that go with it (recipe, tokenizer),
state/ with what a run needs to resume (absent where only weights were saved), and checksums.json,
written last. A run with sharded weights saves its moments as shards, one file per process.
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

from safetensors import safe_open
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
    """A folder that `open_checkpoint` or `newest` has verified."""

    path: Path
    step: int

    def weights(self, like: Like | None = None) -> dict[str, Tensor]:
        """The model's parameters by name; of those that `like` shards, only this shard."""
        return _read_shards(self.path, like) if like else load_file(self.path / WEIGHTS)

    def tensors(self, like: Like | None = None) -> dict[str, Tensor]:
        """The optimisers' moments and a memory, by name; empty if only weights were saved."""
        folder = (self.path / TENSORS).parent
        shard_files = [*folder.glob("*.safetensors")]
        if like or len(shard_files) > 1:
            return _read_shards(folder, like or (lambda name: None))
        return load_file(shard_files[0]) if shard_files else {}

    def tensors_named(self, prefix: str) -> dict[str, Tensor]:
        """The tensors beside the moments whose names begin so, by the rest of each name."""
        file = self.path / TENSORS
        if not file.exists():
            return {}
        with safe_open(file, framework="pt") as saved:
            names = [name for name in saved.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): saved.get_tensor(name) for name in names}

    def state(self) -> dict[str, Any]:
        """The state of the run; empty if only weights were saved."""
        file = self.path / STATE
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def text(self, name: str) -> str:
        """The content of a text file that was saved with it."""
        return (self.path / name).read_text(encoding="utf-8")

    def verify(self) -> None:
        """Raise `UserError` if a file is missing, cut short or changed since it was written."""
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
    """Write a checkpoint, keep the `keep` newest (0 keeps all), and return its folder."""
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
    """The temporary folder of a checkpoint that is being written."""
    return folder / f".{_folder_name(step)}.part"


def begin(folder: Path, step: int) -> Path:
    """Create the temporary folder, into which several processes may write their tensors."""
    part = part_of(folder, step)
    discard(part)
    part.mkdir(parents=True)
    return part


def finish(
    part: Path, step: int, *, state: Mapping[str, Any], texts: Mapping[str, str], keep: int
) -> Path:
    """Make the temporary folder, which has its tensors, a checkpoint; returns its folder.

    Earlier checkpoints are untouched until the last rename: a full disk costs only this one.
    """
    folder = part.parent
    final, old = folder / _folder_name(step), folder / f".{_folder_name(step)}.old"
    _seal_files(part, step, state=state, texts=texts)
    if final.exists():  # a folder cannot replace another atomically: `newest` reads the .old one
        discard(old)
        os.replace(final, old)
    os.replace(part, final)
    files.sync(folder)
    _tidy(folder, step, keep)
    return final


def discard(folder: Path) -> None:
    """Remove a folder that is no checkpoint yet, or no longer."""
    shutil.rmtree(folder, ignore_errors=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder; raises `UserError` if it is damaged."""
    if not path.is_dir():
        raise UserError(f"{path}: does not exist; name a folder checkpoints/step-…")
    checkpoint = Checkpoint(path, int(_checksums(path)["step"]))
    checkpoint.verify()
    return checkpoint


def newest(folder: Path, *, before: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest undamaged checkpoint, and a sentence on each damaged one that was skipped.

    With `before`, it is one of an earlier step than that.
    """
    skipped: list[str] = []
    for step, path in sorted(_find_folders(folder), reverse=True):
        if before is not None and step >= before:
            continue
        try:
            checkpoint = open_checkpoint(path)
        except UserError as error:
            skipped.append(str(error))
        else:
            instead = f"{path.name} is used instead"
            return checkpoint, [f"{line.partition(';')[0]}; {instead}" for line in skipped]
    return None, [f"{line.partition(';')[0]}; it is skipped" for line in skipped]


def tidy(folder: Path, *, keep: int) -> None:
    """Finish a save that was killed; a checkpoint that it had renamed to .old is renamed back.

    As after a save, the `keep` newest are left (0 keeps all).
    """
    last, _ = newest(folder)
    if last is not None and last.path.name.startswith("."):
        os.replace(last.path, folder / _folder_name(last.step))
    _tidy(folder, last.step if last else 0, keep)


def moments(optimisers: Sequence[Optimizer], names: Names) -> Iterator[tuple[str, Tensor]]:
    """Yield the optimisers' state by optimiser, parameter and key; sharded as the parameter."""
    for number, optimiser in enumerate(optimisers):
        for parameter in _parameters(optimiser):
            for key, value in optimiser.state.get(parameter, {}).items():
                yield f"{number}/{names[parameter]}/{key}", value


def restore(optimisers: Sequence[Optimizer], names: Names, tensors: Mapping[str, Tensor]) -> None:
    """Load `moments` into fresh optimisers; tensors that belong to none are ignored."""
    moments: dict[tuple[str, str], dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, owner, key = _parse_name(name)
        if number.isdigit():
            moments.setdefault((number, owner), {})[key] = value
    for count, optimiser in enumerate(optimisers):
        states = {}
        for index, parameter in enumerate(_parameters(optimiser)):
            saved = moments.pop((str(count), names[parameter]), {})
            states[index] = {k: _checked_moment(v, parameter, names) for k, v in saved.items()}
        state = optimiser.state_dict()
        state["state"] = {index: values for index, values in states.items() if values}
        optimiser.load_state_dict(state)  # which puts each on its parameter's device
    if moments:
        number, owner = min(moments)
        raise UserError(
            f"the checkpoint has moments of {owner} for optimiser {number}, which does not"
            " train it here; resume with the recipe of the run that wrote it"
        )


def owner_of(name: str) -> str:
    """The parameter that one of the `moments` belongs to."""
    return _parse_name(name)[1]


def _read_shards(folder: Path, like: Like) -> dict[str, Tensor]:
    """Call `shards.read`, imported only here since the import takes a second."""
    from clozelab.training.shards import read

    return read(folder, like)


def _parse_name(name: str) -> tuple[str, str, str]:
    """The optimiser, parameter and key in the name of a moment; other names have no number."""
    number, _, rest = name.partition("/")
    owner, _, key = rest.rpartition("/")
    return number, owner, key


def _checked_moment(value: Tensor, parameter: nn.Parameter, names: Names) -> Tensor:
    """A moment, checked, and sharded as its parameter is; a count of steps is never sharded.

    It has its parameter's shape, or one value for each row.
    """
    if not value.ndim:
        return value.clone()
    if value.shape not in (parameter.shape, (len(parameter), 1)):
        raise UserError(
            f"the checkpoint's moments of {names[parameter]} have the shape {[*value.shape]} and"
            f" the parameter {[*parameter.shape]}: resume with the recipe of the run that wrote it"
        )
    return shard_like(value.clone(), parameter)


def _parameters(optimiser: Optimizer) -> list[nn.Parameter]:
    """The optimiser's parameters in the order of its state dictionary."""
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _seal_files(
    folder: Path, step: int, *, state: Mapping[str, Any], texts: Mapping[str, str]
) -> None:
    """Write the texts, sync every file to the disk, then write the checksums."""
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
    """Remove checkpoints older than the `keep` newest up to `step`, and temporary folders.

    Later steps stay: a run that skipped a damaged checkpoint resumes from an earlier one, and
    replaces the damaged one when it gets there.
    """
    saved = sorted((number, path) for number, path in _find_folders(folder) if number <= step)
    for _, path in saved[:-keep] if keep else []:
        if not path.name.startswith("."):
            os.replace(path, folder / f".{path.name}.old")
    for path in folder.glob(".step-*"):
        discard(path)


def _find_folders(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield steps and their folders; an .old one counts if a crash left nothing in its place."""
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


def _folder_name(step: int) -> str:
    return f"step-{step:08d}"


def _seal(step: object, files: object) -> str:
    """The hash of the step and the checksums."""
    return sha256(json.dumps([step, files], sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path}: {problem}, so this checkpoint is damaged; use another, or restore it from a copy"
    )
