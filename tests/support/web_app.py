"""Folders made for the web app: two runs with several checkpoints, and a process that serves."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from support.pretrain_runs import store
from support.processes import start_process

import clozelab

MADE: dict[str, Any] = {"size": "tiny", "budget": "3steps", "device": "cpu", "workers": 0}
SAVED: dict[str, Any] = {"save_every": 1, "keep": 0, "evaluate_every": 0, "progress": False}
SMALL = {"schedule.batch_size": 4, "blocks.length": 32}


@cache
def runs() -> Path:
    """A folder with the runs bert and roberta, each with checkpoints of steps 1 to 3."""
    folder = Path(tempfile.mkdtemp(prefix="clozelab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for recipe, kind in (("bert", "wordpiece"), ("roberta", "byte_bpe")):
        out = folder / recipe
        clozelab.pretrain(recipe, data=store(kind), out=out, set=SMALL, **MADE, **SAVED)
    return folder


@contextmanager
def serving(folders: Sequence[Path | str], *options: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a server in a process of its own, and what it said; Ctrl-C ends it."""
    command = [sys.executable, "-m", "clozelab", "serve", *map(str, folders), *options]
    process = start_process(command)
    assert process.stderr is not None
    messages: list[str] = []
    try:
        while not (address := re.search(r"http://\S+", "".join(messages))):
            messages.append(process.stderr.readline())
            assert messages[-1], messages
        yield address[0], messages
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
        code = process.wait(timeout=60)
        messages.append(process.stderr.read())
        process.stderr.close()
    assert code == 0 and "interrupted" not in messages[-1], (code, messages)
