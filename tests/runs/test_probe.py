"""Probes of frozen models: tasks by name and by file, by layer, the same numbers every time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from support.labelled_files import refusal, write
from support.pretrain_runs import pretrain_job, run_pretraining, store, teacher
from support.probe_tasks import NOUNS, sentences, sst2

import clozelab
from clozelab import cli
from clozelab.errors import UserError
from clozelab.finetuning.request import Data
from clozelab.models.load import load
from clozelab.models.model import Model
from clozelab.scoring.frozen import FrozenEncoder
from clozelab.scoring.probed import Excerpt, ProbeTask

torch.set_num_threads(1)
CPU = torch.device("cpu")
QUIET = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def model() -> Model:
    return load(teacher())


@pytest.mark.parametrize("fit", ["ridge", "logistic"])
def test_a_planted_word_is_found_and_shuffled_labels_are_at_chance(
    model: Model, tmp_path: Path, fit: str
) -> None:
    options = {"fit": fit, "examples": 0, **QUIET}
    probes = model.probe("sst2", task_data=sst2(tmp_path / "a"), **options)
    probed = probes["sst2"]
    shown = f"sst2 accuracy {probed.scores['accuracy']:.2f} at layer {probed.layer} (100 examples)"
    assert repr(probes) == shown
    with pytest.raises(UserError, match="sst: was not probed; did you mean sst2"):
        probes["sst"]
    assert probed.scores["accuracy"] > 95 and probed.trained == 200 and probed.scored == 100
    assert [layer.layer for layer in probed.layers] == [0, 1, 2]
    assert probed.errors["accuracy"] < 5
    blind = model.probe("sst2", task_data=sst2(tmp_path / "b", shuffled=True), **options)["sst2"]
    assert 30 < blind.scores["accuracy"] < 70 and 3 < blind.errors["accuracy"] < 7


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    command = ["probe", teacher(), "sst2", "--task-data", str(sst2(tmp_path)), "--device", "cpu"]
    for name in "ab":
        outputs = [
            "--out",
            str(tmp_path / f"{name}.json"),
            "--picture",
            str(tmp_path / f"{name}.svg"),
        ]
        assert cli.main([*command, *outputs]) == 0
    for suffix in ("json", "svg"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["model"]["sha256"] == load(teacher()).digest
    assert len(record["digests"]["sst2"]) == 2 and "commit" in record["machine"]
    assert (
        record["probes"][0]["scores"]
        == record["probes"][0]["layers"][record["probes"][0]["layer"]]["scores"]
    )
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.startswith("<svg xmlns=") and "sst2: accuracy" in drawn and "polyline" in drawn


def test_the_table_marks_the_layer_that_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["probe", teacher(), "sst2", "--task-data", str(sst2(tmp_path)), "--device", "cpu"]
    assert cli.main(command) == 0
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert head.split()[-3:] == ["0", "1", "2"] and row.split()[:2] == ["sst2", "accuracy"]


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_vectors_are_those_of_embed(model: Model, pool: str) -> None:
    texts = ["It was a letter.", "a house", "", "the door of the garden was open in the morning"]
    encoder = FrozenEncoder(model, CPU, pool=pool)  # type: ignore[arg-type]
    list(encoder.follow(Excerpt(text) for text in texts))
    theirs = model.embed(texts, layer="all", pool=pool, **QUIET).vectors
    for layer in range(3):
        ours = encoder.layer([Excerpt(text) for text in texts], layer)
        np.testing.assert_allclose(ours, theirs[:, layer], atol=1e-5)


def test_a_text_is_cut_to_the_blocks_of_pretraining_marks_included(model: Model) -> None:
    length = model.recipe.blocks.length
    for tokens, cut in ((length - 2, 0), (length - 1, 1)):
        encoder = FrozenEncoder(model, CPU)
        list(encoder.follow([Excerpt("a " * tokens)]))
        assert encoder.cut == cut


def test_a_text_is_cut_to_the_longest_block_of_all_its_training(
    model: Model, tmp_path: Path
) -> None:
    length = model.recipe.blocks.length
    run = clozelab.pretrain(
        "simcse", from_=model.place, data=store("wordpiece"), out=tmp_path / "run", budget="1steps",
        set=[f"blocks.length={length // 2}", "schedule.batch_size=4"], **QUIET,
    )  # fmt: skip
    encoder = FrozenEncoder(run.load(), CPU)
    list(encoder.follow([Excerpt("a " * (length - 2))]))
    assert encoder.cut == 0


def test_a_word_is_the_mean_of_its_pieces_and_is_computed_once(model: Model) -> None:
    text = "an extraordinary housekeeper"
    excerpts = [Excerpt(text, span) for span in ((0, 2), (3, 16), (17, 28))]
    encoder = FrozenEncoder(model, CPU)
    assert list(encoder.follow([*excerpts, *excerpts])) == [(1, 1)]
    assert list(encoder.follow(excerpts)) == []
    theirs = model.embed([text], words="mean", **QUIET).vectors
    np.testing.assert_allclose(encoder.layer(excerpts, 2), theirs, atol=1e-5)
    encoder.forget(excerpts[:1])
    assert list(encoder.follow(excerpts)) == [(1, 1)]


def test_layers_by_number_and_from_the_end(model: Model, tmp_path: Path) -> None:
    root = sst2(tmp_path)
    every = model.probe("sst2", task_data=root, **QUIET)["sst2"]
    for layer, number in (("last", 2), (0, 0), ("-2", 1)):
        probed = model.probe("sst2", task_data=root, layer=layer, **QUIET)["sst2"]
        assert probed.layers == (every.layers[number],) and probed.layer == number
    message = refusal(lambda: model.probe("sst2", task_data=root, layer=9, **QUIET))
    assert "has layers 0 (the embedding) to 2" in message


@pytest.mark.parametrize("name", ["gpt", "xlnet", "elmo", "modernbert"])
def test_other_encoders_are_probed_by_their_own_summary(tmp_path: Path, name: str) -> None:
    run_pretraining(pretrain_job(name, steps=1), tmp_path / "run")
    root, model = sst2(tmp_path), load(str(tmp_path / "run"))
    assert model.probe("sst2", task_data=root, **QUIET)["sst2"].scores["accuracy"] > 80
    if name == "elmo":
        message = refusal(lambda: model.probe("sst2", task_data=root, pool="cls", **QUIET))
        assert "use --pool mean" in message
    else:
        probed = model.probe("sst2", task_data=root, pool="cls", **QUIET)["sst2"]
        assert len(probed.layers) == model.recipe.encoder.layers + 1


def test_cosines_are_correlated_with_judgement(model: Model, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    pairs = [(*(" ".join(draw.choice(NOUNS, 4)) for _ in "ab"), draw.random()) for _ in range(30)]
    lines = [f"2014\tnews\t{score:.3f}\t{a}\t{b}\n" for a, b, score in pairs]
    table = "year\tfile\tscore\tsentence1\tsentence2\n2012\tnews\t1\tx\ty\n" + "".join(lines)
    write(tmp_path / "sts" / "sts12-16.test.tsv", table)
    probed = model.probe("sts14", task_data=tmp_path, **QUIET)["sts14"]
    assert (probed.trained, probed.scored, probed.split, probed.layer) == (0, 30, "test", 2)
    a, b = (
        model.embed([pair[side] for pair in pairs], layer=1, pool="mean", **QUIET).vectors
        for side in (0, 1)
    )
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    theirs = 100 * spearmanr(cosines, [round(pair[2], 3) for pair in pairs]).statistic
    assert probed.layers[1].scores["spearman"] == pytest.approx(theirs, abs=1e-3)


def test_tags_are_read_off_the_words(model: Model, tmp_path: Path) -> None:
    for split, count, seed in (("wnut17train", 60, 0), ("emerging.dev", 20, 1)):
        rows = []
        for text, _ in sentences(count, first=seed):
            tags = ["B-person" if word in ("friend", "sister") else "O" for word in text.split()]
            rows += [f"{w}\t{tag}\n" for w, tag in zip(text.split(), tags, strict=True)] + ["\n"]
        write(tmp_path / "wnut17" / f"{split}.conll", "".join(rows))
    probed = model.probe("wnut17", task_data=tmp_path, **QUIET)["wnut17"]
    assert probed.scores["f1"] > 95 and probed.trained == 360 and probed.scored == 20
    few = model.probe("wnut17", task_data=tmp_path, examples=8, **QUIET)["wnut17"]
    assert few.trained == 30  # words, of whole sentences


def wic(root: Path) -> Path:
    draw = np.random.default_rng(0)
    for split, count in (("train", 120), ("dev", 60)):
        data, gold = [], []
        for _ in range(count):
            words = [list(draw.choice(NOUNS, 4)) for _ in "ab"]
            a, b = (int(place) for place in draw.integers(4, size=2))
            alike = bool(draw.integers(2))
            words[0][a], words[1][b] = "good", "good" if alike else "evil"
            data.append(f"good\tA\t{a}-{b}\t{' '.join(words[0])}\t{' '.join(words[1])}\n")
            gold.append(f"{'FT'[alike]}\n")
        write(root / "wic" / f"{split}.data.txt", "".join(data))
        write(root / "wic" / f"{split}.gold.txt", "".join(gold))
    return root


def test_words_in_context_are_compared(model: Model, tmp_path: Path) -> None:
    root = wic(tmp_path)
    assert model.probe("wic", task_data=root, **QUIET)["wic"].scores["accuracy"] > 90
    assert len(ProbeTask.named("wic", root=str(root)).digests()) == 4
    data = Data("wic", root=str(root))  # as it is tuned: a pair, the word before it
    first = data.splits().read("dev")[0]
    assert first.first.startswith("good: ") and first.second and first.label in "FT"
    digests = data.digests()
    write(root / "wic" / "dev.gold.txt", "T\n" * 60)
    changed = {file for file, digest in data.digests().items() if digests[file] != digest}
    assert [Path(file).name for file in changed] == ["dev.gold.txt"] and len(digests) == 4
    write(root / "wic" / "dev.data.txt", "good\tA\t0-9\ta b\tc d\n")
    write(root / "wic" / "dev.gold.txt", "T\n")
    message = refusal(lambda: model.probe("wic", task_data=root, **QUIET))
    assert "dev.data.txt:1 is not a line of WiC" in message


def test_matthews_is_of_balanced_classes(model: Model, tmp_path: Path) -> None:
    """With three in four of one class a weak signal still shows."""
    for split, count, seed in (("train", 300, 0), ("dev", 150, 1)):
        pairs = enumerate(sentences(count, first=seed))
        rows = [row for n, row in pairs if row[1] == "1" or n % 3 == 0]
        lines = [f"x\t{label}\t\t{text}\n" for text, label in rows]
        write(tmp_path / "CoLA" / f"{split}.tsv", "".join(lines))
    assert model.probe("cola", task_data=tmp_path, **QUIET)["cola"].scores["matthews"] > 90


def test_one_s_own_files(tmp_path: Path) -> None:
    root = sst2(tmp_path) / "SST-2"
    files = {"train": root / "train.tsv", "dev": root / "dev.tsv"}
    probes = clozelab.probe(teacher(), "classify", **files, **QUIET)
    assert probes["classify"].scores["accuracy"] > 95
    numbers = "sentence1\tsentence2\tscore\n" + "".join(
        f"{a}\t{b}\t{float(x) + float(y)}\n"
        for (a, x), (b, y) in zip(sentences(120), sentences(120, first=1), strict=True)
    )
    file = write(tmp_path / "numbers.tsv", numbers)
    own = {"train": file, "dev": file}
    probes = clozelab.probe(teacher(), "regress", **own, examples=100, **QUIET)
    assert probes["regress"].scores["pearson"] > 50 and probes["regress"].trained == 100
    message = refusal(lambda: clozelab.probe(teacher(), "regress", fit="logistic", **own, **QUIET))
    assert message == "--fit logistic: needs classes, but regress has numbers; use ridge"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sst3"], "sst3: is not a task to probe; did you mean sst2?"),
        (["squad1"], "squad1: is not a task to probe"),
        (["sst2", "--task-data", "nowhere"], "nowhere has no data for sst2"),
        (["sst2", "--split", "tests"], "sst2: has no tests set here, only train, dev"),
        (["sst2", "--picture", "a.png"], "--picture a.png: must end in .svg; rename it"),
        (["sst2", "--train", "a.tsv"], "probes on your own files need one kind"),
        (["sst2", "--columns", "label=0"], "--columns is for your own files"),
        (["sst2", "--pool", "max"], "--pool max: is unknown"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    options = [] if "--task-data" in arguments else ["--task-data", str(sst2(tmp_path))]
    assert cli.main(["probe", teacher(), *arguments, *options, "--device", "cpu"]) == 2
    output = capsys.readouterr().err
    assert says in output and "Traceback" not in output


def test_a_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = write(tmp_path / "a.json", "mine")
    root = str(sst2(tmp_path))
    assert cli.main(["probe", teacher(), "sst2", "--task-data", root, "--out", str(place)]) == 2
    assert place.read_text() == "mine" and "--overwrite" in capsys.readouterr().err
