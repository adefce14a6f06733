"""Pack the cells of studies, each into one file that `clozelab report` reads in their place.

    python tools/pack_study.py results/NAME …

The file, cells.jsonl, has a line for each file of the cells. `clozelab study` unpacks it when it
continues in such a folder. Weights are not packed: tools/keep_study.py leaves them behind.
"""

from __future__ import annotations

import sys
from pathlib import Path

from clozelab.studies.records import pack

if __name__ == "__main__":
    for folder in sys.argv[1:]:
        pack(Path(folder))
