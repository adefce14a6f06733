"""Corpora: text → tokenizer → a store to train from."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clozelab.api.watching import Watch
from clozelab.interrupts import Stopped, signal_of
from clozelab.options import Few, Place, Places, command

if TYPE_CHECKING:
    from clozelab.text.building import BuildProgress
    from clozelab.text.store import Corpus


@command
def build_corpus(
    input: Places,
    *,
    out: Place,
    tokenizer: str | None = None,
    vocabulary: int | None = None,
    cased: bool | None = None,
    tokenizer_from: Place | None = None,
    extend: int | None = None,
    recipe: str | None = None,
    layout: Literal["auto", "prose", "sentences", "lines"] = "auto",
    field: str = "text",
    split: str = "train",
    encoding: str = "utf-8",
    sentences: Literal["auto", "nupunkt", "plain"] = "auto",
    phrases: bool = False,
    entities: Place | None = None,
    spans: Place | None = None,
    segmentation: bool = True,
    unique: bool = False,
    held_out: float = 0.01,
    words: int = 30_000,
    workers: Few | None = None,
    watch: Watch,
) -> Corpus:
    """Build a corpus: text → tokenizer → a store to train from.

    A build that was stopped goes on where the same call is made again.

    Args:
        input: files, folders, patterns, - (standard input), hf:OWNER/NAME
        out (DIR): the folder to make
        tokenizer: wordpiece (default), byte_bpe, char_bpe, unigram, chars
        vocabulary: how many ids (30,000)
        cased: keep capitals
        tokenizer_from (MODEL): a run, folder or file with a trained tokenizer
        extend: teach that tokenizer up to so many words of the text
        recipe: train the tokenizer that this recipe asks for
        layout: of text files: prose, a sentence a line with blank lines between documents, or a
            document a line
        field: of JSON lines and tables, CSV too (text)
        split: of a dataset (train)
        encoding: of text files (utf-8)
        sentences: by what text is split into sentences
        phrases: mine phrases, for knowledge masking
        entities (FILE): names, one a line, for knowledge masking
        spans (FILE): a TSV of document, start, end, kind, for the same
        segmentation: segment Chinese into words
        unique: leave out documents that repeat
        held_out: share of the tokens that is held out (0.01)
        words: whole words kept for ELMo (30,000)
        workers: processes (one a core)
    """
    from clozelab.config import recipe as recipes
    from clozelab.contracts import Counts
    from clozelab.text.building import BuildOptions, choose_tokenizer, cores, missing
    from clozelab.text.reading.sources import Reading
    from clozelab.text.store.build import build

    options = BuildOptions(
        reading=Reading(layout=layout, field=field, encoding=encoding, split=split),
        sentences=sentences,
        segment=segmentation,
        entities=entities,
        spans=spans,
        phrases=phrases,
        held_out=held_out,
        unique=unique,
        words=words,
        workers=cores() if workers is None else workers,
    )
    chosen = choose_tokenizer(
        kind=tokenizer,
        vocabulary=vocabulary,
        cased=cased,
        source=tokenizer_from,
        recipe=recipes.read(recipe).tokenizer if recipe else None,
        extend=extend,
    )
    for line in missing(options):
        watch.warn(line)
    counts = Counts()
    building = build(input, Path(out), tokenizer=chosen, options=options, counts=counts)
    try:
        corpus = _follow(building, watch)
    except KeyboardInterrupt as interrupt:
        building.close()
        raise Stopped(
            f"{out}: interrupted; finished parts are kept, the same command goes on",
            signal=signal_of(interrupt),
        ) from None
    for what, number in counts.numbers.items():
        place = counts.places[what]
        watch.say(f"{what}: {number:,}" + (f" (first at {place})" if place else ""))
    return corpus


def _follow(building: Generator[BuildProgress, None, Corpus], watch: Watch) -> Corpus:
    """Draw a build's progress until it is done."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    named, left = TextColumn("{task.description}"), TimeRemainingColumn()
    size, rate = DownloadColumn(), TransferSpeedColumn()
    with watch.bars(named, BarColumn(), size, rate, left) as bars:
        tasks: dict[str, TaskID] = {}
        while True:
            try:
                step = next(building)
            except StopIteration as done:
                corpus: Corpus = done.value
                return corpus
            watch.tell(step)
            if step.unit == "steps":
                bars.columns = (named, BarColumn(), MofNCompleteColumn(), left)
            if step.stage not in tasks:
                for task in tasks.values():
                    bars.remove_task(task)
                tasks = {step.stage: bars.add_task(step.stage, total=step.total)}
            bars.update(tasks[step.stage], completed=step.done)
