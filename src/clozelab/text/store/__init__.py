"""The store: built in shards, concatenated, opened memory-mapped."""

from clozelab.text.store.corpus import Corpus

__all__ = ["Corpus"]
