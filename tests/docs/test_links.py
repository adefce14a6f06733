"""Relative links and anchors of every Markdown file, without what the site is built with."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[2]
FENCES = re.compile(r"^([ \t]*)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]*)>?\)")
PAGES: list[Path] = run_path(str(ROOT / "tools" / "site_source.py"))["pages"]()


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCES.sub("", page.read_text(encoding="utf-8")))


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
    text = unicodedata.normalize("NFC", text).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    """All anchors of a page; of headings that are alike, the later ones are numbered."""
    numbers: dict[str, int] = {}
    text = FENCES.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#{1,6} (.+?)#*$", text, re.MULTILINE):
        name = slug(heading)
        numbers[name] = numbers.get(name, 0) + 1
    numbered = {f"{name}-{n}" for name, count in numbers.items() for n in range(1, count)}
    return {*numbers, *numbered, *re.findall(r'<a (?:id|name)="([^"]+)"', text)}


def broken(page: Path, text: str) -> list[str]:
    """The links of a text that lead nowhere from a page."""
    wrong = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        there = file.exists() and file.is_relative_to(ROOT)
        anchored = bool(anchor) and file.suffix == ".md"
        if not there or (anchored and anchor not in anchors(file)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert broken(page, prose(page)) == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs" / "start.md"
    text = (
        "[a](nothing.md) [b](training.md#no-such) [c](training.md#distil) [d](#nor-this) [e](../..)"
    )
    assert broken(page, text) == ["nothing.md", "training.md#no-such", "#nor-this", "../.."]
    assert slug("Encoder: token ids → hidden states") == "encoder-token-ids--hidden-states"
    assert slug("构建语料库") == "构建语料库"
    assert len(PAGES) > 60


def test_the_list_for_language_models_leads_somewhere() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert broken(ROOT / "llms.txt", text) == [] and len(LINK.findall(text)) > 30
