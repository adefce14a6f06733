"""How commands end: streams that are closed or cannot show a sign, names that are no UTF-8,
errors of the system, faults of our own; always a sentence and an exit code, never a traceback."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.corpora import ENVIRONMENT, refused, run_apart
from support.processes import run_process

import clozelab
from clozelab import cli
from clozelab.cli.commands import Command
from clozelab.cli.console import open_streams
from clozelab.errors import UserError
from clozelab.options import command

MASK = ("mask", "bert", "A small résumé → of it.", "--epoch", "0")
# Words, and how they end; some that read, some that are mistakes. None of them needs torch.
COMMANDS = [
    (["--version"], 0),
    (["--help"], 0),
    ([], 2),
    (["show"], 0),
    (["show", "bert"], 0),
    (["show", "bret"], 2),
    (["diff", "bert", "roberta"], 0),
    (list(MASK), 0),
    (["mask", "bert", "-"], 2),  # nothing comes by standard input
    (["tasks"], 0),
    (["tasks", "mnli"], 0),
    (["study", "roberta-masking", "--plan"], 0),
    (["corpus", "show", "nosuch"], 2),
    (["report", "nosuch", "--out", "p.html"], 2),
    (["predict", "nosuch", "--out", "no/where"], 2),
    (["pretrian"], 2),
]
# Runs them all in one process, whose streams are as the test has them; the codes go to a file.
EACH = """
import json, sys
from clozelab.cli import main

codes = []
for words in json.loads(sys.argv[2]):
    try:
        codes.append(main(words))
    except SystemExit as end:  # of --help
        codes.append(end.code)
open(sys.argv[1], "w").write(json.dumps(codes))
"""
PLAIN = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "LANG": "C"}


@pytest.mark.parametrize(
    ("closed", "more"),
    [
        (">&-", {}),
        ("2>&-", {}),
        ("<&- >&- 2>&-", {}),
        ("", {"PYTHONIOENCODING": "ascii"}),
        ("", {"PYTHONIOENCODING": "latin-1"}),
        ("", PLAIN),
    ],
    ids=str,
)
def test_any_streams_will_do(closed: str, more: Mapping[str, str], tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    process_arguments = [
        sys.executable,
        "-c",
        EACH,
        str(codes),
        json.dumps([args for args, _ in COMMANDS]),
    ]
    line = f'exec "$@" {closed}'
    done = run_process(
        ["bash", "-c", line, "bash", *process_arguments],
        cwd=tmp_path,
        env={**ENVIRONMENT, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(codes.read_text()) == [code for _, code in COMMANDS]
    assert b"Traceback" not in done.stderr and b"bug in clozelab" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    if more and "latin-1" not in more.values():
        assert done.stdout.isascii() and done.stderr.isascii()
        assert b"resume" in done.stdout.replace(b".", b"").replace(b"{", b"").replace(b"}", b"")
        assert b"{masked}  {word->random}" in done.stdout


@pytest.mark.parametrize("arguments", [["show"], ["--help"], ["corpus", "build", "--help"], MASK])
def test_a_pipe_that_is_closed_early_ends_a_command_quietly(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run_process(
        [sys.executable, "-m", "clozelab", *arguments],
        env=ENVIRONMENT,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


# A command that prints before, amid and after its work, and the pipe that nobody reads.
WORK = """
import os, sys
from clozelab import cli
from clozelab.cli.commands import Command
from clozelab.cli.console import out
from clozelab.contracts import UserError
from clozelab.options import command

@command
def work():
    for number in range(3):
        out.print("a plan", "x" * 100_000)
    open(sys.argv[1], "w").write("done")
    out.print("a table")
    if sys.argv[2] == "mistake":
        print("more", end="")  # which is still to be flushed
        raise UserError("2 of 3 cells failed; look at them")
    if sys.argv[2] == "pipe":
        read, write = os.pipe()
        os.close(read)
        os.write(write, b"to a process that is gone")

cli.COMMANDS["tasks"] = Command(work)
sys.exit(cli.main(["tasks"]))
"""


def test_every_sign_that_is_printed_has_a_plain_one() -> None:
    package = Path(clozelab.__file__).parent
    files = [
        file for room in ("api", "cli", "diagnosis") for file in (package / room).rglob("*.py")
    ]
    files.append(package / "pretraining" / "shown_masks.py")
    signs = {sign for file in files for sign in file.read_text(encoding="utf-8")}
    open_streams()
    plain = {sign: sign.encode("ascii", "clozelab.plain") for sign in signs - {"?", "\ufffd"}}
    assert len(signs) > 100 and not [sign for sign, word in plain.items() if word == b"?"]


@pytest.mark.parametrize(("how", "code"), [("well", 0), ("mistake", 2), ("pipe", 2)])
def test_work_goes_on_when_nobody_reads_and_its_code_is_true(
    how: str, code: int, tmp_path: Path
) -> None:
    read, write = os.pipe()
    os.close(read)
    process_arguments = [sys.executable, "-c", WORK, str(tmp_path / "work"), how]
    done = run_process(
        process_arguments,
        env=ENVIRONMENT,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (tmp_path / "work").read_text() == "done"
    assert done.returncode == code and len(done.stderr.splitlines()) == bool(code), done.stderr


def test_messages_that_nobody_reads_do_not_end_a_command(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom clozelab import cli\nfrom clozelab.cli.console import err\n"
        "from clozelab.cli.commands import Command\nfrom clozelab.options import command\n"
        "@command\ndef work():\n    for _ in range(3):\n        err.print('a step')\n"
        "    open(sys.argv[1], 'w').write('done')\n"
        "cli.COMMANDS['tasks'] = Command(work)\nsys.exit(cli.main(['tasks']))"
    )
    read, write = os.pipe()
    os.close(read)
    process_arguments = [sys.executable, "-c", script, str(tmp_path / "work")]
    done = run_process(process_arguments, env=ENVIRONMENT, stderr=write, timeout=60, check=False)
    os.close(write)
    assert done.returncode == 0 and (tmp_path / "work").read_text() == "done"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
@pytest.mark.parametrize("arguments", [["show"], ["--help"]])
def test_a_full_disk_behind_standard_output_is_told(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = run_process(
            [sys.executable, "-m", "clozelab", *arguments],
            env={**ENVIRONMENT, "PYTHONUNBUFFERED": ""},  # argparse forgives what fails at once
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    expected = "clozelab: standard output: No space left on device; free some space"
    assert done.returncode == 2 and done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([b"mask", b"bert", b"ab\xff"], b"the text: is not UTF-8 text"),
        ([b"show", b"caf\xe9.toml"], rb"caf\xe9.toml does not exist"),
        ([b"show", b"bert", b"--set", b"encoder.hidden_size=\xff"], rb"\xff"),
        ([b"corpus", b"show", b"caf\xe9"], rb"caf\xe9"),
        ([b"corpus", b"build", b"caf\xe9.txt", b"--out", b"c"], rb"caf\xe9.txt"),
        ([b"report", b"caf\xe9", b"--out", b"p.html"], rb"caf\xe9"),
        ([b"caf\xe9"], rb"caf\xe9"),
    ],
)
def test_words_that_are_no_utf8(arguments: list[bytes], answer: bytes, tmp_path: Path) -> None:
    done = run_process(
        [os.fsencode(sys.executable), b"-m", b"clozelab", *arguments],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and answer in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and b"fault" not in done.stderr


def test_a_folder_of_a_name_that_is_no_utf8_is_written_or_refused(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    with open(folder + b"/a.txt", "w") as file:
        file.write("One sentence here. And another one there.\n" * 50)
    command = [os.fsencode(sys.executable), b"-m", b"clozelab", b"corpus"]
    for arguments in ([b"build", b"a.txt", b"--out", folder + b"/c"], [b"show", folder + b"/c"]):
        done = run_process(
            [*command, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, check=False
        )
        assert done.returncode in (0, 2), done.stderr
        assert b"Traceback" not in done.stderr and b"fault" not in done.stderr, done.stderr


def test_the_version_needs_no_torch() -> None:
    done = run_apart("--version")
    torch = importlib.metadata.version("torch")
    python = ".".join(map(str, sys.version_info[:3]))
    assert done.stdout == f"clozelab {clozelab.__version__}, Python {python}, torch {torch}\n"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("pretran bert", "pretran: is unknown; did you mean pretrain?"),
        ("corpus biuld", "biuld: is unknown; did you mean build?"),
        (
            "show bert --szie tiny",
            "--szie: is not an option of clozelab show; did you mean --size?",
        ),
        ("evaluate m t --device cdua", "--device cdua: is unknown; did you mean cuda?"),
        ("corpus build a --out c --layout prsoe", "did you mean prose?"),
        ("corpus build a --out c --tokenizer wordpeice", "did you mean wordpiece?"),
        ("show bertt", "did you mean bert?"),
        ("study roberta-maskin", "did you mean roberta-masking?"),
        ("tasks mnly", "did you mean mnli?"),
        ("show bert more", "more: is one argument too many"),
        ("report a", "required: --out; see clozelab report --help"),
        ("", "needs a command; see clozelab --help"),
    ],
)
def test_the_word_that_was_meant_is_said(
    arguments: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments.split()) == 2
    output = capsys.readouterr().err
    assert answer in output and len(output.splitlines()) == 1


ERRORS = [
    (UserError("a.txt: is empty; write into it"), 2, "a.txt: is empty; write into it"),
    (OSError(errno.ENOSPC, "No space left on device", "a"), 2, "a: No space left on device; free"),
    (PermissionError(errno.EACCES, "Permission denied", "a"), 2, "a: Permission denied; choose"),
    (OSError("short write"), 2, "short write; fix that, then run the same command again"),
    (MemoryError(), 2, "out of memory; "),
    (ModuleNotFoundError("No module named 'x'", name="x.y"), 2, "x is not installed; pip install"),
    (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates"), 2, "a\\xff: is not UTF-8; rename"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (RuntimeError("[gloo] Connection closed by peer"), 2, "another process of this command failed"),
    (KeyError("loss"), 1, "KeyError: 'loss'; this is a bug in clozelab: set CLOZELAB_DEBUG=1"),
]  # fmt: skip


@pytest.mark.parametrize("debug", ["", "0", "1"])
@pytest.mark.parametrize(
    ("error", "code", "sentence"), ERRORS, ids=lambda value: type(value).__name__
)
def test_an_error_is_a_sentence_and_debug_shows_its_traceback(
    error: BaseException,
    code: int,
    sentence: str,
    debug: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @command
    def failing() -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "tasks", Command(failing))
    monkeypatch.setenv("CLOZELAB_DEBUG", debug)
    assert cli.main(["tasks"]) == code
    *trace, message = capsys.readouterr().err.splitlines()
    assert message.startswith(f"clozelab: {sentence}")
    assert ("Traceback (most recent call last):" in trace) == (debug == "1") == bool(trace)


def test_a_nul_character_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "be\0rt"]) == 2
    assert "contains a NUL character" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["pretrain", "bert", "--data", "c", "--out", "r", "--budget", ""],
        ["pretrain", "bert", "--data", "c", "--out="],
        ["corpus", "build", "a.txt", "--out", ""],
        ["pretrain", "bert", "--data", "c", "--out", "r", "--from", ""],
    ],
)
def test_an_empty_word_is_not_none(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    name = arguments[-1 if arguments[-1] else -2].strip("-=")
    assert capsys.readouterr().err.startswith(f"clozelab: {name}: is empty; give it a value")


def test_a_mistake_is_one_sentence_in_a_process() -> None:
    assert refused(run_apart("pretran")).endswith("pretran: is unknown; did you mean pretrain?")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("predict nosuch --text a", "said.tsv"),
        ("embed nosuch text", "vectors.npz"),
        ("bench bert", "bench.json"),
        ("report nosuch", "page.html"),
    ],
)
def test_out_is_looked_at_first_and_spares_what_is_there(
    arguments: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the model, of which there is none here; a page says more of pages."""

    def answer(file: Path) -> str:
        assert cli.main([*arguments.split(), "--out", str(file)]) == 2
        output = capsys.readouterr().err
        assert output.startswith(f"clozelab: {file}: ") and len(output.splitlines()) == 1
        return output

    file = tmp_path / name
    file.write_text("precious")
    assert "already exists; name another, or give --overwrite" in answer(file)
    (tmp_path / "link").mkdir()
    link = tmp_path / "link" / name
    link.symlink_to(file)
    assert "already exists" in answer(link)
    assert link.is_symlink() and file.read_text() == "precious"
    pipe = tmp_path / f"pipe{file.suffix}"
    os.mkfifo(pipe)
    assert "is no plain file" in answer(pipe) and pipe.is_fifo()
    null = tmp_path / f"null{file.suffix}"
    null.symlink_to("/dev/null")
    assert "is no plain file" in answer(null) and Path("/dev/null").is_char_device()
    folder = tmp_path / f"folder{file.suffix}"
    folder.mkdir()
    assert "is a folder" in answer(folder)
    assert "does not exist; make it first" in answer(tmp_path / "no" / name)
