"""`python -m clozelab` is the clozelab command."""

import sys

from clozelab.cli import main

sys.exit(main())
