"""The models: each is opened once, on first use, and used by one thread."""

from __future__ import annotations

import gc
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from clozelab.errors import UserError
from clozelab.runs.directory import PLAN
from clozelab.serving.folders import Folder, Folders
from clozelab.serving.queues import WorkQueue

if TYPE_CHECKING:
    from clozelab.models.model import Model

_MEMORY_PER_BYTE = 2.0  # bytes of memory per byte of weights, which are read and then copied
_SPARE = 256 << 20  # bytes to keep free for activations
_MOST_OPEN = 32  # models, at most
# Parameters up to which one thread computes. Of 2 x 128, beside other programs on two cores, a fill
# took two threads 103 ms of processor time, nearly all of it spent waiting, and one thread 4 ms.
_ONE_THREAD = 20_000_000

Stamps = dict[Path, tuple[int, int]]
T = TypeVar("T")


class Models:
    """The models in the folders, and those of them that are open."""

    def __init__(self, folders: Folders, *, free_memory: Callable[[], int | None]) -> None:
        self.folders = folders
        self._free_memory = free_memory
        self._open: OrderedDict[Path, Model] = OrderedDict()  # least recently used first
        self._stamps: dict[Path, Stamps] = {}  # of the files that each was opened from
        self._queues: dict[str, WorkQueue] = {}
        self._lock = Lock()

    def ask(self, name: str, step: int | None, work: Callable[[Model], T]) -> Future[T]:
        """The future of some work on a model; raises if too much is waiting for it.

        Called by one thread, that of the event loop.
        """
        if name not in self._queues:
            self._folder(name)  # refuses an unknown name
            self._queues[name] = WorkQueue(name)

        def job() -> T:
            model = self._open_model(self._folder(name).checkpoint(step))
            _set_threads(model)
            return work(model)

        return self._queues[name].submit(job)

    def _folder(self, name: str) -> Folder:
        return self.folders.named(name, "run", "tuning", "model")

    def _open_model(self, place: Path) -> Model:
        """The model at a place, opened again if its files changed; called by one thread."""
        from clozelab.models.load import load

        place = _model_folder(place)
        stamps = _stamps(place)
        with self._lock:
            if place in self._open and self._stamps[place] == stamps:
                self._open.move_to_end(place)
                return self._open[place]
            self._open.pop(place, None)
        self._make_room(place)
        _all_threads()  # must be read before threads are set

        try:
            model = load(str(place))
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise UserError(f"{place}: does not fit into memory; serve a smaller model") from None
        except FileNotFoundError:
            raise UserError(f"{place}: was removed; choose another model") from None
        with self._lock:
            self._open[place], self._stamps[place] = model, stamps
        return model

    def _make_room(self, place: Path) -> None:
        """Close models until there is memory for one more; refuse it if there is not enough."""
        size = _size(place)
        needed = int(_MEMORY_PER_BYTE * size) + _SPARE
        while True:
            free = self._free_memory()
            with self._lock:
                fits = free is None or free >= needed
                if fits and len(self._open) < _MOST_OPEN:
                    return
                if not self._open:
                    break
                self._open.popitem(last=False)
            gc.collect()  # modules have reference cycles
        raise UserError(
            f"{place}: its weights are {size / 1e9:.1f} GB, but only {(free or 0) / 1e9:.1f}"
            " GB of memory are free; close other programs, or serve it on a larger machine"
        )


def _set_threads(model: Model) -> None:
    """Set the number of torch's threads by the size of the model."""
    import torch

    size = sum(weight.numel() for weight in model.module.parameters())
    torch.set_num_threads(1 if size <= _ONE_THREAD else _all_threads())


@cache
def _all_threads() -> int:
    """Torch's default number of threads."""
    import torch

    return torch.get_num_threads()


def weights(place: Path) -> list[Path]:
    """The files of the weights of a model and its generator, safetensors if there are any."""
    files: list[Path] = []
    for folder in (place, place / "generator"):
        safe = [*folder.glob("model*.safetensors")]
        files += safe or folder.glob("pytorch_model*.bin")
    return files


def _size(place: Path) -> int:
    """Bytes of a model's weights."""
    return sum(file.stat().st_size for file in weights(place))


def _model_folder(place: Path) -> Path:
    """The folder that a model is opened from; of several fine-tunings, the best checkpoint."""
    if not (place / PLAN).is_file():
        return place
    from clozelab.models.load import best_tuning

    run = place / best_tuning(place)
    return Folder(str(run), run, "run").checkpoint(None)


def _stamps(place: Path) -> Stamps:
    """Sizes and times of change of a model's files."""
    stamps = {}
    for file in sorted([*weights(place), *place.glob("*.json"), *place.glob("generator/*.json")]):
        with suppress(FileNotFoundError):  # removed meanwhile
            status = file.stat()
            stamps[file] = (status.st_size, status.st_mtime_ns)
    return stamps


def free_memory() -> int | None:
    """The bytes of available memory, if the system tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            sizes = dict(line.split(":") for line in lines)
        return int(sizes["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
