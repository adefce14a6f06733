"""Surprisal: how likely each token of a text is to a model, and which of two texts is likelier."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clozelab.errors import UserError

if TYPE_CHECKING:
    from clozelab.contracts import Spelling
    from clozelab.models.model import Model
    from clozelab.scoring.texts import ScoredText, Unit
    from clozelab.serving.folders import Folders

_SECONDS = 60.0  # for one request; a masked model reads a text once per token


def scored(model: Model, texts: Sequence[str], folders: Folders) -> dict[str, Any]:
    """Texts with the surprisal of each token and each word, and their log-likelihoods."""
    from clozelab.scoring import likelihood
    from clozelab.scoring.texts import LEVELS
    from clozelab.scoring.texts import scored as with_pieces

    text_scorer = likelihood.scorer(model, spelling=_spelling(model, folders))
    names = ("the text",) if len(texts) == 1 else ("the first text", "the second text")
    pieces = likelihood.read(text_scorer, texts, places=names.__getitem__)
    work, end = likelihood.follow(text_scorer, pieces), time.monotonic() + _SECONDS
    while True:
        try:
            done, total = next(work)
        except StopIteration as finished:
            scores = with_pieces(text_scorer, texts, finished.value)
            break
        if time.monotonic() > end and done < total:
            work.close()
            raise UserError(
                f"scoring this text with {model.place} would take over {_SECONDS:.0f}"
                " seconds; shorten it, or use clozelab score"
            )
    return {
        "step": model.step,
        "method": scores.method,
        "levels": LEVELS,
        "unknown": scores.unknown,
        "texts": [_text_json(text) for text in scores.texts],
    }


def _text_json(text: ScoredText) -> dict[str, Any]:
    return {
        "log_likelihood": text.log_likelihood,
        "perplexity": text.perplexity if text.perplexity < float("inf") else None,
        "predicted": text.predicted,
        "tokens": _strip_json(text, "token"),
        "words": _strip_json(text, "word"),
    }


def _strip_json(text: ScoredText, by: Unit) -> list[dict[str, Any]]:
    """The pieces of the text in order; those without surprisal have no level."""
    parts = []
    for shown, piece in text.strip(by):
        if piece is not None and piece.log_likelihood is not None:
            nats = {"surprisal": piece.surprisal, "level": piece.level}
            parts.append({"text": shown, "piece": piece.text, **nats})
        elif shown:
            parts.append({"text": shown})
    return parts


def _spelling(model: Model, folders: Folders) -> Spelling | None:
    """The words that an ELMo predicts: those of its corpus, which must be served, too."""
    if model.recipe.encoder.reads != "words":
        return None
    from clozelab.text.store import Corpus

    for folder in folders.of("corpus"):
        corpus = Corpus.open(folder.path, trusting=True)
        if corpus.tokenizer.get_vocab() == model.tokenizer.get_vocab():
            return corpus.spelling
    raise UserError(
        f"{model.place}: predicts the words of its training corpus; give clozelab serve that"
        " corpus, too"
    )
