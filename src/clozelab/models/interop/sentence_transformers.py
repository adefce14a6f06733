"""The files by which sentence-transformers opens a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clozelab.contracts import Pooling
from clozelab.errors import UserError

_POOLING = "1_Pooling"
# Their names in sentence-transformers, which has no mean without special tokens.
MODES: dict[Pooling, str] = {"cls": "cls_token", "mean_all": "mean_tokens"}
_KNOWN = ("Transformer", "Pooling", "Normalize")  # the last leaves cosines as they are
_NAMED: dict[str, Pooling] = {"cls": "cls", "mean": "mean_all"}  # as it writes them now


def check(pooling: Pooling | None, *, encoder: Any, place: str) -> None:
    """Refuse a pooling that sentence-transformers cannot do."""
    if pooling == "cls" and encoder.layout.summary != "first":
        raise UserError(
            f"{place}: its texts have no [CLS] as their first token, which sentence-transformers"
            " takes; use --pool mean_all"
        )


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The class and the path of each module that a directory lists; none if it is not its."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in modules]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def read(folder: Path) -> Pooling | None:
    """The pooling that a directory was written with; None if it has none, or one of others."""
    paths = [path for kind, path in _modules(folder) if kind == "Pooling"]
    if not paths:
        return None
    try:
        config = json.loads((folder / paths[0] / "config.json").read_text(encoding="utf-8"))
        on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        if "pooling_mode" in config:  # as newer versions write it: one mode, or several in a list
            return _NAMED.get(config["pooling_mode"])
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return next((name for name, mode in MODES.items() if on == [f"pooling_mode_{mode}"]), None)


def read_length(folder: Path) -> int | None:
    """The most tokens that it reads of a text; None if the directory is not its, or says nothing.

    Without a length of its own it reads as many as the tokenizer allows.
    """
    if not (folder / "modules.json").is_file():
        return None
    # Its name has the class where an early version wrote it.
    for file in sorted(folder.glob("sentence_*_config.json")):
        try:
            length = json.loads(file.read_text(encoding="utf-8"))["max_seq_length"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if isinstance(length, int) and not isinstance(length, bool) and length > 0:
            return length
    return None


def ignored(folder: Path) -> str | None:
    """What changes its vectors of texts but not those here, if a directory has such modules."""
    return ", ".join(kind for kind, _ in _modules(folder) if kind not in _KNOWN) or None


def write(folder: Path, pooling: Pooling, *, width: int, length: int) -> None:
    """Write the list of modules (the model, then the pooling) and their configs."""
    package = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
        {"idx": 1, "name": "1", "path": _POOLING, "type": f"{package}.Pooling"},
    ]
    (folder / _POOLING).mkdir()
    modes = {f"pooling_mode_{mode}": name == pooling for name, mode in MODES.items()}
    files: dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "similarity_fn_name": "cosine"},
        f"{_POOLING}/config.json": {"word_embedding_dimension": width, **modes},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
