"""The pretraining step beside compiled transformers: RoBERTa-base, 512 tokens, bf16, dropout .1.

Both take whole optimiser steps (forward, backward, clip, fused AdamW) in one process on one GPU.
Ours reads a corpus through its own feed, masks drawn as it goes, and counts real tokens only;
transformers gets full rectangles of random ids that are on the device already.

    python benchmarks/train.py --data CORPUS --out benchmarks/results/train.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from clozelab import recipe as recipes
from clozelab.records import machine_facts
from clozelab.runs import machine as machines
from clozelab.runs.fitting import fitted, open_stores
from clozelab.runs.machine import Machine
from clozelab.runs.setup import Setup, Task
from clozelab.training.feed import ahead
from clozelab.training.loop import train
from clozelab.training.world import join

WARM, TIMED = 6, 24


def ours(data: str, *, sequences: int, length: int, vocabulary: int) -> dict[str, Any]:
    """Our step on a corpus: tokens a second, share of the peak, peak memory."""
    stores = open_stores([data])
    changes = [f"schedule.sequences={sequences}", f"blocks.length={length}"]
    recipe = fitted(recipes.read("roberta", size="base", overrides=changes), stores[0][0])
    tokenizer: Any = recipe.tokenizer
    recipe = replace(
        recipe,
        tokenizer=replace(tokenizer, vocabulary=vocabulary),
        schedule=recipe.schedule.fitted(WARM + TIMED),
    )
    _fresh()
    with join() as world:
        setup = Setup(Task(recipe, stores), Machine(micro_batch=sequences, workers=2), world)
        told = setup.began(0)
        seconds, tokens, losses = [], [], []
        jobs = setup.steps.jobs(0, setup.steps.start())
        with closing(ahead(jobs, workers=2)) as feed:
            for step in islice(train(setup.trainee, feed, world), WARM + TIMED):
                seconds.append(step.seconds)
                tokens.append(step.tokens)
                losses.append(step.sums["masked_lm"]["loss"] / step.sums["masked_lm"]["count"])
        room = setup.steps.room(setup.sources(0), phase=0, blocks=sequences)
    rate = sum(tokens[WARM:]) / sum(seconds[WARM:])
    return {
        "tokens_a_second": rate,
        "step_seconds": statistics.median(seconds[WARM:]),
        "first_step_seconds": seconds[0],
        "useful_share_of_peak": rate * told.flops_a_token / (told.peak or float("nan")),
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        "real_share_of_tokens": sum(tokens[WARM:]) / (TIMED * room.tokens),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def theirs(*, sequences: int, length: int, vocabulary: int, compiled: bool) -> dict[str, Any]:
    """transformers' RobertaForMaskedLM at base size, as its users would run it fast."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    _fresh()
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=vocabulary, max_position_embeddings=length + 2, type_vocab_size=1
    )
    model: Any = RobertaForMaskedLM(config).cuda().train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
    )
    forward: Callable[..., Any] = torch.compile(model) if compiled else model
    ids = torch.randint(5, vocabulary, (sequences, length), device="cuda")
    labels = torch.where(torch.rand(ids.shape, device="cuda") < 0.15, ids, -100)
    mask = torch.ones_like(ids)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    seconds = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {
        "tokens_a_second": sequences * length * TIMED / sum(seconds[WARM:]),
        "step_seconds": statistics.median(seconds[WARM:]),
        "first_step_seconds": seconds[0],
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def main() -> None:
    """Measure, print, write."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", required=True)
    words.add_argument("--out")
    words.add_argument("--sequences", type=int, default=64)
    words.add_argument("--length", type=int, default=512)
    words.add_argument("--vocabulary", type=int, default=50265, help="rows of the table")
    words.add_argument("--eager", action="store_true", help="measure transformers uncompiled too")
    given = words.parse_args()
    shape = {
        "sequences": given.sequences,
        "length": given.length,
        "vocabulary": given.vocabulary,
    }
    found: dict[str, Any] = {
        "what": {**shape, "model": "roberta base", "precision": "bf16", "dropout": 0.1},
        "machine": {**machine_facts(), **machines.facts(torch.device("cuda", 0))},
        "clozelab": ours(given.data, **shape),
        "transformers compiled": theirs(**shape, compiled=True),
    }
    if given.eager:
        found["transformers eager"] = theirs(**shape, compiled=False)
    peer = found["transformers compiled"]
    found["ratio"] = {
        "speed": found["clozelab"]["tokens_a_second"] / peer["tokens_a_second"],
        "memory": found["clozelab"]["peak_memory_gib"] / peer["peak_memory_gib"],
    }
    text = json.dumps(found, indent=1)
    print(text)
    if given.out:
        Path(given.out).write_text(text + "\n", encoding="utf-8")


def _fresh() -> None:
    """Nothing left of the measurement before."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
