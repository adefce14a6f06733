"""A tokenizer as transformers expects it, with the family's special tokens and their roles."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors

from clozelab.contracts import Vocabulary
from clozelab.models.interop.families import FAMILIES
from clozelab.text.sequences import is_bytes

# GPT has special tokens around the texts of tasks only, not in pretraining (GPT §3.3).
_GPT = ("{cls} $A {mask}", "{cls} $A {sep} $B {mask}")


def family_tokenizer(
    tokenizer: Tokenizer,
    family: str,
    vocabulary: Vocabulary,
    *,
    tuned: bool = False,
    separators: int | None = None,
) -> Tokenizer:
    """A copy that adds the family's special tokens and reads the mask as a whole word.

    `tuned` is for a model that was fine-tuned; `separators` replaces the family's number of them
    between two texts.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    spaced = isinstance(copy.pre_tokenizer, pre_tokenizers.ByteLevel | pre_tokenizers.Metaspace)
    if spaced and not is_bytes(copy) and "mask" in vocabulary.roles:
        # The space before a word is part of it, and so it must be part of the mask.
        name = copy.id_to_token(vocabulary.roles["mask"])
        copy.add_special_tokens([AddedToken(name, lstrip=True, special=True)])
    steps: list[Any] = []
    if isinstance(copy.pre_tokenizer, pre_tokenizers.ByteLevel):
        steps.append(processors.ByteLevel(trim_offsets=True))
    template, roles = FAMILIES[family].template, vocabulary.roles
    ids = {role: roles[role] for role in ("cls", "sep") if role in roles}
    if tuned and FAMILIES[family].is_gpt:
        end = vocabulary.role("eod")
        template, ids = _GPT, {role: roles.get(role, end) for role in ("cls", "sep", "mask")}
    if template and {"cls", "sep"} <= {*ids}:
        names = {role: copy.id_to_token(number) for role, number in ids.items()}
        single, pair = template
        if separators is not None:
            pair = re.sub(r"({sep} )+(?=\$B)", "{sep} " * separators, pair)
        single, pair = single.format(**names), pair.format(**names)
        marks = sorted({(names[role], number) for role, number in ids.items()})
        steps.append(processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks))
    copy.post_processor = processors.Sequence(steps) if steps else None
    return copy


def tokenizer_config(
    tokenizer: Tokenizer, vocabulary: Vocabulary, *, family: str, types: int, length: int
) -> dict[str, Any]:
    """The contents of tokenizer_config.json."""
    names = {role: tokenizer.id_to_token(number) for role, number in vocabulary.roles.items()}
    names.setdefault("eod", names.get("sep", ""))
    theirs = FAMILIES[family]
    roles = ("unk", "pad") if theirs.is_gpt else ("unk", "pad", "cls", "sep", "mask")
    tokens = {role: names[role] for role in roles if role in names}
    if all(names.get(role) for role in theirs.ends if role):
        ends = dict(zip(("bos", "eos"), theirs.ends, strict=False))
        tokens |= {end: names[role] for end, role in ends.items() if role}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "padding_side": "left" if family == "xlnet" else "right",
        "clean_up_tokenization_spaces": False,
        "model_input_names": [
            "input_ids", *(["token_type_ids"] if types > 1 else []), "attention_mask"
        ],
        **{f"{role}_token": name for role, name in tokens.items()},
    }  # fmt: skip
