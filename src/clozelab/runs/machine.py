"""The settings that a recipe leaves open: device, precision, micro-batch, workers, compilation."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch

from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.contracts import MOST_CHOSEN, ObjectivePart
from clozelab.errors import UserError
from clozelab.runs.options import MachineOptions

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Bytes of activations per token, layer and hidden unit: arXiv:2205.05198 counts 34 in half
# precision, without attention scores. A micro-batch that does not fit is halved in any case.
_BYTES_A_TOKEN = 40
# More than any process compiles. torch counts the graphs of all models of a class, also of those
# that are gone, and a model that must be one graph fails at the limit.
_MOST_GRAPHS = 4096


@dataclass(frozen=True)
class Machine(MachineOptions):
    """The choices of a user; None: what suits the device, or what a resumed run had."""

    micro_tokens: int | None = None  # the micro-batch in tokens, as a run recorded it
    shard: bool | None = None  # share the weights out over processes
    sharers: int = 1  # processes that have the device together

    @property
    def threads(self) -> int:
        """The number of threads that prepare steps, or have processes prepare them."""
        return 1 if self.workers is None else self.workers

    def recalled(
        self, facts: Mapping[str, Any], device: torch.device, *, recipe: Recipe, processes: int
    ) -> Machine:
        """These choices, completed by those that a run recorded, as far as they work here.

        What depends on memory and compiler is chosen again on another kind of device.
        """
        known = facts if str(facts.get("device", "")).startswith(device.type) else {}
        recorded: dict[str, Any] = {name: known.get(name) for name in ("graphs", "kernels")}
        recorded |= {name: facts.get(name) for name in ("precision", "workers", "recompute")}
        recorded["compile"] = known.get("compiled")
        recorded["shard"] = facts.get("sharded") if processes > 1 else False
        if recorded["precision"] == "fp16" and device.type != "cuda":
            recorded["precision"] = None
        unset = {name: value for name, value in recorded.items() if getattr(self, name) is None}
        machine = replace(self, micro_tokens=known.get("micro_tokens"), **unset)
        if unset.get("kernels") and not machine.can_fuse(device):
            machine = replace(machine, kernels=None)
        compiled = machine.compiles(device, recipe)
        if unset.get("graphs") and not machine.can_replay(device, compiled=compiled):
            machine = replace(machine, graphs=None)
        return machine

    def precision_on(self, device: torch.device) -> str:
        """The precision that was asked for, or bf16 on a GPU and fp32 on a CPU."""
        if self.precision == "fp16" and device.type != "cuda":
            raise UserError("--precision fp16: needs a GPU; use bf16 or fp32 on a CPU")
        return self.precision or ("bf16" if device.type == "cuda" else "fp32")

    def place(self, models: Sequence[Any], device: torch.device, *, compiled: bool) -> None:
        """Move models to the device and set their precision; only the first one recomputes."""
        for number, model in enumerate(models):
            for part in model.to(device).modules():
                if part is model.encoder or hasattr(part, "precision"):  # an objective's, too
                    part.precision = PRECISIONS[self.precision_on(device)]
                    part.recompute = bool(self.recompute) and number == 0
                if hasattr(part, "fused"):
                    part.fused = self.fuses(device, compiled=compiled)

    def fuses(self, device: torch.device, *, compiled: bool) -> bool:
        """Whether layers and heads use our kernels: as asked, or in a compiled model that can.

        They need half precision on a GPU with Triton, NVIDIA's since Ampere, and weights that are
        not sharded, since they bypass the modules that would gather those.
        """
        if self.kernels is None:
            able = compiled and self.can_fuse(device) and torch.version.hip is None
            return able and torch.cuda.get_device_capability(device) >= (8, 0)
        if self.kernels and not self.can_fuse(device):
            suits = self._suits_kernels(device)
            kind = "needs unsharded weights in half precision on a GPU; leave it out"
            needs = "needs Triton; pip install triton, or leave it out"
            raise UserError(f"--kernels: {needs if suits else kind}")
        return self.kernels

    def can_fuse(self, device: torch.device) -> bool:
        """Whether our kernels work here."""
        return self._suits_kernels(device) and find_spec("triton") is not None

    def _suits_kernels(self, device: torch.device) -> bool:
        half = device.type == "cuda" and self.precision_on(device) != "fp32"
        return half and not self.shard

    def compiles(self, device: torch.device, recipe: Recipe) -> bool:
        """Whether the model is compiled: as asked, or on a GPU if it makes one graph.

        Recurrent encoders and sharded weights do not make one graph.
        """
        if self.compile is not None:
            return self.compile
        one_graph = not self.shard and not recipe.encoder.recurrent
        return device.type == "cuda" and one_graph

    def replays(self, device: torch.device, recipe: Recipe, *, compiled: bool, usual: bool) -> bool:
        """Whether steps are replayed as CUDA graphs: as asked, or as is `usual`.

        An encoder whose layers are compiled one by one cannot be.
        """
        can = self.can_replay(device, compiled=compiled) and recipe.encoder.compiles != "layers"
        if self.graphs and not can:
            raise UserError(
                "--graphs: needs a fully compiled model on a GPU; give --compile there, or"
                " leave it out"
            )
        return can and (usual if self.graphs is None else self.graphs)

    def can_replay(self, device: torch.device, *, compiled: bool) -> bool:
        """Whether a model is compiled as one graph on a GPU."""
        return compiled and not self.shard and device.type == "cuda"

    def tokens(self, device: torch.device, recipe: Recipe) -> int:
        """The maximum tokens of a micro-batch: as asked, or as memory should allow."""
        length = recipe.blocks.length
        if self.micro_batch is not None:
            return self.micro_batch * length
        if self.micro_tokens is not None:
            return self.micro_tokens
        if device.type == "cpu":
            return max(length, 8192)
        free, total = torch.cuda.mem_get_info(device)
        # What this process has reserved and does not use, it can use again.
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        encoder = recipe.encoder
        token_bytes = _BYTES_A_TOKEN * encoder.layers * encoder.hidden_size + 1
        # Its part of the memory, whatever the others have taken of theirs by now; half of it, since
        # the rest is for gradients, logits and fragmentation.
        tokens = int(0.5 * min(free, total / self.sharers) / token_bytes) // length * length
        return max(length, min(tokens, 131_072))


def compile_model(model: Any, *, whole: bool = True, replays: bool = False) -> None:
    """Compile a model as one graph, XLNet by layers; if not `whole`, the graph may break.

    A few shapes (a fuller step, the first step of a stream) have graphs of their own.
    """
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # advice to its developers
    torch._dynamo.config.recompile_limit = _MOST_GRAPHS
    torch._dynamo.config.accumulated_recompile_limit = _MOST_GRAPHS
    part = model.encoder if model.encoder.shape.compiles == "layers" else model
    mode = "reduce-overhead" if replays else None
    part.compile(fullgraph=whole, dynamic=False, mode=mode)


def facts(device: torch.device) -> dict[str, Any]:
    """The facts about the machine that torch knows."""
    gpu = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "threads": None if gpu else torch.get_num_threads(),
    }


def recorded_device(facts: Mapping[str, Any]) -> str | None:
    """The type of device that a run was on, if this machine has one."""
    kind = str(facts.get("device", "")).partition(":")[0]
    return kind if kind == "cpu" or (kind == "cuda" and torch.cuda.is_available()) else None


def flops_a_token(
    recipe: Recipe, vocabulary: int, *, length: float, predicted: Mapping[str, float]
) -> float:
    """Useful operations for each token of a step, forward and backward.

    `length` is the length of a token's context, `predicted` the share of tokens that each objective
    predicts: of the recipe, or of the student of this teacher. Without any, all states are read.
    """
    encoder, read = recipe.encoder, share_read(recipe, predicted)
    flops = encoder.training_flops(length, **({} if read is None else {"read": read}))
    if encoder.reads == "words":  # whose softmax is sampled
        return flops
    for name, part in _parts(recipe, predicted).items():
        share = predicted[name]
        flops += part.training_flops(encoder, vocabulary, length=length, predicted=share)
    return flops


def share_read(recipe: Recipe, predicted: Mapping[str, float]) -> float | None:
    """The share of tokens whose last states are computed, since a head reads them; None: all."""
    parts = _parts(recipe, predicted)
    columns = [part.reads for part in parts.values()]
    if "chosen_tokens" not in recipe.encoder.provides or not columns or None in columns:
        return None
    read = sum(predicted[name] * len(part.reads or ()) for name, part in parts.items())
    return read if read <= MOST_CHOSEN else None


def _parts(recipe: Recipe, predicted: Mapping[str, float]) -> dict[str, ObjectivePart]:
    """The objectives by name; for one that the recipe lacks, the base class."""
    parts = {slots.use("objectives", part): part for part in recipe.objectives}
    return {name: parts.get(name, ObjectivePart()) for name in predicted}


def peak(device: torch.device, precision: str) -> float | None:
    """The operations a second of a large matrix product, measured; None on a CPU.

    There the measurement would delay the start of every run.
    """
    return product(device, precision) if device.type == "cuda" else None


def product(device: torch.device, precision: str) -> float:
    """The operations a second of a large matrix product, measured on any device."""
    size, times = (8192, 5) if device.type == "cuda" else (1024, 8)
    dtype = PRECISIONS[precision] or torch.float32
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    for _ in range(2):
        a @ b
    began = now(device)
    for _ in range(times):
        a @ b
    return 2.0 * size**3 * times / (now(device) - began)


def now(device: torch.device) -> float:
    """The time after the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
