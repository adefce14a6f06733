"""A/A: how far a recipe differs from itself with other seeds, for the pictures of claims."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from clozelab.statistics import Estimate
from clozelab.studies.records import StudyRecord
from clozelab.studies.scores import label
from clozelab.studies.verdicts import repeats

_NAME = "the same recipe again (A/A)"


class Difference(NamedTuple):
    """The difference on a measure that chance alone makes, with its interval."""

    study: str
    says: str
    unit: str
    estimate: Estimate


def differences(records: Iterable[StudyRecord], measures: Collection[str]) -> list[Difference]:
    """The differences of all recorded A/A pairs on those of the measures that they have."""
    return [
        Difference(
            record.folder.name, f"{_NAME}, {label(measure)}", finding.unit, finding.advantage
        )
        for record in records
        for pair in repeats(record)
        for measure, finding in zip(pair.claim.on, pair.measures, strict=True)
        if measure in measures and finding.advantage is not None
    ]
