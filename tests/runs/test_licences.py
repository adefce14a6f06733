"""The licence of a text: stated where a corpus is built, and on the card of every model of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import clozelab
from clozelab.errors import UserError

torch.set_num_threads(1)
ONE, OTHER = "The river rises in the hills, far from here. ", "Nobody has seen its spring. "


@pytest.fixture
def text(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file, sentence in zip(files, (ONE, OTHER), strict=True):
        rows = [{"text": f"{number}. {sentence * 12}"} for number in range(40)]
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return files


def card_of(corpus: Any, out: Path) -> str:
    """The card of a model that was trained on a corpus."""
    how: dict[str, Any] = {"size": "1x64", "budget": "1steps", "progress": False}
    small = ["schedule.batch_size=2", "blocks.length=32"]
    run = clozelab.pretrain("roberta", data=corpus, set=small, out=out / "run", **how)
    clozelab.export(run, out / "hf", progress=False)
    return (out / "hf" / "README.md").read_text(encoding="utf-8")


def test_the_licence_is_recorded_shown_and_on_the_card(tmp_path: Path, text: list[Path]) -> None:
    quiet: dict[str, Any] = {"workers": 1, "progress": False}
    place = tmp_path / "c"
    stated = {"license": "CC-BY-4.0", "vocabulary": 400}
    corpus = clozelab.build_corpus(text[0], out=place, **stated, **quiet)
    without = clozelab.build_corpus(text[0], out=tmp_path / "d", vocabulary=400, **quiet)
    # A name changes nothing that training reads.
    assert corpus.manifest["fingerprint"] == without.manifest["fingerprint"]
    assert clozelab.show_corpus(corpus).facts["licence"] == "CC-BY-4.0"
    assert clozelab.show_corpus(without).facts["licence"] == "not stated"
    grown = clozelab.add_to_corpus(place, text[1], **quiet)
    assert grown.license == "CC-BY-4.0, not stated"
    assert "| licence of the text | CC-BY-4.0, not stated |" in card_of(grown, tmp_path / "1")
    assert "| licence of the text | not stated |" in card_of(without, tmp_path / "2")


@pytest.mark.parametrize("wrong", ["MIT\n---", "   "])
def test_a_licence_is_one_line(tmp_path: Path, text: list[Path], wrong: str) -> None:
    with pytest.raises(UserError, match=r"(?s)--license .*must be one line"):
        clozelab.build_corpus(text[0], out=tmp_path / "c", license=wrong, progress=False)
