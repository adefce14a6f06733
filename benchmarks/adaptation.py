"""Adapting an encoder of one text to another, both ways: what it gains, and what it forgets.

    python benchmarks/adaptation.py --data wiki books --task-data DIR --out FOLDER

Two corpora of one tokenizer. An encoder is pretrained on each, and adapted to the other plainly,
with some of the old text kept in (replay) and with a causal detour; losses of both texts, probes
and minimal pairs are measured before and after every adaptation, fine-tuned tasks for the plain
one. Both ways run in parallel with `--at-once 2`; budgets are then tokens, since the runs share the
machine. It stops between two runs when `--minutes` have passed, or may be killed at any time: the
same command continues. FOLDER gets `adaptation.json` with everything that was measured so far, and
the small files of every run that it comes from.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import clozelab
from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.interrupts import Stopped
from clozelab.runs.adaptation import FILE, read_adaptation
from clozelab.runs.directory import Run, machine_facts
from clozelab.text.store import Corpus

KINDS = ("plain", "replay", "half rate", "detour")
SMALL = (FILE, "recipe.toml", "machine.toml", "result.json")  # the curves are in the record


class Piece(NamedTuple):
    """A run: the encoder of a text, or its adaptation to another."""

    old: str
    new: str | None = None
    kind: str = ""

    @property
    def name(self) -> str:
        """The name of its folder."""
        if self.new is None:
            return Path(self.old).name
        return f"{Path(self.old).name}-to-{Path(self.new).name}-{self.kind.replace(' ', '-')}"


def pieces(old: str, new: str, arguments: argparse.Namespace) -> Iterator[Piece]:
    """The runs of one way, each after what it starts from."""
    yield Piece(old)
    yield from (Piece(old, new, kind) for kind in arguments.kinds)


def ways(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """From the first text to the second, and back."""
    first, second = arguments.data
    return [(first, second), (second, first)]


def make_run(piece: Piece, arguments: argparse.Namespace) -> bool:
    """Make or resume a run; returns whether there was anything to do."""
    place = Path(arguments.work) / piece.name
    if (place / ("result.json" if piece.new is None else FILE)).is_file():
        return False
    begun = any((place / "checkpoints").glob("step-*"))
    if not begun:
        shutil.rmtree(place, ignore_errors=True)
    saving = {"progress": False}
    if piece.new is None:
        if begun:
            clozelab.resume(place)
        else:
            how = {"size": arguments.size, "budget": arguments.pretraining, "seed": arguments.seed}
            clozelab.pretrain(
                arguments.recipe, data=piece.old, out=place, set=arguments.set, **how, **saving
            )
    elif begun:
        clozelab.adapt(resume=place)
    else:
        clozelab.adapt(
            Path(arguments.work) / Path(piece.old).name, data=piece.new, out=place,
            **adapt_options(piece, arguments), **saving,
        )  # fmt: skip
    return True


def adapt_options(piece: Piece, arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `clozelab.adapt` for a run."""
    options: dict[str, Any] = {
        "budget": arguments.budget,
        "general": piece.old,
        "seed": arguments.seed,
    }
    if arguments.task_data:
        options |= {"task_data": arguments.task_data, "probe": arguments.probe}
    if piece.kind == "plain" and arguments.tasks:
        options |= {"tasks": arguments.tasks, "seeds": arguments.seeds}
    if piece.kind == "replay":
        options["replay"] = f"{piece.old}:{arguments.replay:g}"
    if piece.kind == "detour":
        options["detour"] = arguments.detour
    if piece.kind == "half rate":
        plain = Run(Path(arguments.work) / piece._replace(kind="plain").name)
        rates = ("learning_rate", "matrix_learning_rate")  # the second one of Muon alone
        values = {name: getattr(plain.recipe().optimiser, name, None) for name in rates}
        options["set"] = [
            f"optimiser.{name}={value / 2}" for name, value in values.items() if value
        ]
    return options


def row(piece: Piece, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The results of an adaptation; None if it is not done."""
    run = Run(Path(arguments.work) / piece.name)
    if not (run.path / FILE).is_file():
        return None
    adaptation = read_adaptation(run)
    assert adaptation is not None
    result = run.result() or {}
    return {
        "from": Path(piece.old).name,
        "to": Path(str(piece.new)).name,
        "kind": piece.kind,
        "gained": adaptation.gain,
        "forgotten": adaptation.forgetting,
        "losses": {text: list(losses) for text, losses in adaptation.losses.items()},
        "others": [
            {"name": o.name, "before": o.before, "after": o.after} for o in adaptation.others
        ],
        "changes": list(adaptation.changes),
        "steps": adaptation.steps,
        "best_step": adaptation.best_step,
        "tokens": result.get("tokens"),
        "seconds": result.get("seconds"),
    }


def record(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the record of all runs so far; returns its rows."""
    out, rows = Path(arguments.out), []
    for piece in (piece for way in ways(arguments) for piece in pieces(*way, arguments)):
        for name in SMALL:
            file = Path(arguments.work) / piece.name / name
            if file.is_file():
                (out / piece.name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, out / piece.name / name)
        if piece.new is not None and (result := row(piece, arguments)):
            rows.append(result)
    corpora = {
        Path(place).name: Corpus.open(place).manifest["fingerprint"] for place in arguments.data
    }
    facts = {"machine": machine_facts(), "asked": vars(arguments), "corpora": corpora, "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "adaptation.json", json.dumps(facts, indent=1) + "\n")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, in nats."""
    lines = ["| from | to | how | gained | forgotten |", "|---|---|---|--:|--:|"]
    lines += [
        f"| {entry['from']} | {entry['to']} | {entry['kind']} | {entry['gained']:.3f} |"
        f" {entry['forgotten']:.3f} |"
        for entry in rows
    ]
    return "\n".join(lines)


def make_runs(way: tuple[str, str], arguments: argparse.Namespace) -> str | None:
    """Make the missing runs of a way; returns the first that the minutes were too short for."""
    began, longest = time.monotonic(), 0.0
    for piece in pieces(*way, arguments):
        start = time.monotonic()
        if longest and start - began + longest > 60 * arguments.minutes:
            return piece.name
        if make_run(piece, arguments):
            longest = max(longest, time.monotonic() - start)
            record(arguments)
            print(f"{piece.name}: {time.monotonic() - start:.0f} s", flush=True)
    return None


def main() -> None:
    """Make the missing runs, as far as time allows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", nargs=2, required=True, metavar="CORPUS")
    parser.add_argument("--task-data", help="of probes and tasks")
    parser.add_argument("--out", required=True, help="a folder for the record")
    parser.add_argument("--work", default="runs/adaptation", help="for the runs")
    parser.add_argument("--recipe", default="swift")
    parser.add_argument("--size", default="small")
    parser.add_argument("--pretraining", default="3m", help="budget of an encoder (3m)")
    parser.add_argument("--budget", default="1m", help="of an adaptation (1m)")
    parser.add_argument("--replay", type=float, default=0.1)
    parser.add_argument("--detour", type=float, default=0.5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--probe", nargs="+", default=["sst2", "blimp"])
    parser.add_argument("--tasks", nargs="*", default=["rte"])
    parser.add_argument("--seeds", type=int, default=3, help="fine-tunings of a task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], help="of the recipe of the encoders")
    parser.add_argument("--at-once", type=int, choices=(1, 2), default=1, help="ways in parallel")
    parser.add_argument("--minutes", type=float, default=9.0, help="of each way in this go (9)")
    arguments = parser.parse_args()
    if not arguments.task_data:
        arguments.tasks = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.at_once, mp_context=context) as pool:
        jobs = [pool.submit(make_runs, way, arguments) for way in ways(arguments)]
        stops = [stopped for job in jobs if (stopped := job.result())]
    print(table(record(arguments)))
    if stops:
        sys.exit(f"stopped before {', '.join(stops)}; the same command goes on")


if __name__ == "__main__":
    try:
        main()
    except Stopped:
        sys.exit("stopped; the same command goes on")
    except UserError as error:
        sys.exit(str(error))
