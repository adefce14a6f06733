"""The ids of a tokenizer that is given other pieces, wherever its file has them.

The library numbers tokens that are no pieces of the model behind all that are, whatever the file
says; so they are put there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer


def numbers_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """The pieces of a tokenizer's model and their ids, ascending."""
    table = settings["model"]["vocab"]
    if isinstance(table, list):  # of unigram pieces and their scores
        return {piece: number for number, (piece, _) in enumerate(table)}
    return dict(sorted(table.items(), key=lambda entry: int(entry[1])))


def behind(settings: Mapping[str, Any]) -> list[str]:
    """The tokens that were added and are no pieces of the model, by their ids."""
    pieces = numbers_of(settings)
    added = sorted(settings["added_tokens"], key=lambda token: int(token["id"]))
    return [str(token["content"]) for token in added if token["content"] not in pieces]


def renumbered(settings: dict[str, Any], numbers: Mapping[str, int]) -> Tokenizer:
    """The tokenizer with these pieces, which its file may have more of, and these ids for them.

    What is no piece of the model follows. The settings are changed.
    """
    model, first = settings["model"], max(numbers.values(), default=-1) + 1
    every = {**numbers, **{name: first + at for at, name in enumerate(behind(settings))}}
    if isinstance(model["vocab"], list):
        entries = {piece: [piece, score] for piece, score in model["vocab"]}
        if model.get("unk_id") is not None:
            model["unk_id"] = numbers[model["vocab"][model["unk_id"]][0]]
        model["vocab"] = [entries[piece] for piece in numbers]
    else:
        model["vocab"] = dict(numbers)
    tokens = [token for token in settings["added_tokens"] if token["content"] in every]
    for token in tokens:
        token["id"] = every[token["content"]]
    settings["added_tokens"] = sorted(tokens, key=lambda token: int(token["id"]))
    if settings.get("padding"):
        settings["padding"]["pad_id"] = every[settings["padding"]["pad_token"]]
    _renumber_marks(settings.get("post_processor") or {}, every)
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    assert tokenizer.get_vocab(with_added_tokens=True) == every, "the library numbers otherwise"
    return tokenizer


def _renumber_marks(step: dict[str, Any], numbers: Mapping[str, int]) -> None:
    """Give the marks that a post-processor puts around a text their ids."""
    for inner in step.get("processors", ()):
        _renumber_marks(inner, numbers)
    marks: Iterable[dict[str, Any]] = (step.get("special_tokens") or {}).values()
    for mark in marks:
        mark["ids"] = [numbers[name] for name in mark["tokens"]]
    for role in ("cls", "sep"):  # as [name, id], in the post-processors of BERT and RoBERTa
        if role in step:
            step[role] = [step[role][0], numbers[step[role][0]]]
