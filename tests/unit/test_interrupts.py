"""Signals: what came is told, the second raises, and what stood before stands again."""

from __future__ import annotations

import signal

import pytest

from clozelab import cli
from clozelab.contracts import UserError
from clozelab.interrupts import Stopped, signal_of, stopping


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
    def command(_: object) -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "tasks", command)
    assert cli.main(["tasks"]) == code
