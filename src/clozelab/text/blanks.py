"""A tokenizer that reads a text with blanks in it as transformers does."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

from clozelab.text.encoding import literal
from clozelab.text.vocabulary import settings_of


def with_blanks(tokenizer: Tokenizer, mask: int, *, foreign: bool) -> Tokenizer | None:
    """A copy that takes the mask's name for a blank, and the names of other specials for text.

    None where what stands between blanks may be tokenised apart, to the same tokens: where white
    space is no token, or the mask takes that before it, as the masks of our own models do.
    """
    mark = tokenizer.get_added_tokens_decoder().get(mask)
    before = settings_of(tokenizer.pre_tokenizer)
    kind, at_first = before.get("type"), '"first"' in json.dumps(before)
    spaced = kind in ("ByteLevel", "Metaspace")
    whole = spaced and mark is not None and mark.lstrip and not mark.rstrip
    apart = kind == "BertPreTokenizer" or whole or not foreign
    if mark is None or (apart and not at_first):
        return None
    settings = json.loads(tokenizer.to_str())
    (entry,) = (token for token in settings["added_tokens"] if token["id"] == mask)
    changes: dict[str, Any] = {"special": False}  # specials are text to the copy
    if not foreign and spaced:
        changes["lstrip"] = True  # as it is exported
    entry |= changes
    return literal(Tokenizer.from_str(json.dumps(settings)))
