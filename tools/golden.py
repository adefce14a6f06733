"""Record the numbers that no change of the code's shape may change: tests/golden/golden.json.

Run it only when a change is meant to change what is trained, and say so in CHANGELOG.md; the test
in tests/golden compares. Cases named on the command line are recorded anew, or else all.
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help="those to record (all)")
    arguments = parser.parse_args()
    sys.path[:0] = [str(TESTS)]
    import torch
    from recording import CASES, DROPPING, FILE, measured, recorded

    from clozelab.files import write_text

    torch.set_num_threads(1)
    known = [*CASES, *DROPPING]
    unknown = {*arguments.cases} - {*known}
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    before = recorded() if arguments.cases else {}
    numbers = {
        name: measured(name) if name in (arguments.cases or known) else before[name]
        for name in known
    }
    write_text(FILE, json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    print(f"{FILE}: {len(numbers)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
