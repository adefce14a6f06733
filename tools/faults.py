"""A campaign of faults against clozelab's promises: `make faults`, or with another --seed.

Commands are killed at their writes, signalled, given a second writer or a full disk, and their
files are damaged bit by bit; each must end with a plain error or continue to the same bytes. The
seed chooses the moments. It ends after --minutes, even if cases are left, with exit code 1 if one
failed. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--seed", type=int, default=0, help="chooses the moments (0)")
    parser.add_argument("--minutes", type=float, default=9, help="end after these (9)")
    parser.add_argument("--only", metavar="WORDS", default="", help="cases with this in their name")
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count() or 1, help="cases (a core each)"
    )
    parser.add_argument("--out", type=Path, help="write counts and failures to this JSON file")
    parser.add_argument(
        "--record", action="store_true", help="keep it as that of docs/reliability.md"
    )
    arguments = parser.parse_args()
    started = time.monotonic()
    deadline = started + 60 * arguments.minutes
    from campaign import cases, children, record, works

    from clozelab.files import write_text

    children.load()
    root = Path(tempfile.mkdtemp(prefix="clozelab-faults-", dir=_memory()))
    try:
        plan = cases.planned(works.prepare(root), arguments.seed)
        plan = [case for case in plan if arguments.only in f"{case.kind}: {case.name}"]
        outcomes = list(_watched(plan, root, deadline=deadline, hands=arguments.at_once))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    seconds = time.monotonic() - started
    kinds = (case.kind for case in plan)
    summary = record.record(kinds, outcomes, seed=arguments.seed, seconds=seconds)
    _show(summary)
    out = record.FILE if arguments.record else arguments.out
    if out:
        write_text(out, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    if arguments.record:
        write_text(record.PAGE, record.page(summary, record.PAGE.read_text(encoding="utf-8")))
    return 1 if summary["failures"] else 0


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


def _memory() -> str | None:
    """A file system in memory, if there is one, where syncing costs nothing."""
    place = Path("/dev/shm")
    return str(place) if os.access(place, os.W_OK) else None


def _watched(
    plan: list[Any], root: Path, *, deadline: float, hands: int
) -> Iterator[dict[str, Any]]:
    """Yield the outcome of every case that was run in time, and show a progress bar."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    reads, writes = os.pipe()
    pids = []
    for number in range(hands):
        pids.append(os.fork())
        if not pids[-1]:
            os.close(reads)
            _hand(plan[number::hands], root / f"hand-{number}", deadline, writes)
    os.close(writes)
    failed = 0
    with Progress(*columns, TimeRemainingColumn()) as bar:
        drawn = bar.add_task("no failure", total=len(plan))
        for line in os.fdopen(reads, encoding="utf-8"):
            outcome = json.loads(line)
            yield outcome
            if outcome["fault"]:
                failed += 1
                bar.print(f"{outcome['kind']}: {outcome['name']}: {outcome['fault']}", markup=False)
            bar.update(drawn, advance=1, description=f"{failed or 'no'} failures")
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit("a process of the campaign itself has failed: not all cases were run")


def _hand(plan: list[Any], place: Path, deadline: float, writes: int) -> None:
    """Run some of the cases in a process of their own and write a line for each."""
    from campaign.cases import NoDiskError

    code = 1
    try:
        for number, case in enumerate(plan):
            if time.monotonic() > deadline:
                break
            folder = place / str(number)  # of its own: the last case's may not be empty yet
            (folder / "work").mkdir(parents=True)
            try:
                fault = case.check(folder / "work")
            except NoDiskError:  # not counted where no disk can be mounted
                continue
            except Exception as error:  # of the campaign itself, reported like any other
                fault = f"{type(error).__name__}: {error}"
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            outcome = {"kind": case.kind, "name": case.name, "fault": fault and fault[:500]}
            os.write(writes, json.dumps(outcome).encode() + b"\n")  # atomic, since it is short
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:  # in any case, without the exit handlers of the parent
        os._exit(code)


def _show(summary: dict[str, Any]) -> None:
    from campaign.record import rows
    from rich.console import Console
    from rich.table import Table

    table = Table("fault", box=None)
    for name in ("cases", "of", "failures"):
        table.add_column(name, justify="right")
    for row in rows(summary):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
