"""How many examples a property is tried on: as many as its test says, a fifth in `make quick`."""

import os

from hypothesis import settings

QUICK = "CLOZELAB_QUICK" in os.environ
USUAL = 100  # of a test that does not say


def max_examples(count: int) -> settings:
    """So many, or in `make quick` a fifth of them, but at least five."""
    return settings(max_examples=max(min(count, 5), count // 5) if QUICK else count)


# The same examples every time, however long each takes.
settings.register_profile("clozelab", deadline=None, derandomize=True, database=None)
settings.load_profile("clozelab")
settings.register_profile("clozelab", settings(), max_examples=max_examples(USUAL).max_examples)
settings.load_profile("clozelab")
