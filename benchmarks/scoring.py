"""Pseudo-log-likelihoods of minimal pairs: clozelab beside minicons, or a loop over transformers.

A model of the size asked for is trained for one step (speed does not depend on the weights) and
exported for transformers. clozelab scores all pairs; the peer scores every n-th, and clozelab the
same ones, so that times and log-likelihoods can be compared in one run.

    python benchmarks/scoring.py --data CORPUS --task-data DIR [--size 2x128] [--out FILE.json]

Where minicons is not installed, the peer is a loop over transformers, as its users write it: for
each text a batch with one hidden token in each row. On a GPU: --device cuda --size base.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clozelab
from clozelab.runs.directory import machine_facts
from clozelab.runs.machine import facts
from clozelab.scoring.likelihood import likelihoods
from clozelab.scoring.pairs import find_pairs

Scores = Callable[[Sequence[str]], list[float]]


def run_of(place: Path, data: str, *, size: str, device: str) -> Path:
    """A RoBERTa of that size after one step."""
    short = ["schedule.batch_size=2", "blocks.length=128"]
    clozelab.pretrain(
        "roberta",
        data=data,
        size=size,
        budget="1steps",
        set=short,
        out=place,
        device=device,
        compile=False,
        evaluate_blocks=1,
        progress=False,
    )
    return place


def minicons(folder: Path, device: str, batch: int) -> Scores:
    """Its scorer, in batches of texts."""
    from minicons import scorer

    model = scorer.MaskedLMScorer(str(folder), device)

    def score(texts: Sequence[str]) -> list[float]:
        sums: list[float] = []
        for first in range(0, len(texts), batch):
            sums += model.sequence_score(
                list(texts[first : first + batch]),
                reduction=lambda nats: nats.sum(0).item(),
                PLL_metric="original",
            )
        return sums

    return score


def plain_loop(folder: Path, device: str, batch: int) -> Scores:
    """A text at a time: a row for each of its tokens."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).to(device).eval()

    @torch.inference_mode()
    def score(texts: Sequence[str]) -> list[float]:
        sums = []
        for text in texts:
            ids = tokenizer(text, return_tensors="pt")["input_ids"][0].to(device)
            count = len(ids) - 2
            rows, at = torch.arange(count), torch.arange(count) + 1
            hidden = ids.repeat(count, 1)
            hidden[rows, at] = tokenizer.mask_token_id
            logits = model(hidden).logits[rows, at]
            sums.append(float(logits.log_softmax(1)[rows, ids[at]].sum()))
        return sums

    return score


def timed_call(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What came out, and the seconds it took: of the clock, and of all cores."""
    began, used = time.perf_counter(), time.process_time()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
    return result, seconds


def main() -> None:
    """Make the model, score, compare, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, help="a corpus, for its tokenizer")
    parser.add_argument("--task-data", help="where the pairs lie (CLOZELAB_DATA)")
    parser.add_argument("--pairs", default="blimp")
    parser.add_argument("--size", default="2x128")
    parser.add_argument("--every", type=int, default=67, help="the peer has each of so many pairs")
    parser.add_argument("--batch", type=int, default=16, help="texts that minicons has at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pairs_set = find_pairs(arguments.pairs, root=arguments.task_data, columns={})
    texts = [
        text for pair in pairs_set.read()[:: arguments.every] for text in (pair.good, pair.bad)
    ]
    peer = minicons if find_spec("minicons") else plain_loop
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(
            Path(folder, "run"), arguments.data, size=arguments.size, device=arguments.device
        )
        clozelab.export(run, Path(folder, "hf"), progress=False)
        model = clozelab.load(run)
        how: dict[str, Any] = {"method": "original", "device": arguments.device}
        if arguments.device == "cuda":
            likelihoods(model, texts[:256], **how)  # starts the device
        _, whole = timed_call(
            lambda: model.score(
                pairs=arguments.pairs, task_data=arguments.task_data, progress=False, **how
            )
        )
        ours, own = timed_call(lambda: likelihoods(model, texts, **how).sums)
        score = peer(Path(folder, "hf"), arguments.device, arguments.batch)
        sums, others = timed_call(lambda: score(texts))
    record = {
        "machine": {**machine_facts(), **facts(torch.device(arguments.device))},
        "model": {"recipe": "roberta", "size": arguments.size},
        "pairs": arguments.pairs,
        "digests": {Path(file).name: digest for file, digest in pairs_set.digests().items()},
        "all_pairs": {"texts": 2 * len(pairs_set.read()), **whole},
        "clozelab": {"texts": len(texts), **own},
        peer.__name__: {"texts": len(texts), **others},
        "times_faster": others["seconds"] / own["seconds"],
        "largest_difference_in_nats": float(np.abs(np.array(sums) - ours).max()),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    print(text, end="")
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
