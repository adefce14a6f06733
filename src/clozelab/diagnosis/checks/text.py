"""Checks of the text: split words, unknown tokens, repetition, leaked held-out text."""

from __future__ import annotations

from clozelab.diagnosis.case import Case
from clozelab.diagnosis.result import CheckResult, caution, healthy, ill
from clozelab.runs.diagnostics import REPEATED, SMALL_VOCABULARY

_SPLIT, _MUCH = 3.0, 2.2  # tokens per word; English by 8,192 pieces has 1.3
_UNKNOWN, _SOME = 0.02, 0.002  # of the tokens
_SHARED, _LITTLE = 0.05, 0.01  # of the held-out text; Wikipedia and novels have less than 0.005
_AGAIN = 0.1  # of the text
_SHOWN = 80  # characters of an example


def splitting(case: Case) -> CheckResult | None:
    """Check whether the tokenizer splits too many words."""
    text = case.text
    if text is None or not text.tokens:
        return None
    evidence = f"{text.tokens_a_word:.2f} tokens per word with a vocabulary of {text.vocabulary:,}"
    if text.tokens_a_word <= _MUCH:
        return healthy("the tokenizer knows the words of the text", evidence)
    if text.characters:
        title = "the tokenizer splits the text into characters"
        cause = "it is a character tokenizer"
    elif text.vocabulary < SMALL_VOCABULARY:
        title = "the tokenizer splits nearly every word"
        cause = f"a vocabulary of {text.vocabulary:,} has no room for words"
    else:
        title = "the tokenizer splits nearly every word"
        cause = "it was trained on different text"
    say = ill if text.tokens_a_word > _SPLIT and not text.characters else caution
    remedy = "build the corpus with a tokenizer trained on it: --vocabulary 8000 or more"
    return say(title, evidence, cause=cause, remedy=remedy)


def unknown_tokens(case: Case) -> CheckResult | None:
    """Check for characters that the tokenizer does not know."""
    text = case.text
    if text is None or not text.tokens:
        return None
    evidence = f"{text.unknown:.2%} of the tokens"
    if text.unknown < _SOME:
        return healthy("the tokenizer knows the characters of the text", f"{evidence} are unknown")
    say = ill if text.unknown >= _UNKNOWN else caution
    return say(
        "the tokenizer does not know much of the text",
        f"{evidence} are the unknown token, which carries no information",
        cause="the tokenizer was trained on another script or language",
        remedy="build the corpus with a tokenizer trained on it, or with byte_bpe, which knows"
        " every character",
    )


def shared(case: Case) -> CheckResult | None:
    """Check whether held-out text is trained on."""
    text = case.text
    if text is None:
        return None
    if text.shared is None:
        if text.held_out:
            return None
        return caution(
            "no text is held out",
            f"all {text.tokens:,} tokens are training text",
            cause="the corpus was built without a held-out part, or has a single short document",
            remedy="build the corpus with --held-out 0.01, to see overfitting",
        )
    evidence = f"{text.shared:.1%} of the held-out text are sentences of the training text"
    if text.shared < _LITTLE:
        return healthy("held-out text is new to the model", evidence)
    say = ill if text.shared >= _SHARED else caution
    return say(
        "leakage: held-out text is also in the training text, so its loss is too low",
        f"{evidence}, for instance “{text.example[:_SHOWN]}”",
        cause="repeated documents are in both splits",
        remedy="build the corpus with --unique lines, or with --near-duplicates 0.8",
    )


def repeated(case: Case) -> CheckResult | None:
    """Check whether the text repeats itself."""
    text = case.text
    if text is None or not text.tokens:
        return None
    evidence = f"{text.repeated:.1%} of its beginning are repeated sentences"
    if text.repeated < _AGAIN:
        return healthy("the text repeats little", evidence)
    say = ill if text.repeated >= REPEATED else caution
    return say(
        "the text repeats itself",
        evidence,
        cause="boilerplate, or duplicate documents",
        remedy="build the corpus with --unique lines",
    )
