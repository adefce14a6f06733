"""A run of ours, or a corpus, read as a case: from its records, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from clozelab import files
from clozelab.config import slots
from clozelab.config.recipe import Recipe
from clozelab.diagnosis.case import Case, MaskToken, TrainingLog
from clozelab.diagnosis.text import facts_of
from clozelab.diagnosis.weights import damaged, tables
from clozelab.errors import UserError
from clozelab.nearest import counted
from clozelab.remote.access import is_url
from clozelab.runs.diagnostics import FIRST_TIMED, StepTimes, token_counts, unigram_entropy
from clozelab.runs.directory import PLAN, STUDY, TASK, Entry, Run, kept
from clozelab.text.loading import load
from clozelab.text.store.corpus import Corpus, Store, as_it_was, exists, open_stores, weighted
from clozelab.text.vocabulary import ROLES, roles_of

_READ = ("mask", "random", "same")  # the token that the encoder reads at a target


def read_run(place: str, data: Sequence[str] = (), *, log_only: bool = False) -> Case:
    """The case of a run, done or not, with the text that it was trained on, or `data`.

    With `log_only` only the log and the token counts of the text are read, which is fast.
    """
    path = Path(place)
    _refuse_several(path)
    run = Run.open(path)
    recipe, machine, result = run.recipe(), run.machine(), run.result() or {}
    log = _read_log(run, recipe, machine=machine, result=result)
    stores, unknown = ([], []) if log_only else _open_text(path, machine, data)
    language_model = any(
        slots.use("objectives", part) == log.objective
        for part in recipe.objectives
        if part.language_model or part.generates_input
    )
    masks = "targets" in recipe.masking.provides and recipe.corruption.mask > 0
    encoder: Any = recipe.encoder
    return Case(
        place=place,
        kind="run",
        state=_describe_state(run, log, result),
        log=log,
        recipe=recipe,
        text=facts_of(stores) if stores else None,
        language_model=language_model,
        predicts_masks=masks,
        origin=machine.get("from") or machine.get("teacher"),
        size=(encoder.layers, encoder.hidden_size),
        vocabulary=None if log_only else recipe.tokenizer.vocabulary,  # for a uniform guess
        entropy=_text_entropy(tuple(map(str, machine.get("data") or ()))) if log_only else None,
        mask_token=mask_token(_tokenizer(path, stores)) if masks and not log_only else None,
        tables=() if log_only else tables(path),
        damaged=None if log_only else damaged(path),
        accuracy=log.accuracy,
        unknown=unknown,
    )


def read_corpus(data: Sequence[str]) -> Case:
    """The case of corpora without a run."""
    stores = open_stores(data)
    text = facts_of(stores)
    return Case(
        place=", ".join(str(corpus.path) for corpus, _ in stores),
        kind="corpus",
        state=f"{text.tokens:,} tokens to train on, {text.held_out:,} held out",
        text=text,
        vocabulary=text.vocabulary,
        mask_token=mask_token(stores[0][0].tokenizer),
    )


def mask_token(tokenizer: Tokenizer | None, *, name: str | None = None) -> MaskToken | None:
    """The mask token of a tokenizer, by the given name or its usual spelling."""
    if tokenizer is None:
        return None
    roles = roles_of(tokenizer)
    known = [word for word in ROLES["mask"] if tokenizer.token_to_id(word) is not None]
    name = name or (known[0] if known else None)
    if name is None:
        return MaskToken(None, None, 0)
    number = tokenizer.token_to_id(name)
    with_mask, plain = (
        tokenizer.encode(text, add_special_tokens=False).ids for text in (f"a {name} b", "a b")
    )
    pieces = 1 if number in with_mask else max(len(with_mask) - len(plain), 0)
    same = next((role for role, at in roles.items() if at == number and role != "mask"), None)
    others = [word for word in known if word != name]
    return MaskToken(name, number, pieces, same, others)


def _refuse_several(path: Path) -> None:
    """Refuse folders of several runs."""
    if (path / STUDY).exists():
        raise UserError(f"{path}: is a study; name the folder of one of its runs, such as cells/…")
    if (path / PLAN).exists() or (path / TASK).exists():
        raise UserError(f"{path}: is a fine-tuning run; name a pretraining run")


def _open_text(
    path: Path, machine: Mapping[str, Any], data: Sequence[str]
) -> tuple[list[Store], list[str]]:
    """The corpora of a run, as they were then, or a sentence on why they are missing."""
    recorded = machine.get("data") or []
    if data:
        stores = open_stores(data)
        own = _tokenizer(path, ())
        if own is not None and own.get_vocab() != stores[0][0].tokenizer.get_vocab():
            raise UserError(
                f"{data[0]}: its tokenizer is not that of {path}; build the corpus with"
                f" --tokenizer-from {path}"
            )
        return stores, []
    if not recorded:
        return [], ["the text: the run records none; give --data CORPUS"]
    if gone := [one for one in recorded if not exists(one.rpartition(":")[0])]:
        return [], [
            f"the text: {gone[0].rpartition(':')[0]} is missing; give its new place with --data"
            " CORPUS"
        ]
    fingerprints = machine.get("fingerprint") or [""] * len(recorded)
    try:
        return open_stores(
            [as_it_was(*one) for one in zip(recorded, fingerprints, strict=True)]
        ), []
    except UserError as error:  # the log can be read without it
        return [], [f"the text: {error}"]


@lru_cache(maxsize=64)
def _text_entropy(places: tuple[str, ...]) -> float | None:
    """The unigram entropy of the text of a run, if it is on this machine."""
    try:
        named = [weighted(place) for place in places]
        if not named or any(is_url(place) for place, _ in named):
            return None
        stores = [(Corpus.open(place, trusting=True), weight) for place, weight in named]
        return unigram_entropy(token_counts(stores))
    except (UserError, OSError):
        return None


def _tokenizer(path: Path, stores: Sequence[Store]) -> Tokenizer | None:
    try:
        return stores[0][0].tokenizer if stores else load(path)
    except UserError:
        return None


def _read_log(
    run: Run, recipe: Recipe, *, machine: Mapping[str, Any], result: Mapping[str, Any]
) -> TrainingLog:
    entries = run.events("step")
    name = _objective(recipe, entries)
    logged = np.array([isinstance(entry.get(name), dict) for entry in entries], dtype=bool)
    rows = [entry for entry, is_logged in zip(entries, logged, strict=True) if is_logged]

    def column(*names: str) -> Any:
        """A number of each line; NaN if it is missing or was not finite."""
        values = [next((row[n] for n in names if row.get(n) is not None), None) for row in rows]
        return np.array(values, dtype=np.float64)

    losses = [row[name].get("loss") for row in rows]
    on_held_out = [entry for entry in kept(run.events("held_out"), result) if name in entry]
    held_out = [
        (float(entry["step"]), entry[name]["loss"])
        for entry in on_held_out
        if entry[name].get("loss") is not None
    ]
    return TrainingLog(
        objective=name,
        total=recipe.schedule.total,
        steps=column("step"),
        loss=np.array(losses, dtype=np.float64),
        norm=column("norm"),
        learning_rate=column("learning_rate", "rate"),  # by its old name in old records
        tokens=_tokens(entries, result)[logged],
        held_out=held_out,
        not_finite=_not_finite(run, rows, name),
        ended=result.get("steps", 0),
        warmup=recipe.schedule.warmed,
        clip=recipe.optimiser.clip,
        times=_times(entries),
        limited_by=result.get("limited_by"),
        accuracy=_accuracy(on_held_out, rows, name),
        settings={key: machine.get(key) for key in ("precision", "device", "workers")},
    )


def _objective(recipe: Recipe, entries: Sequence[Entry]) -> str:
    """The language model of a run, or else its first objective."""
    parts = sorted(
        recipe.objectives, key=lambda part: not (part.language_model or part.generates_input)
    )
    names = [slots.use("objectives", part) for part in parts]
    logged = {name for entry in entries for name in entry}
    return next((name for name in names if name in logged), names[0])


def _tokens(entries: Sequence[Entry], result: Mapping[str, Any]) -> Any:
    """The tokens seen after each line; if the total is known, by the share of steps."""
    steps, tokens = (
        np.array([entry.get(key) for entry in entries], dtype=np.float64)
        for key in ("step", "tokens")
    )
    if "tokens" in result and result.get("steps"):
        return steps * (result["tokens"] / result["steps"])
    return np.cumsum(tokens)


def _not_finite(run: Run, rows: Sequence[Entry], name: str) -> list[tuple[int, str]]:
    """The steps with values that were not finite, and which value of each."""
    # A loss scaler skips a step whose gradient is not finite, now and then on purpose.
    skipped = [row["step"] for row in rows if "norm" in row and row["norm"] is None]
    many = len(skipped) > len(rows) / 10
    problems = dict.fromkeys(skipped if many else [], "the gradient's norm")
    problems |= {row["step"]: f"the loss of {name}" for row in rows if row[name]["loss"] is None}
    for entry in run.events("diverged"):
        step, what = entry["step"], str(entry.get("what", ""))
        problems[step] = what.removeprefix(f"step {step}: ")
    return sorted(problems.items())


def _times(entries: Sequence[Entry]) -> StepTimes | None:
    """The times of the steps on the last device: a run may go on on one that has other times."""
    every = {part.name for part in fields(StepTimes)}
    timed = [entry for entry in entries if entry["step"] > FIRST_TIMED and "waited" in entry]
    if not timed:
        return None
    names = every & timed[-1].keys()
    alike = [entry for entry in timed if every & entry.keys() == names]
    return StepTimes(**{name: sum(entry[name] for entry in alike) for name in names})


def _accuracy(held_out: Sequence[Entry], rows: Sequence[Entry], name: str) -> dict[str, float]:
    """Accuracies by the token that was read, on held-out text or else in the last lines."""
    last = [entry[name] for entry in held_out[-1:] or rows[-max(3, len(rows) // 20) :]]
    means = {}
    for what in _READ:
        values = [line[f"accuracy_{what}"] for line in last if f"accuracy_{what}" in line]
        if values:
            means[what] = float(np.mean(values))
    return means


def _describe_state(run: Run, log: TrainingLog, result: Mapping[str, Any]) -> str:
    steps = f"step {log.done:,} of {log.total:,}"
    if result or log.done >= log.total:
        return f"done, {counted(log.done, 'step')}"
    if files.is_locked(run.path):
        return f"running, {steps}"
    return f"stopped, {steps}" if log.done else "no step yet"


def measured(case: Case, means: Mapping[str, Mapping[str, float]]) -> Case:
    """The case with the results of its model on held-out text."""
    for name, mean in means.items():
        seen = {what: mean[f"accuracy_{what}"] for what in _READ if f"accuracy_{what}" in mean}
        if seen:
            log = case.log or empty_log(name)
            log = replace(log, held_out=[*log.held_out, (float(log.done), mean["loss"])])
            return replace(case, accuracy=seen, log=log)
    return case


def empty_log(objective: str) -> TrainingLog:
    """A log without lines."""
    empty = np.zeros(0)
    return TrainingLog(objective, 0, empty, empty, empty, empty, empty)
