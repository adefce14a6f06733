"""Renumbering a tokenizer whose pieces change, in every place of its file that has ids.

The library gives added tokens that are no pieces of the model the ids after all pieces, whatever
the file says; so the file is written that way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer


def numbers_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """The pieces of a tokenizer's model with their ids, in ascending order."""
    table = settings["model"]["vocab"]
    if isinstance(table, list):  # unigram: [piece, score] in the order of ids
        return {piece: number for number, (piece, _) in enumerate(table)}
    return dict(sorted(table.items(), key=lambda entry: int(entry[1])))


def behind(settings: Mapping[str, Any]) -> list[str]:
    """The added tokens that are no pieces of the model, in the order of their ids."""
    pieces = numbers_of(settings)
    added = sorted(settings["added_tokens"], key=lambda token: int(token["id"]))
    return [str(token["content"]) for token in added if token["content"] not in pieces]


def renumbered(settings: dict[str, Any], numbers: Mapping[str, int]) -> Tokenizer:
    """The tokenizer with only these pieces of its model, under these ids.

    Added tokens that are no pieces of the model follow. `settings` is changed in place.
    """
    model, first = settings["model"], max(numbers.values(), default=-1) + 1
    ids = {**numbers, **{name: first + at for at, name in enumerate(behind(settings))}}
    if isinstance(model["vocab"], list):
        entries = {piece: [piece, score] for piece, score in model["vocab"]}
        if model.get("unk_id") is not None:
            model["unk_id"] = numbers[model["vocab"][model["unk_id"]][0]]
        model["vocab"] = [entries[piece] for piece in numbers]
    else:
        model["vocab"] = dict(numbers)
    tokens = [token for token in settings["added_tokens"] if token["content"] in ids]
    for token in tokens:
        token["id"] = ids[token["content"]]
    settings["added_tokens"] = sorted(tokens, key=lambda token: int(token["id"]))
    if settings.get("padding"):
        settings["padding"]["pad_id"] = ids[settings["padding"]["pad_token"]]
    _renumber_post_processor(settings.get("post_processor") or {}, ids)
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    assert tokenizer.get_vocab(with_added_tokens=True) == ids, "the library numbers otherwise"
    return tokenizer


def _renumber_post_processor(step: dict[str, Any], numbers: Mapping[str, int]) -> None:
    """Renumber the special tokens that a post-processor puts around a text, in place."""
    for inner in step.get("processors", ()):
        _renumber_post_processor(inner, numbers)
    templates: Iterable[dict[str, Any]] = (step.get("special_tokens") or {}).values()
    for special in templates:
        special["ids"] = [numbers[name] for name in special["tokens"]]
    for role in ("cls", "sep"):  # as [name, id], in the post-processors of BERT and RoBERTa
        if role in step:
            step[role] = [step[role][0], numbers[step[role][0]]]
