"""Write and read Hugging Face directories: config, weights, tokenizer and card."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from clozelab.contracts import Vocabulary
from clozelab.errors import UserError
from clozelab.files import read_json, write_tensors
from clozelab.models.interop.exporting import Exported
from clozelab.models.interop.tokenizer import family_tokenizer, tokenizer_config
from clozelab.models.interop.typed import LARGEST
from clozelab.nearest import nearest

_TEXTS = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "*.model",
    "modules.json", "*_Pooling/config.json", "sentence_*_config.json",
)  # fmt: skip
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_LEAST_LENGTH = 5  # of every format of blocks
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class ModelFiles(NamedTuple):
    """The contents of a directory; the files of its tokenizer are in `folder`."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    length: int | None  # the tokenizer's maximum length, if it has one


def write(
    folder: Path,
    model: Exported,
    *,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    card: str,
    separators: int | None = None,
) -> None:
    """Write the files of a directory that transformers opens."""
    family = model.family
    tuned = model.task is not None and model.task.special_tokens
    ready = family_tokenizer(tokenizer, family, vocabulary, tuned=tuned, separators=separators)
    types = 2 if family == "xlnet" else model.config.get("type_vocab_size", 0)
    settings = tokenizer_config(ready, vocabulary, family=family, types=types, length=model.length)
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", model.config)
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "tokenizer.json").write_text(ready.to_str(pretty=True), encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8", errors="replace")
    write_tensors(folder / "model.safetensors", tensors)


def read(place: str) -> ModelFiles:
    """Read a local directory, without the network, or a name on the hub."""
    folder = Path(place)
    if not folder.is_dir():
        folder = _download(place)
    config, tensors = _read_json(folder / "config.json"), _read_tensors(folder)
    return ModelFiles(folder, config, tensors, _tokenizer_length(folder / "tokenizer_config.json"))


def _download(place: str) -> Path:
    """Download the files of that name from the hub, and return their folder."""
    if Path(place).is_file():
        raise UserError(f"{place}: is a file, not a model; name a run or a Hugging Face directory")
    if not _HUB_NAME.fullmatch(place):
        raise UserError(
            f"{place}: does not exist; give a run, a checkpoint, a Hugging Face directory, or a"
            " name on the hub with its owner, as in google-bert/bert-base-uncased"
        )
    parent = Path(place).parent
    if parent.is_dir():  # a local folder, not an owner on the hub
        meant = nearest(Path(place).name, [file.name for file in parent.iterdir()])
        hint = f"did you mean {parent / meant}?" if meant else f"look into {parent}"
        raise UserError(f"{place}: does not exist; {hint}")
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(
            f"{place}: does not exist, and downloading it from the hub needs"
            " huggingface_hub; pip install huggingface_hub"
        ) from error
    try:
        safe = [*_TEXTS, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"]
        folder = Path(hub.snapshot_download(place, allow_patterns=safe))
        if not list(folder.glob("model*.safetensors")):
            old = [*_TEXTS, "pytorch_model*.bin", "pytorch_model.bin.index.json"]
            folder = Path(hub.snapshot_download(place, allow_patterns=old))
    except Exception as error:  # the errors of several libraries, some of many lines
        raise UserError(
            f"{place}: does not exist, and the download from the hub failed ({_first(error)});"
            " download it on another machine, and give the directory"
        ) from error
    return folder


def _tokenizer_length(file: Path) -> int | None:
    """The maximum length of a tokenizer; transformers writes 10³⁰ if there is none."""
    length = read_json(file).get("model_max_length") if file.is_file() else None
    sensible = isinstance(length, int) and _LEAST_LENGTH <= length <= LARGEST
    return length if sensible else None


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a directory, from one file or shards, safetensors first."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return _load_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            tensors: dict[str, Tensor] = {}
            for shard in _shard_names(index):
                tensors |= _load_file(folder / shard)
            return tensors
    raise UserError(f"{folder}: has no {' or '.join(_WEIGHTS)}; give a directory with weights")


def _shard_names(index: Path) -> list[str]:
    """The shards that an index names, which must be beside it."""
    named = _read_json(index).get("weight_map")
    if not isinstance(named, Mapping) or not all(isinstance(x, str) for x in named.values()):
        raise UserError(f"{index}: weight_map must give each tensor its file; fetch it again")
    for shard in named.values():
        if shard != Path(shard).name:
            raise UserError(f"{index}: names {shard!r}, which is no file of this folder")
    return sorted(set(named.values()))


def _load_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    A pickle is read by torch's weights-only reader, which builds tensors and plain containers and
    runs nothing from the file.
    """
    if not path.is_file():
        raise UserError(f"{path}: is in the index but missing; download the whole checkpoint")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except Exception as error:  # of the library, or of torch
            raise UserError(
                f"{path}: cannot be read ({_first(error)}); download it again"
            ) from error
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, of zip, of torch
        raise UserError(
            f"{path}: cannot be read as weights alone ({_first(error)}); save it as safetensors"
            " where you trust it"
        ) from error
    named = isinstance(weights, Mapping) and all(isinstance(name, str) for name in weights)
    if not named or not all(isinstance(x, Tensor) for x in weights.values()):
        raise UserError(f"{path}: holds more than weights; save the state dict alone")
    return dict(weights)


def _first(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path}: does not exist; give the directory of a Hugging Face checkpoint")
    return read_json(path)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
