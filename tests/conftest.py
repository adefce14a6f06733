"""What every test runs under, wherever the suite is started.

Where there is no GPU, Triton is told, before it is first imported, to interpret its kernels. A
background job ignores SIGINT: tests that raise it in their own process must hear it. What was
imported and collected stays to the end: the garbage collector need not go through it again, nor
look after every few hundred objects. The process that hands out the tests to others collects none,
and imports no torch before it starts them.
"""

import gc
import os
import signal

import pytest
import support.hypothesis_settings  # noqa: F401 - its settings hold for every test
from support.file_server import s3, server  # noqa: F401 - fixtures

gc.set_threshold(10_000)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    hands_out = session.config.getoption("numprocesses", None)
    if not hands_out or "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        if not torch.cuda.is_available():
            os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish() -> None:
    gc.freeze()
