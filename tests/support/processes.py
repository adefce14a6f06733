"""Processes that tests start: none is waited for without end, none is left behind.

`run_process` waits for one that ends by itself, `started` begins one that the test interrupts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
LIMIT = 240  # seconds; the longest takes twenty on two idle cores


def run_process(
    words: Sequence[str],
    *,
    input: Any = None,
    check: bool = False,
    capture_output: bool = False,
    timeout: float = LIMIT,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """What `subprocess.run` returns, in a group of its own that ends as a whole.

    With `subprocess.run`, children of a process that ran out of time keep its pipes open, and it
    waits for them without end. Here each of them says where it stands, and all are killed.
    """
    if capture_output:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    environment = {**(options.pop("env", None) or os.environ), "PYTHONFAULTHANDLER": "1"}
    process = subprocess.Popen(words, env=environment, start_new_session=True, **options)
    try:
        out, err = process.communicate(input, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # faulthandler prints the stacks
        time.sleep(1)
        _kill(process)
        out, err = process.communicate()
        raise AssertionError(f"{words} had not ended after {timeout} s\n{out}\n{err}") from None
    except BaseException:
        _kill(process)
        raise
    if check and process.returncode:
        raise AssertionError(f"{words} ended with {process.returncode}\n{out}\n{err}")
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def started(words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A process of its own group, its messages in a pipe.

    In a background job SIGINT is ignored, and whatever a job starts inherits that.
    """
    options = {"env": {**os.environ, "PYTHONPATH": SOURCE}, **options}
    given = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options}
    return subprocess.Popen(words, preexec_fn=_hear, **given)


def _kill(process: subprocess.Popen[Any]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _hear() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
