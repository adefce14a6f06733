"""What SimCSE adds to an encoder pretrained here: STS sets by Spearman, seed by seed.

    python benchmarks/sentence_vectors.py --data CORPUS --task-data DIR --out sentence-vectors.json

For each seed an encoder is pretrained with masks, its vectors are scored (mean of the tokens, which
is the rival, and [CLS]), and then those of the same encoder after a short contrastive training on
the same text, and with --pairs after one on pairs (a corpus of rows, built with the tokenizer of
--data). The learning rate and the pooling are chosen on the dev set of STS-B with a seed of their
own, which is not among those that count; STS-B is left out of a second mean for that reason.
Runs that do not need one another are trained side by side, so budgets are tokens or steps, never
seconds. Stopped, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import clozelab
from clozelab.files import write_text
from clozelab.runs.directory import machine_facts

CHOSEN_ON = "stsb-cosine"

Job = tuple[Callable[..., Any], tuple[Any, ...]]


def side_by_side(jobs: Sequence[Job], arguments: argparse.Namespace) -> list[Any]:
    """What each job returns, in their order; so many at a time, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(arguments.at_once, len(jobs)), mp_context=context) as pool:
        return [future.result() for future in [pool.submit(job, *given) for job, given in jobs]]


def spearman_scores(run: Path, arguments: argparse.Namespace, **options: Any) -> dict[str, float]:
    """Spearman's correlation of every set, at the last layer."""
    probes = clozelab.probe(run, ["sts"], layer="last", task_data=arguments.task_data, **options)
    return {name: metrics["spearman"] for name, metrics in probes.scores().items()}


def means(scores: dict[str, float]) -> dict[str, float]:
    """Over all sets, and over those by which nothing was chosen."""
    rest = [value for name, value in scores.items() if name != CHOSEN_ON]
    return {"all": fmean(scores.values()), "unseen": fmean(rest)}


def train_or_resume(place: Path, recipe: str, data: str, **options: Any) -> Path:
    """A run: as it is if it is done, gone on with if it was stopped, or from its beginning."""
    if (place / "result.json").is_file():
        return place
    if any((place / "checkpoints").glob("step-*")):
        clozelab.resume(place)
    else:
        shutil.rmtree(place, ignore_errors=True)
        clozelab.pretrain(recipe, data=data, out=place, **options)
    return place


def pretrain_encoder(seed: int, recipe: str, arguments: argparse.Namespace) -> Path:
    """The encoder of a seed."""
    place = Path(arguments.work) / f"{recipe}-{seed}"
    options: dict[str, Any] = {"size": arguments.size, "budget": arguments.budget, "seed": seed}
    return train_or_resume(place, recipe, arguments.data, set=arguments.set, **options)


def train_contrastively(
    base: Path,
    seed: int,
    rate: float,
    pooling: str,
    arguments: argparse.Namespace,
    *,
    on_pairs: bool = False,
) -> dict[str, float]:
    """The scores of the same encoder after the contrastive training, of twins or of pairs."""
    place = base.with_name(f"{base.name}-{pooling}-{rate:g}{'-pairs' if on_pairs else ''}")
    settings = {
        "optimiser.learning_rate": rate,
        "objectives.0.pooling": pooling,
        "schedule.batch_size": arguments.batch_size,
        "blocks.length": arguments.length,
        "blocks.shortest": 4,
        "encoder.dropout": 0.1,
    }
    steps, data = arguments.steps, arguments.data
    if on_pairs:
        settings = {"blocks.use": "sentence_rows", **settings}
        del settings["blocks.shortest"]
        steps, data = arguments.pair_steps, arguments.pairs
    overrides = [f"{name}={value}" for name, value in settings.items()]
    options: dict[str, Any] = {"from_": base, "budget": f"{steps}steps", "seed": seed}
    run = train_or_resume(place, "simcse", data, set=overrides, **options)
    return spearman_scores(run, arguments)


def choose_setting(
    base: Path, seed: int, arguments: argparse.Namespace
) -> tuple[tuple[float, str], dict[str, float]]:
    """The best rate and pooling on the dev set of STS-B, and what each came to."""
    settings = list(product(arguments.rates, arguments.poolings))
    jobs: list[Job] = [(train_contrastively, (base, seed, *one, arguments)) for one in settings]
    scores = [one[CHOSEN_ON] for one in side_by_side(jobs, arguments)]
    tried = {f"{p} {r:g}": score for (r, p), score in zip(settings, scores, strict=True)}
    for name, score in tried.items():
        print(f"{name}: {CHOSEN_ON} {score:.2f}", flush=True)
    return settings[scores.index(max(scores))], tried


def measure_seed(
    seed: int, setting: tuple[float, str], bases: dict[str, Path], arguments: argparse.Namespace
) -> dict[str, Any]:
    """All scores of a seed: of its encoders as they are, and after contrastive training."""
    base, (rate, pooling) = bases[arguments.recipe], setting
    sets = {
        "mean": spearman_scores(base, arguments, pool="mean"),
        "cls": spearman_scores(base, arguments, pool="cls"),
        "simcse": train_contrastively(base, seed, rate, pooling, arguments),
    }
    if arguments.pairs:
        sets["pairs"] = train_contrastively(base, seed, rate, pooling, arguments, on_pairs=True)
    if arguments.beside:  # pretrained for the vector of [CLS], and contrasted after that
        other = bases[arguments.beside]
        sets[arguments.beside] = spearman_scores(other, arguments)
        contrasted = train_contrastively(other, seed, rate, "cls", arguments)
        sets[f"{arguments.beside}, simcse"] = contrasted
    return {"seed": seed, "means": {k: means(v) for k, v in sets.items()}, "sets": sets}


def main() -> None:
    """Choose, then measure every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--task-data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default="runs/sentence-vectors", help="for checkpoints")
    parser.add_argument("--recipe", default="roberta")
    parser.add_argument("--beside", help="a recipe more, in the same time: retromae")
    parser.add_argument("--pairs", help="a corpus of pairs, to learn from as well")
    parser.add_argument("--pair-steps", type=int, default=500, help="of that training")
    parser.add_argument("--size", default="small")
    parser.add_argument("--budget", default="250Mtok", help="of the pretraining (250Mtok)")
    parser.add_argument("--set", action="append", default=[], help="of its recipe, KEY=VALUE")
    parser.add_argument("--steps", type=int, default=3000, help="of the contrastive training")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-5, 1e-4])
    parser.add_argument("--poolings", nargs="+", default=["cls", "mean"])
    parser.add_argument("--at-once", type=int, default=4, help="runs side by side (4)")
    arguments = parser.parse_args()
    began = time.perf_counter()
    seeds = range(arguments.first_seed - 1, arguments.first_seed + arguments.seeds)
    recipes = [arguments.recipe] + ([arguments.beside] if arguments.beside else [])
    # The first seed is for choosing, with the first recipe alone.
    wanted = [(seed, arguments.recipe) for seed in seeds]
    wanted += [(seed, name) for name in recipes[1:] for seed in seeds[1:]]
    jobs: list[Job] = [(pretrain_encoder, (*one, arguments)) for one in wanted]
    encoders = dict(zip(wanted, side_by_side(jobs, arguments), strict=True))
    setting, tried = choose_setting(encoders[seeds[0], arguments.recipe], seeds[0], arguments)
    jobs = [
        (measure_seed, (seed, setting, {n: encoders[seed, n] for n in recipes}, arguments))
        for seed in seeds[1:]
    ]
    rows = side_by_side(jobs, arguments)
    for row in rows:
        gain = row["means"]["simcse"]["all"] - row["means"]["mean"]["all"]
        print(f"seed {row['seed']}: {json.dumps(row['means'])}, gain {gain:+.2f}", flush=True)
    gains = {
        f"{way}, {kind}": [row["means"][way][kind] - row["means"]["mean"][kind] for row in rows]
        for way in ("simcse", "pairs")[: 2 if arguments.pairs else 1]
        for kind in ("all", "unseen")
    }
    record = {
        "machine": machine_facts(),
        "asked": vars(arguments),
        "chosen": dict(zip(("rate", "pooling"), setting, strict=True)),
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
