"""A tokenizer as transformers expects it: the family's marks around a text, and who plays what."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors

from clozelab.contracts import Vocabulary
from clozelab.models.interop.heads import ROBERTAS
from clozelab.models.interop.names import GPTS

# One text, and two; the number is the type of what follows.
_BERT = ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
_ROBERTA = ("{cls} $A {sep}", "{cls} $A {sep} {sep} $B:1 {sep}:1")
_TEMPLATES = {
    "bert": _BERT,
    "albert": _BERT,
    "distilbert": _BERT,
    **dict.fromkeys(ROBERTAS, _ROBERTA),
    "xlnet": ("$A {sep} {cls}:2", "$A {sep} $B:1 {sep}:1 {cls}:2"),
}
# GPT has marks around the texts of a task alone; its text never had them (GPT §3.3).
_GPT = ("{cls} $A {mask}", "{cls} $A {sep} $B {mask}")
_ROLES = ("unk", "pad", "cls", "sep", "mask")


def with_special_tokens(
    tokenizer: Tokenizer, family: str, vocabulary: Vocabulary, *, tuned: bool = False
) -> Tokenizer:
    """A copy that puts the family's marks around a text and takes the mask as a whole word.

    `tuned` is for a model that was fine-tuned.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    spaced = isinstance(copy.pre_tokenizer, pre_tokenizers.ByteLevel | pre_tokenizers.Metaspace)
    if spaced and "mask" in vocabulary.roles:
        # The space before a word is part of it; so it must be of the mask that stands for one.
        name = copy.id_to_token(vocabulary.roles["mask"])
        copy.add_special_tokens([AddedToken(name, lstrip=True, special=True)])
    copy.post_processor = _marked(copy, family, vocabulary, tuned=tuned)
    return copy


def _marked(tokenizer: Tokenizer, family: str, vocabulary: Vocabulary, *, tuned: bool) -> Any:
    """What puts the marks around a text, if the family has any."""
    steps: list[Any] = []
    if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        steps.append(processors.ByteLevel(trim_offsets=True))
    templates, roles = _TEMPLATES.get(family), vocabulary.roles
    ids = {role: roles[role] for role in ("cls", "sep") if role in roles}
    if tuned and family in GPTS:
        end = vocabulary.role("eod")
        templates, ids = _GPT, {role: roles.get(role, end) for role in ("cls", "sep", "mask")}
    if templates and {"cls", "sep"} <= set(ids):
        names = {role: tokenizer.id_to_token(number) for role, number in ids.items()}
        single, pair = (template.format(**names) for template in templates)
        marks = sorted({(names[role], number) for role, number in ids.items()})
        steps.append(processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks))
    return processors.Sequence(steps) if steps else None


def tokenizer_config(
    tokenizer: Tokenizer, vocabulary: Vocabulary, *, family: str, types: int, length: int
) -> dict[str, Any]:
    """The contents of tokenizer_config.json."""
    names = {role: tokenizer.id_to_token(number) for role, number in vocabulary.roles.items()}
    generates = family in GPTS
    roles = {role: names[role] for role in _ROLES if role in names}
    if generates:
        roles = {role: name for role, name in roles.items() if role in ("unk", "pad")}
    if generates or family == "xlnet":
        end = names.get("eod", names.get("sep"))
        roles |= {"eos": end} if end else {}
    elif family in (*ROBERTAS, "albert") and {"cls", "sep"} <= set(names):
        roles |= {"bos": names["cls"], "eos": names["sep"]}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "padding_side": "left" if family == "xlnet" else "right",
        "clean_up_tokenization_spaces": False,
        "model_input_names": [
            "input_ids", *(["token_type_ids"] if types > 1 else []), "attention_mask"
        ],
        **{f"{role}_token": name for role, name in roles.items()},
    }  # fmt: skip
