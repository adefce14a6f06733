"""Files of tensors that are sharded over processes: each process writes and reads its own shards.

The files are safetensors, written by torch's distributed checkpoint: nothing is pickled, and the
number of processes that read may differ from the number that wrote.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed import barrier, get_rank
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from clozelab.errors import UserError

# By a tensor's name, the tensor that it is sharded like; None: it is not sharded.
Like = Callable[[str], Tensor | None]


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this process's shards into a file of their own; all processes must call it."""
    with _original_errors():
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save(dict(tensors), storage_writer=writer)


def write_joined(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the full tensors into one file, without gathering them; all processes must call it."""
    parts = file.with_name(f"{file.name}.parts")
    with _original_errors():
        writer = HuggingFaceStorageWriter(
            str(parts), save_distributed=True, enable_consolidation=True
        )
        save(dict(tensors), storage_writer=writer)
    if get_rank() == 0:
        (joined,) = parts.glob("*.safetensors")
        _check_whole(joined, tensors)
        os.replace(joined, file)
        shutil.rmtree(parts)
    barrier()


def _check_whole(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a file that lacks shards: torch joins those that it finds, and does not check."""
    with safe_open(file, framework="pt") as tensors_file:
        for name, tensor in tensors.items():
            if tensors_file.get_slice(name).get_shape() != [*tensor.shape]:
                raise UserError(
                    f"{file.parent.parent}: lacks the shards of some processes; with"
                    " --shard, put the run's folder on a disk that all processes share"
                )


def read(folder: Path, like: Like) -> dict[str, Tensor]:
    """The tensors of all files in a folder; of sharded ones this process's shard."""
    reader = HuggingFaceStorageReader(str(folder))
    tensors = {}
    for name, saved in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(saved, TensorStorageMetadata)
        layout, dtype = like(name), saved.properties.dtype
        if layout is None or layout.shape != saved.size:
            layout = torch.empty(saved.size, dtype=dtype)
        tensors[name] = torch.empty_like(layout.detach(), dtype=dtype)
    with _original_errors():
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


@contextmanager
def _original_errors() -> Iterator[None]:
    """Raise the original error of a process: for a full disk an OSError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reading in one process alone is intended
            yield
    except CheckpointException as error:
        for wrapped in error.failures.values():
            raise wrapped[0] from error
        raise
