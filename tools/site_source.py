"""Copy the pages of the site to build/site-source, with the layout of the repository.

    python tools/site_source.py

So a link between two files of the repository is a link between two pages. Notebooks become pages.
Linked files that are not pages (pictures, records, source files) are copied too. A link to a folder
leads to its README.md, or to a list of its files if it has none.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "site-source"
LINK = re.compile(r"(\]\()(<?)([^)\s>#]+)(>?)((?:#[^)\s]*)?\))")
AS_TEXT = {".py", ".toml", ".txt", "", ".cff", ".yml", ".jsonl"}  # browsers would download these


def main() -> None:
    """Write the folder anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        place(page).parent.mkdir(parents=True, exist_ok=True)
        text = LINK.sub(partial(_site_link, page), text)
        place(page).write_text(text, encoding="utf-8")
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        file = place(notebook).with_suffix(".md")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(notebook_page(notebook), encoding="utf-8")
        shutil.copy(notebook, file.parent)


def pages() -> list[Path]:
    """The Markdown files of the repository that are tracked."""
    command = ("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard")
    try:
        named = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        files = [ROOT / name for name in named.splitlines() if name.endswith(".md")]
    except (OSError, subprocess.CalledProcessError):  # a copy without its history
        files = [file for file in ROOT.rglob("*.md") if not _is_left_out(file)]
    return sorted(file for file in files if file.exists() and ".github" not in file.parts)


def _is_left_out(file: Path) -> bool:
    parts = file.relative_to(ROOT).parts
    return parts[0] in ("build", "site", "demo", "runs") or any(p.startswith(".") for p in parts)


def place(file: Path) -> Path:
    """The path of a repository file in the source of the site."""
    return OUT / file.relative_to(ROOT)


def _site_link(page: Path, link: re.Match[str]) -> str:
    """A link as the site needs it; copies its target, unless that is a page."""
    opening, left, target, right, closing = link.groups()
    if re.match(r"[a-z]+:", target):
        return link[0]
    file = (page.parent / target).resolve()
    if not file.is_relative_to(ROOT) or not file.exists():
        return link[0]
    if file.is_dir():
        target = f"{target.rstrip('/')}/README.md"
        if not (file / "README.md").exists():
            _write_listing(file)
    elif file.suffix == ".ipynb":
        target = f"{target.removesuffix('.ipynb')}.md"
    elif file.suffix in AS_TEXT:
        copy = place(file).with_name(f"{file.name}.txt")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        target = f"{target}.txt"
    elif file.suffix != ".md":
        place(file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place(file))
    return f"{opening}{left}{target}{right}{closing}"


def _write_listing(folder: Path) -> None:
    """Write a page with the list of files, for a folder without README.md."""
    names = sorted(file.name for file in folder.iterdir() if not file.name.startswith((".", "_")))
    text = "\n".join([f"# {folder.relative_to(ROOT)}", "", *(f"- `{name}`" for name in names), ""])
    place(folder).mkdir(parents=True, exist_ok=True)
    (place(folder) / "README.md").write_text(text, encoding="utf-8")


def notebook_page(notebook: Path) -> str:
    """A notebook as a page: its text, its code and its printed output."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        if source:
            parts.append(f"```python\n{source}\n```")
        printed = "".join(_printed(each) for each in cell.get("outputs", ())).strip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    parts.append(f"[The notebook itself]({notebook.name}), to run.")
    return "\n\n".join(parts) + "\n"


def _printed(output: dict[str, object]) -> str:
    data = output.get("data")
    lines = output.get("text") or (data.get("text/plain") if isinstance(data, dict) else None)
    return "".join(lines) if isinstance(lines, list) else str(lines or "")


if __name__ == "__main__":
    main()
