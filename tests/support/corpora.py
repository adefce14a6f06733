"""Corpora made for tests: small texts, builds in this process, and commands in processes apart."""

from __future__ import annotations

import gc
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import chdir, redirect_stderr, redirect_stdout
from hashlib import sha256
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from support.processes import run_process, start_process
from tokenizers import Tokenizer

from clozelab import data, files
from clozelab.cli import main
from clozelab.contracts import Counts
from clozelab.text.building import BuildOptions
from clozelab.text.store import Corpus, engines
from clozelab.text.store.build import add as add_text
from clozelab.text.store.build import build as make
from clozelab.text.store.manifest import render
from clozelab.text.tokenizers import ByteBpe, TokenizerSpec

SOURCE = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200", "NO_COLOR": ""}
# A build of many shards from little text: only the parent cuts the text, so only it is told.
DRIVER = """
import sys
from clozelab.cli import main
from clozelab.text.store import build, shards

def interrupt(*_, **__):
    raise KeyboardInterrupt

if __name__ == "__main__":
    shards.SHARD = int(sys.argv[1])
    if sys.argv[0].endswith("tokenise_only.py"):
        build.finish = interrupt
    print("begun", flush=True)
    sys.exit(main(sys.argv[2:]))
"""


def texts(count: int = 40) -> list[str]:
    """The first documents of the embedded corpus."""
    with gzip.open(data.corpus(), "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line, _ in zip(lines, range(count), strict=False)]


def write(file: Path, documents: Sequence[str]) -> str:
    """Documents as JSON lines; returns the file's name."""
    lines = [json.dumps({"text": text}) + "\n" for text in documents]
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


class _HerePool:
    """A pool whose jobs are done here and at once: a process costs more than a small text."""

    def __init__(self, *_: Any, initializer: Callable[..., None], initargs: Any, **__: Any) -> None:
        handler, threshold = signal.getsignal(signal.SIGINT), gc.get_threshold()
        with patch.dict(os.environ):
            initializer(*initargs)
        signal.signal(signal.SIGINT, handler)
        gc.set_threshold(*threshold)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do a job."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: Any) -> None:
        """There is nothing to end."""


def build(
    inputs: str | list[str],
    out: Path,
    tokenizer: TokenizerSpec | Tokenizer | None = None,
    *,
    counts: Counts | None = None,
    **options: Any,
) -> Corpus:
    """Build a corpus, all of it in this process unless `workers` says otherwise."""
    if "workers" not in options:
        with patch.object(engines, "ProcessPoolExecutor", _HerePool):
            return build(inputs, out, tokenizer, counts=counts, workers=1, **options)
    building = make(
        [inputs] if isinstance(inputs, str) else inputs,
        out,
        tokenizer=tokenizer or ByteBpe(vocabulary=600),
        options=BuildOptions(**options),
        counts=Counts() if counts is None else counts,
    )
    return _finished(building)


def add(inputs: str, out: Path, *, counts: Counts | None = None, **options: Any) -> Corpus:
    """Add a text to a corpus, all of it in this process."""
    chosen, counts = BuildOptions(**options), Counts() if counts is None else counts
    with patch.object(engines, "ProcessPoolExecutor", _HerePool):
        return _finished(add_text([inputs], out, options=chosen, counts=counts))


def _finished(building: Generator[Any, None, Corpus]) -> Corpus:
    while True:
        try:
            next(building)
        except StopIteration as done:
            corpus: Corpus = done.value
            return corpus


def decoded(corpus: Corpus, split: str = "train") -> list[str]:
    """The text of every document of a split."""
    documents = corpus.documents(split)
    first = np.asarray(documents.sentences)[documents.documents]
    return [
        corpus.tokenizer.decode(documents.ids[a:b].tolist(), skip_special_tokens=False)
        for a, b in zip(first[:-1], first[1:], strict=True)
    ]


def digests(folder: Path) -> dict[str, str]:
    """The checksum of every file under a folder, by its name there; its marker and lock aside."""
    own_files = sorted(
        file for file in folder.rglob("*") if file.is_file() and not files.is_own(file)
    )
    return {str(f.relative_to(folder)): sha256(f.read_bytes()).hexdigest() for f in own_files}


def alter(store: Path, **values: Any) -> None:
    """Change what the manifest of a store says, and seal it again."""
    manifest = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    (store / "manifest.json").write_text(render({**manifest, **values}), encoding="utf-8")


def run(
    *arguments: str, cwd: Path | None = None, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A command, all of it in this process; what a user sees of it with its output in a pipe."""
    stdin = TextIOWrapper(BytesIO((text or "").encode()), encoding="utf-8")
    out, err = StringIO(), StringIO()
    with (
        chdir(cwd or "."),
        patch.dict(os.environ, COLUMNS="200"),
        patch.object(sys, "stdin", stdin),
        patch.object(engines, "ProcessPoolExecutor", _HerePool),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def run_apart(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return run_process(
        [sys.executable, "-m", "clozelab", *arguments],
        env=ENVIRONMENT,
        input=text or "",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence a mistake is answered with, and nothing else."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("clozelab: ")
    return lines[0]


def start(
    folder: Path, *arguments: str, shard: int, workers: int = 2, whole: bool = True
) -> tuple[list[str], subprocess.Popen[str]]:
    """A build of many shards in a session of its own; the command, and it running.

    One that is not `whole` is interrupted when all shards are finished.
    """
    script = folder / ("driver.py" if whole else "tokenise_only.py")
    script.write_text(DRIVER, encoding="utf-8")
    command = [sys.executable, str(script), str(shard), "corpus", "build", *arguments]
    command += ["--workers", str(workers)]
    process = start_process(command, env=ENVIRONMENT, stdout=subprocess.PIPE, encoding="utf-8")
    return command, process
