"""Minimal pairs: of two texts that differ in little, which is likelier (BLiMP, arXiv:1912.00582).

A tie counts as half: a model to which all texts are equally likely has an accuracy of 50.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clozelab.contracts import Counts, Ints, Pieces
from clozelab.errors import UserError
from clozelab.files import sha256
from clozelab.finetuning.files.columns import Columns, ReadOptions, text_of
from clozelab.finetuning.files.named import File, Named
from clozelab.keys import mix
from clozelab.keys import root as root_key
from clozelab.scoring.sets import find, groups

if TYPE_CHECKING:
    from clozelab.scoring.likelihood import Likelihoods, Nats, Precision, TextScorer

_COLUMNS = {  # the names that columns usually have
    "good": ("good", "sentence_good"),
    "bad": ("bad", "sentence_bad"),
    "paradigm": ("paradigm", "UID"),
    "phenomenon": ("phenomenon", "linguistics_term"),
}
_TITLES = {
    "blimp": "BLiMP: grammatical and ungrammatical sentences of English",
    "zhoblimp": "ZhoBLiMP: the same of Chinese",
    "crows_pairs": "CrowS-Pairs: sentences with and without a stereotype",
}
_CROWS = {"good": "sent_more", "bad": "sent_less", "paradigm": "bias_type"}
_FILES = {  # as one file, or as the published folder of one for each paradigm
    "blimp": (File("blimp.jsonl"), File("data")),
    "zhoblimp": (File("zhoblimp.jsonl"), File("data")),
    "crows_pairs": (File("crows_pairs_anonymized.csv", _CROWS),),
}
NAMED_PAIRS = {
    name: Named(name, title, "classify", (name, name.replace("blimp", "BLiMP")), {"test": files})
    for (name, title), files in zip(_TITLES.items(), _FILES.values(), strict=True)
}
SHARED = {"crows_pairs"}  # scored by the tokens that both texts have (arXiv:2010.00133 §4)
_PHENOMENA = {"s-selection": "argument_structure"}  # grouped as in the paper


class MinimalPair(NamedTuple):
    """Two texts, of which the good one should be likelier."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    place: str  # where it was read


class PairFiles(NamedTuple):
    """Minimal pairs by name or by file, found and not yet read."""

    name: str
    files: tuple[Path, ...]
    columns: Mapping[str, str]

    @property
    def shared(self) -> bool:
        """Whether only tokens that both texts have are counted."""
        return self.name in SHARED

    def digests(self) -> dict[str, str]:
        """The sha256 of every file."""
        return {str(file.resolve()): sha256(file) for file in self.files}

    def read(self, most: int = 0) -> list[MinimalPair]:
        """All pairs, or a sample of `most` that depends only on their number."""
        pairs = [pair for file in self.files for pair in _read_pairs(file, self.columns)]
        if most:
            order = np.argsort(mix(root_key(0, "pairs"), np.arange(len(pairs))), kind="stable")
            pairs = [pairs[number] for number in np.sort(order[:most])]
        return pairs

    def tokens(self, text_scorer: TextScorer, most: int = 0) -> PairTokens:
        """The tokenised pairs."""
        from clozelab.scoring.likelihood import read

        pairs = self.read(most)
        numbers: dict[str, int] = {}
        places: list[str] = []
        for pair in pairs:
            for text in (pair.good, pair.bad):
                if numbers.setdefault(text, len(numbers)) == len(places):
                    places.append(pair.place)
        pieces = read(text_scorer, list(numbers), places=places.__getitem__)
        texts = np.array([[numbers[pair.good], numbers[pair.bad]] for pair in pairs]).T
        return PairTokens(tuple(pairs), texts, pieces)

    def follow(
        self,
        text_scorer: TextScorer,
        *,
        most: int = 0,
        tokens: PairTokens | None = None,
        device: str | None = None,
        precision: Precision | None = None,
    ) -> Generator[tuple[int, int], None, PairScores]:
        """Score the pairs, each distinct text once, yielding tokens done and tokens in all."""
        from clozelab.scoring.likelihood import follow

        pairs, texts, pieces = tokens or self.tokens(text_scorer, most)
        likelihoods = yield from follow(text_scorer, pieces, device=device, precision=precision)
        sums = likelihoods.sums[texts]
        if self.shared:
            sums = np.array([_shared_nats(likelihoods, *both) for both in texts.T.tolist()]).T
        return PairScores(self.name, likelihoods.method, pairs, sums[0], sums[1])


class PairTokens(NamedTuple):
    """Minimal pairs as a model reads them."""

    pairs: tuple[MinimalPair, ...]
    texts: Ints  # [2, P] the number of each good and of each bad text
    pieces: Pieces  # of every distinct text


class Accuracy(NamedTuple):
    """How often the good text was likelier, in per cent, with the standard error over items."""

    accuracy: float
    standard_error: float | None  # None for a single item
    items: int
    ties: int


@dataclass(frozen=True, repr=False)
class PairScores:
    """The scores of a model on minimal pairs."""

    name: str
    method: str
    pairs: tuple[MinimalPair, ...]
    good: Nats  # [P] log-likelihoods
    bad: Nats

    def __repr__(self) -> str:
        whole = self.all
        return f"PairScores({self.name!r}, {whole.accuracy:.2f} % of {whole.items:,} pairs right)"

    @cached_property
    def outcomes(self) -> Nats:
        """[P] 1 where the good text is likelier, half for a tie, else 0."""
        return np.where(self.good == self.bad, 0.5, self.good > self.bad)

    @property
    def all(self) -> Accuracy:
        """Over all pairs."""
        return self._accuracy(np.arange(len(self.pairs)))

    @cached_property
    def paradigms(self) -> dict[str, Accuracy]:
        """Of each paradigm, in the order of the files."""
        return self._by_group([pair.paradigm for pair in self.pairs])

    @cached_property
    def phenomena(self) -> dict[str, Accuracy]:
        """Of each phenomenon, over its pairs."""
        return self._by_group([pair.phenomenon for pair in self.pairs])

    @property
    def over_paradigms(self) -> tuple[float, float | None]:
        """The mean of the paradigms' accuracies, and its standard error over paradigms."""
        values = np.array([paradigm.accuracy for paradigm in self.paradigms.values()])
        return float(values.mean()), _standard_error(values)

    def as_json(self) -> dict[str, Any]:
        """The JSON values of a record."""
        mean, error = self.over_paradigms
        return {
            "pairs": self.name,
            "method": self.method,
            "tokens": "shared" if self.name in SHARED else "all",
            "all": self.all._asdict(),
            "over_paradigms": {
                "accuracy": mean,
                "standard_error": error,
                "items": len(self.paradigms),
            },
            "phenomena": {name: accuracy._asdict() for name, accuracy in self.phenomena.items()},
            "paradigms": {name: accuracy._asdict() for name, accuracy in self.paradigms.items()},
        }

    def items(self) -> Iterator[str]:
        """A line of JSON for each pair, with both log-likelihoods."""
        for pair, good, bad in zip(self.pairs, self.good, self.bad, strict=True):
            paradigm = {"paradigm": pair.paradigm, "phenomenon": pair.phenomenon}
            line = {**paradigm, "place": pair.place, "good": float(good), "bad": float(bad)}
            yield json.dumps(line, ensure_ascii=False)

    def _by_group(self, names: Sequence[str]) -> dict[str, Accuracy]:
        return {name: self._accuracy(items) for name, items in groups(names).items() if name}

    def _accuracy(self, numbers: Ints) -> Accuracy:
        outcomes = 100 * self.outcomes[numbers]
        error = _standard_error(outcomes)
        ties = int((outcomes == 50).sum())
        return Accuracy(float(outcomes.mean()), error, len(outcomes), ties)


def find_pairs(word: str, *, root: str | None = None, columns: Mapping[str, str]) -> PairFiles:
    """Pairs by the name of a set in the folder of tasks, or by file."""
    name, path, columns = find(word, NAMED_PAIRS, option="--pairs", root=root, columns=columns)
    return PairFiles(name, _pair_files(path), columns)


def _shared_nats(likelihoods: Likelihoods, first: int, second: int) -> tuple[float, float]:
    """The log-likelihoods of two texts over the tokens that they share."""
    good, bad = (likelihoods.pieces.text(number) for number in (first, second))
    ids = likelihoods.pieces.columns["ids"]
    matcher = SequenceMatcher(None, ids[good].tolist(), ids[bad].tolist(), autojunk=False)
    good_nats, bad_nats = (np.nan_to_num(likelihoods.nats[text]) for text in (good, bad))
    blocks = matcher.get_matching_blocks()
    return (
        float(sum(good_nats[block.a : block.a + block.size].sum() for block in blocks)),
        float(sum(bad_nats[block.b : block.b + block.size].sum() for block in blocks)),
    )


def _read_pairs(file: Path, named: Mapping[str, str]) -> Iterator[MinimalPair]:
    columns = Columns(file, ReadOptions(columns=named), Counts(), roles=tuple(_COLUMNS))
    good, bad = (columns.find(role, _COLUMNS[role]) for role in ("good", "bad"))
    paradigm, phenomenon = (columns.sought(role, _COLUMNS[role]) for role in list(_COLUMNS)[2:])

    def named_by(column: str | None, row: Any) -> str:
        return "" if column is None else text_of(row, column)

    for row in columns.rows:
        term = named_by(phenomenon, row)
        yield MinimalPair(
            text_of(row, good),
            text_of(row, bad),
            named_by(paradigm, row) or file.name.partition(".")[0],
            _PHENOMENA.get(term, term),
            row.place,
        )


def _pair_files(path: Path) -> tuple[Path, ...]:
    """The file itself, or the JSON lines files of a folder."""
    if not path.is_dir():
        return (path,)
    files = tuple(sorted(file for file in path.iterdir() if ".jsonl" in file.suffixes))
    if not files:
        raise UserError(f"{path}: contains no JSON lines file; name a file")
    return files


def _standard_error(values: Nats) -> float | None:
    """The standard error of the mean; None for a single value."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
