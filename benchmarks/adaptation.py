"""One text's encoder adapted to another text, both ways: what it gains, and what it forgets.

    python benchmarks/adaptation.py --data wiki books --task-data DIR --out FOLDER

Two corpora of one tokenizer. An encoder is pretrained on each, and adapted to the other plainly,
with some of the old text kept in (replay) and with a causal detour; losses of both texts, probes
and minimal pairs before and after every adaptation, fine-tuned tasks of the plain one. It stops
between two of these pieces when `--minutes` have passed, or may be killed at any time: the same
command goes on. FOLDER gets `adaptation.json`, which has everything that was measured so far, and
of every run the few small files that it comes from.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
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
SMALL = (FILE, "adaptation.html", "metrics.jsonl", "recipe.toml", "machine.toml", "result.json")


class Piece(NamedTuple):
    """A run: the encoder of a text, or its adaptation to another."""

    old: str
    new: str | None = None
    kind: str = ""

    @property
    def name(self) -> str:
        """Of its folder."""
        if self.new is None:
            return Path(self.old).name
        return f"{Path(self.old).name}-to-{Path(self.new).name}-{self.kind.replace(' ', '-')}"


def pieces(given: argparse.Namespace) -> Iterator[Piece]:
    """All runs, each after what it starts from."""
    first, second = given.data
    for old, new in ((first, second), (second, first)):
        yield Piece(old)
        yield from (Piece(old, new, kind) for kind in given.kinds)


def made(piece: Piece, given: argparse.Namespace) -> bool:
    """Make a run, or go on with it; whether there was anything to do."""
    place = Path(given.work) / piece.name
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
            how = {"size": given.size, "budget": given.pretraining, "seed": given.seed}
            clozelab.pretrain(
                given.recipe, data=piece.old, out=place, set=given.set, **how, **saving
            )
    elif begun:
        clozelab.adapt(resume=place)
    else:
        clozelab.adapt(
            Path(given.work) / Path(piece.old).name, data=piece.new, out=place,
            **asked(piece, given), **saving,
        )  # fmt: skip
    return True


def asked(piece: Piece, given: argparse.Namespace) -> dict[str, Any]:
    """How a text is adapted to, and what is measured."""
    options: dict[str, Any] = {"budget": given.budget, "general": piece.old, "seed": given.seed}
    if given.task_data:
        options |= {"task_data": given.task_data, "probe": given.probe}
    if piece.kind == "plain" and given.tasks:
        options |= {"tasks": given.tasks, "seeds": given.seeds}
    if piece.kind == "replay":
        options["replay"] = f"{piece.old}:{given.replay:g}"
    if piece.kind == "detour":
        options["detour"] = given.detour
    if piece.kind == "half rate":
        plain = Run(Path(given.work) / piece._replace(kind="plain").name)
        optimiser: Any = plain.recipe().optimiser
        options["set"] = [f"optimiser.learning_rate={optimiser.learning_rate / 2}"]
    return options


def row(piece: Piece, given: argparse.Namespace) -> dict[str, Any] | None:
    """What an adaptation came to; None if it is not done."""
    run = Run(Path(given.work) / piece.name)
    if not (run.path / FILE).is_file():
        return None
    found = read_adaptation(run)
    assert found is not None
    result = run.result() or {}
    return {
        "from": Path(piece.old).name,
        "to": Path(str(piece.new)).name,
        "kind": piece.kind,
        "gained": found.gain,
        "forgotten": found.forgetting,
        "losses": {text: list(losses) for text, losses in found.losses.items()},
        "others": [{"name": o.name, "before": o.before, "after": o.after} for o in found.others],
        "changes": list(found.changes),
        "steps": found.steps,
        "kept": found.kept,
        "tokens": result.get("tokens"),
        "seconds": result.get("seconds"),
    }


def record(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Write what is there so far."""
    out, rows = Path(given.out), []
    for piece in pieces(given):
        for name in SMALL:
            file = Path(given.work) / piece.name / name
            if file.is_file():
                (out / piece.name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, out / piece.name / name)
        if piece.new is not None and (found := row(piece, given)):
            rows.append(found)
    corpora = {Path(place).name: Corpus.open(place).manifest["fingerprint"] for place in given.data}
    facts = {"machine": machine_facts(), "asked": vars(given), "corpora": corpora, "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "adaptation.json", json.dumps(facts, indent=1) + "\n")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for a page, in nats."""
    lines = ["| from | to | how | gained | forgotten |", "|---|---|---|--:|--:|"]
    lines += [
        f"| {one['from']} | {one['to']} | {one['kind']} | {one['gained']:.3f} |"
        f" {one['forgotten']:.3f} |"
        for one in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Make what is missing, as far as time allows."""
    words = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    words.add_argument("--data", nargs=2, required=True, metavar="CORPUS")
    words.add_argument("--task-data", help="of probes and tasks")
    words.add_argument("--out", required=True, help="a folder for the record")
    words.add_argument("--work", default="runs/adaptation", help="for the runs")
    words.add_argument("--recipe", default="swift")
    words.add_argument("--size", default="small")
    words.add_argument("--pretraining", default="3m", help="budget of an encoder (3m)")
    words.add_argument("--budget", default="1m", help="of an adaptation (1m)")
    words.add_argument("--replay", type=float, default=0.1)
    words.add_argument("--detour", type=float, default=0.5)
    words.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    words.add_argument("--probe", nargs="+", default=["sst2", "blimp"])
    words.add_argument("--tasks", nargs="*", default=["rte"])
    words.add_argument("--seeds", type=int, default=3, help="fine-tunings of a task")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--set", nargs="*", default=[], help="of the recipe of the encoders")
    words.add_argument("--minutes", type=float, default=9.0, help="of this go (9)")
    given = words.parse_args()
    if not given.task_data:
        given.tasks = []
    began, longest = time.monotonic(), 0.0
    for piece in pieces(given):
        start = time.monotonic()
        if longest and start - began + longest > 60 * given.minutes:
            sys.exit(f"stopped before {piece.name}; the same command goes on")
        if made(piece, given):
            longest = max(longest, time.monotonic() - start)
            rows = record(given)
            print(f"{piece.name}: {time.monotonic() - start:.0f} s", flush=True)
    rows = record(given)
    print(table(rows))


if __name__ == "__main__":
    try:
        main()
    except Stopped:
        sys.exit("stopped; the same command goes on")
    except UserError as error:
        sys.exit(str(error))
