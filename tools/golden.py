"""Record the numbers that refactoring must not change: tests/golden/golden.json.

Record a section anew only if a change is meant to change its numbers, and say so in CHANGELOG.md;
tests/golden compares them. The files in tests/golden/old.tar.xz are never made again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1"}
TESTS = Path(__file__).resolve().parents[1] / "tests"


def main() -> int:
    """Record."""
    sys.path[:0] = [str(TESTS)]
    import torch
    from support.golden_numbers import FILE, SECTIONS, recorded

    from clozelab.files import write_text

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    choices = [*SECTIONS]
    parser.add_argument("sections", nargs="*", help=f"{', '.join(choices)} (all)")
    arguments = parser.parse_args()
    if unknown := {*arguments.sections} - {*choices}:
        parser.error(f"no section {', '.join(sorted(unknown))}; choose from {', '.join(choices)}")
    torch.set_num_threads(1)
    before = recorded() if arguments.sections else {}
    numbers = {
        section: {name: measure(name) for name in names}
        if section in (arguments.sections or choices)
        else before[section]
        for section, (measure, names) in SECTIONS.items()
    }
    write_text(FILE, json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    for section, cases in numbers.items():
        print(f"{section}: {len(cases)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
