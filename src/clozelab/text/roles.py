"""The roles of the special tokens of a published tokenizer, as its files state them.

The files of Hugging Face name them (`cls_token` and the like), and a template has those that are
put around a text. Where these roles differ from those by spelling, they are saved with the
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

_FILES = ("special_tokens_map.json", "tokenizer_config.json")  # the later one wins
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that take any template
_BERT = ("BertTokenizer", "BertTokenizerFast")  # which put one separator between two texts
_ROLES = ("cls", "sep", "pad", "mask", "unk")


def as_stated(tokenizer: Tokenizer, folder: Path, *, by_template: bool) -> Tokenizer:
    """The tokenizer with the roles that the files in its folder give to special tokens.

    `by_template` says whether its post-processor came with it, and was not made here.
    """
    guessed, stated = roles_of(tokenizer), _roles_in_files(tokenizer, folder)
    in_template = _template_roles(tokenizer, guessed) if by_template else {}
    roles = in_template | {role: stated[role] for role in _ROLES if role in stated}
    if roles.get("unk") in (stated.get("bos"), stated.get("eos")):
        roles.pop("unk", None)  # as in GPT-2, where no text is unknown
    eos = stated.get("eos")
    if eos is not None and "eod" not in guessed and eos != {**guessed, **roles}.get("sep"):
        roles["eod"] = eos
    new = {role: number for role, number in roles.items() if guessed.get(role) != number}
    return with_roles(tokenizer, new) if new else tokenizer


def pair_separators(tokenizer: Tokenizer, folder: Path) -> int | None:
    """How many separators stand between two texts by the tokenizer that transformers would use.

    None if its class decides, or if the files do not say or do not agree.
    """
    config = folder / "tokenizer_config.json"
    table = read_json(config, fix="fix it or take it away") if config.is_file() else {}
    kind = table.get("tokenizer_class")
    if kind not in (*_GENERIC, *_BERT) or not (folder / "tokenizer.json").is_file():
        return None
    if table.get("add_bos_token") is not None or table.get("add_eos_token") is not None:
        return None  # the template is made anew
    sep = roles_of(tokenizer).get("sep")
    counts = [
        number
        for step in _steps(settings_of(tokenizer.post_processor))
        if (number := _between(step, tokenizer, sep)) is not None
    ]
    if len(counts) != 1 or (kind in _BERT and counts != [1]):
        return None
    return counts[0]


def _between(step: dict[str, Any], tokenizer: Tokenizer, sep: int | None) -> int | None:
    """How many separators a step of a post-processor puts between two texts, if nothing else."""
    if step.get("type") in ("BertProcessing", "RobertaProcessing"):
        named = step.get("sep") or [None, None]
        return (1 if step["type"] == "BertProcessing" else 2) if named[1] == sep else None
    pair = step.get("pair") or []
    texts = [part.get("Sequence", {}).get("id") for part in pair]
    if texts.count("A") != 1 or texts.count("B") != 1:
        return None
    between = pair[texts.index("A") + 1 : texts.index("B")]  # empty if B comes first
    ids = [
        number
        for part in between
        for number in step.get("special_tokens", {})
        .get(part["SpecialToken"]["id"], {})
        .get("ids", [None])
    ]
    return len(ids) if ids and {*ids} == {sep} else None


def _roles_in_files(tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
    """The ids by role of the special tokens that the files name and the vocabulary has."""
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


def _template_roles(tokenizer: Tokenizer, guessed: Mapping[str, int]) -> dict[str, int]:
    """The ids of [CLS] and [SEP] in a template: before and after a text, or both after it."""
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
        if cls is not None and sep is not None and not {cls, sep} & others:
            return {"cls": cls, "sep": sep}
    return {}


def _steps(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [step, *(inner for each in step.get("processors", ()) for inner in _steps(each))]
