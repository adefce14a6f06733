"""A run of transformers' Trainer, or a model's folder, read as a case: without torch.

trainer_state.json has the log: loss, learning_rate and grad_norm of some steps, and eval_loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab.diagnosis.case import Case, TrainingLog
from clozelab.diagnosis.reading import mask_token
from clozelab.diagnosis.text import facts_of, retokenised
from clozelab.diagnosis.weights import checkpoints, damaged, tables
from clozelab.errors import UserError
from clozelab.files import read_json
from clozelab.text.loading import load
from clozelab.text.store.corpus import open_stores

_STATE = "trainer_state.json"
_CONFIGS = ("config.json", "tokenizer_config.json", "special_tokens_map.json")
_HUGE = 1 << 62  # larger numbers are taken for nonsense
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_WIDTHS = ("hidden_size", "n_embd", "dim", "d_model")


def is_folder(place: Path) -> bool:
    """Whether a folder has files of transformers."""
    return place.is_dir() and any(
        file.is_file()
        for folder in (place, *place.glob("checkpoint-*"))
        for file in (folder / _STATE, folder / "config.json", folder / "tokenizer.json")
    )


def read_folder(place: str, data: Sequence[str] = ()) -> Case:
    """The case of a folder of transformers; text of a corpus is read by its own tokenizer."""
    path = Path(place)
    state, home = _read_state(path)
    config, *names = (_read_settings(_find_file(path, home, name)) for name in _CONFIGS)
    tokenizer = _tokenizer(path, home)
    vocabulary = _positive_int(config.get("vocab_size"))
    log = _read_log(state) if state else None
    text, unknown = None, list[str]()
    if data:
        stores = open_stores(data)
        same = tokenizer is None or tokenizer.get_vocab() == stores[0][0].tokenizer.get_vocab()
        text = facts_of(stores) if same else retokenised(stores[0][0], tokenizer)  # type: ignore[arg-type]
    else:
        unknown.append("the text: give --data CORPUS, to compare the loss with its entropies")
    if log is None:
        unknown.append(f"the training: there is no {_STATE}")
    classes = config.get("architectures")
    kinds = " ".join(map(str, classes)) if isinstance(classes, list) else ""
    masked = "MaskedLM" in kinds or "ForPreTraining" in kinds
    language_model = masked or "LMHead" in kinds or not kinds
    return Case(
        place=place,
        kind="folder",
        state=_describe(state, log, kinds),
        log=log,
        text=text,
        language_model=language_model,
        predicts_masks=masked,
        size=_size(config),
        vocabulary=vocabulary,
        mask_token=mask_token(tokenizer, name=_mask_name(names)) if masked else None,
        tables=tables(path),
        damaged=damaged(path),
        unknown=unknown,
    )


def _read_state(path: Path) -> tuple[dict[str, Any], Path]:
    """The newest state of a trainer, and its folder."""
    for folder in reversed(checkpoints(path)):
        if (folder / _STATE).is_file():
            return _read_settings(folder / _STATE), folder
    return {}, path


def _find_file(path: Path, home: Path, name: str) -> Path:
    return path / name if (path / name).is_file() else home / name


def _read_settings(file: Path) -> dict[str, Any]:
    """The contents of a JSON file, whose numbers may be NaN; empty if there is none."""
    return read_json(file) if file.is_file() else {}


def _tokenizer(path: Path, home: Path) -> Tokenizer | None:
    for folder in (path, home):
        try:
            return load(folder)
        except UserError:
            continue
    return None


def _mask_name(files: Sequence[Mapping[str, Any]]) -> str | None:
    """The name of the mask token in the settings: a string, or a table with its content."""
    for settings in files:
        name = settings.get("mask_token")
        name = name.get("content") if isinstance(name, Mapping) else name
        if isinstance(name, str):
            return name
    return None


def _size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    layers, width = (
        next((n for key in keys if (n := _positive_int(config.get(key)))), None)
        for keys in (_LAYERS, _WIDTHS)
    )
    return (layers, width) if layers and width else None


def _positive_int(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < _HUGE else None


def _read_log(state: Mapping[str, Any]) -> TrainingLog:
    lines = state.get("log_history")
    history = [row for row in lines if isinstance(row, Mapping)] if isinstance(lines, list) else []
    history = [row for row in history if math.isfinite(_number(row.get("step")))]
    rows = [row for row in history if "loss" in row]

    def column(name: str) -> Any:
        return np.array([_number(row.get(name)) for row in rows], dtype=np.float64)

    steps, rates, loss, norm = map(column, ("step", "learning_rate", "loss", "grad_norm"))
    has_norm = np.array(["grad_norm" in row for row in rows], dtype=bool)
    no_norm = has_norm & ~np.isfinite(norm)  # logged, but not finite
    # By default the Trainer leaves NaN losses out of its means, which are then 0.
    missing = ~np.isfinite(loss) | ((loss == 0) & no_norm)
    bad = [(int(step), "the loss") for step in steps[missing]]
    if not bad:
        bad = [(int(step), "the gradient's norm") for step in steps[no_norm]]
    held_out = [
        (float(row["step"]), value)
        for row in history
        if math.isfinite(value := _number(row.get("eval_loss")))
    ]
    rising = np.flatnonzero(np.diff(rates) <= 0) if len(rates) else np.zeros(0)
    seen = _number(state.get("num_input_tokens_seen")) or math.nan
    done = max(float(steps[-1]), 1.0) if len(steps) else 1.0
    return TrainingLog(
        objective="loss",
        total=_positive_int(state.get("max_steps")) or int(done),
        steps=steps,
        loss=np.where(missing, np.nan, loss),
        norm=norm,
        learning_rate=rates,
        tokens=steps * (seen / done),
        held_out=held_out,
        not_finite=bad,
        warmup=int(steps[rising[0]]) if len(rising) and rising[0] else 0,
    )


def _number(value: Any) -> float:
    """A number of a log; NaN if it is none, or too large."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if abs(number) < _HUGE else math.nan


def _describe(state: Mapping[str, Any], log: TrainingLog | None, kinds: str) -> str:
    name = kinds or "a model of transformers"
    if log is None:
        return name
    total = _positive_int(state.get("max_steps"))
    done = _positive_int(state.get("global_step")) or log.done
    return f"{name}, step {done:,} of {total:,}" if total else f"{name}, step {done:,}"
