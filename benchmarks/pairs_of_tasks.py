"""Pairs of texts that mean the same, from the training sets of tasks: rows to build a corpus of.

    python benchmarks/pairs_of_tasks.py --task-data DIR --out pairs.jsonl
    clozelab corpus build pairs.jsonl --field text,positive --tokenizer-from CORPUS --out pairs

They are the entailments of MNLI and the duplicates of QQP, as in SimCSE's supervised training (§4),
whose own are of NLI alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from clozelab.files import write_text
from clozelab.finetuning.request import Data

ALIKE = {"mnli": "entailment", "qqp": "1"}


def main() -> None:
    """Write a line for each pair."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--task-data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = [
        {"text": example.first, "positive": example.second}
        for task, label in ALIKE.items()
        for example in Data(task, root=arguments.task_data).splits().read("train")
        if example.label == label
    ]
    write_text(arguments.out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    print(f"{arguments.out}: {len(rows):,} pairs")


if __name__ == "__main__":
    main()
