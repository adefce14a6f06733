"""Studies in a terminal: those there are, one's plan, and what its cells came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clozelab.api.studies import Study
from clozelab.cli.views import Values, or_dash, table
from clozelab.nearest import counted
from clozelab.studies import spec as specs
from clozelab.studies.power import LOW, ClaimPower, claim_powers
from clozelab.studies.records import parts_line, read
from clozelab.studies.scores import decimals
from clozelab.studies.spec import StudySpec

if TYPE_CHECKING:
    from clozelab.studies.plan import StudyPlan


def study(result: Any, values: Values) -> Iterator[RenderableType]:
    """The studies there are, or what one compares; what it came to was printed when it was done."""
    if isinstance(result, list):
        lines = table("study", "title", "paper", right=("variants",))
        for spec in map(specs.read, result):
            paper = f"{spec.paper.name}, {spec.paper.source}" if spec.paper else "–"
            lines.add_row(spec.name, spec.title, paper, str(len(spec.variants)))
        yield lines
    elif isinstance(result, StudySpec):
        yield from _described(result)


def event(event: Any, values: Values) -> Iterator[RenderableType]:
    """The plan before the first cell, the scores and the verdicts after the last."""
    from clozelab.studies.plan import StudyPlan  # needs torch; a study is described without

    if isinstance(event, StudyPlan):
        plan = event.as_json()
        yield from _planned(event.request.study, plan)
        yield from _too_short(event, plan)
    elif isinstance(event, Study) and event.result()["cells"]:
        yield scores(specs.read(event.path / "study.toml"), event.result()["cells"])
        yield from _verdicts(event)


def _verdicts(study: Study) -> Iterator[RenderableType]:
    """A sentence for each claim."""
    from clozelab.reporting.study.claims import sentence
    from clozelab.studies.verdicts import judge

    record = read(study.path)
    for judgement in judge(record):
        yield Text(f"“{judgement.claim.judged}” {sentence(judgement, record)}")


def _described(spec: StudySpec) -> Iterator[RenderableType]:
    """What a study compares, before it is known on which text."""
    lines = table("variant", "what it is", "what it changes")
    for variant in spec.variants:
        words = [f"recipe {variant.recipe}"] if variant.recipe else []
        words += [f"teacher {variant.teacher}"] if variant.teacher else []
        lines.add_row(variant.name, variant.says, ", ".join([*words, *variant.set]) or "nothing")
    yield from _compared(spec, lines, len(spec.variants) * spec.seeds)
    yield from _powers(spec, {})
    yield Text("give --data CORPUS and --budget to see how long each variant would train")


def _planned(spec: StudySpec, plan: Values) -> Iterator[RenderableType]:
    """What each variant's cells do, and how long all of it should take."""
    lines = table("variant", "what it is", right=("steps", "tokens", "minutes a cell"))
    seconds = {cell["variant"]: cell["predicted_seconds"] for cell in plan["cells"]}
    for variant in spec.variants:
        name = variant.name
        if name in plan["cannot"]:
            lines.add_row(name, f"cannot be run: {plan['cannot'][name]}", "–", "–", "–")
            continue
        steps = plan["steps"][name]
        tokens = f"{steps * plan['paces'][name]['tokens_a_step'] / 1e6:,.2f} M"
        lines.add_row(name, variant.says, f"{steps:,}", tokens, _minutes(seconds[name]))
    yield from _compared(spec, lines, len(plan["cells"]))
    yield Text(f"every cell gets equal {plan['equal']}")
    if plan.get("parts"):
        yield Text(parts_line(plan["parts"]))
    times = [cell["predicted_seconds"] for cell in plan["cells"]]
    if None not in times:
        yield Text(f"about {_minutes(sum(times))} minutes on the device")
    yield from _powers(spec, plan)


def _too_short(planned: StudyPlan, plan: Values) -> Iterator[RenderableType]:
    """A warning where runs end sooner than any recorded one had left the unigram plateau."""
    from clozelab.diagnosis.recorded import alike

    short: dict[str, float] = {}  # by variant, the tokens that would be needed
    for name, pace in plan["paces"].items():
        encoder: Any = planned.request.recipe(name).encoder
        left = [run.left_after for run in alike((encoder.layers, encoder.hidden_size))]
        needed = min(filter(None, left), default=0)
        if plan["steps"].get(name, needed) * pace["tokens_a_step"] < needed:
            short[name] = needed
    if short:
        yield Text(
            f"{len(short)} of {len(plan['paces'])} variants end before any recorded run of"
            f" their size had left the unigram plateau ({min(short.values()) / 1e6:.2g} M"
            " tokens); such a run tests no claim",
            style="red",
        )


def _powers(spec: StudySpec, plan: Values) -> Iterator[RenderableType]:
    """What each claim's seeds can decide, with its cells and minutes; what is weak is in red."""
    if not spec.claims:
        return
    effect = "paper's effect" if spec.paper else "stated effect"
    columns = (effect, "power", "at half", "detectable", "cells", "minutes")
    lines = table("claim", right=columns)
    seconds = {cell["variant"]: cell["predicted_seconds"] for cell in plan.get("cells", [])}
    powers = claim_powers(spec, size=plan.get("size"), sizes=plan.get("items"))
    for one in powers:
        sides = [side for side in (one.claim.better, one.claim.than) if side]
        times = [seconds.get(side) for side in sides]
        total = None if None in times else one.seeds * sum(filter(None, times))
        more = ", …" if len(one.claim.on) > 1 else ""
        lines.add_row(
            f"{one.claim.better} against {one.claim.against} on {one.claim.on[0]}{more}",
            or_dash(one.effect, f"{{:+.3g}} {one.unit}"),
            _power(one.at_effect),
            _power(one.at_half),
            or_dash(one.detectable and max(one.detectable, 0.0), f"{{:.2g}} {one.unit}"),
            str(one.seeds * len(sides)),
            _minutes(total),
        )
    yield from (Text(), lines)
    yield Text(
        f"power: the probability of confirming the claim at the {effect}, and at half"
        " of it; detectable: the effect with a power of 80 %"
    )
    single = sum(one.seeds < 2 for one in powers)
    opposite = [one for one in powers if _contradicts(one)]
    weak = sum(
        one.at_effect is not None and one.at_effect < LOW for one in powers if one not in opposite
    )
    warnings = {
        f"{single} of {len(powers)} claims will stay undecided, because one seed cannot separate"
        " an effect from chance; use more --seeds": single,
        f"{len(opposite)} of {len(powers)} effects contradict their claims; an effect is positive"
        " where `better` is better, on losses, too": len(opposite),
        f"{weak} of {len(powers)} claims would probably stay undecided; use more --seeds, or"
        " measures with less noise": weak,
    }
    yield from (Text(words, style="red") for words, count in warnings.items() if count)
    if unknown := dict.fromkeys(name for one in powers for name in one.unknown):
        yield Text(f"no noise is recorded for {', '.join(unknown)}; set it as base.noise")


def _contradicts(one: ClaimPower) -> bool:
    """Whether a claim that one variant is better states an effect by which it is worse."""
    claim = one.claim
    return claim.kind == "better" and one.effect is not None and one.effect + claim.margin < 0


def _power(power: float | None) -> Text:
    weak = power is not None and power < LOW
    return Text(or_dash(None if power is None else 100 * power, "{:.0f} %"), "red" if weak else "")


def scores(spec: StudySpec, cells: Sequence[Values]) -> Table:
    """The mean of every score over the seeds of each variant, as far as they are done."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["scores"]))
    lines = table("variant", right=(*names, "seeds"))
    for variant in spec.variants:
        own = [cell["scores"] for cell in cells if cell["variant"] == variant.name]
        values = [[each[n] for each in own if each.get(n) is not None] for n in names]
        means = [
            or_dash(fmean(numbers) if numbers else None, f"{{:.{decimals(name)}f}}")
            for name, numbers in zip(names, values, strict=True)
        ]
        seeds = max(map(len, values), default=len(own))
        lines.add_row(variant.name, *means, str(seeds))
    return lines


def _compared(spec: StudySpec, variants: Table, cells: int) -> Iterator[RenderableType]:
    yield from (Text(spec.title, style="bold"), Text(spec.question), Text(), variants, Text())
    sizes = f"{counted(len(spec.variants), 'variant')} × {counted(spec.seeds, 'seed')}"
    tuned = f"each fine-tuned on {', '.join(spec.tasks)}" if spec.tasks else "without fine-tuning"
    yield Text(f"{counted(cells, 'cell')}: {sizes}, {tuned}")


def _minutes(seconds: float | None) -> str:
    return or_dash(None if seconds is None else seconds / 60, "{:,.1f}")
