"""Every command and every Python example in README and docs/ runs."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from clozelab import data

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / "benchmarks").glob("*.md"),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with what the examples read: books, a Chinese file and a list of names."""
    folder = tmp_path
    (folder / "books").mkdir()
    with gzip.open(data.corpus(), "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for _, line in zip(range(400), lines, strict=False)]
    for number in range(4):
        text = "\n\n".join(texts[number::4])
        (folder / "books" / f"{number}.txt").write_text(text, encoding="utf-8")
    shutil.copy(data.chinese(), folder / "chinese.jsonl.gz")
    shutil.copy(data.chinese_entities(), folder / "names.txt")
    command = folder / "bin" / "clozelab"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clozelab "$@"\n')
    command.chmod(0o755)
    return folder


def shortened(words: str) -> str:
    """A command as it is tested: two steps of four blocks in place of a long run."""
    launcher = f"{sys.executable} -m torch.distributed.run"
    words = re.sub(r"^torchrun\b", launcher, words)
    if "--budget" in words:
        words = re.sub(r"--budget \S+", "--budget 2steps --set schedule.sequences=4", words)
    return words


def run(lines: str, folder: Path) -> None:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    setting = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    for line in lines.replace("\\\n", " ").splitlines():
        words = shortened(line.split("#")[0].strip())
        if words.startswith(("clozelab", sys.executable)):
            done = subprocess.run(
                words, shell=True, cwd=folder, env=setting, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{words}\n{done.stderr}"
        else:
            assert re.match(r"(make|git|python benchmarks|PYTHONPATH=src)\b|$", words), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_run(page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    for language, text in blocks(page):
        if language == "sh":
            run(text, desk)
        elif language == "python":
            example = ModuleType("example")
            monkeypatch.setitem(sys.modules, "example", example)  # dataclasses look their module up
            exec(compile(text, str(page), "exec"), example.__dict__)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_fences_are_found() -> None:
    assert any(language == "sh" for page in PAGES for language, _ in blocks(page))
    assert any(language == "python" for page in PAGES for language, _ in blocks(page))
