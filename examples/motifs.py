"""Make sequences of DNA with a structure to find: pairs of motifs at a distance.

Every family has its own pairs of motifs, a motif being four letters. A sequence has some pairs of
its family; between the two motifs of a pair stand three others, everything else is random. Which
family a sequence is of can be told only by who knows which motifs go together.

    python examples/motifs.py --out motifs

writes sequences.txt, one a line, and few labelled ones: train.tsv and dev.tsv (classes), and
train.conll and dev.conll (the motifs tagged in place).
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

K, APART, LENGTH = 4, 4, 24  # letters of a motif; from one of a pair to the other; motifs in all


class Grammar:
    """The families and their pairs."""

    def __init__(self, draw: random.Random, *, families: int = 2, pairs: int = 20) -> None:
        self.draw = draw
        motifs = [self.motif() for _ in range(9 * pairs * families)]
        distinct = iter(dict.fromkeys(motifs))
        self.families = [
            [(next(distinct), next(distinct)) for _ in range(pairs)] for _ in range(families)
        ]

    def motif(self) -> str:
        """Four letters, any."""
        return "".join(self.draw.choices("ACGT", k=K))

    def sequence(self, family: int, *, pairs: int = 5) -> tuple[list[str], list[str]]:
        """A sequence in stretches of four letters, and their tags."""
        stretches = [self.motif() for _ in range(LENGTH)]
        tags = ["O"] * LENGTH
        free = [at for at in range(LENGTH - APART) if at // APART % 2 == 0]
        for at in self.draw.sample(free, pairs):
            stretches[at], stretches[at + APART] = self.draw.choice(self.families[family])
            tags[at], tags[at + APART] = "B-LEFT", "B-RIGHT"
        return stretches, tags


def write(folder: Path, *, sequences: int, labelled: int, dev: int, seed: int = 0) -> None:
    """Write all files."""
    grammar = Grammar(random.Random(seed))
    names = [f"family-{number}" for number in range(len(grammar.families))]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "sequences.txt").open("w") as file:
        for number in range(sequences):
            file.write("".join(grammar.sequence(number % len(names))[0]) + "\n")
    for split, count in (("train", labelled), ("dev", dev)):
        table = (folder / f"{split}.tsv").open("w")
        tagged = (folder / f"{split}.conll").open("w")
        with table, tagged:
            table.write("text\tlabel\n")
            for number in range(count):
                family = number % len(names)
                stretches, tags = grammar.sequence(family)
                table.write(f"{''.join(stretches)}\t{names[family]}\n")
                rows = zip(stretches, tags, strict=True)
                tagged.write("".join(f"{stretch}\t{tag}\n" for stretch, tag in rows) + "\n")


def main(words: list[str] | None = None) -> None:
    """Write the files of the example."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--sequences", type=int, default=3000, help="without a label (3,000)")
    parser.add_argument("--labelled", type=int, default=16, help="to learn from (16)")
    parser.add_argument("--dev", type=int, default=200, help="to score on (200)")
    asked = parser.parse_args(words)
    write(asked.out, sequences=asked.sequences, labelled=asked.labelled, dev=asked.dev)


if __name__ == "__main__":
    main()
