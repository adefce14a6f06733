"""Commands run in this process: what they print, and the sentence that refuses a mistake."""

from __future__ import annotations

import pytest

from clozelab import cli


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """What a command that succeeds writes to standard output and to standard error."""
    capsys.readouterr()
    assert cli.main([*arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that succeeds writes to standard output."""
    return run_command(capsys, *arguments)[0]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence that a mistake is answered with."""
    capsys.readouterr()
    assert cli.main([*arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("clozelab: ") and captured.err.count("\n") == 1, captured.err
    return captured.err
