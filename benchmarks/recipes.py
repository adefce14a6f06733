"""Every system's recipe, shrunk and given the same time, on real text; the logs go to results/.

    python benchmarks/recipes.py --english CORPUS --chinese CORPUS --out results/recipes

Several run at once on the device, so their speed is no figure; bert comes first, since students
learn from it. The Chinese corpus needs words, phrases and names (corpus build --phrases
--entities FILE), which ERNIE and the Chinese whole-word recipe hide.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clozelab.config import recipe as recipes

CHINESE = ("roberta_wwm", "ernie")
STUDENTS = ("distilbert", "minilm")
WAVES = (
    ("bert", "roberta", "albert", "spanbert"),
    ("distilbert", "xlnet", *CHINESE),
    ("gpt", "elmo", "minilm", "diffusion"),
    ("electra", "modernbert", "mosaicbert", "neobert"),
    ("deberta", "causal_then_masked", "gpt_bert"),
)
KEPT = ("recipe.toml", "machine.toml", "metrics.jsonl", "result.json", "log.txt")


def run(name: str, arguments: argparse.Namespace) -> str:
    """Pretrain one recipe; what it came to, in a line."""
    place = Path(arguments.work) / name
    data = arguments.chinese if name in CHINESE else arguments.english
    rest = ["--data", data, "--out", str(place), "--budget", arguments.budget, "--save-every", "0"]
    command = ["pretrain", name, "--size", arguments.size, *rest]
    if name in STUDENTS:
        command = ["distil", str(Path(arguments.work) / "bert"), "--recipe", name, *rest]
        optimiser = recipes.read("bert", size=arguments.size).optimiser
        command += ["--set", f"optimiser.learning_rate={optimiser.learning_rate}"]
    began = time.perf_counter()
    process = _command([*command, *arguments.more])
    if process.returncode and "--no-compile" not in arguments.more:
        shutil.rmtree(place, ignore_errors=True)
        process = _command([*command, *arguments.more, "--no-compile"])
    folder = Path(arguments.out) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_text(process.stderr[-20_000:], encoding="utf-8")
    for file in KEPT:
        if (place / file).is_file():
            shutil.copy(place / file, folder / file)
    if process.returncode:
        return f"{name}: failed, see {folder / 'log.txt'}"
    result = json.loads((place / "result.json").read_text(encoding="utf-8"))
    losses = ", ".join(f"{k} {v['loss']:.3f}" for k, v in result["held_out"].items())
    return (
        f"{name}: {result['steps']:,} steps, {result['tokens'] / 1e6:.1f} M tokens in"
        f" {time.perf_counter() - began:.0f} s; held out {losses}"
    )


def main() -> None:
    """Run the waves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--english", required=True)
    parser.add_argument("--chinese", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default="runs/recipes", help="for checkpoints (runs/recipes)")
    parser.add_argument("--size", default="small")
    parser.add_argument("--budget", default="100s")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", nargs="*", help="these recipes (all)")
    parser.add_argument("more", nargs="*", help="further words for every run")
    arguments = parser.parse_args()
    for wave in WAVES:
        with ThreadPoolExecutor(arguments.at_once) as pool:
            wanted = [name for name in wave if not arguments.only or name in arguments.only]
            for line in pool.map(lambda name: run(name, arguments), wanted):
                print(line, flush=True)


def _command(options: list[str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "clozelab", *options]
    return subprocess.run(line, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
