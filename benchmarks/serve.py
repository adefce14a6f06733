"""Many readers at once: how long a fill takes in clozelab serve, whether any fails, and its memory.

    python benchmarks/serve.py [--model RUN] [--clients 50] [--seconds 60] [--out FILE.json]

Each client sends a request, waits for the answer, and sends the next at once; no two requests are
alike. The clients are a process of their own on the same machine. Without --model a tiny BERT is
trained for one step on the embedded text: speed does not depend on the weights. Beside it stands
the same fill in a plain loop in Python, without a server.

It ends with 1 where a request failed, where 95 % of the fills took 300 ms or more, or where the
server's memory grew by more than a twentieth after the first third of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

import clozelab
from clozelab import data
from clozelab.files import write_text
from clozelab.runs.directory import machine_facts

LIMIT = 0.3  # seconds, for 95 % of the fills
GROWTH = 1.05
WORDS = ("the", "king", "of", "a", "house", "was", "in", "and", "mother", "night", "old", "dark")


@dataclass
class Seen:
    """What all clients saw."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)  # when, and bytes
    processor: float = 0.0  # seconds that the server computed


def train_tiny_bert(folder: Path) -> Path:
    """A tiny BERT after one step."""
    corpus = clozelab.build_corpus(
        str(data.corpus()), out=folder / "corpus", vocabulary=8000, workers=1, progress=False
    )
    return clozelab.pretrain(
        "bert",
        data=corpus,
        size="tiny",
        budget="1steps",
        set={"schedule.batch_size": 4},
        out=folder / "run",
        device="cpu",
        evaluate_every=0,
        progress=False,
    ).path


def question(model: str, draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A text with one of its words hidden, and how to ask about it."""
    words = [draw.choice(WORDS) for _ in range(20)]
    at = draw.randrange(20)
    body = {"model": model, "text": " ".join(words), "hidden": [at], "top": 5}
    return " ".join([*words[:at], "[MASK]", *words[at + 1 :]]), body


async def client(url: str, model: str, end: float, seed: int, seen: Seen) -> None:
    """Ask until the end."""
    place, draw = urlsplit(url), random.Random(seed)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    while time.monotonic() < end:
        body = json.dumps(question(model, draw)[1]).encode()
        head = (
            f"POST /api/fill HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json"
            f"\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        began = time.monotonic()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"content-length: (\d+)", answer.lower())
        text = await reader.readexactly(int(size[1]) if size else 0)
        seen.seconds.append(time.monotonic() - began)
        if b" 200 " not in answer.split(b"\r\n")[0] or b"guesses" not in text:
            seen.errors.append(text.decode(errors="replace")[:200])
    writer.close()


async def watch(process: int, end: float, seen: Seen) -> None:
    """The server's memory, twice a second."""
    began = time.monotonic()
    while time.monotonic() < end:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
        resident = re.search(r"VmRSS:\s+(\d+)", status)
        if resident:
            seen.memory.append((time.monotonic() - began, int(resident[1]) << 10))
        await asyncio.sleep(0.5)


async def load(url: str, model: str, process: int, arguments: argparse.Namespace) -> Seen:
    """All clients at once, after a few requests that open the model."""
    first = Seen()
    await client(url, model, time.monotonic() + min(2, arguments.seconds), -1, first)
    seen, end = Seen(errors=first.errors), time.monotonic() + arguments.seconds
    before = processor_time(process)
    clients = [client(url, model, end, seed, seen) for seed in range(arguments.clients)]
    await asyncio.gather(watch(process, end, seen), *clients)
    seen.processor = processor_time(process) - before
    return seen


def processor_time(process: int) -> float:
    """Seconds that a process has computed on all cores."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_without_server(model: Path) -> float:
    """Seconds of a fill in a plain loop."""
    opened, draw = clozelab.load(model, progress=False), random.Random(0)
    texts = [question("", draw)[0] for _ in range(220)]
    for text in texts[:20]:
        opened.fill(text, progress=False)
    began = time.perf_counter()
    for text in texts[20:]:
        opened.fill(text, progress=False)
    return (time.perf_counter() - began) / 200


def main() -> None:
    """Measure, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a run (a tiny BERT, made here)")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clozelab-") as folder:
        model = Path(arguments.model) if arguments.model else train_tiny_bert(Path(folder))
        command = [sys.executable, "-m", "clozelab", "serve", str(model), "--port", "0"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        try:
            address = re.search(r"http://\S+", server.stderr.readline())
            assert address, server.stderr.read()
            seen = asyncio.run(load(address[0], str(model), server.pid, arguments))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
        plain = seconds_without_server(model)
    cuts = quantiles(seen.seconds, n=100)
    settled = [size for at, size in seen.memory if at > arguments.seconds / 3]
    growth = settled[-1] / settled[0]
    record = {
        "machine": machine_facts(),
        "asked": vars(arguments),
        "fills": len(seen.seconds),
        "fills_per_second": len(seen.seconds) / arguments.seconds,
        "errors": len(seen.errors),
        "milliseconds": {f"p{p}": 1e3 * cuts[p - 1] for p in (50, 95, 99)},
        "processor_milliseconds_per_fill": 1e3 * seen.processor / len(seen.seconds),
        "alone_milliseconds": 1e3 * plain,
        "memory_mb": {"settled": settled[0] / 1e6, "end": settled[-1] / 1e6, "growth": growth},
    }
    print(json.dumps(record, indent=1))
    if arguments.out:
        write_text(Path(arguments.out), json.dumps(record, indent=1) + "\n")
    if seen.errors:
        print("\n".join(seen.errors[:3]), file=sys.stderr)
    sys.exit(bool(seen.errors) or cuts[94] >= LIMIT or growth > GROWTH)


if __name__ == "__main__":
    main()
