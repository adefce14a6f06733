"""Processes that a test interrupts: they hear Ctrl-C, also where the tests themselves are deaf."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def started(words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A process of its own group, its messages in a pipe.

    In a background job SIGINT is ignored, and whatever a job starts inherits that.
    """
    source = str(Path(__file__).resolve().parents[2] / "src")
    options = {"env": {**os.environ, "PYTHONPATH": source}, **options}
    given = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, **options}
    return subprocess.Popen(words, preexec_fn=_hear, **given)


def _hear() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
