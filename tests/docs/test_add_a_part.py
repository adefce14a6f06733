"""docs/add-a-part.md from an empty folder: its package is built, installed and used as it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.pretrain_runs import store
from support.processes import run_process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-part.md").read_text(encoding="utf-8")
FILE = re.compile(r"^`every-nth/([\w.]+)`.*?^```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = "import sys; from clozelab.cli import main; sys.exit(any(map(main, {})))"
SMALL = (
    "encoder.layers=1 encoder.hidden_size=32 encoder.heads=2 encoder.intermediate_size=64"
    " encoder.embedding_size=32"
)


def run(*arguments: str, cwd: Path, site: Path | None) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "src"), *([str(site)] if site else [])]
    setting = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    setting.pop("CLOZELAB_IMPORTS", None)
    return run_process(
        [sys.executable, *arguments], cwd=cwd, env=setting, capture_output=True, text=True
    )


def used(*lines: str, cwd: Path, site: Path | None) -> str:
    """What commands print, one process for all of them."""
    commands = [shlex.split(line)[1:] for line in lines]
    done = run("-c", COMMANDS.format(commands), cwd=cwd, site=site)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_package_from_an_empty_folder_is_built_installed_and_used(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "77", reason="the package is built without a network")
    folder, site = tmp_path / "every-nth", tmp_path / "site"
    folder.mkdir()
    for name, text in FILE.findall(PAGE):
        (folder / name).write_text(text, encoding="utf-8")
    assert {file.name for file in folder.iterdir()} == {
        *("pyproject.toml", "every_nth.py", "test_every_nth.py")
    }
    pip = ("-m", "pip", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    built = ("wheel", ".", *offline, "--no-build-isolation", "--wheel-dir", "..")
    done = run(*pip, *built, cwd=folder, site=None)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    done = run(
        *pip, "install", *offline, "--target", str(site), str(wheel), cwd=tmp_path, site=None
    )
    assert done.returncode == 0, done.stderr

    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "every-nth", cwd=tmp_path, site=site)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    console = re.search(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert console is not None
    lines = [line for line in console[1].splitlines() if line.startswith("clozelab")]
    settings = " ".join(f"--set {word}" for word in SMALL.split())
    pretrain = (
        f"clozelab pretrain roberta --data {store('byte_bpe')} --size tiny --budget 2steps"
        f" --out run --device cpu --set masking.use=every_nth --set masking.n=5 {settings}"
    )
    output = used(*lines, pretrain, cwd=tmp_path, site=site)
    assert len(lines) == 2 and 'use = "every_nth"' in output and "n = 5" in output
    assert 'imports = ["every_nth"]' in (tmp_path / "run" / "recipe.toml").read_text()
    # Another process opens the run by the entry point; without the package, a sentence says so.
    fill = 'clozelab fill run "A small wild <mask>."'
    assert used(fill, cwd=tmp_path, site=site)
    done = run("-m", "clozelab", *shlex.split(fill)[1:], cwd=tmp_path, site=None)
    assert done.returncode == 2
    assert "come from module every_nth" in done.stderr and "--import every_nth" in done.stderr
