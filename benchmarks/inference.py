"""One text at a time on a CPU: ELMo, BERT and DistilBERT at their papers' sizes.

After DistilBERT, Table 3. How long a text takes does not depend on what the weights are, so each
model is trained for one step, and then reads the same texts by `embed`, one by one. transformers
opens what is exported from it, where it has such a class, and reads them with its own tokenizer.

    python benchmarks/inference.py --data CORPUS --texts FILE [--threads 1] [--out FILE.json]

FILE has a text a line. Models take turns, text by text: a machine that slows down slows all.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import torch

import clozelab
from clozelab.models.embed import follow
from clozelab.models.exchange import export
from clozelab.pretraining import starting
from clozelab.pretraining.pretrain import pretrain
from clozelab.runs.directory import machine_facts
from clozelab.runs.events import drained
from clozelab.runs.machine import Machine
from clozelab.runs.session import SaveOptions

WARM = 5  # texts that are not counted

Reads = Callable[[str], object]


def make_runs(place: Path, data: str) -> dict[str, Path]:
    """Train each model for one step; returns the runs."""
    small = {"data": [data], "seed": 0, "budget": "1steps"}
    short = ["schedule.batch_size=1", "blocks.length=64"]
    runs = {name: place / name for name in ("elmo", "bert", "distilbert")}
    for name, run in runs.items():
        whole = [] if name == "distilbert" else ["schedule.phases=[]"]
        recipe = clozelab.read(name, set=[*short, *whole])
        if name == "distilbert":
            task = starting.taught(recipe, str(runs["bert"]), **small)
        else:
            task = starting.fresh(recipe, **small)
        machine, saving = Machine(device="cpu", compile=False), SaveOptions(evaluate_blocks=1)
        for _ in pretrain(task, run, machine=machine, saving=saving):
            pass
    return runs


def ours(run: Path) -> tuple[Reads, int]:
    """A function that embeds a text, and the number of the encoder's parameters."""
    loaded = clozelab.load(str(run))
    numbers = sum(parameter.numel() for parameter in loaded.module.encoder.parameters())
    return (lambda text: drained(follow(loaded, [text], device="cpu"))), numbers


def theirs(run: Path, place: Path) -> Reads:
    """A function that embeds a text by transformers, with the exported model of a run."""
    from transformers import AutoModel, AutoTokenizer

    export(str(run), place)
    tokenizer, model = AutoTokenizer.from_pretrained(place), AutoModel.from_pretrained(place).eval()

    def reads(text: str) -> object:
        with torch.inference_mode():
            return model(**tokenizer(text, truncation=True, max_length=512, return_tensors="pt"))

    return reads


def time_models(models: dict[str, Reads], texts: Sequence[str]) -> dict[str, list[float]]:
    """Milliseconds of each text in each model, the models in turn."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for number, text in enumerate([*texts[:WARM], *texts]):
        for name, reads in models.items():
            began = time.perf_counter()
            reads(text)
            if number >= WARM:
                times[name].append(1000 * (time.perf_counter() - began))
    return times


def record_row(name: str, times: list[float], numbers: int, beside: list[float]) -> dict[str, Any]:
    """A row of the record."""
    low, middle, high = quantiles(times, n=4)
    return {
        "model": name,
        "parameters": numbers,
        "milliseconds": middle,
        "middle_half": [low, high],
        "seconds_in_all": sum(times) / 1000,
        "beside_bert": fmean(times) / fmean(beside),
    }


def main() -> None:
    """Make the models, time them, write a record and a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, help="a corpus: its tokenizer, and words for ELMo")
    parser.add_argument("--texts", type=Path, required=True, help="a file with a text a line")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [line for line in lines if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        runs = make_runs(Path(folder), arguments.data)
        models, numbers = {}, {}
        for name, run in runs.items():
            models[name], numbers[name] = ours(run)
            if name != "elmo":  # transformers has no class for it
                peer = f"{name}, transformers"
                models[peer], numbers[peer] = theirs(run, Path(folder, f"hf-{name}")), numbers[name]
        times = time_models(models, texts)
    rows = [record_row(name, times[name], numbers[name], times["bert"]) for name in models]
    facts = {**machine_facts(), "torch": torch.__version__, "threads": arguments.threads}
    record = {"machine": facts, "texts": len(texts), "rows": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(
            f"{row['model']:24} {row['parameters'] / 1e6:6.1f} M  {row['milliseconds']:7.2f} ms"
            f"  {row['seconds_in_all']:7.1f} s  {row['beside_bert']:.2f} of bert's time"
        )


if __name__ == "__main__":
    main()
