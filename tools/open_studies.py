"""Write the tables of the studies without a record: what they could decide here, and the minutes.

    python tools/open_studies.py

results/without_record.toml says how each would be run. The second table has the fine-tuning of
studies that are recorded without it. The power is that of `clozelab study NAME --plan`. The minutes
of a GPU that nobody has timed come from recorded speeds.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from marks import replaced

from clozelab.config import recipe as recipes
from clozelab.files import write_text
from clozelab.studies import spec
from clozelab.studies.power import LOW, ClaimPower, claim_powers
from clozelab.studies.request import StudyRequest
from clozelab.studies.spec import Claim, StudySpec

ROOT = Path(__file__).resolve().parents[1]
PAGE, ENTRIES = ROOT / "results/README.md", ROOT / "results/without_record.toml"
SPEEDS = ROOT / "benchmarks/results/gpu.json"
ABSENT = {"cmrc2018", "conll2003", "qnli", "squad2"}  # tasks whose training data is not at hand
ITEMS = {"race": 4887, "wnut17": 1009}  # of dev sets that noise.toml does not list
MANY = 10_000  # seeds, so many that only the evaluation sets limit the power
LENGTH = 128  # of blocks, to compare the operations of encoders
# Of one fine-tuning: 48 at 6 × 512 took 270 s, on four tasks in parallel (calibration-tuned).
TUNING_SECONDS = 270 / 48
SIZES = {"mini": "4 × 256", "6x512": "6 × 512", None: "12 × 512"}
# Measures by kind, in few words; those of fine-tuning are called by their tasks.
WORDS = {
    **{"held_out": "held-out loss", "under": "loss under given masks", "probe": "frozen probes"},
    **{"cls": "probes of [CLS]", "pairs": "BLiMP"},
    **{"run": "share of runs that end or leave the plateau"},
    **{"log": "spikes of loss and gradient", "spread": "deviation over tunings"},
    **{"worst": "worst tuning"},
}


@dataclass(frozen=True)
class Entry:
    """How a study without a record would be run."""

    name: str
    verdict: str
    seeds: int
    size: str | None = None  # None: that of its recipes
    million_tokens: float = 0.0  # of a cell
    seconds: float = 0.0  # of a cell, if all cells have equal time
    variants: Sequence[str] = ()  # only these
    tasks: Sequence[str] | None = None  # only these
    fine_tuned: bool = False  # only its claims about fine-tuned tasks

    def study(self) -> StudySpec:
        """The study with these seeds and variants, and with the tasks whose data is at hand."""
        whole = spec.read(self.name)
        tasks = whole.tasks if self.tasks is None else self.tasks
        study = whole.narrowed(
            tasks=[task for task in tasks if task not in ABSENT],
            variants=self.variants or None,
            seeds=self.seeds,
        )
        if not self.fine_tuned:
            return study
        claims = (claim for claim in study.claims if _fine_tuned(claim, study.tasks))
        return replace(study, claims=tuple(claims))

    def minutes(self, study: StudySpec) -> float:
        """The minutes of all its cells on one H200."""
        request = StudyRequest(study, ("corpus",), size=self.size)
        seconds = 0.0
        for variant in study.variants:
            seconds += len(study.tasks) * study.tunings * TUNING_SECONDS
            if request.shares_pretraining_with(variant.name) is None:
                whole = self.seconds or self._pretraining(request, variant.name)
                seconds += variant.share * whole
        return seconds * study.seeds / 60

    def _pretraining(self, request: StudyRequest, variant: str) -> float:
        """The seconds of a cell: RoBERTa's at its size, times the operations of its encoder."""
        assert self.size is not None
        recipe, usual = request.recipe(variant), recipes.read("roberta", size=self.size)
        flops = [one.encoder.training_flops(LENGTH) for one in (recipe, usual)]
        speed = speeds()["xlnet"] if recipe.name == "xlnet" else flops[1] / flops[0]
        return self.million_tokens * 1e6 / (speeds()[self.size] * speed)


@cache
def speeds() -> dict[str, float]:
    """Recorded tokens a second of RoBERTa by size; and XLNet's as a share of RoBERTa's, at base."""
    rows = json.loads(SPEEDS.read_text(encoding="utf-8"))["rows"]
    known: dict[tuple[str, str, int], float] = {}
    for row in rows:  # of several rows, the first
        place = (row["what"]["recipe"], row["what"]["size"], row["what"]["length"])
        known.setdefault(place, float(row["clozelab"]["tokens_a_second"]))
    share = known["xlnet", "base", 512] / known["roberta", "base", 512]
    small, mini = known["roberta", "small", LENGTH], known["roberta", "mini", LENGTH]
    return {"6x512": small, "mini": mini, "xlnet": share}


def _fine_tuned(claim: Claim, tasks: Sequence[str]) -> bool:
    """Whether a claim is about the scores of fine-tuned tasks."""
    return any(name.partition(".")[0] in tasks for name in claim.on)


def entries(*, fine_tuned: bool = False) -> list[Entry]:
    """The studies without a record, or those that are recorded without fine-tuning."""
    tables = tomllib.loads(ENTRIES.read_text(encoding="utf-8"))
    name = "fine_tuned" if fine_tuned else "studies"
    return [Entry(**table, fine_tuned=fine_tuned) for table in tables[name]]


def table(studies: Sequence[Entry]) -> Iterator[str]:
    """A line for each study."""
    yield (
        "| study | judged by | effects | a cell | seeds | claims with power | with any seeds |"
        " cells | minutes | verdict |"
    )
    yield "|---|---|---|---|--:|--:|--:|--:|--:|---|"
    for entry in studies:
        study = entry.study()
        powers, most = (
            claim_powers(one, size=entry.size, sizes=ITEMS)
            for one in (study, replace(study, seeds=MANY))
        )
        amount = f"{entry.seconds:g} s" if entry.seconds else f"{entry.million_tokens:,g} M"
        cells = (
            entry.name,
            ", ".join(measures(study)),
            "; ".join(effects(powers)),
            f"{SIZES[entry.size]}, {amount}",
            str(study.seeds),
            with_power(powers),
            with_power(most),
            str(len(study.variants) * study.seeds),
            f"{entry.minutes(study):.0f}",
            entry.verdict,
        )
        yield f"| {' | '.join(cells)} |"


def measures(study: StudySpec) -> list[str]:
    """What its claims are judged by: tasks, and measures without fine-tuning."""
    kinds = [name.partition(".")[0] for claim in study.claims for name in claim.on]
    return [*dict.fromkeys(WORDS.get(kind, kind) for kind in kinds)]


def effects(powers: Sequence[ClaimPower]) -> Iterator[str]:
    """The smallest and the largest effect of its claims, by unit."""
    for unit in dict.fromkeys(one.unit for one in powers):
        values = [one.effect for one in powers if one.unit == unit and one.effect is not None]
        if values:
            low, high = min(values), max(values)
            yield f"{low:.3g} to {high:.3g} {unit}" if low < high else f"{low:.3g} {unit}"


def with_power(powers: Sequence[ClaimPower]) -> str:
    """How many claims have a power of half or more, with the lowest and the highest."""
    known = [one.at_effect for one in powers if one.at_effect is not None]
    if not known:
        return f"0 of {len(powers)}"
    low, high = (f"{100 * power:.0f}" for power in (min(known), max(known)))
    span = low if low == high else f"{low} to {high}"
    return f"{sum(power >= LOW for power in known)} of {len(powers)} ({span} %)"


def page(text: str) -> str:
    """The page with the tables."""
    text = replaced(text, "studies without a record", "\n".join(table(entries())))
    return replaced(text, "without fine-tuning", "\n".join(table(entries(fine_tuned=True))))


def main() -> None:
    """Write the tables into the page."""
    write_text(PAGE, page(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
