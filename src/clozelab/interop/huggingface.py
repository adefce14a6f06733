"""Directories of Hugging Face: config, weights, tokenizer and card, written whole and read back."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Mapping
from os import getpid
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from clozelab.contracts import UserError, Vocabulary
from clozelab.interop.families import Exported
from clozelab.interop.tokenizer import described, dressed

_TEXTS = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.txt", "vocab.json", "merges.txt",
)  # fmt: skip
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


class Checkpoint(NamedTuple):
    """A directory that was read; its tokenizer's files lie in `folder`."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def write(
    folder: Path, model: Exported, *, tokenizer: Tokenizer, vocabulary: Vocabulary, card: str
) -> None:
    """A directory that transformers opens; it appears whole or not at all."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: is there already and not empty; give another place or empty it")
    family = model.config["model_type"]
    ready = dressed(tokenizer, family, vocabulary, tuned=model.task is not None)
    types = 2 if family == "xlnet" else model.config.get("type_vocab_size", 0)
    settings = described(ready, vocabulary, family=family, types=types, length=model.length)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.{getpid()}")
    try:
        beside.mkdir()
        _write_json(beside / "config.json", model.config)
        _write_json(beside / "tokenizer_config.json", settings)
        ready.save(str(beside / "tokenizer.json"))
        (beside / "README.md").write_text(card, encoding="utf-8")
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.tensors.items()}
        save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
        if folder.exists():
            folder.rmdir()
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def read(place: str) -> Checkpoint:
    """A local directory, which never touches the network, or the name of one on the hub."""
    folder = Path(place)
    if not folder.is_dir():
        folder = _fetched(place)
    return Checkpoint(folder, _read_json(folder / "config.json"), _tensors(folder))


def _fetched(place: str) -> Path:
    """Where the hub's files of that name lie, once they are here."""
    if not _HUB.fullmatch(place):
        raise UserError(f"{place}: no such directory; give one, or a name on the hub (owner/name)")
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(
            f"{place}: no such directory, and to fetch it from the hub needs huggingface_hub;"
            " pip install huggingface_hub"
        ) from error
    try:
        safe = [*_TEXTS, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
        folder = Path(hub.snapshot_download(place, allow_patterns=safe))
        if not list(folder.glob("model*.safetensors")):
            old = [*_TEXTS, "pytorch_model*.bin", "pytorch_model.bin.index.json"]
            folder = Path(hub.snapshot_download(place, allow_patterns=old))
    except Exception as error:  # the errors of several libraries
        raise UserError(
            f"{place}: no such directory, and the hub did not give it ({error}); download it on a"
            " machine that can, and give the directory"
        ) from error
    return folder


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a directory, from one file or several, the safe format first."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return _load(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = _read_json(index).get("weight_map", {})
            tensors: dict[str, Tensor] = {}
            for shard in sorted(set(shards.values())):
                tensors |= _load(folder / Path(shard).name)
            return tensors
    raise UserError(f"{folder}: no {' or '.join(_WEIGHTS)} here; give a directory with weights")


def _load(path: Path) -> dict[str, Tensor]:
    """The tensors of one file; nothing else is ever unpickled."""
    if not path.is_file():
        raise UserError(f"{path}: named by the index but not there; fetch the whole checkpoint")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: cannot be read ({error}); fetch it again") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, of zip, of torch
        raise UserError(
            f"{path}: cannot be read as weights alone ({str(error).splitlines()[0]}); save it as"
            " safetensors where you trust it"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(x, Tensor) for x in found.values()):
        raise UserError(f"{path}: holds more than weights; save the state dict alone")
    return dict(found)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; give a directory of a Hugging Face checkpoint")
    try:
        read: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); fetch it again") from error
    if not isinstance(read, dict):
        raise UserError(f"{path}: not a JSON object; fetch it again")
    return read


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
