"""The power and the minimum detectable effect of each claim, before a study is run.

The noise of a measure over seeds is taken from recorded results (noise.toml, written by
tools/judge_results.py), unless the study states its own. The power is that of a verdict after
correction for all claims, computed as if no other claim were true: a lower bound.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

from clozelab.config.sizes import shape_name
from clozelab.statistics import LEVEL, POWER, detectable, power, power_within, t_interval
from clozelab.studies.scores import is_loss, sampling_variance, unit
from clozelab.studies.spec import Claim, StudySpec

LOW = 0.5  # power below which a plan warns
_FREEDOM = 1.5  # degrees of freedom per seed, by simulation: only some studies pool noise
_MASKED_PER_BLOCK = 18.0  # masked tokens of a block of 128: 15 % of the ordinary ones
_USUAL = 60.0  # points, at which sampling errors are computed; 50 to 70 give much the same


@dataclass(frozen=True)
class ClaimPower:
    """The power of a claim's seeds."""

    claim: Claim
    unit: str
    seeds: int
    effect: float | None  # the paper's advantage
    at_effect: float | None = None  # the power there
    at_half: float | None = None  # and at half of it
    detectable: float | None = None  # with a power of 80 %; None: no noise is known
    unknown: tuple[str, ...] = ()  # measures whose noise is not known

    def as_json(self) -> dict[str, float | str | None]:
        """The entry of plan.json, written before anything is run."""
        numbers = {"effect": self.effect, "power": self.at_effect, "at_half": self.at_half}
        return {"seeds": self.seeds, **numbers, "detectable": self.detectable, "unit": self.unit}


@cache
def recorded() -> dict[str, Any]:
    """The recorded standard deviations over seeds by measure, and numbers of items by task."""
    text = (resources.files("clozelab") / "studies" / "noise.toml").read_text("utf-8")
    return tomllib.loads(text)


def known_noise(study: StudySpec, size: str | None = None) -> dict[str, float]:
    """The noise of a study's measures: stated, recorded at its size, or recorded at 4 × 256.

    Under all masks it is that of one loss. (Masks are named after the variants of a study, so that
    another study has other ones.)
    """
    noise = {**recorded()["noise"], **recorded()["noise_at"].get(shape_name(size), {})}
    under = {name: noise["held_out.masked_lm"] for name in study.measures if "under." in name}
    return {**noise, **under, **study.noise}


def known_sizes(study: StudySpec) -> dict[str, float]:
    """The estimated number of items of a study's measures, without reading its data."""
    hidden = study.blocks * _MASKED_PER_BLOCK
    losses = {"held_out": hidden, "under": hidden, "pair": 2 * study.blocks}
    items = recorded()["items"]
    probes = {f"{kind}.{task}": size for task, size in items.items() for kind in ("probe", "cls")}
    return {**losses, **items, **probes}


def claim_powers(
    study: StudySpec,
    *,
    size: str | None = None,
    noise: Mapping[str, float] | None = None,
    sizes: Mapping[str, float] | None = None,
) -> list[ClaimPower]:
    """The power of every claim; of several units, that of the harder one."""
    noise = known_noise(study, size) if noise is None else noise
    sizes = {**known_sizes(study), **(sizes or {})}
    return [_claim_power(study, claim, noise, sizes) for claim in study.claims]


def _claim_power(
    study: StudySpec, claim: Claim, noise: Mapping[str, float], sizes: Mapping[str, float]
) -> ClaimPower:
    units = dict.fromkeys(unit(name) for name in claim.on)
    powers = []
    for kind in units:
        on = [name for name in claim.on if unit(name) == kind]
        effect = paper_effect(study, claim, on)
        unknown = tuple(name for name in on if name not in noise)
        seeds = claim.seeds or study.seeds
        if unknown or seeds < 2:
            powers.append(ClaimPower(claim, kind, seeds, effect, unknown=unknown))
            continue
        error, freedom = _error(study, claim, on, noise, sizes)
        full, half = (
            None if effect is None else _power_at(study, claim, effect * share, error, freedom)
            for share in (1.0, 0.5)
        )
        alpha = _alpha(study, claim)
        if claim.kind == "equal":
            least = _least_delta(error, freedom, alpha)
        else:
            least = detectable(error, freedom, alpha=alpha) - claim.margin
        powers.append(ClaimPower(claim, kind, seeds, effect, full, half, least))
    return min(powers, key=lambda one: (one.detectable is not None, one.at_effect or 0.0))


def paper_effect(study: StudySpec, claim: Claim, on: Sequence[str]) -> float | None:
    """The paper's advantage: as the claim states it, or from the numbers of its variants."""
    if claim.effect is not None:
        return claim.effect
    better = study.variant(claim.better).paper
    than = study.variant(claim.than).paper if claim.than else {}
    gaps = [
        (-1 if is_loss(name) else 1)
        * (better[name] - (than[name] * claim.ratio if claim.than else claim.level or 0.0))
        for name in on
        if name in better and (name in than or not claim.than)
    ]
    if not gaps:  # a claim of equality predicts no difference
        return 0.0 if claim.margin or claim.kind == "equal" else None
    return fmean(gaps)


def _error(
    study: StudySpec,
    claim: Claim,
    on: Sequence[str],
    noise: Mapping[str, float],
    sizes: Mapping[str, float],
) -> tuple[float, float]:
    """The standard error of the advantage on a mean of measures, and its degrees of freedom."""
    seeds, sides = claim.seeds or study.seeds, 1 + claim.ratio**2 if claim.than else 1.0
    sizes = {**sizes, "run": seeds}  # a share of runs has so many items
    seed = sides * sum(noise[name] ** 2 for name in on) / len(on) ** 2 / seeds
    compared = bool(claim.than)
    samples = [sampling_variance(name, _USUAL, sizes, compared=compared) for name in on]
    items = sides * sum(samples) / len(on) ** 2
    freedom = _FREEDOM * (seeds - 1)
    if seed:
        freedom *= (seed + items) / seed  # as in statistics.py
    return math.sqrt(seed + items), min(freedom, 1e6)


def _alpha(study: StudySpec, claim: Claim) -> float:
    """The level of a claim's test, if no other claim of its family holds."""
    family = [one for one in study.claims if one.exploratory == claim.exploratory]
    if claim.kind == "equal":
        family = [one for one in family if one.delta is not None]
    return (1 - LEVEL) / len(family)


def _least_delta(error: float, freedom: float, alpha: float) -> float:
    """The delta within which equality is shown with a power of 80 %."""
    from scipy import optimize

    # By the formula for a known error the power is between 70 and 85 %.
    near = t_interval(1 - 2 * alpha, freedom) + t_interval(POWER, freedom)

    def lacking(delta: float) -> float:
        return power_within(0.0, delta, 1.0, freedom, alpha=alpha) - POWER

    root: Any = optimize.brentq
    return error * float(root(lacking, near / 2, 2 * near))


def _power_at(study: StudySpec, claim: Claim, effect: float, error: float, freedom: float) -> float:
    alpha = _alpha(study, claim)
    if claim.kind == "equal":
        assert claim.delta is not None
        return power_within(effect, claim.delta, error, freedom, alpha=alpha)
    return power(effect + claim.margin, error, freedom, alpha=alpha)
