"""Tensors that are sharded over processes, on a disk: each process writes and reads its own part.

The files are safetensors, written by torch's distributed checkpoint: nothing is pickled, and any
number of processes may read what another number wrote.
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

# A tensor that the one of this name is to be sharded as; None leaves it whole.
Like = Callable[[str], Tensor | None]


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what this process has of each tensor into a file of its own; all processes must."""
    with _telling():
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save(dict(tensors), storage_writer=writer)


def write_joined(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write them whole into one file, which no process holds in its memory; all processes must."""
    parts = file.with_name(f"{file.name}.parts")
    with _telling():
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
    """Refuse a file that lacks shards: torch joins those that it finds, and takes them for all."""
    with safe_open(file, framework="pt") as tensors_file:
        for name, tensor in tensors.items():
            if tensors_file.get_slice(name).get_shape() != [*tensor.shape]:
                raise UserError(
                    f"{file.parent.parent}: has not the shards of all processes; with --shard a"
                    " run's folder must be on a disk that all of them share"
                )


def read(folder: Path, like: Like) -> dict[str, Tensor]:
    """The tensors of all the files in a folder; of those that are sharded this process's part."""
    reader = HuggingFaceStorageReader(str(folder))
    tensors = {}
    for name, saved in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(saved, TensorStorageMetadata)
        layout, dtype = like(name), saved.properties.dtype
        if layout is None or layout.shape != saved.size:
            layout = torch.empty(saved.size, dtype=dtype)
        tensors[name] = torch.empty_like(layout.detach(), dtype=dtype)
    with _telling():
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


@contextmanager
def _telling() -> Iterator[None]:
    """What went wrong in any of the processes is raised as itself: a full disk is an OSError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one process reads alone is meant
            yield
    except CheckpointException as error:
        for wrapped in error.failures.values():
            raise wrapped[0] from error
        raise
