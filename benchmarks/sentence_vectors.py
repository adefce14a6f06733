"""What SimCSE adds to an encoder pretrained here: STS sets by Spearman, seed by seed.

    python benchmarks/sentence_vectors.py --data CORPUS --task-data DIR --out sentence-vectors.json

For each seed an encoder is pretrained with masks, its vectors are scored (mean of the tokens, which
is the rival, and [CLS]), and then those of the same encoder after a short contrastive training on
the same text. The learning rate and the pooling are chosen on the dev set of STS-B with a seed of
their own, which is not among those that count; STS-B is left out of a second mean for that reason.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import clozelab
from clozelab.files import write_text
from clozelab.runs.directory import machine_facts

CHOSEN_ON = "stsb-cosine"


def spearman_scores(run: Path, arguments: argparse.Namespace, **options: Any) -> dict[str, float]:
    """Spearman's correlation of every set, at the last layer."""
    probes = clozelab.probe(run, ["sts"], layer="last", task_data=arguments.task_data, **options)
    return {name: metrics["spearman"] for name, metrics in probes.scores().items()}


def means(scores: dict[str, float]) -> dict[str, float]:
    """Over all sets, and over those by which nothing was chosen."""
    rest = [value for name, value in scores.items() if name != CHOSEN_ON]
    return {"all": fmean(scores.values()), "unseen": fmean(rest)}


def train_or_resume(
    place: Path, recipe: str, arguments: argparse.Namespace, **options: Any
) -> Path:
    """A run: as it is if it is done, gone on with if it was stopped, or from its beginning."""
    if (place / "result.json").is_file():
        return place
    if any((place / "checkpoints").glob("step-*")):
        clozelab.resume(place)
    else:
        shutil.rmtree(place, ignore_errors=True)
        clozelab.pretrain(recipe, data=arguments.data, out=place, **options)
    return place


def pretrain_encoder(
    seed: int, arguments: argparse.Namespace, *, recipe: str | None = None
) -> Path:
    """The encoder of a seed, by the recipe that is compared with or by another."""
    options: dict[str, Any] = {"size": arguments.size, "budget": arguments.budget, "seed": seed}
    place = Path(arguments.work) / f"{recipe or 'base'}-{seed}"
    return train_or_resume(place, recipe or arguments.recipe, arguments, **options)


def train_contrastively(
    base: Path, seed: int, arguments: argparse.Namespace, *, rate: float, pooling: str
) -> Path:
    """The same encoder after the contrastive training."""
    place = base.with_name(f"{base.name}-{pooling}-{rate:g}")
    settings = {
        "optimiser.learning_rate": rate,
        "objectives.0.pooling": pooling,
        "schedule.batch_size": arguments.batch_size,
        "blocks.length": arguments.length,
        "blocks.shortest": 4,
        "encoder.dropout": 0.1,
    }
    overrides = [f"{name}={value}" for name, value in settings.items()]
    options: dict[str, Any] = {"from_": base, "budget": f"{arguments.steps}steps", "seed": seed}
    return train_or_resume(place, "simcse", arguments, set=overrides, **options)


def choose_setting(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, float]]:
    """The best setting on the dev set of STS-B, and what each came to."""
    base, tried = pretrain_encoder(arguments.first_seed - 1, arguments), {}
    settings = {f"{p} {r:g}": (r, p) for r, p in product(arguments.rates, arguments.poolings)}
    for name, (rate, pooling) in settings.items():
        run = train_contrastively(
            base, arguments.first_seed - 1, arguments, rate=rate, pooling=pooling
        )
        tried[name] = spearman_scores(run, arguments)[CHOSEN_ON]
        print(f"{name}: {CHOSEN_ON} {tried[name]:.2f}", flush=True)
    rate, pooling = settings[max(tried, key=lambda name: tried[name])]
    return {"rate": rate, "pooling": pooling}, tried


def main() -> None:
    """Choose, then measure every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--task-data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default="runs/sentence-vectors", help="for checkpoints")
    parser.add_argument("--recipe", default="roberta")
    parser.add_argument("--beside", help="a recipe more, in the same time: retromae")
    parser.add_argument("--size", default="small")
    parser.add_argument("--budget", default="150s", help="of the pretraining (150s)")
    parser.add_argument("--steps", type=int, default=3000, help="of the contrastive training")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-5, 1e-4])
    parser.add_argument("--poolings", nargs="+", default=["cls", "mean"])
    arguments = parser.parse_args()
    began = time.perf_counter()
    setting, tried = choose_setting(arguments)
    rows = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        base = pretrain_encoder(seed, arguments)
        run = train_contrastively(base, seed, arguments, **setting)
        sets = {
            "mean": spearman_scores(base, arguments, pool="mean"),
            "cls": spearman_scores(base, arguments, pool="cls"),
            "simcse": spearman_scores(run, arguments),
        }
        if arguments.beside:  # pretrained for the vector of [CLS], and contrasted after that
            other = pretrain_encoder(seed, arguments, recipe=arguments.beside)
            sets[arguments.beside] = spearman_scores(other, arguments)
            contrast = train_contrastively(other, seed, arguments, **{**setting, "pooling": "cls"})
            sets[f"{arguments.beside}, simcse"] = spearman_scores(contrast, arguments)
        row = {name: means(scores) for name, scores in sets.items()}
        rows.append({"seed": seed, "means": row, "sets": sets})
        gain = row["simcse"]["all"] - row["mean"]["all"]
        print(f"seed {seed}: {json.dumps(row)}, gain {gain:+.2f}", flush=True)
    gains = {
        kind: [row["means"]["simcse"][kind] - row["means"]["mean"][kind] for row in rows]
        for kind in ("all", "unseen")
    }
    record = {
        "machine": machine_facts(),
        "asked": vars(arguments),
        "chosen": setting,
        "tried": tried,
        "gains": gains,
        "mean_gain": {kind: fmean(values) for kind, values in gains.items()},
        "sd": {kind: stdev(v) if len(v) > 1 else None for kind, v in gains.items()},
        "seconds": time.perf_counter() - began,
        "seeds": rows,
    }
    write_text(Path(arguments.out), json.dumps(record, indent=1) + "\n")
    print(json.dumps({"mean_gain": record["mean_gain"], "sd": record["sd"]}))


if __name__ == "__main__":
    main()
