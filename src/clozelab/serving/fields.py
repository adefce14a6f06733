"""The fields of a request: JSON of bounded length, whose values are checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from clozelab.errors import UserError

MOST_BYTES = 1 << 16  # of a request
MOST_CHARACTERS = 5000  # of a text

Fields = Mapping[str, Any]


async def fields_of(request: Request) -> Fields:
    """The JSON of a request, read up to the limit of its length."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            sentence = f"the request is over {MOST_BYTES >> 10} KB; shorten the text"
            raise HTTPException(413, sentence)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("the request is not JSON") from None
    if not isinstance(fields, dict):
        raise UserError("the request must be an object of JSON")
    return fields


def text_of(fields: Fields, key: str, *, most: int = MOST_CHARACTERS) -> str:
    """A text of valid characters that is not too long."""
    text = fields.get(key)
    if not isinstance(text, str):
        raise UserError(f"{key}: must be a text")
    if len(text) > most:
        raise UserError(
            f"the text has {len(text):,} characters, but at most {most:,} are allowed; shorten it"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{key}: has half a character in it; write it again") from None
    return text


def name_of(fields: Fields, key: str) -> str:
    """The name of a model, a recipe or a corpus."""
    name = fields.get(key)
    if not isinstance(name, str):
        raise UserError(f"{key}: must be a name")
    return name


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 up."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def count_of(fields: Fields, key: str, default: int, *, most: int) -> int:
    """A whole number that is not too large."""
    value = fields.get(key, default)
    if not is_count(value) or value > most:
        raise UserError(f"{key}: must be a whole number from 0 to {most:,}")
    return int(value)
