"""The processes of a run and their devices; only this module and `shards` use torch.distributed.

FSDP is imported only where weights are sharded: the import takes a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from clozelab.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

_GROUPS: list[object] = []
_TIMEOUT = timedelta(minutes=10)  # of waiting for other processes


@dataclass(frozen=True)
class World:
    """This process among those of the run; `size` is 1 without torchrun."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and reports."""
        return self.rank == 0

    def wrap(self, model: nn.Module, *, shard: bool) -> nn.Module:
        """The model with its gradients averaged over all processes, its weights sharded or not."""
        if self.size == 1:
            if shard:
                raise UserError(
                    "--shard: there is only one process; start several with torchrun"
                    " --nproc-per-node N -m clozelab, or leave it out"
                )
            return model
        if not shard:
            ids = [self.device.index] if self.device.type == "cuda" else None
            return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
        from torch.distributed.fsdp import fully_shard

        for unit in _fsdp_units(model):
            fully_shard(unit)
        fully_shard(model)
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Around a backward pass: gradients are averaged only after the last one of a step."""
        if isinstance(model, DistributedDataParallel) and not last:
            return model.no_sync()
        if is_sharded(model):
            cast("FSDPModule", model).set_requires_gradient_sync(last)
        return nullcontext()

    def reshard(self, model: nn.Module) -> None:
        """After a forward pass without a backward pass: shard the gathered weights again."""
        for module in model.modules():
            if is_sharded(module):
                cast("FSDPModule", module).reshard()

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on each of them."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def sum_counts(self, values: Sequence[int]) -> list[int]:
        """The sums of some counts over all processes."""
        if self.size == 1:
            return list(values)
        counts = torch.tensor(values, dtype=torch.int64, device=self.device)
        return [int(value) for value in self.all_reduce_sum(counts).tolist()]

    def all_reduce_max(self, value: int) -> int:
        """The largest value over all processes."""
        if self.size == 1:
            return value
        largest = torch.tensor(value, device=self.device)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return int(largest)

    def all_gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, concatenated along the second dimension."""
        if self.size == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts, 1)

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            distributed.barrier()


def is_distributed() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def join(device: str | None = None) -> Iterator[World]:
    """The world that torchrun describes, or one process; the first caller also leaves it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    chosen = _choose_device(device, local)
    if size == 1:
        yield World(0, 1, chosen)
        return
    if distributed.is_initialized():  # a model that is trained here is also scored here
        yield World(rank, size, chosen)
        return
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
    # The store keeps what the groups before this one agreed on; each has names of its own there.
    store = PrefixStore(f"group {len(_GROUPS)}", store)
    group = {"store": store, "rank": rank, "world_size": size, "timeout": _TIMEOUT}
    with process_group(backend, **group):
        yield World(rank, size, chosen)


@contextmanager
def process_group(backend: str, **options: Any) -> Iterator[None]:
    """The default process group of torch.distributed; the object itself is never freed.

    A wrapped model that outlives its group would free it, holding Python's lock while it waits for
    the group's threads, and one of them may be waiting for that lock to drop a tensor.
    """
    distributed.init_process_group(backend, **options)
    _GROUPS.append(distributed.group.WORLD)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def exit_process(code: int) -> NoReturn:
    """Exit; one of several processes exits at once, without Python's own shutdown.

    What torch caches of sharded tensors keeps the group's threads alive after it is destroyed, and
    one that drops a tensor while the interpreter shuts down sometimes aborts the process.
    """
    if is_distributed():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def is_sharded(model: nn.Module) -> bool:
    """Whether the model's weights are sharded over processes."""
    if "torch.distributed.fsdp" not in sys.modules:
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be sharded; every process must call it."""
    return tensor.full_tensor() if _is_shard(tensor) else tensor


def shard_like(value: Tensor, reference: Tensor) -> Tensor:
    """A tensor sharded as the reference is, on its device, unless it already is."""
    value = value.to(reference.device)
    if _is_shard(reference) and not _is_shard(value):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, reference.device_mesh, reference.placements)
    return value


def _is_shard(tensor: Tensor) -> TypeGuard[DTensor]:
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _fsdp_units(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield the modules that are gathered at a time: the matrices of each half of a layer.

    Norms, heads, the tied embeddings and layers that share weights stay with the root module.
    """
    encoder: Any = model.encoder
    for halves in (getattr(encoder, "attention", []), getattr(encoder, "ffn", [])):
        if len(halves) == encoder.shape.layers:
            for half in halves:
                yield [child for child in half.children() if isinstance(child, nn.Linear)]


def _choose_device(name: str | None, local: int) -> torch.device:
    """The device a user asked for, or the best there is."""
    if name in (None, "cuda") and torch.cuda.is_available():
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    if name not in (None, "cpu", "cuda"):
        raise UserError(f"--device {name}: is unknown; use cpu or cuda")
    if name == "cuda":
        raise UserError("--device cuda: no GPU was found; leave it out to use the CPU")
    return torch.device("cpu")
