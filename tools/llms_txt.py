"""Make llms.txt, the list of pages for language models, from the site's navigation.

    python tools/llms_txt.py

Each page is described by its title in the navigation and by its first sentence.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "llms.txt"
ABOUT = """\
# clozelab

> clozelab pretrains, fine-tunes, distils, scores and compares the BERT family of encoders: from raw
> text to a Hugging Face checkpoint and a comparison with error bars, on one GPU.

Each choice of a paper (masks, input format, encoder, loss) is one part; a recipe is a TOML list of
parts; every command `clozelab NAME` is a Python function `clozelab.NAME` with the same options.
Coding agents: AGENTS.md. All public functions: docs/api.md. Version and changes: CHANGELOG.md.
"""
LENGTH = 160  # characters of a sentence, at most


def main() -> None:
    """Write the file."""
    PAGE.write_text(text(), encoding="utf-8")


def text() -> str:
    """The text of the file."""
    lines = [ABOUT.rstrip()]
    for section, pages in navigation().items():
        lines += ["", f"## {section}", ""]
        lines += [f"- [{title}]({file}): {sentence(ROOT / file)}" for title, file in pages]
    return "\n".join(lines) + "\n"


def navigation() -> dict[str, list[tuple[str, str]]]:
    """The sections of mkdocs.yml with their pages; of the papers, only the index."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for line in (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].splitlines():
        match = re.fullmatch(r"(\s+)- (?:(.+?): ?)?(\S+\.md)?", line)
        assert match, line
        indent, title, file = match.groups()
        if not file:
            sections[title] = []
        elif len(indent) > 2 and (ROOT / file).exists() and not _is_paper(file):
            sections[list(sections)[-1]].append((title or "All of them", file))
        elif file.startswith("examples/"):
            sections[list(sections)[-1]].append((title, file.replace(".md", ".ipynb")))
    return sections


def _is_paper(file: str) -> bool:
    return file.startswith("docs/papers/") and not file.endswith("index.md")


def sentence(file: Path) -> str:
    """The first sentence of a page, without Markdown."""
    if file.suffix == ".ipynb":
        return "a notebook"
    content = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S)
    for paragraph in content.split("\n\n"):
        plain = " ".join(paragraph.split())
        if re.match(r"[#|!<*>-]|\d+\.", plain) or not plain:
            continue
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("`", "").replace("*", "")
        first = re.split(r"(?<=[.?:])\s+(?=[A-Z(])|(?<=。)", plain)[0].rstrip(":")
        return first if len(first) <= LENGTH else first[:LENGTH].rsplit(" ", 1)[0] + " …"
    return "a table"


if __name__ == "__main__":
    main()
