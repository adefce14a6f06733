"""Run or continue recorded studies for some minutes; their records are packed for results/.

    PYTHONPATH=src python tools/run_studies.py QUEUE.toml --corpus CORPUS… --task-data DIR \\
        --minutes 9 --out DIR [--only NAME…] [--side-by-side 2]

The queue has a table for each study: its `name`, `size`, `budget`, `seeds`, and whatever else
`clozelab study` takes (`set`, `tune`, `variants`, `at_once`); `corpus` names the corpus where
there are several. A study in results/unfinished is continued: its finished cells are not repeated.
CLOZELAB_COMMIT gives the commit if the tree has no history.

With `--side-by-side 2` the next study begins while one still runs: some 45 seconds of starting and
compiling, and the last cells of a study, leave most of a GPU idle. Each study runs as many cells at
once as its table says. The records are packed every minute, so that a machine that fails takes
little with it; Ctrl-C and SIGTERM end the studies as the end of the minutes does.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from keep_study import keep

UNFINISHED = Path(__file__).resolve().parent.parent / "results" / "unfinished"
SAVING = 25  # seconds reserved for saving cells and packing records
PACK_EVERY = 60  # seconds between two copies of the records, of what is finished by then
STOPS = (signal.SIGINT, signal.SIGTERM)
STOPPED = threading.Event()  # by one of these


def options(entry: dict[str, Any]) -> list[str]:
    """The options of `clozelab study` for an entry of the queue."""
    command_options = []
    for key, value in entry.items():
        if key in ("name", "study", "corpus"):
            continue
        name = f"--{key.replace('_', '-')}"
        if isinstance(value, list) and key in ("set", "tune"):
            command_options += [word for item in value for word in (name, item)]
        elif isinstance(value, list):
            command_options += [name, ",".join(value)] if value else [name]
        else:
            command_options += [name, str(value)]
    return command_options


def begin(name: str, place: Path, corpus: Path, task_data: Path) -> None:
    """Copy an unfinished study to where it can continue, with the paths of this machine."""
    if place.exists() or not (UNFINISHED / name / "plan.json").exists():
        return
    place.mkdir(parents=True)
    for file in ("study.toml", "plan.json", "result.json", "cells.jsonl"):
        shutil.copy(UNFINISHED / name / file, place)
    plan = (place / "plan.json").read_text(encoding="utf-8")
    # The words of keep_study.py: of the options, and of the names of the fingerprints.
    paths = {'"tasks"': f'"{task_data}"', '"file tasks/': f'"file {task_data}/'}
    paths |= {'"corpus corpus': f'"corpus {corpus}', '"corpus"': f'"{corpus}"'}
    for word, path in paths.items():
        plan = plan.replace(word, path)
    (place / "plan.json").write_text(plan, encoding="utf-8")


def run(entry: dict[str, Any], place: Path, corpus: Path, task_data: Path, seconds: float) -> int:
    """Run one study until it is done or its time is over; then it saves, and can be continued."""
    command = [sys.executable, "-m", "clozelab", "study", entry.get("study", entry["name"])]
    command += ["--data", str(corpus), "--task-data", str(task_data), "--out", str(place)]
    # In a group of its own: of Ctrl-C it hears once, from here.
    started = subprocess.Popen([*command, *options(entry)], process_group=0)
    end = time.monotonic() + max(seconds, 1)
    while started.poll() is None and time.monotonic() < end and not STOPPED.is_set():
        STOPPED.wait(0.2)
    started.send_signal(signal.SIGTERM)
    try:
        return started.wait(timeout=SAVING)
    except subprocess.TimeoutExpired:
        started.kill()
        return started.wait()


def main() -> None:
    """Run the studies in the queue's order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queue", type=Path)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="by their folders")
    parser.add_argument("--task-data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="for all of it")
    parser.add_argument("--out", type=Path, required=True, help="for studies.tar.xz")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "studies")
    parser.add_argument("--only", nargs="+", help="names of the queue")
    parser.add_argument("--side-by-side", type=int, default=1, help="studies at once (1)")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes - SAVING
    corpora = {place.name: place.resolve() for place in arguments.corpus}
    queue = tomllib.loads(arguments.queue.read_text(encoding="utf-8"))["studies"]
    chosen = [item for item in queue if not arguments.only or item["name"] in arguments.only]

    failed: list[str] = []

    def follow(entry: dict[str, Any]) -> None:
        name, began = entry["name"], time.monotonic()
        if end - began < SAVING or STOPPED.is_set():
            return
        corpus = corpora[entry["corpus"]] if "corpus" in entry else next(iter(corpora.values()))
        place, tasks = arguments.work / name, arguments.task_data.resolve()
        begin(name, place, corpus, tasks)
        code = run(entry, place, corpus, tasks, end - time.monotonic())
        print(f"{name}: exit {code}, {time.monotonic() - began:.0f} s", flush=True)
        if code not in (0, *(128 + sign for sign in STOPS)):
            failed.append(name)

    for sign in STOPS:
        signal.signal(sign, lambda *_: STOPPED.set())
    places = [arguments.work / entry["name"] for entry in chosen]
    with ThreadPoolExecutor(arguments.side_by_side) as studies:
        unfinished = {studies.submit(follow, entry) for entry in chosen}
        while unfinished:
            done, unfinished = wait(unfinished, PACK_EVERY, return_when=FIRST_COMPLETED)
            pack(places, arguments.out)
            for study in done:
                study.result()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def pack(places: Sequence[Path], out: Path) -> None:
    """Write the records of all finished cells, also of studies that still run."""
    out.mkdir(parents=True, exist_ok=True)
    part = out / "studies.tar.xz.part"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(part, "w:xz") as archive:
        for place in places:
            # A study that continues unpacks its cells first.
            if (place / "result.json").exists() and not (place / "cells.jsonl").exists():
                keep(place, Path(folder) / place.name)
        archive.add(folder, arcname=".")
    part.replace(out / "studies.tar.xz")


if __name__ == "__main__":
    main()
