"""The commands that write, at sizes of a second, and what their folders hold when all went well."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from campaign.children import Ended, counting, run
from clozelab import data
from clozelab.runs.directory import Run

OUT = "out"  # the folder that every command makes, in a folder of its own
_SHAPE = ("layers=1", "hidden_size=32", "heads=2", "intermediate_size=64", "embedding_size=32")
_SMALL = (
    *(f"encoder.{setting}" for setting in _SHAPE),
    *("blocks.length=32", "schedule.batch_size=4", "schedule.warmup=0", "schedule.phases=[]"),
)
_WATCHING = ("--save-every", "2", "--evaluate-every", "2", "--keep", "1")
_TUNED = ("batch_size=8", "length=32", "steps=2")
_STUDY = """title = "Masks"
question = "Do fresh masks help?"
[paper]
name = "RoBERTa"
source = "Table 1"
[base]
recipe = "bert"
set = {set}
tasks = []
seeds = 1
measures = ["held_out.masked_lm"]
finetune = {tuned}
[[variants]]
name = "static"
says = "ten copies"
[[variants]]
name = "dynamic"
says = "fresh masks"
set = ["corruption.copies=0"]
[[claims]]
better = "dynamic"
than = "static"
on = ["held_out.masked_lm"]
says = "Fresh masks are no worse."
"""
# What hangs on the clock, and what says how a run came about rather than what came out.
_TIMES = ("limited_by", "times", "tokens_a_second", "waited", "slack", "busy", "starved")
_SEALS = ("checksums.json", "machine.toml", "page.html", "page.md")


@dataclass(frozen=True)
class Work:
    """A command, and those that go on with it after a stop, tried one after another."""

    name: str
    first: Sequence[str]
    again: Sequence[Sequence[str]]
    whole: Path  # what the command makes when nothing disturbs it
    content: dict[str, str] = field(default_factory=dict)  # of that, as `snapshot` has it
    writes: int = 0  # how many it makes
    seconds: float = 0.0  # how long it takes

    def go_on(self, place: Path) -> Ended:
        """Go on with it as a user would who reads what it says."""
        ended = None
        for command in self.again:
            ended = run(command, place)
            if ended.code != 2:
                break
        assert ended is not None
        return ended

    def compare(self, place: Path) -> str | None:
        """How a folder differs from that of an undisturbed run; None where it does not."""
        contents = snapshot(place / OUT)
        names = sorted(contents.keys() ^ self.content.keys())
        names += sorted(
            n for n in contents.keys() & self.content.keys() if contents[n] != self.content[n]
        )
        beside = sorted(file.name for file in place.iterdir() if file.name != OUT)
        if beside:
            return f"left beside: {', '.join(beside)}"
        return f"differs in {', '.join(names[:5])}" if names else None


def prepare(root: Path) -> dict[str, Work]:
    """Run every command undisturbed, each on what those before it made."""
    text, task, study = _inputs(root)
    corpus, model = root / "build" / OUT, root / "pretrain" / OUT
    cpu = ("--device", "cpu")
    build = (
        "corpus",
        "build",
        text,
        "--out",
        OUT,
        "--tokenizer",
        "wordpiece",
        "--vocabulary",
        "300",
    )
    pretrain = ("pretrain", "bert", "--size", "tiny", "--data", str(corpus), "--out", OUT)
    finetune = ("finetune", str(model), "classify", "--train", f"{task}/train.tsv", "--dev")
    commands = {
        "build": (*build, "--workers", "1", "--held-out", "0.2", "--phrases"),
        "pretrain": (*pretrain, "--budget", "4steps", *_WATCHING, *cpu, *_set(_SMALL)),
        "finetune": (
            *finetune,
            f"{task}/dev.tsv",
            "--out",
            OUT,
            "--seeds",
            "2",
            *cpu,
            *_set(_TUNED),
        ),
        "study": (
            *("study", study, "--data", str(corpus), "--out", OUT, "--budget", "2steps"),
            *("--tasks", f"classify={task}", *cpu),
        ),
        "export": ("export", str(model), OUT),
    }
    resume = ("pretrain", "--resume", OUT, *_WATCHING)
    works = {}
    for name, command in commands.items():
        again = (resume, command) if name == "pretrain" else (command,)
        works[name] = _undisturbed(Work(name, command, again, root / name / OUT))
    return works


def _undisturbed(work: Work) -> Work:
    place = work.whole.parent
    place.mkdir()
    counter = place.parent / f"{work.name}.writes"
    ended = run(work.first, place, before=counting(counter, place=place))
    if ended.code:
        raise SystemExit(f"{work.name} fails undisturbed: {ended.errors}")
    return Work(
        work.name,
        work.first,
        work.again,
        work.whole,
        content=snapshot(work.whole),
        writes=int(counter.read_text()),
        seconds=ended.seconds,
    )


def snapshot(folder: Path) -> dict[str, str]:
    """What a folder holds, file by file, but for times; leftovers of any kind count as files."""
    contents = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        name = file.relative_to(folder).as_posix()
        if file.name in (".lock", ".lock.json"):  # the lock is what holds them, not their names
            continue
        contents[name] = "" if file.name in _SEALS else _content(file, folder)
    return contents


def _content(file: Path, folder: Path) -> str:
    if file.name == "metrics.jsonl":
        value: Any = [entry for entry in Run(file.parent).events() if entry["kind"] != "resume"]
    elif file.suffix == ".json":
        try:
            value = json.loads(file.read_bytes())
        except ValueError:
            value = "cannot be read"
    else:
        return sha256(file.read_bytes()).hexdigest()
    return json.dumps(_timeless(value), sort_keys=True).replace(str(folder), "")


def _timeless(node: Any) -> Any:
    """A value without what hangs on the clock."""
    if isinstance(node, dict):
        return {
            key: _timeless(value)
            for key, value in node.items()
            if key not in _TIMES and "seconds" not in key
        }
    return [_timeless(item) for item in node] if isinstance(node, list) else node


def _inputs(root: Path) -> tuple[str, str, str]:
    """A text, a folder with a task, and a study, from what comes with clozelab."""
    with gzip.open(data.corpus(), "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"][:1500] for line, _ in zip(lines, range(30), strict=False)]
    text, task, study = root / "text.jsonl", root / "task", root / "study.toml"
    text.write_text(
        "".join(json.dumps({"text": document}) + "\n" for document in texts), encoding="utf-8"
    )
    task.mkdir()
    rows = data.task("definitions", "train").read_text(encoding="utf-8").splitlines()[:9]
    for split in ("train", "dev"):
        (task / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    settings = {"set": json.dumps(list(_SMALL)), "tuned": json.dumps(list(_TUNED))}
    study.write_text(_STUDY.format(**settings), encoding="utf-8")
    return str(text), str(task), str(study)


def _set(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]
