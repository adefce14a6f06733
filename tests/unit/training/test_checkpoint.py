"""Checkpoints: whole or not at all, damage told and passed over, and optimisers that go on."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Optimizer

from clozelab.errors import UserError
from clozelab.training import PARTS, checkpoint, shards
from clozelab.training.checkpoint import moments, newest, open_checkpoint, restore, save

torch.set_num_threads(1)

TEXTS = {"recipe.toml": 'name = "bert"\n', "tokenizer.json": '{"a": "ü"}'}
FILES = ("model.safetensors", "state/tensors.safetensors", "state/state.json", *TEXTS)


def tensors(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(50, 4, generator=draw) for name in ("encoder.a", "heads.b")}


def write(folder: Path, step: int, *, keep: int = 0, **other: Any) -> Path:
    """A checkpoint whose every part depends on the step."""
    contents: dict[str, Any] = {
        "weights": tensors(step),
        "tensors": {"memory": tensors(step + 1)["heads.b"]},
        "state": {"step": step, "cursor": [step, 3], "seed": 2**63 + step},
        "texts": TEXTS,
    }
    return save(folder, step, **(contents | other), keep=keep)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- writing and reading ---


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoints", 1200)
    assert path == tmp_path / "checkpoints" / "step-00001200"
    opened = open_checkpoint(path)
    assert opened.step == 1200
    assert same(opened.weights(), tensors(1200))
    assert same(opened.tensors(), {"memory": tensors(1201)["heads.b"]})
    assert same(opened.tensors_named("mem"), {"ory": tensors(1201)["heads.b"]})
    assert not opened.tensors_named("best.")
    assert opened.state() == {"step": 1200, "cursor": [1200, 3], "seed": 2**63 + 1200}
    assert {name: opened.text(name) for name in TEXTS} == TEXTS
    listing = json.loads((path / "checksums.json").read_text())["files"]
    assert sorted(listing) == sorted(FILES)
    assert listed(path) == sorted([*TEXTS, "checksums.json", "model.safetensors", "state"])


def test_weights_alone_have_no_state(tmp_path: Path) -> None:
    opened = open_checkpoint(write(tmp_path, 0, tensors={}, state={}))
    assert not (opened.path / "state").exists()
    assert (opened.tensors(), opened.state(), opened.step) == ({}, {}, 0)
    assert same(opened.weights(), tensors(0))


def test_a_moved_checkpoint_knows_its_step(tmp_path: Path) -> None:
    moved = write(tmp_path, 7).rename(tmp_path / "best")
    assert open_checkpoint(moved).step == 7


def test_views_and_parameters_are_saved_as_they_look(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.arange(12.0).view(3, 4))
    opened = open_checkpoint(
        write(tmp_path, 1, weights={"turned": weight.t(), "kept": weight[1:].clone()})
    )
    assert opened.weights()["turned"].tolist() == weight.t().tolist()


def test_a_folder_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert newest(tmp_path / "nowhere") == (None, [])
    (tmp_path / "step-abc").mkdir()
    assert newest(tmp_path) == (None, [])
    with pytest.raises(UserError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")


# --- damage ---


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 5)


def flip(file: Path) -> None:
    held = bytearray(file.read_bytes())
    held[-3] ^= 1
    file.write_bytes(held)


def lose(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("harm", [cut, flip, lose])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_told_and_passed_over(tmp_path: Path, name: str, harm: Any) -> None:
    for step in (9, 10, 100):
        write(tmp_path, step)
    harm(tmp_path / "step-00000100" / name)
    newest_checkpoint, passed = newest(tmp_path)
    assert newest_checkpoint is not None and newest_checkpoint.step == 10
    assert same(newest_checkpoint.weights(), tensors(10))
    assert len(passed) == 1 and "step-00000100" in passed[0] and name in passed[0]
    with pytest.raises(UserError, match=name):
        open_checkpoint(tmp_path / "step-00000100")
    with pytest.raises(UserError, match=name):
        checkpoint.Checkpoint(tmp_path / "step-00000100", 100).verify()


@pytest.mark.parametrize("text", [None, "", '{"files"', "[]", "{}"])
def test_a_checkpoint_without_readable_checksums_is_damaged(
    tmp_path: Path, text: str | None
) -> None:
    write(tmp_path, 1)
    sums = write(tmp_path, 2) / "checksums.json"
    sums.unlink() if text is None else sums.write_text(text)
    newest_checkpoint, passed = newest(tmp_path)
    assert newest_checkpoint is not None and newest_checkpoint.step == 1
    assert len(passed) == 1 and "checksums.json" in passed[0]


def test_a_checksum_that_does_not_match_is_damage(tmp_path: Path) -> None:
    sums = write(tmp_path, 1) / "checksums.json"
    held = json.loads(sums.read_text())
    held["files"]["recipe.toml"]["sha256"] = "0" * 64
    held["seal"] = checkpoint._seal(1, held["files"])
    sums.write_text(json.dumps(held))
    newest_checkpoint, passed = newest(tmp_path)
    assert newest_checkpoint is None and "recipe.toml" in passed[0]


def test_no_flipped_bit_of_the_checksums_passes_unseen(tmp_path: Path) -> None:
    sums = write(tmp_path, 12) / "checksums.json"
    whole = sums.read_bytes()
    for place in range(len(whole)):
        sums.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        newest_checkpoint, passed = newest(tmp_path)
        blank = whole[place : place + 1].isspace()
        assert blank or (newest_checkpoint is None and "checksums.json" in passed[0]), place
        assert newest_checkpoint is None or newest_checkpoint.step == 12


# --- crashes ---


def test_a_half_written_folder_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    write(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.part")
    (tmp_path / ".step-00000002.part" / "checksums.json").unlink()
    newest_checkpoint, passed = newest(tmp_path)
    assert newest_checkpoint is not None and (newest_checkpoint.step, passed) == (1, [])
    write(tmp_path, 2)
    assert listed(tmp_path) == ["step-00000001", "step-00000002"]
    assert open_checkpoint(tmp_path / "step-00000002").step == 2


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_crash_at_any_rename_leaves_a_whole_checkpoint_of_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The machine stops before, between or after the two renames: nothing is tidied."""
    write(tmp_path, 5)
    real, done = os.replace, []

    def replace(source: Path, target: Path) -> None:
        if len(done) == before:
            raise SystemExit
        done.append(target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "replace", replace)
        patch.setattr(checkpoint, "discard", lambda folder: None)
        if before < 2:
            with pytest.raises(SystemExit):
                write(tmp_path, 5, weights=tensors(99))
        else:
            write(tmp_path, 5, weights=tensors(99))
    newest_checkpoint, passed = newest(tmp_path)
    assert newest_checkpoint is not None and (newest_checkpoint.step, passed) == (5, [])
    assert same(newest_checkpoint.weights(), tensors(99 if before == 2 else 5))
    write(tmp_path, 6)
    open_checkpoint(tmp_path / "step-00000006")
    assert not [name for name in listed(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("fails", ["save_file", "write_text", "fsync"])
def test_a_full_disk_leaves_earlier_checkpoints_whole_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    write(tmp_path, 1)
    full = OSError(errno.ENOSPC, "No space left on device")
    if fails == "save_file":
        full = SafetensorError("I/O error: No space left on device (os error 28)")  # type: ignore[assignment]

    def fail(*_: object, **__: object) -> None:
        raise full

    where = {"save_file": safetensors.torch, "write_text": Path, "fsync": os}[fails]
    with monkeypatch.context() as patch:
        patch.setattr(where, fails, fail)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, 2, keep=1)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, 1, keep=1)
    assert listed(tmp_path) == ["step-00000001"]
    assert same(open_checkpoint(tmp_path / "step-00000001").weights(), tensors(1))


# --- keeping ---


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (2, 10, 9, 100):
        write(tmp_path, step, keep=2)
        assert open_checkpoint(tmp_path / f"step-{step:08d}").step == step
    assert listed(tmp_path) == ["step-00000010", "step-00000100"]
    for step in (101, 102, 103):
        write(tmp_path, step, keep=0)
    assert len(listed(tmp_path)) == 5


def test_writing_before_a_damaged_checkpoint_keeps_what_is_written(tmp_path: Path) -> None:
    write(tmp_path, 10)
    flip(write(tmp_path, 20) / "model.safetensors")
    write(tmp_path, 15, keep=1)
    newest_checkpoint, passed = newest(tmp_path)
    assert newest_checkpoint is not None and newest_checkpoint.step == 15 and len(passed) == 1
    write(tmp_path, 20, keep=1)
    newest_checkpoint, passed = newest(tmp_path)
    assert newest_checkpoint is not None and (newest_checkpoint.step, passed) == (20, [])
    assert listed(tmp_path) == ["step-00000020"]


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    write(tmp_path, 3)
    write(tmp_path, 3, weights=tensors(77), keep=1)
    assert listed(tmp_path) == ["step-00000003"]
    assert same(open_checkpoint(tmp_path / "step-00000003").weights(), tensors(77))


# --- optimisers ---


class Model(nn.Module):
    """Something with tables, matrices, biases and norms under the names models have."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(11, 6)
        self.ffn = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
        self.norm = nn.LayerNorm(6)
        self.idle = nn.Parameter(torch.ones(3))  # never has a gradient

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.words(ids)
        for layer in self.ffn:
            x = x + torch.tanh(layer(x))
        return (self.norm(x) @ self.words.weight.t()).logsumexp(-1).square().sum()


def names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def train(model: nn.Module, built: list[Optimizer], steps: range) -> None:
    for step in steps:
        ids = torch.arange(step, step + 5) % 11
        model(ids).backward()
        for optimiser in built:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * (1 - step / 10)
            optimiser.step()
            optimiser.zero_grad()


@pytest.mark.parametrize("name", PARTS)
def test_three_steps_saved_and_three_more_are_six(tmp_path: Path, name: str) -> None:
    part = PARTS[name](learning_rate=1e-2)
    straight = Model(0)
    train(straight, part.build(straight.named_parameters()), range(6))

    first = Model(0)
    built = part.build(first.named_parameters())
    train(first, built, range(3))
    save(
        tmp_path,
        3,
        weights=first.state_dict(),
        tensors=dict(moments(built, names(first))) | {"memory": torch.ones(2)},
        state={},
        texts={},
        keep=1,
    )
    opened = open_checkpoint(tmp_path / "step-00000003")

    second = Model(1)
    second.load_state_dict(opened.weights())
    built = part.build(second.named_parameters())
    restore(built, names(second), opened.tensors())
    train(second, built, range(3, 6))
    assert same(second.state_dict(), straight.state_dict())
    fresh = Model(1)  # and it is the moments that did it
    fresh.load_state_dict(opened.weights())
    train(fresh, part.build(fresh.named_parameters()), range(3, 6))
    assert not same(fresh.state_dict(), straight.state_dict())


def test_moments_are_named_by_optimiser_parameter_and_key() -> None:
    model = Model(0)
    built = PARTS["muon"](learning_rate=1e-2).build(model.named_parameters())
    train(model, built, range(1))
    by_name = dict(moments(built, names(model)))
    assert "0/ffn.1.weight/momentum_buffer" in by_name
    assert {"1/words.weight/exp_avg", "1/words.weight/exp_avg_sq", "1/words.weight/step"} <= {
        *by_name
    }
    assert not any("idle" in name for name in by_name)


def test_restored_moments_are_copies() -> None:
    model = Model(0)
    built = PARTS["lamb"](learning_rate=1e-2).build(model.named_parameters())
    train(model, built, range(1))
    saved = {name: value.clone() for name, value in moments(built, names(model))}
    copies = {name: value.clone() for name, value in saved.items()}
    restore(built, names(model), copies)
    train(model, built, range(1, 3))
    assert same(copies, saved)


def test_moments_of_another_model_are_refused() -> None:
    model = Model(0)
    built = PARTS["adamw"](learning_rate=1e-2).build(model.named_parameters())
    with pytest.raises(UserError, match=r"moments of other\.weight for optimiser 0"):
        restore(built, names(model), {"0/other.weight/exp_avg": torch.zeros(2, 2)})
    with pytest.raises(UserError, match=r"moments of words\.weight for optimiser 1"):
        restore(built, names(model), {"1/words.weight/exp_avg": torch.zeros(11, 6)})
    with pytest.raises(UserError, match=r"words.weight have the shape \[2, 2\]"):
        restore(built, names(model), {"0/words.weight/exp_avg": torch.zeros(2, 2)})


@pytest.fixture
def mesh() -> Iterator[distributed.device_mesh.DeviceMesh]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("whole", [False, True])
def test_sharded_moments_are_sharded_again_or_whole(
    name: str, whole: bool, mesh: distributed.device_mesh.DeviceMesh, tmp_path: Path
) -> None:
    weight = nn.Parameter(distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)]))
    called = {weight: "ffn.0.weight"}
    built = PARTS[name](learning_rate=0.1).build([("ffn.0.weight", weight)])
    weight.grad = distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])
    built[0].step()
    shards.write(tmp_path, dict(moments(built, called)))
    by_name = shards.read(tmp_path, lambda _: None if whole else weight)
    assert any(isinstance(value, DTensor) for value in by_name.values()) is not whole
    fresh = PARTS[name](learning_rate=0.1).build([("ffn.0.weight", weight)])
    restore(fresh, called, by_name)
    for key, value in built[0].state[weight].items():
        again = fresh[0].state[weight][key]
        assert type(again) is type(value)
        if isinstance(value, DTensor):
            assert again.placements == value.placements
            value, again = value.full_tensor(), again.full_tensor()
        assert torch.equal(value, again)


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize("write", [shards.write, shards.write_joined])
def test_a_full_disk_under_a_shard_is_told_as_such(
    write: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch wraps what went wrong in any process; whoever saves must know an OSError by itself."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.filesystem._write_files_from_queue", fail)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "model.safetensors", tensors(1))


@pytest.mark.usefixtures("mesh")
def test_shards_are_joined_into_one_file_and_leave_nothing_else(tmp_path: Path) -> None:
    shards.write_joined(tmp_path / "model.safetensors", tensors(3))
    assert listed(tmp_path) == ["model.safetensors"]
    assert same(safetensors.torch.load_file(tmp_path / "model.safetensors"), tensors(3))


@pytest.mark.usefixtures("mesh")
def test_a_folder_that_lacks_a_shard_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where processes of several machines write to disks of their own."""
    cut = {name: tensor[:20] for name, tensor in tensors(3).items()}
    real = shards.save
    monkeypatch.setattr(shards, "save", lambda _, **more: real(cut, **more))
    with pytest.raises(UserError, match="on a disk that all processes share"):
        shards.write_joined(tmp_path / "model.safetensors", tensors(3))
    assert not (tmp_path / "model.safetensors").exists()
