"""Checks of a run, a folder of transformers or a corpus for faults, from its records."""
