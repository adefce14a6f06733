"""The curves of runs: losses, probes, learning rate, gradient norm and throughput."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from clozelab.config.recipe import Recipe
from clozelab.reporting.charts import Chart
from clozelab.reporting.figures import Line
from clozelab.runs.record import RunRecord

NUMBERS = {  # by their key in a log: title, vertical axis, whether it is noisy
    "learning_rate": ("learning rate", "learning rate", False),
    "norm": ("gradient norm before clipping", "norm", True),
    "tokens_a_second": ("throughput", "tokens per second", True),
}


def charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """All curves of some runs."""
    all_charts = (*_loss_curves(runs), *_probe_curves(runs), *_number_curves(runs))
    return [chart for chart in all_charts if any(line.points for line in chart.lines)]


def _loss_curves(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    """Yield each objective's loss: on held-out text and, faintly, in training.

    Runs with different tokenizers or text cannot be compared, and have separate figures.
    """
    colours = {run.name: colour for colour, run in enumerate(runs)}
    for name in dict.fromkeys(name for run in runs for name in _trained_objectives(run)):
        groups = comparable([run for run in runs if name in _trained_objectives(run)])
        for title, group in zip(group_titles(groups), groups, strict=True):
            held_out = any(name in run.held_out for run in group)
            lines = [
                line
                for run in group
                for line in _loss_lines(run, name, colours[run.name], held_out)
            ]
            where = "on held-out text" if held_out else "in training"
            faint = "faint: in training" if any(line.faint for line in lines) else ""
            heading = f"{words(name)}: loss {where}, in nats"
            note = "; ".join(filter(None, (title, faint)))
            yield Chart(heading, lines, "tokens seen", "loss", base="tokens", note=note)


def _loss_lines(run: RunRecord, name: str, colour: int, held_out: bool) -> Iterator[Line]:
    if name in run.held_out:
        yield Line(run.name, run.held_out[name], colour, clock=run.clock)
    if name in run.train:
        only_training = name not in run.held_out
        title = f"{run.name} (in training)" if held_out and only_training else run.name
        points = run.train[name]
        yield Line(title, points, colour, faint=not only_training, clock=run.clock, noisy=True)


def _trained_objectives(run: RunRecord) -> list[str]:
    """The objectives whose heads are trained, and whose loss is thus meaningful."""
    names = dict.fromkeys((*run.held_out, *run.train))
    return [name for name in names if name not in run.untrained]


def comparable(runs: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """The runs grouped by tokenizer and held-out text, so that losses in a group compare."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(run.comparison_key, []).append(run)
    return list(groups.values())


def group_titles(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """A title for each group: its tokenizer, its text if needed; empty if there is one group."""
    if len(groups) < 2:
        return [""] * len(groups)
    runs = [group[0] for group in groups]
    if all(run.tokenizer_known for run in runs):
        titles = [tokenizer_text(run.recipe) for run in runs]
    else:
        titles = [f"vocabulary of {run.recipe.tokenizer.vocabulary:,}" for run in runs]
    texts = (f"text {Path(run.text).name}" if run.text else "" for run in runs)
    pairs = zip(titles, texts, strict=True)
    titles = told_apart(titles, [", ".join(filter(None, pair)) for pair in pairs])
    return told_apart(titles, [f"{title} ({n})" for n, title in enumerate(titles, start=1)])


def _number_curves(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    """Learning rate, gradient norm and throughput."""
    for name, (title, up, noisy) in NUMBERS.items():
        lines = [
            Line(run.name, run.numbers[name], colour, clock=run.clock, noisy=noisy)
            for colour, run in enumerate(runs)
            if run.numbers.get(name)
        ]
        yield Chart(title, lines, "tokens seen", up, whole=name == "learning_rate", base="tokens")


def _probe_curves(runs: Sequence[RunRecord]) -> Iterator[Chart]:
    """The scores of each run's probes during its training."""
    for name in dict.fromkeys(name for run in runs for name in run.probes):
        lines = [
            Line(run.name, run.probes[name], colour, clock=run.clock)
            for colour, run in enumerate(runs)
            if name in run.probes
        ]
        title = f"probe of {words(name)}, of 100"
        chances = {run.chance[name] for run in runs if name in run.chance}
        marks = {"a constant answer": chances.pop()} if len(chances) == 1 else {}
        yield Chart(title, lines, "tokens seen", "score", True, "tokens", marks)


def words(name: str) -> str:
    """A name from the records, with spaces."""
    return name.replace("_", " ")


def tokenizer_text(recipe: Recipe) -> str:
    """The tokenizer by its kind, case and size."""
    table = recipe.tables()["tokenizer"]
    case = "" if table["cased"] else ", uncased"
    return f"{table['use']}{case}, {table['vocabulary']:,}"


def told_apart(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """The names, in their longer form if two are equal."""
    pairs = zip(names, longer, strict=True)
    return [name if names.count(name) == 1 else more for name, more in pairs]
