"""Make an entry of the board: pretrain for the budget with some seeds, measure, tune every task.

    python tools/board_entry.py swift --data english --held-out english-valid --task-data tasks \\
        --budget 5m --seeds 3 --minutes 9 --work DIR --out results/board/NAME

Works for --minutes and stops; the same command continues. Weights stay in --work; --out has the
records of each seed, so that nothing is measured twice. If the weights of a seed are lost before
everything is measured, its records are removed and it starts again, since scores of two encoders
must not be mixed. Pretraining has the GPU alone; fine-tunings run side by side.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from board import BOARD, write_entry
from board_records import BLOCKS, MASKS, TASKS
from keep_results import keep

from clozelab.config.toml import to_toml
from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.finetuning import protocols
from clozelab.finetuning.files.named import NAMED
from clozelab.runs.directory import machine_facts
from clozelab.training import budget as budgets

SAVING = 25.0  # seconds reserved for running commands to save
SETUP = 90.0  # seconds that a pretraining takes before its first step, and after its last
LEAST = 15.0  # seconds that must be left to start a command
LOSSES = ("held_out", "own")
MEASURES = (*LOSSES, "blimp")


class OutOfTimeError(Exception):
    """The time of this call is over; the same command continues."""


class Clock:
    """The time left of this call, and commands that end with it."""

    def __init__(self, minutes: float) -> None:
        self.whole = 60 * minutes - SAVING
        self._end = time.monotonic() + self.whole

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def wants(self, seconds: float) -> None:
        """Stop if `seconds` are not left now, but would fit into the time of another call."""
        if self.left < seconds <= self.whole:
            raise OutOfTimeError

    def run(self, commands: Sequence[Sequence[str]], *, together: int = 1) -> None:
        """Run commands of clozelab, some side by side; at the end of time they are told to save.

        If one fails, the others still finish.
        """
        waiting, running, failed = [*commands], list[subprocess.Popen[bytes]](), False
        try:
            while waiting or running:
                if self.left < (LEAST if not running else 0.0):
                    raise OutOfTimeError
                while waiting and len(running) < together and self.left >= LEAST:
                    command = [sys.executable, "-m", "clozelab", *waiting.pop(0), "--no-progress"]
                    running.append(subprocess.Popen(command))
                time.sleep(0.2)
                failed = failed or any(process.poll() for process in running)
                running = [process for process in running if process.poll() is None]
        finally:
            for process in running:
                process.terminate()  # it saves, also if it runs in the background
            for process in running:
                try:
                    process.wait(timeout=SAVING)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if failed:
            raise UserError("a command failed, as said above; the same command tries it again")


class Seed:
    """One encoder: its run, its tunings, its records."""

    def __init__(self, arguments: argparse.Namespace, seed: int) -> None:
        self.arguments, self.seed = arguments, seed
        self.run = arguments.work.resolve() / f"seed-{seed}"
        self.tuned = arguments.work.resolve() / f"tuned-{seed}"
        self.records = arguments.out / f"seed-{seed}"

    @property
    def whole(self) -> bool:
        """Whether all records exist."""
        files = ["result.json", *(f"{name}.json" for name in self.arguments.measures)]
        return all((self.records / name).exists() for name in files) and not self._tasks_left()

    def go_on(self, clock: Clock) -> None:
        """Do what is left."""
        if self.records.exists() and not (self.run / "result.json").exists():
            print(f"seed {self.seed}: its weights are gone, so it begins anew", flush=True)
            shutil.rmtree(self.records)
        self._pretrain(clock)
        self._measure(clock)
        self._tune(clock)

    def _pretrain(self, clock: Clock) -> None:
        arguments, machine = (
            self.arguments,
            ["--device", self.arguments.device] if self.arguments.device else [],
        )
        if not (self.run / "result.json").exists():
            if any((self.run / "checkpoints").glob("step-*")):
                command = ["pretrain", "--resume", str(self.run), *machine]
            else:
                budget = budgets.parse(arguments.budget)
                clock.wants(budget.amount + SETUP if budget.kind == "seconds" else 0.0)
                shutil.rmtree(self.run, ignore_errors=True)
                shutil.rmtree(self.tuned, ignore_errors=True)
                command = ["pretrain", arguments.recipe, "--data", str(arguments.data.resolve())]
                command += ["--budget", arguments.budget, "--seed", str(self.seed), *machine]
                command += [
                    "--out",
                    str(self.run),
                    *(["--size", arguments.size] if arguments.size else []),
                ]
                command += [word for setting in arguments.set for word in ("--set", setting)]
            clock.run([command])
        if not (self.records / "result.json").exists():
            keep(self.run, self.records, str(machine_facts().get("commit", "not recorded")))
            self._without_places(self.records / "machine.toml")

    def _measure(self, clock: Clock) -> None:
        arguments = self.arguments
        device = ["--device", arguments.device] if arguments.device else []
        masks = ["--masks", MASKS, "--blocks", str(BLOCKS)]
        texts = {"held_out": arguments.held_out, "own": arguments.data}
        for name in arguments.measures:
            file = self.records / f"{name}.json"
            if file.exists():
                continue
            if name in LOSSES:
                command = ["evaluate", str(self.run), "--data", str(texts[name].resolve()), *masks]
            else:
                command = ["score", str(self.run), "--pairs", name]
                command += ["--task-data", str(arguments.task_data)]
            clock.run([[*command, "--out", str(file), *device]])
            self._without_places(file)

    def _tune(self, clock: Clock) -> None:
        """Tasks that begin from MNLI's model come after it."""
        left = self._tasks_left()
        chained = [task for task in left if self._after(task)]
        for several in ([task for task in left if task not in chained], chained):
            waves = [self._tuning(task) for task in several]
            try:
                clock.run(waves, together=self.arguments.together)
            finally:  # those that were done before time was over
                done = [
                    task_name
                    for task_name in several
                    if (self.tuned / task_name / "result.json").exists()
                ]
                self._write_tasks(done)

    def _after(self, task: str) -> str | None:
        """The task whose model a task begins from, by the protocol, if that is tuned here."""
        kind = NAMED[task].kind
        after = protocols.read(self.arguments.protocol, task, kind).after
        return after if after in self.arguments.tasks else None

    def _tuning(self, task: str) -> list[str]:
        arguments, after = self.arguments, self._after(task)
        tunings = TASKS[task][1] if arguments.tunings is None else arguments.tunings
        model = self.tuned / after if after else self.run
        command = ["finetune", str(model), task, "--protocol", arguments.protocol]
        command += ["--task-data", str(arguments.task_data), "--out", str(self.tuned / task)]
        command += ["--seeds", str(tunings), "--seed", str(self.seed * tunings)]
        command += ["--at-once", str(min(tunings, arguments.at_once))]
        command += [word for setting in arguments.tune for word in ("--set", setting)]
        return [*command, *(["--device", arguments.device] if arguments.device else [])]

    def _tasks_left(self) -> list[str]:
        return [task for task in self.arguments.tasks if task not in self._tasks()]

    def _tasks(self) -> dict[str, Any]:
        file = self.records / "tasks.json"
        tasks = json.loads(file.read_text(encoding="utf-8"))["tasks"] if file.exists() else {}
        return dict(tasks)

    def _write_tasks(self, names: Sequence[str]) -> None:
        tasks = self._tasks()
        for task in names:
            plan = json.loads((self.tuned / task / "plan.json").read_text(encoding="utf-8"))
            result = json.loads((self.tuned / task / "result.json").read_text(encoding="utf-8"))
            (cell,) = result["cells"]
            tasks[task] = {
                **{"protocol": plan["protocol"], "settings": plan["settings"]},
                **{"tuning": plan["tuning"], "from": self._after(task) or "the encoder"},
                "digests": {Path(file).name: digest for file, digest in plan["digests"].items()},
                **{"seeds": cell["seeds"], "spread": cell["scores"]},
            }
        if tasks:
            text = json.dumps({"machine": machine_facts(), "tasks": tasks}, indent=1)
            write_text(self.records / "tasks.json", text + "\n")

    def _without_places(self, file: Path) -> None:
        """Remove paths of this machine from a record."""
        text = file.read_text(encoding="utf-8")
        for place in (self.arguments.data, self.arguments.held_out, self.run):
            text = text.replace(f"{place.resolve().parent}/", "")
        write_text(file, text)

    def row(self) -> dict[str, Any]:
        """The row of the seed in entry.toml."""
        files = {name: f"{self.records.name}/{name}.json" for name in self.arguments.measures}
        tasks = dict.fromkeys(self.arguments.tasks, f"{self.records.name}/tasks.json")
        row = {"seed": self.seed, "run": self.records.name, **files}
        return {**row, "tasks": tasks} if tasks else row


def enter(arguments: argparse.Namespace, seeds: Sequence[Seed]) -> None:
    """Write the entry of the complete seeds, with the facts and scores of their records."""
    text = arguments.text or arguments.data.resolve().name
    date = datetime.now(UTC).date().isoformat()
    rows = [seed.row() for seed in seeds]
    write_text(arguments.out / "entry.toml", to_toml({"date": date, "text": text, "seeds": rows}))
    try:
        write_entry(arguments.out.resolve())
    except UserError as error:
        print(f"the entry is not complete: {error}", flush=True)
        for name, place in (("fingerprint", arguments.data), ("held_out", arguments.held_out)):
            manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
            print(f'[{text}] in texts.toml: {name} = "{manifest["fingerprint"]}"')


def parse_arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, required=True, help="the corpus")
    parser.add_argument("--held-out", type=Path, required=True, help="that of the held-out loss")
    parser.add_argument("--task-data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help=f"the entry, in {BOARD.name}/")
    parser.add_argument("--work", type=Path, required=True, help="for weights")
    parser.add_argument("--minutes", type=float, required=True, help="of this piece")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--size")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--measures", nargs="*", choices=MEASURES, default=MEASURES)
    parser.add_argument("--tasks", nargs="*", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--protocol", default="swift")
    parser.add_argument("--tune", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tunings", type=int, help="of every task (the board's rules)")
    parser.add_argument("--at-once", type=int, default=3, help="tunings of a task (3)")
    parser.add_argument("--together", type=int, default=3, help="tasks (3)")
    parser.add_argument("--text", help="its name in texts.toml (that of the corpus's folder)")
    parser.add_argument("--device")
    return parser.parse_args()


def main() -> int:
    """Continue with all seeds until the time is over, and write the entry."""
    arguments = parse_arguments()
    arguments.task_data = arguments.task_data.resolve()
    clock = Clock(arguments.minutes)
    last = arguments.first_seed + arguments.seeds
    seeds = [Seed(arguments, number) for number in range(arguments.first_seed, last)]
    try:
        for seed in seeds:
            if not seed.whole:
                seed.go_on(clock)
            print(f"seed {seed.seed}: done, {max(clock.left, 0):.0f} s left", flush=True)
    except OutOfTimeError:
        print("the time of this piece is over; the same command continues", flush=True)
    except UserError as error:
        print(f"board_entry: {error}", file=sys.stderr)
        return 1
    done = [seed for seed in seeds if seed.whole]
    if done:
        enter(arguments, done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
