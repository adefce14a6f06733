"""The commands on vocabularies: what they print and refuse, and that nothing is left half done."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.corpora import texts, write
from support.finetune_tasks import finetune_request, run_finetuning, sample_file
from support.pretrain_runs import pretrain_job, run_pretraining
from support.texts import chinese
from tokenizers import Tokenizer, models, pre_tokenizers

import clozelab
from clozelab import cli
from clozelab.models import exchange
from clozelab.models.vocabulary import check_pieces

torch.set_num_threads(1)
NEW = "The plasmation of gastrology is a plasmation. "


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, the same for transformers, and texts."""
    folder = tmp_path_factory.mktemp("desk")
    run_pretraining(pretrain_job("bert", steps=1), folder / "run")
    clozelab.export(folder / "run", folder / "hf", progress=False)
    write(folder / "new.jsonl", [*texts(6), *[NEW * 8] * 3])
    (folder / "empty.txt").write_text(" \n")
    (folder / "short.txt").write_text("a plasmation")
    write(folder / "chinese.jsonl", chinese()[:40])
    return folder


def run_command(
    capsys: pytest.CaptureFixture[str], desk: Path, arguments: str
) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([word.replace("@", f"{desk}/") for word in arguments.split()])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_show_says_what_the_text_uses_and_which_words_would_save_most(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_command(capsys, desk, "vocabulary show @run")
    assert code == 0 and "[PAD] [UNK] [CLS] [SEP] [MASK]" in out and "wordpiece" in out
    assert "tokens per word" not in out
    code, out, _ = run_command(capsys, desk, "vocabulary show @hf @new.jsonl --least 20")
    assert code == 0
    for phrase in ("used by the text", "tokens per word", "words worth adding", "words per second"):
        assert phrase in out
    first = out[out.index("saves") :].splitlines()[1].split()
    assert first[0] == "plasmation" and int(first[1]) == 48
    assert int(first[3]) == 48 * (int(first[2]) - 1)


def test_add_and_trim_print_before_and_after_and_write_a_card(
    desk: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run_command(
        capsys, desk, f"vocabulary add @hf @new.jsonl --words 2 --least 20 --out {tmp_path}/more"
    )
    assert code == 0 and "BertForPreTraining" in err
    assert "added: plasmation, gastrology" in out
    rows = {line.split("  ")[0]: line.split()[-2:] for line in out.splitlines() if "  " in line}
    assert int(rows["tokens"][1].replace(",", "")) - int(rows["tokens"][0].replace(",", "")) == 2
    assert float(rows["tokens per word"][1]) < float(rows["tokens per word"][0])
    card = (tmp_path / "more" / "README.md").read_text()
    assert "2 words added (mean)" in card
    code, out, _ = run_command(
        capsys, desk, f"vocabulary trim @run @new.jsonl --out {tmp_path}/less"
    )
    assert code == 0 and "before" in out
    assert "trimmed from" in (tmp_path / "less" / "README.md").read_text()


def test_what_was_added_is_trained_on(desk: Path, tmp_path: Path) -> None:
    """The folder is a model like any other: text is built for it, and a run goes on from it."""
    quiet: dict[str, Any] = {"progress": False}
    out = tmp_path / "more"
    clozelab.add_to_vocabulary(
        desk / "run", desk / "new.jsonl", words=2, least=20, out=out, **quiet
    )
    corpus = clozelab.build_corpus(
        desk / "new.jsonl", out=tmp_path / "c", tokenizer_from=out, workers=1, **quiet
    )
    run = clozelab.pretrain(
        "bert", data=corpus, from_=out, budget="1steps", out=tmp_path / "r", device="cpu", **quiet
    )
    assert run.load().vocabulary.size == clozelab.load(out, **quiet).vocabulary.size
    assert clozelab.import_model(out, tmp_path / "i", **quiet).load().recipe.name == "bert"


def test_unknown_characters_are_added_and_begin_apart(desk: Path, tmp_path: Path) -> None:
    change = clozelab.add_to_vocabulary(
        desk / "run", desk / "chinese.jsonl", words=30, out=tmp_path / "zh", progress=False
    )
    assert change.before.text is not None and change.after.text is not None
    assert change.after.text.unknown < change.before.text.unknown
    assert repr(change).splitlines()[0] == f"{tmp_path / 'zh'}: 30 words added"
    assert f"after: {change.after.tokens:,} tokens, " in repr(change)
    summary = clozelab.show_vocabulary(desk / "run", desk / "chinese.jsonl", progress=False)
    best = ", ".join(word.text for word in summary.candidates[:10])
    assert f"words worth adding: {len(summary.candidates):,}: {best}" in repr(summary)
    assert len(repr(clozelab.show_vocabulary(desk / "run", progress=False)).splitlines()) == 1
    assert all(len(word) == 1 for word in change.added)
    table = dict(change.load().module.named_parameters())["encoder.embeddings.words.weight"]
    new = table[-30:]
    assert len(torch.unique(new, dim=0)) == 30


def test_a_tuned_model_keeps_its_task(desk: Path, tmp_path: Path) -> None:
    run_finetuning(
        finetune_request("classify", sample_file("definitions", 24), model=str(desk / "run")),
        tmp_path / "t",
    )
    was = clozelab.load(tmp_path / "t", progress=False)
    lines = ["A small wild cat.", "Bread of the dark kind."]
    file = write(tmp_path / "a.jsonl", [*lines, *texts(3)])
    change = clozelab.trim_vocabulary(was, file, out=tmp_path / "less", progress=False)
    now = change.load()
    assert change.after.tokens < change.before.tokens and now.task is not None
    scores = [
        [prediction.probabilities for prediction in each.predict(lines)] for each in (was, now)
    ]
    for first, second in zip(*scores, strict=True):
        assert list(first.values()) == pytest.approx(list(second.values()), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("trim @run @empty.txt --out @x", "there is no text in"),
        ("trim @run @none.txt --out @x", "there is no file or folder"),
        ("trim @run @new.jsonl --out @hf", "already exists and is not empty; name a new"),
        ("trim @run @new.jsonl --out @short.txt", "is not a folder; name a new or empty one"),
        ("trim @run @new.jsonl --size 4 --out @x", "--size 4: the tokens that every text needs"),
        (
            "trim @run @new.jsonl --size 5 --out @x",
            "--size 5: only the special tokens would remain",
        ),
        ("trim @run @new.jsonl --least 99999 --out @x", "only the special tokens would remain"),
        ("trim @run @new.jsonl --least 0 --out @x", "--least 0: must be at least 1"),
        ("add @run @empty.txt --words 5 --out @x", "there is no text in"),
        ("add @run @short.txt --words 5 --out @x", "there is nothing to add: the tokenizer"),
        ("add @run @new.jsonl --words 0 --out @x", "--words 0: must be at least 1"),
        (
            "add @run @new.jsonl --words 9999 --out @x",
            "--words 9,999: the text has",
        ),
        ("add @run @new.jsonl --words 2 --init best --out @x", "--init best: is unknown"),
        ("add @run @new.jsonl --words 2 --out @hf", "already exists and is not empty"),
        ("add @bare @new.jsonl --words 2 --out @x", "no tokenizer.json, vocab.txt"),
        ("trim @bare @new.jsonl --out @x", "no tokenizer.json, vocab.txt"),
        ("show @bare", "no tokenizer.json, vocab.txt"),
        (
            "add @words @new.jsonl --words 2 --out @x",
            "WordLevel with Whitespace cannot be extended",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    desk: Path, capsys: pytest.CaptureFixture[str], arguments: str, answer: str
) -> None:
    for name in ("config.json", "model.safetensors"):
        for folder in ("bare", "words"):
            (desk / folder).mkdir(exist_ok=True)
            (desk / folder / name).write_bytes((desk / "hf" / name).read_bytes())
    table = clozelab.load(desk / "hf", progress=False).tokenizer.get_vocab()
    whole = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    whole.save(str(desk / "words" / "tokenizer.json"))
    before = {*desk.iterdir()}
    code, out, err = run_command(capsys, desk, f"vocabulary {arguments}")
    assert code == 2 and out == "", err
    assert answer in err and err.startswith("clozelab: ") and err.count("\n") == 1, err
    assert {*desk.iterdir()} == before


def test_words_by_their_characters_are_refused() -> None:
    model: Any = SimpleNamespace(place="runs/elmo", recipe=clozelab.read("elmo"))
    with pytest.raises(clozelab.UserError, match="elmo: encoder lstm reads words by their char"):
        check_pieces(model)


def test_an_interrupt_leaves_nothing(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exchange.huggingface, "write_tensors", stopped)
    command = ["vocabulary", "trim", str(desk / "run"), str(desk / "new.jsonl")]
    assert cli.main([*command, "--out", str(tmp_path / "x")]) == 130
    assert not list(tmp_path.iterdir())
