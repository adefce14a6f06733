"""`python -m clozelab` is the clozelab command."""

import os
import sys

from clozelab.cli import main

code = main()
if "WORLD_SIZE" in os.environ:  # under torchrun, where torch has been loaded anyway
    from clozelab.training.world import exit_process

    exit_process(code)
sys.exit(code)
