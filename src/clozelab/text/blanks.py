"""A tokenizer that tokenises a text with [MASK] in it as transformers does."""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from clozelab.text.encoding import literal
from clozelab.text.vocabulary import settings_of


def with_blanks(tokenizer: Tokenizer, mask: int, *, foreign: bool) -> Tokenizer | None:
    """A copy that reads the mask's name as the mask, and the names of other specials as text.

    None where tokenising the text between masks piece by piece gives the same tokens: where white
    space is no token, or the mask takes in that before it, as the masks of our own models do.
    """
    mark = tokenizer.get_added_tokens_decoder().get(mask)
    before = settings_of(tokenizer.pre_tokenizer)
    kind, at_first = before.get("type"), '"first"' in json.dumps(before)
    spaced = kind in ("ByteLevel", "Metaspace")
    takes_space = spaced and mark is not None and mark.lstrip and not mark.rstrip
    separable = kind == "BertPreTokenizer" or takes_space or not foreign
    if mark is None or (separable and not at_first):
        return None
    settings = json.loads(tokenizer.to_str())
    (entry,) = (token for token in settings["added_tokens"] if token["id"] == mask)
    entry["special"] = False  # `literal` reads specials as text
    if not foreign and spaced:
        entry["lstrip"] = True  # as in exported tokenizers
    return literal(Tokenizer.from_str(json.dumps(settings)))
