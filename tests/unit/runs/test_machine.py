"""What a machine decides where the user does not say: kernels, graphs, and what is fused."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clozelab.config.recipe import read
from clozelab.errors import UserError
from clozelab.models.build import build
from clozelab.runs.machine import Machine, compile_model


def test_kernels_are_for_half_precision_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not Machine().fuses(gpu, compiled=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert Machine().fuses(gpu, compiled=True)
    assert Machine(kernels=True).fuses(gpu, compiled=False)
    assert not Machine().fuses(gpu, compiled=False)
    for machine in Machine(kernels=False), Machine(precision="fp32"), Machine(shard=True):
        assert not machine.fuses(gpu, compiled=True)
    assert not Machine().fuses(cpu, compiled=True)
    with pytest.raises(UserError, match="--kernels"):
        Machine(kernels=True).fuses(cpu, compiled=True)


def test_graphs_are_as_told_or_as_usual_for_what_is_compiled_whole() -> None:
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    bert, xlnet = read("bert", size="small"), read("xlnet", size="small")

    def replays(graphs: bool | None, device: torch.device, recipe: Any = bert, **more: Any) -> bool:
        settings = {"compiled": True, "usual": True} | more
        return Machine(graphs=graphs).replays(device, recipe, **settings)

    assert replays(None, gpu) and replays(True, gpu, usual=False)
    assert not replays(None, gpu, usual=False) and not replays(False, gpu)
    assert not replays(None, cpu) and not replays(None, gpu, xlnet)
    for wrong in (cpu, bert, True), (gpu, xlnet, True), (gpu, bert, False):
        with pytest.raises(UserError, match="--graphs"):
            replays(True, *wrong[:2], compiled=wrong[2])


def test_placing_a_model_fuses_its_encoder_and_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(read("bert", size="tiny"), 60, seed=0)
    monkeypatch.setattr(Machine, "fuses", lambda *_, **__: True)
    Machine().place((model,), torch.device("cpu"), compiled=True)
    fused = {type(part).__name__ for part in model.modules() if getattr(part, "fused", False)}
    assert fused == {"Stack", "VocabularyHead"}


def test_a_micro_batch_is_of_a_process_own_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What other processes have taken of their parts leaves this one's as it is."""
    recipe, device, total = read("roberta", size="6x512"), torch.device("cuda"), 120 << 30

    def tokens(free: int, sharers: int, *, reserved: int = 0, used: int = 0) -> int:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, total))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: used)
        return Machine(sharers=sharers).tokens(device, recipe)

    early, late = tokens(total, 8), tokens(total // 8, 8)
    assert early == late < tokens(total, 1)
    assert tokens(total // 16, 8) <= late // 2  # there is no more than what is free
    # What an earlier run of this process has left in its cache is free to it.
    half = total // 16
    assert tokens(half, 8, reserved=half) == late > tokens(half, 8, reserved=half, used=half)


class Small(nn.Module):
    """A model of any width, as `compile_model` takes one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, 1)
        self.encoder.shape = SimpleNamespace(compiles="whole")  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """One number for each row."""
        y: Tensor = self.encoder(x)
        return y


def test_a_process_compiles_one_model_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a study has many, and torch's limit on graphs is for all models of a class."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    for width in range(1, 81):
        compile_model(model := Small(width))
        assert model(torch.ones(2, width)).shape == (2, 1)
    torch.compiler.reset()
