"""The store: built in shards, put together, opened memory-mapped."""

from clozelab.text.store.corpus import Corpus

__all__ = ["Corpus"]
