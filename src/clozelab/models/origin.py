"""origin.json, which travels with an imported checkpoint: as what it came, so that it goes out so.

A model that is trained on has no such file: it is no longer what came.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from clozelab.errors import UserError

FILE = "origin.json"


@dataclass(frozen=True)
class Origin:
    """What transformers would call the model."""

    family: str
    heads: tuple[str, ...]  # of its pretraining; an encoder alone has none
    bare: bool  # it came as an encoder alone
    dtype: str  # of its weights, as torch calls it
    model_type: str  # the family's, or that of a relative: the same under another name


def to_json(origin: Origin) -> str:
    """The whole of it as text; it reads back equal."""
    return json.dumps(asdict(origin), indent=1) + "\n"


def parse(text: str, place: str) -> Origin:
    """The origin that a text holds; `place` is what errors call it."""
    try:
        fields = json.loads(text)
        heads, family = tuple(map(str, fields["heads"])), str(fields["family"])
        model_type = str(fields.get("model_type", family))  # which files of old do not tell
        return Origin(family, heads, bool(fields["bare"]), str(fields["dtype"]), model_type)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{place}: cannot be read; import the model again") from None
