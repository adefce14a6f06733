"""What is released: versions that agree, files that others read, a wheel that runs by itself."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from support.processes import run_process

import clozelab

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = next(name for name in re.findall(r"^## (\S+)", changes, re.M) if name[0].isdigit())
    assert {PROJECT["version"], str(cited["version"]), released} == {clozelab.__version__}
    assert cited["authors"] == PROJECT["authors"] == [{"name": "The clozelab authors"}]


def test_every_extra_is_documented() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for extra in PROJECT["optional-dependencies"]:
        assert f"`{extra}`" in page, extra


def test_workflows_and_forms_are_whole() -> None:
    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert {"check.yml", "docs.yml", "release.yml", "fault.yml"} <= {file.name for file in files}
    for file in [*files, ROOT / ".pre-commit-config.yaml"]:
        assert yaml.safe_load(file.read_text(encoding="utf-8")), file
    check = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    versions = check["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if ":: 3." in each]
    assert versions == named
    # What a workflow runs by make is there.
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= goals


def test_what_agents_are_told_is_there() -> None:
    page = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^make ([a-z-]+)", page, re.M)) <= goals
    for place in re.findall(r"`((?:src|tests|tools|docs|benchmarks)/[\w./-]*)`", page):
        assert (ROOT / place).exists(), place


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Sdist and wheel, built as a release is: the wheel of what is in the sdist."""
    folder = tmp_path_factory.mktemp("released")
    run_process([sys.executable, "-m", "venv", str(folder / "tools")], check=True)
    python = str(folder / "tools" / "bin" / "python")
    run_process([python, "-m", "pip", "install", "-q", "build"], check=True)
    command = [python, "-m", "build", "--outdir", str(folder), str(ROOT)]
    run_process(command, check=True, capture_output=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_a_release_has_what_it_needs_and_no_more(released: tuple[Path, Path]) -> None:
    sdist, wheel = released
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"src/clozelab/py.typed", "LICENSE", "README.md", "CITATION.cff"} <= names
    assert not [name for name in names if name.startswith(("tests", "results", "docs"))]
    with zipfile.ZipFile(wheel) as packed_wheel:
        inside = set(packed_wheel.namelist())
    source = ROOT / "src"
    files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    own_files = {name for name in files if "__pycache__" not in name and ".egg-info" not in name}
    assert own_files == {name for name in inside if ".dist-info/" not in name}
    assert any(name.endswith("licences/wordnet-base.txt") for name in inside)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_runs_the_demo_in_a_bare_environment(
    released: tuple[Path, Path], tmp_path: Path
) -> None:
    run_process([sys.executable, "-m", "venv", str(tmp_path / "bare")], check=True)
    constraint = ["--constraint", str(ROOT / "constraints.txt")]
    pip = [str(tmp_path / "bare" / "bin" / "pip"), "install", "-q"]
    run_process([*pip, *constraint, str(released[1])], check=True, timeout=900)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    demo = [
        str(tmp_path / "bare" / "bin" / "clozelab"),
        "demo",
        "--budget",
        "8steps",
        "--out",
        "demo",
    ]
    done = run_process(demo, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "demo" / "page.html").stat().st_size > 10_000
    card = (tmp_path / "demo" / "hf" / "README.md").read_text(encoding="utf-8")
    assert "| licence of the text | public domain |" in card
