"""Planning and reading large corpora: time and memory by the number of tokens.

    python benchmarks/scale.py [--millions 20 200 2000] [--formats NAME…] [--folder DIR] [--limit 2]

For each size a corpus of short sentences (4 to 20 tokens, 1 to 39 a document) is made on the spot
as a store, and removed afterwards. For each format two processes start at once, as those of a run
on two devices do: one plans the pass, with processes that help it, the other waits, and both read
the blocks of 200 steps, with masks. A third starts when the plan is there, and gives the time to
its first step. The plan is removed before the next format.

Memory is that of all processes together, sampled: what they hold for themselves, and, with pages of
files that the kernel may drop at any time, what is resident (shared pages counted once). With
--limit no more than so many GB can be held by all of them. Where the system lets this program make
a memory control group (as root, on Linux), all that it does is in one, with the pages of files that
it maps, reads or writes, and who asks for more is killed. Elsewhere each process may have its part
as memory of its own (RLIMIT_DATA), and pages of files do not count. The record says which it was.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np
from text import machine

import clozelab
from clozelab import data, files
from clozelab.blocks import PARTS
from clozelab.contracts import Mark
from clozelab.pretraining.plans import _MAX_PROCESSES
from clozelab.text.building import cores
from clozelab.text.store import Corpus, plans
from clozelab.text.store.manifest import NAME, fingerprint, render

STEPS, BATCH, LENGTH = 200, 256, 128
PIECE = 1 << 20  # sentences made at a time
RECIPES = {
    "segment_pair": "bert",
    "sentence_pair": "bert",
    "full_sentences": "roberta",
    "doc_sentences": "roberta",
    "sentence_order": "albert",
    "causal": "gpt",
    "words": "elmo",
    "stream_pair": "xlnet",
}
SETTINGS: dict[str, dict[str, int]] = {"stream_pair": {"reuse": LENGTH // 2, "rows": BATCH}}
Row = dict[str, Any]


class MemoryGroup:
    """A memory control group: its limit can be set and its peak read."""

    def __init__(self, path: Path, limit: str, peak: str) -> None:
        self.path, self._limit, self._peak = path, path / limit, path / peak

    @classmethod
    def own(cls) -> MemoryGroup:
        """The group of this process."""
        groups = dict(
            line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
        root = Path("/sys/fs/cgroup")
        if "memory" in groups:  # the first version of control groups
            path = root / "memory" / groups["memory"].lstrip("/")
            return cls(path, "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        return cls(root / groups[""].lstrip("/"), "memory.max", "memory.peak")

    def enter(self, *processes: str) -> None:
        """Move processes, with all that they will start, into the group."""
        for process in processes:
            (self.path / "cgroup.procs").write_text(process)

    @contextmanager
    def part(self, most: float) -> Iterator[MemoryGroup]:
        """A group inside it, limited to `most` bytes, with this process in it during the block."""
        path = self.path / f"clozelab-scale-{os.getpid()}"
        path.mkdir()
        part = MemoryGroup(path, self._limit.name, self._peak.name)
        try:
            part._limit.write_text(str(int(most)))
            part.enter(str(os.getpid()))
            yield part
        finally:
            self.enter(*(path / "cgroup.procs").read_text().split())
            path.rmdir()

    def peak(self) -> int:
        """The peak memory of the group in bytes, including pages of files."""
        return int(self._peak.read_text())


def sentence_sizes(tokens: int) -> Iterator[Any]:
    """The number of tokens of each sentence, in batches; equal for equal `tokens`."""
    sentences = tokens // 12
    for first in range(0, sentences, PIECE):
        rng = np.random.default_rng([7, first])
        yield rng.integers(4, 21, min(PIECE, sentences - first))


def make_corpus(folder: Path, tokens: int) -> Corpus:
    """A corpus of so many random tokens; its tokenizer is that of the embedded text."""
    corpus = clozelab.build_corpus(data.corpus(), out=folder, held_out=0.05, progress=False)
    vocabulary, rng = corpus.vocabulary.size, np.random.default_rng(1)
    total = sum(int(sizes.sum()) for sizes in sentence_sizes(tokens))
    sentences = sum(len(sizes) for sizes in sentence_sizes(tokens))
    per_document = rng.integers(1, 40, sentences // 10)
    documents = np.concatenate([[0], np.cumsum(per_document)])
    documents = np.append(documents[documents < sentences], sentences)
    shapes = {
        "ids": (total, np.uint16),
        "marks": (total, np.uint8),
        "sentences": (sentences + 1, np.int64),
        "documents": (len(documents), np.int64),
    }
    streams = {}
    for name, (length, dtype) in shapes.items():
        streams[name] = stream = (folder / "train" / f"{name}.npy").open("wb")
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(stream, header)
    streams["documents"].write(documents.data)
    streams["sentences"].write(np.zeros(1, dtype=np.int64).data)
    done = 0
    for sizes in sentence_sizes(tokens):
        count, ends = int(sizes.sum()), np.cumsum(sizes)
        streams["ids"].write(rng.integers(5, vocabulary, count, dtype=np.uint16).data)
        marks = rng.integers(0, 4, count, dtype=np.uint8)
        marks = ((marks > 0) * Mark.WORD).astype(np.uint8)
        marks[np.append(0, ends[:-1])] = Mark.ALL
        streams["marks"].write(marks.data)
        streams["sentences"].write((done + ends).data)
        done += count
    for stream in streams.values():
        stream.close()
    manifest = corpus.manifest
    manifest["splits"]["train"] |= {
        "documents": len(documents) - 1,
        "sentences": sentences,
        "tokens": total,
    }
    for name in (f"train/{name}.npy" for name in shapes):
        file = folder / name
        manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": files.sha256(file)}
    manifest["fingerprint"] = fingerprint(manifest["files"])
    files.write_text(folder / NAME, render(manifest))
    return Corpus.open(folder)


def processor_seconds() -> float:
    """Processor seconds of this process and of those that helped it to plan."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def read_steps(folder: Path, name: str) -> Row:
    """Plan, or open, the first epoch of a format, and read the blocks of some steps."""
    from clozelab.config import recipe as recipes
    from clozelab.pretraining.fitting import fitted
    from clozelab.pretraining.source import BlockSource

    started = time.perf_counter()
    corpus = Corpus.open(folder)
    form = PARTS[name](length=LENGTH, **SETTINGS.get(name, {}))
    recipe = fitted(recipes.read(RECIPES[name]), corpus)
    source = BlockSource(recipe, corpus, blocks=form, split="train", seed=1)
    before, busy = time.perf_counter(), processor_seconds()
    count = len(source.plan(0))
    planned, busy = time.perf_counter(), processor_seconds() - busy
    source.order(0)
    ordered = time.perf_counter()
    place, tokens, first = (0, 0), 0, 0.0
    for _ in range(STEPS):
        epochs, numbers, place = source.take(place, BATCH)
        for epoch in np.unique(epochs).tolist():
            chosen = numbers[epochs == epoch]
            tokens += source.examples(epoch, chosen, progress=0.0).tokens
        first = first or time.perf_counter()
    return {
        "blocks": count,
        "plan s": planned - before,
        "plan CPU s": busy,
        "order s": ordered - planned,
        "first step s": first - started,
        "read M tokens/s": tokens / (time.perf_counter() - ordered) / 1e6,
    }


def measure(corpus: Corpus, name: str, limit: float | None, group: MemoryGroup | None) -> Row:
    """Measure one format on one corpus, with at most `limit` GB of memory."""
    command = [sys.executable, __file__, "--child", name, "--folder", str(corpus.path)]
    writers = min(cores(), _MAX_PROCESSES)  # one of them is one of the two processes that read

    def limited() -> None:
        if limit and group is None:
            most = int(limit * 1e9 / (1 + writers))
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limited)
        for _ in range(2)
    ]
    own = resident = looked = 0.0
    while any(process.poll() is None for process in both):
        all_of_them = [pid for process in both for pid in _family(process.pid)]
        own = max(own, sum(_memory(pid, "status", "RssAnon:") for pid in all_of_them))
        if time.monotonic() > looked + 2:  # not often, since it walks all pages
            rollups = [_memory(pid, "smaps_rollup", "Pss:") for pid in all_of_them]
            resident, looked = max(resident, sum(rollups)), time.monotonic()
        time.sleep(0.05)
    results = [json.loads(process.communicate()[0]) for process in both]
    third = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    built_plans = plans.listed(corpus)
    size = sum(plan.bytes for plan in built_plans)
    for plan in built_plans:
        plan.remove()
    writer = max(results, key=lambda result: float(result["plan CPU s"]))
    tokens = corpus.manifest["splits"]["train"]["tokens"]
    return {
        "format": name,
        "tokens": tokens,
        "sentences": corpus.manifest["splits"]["train"]["sentences"],
        "blocks": writer["blocks"],
        "plan s": writer["plan s"],
        "plan CPU s": writer["plan CPU s"],
        "plan M tokens/s of a core": tokens / writer["plan CPU s"] / 1e6,
        "order s": max(result["order s"] for result in results),
        "first step with a plan s": third["first step s"],
        "read M tokens/s": min(result["read M tokens/s"] for result in results),
        "own MB": own / 1e6,
        "resident MB": resident / 1e6,
        "plan MB": size / 1e6,
        "writers": writers,
        "limit GB": limit,
        "limit of": limit and ("RLIMIT_DATA" if group is None else "control group"),
        "group peak so far MB": group and group.peak() / 1e6,
    }


def table(rows: list[Row]) -> str:
    """The figures as Markdown, those of each size one after another."""
    sizes = sorted({row["millions"] for row in rows})
    columns = {
        "million tokens/s of a core": "plan M tokens/s of a core",
        "MB that two processes hold": "own MB",
        "limit, GB": "limit GB",
        "plan, MB": "plan MB",
        "first step with a plan, s": "first step with a plan s",
    }
    lines = [f"at {', '.join(map(str, sizes))} million tokens", ""]
    lines += [f"| format | {' | '.join(columns)} |", "|---" + "|--:" * len(columns) + "|"]
    for name in RECIPES:
        own = {row["millions"]: row for row in rows if row["format"] == name}
        cells = []
        for column in columns.values():
            values = [own[size].get(column) if size in own else None for size in sizes]
            digits = 1 if column.endswith(" s") else 0
            shown = ["–" if value is None else f"{value:,.{digits}f}" for value in values]
            cells.append(", ".join(shown))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _family(root: int) -> list[int]:
    """A process and all that it started."""
    pids, waiting = [], [root]
    while waiting:
        pids.append(waiting.pop())
        for file in Path(f"/proc/{pids[-1]}/task").glob("*/children"):
            try:
                waiting += map(int, file.read_text().split())
            except OSError:
                continue  # it has ended
    return pids


def _memory(pid: int, file: str, what: str) -> int:
    """Bytes of a kind of memory of a process, as the system reports them; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", nargs="+", type=int, default=[20, 200])
    parser.add_argument("--formats", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--folder", help="where the corpus is made; on a disk, not in memory")
    parser.add_argument("--limit", type=float, help="GB that all processes together may hold")
    parser.add_argument("--out", default="benchmarks/results/scale.json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(read_steps(Path(arguments.folder), arguments.child)))
        return
    with ExitStack() as stack:
        group = None
        if arguments.limit:
            try:
                group = stack.enter_context(MemoryGroup.own().part(arguments.limit * 1e9))
            except OSError as error:
                print(f"no memory control group ({error})", file=sys.stderr)
        record(arguments, group)


def record(arguments: argparse.Namespace, group: MemoryGroup | None) -> None:
    """Measure all formats, and write the record after each."""
    out = Path(arguments.out)
    rows = json.loads(out.read_text())["rows"] if out.is_file() else []
    for millions in arguments.millions:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            corpus = make_corpus(folder / "corpus", millions * 1_000_000)
            for name in arguments.formats:
                row = {"millions": millions, **measure(corpus, name, arguments.limit, group)}
                same = (millions, name)
                rows = [r for r in rows if (r["millions"], r["format"]) != same] + [row]
                row |= {"commit": machine()["commit"], "load": os.getloadavg()[0]}
                print(json.dumps(row), flush=True)
                text = json.dumps({"machine": machine(), "rows": rows}, indent=1)
                out.write_text(text + "\n", encoding="utf-8")
        finally:
            shutil.rmtree(folder)
    print(table(rows))


if __name__ == "__main__":
    main()
