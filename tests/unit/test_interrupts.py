"""Signals: what came is told, the second raises, and what stood before stands again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes import start_process

from clozelab import cli, interrupts
from clozelab.api.watching import Watch, follow_run
from clozelab.cli.commands import Command
from clozelab.errors import UserError
from clozelab.interrupts import Stopped, first_done, held, signal_of, stopping, terminable
from clozelab.options import command
from clozelab.runs.events import Ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_told_and_the_second_raises(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopping() as stopped:
        assert stopped() == 0
        signal.raise_signal(number)
        assert stopped() == number
        with pytest.raises(KeyboardInterrupt) as second:
            signal.raise_signal(number)
        assert signal_of(second.value) == number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Stopped("stopped; go on", signal=signal.SIGTERM), 143),
        (Stopped("stopped; go on", signal=signal.SIGINT), 130),
        (KeyboardInterrupt(), 130),
        (KeyboardInterrupt(signal.SIGTERM), 143),
        (UserError("a mistake; fix it"), 2),
    ],
)
def test_a_command_ends_with_the_code_of_what_ended_it(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @command
    def failing() -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "tasks", Command(failing))
    assert cli.main(["tasks"]) == code


def test_a_signal_behind_a_run_s_last_step_stops_what_would_follow(tmp_path: Path) -> None:
    done = Ended(4, True, {"tokens": 8, "times": {}}, signal=signal.SIGTERM)
    with pytest.raises(Stopped, match="is done") as stopped:
        follow_run(iter([done]), tmp_path, Watch())
    assert stopped.value.signal == signal.SIGTERM


def test_code_that_goes_on_after_errors_ends_with_ctrl_c() -> None:
    def stops() -> None:
        with suppress(Exception):
            raise Stopped("stopped; resume", signal=signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt, match="resume") as stopped:
        stops()
    assert signal_of(stopped.value) == signal.SIGTERM


# A command that has begun its work, and says so.
BUSY = """
import sys, time
from clozelab import cli, interrupts
from clozelab.cli.commands import Command
from clozelab.options import command

@command
def busy():
    print("begun", flush=True)
    time.sleep(60)

cli.COMMANDS["tasks"] = Command(busy)
sys.exit(cli.main(["tasks"]))
"""


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_signal_in_a_command_ends_it_with_a_sentence(number: signal.Signals, word: str) -> None:
    process = start_process([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (128 + number, f"clozelab: {word}\n")


def test_what_a_test_starts_hears_an_interrupt_where_the_test_does_not() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job
    try:
        process = start_process([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_a_command_leaves_the_handlers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = []
    note = command(lambda: handlers.append(signal.getsignal(signal.SIGTERM)))
    monkeypatch.setitem(cli.COMMANDS, "tasks", Command(note))
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["tasks"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before is not handlers[0]
    thread = threading.Thread(target=cli.main, args=(["tasks"],))  # where none can be installed
    thread.start()
    thread.join()
    assert handlers[1] is before


def test_a_process_started_deaf_to_sigterm_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_held_back_while_processes_begin(number: signal.Signals) -> None:
    steps = []

    def begin() -> None:
        with terminable(), held():
            signal.raise_signal(number)
            steps.append("all of them have begun")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            begin()
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps


def test_a_signal_never_comes_between_a_future_and_its_lock() -> None:
    """An interrupt inside `wait` would leave a future's lock taken: its thread would never end."""
    for delay in (0.05, 0.2, 0.3):
        future: Future[int] = Future()
        timer = threading.Timer(delay, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            first_done([future])
        timer.join()
        assert future._condition.acquire(blocking=False)  # type: ignore[call-arg]
        future._condition.release()
        future.set_result(1)
        assert first_done([future]) == {future}


def test_a_signal_between_two_looks_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback of the garbage collector swallows what is raised inside it."""
    looks = []

    class Nothing(set[Future[int]]):
        def __bool__(self) -> bool:
            with suppress(KeyboardInterrupt):  # as the interpreter does there
                signal.raise_signal(signal.SIGINT)
            return False

    def look(*_: object, **__: object) -> SimpleNamespace:
        looks.append(1)
        assert len(looks) < 3, "the signal was lost"
        return SimpleNamespace(done=Nothing())

    monkeypatch.setattr(interrupts, "wait", look)
    with pytest.raises(KeyboardInterrupt):
        first_done([Future[int]()])
    assert len(looks) == 1
