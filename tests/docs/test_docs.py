"""Every command and every Python example in README and docs/ runs."""

from __future__ import annotations

import gzip
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from urllib.request import urlopen

import pytest
from support.coreference import stories
from support.processes import run_process
from support.web_app import serving

from clozelab import data
from clozelab.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / "benchmarks").glob("*.md"),
]
# Pages on speed measure it, beside transformers; the others take half a minute and more.
SLOW = {
    "benchmarks/README.md",
    "docs/questions/compare.md",
    *(
        f"docs/{n}.md"
        for n in ("speed", "tasks", "training", "probing", "other-sequences", "sentence-vectors")
    ),
}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with what the examples read: books, Chinese, a list of names, labelled files."""
    folder = tmp_path
    (folder / "books").mkdir()
    with gzip.open(data.corpus(), "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for _, line in zip(range(100), lines, strict=False)]
    for number in range(4):
        text = "\n\n".join(texts[number::4])
        (folder / "books" / f"{number}.txt").write_text(text, encoding="utf-8")
    shutil.copy(data.chinese(), folder / "chinese.jsonl.gz")
    shutil.copy(data.chinese_entities(), folder / "names.txt")
    for split in ("train", "dev"):
        label(folder, split)
    (folder / "molecules.txt").write_text("CC(=O)Oc1ccccc1C(=O)O\nC[C@@H](N)C(=O)O\nClCCBr\n")
    (folder / "log.txt").write_text("10:31 GET /a 200\n10:32 Closed. Opened again\n")
    (folder / "new.txt").write_text("a small wild cat\na loaf of dark bread\n", encoding="utf-8")
    return folder


def label(folder: Path, split: str) -> None:
    """A split of every kind of task, cut from the embedded ones, and of two tasks of GLUE."""
    files = {name: data.task(name, split).read_text(encoding="utf-8") for name in data.TASKS}
    count = 32 if split == "train" else 12
    rows = [line.split("\t") for line in files["pairs"].splitlines()[1 : count + 1]]
    spans = json.loads(files["spans"])["data"][0]["paragraphs"][:count]
    # Of train for both: so few sentences of dev would have tags that as few of train lack.
    tags = data.task("tags", "train").read_text(encoding="utf-8").split("\n\n")
    records = [document._asdict() for document in stories()[:: 1 if split == "train" else 4]]
    contents = {
        f"reviews-{split}.tsv": files["definitions"].splitlines()[: count + 1],
        f"pairs-{split}.tsv": files["pairs"].splitlines()[: count + 1],
        f"near-{split}.tsv": table("sentence1\tsentence2\tscore", rows, {"yes": "5", "no": "0"}),
        f"people-{split}.conll": "\n\n".join(tags[:count]).splitlines(),
        f"questions-{split}.json": [json.dumps({"data": [{"paragraphs": spans}]})],
        f"choices-{split}.jsonl": files["choices"].splitlines()[:count],
        f"stories-{split}.jsonl": [json.dumps(document) for document in records],
        f"tasks/SST-2/{split}.tsv": table(
            "sentence\tlabel", [row[1:] for row in rows], {"yes": "1", "no": "0"}
        ),
        f"tasks/RTE/{split}.tsv": table(
            "sentence1\tsentence2\tlabel", rows, {"yes": "entailment", "no": "not_entailment"}
        ),
        f"tasks/MNLI/{split.replace('dev', 'dev_matched')}.tsv": table(
            "sentence1\tsentence2\tgold_label", rows, {"yes": "entailment", "no": "neutral"}
        ),
        "tasks/STS-B/dev.tsv": judged("sentence1\tsentence2\tscore\tindex", rows),
        "tasks/sts/SICK_test_annotated.tsv": judged(
            "sentence_A\tsentence_B\trelatedness_score\tpair_ID", rows
        ),
        "tasks/sts/sts12-16.test.tsv": [
            "year\tfile\tscore\tsentence1\tsentence2",
            *(f"{2012 + n % 5}\tx\t{n % 4}\t{a}\t{b}" for n, (a, b, _) in enumerate(rows)),
        ],
        "contrasts.tsv": ["good\tbad", "The cats sleep.\tThe cats sleeps."],
        "tasks/blimp/blimp.jsonl": [
            '{"sentence_good": "A cat.", "sentence_bad": "A cats.", "UID": "x"}',
        ],
        "tasks/lama_trex/trex.jsonl": [
            '{"masked_sentences": ["All [MASK] it ."], "obj_label": "of", "relation": "P1"}',
        ],
        "tasks/SST-2/test.tsv": table("index\tsentence", [["0", "a bread"], ["1", "a cat"]], {}),
    }
    for name, lines in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(header: str, rows: list[list[str]], labels: dict[str, str]) -> list[str]:
    return [header, *("\t".join(labels.get(cell, cell) for cell in row) for row in rows)]


def judged(header: str, rows: list[list[str]]) -> list[str]:
    """Pairs with numbers of people's judgement, and more of them behind."""
    return [header, *(f"{a}\t{b}\t{n % 4}\t{n}" for n, (a, b, _) in enumerate(rows))]


def shortened(line: str) -> str:
    """A command as it is tested: two steps of four blocks in place of a long run."""
    launcher = f"{sys.executable} -m torch.distributed.run"
    line = re.sub(r"^torchrun\b", launcher, line)
    if "--budget" in line:
        line = re.sub(r"--budget \S+", "--budget 2steps --set schedule.batch_size=4", line)
    if line.startswith("clozelab study roberta-masking --data") and "--variants" not in line:
        line += " --variants static,dynamic"
    if line.startswith("clozelab bench"):
        line += " --size 1x64 --length 32 --sequences 2 --steps 1"
    if line.startswith("clozelab finetune"):
        line = re.sub(r"--set (epochs|steps)=\S+", "", line) + " --set steps=2"
    return line


def shortened_python(text: str) -> str:
    """An example in Python as it is tested: likewise."""
    text = text.replace('budget="20m"', 'budget="2steps", set=["schedule.batch_size=4"]')
    return text.replace('dev="reviews-dev.tsv"', 'dev="reviews-dev.tsv", set=["steps=2"]')


def run(lines: str) -> None:
    """The commands of a page: clozelab's in this process, which has torch, torchrun's in others."""
    for line in lines.replace("\\\n", " ").splitlines():
        line_shortened = shortened(line.split("#")[0].strip())
        if "--near-duplicates" in line_shortened and find_spec("rensa") is None:
            continue
        if line_shortened.startswith("clozelab serve"):
            served(globbed(line_shortened)[2:])
        elif line_shortened.startswith("clozelab"):
            assert main(globbed(line_shortened)[1:]) == 0, line_shortened
        elif line_shortened.startswith(sys.executable):
            launched(line_shortened)
        elif line_shortened.startswith("python examples/"):
            _, script, *arguments = line_shortened.split()
            runpy.run_path(str(ROOT / script))["main"](arguments)
        else:
            assert re.match(
                r"(make|git|pip install|python benchmarks|PYTHONPATH=src)\b|$", line_shortened
            ), line_shortened


def served(arguments: list[str]) -> None:
    """Start the web app, open it, and end it by Ctrl-C, which must end it with 0."""
    with serving([], *arguments) as (url, _), urlopen(f"{url}api/models", timeout=60) as answer:
        assert json.load(answer)


def globbed(line: str) -> list[str]:
    """The words of a command, its patterns replaced by files as a shell does it."""
    return [file for word in shlex.split(line) for file in sorted(glob(word)) or [word]]


def launched(line: str) -> None:
    setting = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = run_process(line.split(), env=setting, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (str(page.relative_to(ROOT)) in SLOW))
        for page in PAGES
        if any(language in ("sh", "python") for language, _ in blocks(page))
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_examples_run(page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    commands = ""
    for language, text in [*blocks(page), ("end", "")]:
        if language == "sh":
            commands += text
        elif language in ("python", "end"):  # which see what the commands before them made
            run(commands)
            commands = ""
        if language == "python":
            example = ModuleType("example")
            monkeypatch.setitem(sys.modules, "example", example)  # dataclasses look their module up
            exec(compile(shortened_python(text), str(page), "exec"), example.__dict__)


def test_the_fences_are_found() -> None:
    assert any(language == "sh" for page in PAGES for language, _ in blocks(page))
    assert any(language == "python" for page in PAGES for language, _ in blocks(page))


def test_the_page_of_the_public_functions_is_up_to_date() -> None:
    generated = runpy.run_path(str(ROOT / "tools" / "api_docs.py"))["page"]()
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == generated, "run python tools/api_docs.py"
