"""Which tokens of a published tokenizer play which role, as its files say.

The files of Hugging Face name them (`cls_token` and the like), and a template says which of them
stand around a text. Where that is other than the spelling has it, the roles go along with the
tokenizer: `vocabulary.with_roles`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from clozelab.errors import UserError
from clozelab.files import read_json
from clozelab.text.vocabulary import roles_of, settings_of, with_roles

_FILES = ("special_tokens_map.json", "tokenizer_config.json")  # the later one says it
_ROLES = ("cls", "sep", "pad", "mask", "unk")


def as_stated(tokenizer: Tokenizer, folder: Path, *, by_template: bool) -> Tokenizer:
    """The tokenizer with the roles that the files in its folder give its tokens.

    `by_template` is whether its template came with it, and was not made here.
    """
    guessed, stated = roles_of(tokenizer), _stated(tokenizer, folder)
    around = _around(tokenizer, guessed) if by_template else {}
    roles = around | {role: stated[role] for role in _ROLES if role in stated}
    if roles.get("unk") in (stated.get("bos"), stated.get("eos")):
        roles.pop("unk", None)  # GPT-2's, which never stands for anything unknown
    end = stated.get("eos")
    if end is not None and "eod" not in guessed and end != {**guessed, **roles}.get("sep"):
        roles["eod"] = end
    new = {role: number for role, number in roles.items() if guessed.get(role) != number}
    return with_roles(tokenizer, new) if new else tokenizer


def _stated(tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
    """The tokens that the files name, of those that the vocabulary has."""
    numbers = {}
    for name in _FILES:
        file = folder / name
        table = read_json(file, fix="fix it or take it away") if file.is_file() else {}
        for role in (*_ROLES, "bos", "eos"):
            token = table.get(f"{role}_token")
            token = token.get("content") if isinstance(token, Mapping) else token
            if not isinstance(token, str | None):
                raise UserError(f"{file}: {role}_token must be the name of a token; fix it there")
            if token is not None and (number := tokenizer.token_to_id(token)) is not None:
                numbers[role] = number
    return numbers


def _around(tokenizer: Tokenizer, guessed: Mapping[str, int]) -> dict[str, int]:
    """The marks that a template puts around a text: before and after it, or both after it."""
    for step in _steps(settings_of(tokenizer.post_processor)):
        parts: list[str | None] = [
            part.get("SpecialToken", {}).get("id") for part in step.get("single", ())
        ]
        orders: dict[tuple[bool, ...], tuple[int, int]] = {
            (True, False, True): (0, 2),
            (False, True, True): (2, 1),
        }
        order = orders.get(tuple(part is not None for part in parts))
        if order is None:
            continue
        cls, sep = (tokenizer.token_to_id(parts[at] or "") for at in order)
        others = {guessed[role] for role in guessed.keys() - {"cls", "sep"}}
        if cls is not None and sep is not None and not {cls, sep} & others:  # GPT has others
            return {"cls": cls, "sep": sep}
    return {}


def _steps(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [step, *(inner for each in step.get("processors", ()) for inner in _steps(each))]
