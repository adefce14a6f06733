"""What `clozelab completion` prints, read by the shells themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.processes import run_process

from clozelab.cli import main

COMPLETED = {
    "clozelab pretr": ["pretrain"],
    "clozelab corpus bu": ["build"],
    "clozelab corpus build --voc": ["--vocabulary"],
    "clozelab vocabulary tr": ["trim"],
    "clozelab vocabulary add --wor": ["--words"],
    "clozelab corpus show --si": [],  # an option of show, not of corpus show
    "clozelab show --si": ["--size"],
    "clozelab pretrain bert --micro": ["--micro-batch"],
    "clozelab pretrain --data corpus --bud": ["--budget"],
    "clozelab pretrain --device cu": ["cuda"],
    "clozelab pretrain --no-prog": ["--no-progress"],
    "clozelab completion fi": ["fish"],
}
# Types each line into a zsh that reads the script, and waits for what it makes of it.
ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; source $1; bindkey '^I' complete-word; echo rea''dy"
zpty -r shell answer '*ready*'
shift
while (( $# )); do
    zpty -w -n shell "$1"$'\\t'
    zpty -r shell answer "*$2*"
    zpty -w -n shell $'\\x15'
    shift 2
done
zpty -d shell
print completed
"""


def script(shell: str, capsys: pytest.CaptureFixture[str], folder: Path) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    file = folder / f"completion.{shell}"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


def ran(*arguments: str, home: Path) -> list[str]:
    done = run_process(
        arguments,
        cwd=home,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TERM": "xterm"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_bash_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [f"source {script('bash', capsys, tmp_path)}"]
    for typed in COMPLETED:
        at = len(typed.split()) - 1
        lines.append(f"COMP_WORDS=({typed}); COMP_CWORD={at}; _clozelab; echo ${{COMPREPLY[@]}}")
    answers = ran("bash", "--norc", "-c", "\n".join(lines), home=tmp_path)
    assert [answer.split() for answer in answers] == list(COMPLETED.values())


def test_fish_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [f"source {script('fish', capsys, tmp_path)}"]
    lines += [f"complete -C '{typed}'; echo =" for typed in COMPLETED]
    answers = "\n".join(ran("fish", "--no-config", "-c", "\n".join(lines), home=tmp_path))
    completions = [
        [line.split("\t")[0] for line in part.split("\n") if line] for part in answers.split("=")
    ]
    assert completions[:-1] == list(COMPLETED.values())


def test_zsh_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = script("zsh", capsys, tmp_path)
    wanted = {typed: completions[0] for typed, completions in COMPLETED.items() if completions}
    pairs = [word for pair in wanted.items() for word in pair]
    assert ran("zsh", "-f", "-c", ZSH, "zsh", str(file), *pairs, home=tmp_path) == ["completed"]
