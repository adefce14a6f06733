"""Words that make no sense, one at a time in every place of every command: each ends in a sentence.

Of all combinations some hundred are tried, drawn by a seed.
"""

from __future__ import annotations

import io
import random
from itertools import product
from pathlib import Path

import pytest
from support.pretrain_runs import store

from clozelab import cli

# CORPUS, FILE and FOLDER are there, NEW is not; a model never is, so that nothing is trained.
COMMANDS = [
    "corpus build FILE --out NEW --tokenizer wordpiece --vocabulary 300 --field text --held-out 0.1"
    " --encoding utf-8 --words 30 --entities FILE --spans FILE --workers 1",
    "corpus build FILE --out NEW --tokenizer-from CORPUS --extend 3 --workers 1",
    "corpus show CORPUS",
    "corpus check CORPUS",
    "show bert --size tiny --set encoder.hidden_size=64",
    "diff bert roberta",
    "mask bert text --epoch 0 --corpus CORPUS --seed 0 --set masking.mask_rate=0.3",
    "blocks bert --corpus CORPUS --count 1 --number 0 --size tiny --part train --epoch 0 --seed 0",
    "report FOLDER --out NEW.html --title Mine",
    "tasks mnli",
    "study roberta-masking --plan --size tiny --budget 2steps --seeds 1 --variants static"
    " --tasks sst2 --task-data FOLDER --set encoder.hidden_size=64 --tune epochs=1",
    "pretrain bert --data CORPUS --out FILE --budget 1steps --size 1x64 --seed 0 --save-every 1"
    " --set schedule.batch_size=2 --keep 1 --evaluate-every 1 --micro-batch 1 --precision fp32"
    " --device cpu",
    "pretrain --resume FOLDER --data CORPUS",
    "distil FOLDER --recipe distilbert --data CORPUS --out NEW --budget 1steps",
    "finetune FOLDER pairs --train FILE --dev FILE --out NEW --protocol bert --set steps=1"
    " --seeds 1 --seed 0 --at-once 1 --columns label=label --grid learning_rate=1",
    "evaluate FOLDER sst2 --task-data FOLDER --split dev",
    "evaluate FOLDER --data CORPUS --masks bert --blocks 1",
    "predict FOLDER --file FILE --out NEW --columns first=a",
    "predict FOLDER --task mnli --split test --task-data FOLDER --out NEW",
    "answer FOLDER --question who --passage he --top 1",
    "export FOLDER NEW --family bert",
    "import FOLDER NEW",
    "fill FOLDER [MASK] --top 2",
    "generate FOLDER --length 4 --steps 2 --prompt a --temperature 1 --top-k 2 --seed 0",
    "embed FOLDER text --out NEW.npz --layer 1",
    "bench bert --size 1x32 --length 8 --sequences 1 --steps 0 --against transformers --out FILE",
]  # fmt: skip
NONSENSE = [
    "", " ", "0", "-1", "1.5", "nan", "1e400", "99999999999", "9" * 30, "-", "-x", "=", "a=b",
    "a:b", "a\nb", "a\0b", "[", "{}", "*", "\udcff", "é" * 300, "\x1b[31m", "nosuch", "/dev/null",
    "/nonexistent/a", "FILE", "FOLDER",
]  # fmt: skip


def cases() -> list[list[str]]:
    commands = []
    for line, bad in product(COMMANDS, NONSENSE):
        arguments = line.split()
        first = 2 if arguments[0] == "corpus" else 1
        for at in range(first, len(arguments)):
            if not arguments[at].startswith("--"):
                commands.append([*arguments[:at], bad, *arguments[at + 1 :]])
    return commands


CASES = random.Random(14).sample(cases(), 180)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where the words lead; the working folder is apart, two deep."""
    (tmp_path / "file.txt").write_text("A sentence of some words. And another one.\n" * 30)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"some text\n")))
    names = {"FILE": str(tmp_path / "file.txt"), "FOLDER": str(tmp_path / "folder")}
    return {**names, "NEW": "new", "NEW.html": "n.html", "NEW.npz": "n.npz"}


@pytest.mark.parametrize("arguments", CASES, ids=lambda arguments: repr(" ".join(arguments))[:80])
def test_nonsense_is_answered_in_a_sentence(
    arguments: list[str], desk: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    places = {**desk, "CORPUS": store("wordpiece")}
    code = cli.main([places.get(word, word) for word in arguments])
    messages = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("clozelab: ")
    ]
    assert code in (0, 2) and len(messages) == (code == 2), messages
    assert Path(desk["FOLDER"], "notes.txt").read_text() == "mine"
    assert Path(desk["FILE"]).read_text().startswith("A sentence")
