"""How a study is done again: the command, and what it was done on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from clozelab.reporting.document import Cell, Part, Table, listed
from clozelab.reporting.study.cells import Evidence
from clozelab.runs.directory import STUDY

FACTS = ("gpu", "device", "precision", "cpus", "torch", "python", "clozelab", "commit", "data",
         "fingerprint")  # fmt: skip


def told(evidence: Evidence) -> Iterator[Part]:
    """The command, then what it should be done with for the same numbers."""
    yield ("code", command(evidence))
    rows = [
        [Cell("seeds"), Cell(listed(map(str, seeds(evidence))))],
        *([Cell(name), Cell(", ".join(values))] for name, values in _facts(evidence)),
    ]
    yield Table(["", "as it was done"], rows)


def seeds(evidence: Evidence) -> list[int]:
    """Those that were planned."""
    planned = {int(cell["seed"]) for cell in evidence.plan.get("cells", [])}
    return sorted(planned) or [*range(evidence.study.seeds)]


def command(evidence: Evidence) -> str:
    """The words that make the same study from its file."""
    plan = evidence.plan
    words = ["clozelab", "study", str(evidence.folder / STUDY)]
    data = plan.get("data") or ["CORPUS"]
    for one in [data] if isinstance(data, str) else data:
        words += ["--data", str(one)]
    for name in ("size", "budget", "task_data"):
        if plan.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(plan[name])]
    return shlex.join([*words, "--seeds", str(len(seeds(evidence))), "--out", "again"])


def _facts(evidence: Evidence) -> Iterator[tuple[str, list[str]]]:
    """What the runs say of their machines, each thing once."""
    for name in FACTS:
        found = dict.fromkeys(
            str(one) for run in evidence.runs.values() for one in _several(run.machine.get(name))
        )
        if found:
            yield name, [*found]


def _several(value: object) -> list[object]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
