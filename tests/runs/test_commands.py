"""The commands, as a user runs them: what they print, and what they answer to mistakes."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.corpora import ENVIRONMENT, build, refused, run, run_apart, texts, write
from support.processes import run_process

import clozelab
from clozelab import cli, data
from clozelab.cli.commands import COMMANDS
from clozelab.config import recipe
from clozelab.data import chinese, chinese_entities, tokenizer
from clozelab.options import summary
from clozelab.text.reading.layouts import RawDocument
from clozelab.text.store import Corpus
from clozelab.text.store.build import _sample
from clozelab.text.tokenizers import Wordpiece

ENGLISH = "Pierre bought an umbrella in New York because of unbelievably hard rain."
CHINESE = "使用语言模型来预测下一个词的概率。"
RECIPES = recipe.names()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus with everything a recipe may ask for."""
    folder = tmp_path_factory.mktemp("corpus")
    file = write(folder / "a.jsonl", texts(60))
    built = build(
        [file, str(chinese())],
        folder / "c",
        Wordpiece(1500),
        phrases=True,
        entities=str(chinese_entities()),
        held_out=0.1,
    )
    return str(built.path)


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus of one document."""
    folder = tmp_path_factory.mktemp("lone")
    return str(build(write(folder / "a.jsonl", texts(1)), folder / "c").path)


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints, run in this process."""
    assert cli.main(arguments) == 0, capsys.readouterr().err
    output = capsys.readouterr().out
    assert "\x1b" not in output, "colour in a pipe"
    return output


def epochs(output: str) -> dict[int, str]:
    """The masks that were shown, by epoch."""
    return {int(n): text for n, text in re.findall(r"epoch (\d+).*\n(.+)", output)}


@pytest.mark.parametrize("name", RECIPES)
def test_show_gives_a_recipe_that_reads_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    for size in (None, "tiny"):
        arguments = [name] if size is None else [name, "--size", size]
        assert "parameters" in run_command(capsys, "show", *arguments)
        (tmp_path / "r.toml").write_text(
            run_command(capsys, "show", *arguments, "--toml"), encoding="utf-8"
        )
        again = recipe.read(str(tmp_path / "r.toml"))
        assert again.tables() == recipe.read(name, size=size).tables()


def test_show_lists_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in run_command(capsys, "show").splitlines()] == RECIPES


def test_diff_tells_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_command(capsys, "diff", "bert", "roberta").splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert rows["blocks.use"] == ['"segment_pair"', '"full_sentences"']
    assert rows["corruption.copies"] == ["10", "0"]
    assert "encoder.hidden_size" not in rows
    assert run_command(capsys, "diff", "bert", "bert") == "bert and bert are the same\n"


def test_diff_takes_files_and_show_says_what_a_file_extends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "often.toml"
    file.write_text('extends = "roberta"\n[masking]\nuse = "token"\nrate = 0.4\n')
    lines = run_command(capsys, "diff", "roberta", str(file)).splitlines()
    assert [line.split() for line in lines[1:] if line.strip()] == [
        ["masking.mask_rate", "0.15", "0.4"]
    ]
    assert "extends roberta, which extends bert" in run_command(capsys, "show", str(file))


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
@pytest.mark.parametrize("name", RECIPES)
def test_mask_shows_every_recipe(capsys: pytest.CaptureFixture[str], name: str, text: str) -> None:
    masks_by_epoch = epochs(run_command(capsys, "mask", name, text))
    assert len(masks_by_epoch) == 3
    hides = "targets" in recipe.read(name).masking.provides
    assert all(("⟦" in masks) == hides for masks in masks_by_epoch.values())


def test_static_masks_return_and_dynamic_ones_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    static, dynamic = (
        epochs(run_command(capsys, "mask", name, ENGLISH)) for name in ("bert", "roberta")
    )
    assert static[0] == static[10] != static[1]
    assert len(set(dynamic.values())) == 3


def test_mask_shows_the_epoch_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    several = epochs(run_command(capsys, "mask", "roberta", ENGLISH))
    assert epochs(run_command(capsys, "mask", "roberta", ENGLISH, "--epoch", "1")) == {
        1: several[1]
    }
    other = epochs(run_command(capsys, "mask", "roberta", ENGLISH, "--epoch", "1", "--seed", "7"))
    assert other[1] != several[1]


@pytest.mark.parametrize("name", ["spanbert", "bert", "ernie", "xlnet", "gpt"])
def test_python_prints_masks_as_the_command_does(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    output = run_command(capsys, "mask", name, ENGLISH)
    assert f"{clozelab.mask(name, ENGLISH)}\n" == output


def test_mask_takes_the_tokenizer_of_a_corpus(
    capsys: pytest.CaptureFixture[str], corpus: str
) -> None:
    def pieces(output: str) -> list[str]:
        return re.sub(r"→[^⟧]+|[⟦⟧=]", "", epochs(output)[0]).replace("·", " ").split()[1:-1]

    output = run_command(capsys, "mask", "bert", ENGLISH, "--corpus", corpus, "--epoch", "0")
    tokens = Corpus.open(corpus).tokenizer.encode(ENGLISH, add_special_tokens=False).tokens
    assert pieces(output) == [token.removeprefix("##") for token in tokens]


@pytest.mark.parametrize(
    ("text", "names", "phrase"),
    [
        ("昨天下午，北京大学的图书馆来了一位老人。", "北‿京‿大‿学", "none"),
        (
            "Pierre went to New York, and Rio de Janeiro saw him.",
            "pierre,  rio‿de‿janeiro",
            "new‿york",
        ),
    ],
)
def test_mask_shows_which_phrases_and_names_are_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, names: str, phrase: str
) -> None:
    lines = [f"He saw New York on day {n}, as Pierre in Rio de Janeiro did." for n in range(30)]
    english = write(tmp_path / "a.jsonl", lines)
    listed = tmp_path / "names.txt"
    listed.write_text("Pierre\nRio de Janeiro\n北京大学\n", encoding="utf-8")
    built = build(
        [english, str(chinese())],
        tmp_path / "c",
        Wordpiece(1500),
        phrases=True,
        entities=str(listed),
    )
    levels = ("--set", "masking.levels={phrase=1.0,entity=1.0}")
    output = run_command(capsys, "mask", "ernie", text, "--corpus", str(built.path), *levels)
    plain = re.sub("[·⟦⟧=]|→[^‿⟧]*", "", output)
    assert f"names known in this text: {names}\n" in plain
    assert phrase in re.findall("phrases known in this text: (.*)", plain)[0]
    for level, line in re.findall(r"^(phrase|entity): (.+)", plain, re.MULTILINE):
        units = names.split(",  ") if level == "entity" else [phrase] * (phrase != "none")
        assert all(unit in line for unit in units)


def test_mask_says_that_no_units_are_known_without_a_corpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = run_command(capsys, "mask", "ernie", CHINESE, "--epoch", "0")
    assert "phrases known in this text: none: needs a --corpus built with --phrases\n" in output
    assert "names known in this text: none: needs a --corpus built with --entities\n" in output


def test_words_of_the_knowledge_levels_are_segmented_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--set", "masking.levels={word=1.0}", "--set", "masking.mask_rate=0.5")
    for masks in epochs(run_command(capsys, "mask", "ernie", CHINESE, *options)).values():
        assert "语‿言" in re.sub("[⟦⟧=]|→[^‿⟧]*", "", masks)


def test_a_corpus_without_segmented_words_is_refused_for_their_level(tmp_path: Path) -> None:
    built = build(write(tmp_path / "a.jsonl", texts(20)), tmp_path / "c", segment=False)
    command = ("blocks", "ernie", "--size", "tiny", "--corpus", str(built.path))
    result = run(*command, "--set", "masking.levels={word=1.0}")
    assert result.returncode == 2
    assert "has no segment units; build it again" in result.stderr


def test_mask_reads_standard_input() -> None:
    assert epochs(run_apart("mask", "bert", "-", text=ENGLISH).stdout) == epochs(
        run("mask", "bert", ENGLISH).stdout
    )


@pytest.mark.parametrize("name", RECIPES)
def test_blocks_shows_every_recipe(
    capsys: pytest.CaptureFixture[str], corpus: str, name: str
) -> None:
    command = [
        "blocks",
        name,
        "--corpus",
        corpus,
        "--size",
        "tiny",
        "--number",
        "1",
        "--count",
        "2",
    ]
    output = run_command(capsys, *command)
    assert re.findall(r"^block (\d+): (\d+) \w+", output, re.MULTILINE)[0][0] == "1"
    assert len(re.findall(r"^block \d+:", output, re.MULTILINE)) == 2
    assert "in a pass" in output


def test_blocks_reads_what_is_held_out(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    def count(part: str) -> int:
        command = ["blocks", "roberta", "--corpus", corpus, "--size", "tiny", "--part", part]
        match = re.search(r"([\d,]+) blocks in a pass", run_command(capsys, *command))
        assert match
        return int(match[1].replace(",", ""))

    assert 0 < count("held_out") < count("train")


def test_one_document_has_no_random_next_segment(
    capsys: pytest.CaptureFixture[str], lone: str
) -> None:
    answer = refused(run("blocks", "bert", "--corpus", lone))
    assert "a single document" in answer and "build it from several documents" in answer
    assert "block 0:" in run_command(capsys, "blocks", "roberta", "--corpus", lone)


def test_corpus_show_and_check(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    output = run_command(capsys, "corpus", "show", corpus)
    numbers = Corpus.open(corpus).manifest["splits"]["train"]
    row = next(line.split() for line in output.splitlines() if line.startswith("train"))
    assert row[1:] == [f"{numbers[key]:,}" for key in ("documents", "sentences", "tokens")]
    assert "all 15 files are intact" in run_command(capsys, "corpus", "check", corpus)


def test_demo_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open(data.corpus(), "rb") as file:
        some = file.readlines()[:400]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(some)))
    monkeypatch.setattr("clozelab.data.corpus", lambda: tmp_path / "a.jsonl.gz")
    monkeypatch.setattr("clozelab.cli.demo._TUNING", ("--set", "steps=2"))
    for first, more in (("clozelab corpus build", 12), ("clozelab corpus show", 6)):
        output = run_command(capsys, "demo", "--out", str(tmp_path / "demo"), "--budget", "2steps")
        assert output.startswith(first)
        assert output.count("\nclozelab ") == more  # finished stages are not gone through again
        assert output.count("nats per masked token") == 2
        assert output.count("most common kinds of bug.\n") == 4  # our answer, and the pipeline's
        assert output.count("% accuracy, the same architecture from random weights") == 1
        assert output.count("The file system crashed again.\n") == 2  # predict's, the pipeline's


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("show brt", "recipe brt is unknown; did you mean bert?"),
        ("show bert --size tinny", "did you mean tiny?"),
        ("show bert --set masking.mask_rat=0.3", "mask_rate"),
        ("show bert --set masking.mask_rate=high", "masking.mask_rate"),
        ("show bert --set masking.use=tokn", "token"),
        ("diff bert rberta", "did you mean roberta?"),
        ("mask bert ''", "the text has no tokens"),
        ("blocks bert --corpus nowhere", "nowhere: is not a corpus; make one with"),
        ("corpus show nowhere", "nowhere: is not a corpus; make one with"),
        (
            "evaluate nowhere --dat c",
            "--dat: is not an option of clozelab evaluate; did you mean --data",
        ),
        ("generate nowhere --top-k -3k", "--top-k: '-3k' is not a whole number"),
        ("corpus build text.txtt --out c", "did you mean text.txt?"),
        ("corpus build empty.txt --out c", "there is no text in empty.txt"),
        ("corpus build white.txt --out c", "there is no text in white.txt"),
        ("corpus build bad.txt --out c", "bad.txt:1: byte 0xFF is not UTF-8"),
        ("corpus build text.txt --out text.txt/c", "text.txt is not a folder; name another place"),
        ("corpus build text.txt --out " + "x" * 300, "File name too long"),
        ("corpus build text.txt --out c --tokenizer wordpeice", "did you mean wordpiece?"),
        ("corpus build text.txt --out c --tokenizer-from text.txt", "text.txt: "),
        ("corpus build text.txt --out c --tokenizer-from no", "no: does not exist"),
        ("corpus build text.txt --out c --vocabulary 10", "--vocabulary 10: is too small"),
        ("corpus build text.txt --out c --vocabulary -4", "of 0 or more; give one"),
        ("corpus build text.txt --out c --voc 400", "did you mean --vocabulary?"),
        ("diff bert", "arguments are required: OTHER-RECIPE; see clozelab diff --help"),
        ("corpus build text.txt --out c --held-out 1", "--held-out 1.0: must be at least 0"),
        ("corpus build text.txt --out c --entities no", "no: cannot be read (No such file"),
        ("corpus build text.txt --out c --spans spans", "spans:100: expected document, start"),
        ("corpus build text.txt --out c --encoding klingon", "--encoding klingon: is unknown"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(tmp_path: Path, arguments: str, answer: str) -> None:
    (tmp_path / "text.txt").write_text("One sentence here. And another.\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "white.txt").write_text(" \n\t\n\n")
    (tmp_path / "bad.txt").write_bytes(b"abc \xff there.\n" * 4)
    (tmp_path / "spans").write_text("text.txt:1\t0\t3\tentity\n" * 99 + "wrong\n")
    split = [word.strip("'") for word in arguments.split(" ")]
    assert answer in refused(run(*split, cwd=tmp_path))
    assert not (tmp_path / "c").exists(), "a refused build left something behind"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--part", "tain"], "has no split 'tain'; choose train or held_out"),
        (["--number", "999,999,999"], "--number 999999999: is out of range; give 0 to"),
    ],
)
def test_blocks_that_are_not_there(corpus: str, arguments: list[str], answer: str) -> None:
    assert answer in refused(
        run("blocks", "roberta", "--corpus", corpus, "--size", "tiny", *arguments)
    )


def test_a_negative_budget_is_a_budget_and_no_option(corpus: str, tmp_path: Path) -> None:
    arguments = ["--data", corpus, "--out", "new", "--budget", "-5s"]
    message = refused(run("pretrain", "bert", *arguments, cwd=tmp_path))
    assert "--budget -5s: is not a budget; give a number and its unit" in message


def test_numbers_that_are_none_are_answered_plainly() -> None:
    message = refused(run("mask", "bert", "text", "--epoch", "x"))
    assert "--epoch: 'x' is not a whole number of 0 or more" in message


def test_nul_bytes_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello \0 world.\n")
    result = run("corpus", "build", "a.txt", "--out", "c", "--workers", "1", cwd=tmp_path)
    assert result.returncode == 0
    assert "NUL bytes removed: 1 (first at a.txt:1)" in result.stderr


def test_text_without_sentence_ends_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word of no end " * 2000)
    arguments = ["a.txt", "--out", "c", "--workers", "1", "--held-out", "0"]
    result = run("corpus", "build", *arguments, cwd=tmp_path)
    assert "sentences over 10,000 characters cut: 2" in result.stderr
    assert Corpus.open(tmp_path / "c").manifest["splits"]["train"]["sentences"] == 3


def test_a_tokenizer_is_never_given_a_line_without_end() -> None:
    document = RawDocument("abc def " * 5000 + "\n" + "x" * 30_000 + "\nshort", "a:1")
    pieces = list(_sample(iter([document]), 1.0, limit=1 << 20, stop=threading.Event()))
    assert max(map(len, pieces)) <= 10_001  # with the space in front
    assert "".join(pieces) == document.text.replace("\n", "")


@pytest.mark.slow
def test_a_line_without_end_takes_bounded_memory(tmp_path: Path) -> None:
    """50 MB in one line: parent and workers together stay under a gigabyte."""
    phrase = b"the quick brown fox jumps over lazy dogs "
    with (tmp_path / "a.txt").open("wb") as file:
        for _ in range(50):
            file.write(phrase * (1_000_000 // len(phrase)))
    command = [sys.executable, "-m", "clozelab", "corpus", "build", "a.txt", "--out", "c"]
    command += ["--tokenizer-from", str(tokenizer("wordpiece")), "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    stop = threading.Timer(80, process.kill)
    stop.start()
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for status in Path("/proc").glob("[0-9]*/status"):
            measure(status, process.pid, peaks)
        time.sleep(0.05)
    stop.cancel()
    assert process.returncode == 0
    assert len(peaks) >= 3
    assert sum(peaks.values()) < 1_000_000, peaks


def measure(status: Path, session: int, peaks: dict[int, int]) -> None:
    """Note the most memory (KB) a process of a session has taken."""
    try:
        fields = (status.parent / "stat").read_text().rsplit(")", 1)[1].split()
        match = re.search(r"VmHWM:\s+(\d+)", status.read_text())
    except OSError:
        return
    if int(fields[3]) == session and match:
        peaks[int(status.parent.name)] = int(match[1])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_the_command_does_not_what_python_returns(name: str) -> None:
    assert not re.search("`|return", summary(COMMANDS[name].call))


def test_help_starts_without_anything_heavy() -> None:
    script = (
        "import sys; from clozelab.cli import COMMANDS, parser; parser(COMMANDS);"
        "print([n for n in ('torch', 'pyarrow', 'tokenizers', 'nupunkt') if n in sys.modules])"
    )
    result = run_process(
        [sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
    for arguments in (
        [],
        ["corpus"],
        ["corpus", "build"],
        ["show"],
        ["mask"],
        ["blocks"],
        ["demo"],
    ):
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.main([*arguments, "--help"])
