"""`clozelab score`: texts, pairs and facts by a trained model, and what it refuses."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support.pretrain_runs import pretrain_job, run_pretraining, store

import clozelab
from clozelab import cli
from clozelab.errors import UserError
from clozelab.scoring import likelihood

torch.set_num_threads(1)
TEXTS = ["The queen was here.", "An unforgettable countryside, all of it!"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("score")
    for name in ("bert", "gpt", "elmo"):
        run_pretraining(pretrain_job(name, steps=2), folder / name)
    return folder


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says that ends with exit code 2, in one line."""
    assert cli.main(["score", *arguments]) == 2
    output = capsys.readouterr().err.strip()
    assert len(output.splitlines()) == 1, output
    return output


def test_texts_from_everywhere(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = clozelab.load(runs / "bert")
    scores = model.score(TEXTS)
    assert [each.text for each in scores] == TEXTS and scores.method == "within_word_l2r"
    first = scores[0]
    assert [word.text for word in first.words] == ["The", "queen", "was", "here", "."]
    assert first.log_likelihood == pytest.approx(sum(t.log_likelihood for t in first.tokens))
    assert first.log_likelihood == pytest.approx(sum(w.log_likelihood for w in first.words))
    mean = first.log_likelihood / len(first.tokens)
    assert first.perplexity == pytest.approx(np.exp(-mean))
    (tmp_path / "a.txt").write_text("\n".join(TEXTS) + "\n")
    place = str(runs / "bert")
    outputs = []
    options = [["--text", TEXTS[0], "--text", TEXTS[1]], ["--file", str(tmp_path / "a.txt")], []]
    for arguments in options:
        (tmp_path / "a.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8-sig")
        with (tmp_path / "a.txt").open(encoding="utf-8") as lines:
            monkeypatch.setattr("sys.stdin", lines)
            assert cli.main(["score", place, *arguments, "--by", "sentence"]) == 0
        outputs.append(capsys.readouterr().out)
    assert len({*outputs}) == 1
    for line, each in zip(outputs[0].splitlines(), scores, strict=True):
        nats, perplexity, text = line.split("\t")
        assert float(nats) == pytest.approx(each.log_likelihood, abs=1e-5) and text == each.text
        assert float(perplexity) == pytest.approx(each.perplexity, rel=1e-4)
    assert cli.main(["score", place, "--text", TEXTS[0], "--by", "token"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(first.tokens)
    out = tmp_path / "out.jsonl"
    assert cli.main(["score", place, "--text", TEXTS[0], "--json", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["log_likelihood"] == pytest.approx(first.log_likelihood, abs=1e-4)
    assert len(record["words"]) == 5


def test_likelihoods_are_those_of_transformers(runs: Path, tmp_path: Path) -> None:
    """BertForMaskedLM on the exported model, a pass for each token."""
    clozelab.export(runs / "bert", tmp_path / "hf", progress=False)
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = clozelab.load(runs / "bert")
    model.module.double()
    model_likelihoods = likelihood.likelihoods(model, TEXTS, method="original", device="cpu")
    for number, text in enumerate(TEXTS):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        nats = []
        for at in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, at] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = peer(hidden).logits[0, at]
            nats.append(float(logits.log_softmax(0)[ids[0, at]]))
        tokens = model_likelihoods.pieces.text(number)
        assert model_likelihoods.nats[tokens].tolist() == pytest.approx(nats, abs=1e-9)


def test_pairs_and_facts_are_recorded(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, facts = tmp_path / "pairs.tsv", tmp_path / "facts.jsonl"
    pairs.write_text("right\twrong\nThe cats sleep.\tThe cats sleeps.\nAll.\tAll.\n")
    facts.write_text(json.dumps({"sentence": "All [MASK] it.", "object": "of"}) + "\n")
    place, out, items = str(runs / "bert"), tmp_path / "a.json", tmp_path / "items.jsonl"
    named = ["--columns", "good=right", "--columns", "bad=wrong"]
    command = ["score", place, "--pairs", str(pairs), *named, "--out", str(out)]
    assert cli.main([*command, "--items", str(items)]) == 0
    assert "all pairs" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["all"]["items"] == 2 and record["all"]["ties"] == 1
    assert record["digests"] and record["model"]["sha256"] and record["machine"]["clozelab"]
    assert len(items.read_text().splitlines()) == 2
    assert cli.main(command) == 2  # it is there already
    assert cli.main([*command, "--overwrite"]) == 0
    capsys.readouterr()
    assert cli.main(["score", place, "--facts", str(facts), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["at_10"] == 100.0


def test_an_interrupted_score_leaves_nothing(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(likelihood._METHODS, "masked", interrupted)
    out = tmp_path / "out.tsv"
    assert cli.main(["score", str(runs / "bert"), "--text", "A.", "--out", str(out)]) == 130
    assert not os.listdir(tmp_path)


def test_a_text_has_the_number_of_its_line_and_an_empty_line_no_score(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert, file = str(runs / "bert"), str(tmp_path / "gap.txt")
    (tmp_path / "gap.txt").write_text("a\n\nb\n")
    scores = clozelab.score(bert, file=[file, file], device="cpu")
    assert [each.text for each in scores] == ["a", "", "b"] * 2
    assert "gap.txt: empty lines: 1" in capsys.readouterr().err
    assert [line.split("\t")[0] for line in scores.lines()] == ["1", "3", "4", "6"]
    sentences = [line.split("\t") for line in scores.lines(by="sentence")]
    assert sentences[1] == ["0.000000", "", ""] and all(sentences[2])
    assert [json.loads(line)["perplexity"] is None for line in scores.lines(as_json=True)] == [
        *(False, True, False),
        *(False, True, False),
    ]
    alone = clozelab.score(bert, text=["a", "b"] * 2, device="cpu")
    assert scores.perplexity == pytest.approx(alone.perplexity)


def test_a_text_longer_than_the_blocks_of_training_is_warned_of(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = clozelab.load(runs / "bert")
    length = model.recipe.blocks.length
    assert length < model.recipe.encoder.max_positions
    for words, warned in ((length - 2, False), (length - 1, True)):
        for ask in (model.score, model.embed):
            ask("a " * words)
            said = f"the longest text has {words + 2:,} tokens" in capsys.readouterr().err
            assert said == warned, (words, ask)


def test_an_empty_list_is_not_standard_input(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("A line that nobody asked about.\n"))
    with pytest.raises(UserError, match="the list of texts is empty"):
        clozelab.load(runs / "bert").score([])


def test_what_cannot_be_scored_is_said_in_a_sentence(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert, gpt, elmo = (str(runs / name) for name in ("bert", "gpt", "elmo"))
    assert "--text: is empty; give a text" in fails(capsys, bert, "--text", "", "--text", " ")
    long = "a " * 600
    assert "reads" in fails(capsys, bert, "--text", long)
    assert "does not know" in fails(capsys, bert, "--text", "\U0001f600")
    (tmp_path / "empty.txt").touch()
    assert "is empty" in fails(capsys, bert, "--file", str(tmp_path / "empty.txt"))
    (tmp_path / "blank.txt").write_text("\n \n")
    assert "is empty" in fails(capsys, bert, "--file", str(tmp_path / "blank.txt"))
    assert "does not exist" in fails(capsys, bert, "--file", str(tmp_path / "none.txt"))
    assert "--method original: needs a masked" in fails(
        capsys, gpt, "--text", "a", "--method", "original"
    )
    assert "--data CORPUS" in fails(capsys, elmo, "--text", "a")
    assert cli.main(["score", elmo, "--text", "The queen.", "--data", store("byte_bpe")]) == 0
    capsys.readouterr()
    assert "tokenizer is not" in fails(capsys, elmo, "--text", "a", "--data", store("wordpiece"))
    both = fails(capsys, bert, "--text", "a", "--pairs", "blimp")
    assert "give only one of the three" in both
    assert "--items" in fails(capsys, bert, "--text", "a", "--items", str(tmp_path / "i.jsonl"))
    assert "is a known set" in fails(
        capsys, bert, "--pairs", "blimp", "--columns", "good=a", "--task-data", str(tmp_path)
    )
    missing = ["score", bert, "--facts", "lama_trex", "--task-data", str(tmp_path)]
    assert cli.main(missing) == 2 and "has no data for lama_trex" in capsys.readouterr().err


def test_a_model_without_a_head_is_refused(runs: Path) -> None:
    model = clozelab.load(runs / "bert")
    del model.module.heads["masked_lm"]
    with pytest.raises(UserError, match="has no head that predicts tokens"):
        model.score("A text.")


def test_a_strip_has_colours_or_numbers(runs: Path) -> None:
    from clozelab.cli.views.scores import strip

    (text,) = clozelab.load(runs / "bert").score(TEXTS[0])
    coloured, plain = (strip(text, by="word", coloured=colour) for colour in (True, False))
    assert coloured.plain == TEXTS[0] and len(coloured.spans) == 5
    assert plain.plain.count("(") == 5
