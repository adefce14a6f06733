"""The text path beside its peers, in one run on one machine.

    python benchmarks/text.py [--text FILE…] [--out FILE]

Masking and block building on one core, beside transformers' collators on the same blocks; corpus
building on two cores, beside datasets.map with the same tokenizer on the same text. Without
--text the embedded corpus is used, which is too small for a fair corpus-building figure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np

from clozelab import data
from clozelab.blocks import PARTS as FORMATS
from clozelab.contracts import Blocks, Documents
from clozelab.masking import PARTS as MASKING
from clozelab.masking import Corruption
from clozelab.text.store import Corpus

LENGTH, BLOCKS = 512, 128
Row = dict[str, Any]


def rate(work: Callable[[int], int], *, seconds: float = 1.5) -> float:
    """Million tokens per second: the best run within a time limit, since noise only slows."""
    work(0)
    best, start, number = 0.0, time.perf_counter(), 1
    while time.perf_counter() - start < seconds or number < 4:
        before = time.perf_counter()
        tokens = work(number)
        best = max(best, tokens / (time.perf_counter() - before) / 1e6)
        number += 1
    return best


def full(documents: Documents) -> Blocks:
    """Blocks of exactly 512 tokens: transformers' whole-word collator takes no others."""
    plan = FORMATS["causal"](length=LENGTH).plan(documents, 1)
    return plan.blocks(np.arange(min(BLOCKS, len(plan) - 1)))


def masking(documents: Documents) -> list[Row]:
    """Every strategy on full blocks of 512."""
    blocks = full(documents)
    settings: list[tuple[str, str, dict[str, Any]]] = [
        (name, name, {}) for name in MASKING if name != "nothing"
    ]
    settings += [
        ("token", "token, fairseq's count", {"count": "floor"}),
        ("token", "token, Bernoulli", {"count": "bernoulli"}),
        ("whole_word", "whole_word, segmented", {"words": "segmenter"}),
        ("knowledge", "knowledge, Bernoulli", {"choose": "bernoulli"}),
    ]
    rows = []
    corruption = Corruption()
    for part, name, keys in settings:
        strategy = MASKING[part](**keys)

        def hide(number: int, strategy: Any = strategy) -> int:
            hidden = strategy.hide(blocks, number, vocabulary=documents.vocabulary)
            corruption.corrupt(blocks, hidden, number, vocabulary=documents.vocabulary)
            return len(blocks.ids)

        rows.append({"what": name, "M tokens/s": rate(hide)})
    return rows


def formats(documents: Documents) -> list[Row]:
    """Every format: planning a whole pass and gathering all its blocks."""
    rows = []
    for name, part in FORMATS.items():
        keys = {"rows": 64} if name == "stream_pair" else {}
        format_ = part(length=LENGTH, **keys)

        def build(number: int, format_: Any = format_) -> int:
            plan = format_.plan(documents, number)
            tokens = 0
            for first in range(0, len(plan), BLOCKS):
                numbers = np.arange(first, min(first + BLOCKS, len(plan)))
                tokens += len(plan.blocks(numbers).ids)
            return tokens

        rows.append({"what": name, "M tokens/s": rate(build)})
    return rows


def collators(documents: Documents, corpus: Corpus) -> list[Row]:
    """transformers' collators, given the same blocks as padded rows."""
    import torch
    from transformers import (
        DataCollatorForLanguageModeling,
        DataCollatorForPermutationLanguageModeling,
        PreTrainedTokenizerFast,
    )

    torch.set_num_threads(1)
    names = {role: corpus.tokenizer.id_to_token(n) for role, n in corpus.vocabulary.roles.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(corpus.path / "tokenizer.json"),
        **{f"{role}_token": name for role, name in names.items() if role != "eod"},
    )
    blocks = full(documents)
    rows = [_row(blocks, number) for number in range(len(blocks))]
    kinds: list[tuple[str, Any, list[Row], tuple[str, ...]]] = [
        ("token", DataCollatorForLanguageModeling(tokenizer), rows, ("input_ids",)),
        (
            "whole_word",
            DataCollatorForLanguageModeling(
                tokenizer, whole_word_mask=True, mask_replace_prob=1.0, random_replace_prob=0.0
            ),
            rows,
            ("input_ids", "offset_mapping"),
        ),
        ("partial", DataCollatorForPermutationLanguageModeling(tokenizer), rows, ("input_ids",)),
    ]
    results = []
    for name, collator, inputs, keys in kinds:
        examples = [{key: row[key] for key in keys} for row in inputs]

        def collate(number: int, collator: Any = collator, examples: Any = examples) -> int:
            collator([dict(example) for example in examples])
            return sum(len(example["input_ids"]) for example in examples)

        results.append({"what": name, "transformers M tokens/s": rate(collate)})
    return results


def _row(blocks: Blocks, number: int) -> Row:
    """A block as transformers' tokenizers would give it, offsets made from the word marks."""
    part = slice(blocks.starts[number], blocks.starts[number + 1])
    begins = (blocks.marks[part] & 1) != 0
    at, offsets = 0, []
    for start, fixed in zip(begins, blocks.fixed[part], strict=True):
        at += 2 if start else 0
        offsets.append((0, 0) if fixed else (at, at + 1))
        at += 1
    return {"input_ids": blocks.ids[part].tolist(), "offset_mapping": offsets}


def corpus_building(texts: list[str], folder: Path, *, tokenizer: Path) -> list[Row]:
    """clozelab corpus build and datasets.map on two cores, with their peak memory."""
    from clozelab.contracts import Counts
    from clozelab.text.reading.layouts import Reading
    from clozelab.text.reading.sources import find

    plain, letters = folder / "text.jsonl", 0
    with plain.open("w", encoding="utf-8") as lines:
        for document in find(texts, Reading()).documents(Counts()):
            letters += len(document.text.encode("utf-8", "replace"))
            lines.write(json.dumps({"text": document.text}) + "\n")
    megabytes = letters / 1e6
    ours = [sys.executable, "-m", "clozelab", "corpus", "build", str(plain)]
    ours += ["--out", str(folder / "ours"), "--tokenizer-from", str(tokenizer), "--workers", "2"]
    script = Path(__file__).with_name("datasets_map.py")
    theirs = [sys.executable, str(script), str(folder / "theirs"), str(tokenizer), str(plain)]
    rows = []
    for name, command in (("clozelab corpus build", ours), ("datasets.map", theirs)):
        seconds, memory, report = _run_and_watch(command)
        seconds = float(report["seconds"]) if report else seconds
        rows.append(
            {"what": name, "MB/s": megabytes / seconds, "peak MB": memory / 1e6, "MB": megabytes}
        )
    return rows


def _run_and_watch(command: list[str]) -> tuple[float, int, Row | None]:
    """Seconds, the peak of all its processes' resident memory, and what it printed as JSON."""
    before = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = [0]

    def look() -> None:
        while process.poll() is None:
            peak[0] = max(peak[0], _resident(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=look)
    watcher.start()
    printed = process.communicate()[0]
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    report = json.loads(last) if last.startswith("{") else None
    return time.perf_counter() - before, peak[0], report


def _resident(root: int) -> int:
    """Proportional memory of a process and its children: shared pages are counted once."""
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        sizes = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
        total += sum(map(int, sizes)) * 1024
    return total


def machine() -> Row:
    """The machine and versions of the measurement."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    versions = {}
    for name in ("numpy", "tokenizers", "transformers", "datasets", "torch"):
        try:
            versions[name] = __import__("importlib.metadata").metadata.version(name)
        except Exception:
            versions[name] = "absent"
    return {"commit": commit, "cpu": model, "cores": os.cpu_count(), "versions": versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", nargs="+", help="files to build a corpus from")
    parser.add_argument("--out", default="benchmarks/results/text.json")
    arguments = parser.parse_args()
    texts = arguments.text or [str(data.corpus())]
    folder = Path(tempfile.mkdtemp())
    try:
        small = folder / "small"
        build = [sys.executable, "-m", "clozelab", "corpus", "build", str(data.corpus())]
        build += ["--out", str(small), "--vocabulary", "16000", "--phrases"]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        corpus = Corpus.open(small)
        documents = corpus.documents("train")
        result = {
            "machine": machine(),
            "text": [Path(text).name for text in texts],
            "masking": masking(documents),
            "formats": formats(documents),
            "collators": collators(documents, corpus),
            "building": corpus_building(texts, folder, tokenizer=small / "tokenizer.json"),
        }
    finally:
        shutil.rmtree(folder)
    Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(tables(result))


def tables(result: Row) -> str:
    """The figures as Markdown."""
    theirs = {row["what"]: row["transformers M tokens/s"] for row in result["collators"]}
    lines = [
        "| masking + corruption, one core | M tokens/s | transformers | ratio |",
        "|---|--:|--:|--:|",
    ]
    for row in result["masking"]:
        peer = theirs.get(row["what"])
        comparison = f"{peer:.2f} | {row['M tokens/s'] / peer:.0f} ×" if peer else " | "
        lines.append(f"| {row['what']} | {row['M tokens/s']:.1f} | {comparison} |")
    lines += ["", "| blocks of 512, planned and gathered, one core | M tokens/s |", "|---|--:|"]
    lines += [f"| {row['what']} | {row['M tokens/s']:.1f} |" for row in result["formats"]]
    lines += ["", "| corpus building, two cores | MB/s | peak MB |", "|---|--:|--:|"]
    for row in result["building"]:
        lines.append(f"| {row['what']} | {row['MB/s']:.2f} | {row['peak MB']:.0f} |")
    our_rate, their_rate = (row["MB/s"] for row in result["building"])
    lines.append(f"| ratio | {our_rate / their_rate:.2f} × | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
