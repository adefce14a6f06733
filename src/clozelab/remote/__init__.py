"""Places at a URL, by fsspec: asked for, fetched into a cache, and written to."""
