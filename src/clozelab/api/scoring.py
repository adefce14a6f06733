"""Scores without tuning: how likely texts are to a model, minimal pairs, cloze facts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from clozelab.api.models import identity, predicting, warn_of_length
from clozelab.api.tasks import TaskFiles
from clozelab.api.texts import (
    count_empty,
    lines_of,
    refuse_empty,
    refuse_existing,
    shown_name,
    sound,
    write_lines,
    write_record,
)
from clozelab.api.watching import Watch
from clozelab.errors import UserError
from clozelab.nearest import counted
from clozelab.options import ModelLike, Overwrite, Place, Places, Texts, command
from clozelab.runs.options import Device

if TYPE_CHECKING:
    from clozelab.contracts import Pieces
    from clozelab.scoring.facts import FactFiles, FactScores
    from clozelab.scoring.likelihood import Method, TextScorer
    from clozelab.scoring.pairs import PairFiles, PairScores
    from clozelab.scoring.texts import TextScores


@command
def score(
    model: ModelLike,
    *,
    text: Texts | None = None,
    file: Places = (),
    pairs: Place | None = None,
    facts: Place | None = None,
    method: Literal["original", "within_word_l2r", "causal"] | None = None,
    by: Literal["token", "word", "sentence"] = "word",
    data: Place | None = None,
    out: Place | None = None,
    items: Place | None = None,
    json: bool = False,
    overwrite: Overwrite = False,
    precision: Literal["fp32", "tf32", "bf16"] | None = None,
    device: Device | None = None,
    files: TaskFiles,
    watch: Watch,
) -> TextScores | PairScores | FactScores:
    """Compute how likely texts are under a model, which of two it prefers, or which facts it knows.

    For a masked language model this is the pseudo-log-likelihood: each token is masked in a copy of
    the text and predicted from the others. Causal models, XLNet (in the order of the text) and ELMo
    (the mean of both directions) have exact log-likelihoods. A model trained with both objectives,
    such as GPT-BERT, is scored as a masked language model unless --method is causal. All values are
    in nats.

    Args:
        text: a text; may be given several times
        file: a file with one text per line; may be given several times (standard input)
        pairs (NAME): minimal pairs: blimp, zhoblimp, crows_pairs, or a file with the columns good
            and bad and, optionally, paradigm and phenomenon
        facts (NAME): cloze facts: lama_trex, or a file with the columns sentence (with [MASK]),
            object and relation
        method: mask each token alone (original), or with the rest of its word (within_word_l2r), or
            predict each token from those before it (causal)
        by: the unit of a line or a colour (word)
        data (CORPUS): the corpus whose words an ELMo predicts
        out (FILE): write the scores: texts as lines, pairs and facts as a JSON record
        items (FILE.jsonl): write both log-likelihoods of each minimal pair
        json: print JSON instead of tables and fields
        precision: precision of the arithmetic (tf32 on a GPU, else fp32)
    """
    if text is not None and file:
        raise UserError("--file and --text cannot be combined; give one of them")
    sets = sum(each is not None for each in (pairs, facts))
    if sets + bool(text is not None or file) > 1:
        raise UserError("score takes texts, --pairs or --facts; give only one of the three")
    if items is not None and pairs is None:
        raise UserError("--items needs minimal pairs; give --pairs, or leave it out")
    if files.columns and not sets:
        raise UserError("--columns names the columns of a table; leave it out with plain texts")
    refuse_existing(out, items, overwrite=overwrite)
    how: dict[str, Any] = {"device": device, "precision": precision}
    if not sets:
        texts, places = _texts(text, file, watch)
        text_scorer = _scorer(model, method, data, watch)

        from clozelab.scoring.likelihood import follow
        from clozelab.scoring.texts import scored, with_empty

        pieces = _read(text_scorer, texts, places)
        warn_of_length(text_scorer.model, text_scorer.longest(pieces), watch)
        likelihoods = watch.drain(follow(text_scorer, pieces, **how), "scoring", 1)
        written = [each for each in texts if each.strip()]
        scores = with_empty(scored(text_scorer, written, likelihoods), texts)
        if scores.unknown:
            watch.warn(f"scored as the unknown token: {counted(scores.unknown, 'token')}")
        if out is not None:
            write_lines(out, scores.lines(by=by, as_json=json))
            watch.say(out)
        return scores
    source = _files(pairs, facts, files)  # before torch, which takes seconds to load
    text_scorer = _scorer(model, method, data, watch)
    work: Any = source.follow(text_scorer, **how)
    result: PairScores | FactScores = watch.drain(work, source.name, 1)
    if out is not None:
        of = {"model": identity(text_scorer.model), "digests": source.digests()}
        write_record(out, {**of, **result.as_json()})
    if items is not None:
        write_lines(items, cast("PairScores", result).items())
    return result


def _files(pairs: str | None, facts: str | None, files: TaskFiles) -> PairFiles | FactFiles:
    """The files of what goes by a name, or a file of one's own."""
    from clozelab.finetuning.request import columns_of
    from clozelab.scoring.facts import find_facts
    from clozelab.scoring.pairs import find_pairs

    how: dict[str, Any] = {"root": files.task_data, "columns": columns_of(files.columns)}
    return find_facts(str(facts), **how) if pairs is None else find_pairs(pairs, **how)


def _scorer(model: Any, method: Method | None, data: str | None, watch: Watch) -> TextScorer:
    """The model with the head that predicts tokens."""
    from clozelab.scoring.likelihood import scorer

    loaded = predicting(model, watch)
    spelling = None
    if data is not None:
        from clozelab.text.store import Corpus

        corpus = Corpus.open(data)
        if corpus.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
            raise UserError(
                f"{data}: its tokenizer is not the model's; name the corpus that the model"
                " was trained on"
            )
        spelling = corpus.spelling
    return scorer(loaded, method, spelling=spelling)


def _texts(
    text: Sequence[str] | None, file: Sequence[str], watch: Watch
) -> tuple[list[str], list[str]]:
    """Texts, and where each stands."""
    if text is not None:
        if not text:
            raise UserError("score needs a text; the list of texts is empty")
        texts = [sound(one, "--text") for one in text]
        refuse_empty(texts, "--text")
        return texts, [f"--text {number}" for number in range(1, len(texts) + 1)]
    if not file and sys.stdin.isatty():
        watch.say("enter texts, one per line, then Ctrl-D:")
    texts, places = [], []
    for name in file or ["-"]:
        lines = lines_of(name)
        count_empty(lines, name, watch)
        texts += lines
        places += [f"{shown_name(name)}:{number}" for number in range(1, len(lines) + 1)]
    return texts, places


def _read(text_scorer: TextScorer, texts: Sequence[str], places: Sequence[str]) -> Pieces:
    """The tokens of the texts that are not empty; texts that cannot be scored are refused."""
    from clozelab.scoring.likelihood import read

    written = [number for number, text in enumerate(texts) if text.strip()]
    places_of = [places[number] for number in written]
    return read(text_scorer, [texts[n] for n in written], places=places_of.__getitem__)


def check_texts(model: ModelLike, file: str, watch: Watch) -> None:
    """Refuse texts that a model cannot score."""
    texts, places = _texts(None, [file], watch)
    _read(_scorer(model, None, None, watch), texts, places)
