"""Processes that tests start: none is waited for without end, none is left behind.

`run_process` waits for one that ends by itself, `started` begins one that the test interrupts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
LIMIT = 240  # seconds; the longest takes twenty on two idle cores


def run_process(
    command: Sequence[str],
    *,
    input: Any = None,
    check: bool = False,
    capture_output: bool = False,
    timeout: float = LIMIT,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """What `subprocess.run` returns; a process that runs out of time ends with all it started.

    With `subprocess.run`, its children keep its pipes open and are waited for without end. Here
    each of them says where it stands, and all are killed.
    """
    if capture_output:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    environment = {**(options.pop("env", None) or os.environ), "PYTHONFAULTHANDLER": "1"}
    process = subprocess.Popen(command, env=environment, **options)
    try:
        out, err = process.communicate(input, timeout=timeout)
    except BaseException as error:
        members = family(process.pid)
        _send(members, signal.SIGABRT)  # at which faulthandler prints the stacks
        time.sleep(1)
        _send(members, signal.SIGKILL)
        out, err = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise AssertionError(
                f"{command} was not done after {timeout} s\n{out}\n{err}"
            ) from None
        raise
    if check and process.returncode:
        raise AssertionError(f"{command} ended with {process.returncode}\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A process of its own group, its messages in a pipe.

    In a background job SIGINT is ignored, and whatever a job starts inherits that.
    """
    options = {"env": {**os.environ, "PYTHONPATH": SOURCE}, **options}
    all_options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options}
    return subprocess.Popen(command, preexec_fn=_hear, **all_options)


def family(process: int) -> list[int]:
    """A process and all that it started, whatever group they are in."""
    members = [process]
    for member in members:
        for thread in Path(f"/proc/{member}/task").glob("*/children"):
            with suppress(OSError):  # it has just ended
                members += map(int, thread.read_text(encoding="ascii").split())
    return members


def _send(members: list[int], number: signal.Signals) -> None:
    for member in members:
        with suppress(ProcessLookupError):
            os.kill(member, number)


def _hear() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
