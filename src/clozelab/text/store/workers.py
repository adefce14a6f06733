"""The processes that tokenise: handed shards, never outliving their parent, deaf to Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tokenizers import Tokenizer

from clozelab import interrupts
from clozelab.contracts import Counts
from clozelab.errors import UserError
from clozelab.remote import access
from clozelab.text.building import BuildOptions, BuildProgress
from clozelab.text.encoding import CachedTokenizer
from clozelab.text.reading.sources import BytesRead, documents, total_bytes
from clozelab.text.store import shards

_WORK = "work"  # in the build's folder, for its processes


def tokenised(
    inputs: list[str],
    folder: Path,
    settings: shards.TokenisingSettings,
    *,
    spans: dict[str, shards.Spans],
    options: BuildOptions,
    counts: Counts,
) -> Generator[BuildProgress, None, list[str]]:
    """Tokenise everything, shard by shard; returns the shards' names in the text's order."""
    total, read = total_bytes(inputs, options.reading), BytesRead()
    digest = settings.digest()
    # A process that dies while it starts reads nothing more: what is handed to it at its start must
    # fit into a pipe, or whoever hands it over would wait for ever.
    settings.write(folder / _WORK)
    names: list[str] = []
    running: dict[Future[None], int] = {}
    with interrupts.held():
        pool = ProcessPoolExecutor(
            options.workers,
            mp_context=get_context("spawn"),
            initializer=start,
            initargs=(str(folder),),
        )
    stream = documents(inputs, options.reading, counts, progress=read)
    try:
        started: set[str] = set()
        done = 0
        for job in shards.jobs(stream, spans, counts):
            name = job.name(digest)
            names.append(name)
            if name not in started and not shards.sound(folder / f"{name}.npz"):
                started.add(name)
                with interrupts.held():
                    running[pool.submit(run, job, name)] = read.done
            while len(running) > options.workers:
                done = max(done, _finished(running))
                yield BuildProgress("tokenising", done, total)
            yield BuildProgress("tokenising", done, total)
        while running:
            done = max(done, _finished(running))
            yield BuildProgress("tokenising", done, total)
    finally:
        stream.close()
        pool.shutdown(cancel_futures=True)
        (folder / _WORK).unlink(missing_ok=True)
    if not names:
        raise UserError(f"{', '.join(map(access.shown, inputs))}: no text found there")
    return names


def _finished(running: dict[Future[None], int]) -> int:
    """Wait for a shard or two; returns how far into the input they reach."""
    reached = 0
    for future in interrupts.first_done(running):
        future.result()
        reached = max(reached, running.pop(future))
    return reached


class _Process:
    """What a worker process holds between jobs."""

    settings: shards.TokenisingSettings
    tokenizer: CachedTokenizer
    counts: Counts
    folder: Path


def start(folder: str) -> None:
    """Make ready a worker process; it ends when its parent does, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    gc.set_threshold(1_000_000)  # millions of strings and no cycles: looking often costs a fifth
    interrupts.end_with_parent()
    _Process.folder = Path(folder)
    _Process.settings = settings = shards.TokenisingSettings.read(_Process.folder / _WORK)
    _Process.counts = Counts()
    tokenizer = Tokenizer.from_str(settings.tokenizer)
    _Process.tokenizer = CachedTokenizer(
        tokenizer, segment=settings.segment, counts=_Process.counts
    )


def run(job: shards.ShardJob, name: str) -> None:
    """Tokenise a job in a worker process into the shard of that name."""
    counts = _Process.counts
    counts.clear()
    arrays = shards.tokenise(job, _Process.settings, _Process.tokenizer, counts)
    shards.save(arrays, counts, _Process.folder / f"{name}.npz")
