"""Triton asks once, when it is first imported, whether its kernels are to be interpreted."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
