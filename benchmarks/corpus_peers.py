"""Building and reading corpora beside datasets, datatrove, MosaicML Streaming and litdata.

    python benchmarks/corpus_peers.py [--text FILE…] [--megabytes 100] [--turns 5] [--out FILE]

All work on the same text with the same tokenizer, in turns, each turn a process of its own that is
kept on one core with all that it starts. A rate is by processor time, that of its children
included, so it is one of a core whatever else the machine does; the time by the clock is recorded
too. Memory is the peak of all processes of a turn, shared pages counted once. What is not installed
is left out, and the record says so.

Building: JSON lines on the disk → tokens on the disk. clozelab also splits sentences, unless told
otherwise, and finds and counts words; its time has the start of its worker process in it.
datasets.map begins with a table in Arrow, and is timed alone.

Reading: blocks of 512 tokens in a random order, as int64 tensors of 64 blocks. Peers have their
blocks cut beforehand; clozelab cuts them when it reads. What comes before the first batch (opening,
planning, shuffling) is counted apart.
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
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    RAYON_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
)

import numpy as np
from text import machine

from clozelab import data

LENGTH, BATCH, VOCABULARY = 512, 64, 30_000
Row = dict[str, Any]
Batches = Iterator[Any]  # tensors of ids


class Place:
    """The paths in the folder that the turns read and write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text, self.store = folder / "text.jsonl", folder / "store"
        self.tokenizer = self.store / "tokenizer.json"
        self.out = folder / "out"  # of a turn, removed after it

    def prepared(self, peer: str) -> Path:
        """The blocks of a peer."""
        return self.folder / peer


def build_clozelab(place: Place, *options: str) -> Callable[[], None]:
    from clozelab.cli import main as command

    place.out.rmdir()  # which it makes itself
    arguments = ["corpus", "build", str(place.text), "--out", str(place.out), "--workers", "1"]
    arguments += ["--tokenizer-from", str(place.tokenizer), *options]

    def build() -> None:
        assert command(arguments) == 0

    return build


def build_datasets(place: Place) -> Callable[[], None]:
    from datasets import Dataset, disable_progress_bars
    from transformers import PreTrainedTokenizerFast

    disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(place.tokenizer))
    table = Dataset.from_json(str(place.text), cache_dir=str(place.out / "cache"))

    def encode(batch: dict[str, Any]) -> Any:
        return tokenizer(
            batch["text"],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )

    return lambda: table.map(encode, batched=True, remove_columns=table.column_names)


def build_datatrove(place: Place) -> Callable[[], None]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    steps = [
        JsonlReader(str(place.text.parent), glob_pattern=place.text.name),
        DocumentTokenizer(
            str(place.out / "tokens"),
            tokenizer_name_or_path=str(place.tokenizer),
            eos_token="[SEP]",
            shuffle_documents=False,
        ),
    ]
    executor = LocalPipelineExecutor(
        steps, tasks=1, workers=1, logging_dir=str(place.out / "logs"), skip_completed=False
    )
    return executor.run


def ids_of(place: Place) -> Any:
    """All blocks of the text, [B, 512], as the peers are given them."""
    ids = np.load(place.store / "train" / "ids.npy", mmap_mode="r")
    return np.asarray(ids[: len(ids) // LENGTH * LENGTH]).reshape(-1, LENGTH)


def read_clozelab(place: Place, form: str) -> Iterator[Batches]:
    import torch

    from clozelab.blocks import PARTS
    from clozelab.keys import key
    from clozelab.pretraining.plans import Drawn, planned, visited
    from clozelab.text.store import Corpus

    corpus = Corpus.open(place.store)
    documents, blocks = corpus.documents(), PARTS[form](length=LENGTH)
    drawn = Drawn(key(1, "pairs", 0), 1, 0)
    plan = planned(corpus, documents, blocks, split="train", drawn=drawn)

    def batches(epoch: int) -> Batches:
        again = Drawn(key(1, "order", epoch), 1, epoch)
        order = visited(corpus, len(plan), shuffled=True, drawn=again)
        for first in range(0, len(order), BATCH):
            some = plan.blocks(order[first : first + BATCH])
            yield torch.from_numpy(some.ids).long()

    yield from map(batches, range(10**9))


def cut_datasets(place: Place) -> None:
    from datasets import Dataset, Features, List, Value

    rows = ids_of(place)
    features = Features({"input_ids": List(Value("int32"))})
    table = {"input_ids": list(rows.astype(np.int32))}
    Dataset.from_dict(table, features=features).save_to_disk(str(place.prepared("datasets")))


def read_datasets(place: Place) -> Iterator[Batches]:
    """The batches of datasets itself; through torch's DataLoader it is slower."""
    import torch
    from datasets import load_from_disk

    table = load_from_disk(str(place.prepared("datasets")))

    def batches(epoch: int) -> Batches:
        shuffled = table.shuffle(seed=epoch, keep_in_memory=True).with_format("numpy")
        for some in shuffled.iter(batch_size=BATCH):
            yield torch.from_numpy(np.stack(some["input_ids"])).long()

    yield from map(batches, range(10**9))


def import_streaming() -> Any:
    """MosaicML Streaming, without torchvision, which only its classes for images need."""
    from importlib import import_module
    from importlib.util import find_spec
    from types import ModuleType

    import_module("transformers.feature_extraction_utils")  # it looks for torchvision itself
    if find_spec("torchvision") is None:
        names = ("torchvision", "torchvision.datasets", "torchvision.transforms")
        for name in (*names, "torchvision.transforms.functional"):
            sys.modules[name] = module = ModuleType(name)
            module.__dict__.update(VisionDataset=object, ToTensor=object, to_tensor=None)
    return import_module("streaming")


def cut_streaming(place: Place) -> None:

    rows = ids_of(place)
    columns = {"tokens": f"ndarray:{rows.dtype.name}:{LENGTH}"}
    with import_streaming().MDSWriter(
        out=str(place.prepared("streaming")), columns=columns
    ) as writer:
        for row in rows:
            writer.write({"tokens": row})


def read_streaming(place: Place) -> Iterator[Batches]:
    import torch
    from torch.utils.data import DataLoader

    streaming, folder = import_streaming(), str(place.prepared("streaming"))
    streaming.base.util.clean_stale_shared_memory()
    rows = streaming.StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)

    def collate(some: list[Row]) -> Any:
        return torch.from_numpy(np.stack([row["tokens"] for row in some])).long()

    loader = DataLoader(rows, batch_size=BATCH, collate_fn=collate)
    while True:
        yield iter(loader)


def cut_litdata(place: Place) -> None:
    import torch
    from litdata.streaming import Cache, TokensLoader

    rows = ids_of(place).astype(np.int32)
    folder = place.prepared("litdata")
    folder.mkdir()
    cache = Cache(str(folder), chunk_bytes="64MB", item_loader=TokensLoader(block_size=LENGTH))
    for number, row in enumerate(rows):
        cache[number] = torch.from_numpy(row)
    cache.done()
    cache.merge()


def read_litdata(place: Place) -> Iterator[Batches]:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import TokensLoader

    rows = StreamingDataset(
        str(place.prepared("litdata")), shuffle=True, item_loader=TokensLoader(block_size=LENGTH)
    )
    loader = StreamingDataLoader(rows, batch_size=BATCH)
    while True:
        yield (batch.long() for batch in loader)


BUILD: dict[str, Callable[[Place], Callable[[], None]]] = {
    "clozelab": build_clozelab,
    "clozelab, sentences not split": lambda place: build_clozelab(place, "--sentences", "none"),
    "datasets": build_datasets,
    "datatrove": build_datatrove,
}
CUT: dict[str, Callable[[Place], None]] = {
    "datasets": cut_datasets,
    "streaming": cut_streaming,
    "litdata": cut_litdata,
}
READ: dict[str, Callable[[Place], Iterator[Batches]]] = {
    "clozelab, causal": lambda place: read_clozelab(place, "causal"),
    "clozelab, full_sentences": lambda place: read_clozelab(place, "full_sentences"),
    "datasets": read_datasets,
    "streaming": read_streaming,
    "litdata": read_litdata,
}
PACKAGES = {"streaming": "mosaicml-streaming"}


def busy() -> float:
    """Processor seconds of this process and of its children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def turn(place: Place, task: str, name: str, seconds: float) -> Row:
    """Measure one turn, in this process."""
    if task == "cut":
        CUT[name](place)
        return {}
    if task == "build":
        place.out.mkdir()
        work = BUILD[name](place)
        before, start = busy(), time.perf_counter()
        work()
        return {"CPU s": busy() - before, "s": time.perf_counter() - start}
    before, start = busy(), time.perf_counter()
    epochs = READ[name](place)
    some = next(epochs)
    next(some)
    first = {"first CPU s": busy() - before, "first s": time.perf_counter() - start}
    tokens, before, start = 0, busy(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        for batch in some:
            tokens += batch.numel()
        some = next(epochs)
    return {"CPU s": busy() - before, "s": time.perf_counter() - start, "tokens": tokens, **first}


def watched(arguments: list[str]) -> Row:
    """Run a turn in a process of its own; its results, with its peak memory."""
    command = [sys.executable, __file__, *arguments]
    core = min(os.sched_getaffinity(0))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    peak = {"Pss:": 0, "Pss_Anon:": 0}

    def look() -> None:
        while process.poll() is None:
            for kind, size in _memory(process.pid).items():
                peak[kind] = max(peak[kind], size)
            time.sleep(0.25)

    watcher = threading.Thread(target=look)
    watcher.start()
    printed, errors = process.communicate()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors[-3000:]}")
    result: Row = json.loads(printed.strip().splitlines()[-1])
    return {**result, "peak MB": peak["Pss:"] / 1e6, "of its own MB": peak["Pss_Anon:"] / 1e6}


def _memory(root: int) -> dict[str, int]:
    """Proportional memory of a process and its children: all of it, and without pages of files."""
    total, waiting = {"Pss:": 0, "Pss_Anon:": 0}, [root]
    while waiting:
        pid = waiting.pop()
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in rollup.splitlines():
            kind, *size = line.split()
            if kind in total:
                total[kind] += int(size[0]) * 1024
    return total


def prepare(place: Place, texts: list[str], megabytes: float) -> Row:
    """The text as JSON lines, our store of it, and the blocks of the peers."""
    from clozelab.contracts import Counts
    from clozelab.text.reading.layouts import Reading
    from clozelab.text.reading.sources import find

    letters = 0
    with place.text.open("w", encoding="utf-8") as lines:
        for document in find(texts, Reading()).documents(Counts()):
            letters += len(document.text.encode("utf-8", "replace"))
            lines.write(json.dumps({"text": document.text}) + "\n")
            if letters > megabytes * 1e6:
                break
    build = [sys.executable, "-m", "clozelab", "corpus", "build", str(place.text)]
    build += ["--out", str(place.store), "--vocabulary", str(VOCABULARY), "--held-out", "0"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    return {"MB": letters / 1e6, "tokens": int(ids_of(place).size)}


def absent(name: str) -> str | None:
    """Why a peer cannot be measured; None where it can."""
    peer = name.partition(",")[0]
    if peer == "clozelab":
        return None
    try:
        metadata.version(PACKAGES.get(peer, peer))
    except metadata.PackageNotFoundError:
        return "not installed"
    return None


def measure(
    place: Place, *, task: str, turns: int, seconds: float, size: Row
) -> Iterator[list[Row]]:
    """Measure all peers of a task in turns; yields the medians after each turn."""
    peers = BUILD if task == "build" else READ
    rows: dict[str, list[Row]] = {name: [] for name in peers if absent(name) is None}
    for number in range(turns):
        for name in rows:
            child = ["--child", task, name, "--folder", str(place.folder)]
            row = watched([*child, "--seconds", str(seconds)])
            shutil.rmtree(place.out, ignore_errors=True)
            amount = size["MB"] if task == "build" else row["tokens"] / 1e6
            row["rate"] = amount / row["CPU s"]
            rows[name].append(row)
            print(task, number, name, json.dumps(row), file=sys.stderr, flush=True)
        yield _medians(rows)


def _medians(rows: dict[str, list[Row]]) -> list[Row]:
    rates = {name: median(row["rate"] for row in of_one) for name, of_one in rows.items()}
    ours = [name for name in rates if name.startswith("clozelab")]
    return [
        {"what": name, **{key: median(row[key] for row in of_one) for key in of_one[0]}}
        | {"rates": [row["rate"] for row in of_one]}
        | {
            "ours to it": {
                our_name: rates[our_name] / rates[name] for our_name in ours if name not in ours
            }
        }
        for name, of_one in rows.items()
    ]


def tables(result: Row) -> str:
    """The figures as Markdown."""
    lines = []
    for task, unit in (("build", "MB/s of a core"), ("read", "M tokens/s of a core")):
        ours = [row["what"] for row in result[task] if row["what"].startswith("clozelab")]
        lines += [f"| {' | '.join([task, unit, 'peak MB', 'of its own MB', *ours])} |"]
        lines += ["|---" + "|--:" * (3 + len(ours)) + "|"]
        for row in result[task]:
            ratios = [
                f"{row['ours to it'][our_name]:.2f} ×" if row["ours to it"] else ""
                for our_name in ours
            ]
            figures = [f"{row['rate']:.2f}", f"{row['peak MB']:.0f}", f"{row['of its own MB']:.0f}"]
            lines.append(f"| {' | '.join([row['what'], *figures, *ratios])} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", nargs="+", help="files to build a corpus from")
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn of reading, at least")
    parser.add_argument("--tasks", nargs="+", choices=["build", "read"], default=["build", "read"])
    parser.add_argument("--folder", help="where the corpora are made; removed afterwards")
    parser.add_argument("--out", default="benchmarks/results/corpus_peers.json")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        place = Place(Path(arguments.folder))
        task, name = arguments.child
        print(json.dumps(turn(place, task, name, arguments.seconds)))
        return
    place = Place(Path(tempfile.mkdtemp(dir=arguments.folder)))
    try:
        size = prepare(place, arguments.text or [str(data.corpus())], arguments.megabytes)
        missing = {name: reason for name in {**BUILD, **READ} if (reason := absent(name))}
        for name in CUT.keys() - missing.keys():
            watched(["--child", "cut", name, "--folder", str(place.folder)])
        versions = {
            name: metadata.version(PACKAGES.get(name, name))
            for name in ("datasets", "datatrove", "streaming", "litdata")
            if name not in missing
        }
        out = Path(arguments.out)
        result: Row = json.loads(out.read_text()) if out.is_file() else {}  # of another task
        result |= {"peers": versions, "left out": missing}
        for task in arguments.tasks:
            load, wanted = os.getloadavg()[0], {"turns": arguments.turns, "size": size}
            turns = measure(place, task=task, seconds=arguments.seconds, **wanted)
            for number, rows in enumerate(turns, start=1):
                loads = [load, os.getloadavg()[0]]
                result[task] = rows
                result[f"{task} by"] = {**machine(), "load": loads, "turns": number, **size}
                out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(place.folder)
    print(tables({"build": [], "read": [], **result}))


if __name__ == "__main__":
    main()
