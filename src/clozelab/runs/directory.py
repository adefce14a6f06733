"""The run directory: recipe.toml, machine.toml, metrics.jsonl, result.json and checkpoints/.

Metrics are only appended to; the other files are replaced atomically. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clozelab
from clozelab import files
from clozelab.config.tables import flat
from clozelab.config.toml import to_toml
from clozelab.errors import UserError
from clozelab.files import write_text
from clozelab.nearest import remedy
from clozelab.options import located

if TYPE_CHECKING:
    from clozelab.config.recipe import Recipe

Entry = dict[str, Any]
_KIND, _METRICS, _RESULT = "run", "metrics.jsonl", "result.json"  # its marker, log and result

PLAN = "plan.json"  # in a folder of fine-tunings: what they have in common
TASK = "task.toml"  # beside a fine-tuned checkpoint: the task, and how it was tuned
STUDY = "study.toml"  # in a study's folder, beside a plan of its own
CELLS = "cells"  # in a study's folder: a run for each variant and seed
MEASURED = "measured.json"  # in a study's cell: what it is compared by, beside its tasks
# Of machine.toml: what a run was computed with, which a resume may change.
SETTINGS = (
    *("device", "gpu", "torch", "processes", "precision", "micro_tokens", "workers"),
    *("compiled", "kernels", "graphs", "recompute", "sharded", "muon"),
)


@dataclass(frozen=True)
class Run:
    """The folder of one run, or of all runs of a fine-tuning."""

    path: Path  # its folder; a string will do

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(located(self.path, "run")))

    def __repr__(self) -> str:
        state = "done" if (self.path / _RESULT).is_file() else "not done"
        return f"Run({str(self.path)!r}, {state if self.path.is_dir() else 'missing'})"

    @classmethod
    def create(cls, path: Path, *, recipe_toml: str, machine: Mapping[str, Any]) -> Run:
        """Start a run in an empty folder, or in one whose run never took a step."""
        run = cls(path)
        run.claim()
        run.refuse_started()
        write_text(path / "machine.toml", to_toml(machine))
        write_text(run.recipe_file, recipe_toml)
        return run

    def claim(self) -> None:
        """Make the folder a run's, or find that it is; one with anything else in it is refused."""
        if self.recipe_file.is_file() and files.kind_of(self.path) is None:
            files.mark(self.path, _KIND)  # of a run made before there were markers
        files.claim(self.path, _KIND)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other writers out of the folder."""
        self.claim()
        with files.locked(self.path):
            yield

    def refuse_started(self) -> None:
        """Refuse to start a run where one has taken a step, or where there is something else."""
        if not self.recipe_file.exists():
            files.check_claim(self.path, _KIND)
            return
        saved = any(self.checkpoints.glob("step-*"))
        if saved or self.result() is not None or self.events("step"):
            raise UserError(
                f"{self.path}: already contains a run; continue it with --resume"
                f" {self.path}, or name another folder"
            )

    @classmethod
    def open(cls, path: Path | str | Run) -> Run:
        """Open an existing run, or a folder of fine-tuning runs."""
        run = cls(Path(located(path, "run")))
        folder = run.path
        whole = cls(folder.parent.parent)
        if folder.parent.name == "checkpoints" and whole.recipe_file.is_file():
            raise UserError(f"{folder}: is a checkpoint; name its run, {whole.path}")
        if not run.recipe_file.is_file() and not run.is_several:
            raise UserError(
                f"{folder}: is not a run, because it has no recipe.toml; name the folder of a run"
            )
        return run

    @property
    def is_several(self) -> bool:
        """Whether it is a folder of fine-tuning runs, which have their own recipes and logs."""
        return (self.path / PLAN).is_file() and not (self.path / STUDY).is_file()

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are, if any."""
        return self.path / "checkpoints"

    def recipe(self) -> Recipe:
        """The run's recipe."""
        from clozelab.config.recipe import parse

        return parse(self.recipe_text(), str(self.recipe_file))

    def recipe_text(self) -> str:
        """The resolved recipe's text."""
        file = self.recipe_file
        content = self._read_own(file.name)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise UserError(f"{file}: is not UTF-8 text; restore it from a copy") from None

    def machine(self) -> dict[str, Any]:
        """The run's machine, data, seed and versions."""
        content = self._read_own("machine.toml")
        try:
            return tomllib.loads(content.decode())
        except ValueError as error:
            file = self.path / "machine.toml"
            raise UserError(f"{file}: is not valid TOML ({error}); fix the file") from None

    def remember(self, facts: Mapping[str, Any]) -> None:
        """Put facts into machine.toml, beside those that are there or in their place."""
        write_text(self.path / "machine.toml", to_toml({**self.machine(), **facts}))

    def settled(
        self,
        step: int,
        facts: Mapping[str, Any],
        *,
        before: Mapping[str, Any],
        also: Mapping[str, dict[str, Any]],
    ) -> dict[str, dict[str, Any]]:
        """Record what the run is computed with from a step on; returns what differs from `before`.

        machine.toml has the present values, metrics.jsonl each change with its step.
        """
        changes = {
            name: {"from": before[name], "to": facts.get(name)}
            for name in SETTINGS
            if name in before and before[name] != facts.get(name)
        } | dict(also)
        # Of two changes before one step the last counts, even if it takes the other back.
        if changes or any(entry["step"] == step for entry in self.events("changed")):
            self.append({"kind": "changed", "step": step, "settings": changes})
        self.remember(facts)
        return changes

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add one entry with its `kind` and, where it belongs to one, its `step`."""
        line = json.dumps(_finite(entry), allow_nan=False, ensure_ascii=False)
        with (self.path / _METRICS).open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a crash tore the last line: it stays alone
                    file.write(b"\n")
            file.write(line.encode() + b"\n")

    def resumed(self, step: int) -> None:
        """Note that the run goes on from there: what was recorded of later steps is void.

        A result of later steps is removed.
        """
        if (self.result() or {}).get("steps", 0) > step:
            (self.path / _RESULT).unlink()
        self.append({"kind": "resume", "step": step})

    def refit(self, step: int, steps: int, *, recipe_toml: str) -> None:
        """Note that the run has other steps from there on, and that its recipe says so."""
        write_text(self.recipe_file, recipe_toml)
        self.append({"kind": "refit", "step": step, "steps": steps})

    def events(self, kind: str | None = None) -> list[Entry]:
        """The recorded events; if a kind and step were recorded twice, the last."""
        entries: dict[object, Entry] = {}
        for number, entry in enumerate(self._lines()):
            step: int | None = entry.get("step")
            if entry["kind"] == "resume" and step is not None:
                entries = {k: old for k, old in entries.items() if (old.get("step") or 0) <= step}
            entry_key = (number,) if step is None else (entry["kind"], step)
            entries[entry_key] = entry
        return [entry for entry in entries.values() if kind in (None, entry["kind"])]

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what came out, whole or not at all."""
        text = json.dumps(_finite(result), indent=1, allow_nan=False, ensure_ascii=False)
        write_text(self.path / _RESULT, text + "\n")

    def result(self) -> dict[str, Any] | None:
        """The results; None if the run is not done."""
        try:
            return dict(json.loads(self.read(_RESULT)))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise UserError(f"{self.path / _RESULT}: cannot be read; remove it") from None

    def read(self, name: str) -> bytes:
        """The content of one of its files."""
        return (self.path / name).read_bytes()

    def _read_own(self, name: str) -> bytes:
        """The content of a file that every run has, but no folder of several runs."""
        self._refuse_several()
        try:
            return self.read(name)
        except FileNotFoundError:
            raise UserError(
                f"{self.path}: is not a run, because it has no {name}; name the folder of a run"
            ) from None

    def _refuse_several(self) -> None:
        """Refuse to read from a folder of several runs what only each of them has."""
        if self.is_several:
            inside = sorted(file.parent for file in self.path.glob("*/recipe.toml"))
            example = f", as in {inside[0]}" if inside else ""
            raise UserError(
                f"{self.path}: is a folder of fine-tuning runs; name one of them{example}"
            )

    def losses(self, kind: str = "step") -> dict[str, list[tuple[int, float]]]:
        """Each objective's loss by step: in training ("step"), or on held-out text ("held_out").

        An adaptation also has those of its general text ("general").
        """
        return losses(self._entries(kind))

    def curves(self, kind: str = "step") -> dict[str, list[tuple[int, float]]]:
        """All numbers by step, under dotted names: losses, accuracies, learning rate, seconds, …"""
        curves: dict[str, list[tuple[int, float]]] = {}
        for entry in self._entries(kind):
            for name, number in flat(entry):
                if name != "step" and isinstance(number, int | float):
                    curves.setdefault(name, []).append((entry["step"], number))
        return curves

    def _entries(self, kind: str) -> list[Entry]:
        """The entries of a kind; raises `UserError` for an unknown kind."""
        self._refuse_several()
        entries = self.events()
        kinds = dict.fromkeys(["step", "held_out", "general", *(e["kind"] for e in entries)])
        if kind not in kinds:
            raise UserError(f"{self.path}: has no record called {kind}; {remedy(kind, kinds)}")
        return [e for e in entries if e["kind"] == kind]

    # What can be done with a run are the public functions, called with it.

    def resume(self, **options: Any) -> Run:
        """Resume the run: `clozelab.resume`."""
        return clozelab.resume(self, **options)

    def load(self, **options: Any) -> Any:
        """Open its model: `clozelab.load`."""
        return clozelab.load(self, **options)

    def finetune(self, task: str, **options: Any) -> Run:
        """Fine-tune its model on a task: `clozelab.finetune`."""
        return clozelab.finetune(self, task, **options)

    def predict(self, text: Any, **options: Any) -> list[Any]:
        """Predict with its fine-tuned model for texts: `clozelab.predict`.

        Of two texts a model of pairs makes one prediction; `load().predict` takes a list of pairs.
        """
        return clozelab.predict(self, text=text, **options)

    def evaluate(self, task: str | None = None, **options: Any) -> dict[str, dict[str, float]]:
        """Measure its model: `clozelab.evaluate`."""
        return clozelab.evaluate(self, task, **options)

    def export(self, out: Any, **options: Any) -> Path | str:
        """Write its model for other libraries: `clozelab.export`."""
        return clozelab.export(self, out, **options)

    def _repr_html_(self) -> str:
        """The run in a notebook: how far it is, and its last losses."""
        result = self.result() or {}
        rows = [("run", str(self.path)), ("done", "yes" if result else "not yet")]
        if self.is_several:
            rows += [("best run", str(result["best"]))] if "best" in result else []
            for cell in result.get("cells", []):
                where = f", {cell['name']}" if cell["name"] else ""
                for metric, score in cell["scores"].items():
                    rows.append((f"{metric}{where}", f"{score['mean']:.2f}"))
        else:
            for kind, name in (("step", "training"), ("held_out", "held out")):
                for objective, points in losses(kept(self._entries(kind), result)).items():
                    step, loss = points[-1]
                    rows.append((f"{objective}, {name}", f"{loss:.4f} at step {step:,}"))
        cells = (f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
        return f"<table>{''.join(cells)}</table>"

    def _lines(self) -> Iterator[Entry]:
        """Yield the entries of all complete lines; a crash can leave a partial one."""
        try:
            content = self.read(_METRICS)
        except FileNotFoundError:
            return
        for line in content.split(b"\n"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "kind" in entry:
                yield entry


def losses(entries: Iterable[Entry]) -> dict[str, list[tuple[int, float]]]:
    """Each objective's loss by step, of entries of one kind."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        for name, means in entry.items():
            if isinstance(means, dict) and means.get("loss") is not None:
                curves.setdefault(name, []).append((entry["step"], means["loss"]))
    return curves


def kept(entries: Sequence[Entry], result: Mapping[str, Any]) -> list[Entry]:
    """The entries up to the weights that a run ends with.

    These are an earlier step's where an adaptation found no lower loss later.
    """
    best = result.get("best_step")
    return [entry for entry in entries if best is None or entry["step"] <= best]


def machine_facts() -> dict[str, Any]:
    """The facts about this machine that are known without torch."""
    facts: dict[str, Any] = {
        "clozelab": clozelab.__version__,
        "commit": _commit(Path(__file__)),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def is_run(folder: Path) -> bool:
    """Whether a folder is a run, or one of fine-tunings."""
    return (folder / PLAN).is_file() or (folder / "recipe.toml").is_file()


def runs_in(folder: Path) -> list[Path]:
    """The runs and fine-tunings right below a folder, without studies."""
    inside = (path for path in sorted(folder.glob("*")) if not (path / STUDY).is_file())
    return [path for path in inside if is_run(path)]


def seed_of(folder: Path) -> int | None:
    """The seed of a folder seed-N; None for another, also for a copy such as seed-0-old."""
    name = re.fullmatch(r"seed-(-?\d+)", folder.name)
    return None if name is None else int(name[1])


def runs_by_seed(folder: Path) -> dict[int, Run]:
    """The runs in the folders seed-N of a folder, in the order of their seeds."""
    places = sorted(folder.glob("seed-*"))
    runs = {seed: Run(place) for place in places if (seed := seed_of(place)) is not None}
    return {seed: runs[seed] for seed in sorted(runs)}


def json_or_empty(file: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing or damaged."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _commit(file: Path) -> str | None:
    """The git commit of the checkout that has this file, marked if there are local changes.

    CLOZELAB_COMMIT names it for a copy without its history.
    """
    if commit := os.environ.get("CLOZELAB_COMMIT"):
        return commit
    git = ("git", "-C", str(file.parent))
    tracked = (*git, "ls-files", "--error-unmatch", file.name)
    described = (*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        for command in (tracked, described):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _finite(value: Any) -> Any:
    """The value with None in place of NaN and infinities, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
